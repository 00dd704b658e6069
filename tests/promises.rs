//! Black-box tests.

// A test ends with a panic, in its helpers too.
#![allow(clippy::unwrap_used, clippy::panic)]

mod local_stt;

//! Black-box tests.

// Helpers of tests may fail a test, too.
#![allow(clippy::unwrap_used, clippy::panic)]

mod local_tts;
mod wyoming;

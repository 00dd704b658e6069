//! Black-box tests.

// What a helper of a test cannot do fails the test.
#![allow(clippy::unwrap_used, clippy::panic)]

mod codecs;

//! Black-box tests.

mod codecs;

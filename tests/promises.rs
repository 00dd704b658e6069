//! Black-box tests.

mod local_stt;

//! Black-box tests.

mod local_tts;

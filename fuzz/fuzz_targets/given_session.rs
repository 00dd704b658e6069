#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| vivavoce_fuzz::fuzzing::run("given_session", input));

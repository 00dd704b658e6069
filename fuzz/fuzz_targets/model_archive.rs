#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| vivavoce::fuzzing::run("model_archive", input));

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| vivavoce_fuzz::fuzzing::run("realtime_events", input));

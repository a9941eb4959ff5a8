#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| libjvmprobe::fuzzing::process_context(bytes));

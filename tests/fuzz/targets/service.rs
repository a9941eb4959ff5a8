#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| libjvmprobe::fuzzing::service(bytes));

//! Fuzzes the decoder of javaprof's ring buffer records.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| libjvmprobe::fuzzing::javaprof_events(bytes));

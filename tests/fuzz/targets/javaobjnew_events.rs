//! Fuzzes the decoder of javaobjnew's ring buffer records.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| libjvmprobe::fuzzing::javaobjnew_events(bytes));

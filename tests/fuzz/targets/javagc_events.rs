//! Fuzzes the decoder of javagc's ring buffer records.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| libjvmprobe::fuzzing::javagc_events(bytes));

//! Records of javaobjnew's ring buffer.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| libjvmprobe::fuzzing::javaobjnew_events(bytes));

//! Records of javagc's ring buffer.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| libjvmprobe::fuzzing::javagc_events(bytes));

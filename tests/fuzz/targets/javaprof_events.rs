//! Records of javaprof's ring buffer.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| libjvmprobe::fuzzing::javaprof_events(bytes));

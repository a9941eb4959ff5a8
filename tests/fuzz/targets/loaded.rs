//! Fuzzes the reader of loaded classes and their methods.
#![no_main]
libfuzzer_sys::fuzz_target!(init: libjvmprobe::fuzzing::write_seed("loaded"), |bytes: &[u8]| libjvmprobe::fuzzing::loaded(bytes));

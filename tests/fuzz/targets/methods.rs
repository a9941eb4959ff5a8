#![no_main]
libfuzzer_sys::fuzz_target!(
    init: libjvmprobe::fuzzing::write_seed("methods"),
    |bytes: &[u8]| libjvmprobe::fuzzing::methods(bytes)
);

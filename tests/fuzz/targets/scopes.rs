#![no_main]
libfuzzer_sys::fuzz_target!(
    init: libjvmprobe::fuzzing::write_seed("scopes"),
    |bytes: &[u8]| libjvmprobe::fuzzing::scopes(bytes)
);

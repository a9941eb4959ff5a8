#![no_main]
libfuzzer_sys::fuzz_target!(
    init: libjvmprobe::fuzzing::write_seed("code_cache"),
    |bytes: &[u8]| libjvmprobe::fuzzing::code_cache(bytes)
);

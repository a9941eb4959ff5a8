#![no_main]
libfuzzer_sys::fuzz_target!(
    init: libjvmprobe::fuzzing::write_seed("objects"),
    |bytes: &[u8]| libjvmprobe::fuzzing::objects(bytes)
);

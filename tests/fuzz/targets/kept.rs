#![no_main]
libfuzzer_sys::fuzz_target!(
    init: libjvmprobe::fuzzing::write_seed("kept"),
    |bytes: &[u8]| libjvmprobe::fuzzing::kept(bytes)
);

#![no_main]
libfuzzer_sys::fuzz_target!(
    init: libjvmprobe::fuzzing::write_seed("vm_structs"),
    |bytes: &[u8]| libjvmprobe::fuzzing::vm_structs(bytes)
);

//! Compiles the kernel side's stack walker for user space.

#![allow(clippy::print_stdout, reason = "so build scripts talk to cargo")]

fn main() {
    // What is not x86-64 has no Java frames to walk, and no recordings.
    cc::Build::new()
        .file("c/harness.c")
        .include("c")
        .include("../../bpf")
        .define("__TARGET_ARCH_x86", None)
        .flag("-fno-strict-aliasing")
        .flag("-Wno-unknown-pragmas")
        .extra_warnings(false)
        .warnings_into_errors(true)
        .compile("walk_harness");
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-changed=../../bpf/walk");
}

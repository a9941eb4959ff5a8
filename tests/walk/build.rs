//! Compiles the walker for the processors that this machine does not have, so that their recordings are tested on every
//! machine. The walker for this machine's processor is part of the library.

#![allow(clippy::print_stdout, reason = "cargo reads a build script's output")]

/// Processors: the name of cargo, and of libbpf's headers.
const PROCESSORS: [(&str, &str); 2] = [("x86_64", "x86"), ("aarch64", "arm64")];

/// Functions and variables of the walker, which must have other names than those of the library's walker.
const SYMBOLS: [&str; 17] = [
    "harness_walk",
    "harness_trail",
    "harness_blob",
    "harness_sizes",
    "address_cache",
    "has_user_registers",
    "jvms",
    "mappings",
    "tables",
    "task_utask",
    "unused_jvm",
    "unused_mapping",
    "unused_row",
    "uses_walk_data",
    "utask_vaddr",
    "utask_xol_vaddr",
    "walkers",
];

fn main() {
    println!("cargo::rerun-if-changed=foreign");
    println!("cargo::rerun-if-changed=../../libjvmprobe/walk");
    println!("cargo::rerun-if-changed=../../bpf/walk");
    let own = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    for (name, header_name) in PROCESSORS.iter().filter(|(name, _)| *name != own) {
        let mut build = cc::Build::new();
        for symbol in SYMBOLS {
            build.define(symbol, &*format!("{name}_{symbol}"));
        }
        build
            .file("../../libjvmprobe/walk/harness.c")
            .include("foreign")
            .include("../../libjvmprobe/walk")
            .include("../../bpf")
            .define(&format!("__TARGET_ARCH_{header_name}"), None)
            .flag("-fno-strict-aliasing")
            .flag("-Wno-unknown-pragmas")
            .extra_warnings(false)
            .warnings_into_errors(true)
            .compile(&format!("walk_harness_{name}"));
    }
}

//! Compiles a tool's BPF programs and generates their skeleton.

#![allow(clippy::print_stdout, reason = "cargo reads a build script's output")]

use std::{env, path::PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() -> anyhow::Result<()> {
    let tool = env::var("CARGO_PKG_NAME")?;
    let out = PathBuf::from(env::var("OUT_DIR")?).join(format!("{tool}.skel.rs"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH")?;
    SkeletonBuilder::new()
        .source(format!("../../bpf/{tool}.bpf.c"))
        // Debian and Ubuntu have asm/*.h in a directory named after the architecture.
        .clang_args([format!("-I/usr/include/{arch}-linux-gnu"), "-Wall".into(), "-Werror".into()])
        .build_and_generate(&out)?;
    println!("cargo::rerun-if-changed=../../bpf");
    Ok(())
}

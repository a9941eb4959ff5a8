//! Compiles the BPF program and generates its skeleton.

#![allow(clippy::print_stdout, reason = "cargo reads a build script's output")]

use std::{env, path::PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() -> anyhow::Result<()> {
    let out = PathBuf::from(env::var("OUT_DIR")?).join("classload.skel.rs");
    let include = format!("-I/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH")?);
    SkeletonBuilder::new()
        .source("classload.bpf.c")
        .clang_args([include.as_str(), "-I../../bpf", "-Wall", "-Werror"])
        .build_and_generate(&out)?;
    println!("cargo::rerun-if-changed=classload.bpf.c");
    println!("cargo::rerun-if-changed=../../bpf");
    Ok(())
}

//! Compiles a tool's BPF programs and generates their skeleton.

#![allow(clippy::print_stdout, reason = "cargo reads a build script's output")]

use std::{env, path::Path};

#[path = "../bpf/skeleton.rs"]
mod skeleton;

fn main() -> anyhow::Result<()> {
    println!("cargo::rerun-if-changed=../../bpf");
    let tool = env::var("CARGO_PKG_NAME")?;
    skeleton::build(&format!("../../bpf/{tool}.bpf.c"), &tool, Path::new(&env::var("OUT_DIR")?))
}

//! Compiles the BPF side and generates its skeleton.

use std::{env, path::PathBuf};

use libbpf_cargo::SkeletonBuilder;

const SOURCE: &str = "../../bpf/javaobjnew.bpf.c";

fn main() -> anyhow::Result<()> {
    let out = PathBuf::from(env::var("OUT_DIR")?).join("javaobjnew.skel.rs");
    let arch = env::var("CARGO_CFG_TARGET_ARCH")?;
    SkeletonBuilder::new()
        .source(SOURCE)
        // Debian and Ubuntu keep asm/*.h below a folder named after the machine.
        .clang_args([format!("-I/usr/include/{arch}-linux-gnu"), "-Wall".into(), "-Werror".into()])
        .build_and_generate(&out)?;
    println!("cargo::rerun-if-changed=../../bpf");
    Ok(())
}

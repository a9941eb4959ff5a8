//! Generates the layouts of a tool's events from its BPF programs, as tools/build.rs does.

use std::{env, path::PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() -> anyhow::Result<()> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let arch = env::var("CARGO_CFG_TARGET_ARCH")?;
    for tool in ["javaclass"] {
        SkeletonBuilder::new()
            .source(format!("../../bpf/{tool}.bpf.c"))
            .clang_args([format!("-I/usr/include/{arch}-linux-gnu")])
            .build_and_generate(out.join(format!("{tool}.skel.rs")))?;
    }
    println!("cargo::rerun-if-changed=../../bpf");
    Ok(())
}

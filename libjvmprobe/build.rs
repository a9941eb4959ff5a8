//! Compiles the JVMTI agent, which is embedded.
//!
//! A library that needs no libc is linked otherwise than everything else here, and
//! cargo has no stable way to depend on a cdylib, so the compiler is called directly.

#![allow(clippy::print_stdout, reason = "so build scripts talk to cargo")]

use std::{env, path::PathBuf, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=agent/src");
    let var = |name| env::var(name).unwrap_or_else(|e| panic!("{name}: {e}"));
    let out = PathBuf::from(var("OUT_DIR")).join("agent.so");
    let mut rustc = Command::new(var("RUSTC"));
    rustc
        .args(["--edition", "2024", "--crate-name", "jvmprobe_agent", "--crate-type", "cdylib"])
        .args(["-C", "panic=abort", "-C", "opt-level=s", "-C", "strip=symbols"])
        .args(["-C", "link-arg=-nostdlib", "--target", &var("TARGET")])
        .arg("-o")
        .arg(&out)
        .arg("agent/src/lib.rs");
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={linker}"));
    }
    let status = rustc.status().unwrap_or_else(|e| panic!("run rustc: {e}"));
    assert!(status.success(), "the agent does not compile");
}

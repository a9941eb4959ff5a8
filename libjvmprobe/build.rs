//! Compiles the JVMTI agent, which is embedded, and the stack walker for user space.
//!
//! A library that needs no libc is linked otherwise than everything else here, and
//! cargo has no stable way to depend on a cdylib, so the compiler is called directly.

#![allow(clippy::print_stdout, reason = "so build scripts talk to cargo")]

use std::{env, path::PathBuf, process::Command};

fn main() {
    agent();
    walker();
}

/// The kernel side's walker, for the threads that it cannot walk itself.
fn walker() {
    println!("cargo::rerun-if-changed=walk");
    println!("cargo::rerun-if-changed=../bpf/walk");
    let machine = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "__TARGET_ARCH_x86",
        _ => "__TARGET_ARCH_arm64",
    };
    cc::Build::new()
        .file("walk/harness.c")
        .include("walk")
        .include("../bpf")
        .define(machine, None)
        .flag("-fno-strict-aliasing")
        .flag("-Wno-unknown-pragmas")
        .extra_warnings(false)
        .warnings_into_errors(true)
        .compile("walk_harness");
}

fn agent() {
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

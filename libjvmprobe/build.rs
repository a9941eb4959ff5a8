//! Compiles three things: the JVMTI agent that the library embeds, the stack walker for user space,
//! and the tracers' BPF programs with their skeletons.
//!
//! The agent needs no libc and is linked differently from all other crates, and cargo has no stable
//! way to depend on a cdylib, so this script calls the compiler directly.

#![allow(clippy::print_stdout, reason = "cargo reads a build script's output")]

use std::{env, path::PathBuf, process::Command};

#[path = "../bpf/skeleton.rs"]
mod skeleton;

fn main() {
    agent();
    walker();
    skeletons();
}

/// The library's BPF objects, by the names of their sources.
const OBJECTS: &[&str] = &["inodes", "javagc", "javaobjnew", "javaprof", "javastack", "javawait"];

/// Compiles the BPF programs and generates their skeletons. A test of bpf/stack_depth.rs reads the object files.
fn skeletons() {
    println!("cargo::rerun-if-changed=../bpf");
    let out = PathBuf::from(env::var("OUT_DIR").unwrap_or_else(|e| panic!("OUT_DIR: {e}")));
    for name in OBJECTS {
        let built = skeleton::build(&format!("../bpf/{name}.bpf.c"), name, &out);
        built.unwrap_or_else(|e| panic!("{name}.bpf.c: {e:#}"));
    }
}

/// Compiles the kernel side's stack walker for user space, where it walks the threads that the kernel
/// side cannot walk.
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

//! Compiles the JVMTI agent, which is embedded, the stack walker for user space, and the BPF sides
//! of what is taken, with their skeletons.
//!
//! A library that needs no libc is linked otherwise than everything else here, and
//! cargo has no stable way to depend on a cdylib, so the compiler is called directly.

#![allow(clippy::print_stdout, reason = "so build scripts talk to cargo")]

use std::{env, path::PathBuf, process::Command};

use libbpf_cargo::SkeletonBuilder;

fn main() {
    agent();
    walker();
    skeletons();
}

/// What takes something has its BPF side by this name.
const TAKERS: &[&str] = &["javagc", "javaobjnew", "javaprof"];

/// As tools/build.rs does for a tool.
fn skeletons() {
    println!("cargo::rerun-if-changed=../bpf");
    let var = |name| env::var(name).unwrap_or_else(|e| panic!("{name}: {e}"));
    // Debian and Ubuntu keep asm/*.h below a folder named after the machine.
    let include = format!("-I/usr/include/{}-linux-gnu", var("CARGO_CFG_TARGET_ARCH"));
    let out = PathBuf::from(var("OUT_DIR"));
    for name in TAKERS {
        let built = SkeletonBuilder::new()
            .source(format!("../bpf/{name}.bpf.c"))
            // A test looks at it.
            .obj(out.join(format!("{name}.o")))
            .clang_args([include.as_str(), "-Wall", "-Werror"])
            .build_and_generate(out.join(format!("{name}.skel.rs")));
        built.unwrap_or_else(|e| panic!("{name}.bpf.c: {e:#}"));
    }
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

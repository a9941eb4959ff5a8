//! The walker on recorded stacks: each frame is the one that it was.
#![allow(clippy::print_stdout, reason = "figures, for whoever runs it")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use walk_harness::{harness, recording::Recording};

fn recordings() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings");
    let files = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = files.filter(|f| f.extension().is_some_and(|e| e == "gz")).collect();
    files.sort();
    files
}

#[test]
fn recorded_stacks_are_walked_as_they_were() {
    let mut wrong = String::new();
    for file in recordings() {
        let recording = Recording::read(&file).unwrap();
        let stack = harness::walk(&mut &recording, &recording.start);
        if stack != recording.stack {
            wrong += &format!(
                "{}: {}\n  right: {:x?}\n  found: {:x?}\n",
                file.display(),
                recording.about,
                recording.stack,
                stack
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Memory that is not what it was, or not there: the walk ends, and harms nothing.
#[test]
fn damaged_stacks_do_no_harm() {
    for file in recordings() {
        let whole = Recording::read(&file).unwrap();
        for (i, addr) in whole.lines.keys().enumerate().step_by(5) {
            let mut damaged = whole.clone();
            if i % 2 == 0 {
                damaged.lines.remove(addr);
            } else {
                // Bytes of another line.
                let other = damaged.lines.values().nth(i / 2).copied().unwrap();
                damaged.lines.insert(*addr, other);
            }
            let stack = harness::walk(&mut &damaged, &damaged.start);
            assert!(!stack.frames.is_empty() && stack.frames.len() <= 1024);
        }
    }
}

/// The other tests once more, in a process whose walker looks after its own memory.
#[test]
fn a_sanitizer_has_nothing_to_say() {
    if std::env::var_os(harness::OTHER).is_some() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("walker.so");
    let house = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compiled = Command::new("gcc")
        .args(["-O1", "-g", "-shared", "-fPIC", "-D__TARGET_ARCH_x86", "-fno-strict-aliasing"])
        .args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Wno-unknown-pragmas"])
        .arg(format!("-I{}", house.join("../../libjvmprobe/walk").display()))
        .arg(format!("-I{}", house.join("../../bpf").display()))
        .arg(house.join("../../libjvmprobe/walk/harness.c"))
        .arg("-o")
        .arg(&library)
        .output();
    let runtime = Command::new("gcc").arg("-print-file-name=libasan.so").output();
    let (compiled, runtime) = match (compiled, runtime) {
        (Ok(compiled), Ok(runtime)) if compiled.status.success() => (compiled, runtime),
        (compiled, _) => {
            // Past the captured output, so that nobody takes the test for one that ran.
            writeln!(std::io::stderr(), "NOT TESTED under a sanitizer: {compiled:?}").unwrap();
            return;
        }
    };
    assert!(compiled.stderr.is_empty(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let runtime = String::from_utf8(runtime.stdout).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--skip", "a_sanitizer_has_nothing_to_say"])
        .env(harness::OTHER, &library)
        .env("LD_PRELOAD", runtime.trim_end())
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

#[test]
fn there_are_enough_and_they_are_small() {
    let files = recordings();
    let sizes: Vec<_> = files.iter().map(|f| std::fs::metadata(f).unwrap().len()).collect();
    println!("{} recordings, {} bytes", files.len(), sizes.iter().sum::<u64>());
    assert!(files.len() >= 40, "{}", files.len());
    assert!(sizes.iter().all(|size| *size < 20_000) && sizes.iter().sum::<u64>() < 1 << 20);
}

//! Runs the walker on recorded stacks: each frame must be the recorded one.
#![allow(clippy::print_stdout, reason = "the figures are printed")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use libjvmprobe::stack::raw::RawFrame;
use walk_harness::{
    harness::{self, Processor, blob},
    recording::{PiecewiseSource, Recording},
};

fn recordings() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings");
    let files = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = files.filter(|f| f.extension().is_some_and(|e| e == "gz")).collect();
    files.sort();
    files
}

#[test]
fn walker_reproduces_the_recorded_frames() {
    let mut wrong = String::new();
    for file in recordings() {
        let recording = Recording::read(&file).unwrap();
        let stack = harness::walk(recording.processor, &mut &recording, &recording.start);
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

/// In the kernel, the walker reads the stack a few kilobytes at a time.
#[test]
fn walk_in_pieces_yields_the_recorded_frames() {
    let mut pieces = 0;
    for file in recordings() {
        let recording = Recording::read(&file).unwrap();
        let mut source = PiecewiseSource::of(&recording);
        let stack = harness::walk(recording.processor, &mut source, &recording.start);
        assert_eq!(stack, recording.stack, "{}: {}", file.display(), recording.about);
        pieces += source.count;
    }
    assert!(pieces > recordings().len(), "{pieces}");
}

/// Gives the recording a unique stamp. The walker caches code by stamp, so no two recordings share
/// cached code.
fn with_stamp(mut recording: Recording, stamp: u64) -> Recording {
    recording.jvm.stamp = stamp;
    if let Some(first) = recording.mappings.get_mut(&0) {
        first.bias = stamp;
    }
    recording
}

/// The second walk uses the code that the first one has cached.
#[test]
fn walk_with_cached_code_yields_the_recorded_frames() {
    let (mut without_rows, mut all) = (0, 0);
    for (file, stamp) in recordings().iter().zip(1..) {
        let recording = with_stamp(Recording::read(file).unwrap(), stamp);
        for _ in 0..2 {
            let stack = harness::walk(recording.processor, &mut &recording, &recording.start);
            assert_eq!(stack, recording.stack, "{}: {}", file.display(), recording.about);
        }
        // The unwind rows of callers in native code are in the cache now, so the walk succeeds
        // without the recorded rows. If the innermost frame is native, its row is still needed,
        // because the cache contains return addresses only. Such recordings are skipped.
        if compiled(recording.stack.frames[0]) == Some(0) {
            continue;
        }
        let mut without = recording.clone();
        without.rows.clear();
        without.mappings.retain(|&index, _| index == 0);
        let stack = harness::walk(without.processor, &mut &without, &without.start);
        all += 1;
        without_rows += usize::from(stack == recording.stack);
    }
    // In some recordings, two addresses share a cache slot, so one of them is not cached.
    assert!(without_rows * 4 > all * 3 && all > 40, "{without_rows} of {all}");
}

/// Compile id of a method that no recording has.
const OTHER_ID: u16 = 0x6bcd;

/// Returns the compile id of a frame of code, which is 0 if the code is no compiled method.
fn compiled(frame: u64) -> Option<u16> {
    match RawFrame::from_word(frame) {
        RawFrame::Code { compile_id, .. } => Some(compile_id),
        RawFrame::Interpreted { .. } => None,
    }
}

/// Between two walks, other code takes the place of a cached method.
#[test]
fn replaced_code_is_not_served_from_the_cache() {
    let mut replaced = 0;
    for (file, stamp) in recordings().iter().zip(1 << 32..) {
        let recording = with_stamp(Recording::read(file).unwrap(), stamp);
        harness::walk(recording.processor, &mut &recording, &recording.start);
        // The innermost caller that is a compiled method.
        let frames = recording.stack.frames.iter().map(|&frame| RawFrame::from_word(frame));
        let is_compiled = |frame: &RawFrame| matches!(frame, RawFrame::Code { compile_id, .. } if *compile_id != 0);
        let found = frames.skip(1).find(is_compiled);
        let Some(RawFrame::Code { addr, compile_id }) = found else { continue };
        let found = blob(&mut &recording, addr.0 - 1);
        let mut other = recording.clone();
        let at = found.identity_at;
        let line = other.lines.get_mut(&(at - at % 64)).unwrap();
        let id_bytes = &mut line[(at % 64) as usize..][..2];
        let old = u16::from_le_bytes([id_bytes[0], id_bytes[1]]);
        assert_eq!(old & 0x7fff, compile_id, "{}", file.display());
        id_bytes.copy_from_slice(&OTHER_ID.to_le_bytes());
        let stack = harness::walk(other.processor, &mut &other, &other.start);
        assert!(
            stack.frames.iter().any(|&frame| compiled(frame) == Some(OTHER_ID)),
            "{}",
            file.display()
        );
        replaced += 1;
    }
    assert!(replaced > 40, "{replaced}");
}

/// Walks with memory that was changed or removed.
#[test]
fn damaged_memory_ends_the_walk_safely() {
    for file in recordings() {
        let intact = Recording::read(&file).unwrap();
        for (i, addr) in intact.lines.keys().enumerate().step_by(5) {
            let mut damaged = intact.clone();
            if i % 2 == 0 {
                damaged.lines.remove(addr);
            } else {
                // The bytes of another line.
                let other = damaged.lines.values().nth(i / 2).copied().unwrap();
                damaged.lines.insert(*addr, other);
            }
            let stack = harness::walk(damaged.processor, &mut &damaged, &damaged.start);
            assert!(!stack.frames.is_empty() && stack.frames.len() <= 1024);
        }
    }
}

/// Runs the other tests again in a process whose walker was compiled with sanitizers.
#[test]
fn sanitizers_report_no_errors() {
    if std::env::var_os(harness::OTHER).is_some() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let manifest_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (processor, header_name) in [(Processor::X86_64, "x86"), (Processor::Aarch64, "arm64")] {
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-g", "-shared", "-fPIC", "-fno-strict-aliasing", "-Wno-unknown-pragmas"])
            .args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"])
            .arg(format!("-D__TARGET_ARCH_{header_name}"));
        if processor != Processor::OWN {
            gcc.arg(format!("-I{}", manifest_dir.join("foreign").display()));
        }
        gcc.arg(format!("-I{}", manifest_dir.join("../../libjvmprobe/walk").display()))
            .arg(format!("-I{}", manifest_dir.join("../../bpf").display()))
            .arg(manifest_dir.join("../../libjvmprobe/walk/harness.c"))
            .arg("-o")
            .arg(folder.path().join(format!("{}.so", processor.name())));
        // tests/setup installs gcc, which has libasan.
        let compiled = gcc.output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        assert!(compiled.stderr.is_empty(), "{}", String::from_utf8_lossy(&compiled.stderr));
    }
    let runtime = Command::new("gcc").arg("-print-file-name=libasan.so").output().unwrap();
    let runtime = String::from_utf8(runtime.stdout).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--skip", "sanitizers_report_no_errors"])
        .env(harness::OTHER, folder.path())
        .env("LD_PRELOAD", runtime.trim_end())
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

/// There is a recording of each kind of frame that an earlier version of the walker has walked wrongly.
#[test]
fn every_frame_kind_has_a_recording() {
    let files = recordings();
    let descriptions: Vec<_> =
        files.iter().map(|file| Recording::read(file).unwrap().about).collect();
    let has = |runtime: &str, kind: &str| {
        let kind = format!(": {kind}");
        let is_one = |about: &&String| about.starts_with(runtime) && about.contains(&kind);
        assert!(descriptions.iter().find(is_one).is_some(), "{runtime}{kind}");
    };
    let jdks = ["temurin-11", "temurin-17", "temurin-21", "temurin-25"];
    for kind in [
        "adapter",
        "compiled",
        "deoptimisation",
        "entry by on-stack replacement",
        "epilogue",
        "interpreted, entry",
        "interpreted, exit",
        "native",
        "prologue",
        "stub",
    ] {
        jdks.iter().for_each(|jdk| has(jdk, kind));
        // Recordings of aarch64 take long to make, so there need not be one for each JDK.
        has("aarch64", kind);
    }
    jdks.iter().for_each(|jdk| has(jdk, "deoptimised caller"));
    has("temurin-11", "interpreted, entry, called by compiled code");
    has("temurin-21", "virtual thread: interpreted, exit, called by compiled code");
    has("temurin-21", "virtual thread: deoptimisation");
    has("temurin-21", "virtual thread: compiled");
    has("temurin-25", "virtual thread: compiled");
    has("musl-17", "compiled");
    has("musl-17", "deoptimisation");
    has("musl-17", "interpreted");
    has("musl-11", "deoptimisation");
    for jdk in ["aarch64 temurin-17", "aarch64 temurin-21", "aarch64 temurin-25"] {
        [
            "compiled",
            "deoptimised caller",
            "entry by on-stack replacement",
            "interpreted",
            "native",
            "stub",
        ]
        .iter()
        .for_each(|kind| has(jdk, kind));
    }
    ["temurin-17", "temurin-21", "aarch64 temurin-21", "aarch64 temurin-25"]
        .iter()
        .for_each(|jdk| has(jdk, "dispatch"));
    for kind in
        ["adapter", "compiled", "deoptimisation", "dispatch", "epilogue", "interpreted", "prologue"]
    {
        has("aarch64 temurin-21", &format!("virtual thread: {kind}"));
    }
    has("aarch64 temurin-21", "epilogue of a native method");
    has("aarch64 temurin-21", "signal: native");
    has("aarch64 temurin-21", "signal: stub");
    let of_aarch64 = descriptions.iter().filter(|about| about.starts_with("aarch64 "));
    assert!(of_aarch64.count() >= 40);
}

#[test]
fn recordings_are_numerous_and_small() {
    let files = recordings();
    let sizes: Vec<_> = files.iter().map(|f| std::fs::metadata(f).unwrap().len()).collect();
    println!("{} recordings, {} bytes", files.len(), sizes.iter().sum::<u64>());
    assert!(files.len() >= 40, "{}", files.len());
    assert!(sizes.iter().all(|size| *size < 20_000) && sizes.iter().sum::<u64>() < 2_200_000);
}

//! Stacks of javaprof in a JVM of JDK 8 that spends its time in intrinsics, stubs, native methods and exception
//! handling: complete, and with one name for each function of a library without symbols.
#![allow(clippy::print_stdout, reason = "figures are printed")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
};

use jvmprobe_tests::{
    folded::{self, Line, total},
    load::Load,
    run_beside_others,
    runtimes::{self, Runtime, named},
    tool::{self, binary},
};

/// Minimum share of complete stacks. A version that guessed the steps to the caller reached 0.8.
const COMPLETE: f64 = 0.99;

/// Beginnings of the names of the load's threads.
const KINDS: [&str; 8] = [
    "exceptions",
    "trigonometry",
    "logarithms",
    "checksums",
    "natives",
    "reflection",
    "copies",
    "ciphers",
];

#[test]
fn stacks_in_intrinsics_and_natives_are_complete() {
    run_beside_others();
    // Builds the tools now, because a running load would not wait for the end of the build.
    binary("javaprof");
    check(named("zulu-8"));
    runtimes::of_unstable("sid-8").map(check);
}

fn check(runtime: &Runtime) {
    let name = &runtime.name;
    let mut load = Load::start_program(runtime, "-XX:+UseSerialGC -Xmx100m", "IntrinsicLoad");
    let pid = load.pid().to_string();
    // Warm-up: afterwards the code is compiled.
    load.ask("go 4");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("stacks.folded").display().to_string();
    load.go(7.0);
    let output =
        tool::run("javaprof", &["-p", &pid, "-F", "1999", "-d", "5", "-t", "-j", "-o", &file]);
    load.done();
    let records = output.json();
    let lines = folded::parse(&std::fs::read_to_string(&file).unwrap());

    let mut samples = BTreeMap::new();
    for kind in KINDS {
        samples.insert(kind, total(lines.iter().filter(|line| line.frames[1].starts_with(kind))));
    }
    let summary = records.last().unwrap();
    println!("{name}: {samples:?} {summary}");
    assert!(samples.values().all(|&count| count > 5), "{name}: {samples:?}");
    let share = summary["complete"].as_f64().unwrap();
    assert!(share >= COMPLETE, "{name}: {share} of the stacks are complete: {summary}");
    check_unnamed(runtime, &lines);
}

/// Asserts that a function without a name is shown by its start address, unless the file's call
/// frame information does not describe it, as with hand-written assembly.
fn check_unnamed(runtime: &Runtime, lines: &[Line]) {
    let frames = lines.iter().flat_map(|line| &line.frames);
    let unnamed: BTreeSet<_> = frames
        .filter_map(|frame| frame.strip_prefix("[unknown libjvm.so+0x")?.strip_suffix(']'))
        .map(|offset| u64::from_str_radix(offset, 16).unwrap())
        .collect();
    println!("{}: {} functions of libjvm.so without a name", runtime.name, unnamed.len());
    let functions = functions(&runtime.libjvm());
    let is_inside = |offset: &u64| {
        let before = functions.range(..offset).next_back();
        !functions.contains_key(offset) && before.is_some_and(|(_, end)| offset < end)
    };
    let inside: Vec<_> = unnamed.iter().filter(|offset| is_inside(offset)).collect();
    assert!(inside.is_empty(), "{}: {inside:x?}", runtime.name);
}

/// Returns start and end of a file's functions, from its call frame information as binutils read
/// it. (In the tests' libjvm.so, code addresses are file offsets.)
fn functions(file: &Path) -> BTreeMap<u64, u64> {
    let output = Command::new("readelf").arg("--debug-dump=frames").arg(file).output();
    let text = String::from_utf8(output.expect("run readelf").stdout).expect("UTF-8");
    let number = |hex: &str| u64::from_str_radix(hex, 16).expect("an address");
    let ranges = text.split("pc=").skip(1).filter_map(|rest| {
        let (start, end) = rest.split_whitespace().next()?.split_once("..")?;
        Some((number(start), number(end)))
    });
    ranges.collect()
}

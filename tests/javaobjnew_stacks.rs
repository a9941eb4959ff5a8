//! javaobjnew's stacks compared with a program's own knowledge of its call paths.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use std::{collections::BTreeMap, path::Path};

use jvmprobe_tests::{
    allocated::{Allocated, trace},
    folded,
    load::Load,
    pprof, run_beside_others,
    runtimes::{self, Runtime, named},
    speedscope,
    tool::{self, Tool},
};
use serde_json::Value;

/// Call paths that allocate, from the source of `AllocLoad`: name, methods (innermost first), and
/// E[s²]/E[s] over the sizes s of the objects that the path allocates in TLABs.
const PATHS: [(&str, &[&str], f64); 4] = [
    ("a", &["make", "a1", "a", "allocate"], 213.0),
    ("b", &["make", "b2", "b1", "b", "allocate"], 3743.0),
    ("c", &["make", "c", "allocate"], 9545.0),
    ("d", &["make", "d", "allocate"], 4950.0),
];

fn of_type<'a>(records: &'a [Value], wanted: &'a str) -> impl Iterator<Item = &'a Value> {
    records.iter().filter(move |r| r["type"] == wanted)
}

fn bytes(record: &Value) -> u64 {
    record["bytes"].as_u64().unwrap_or_else(|| panic!("no bytes: {record}"))
}

fn methods(stack: &Value) -> Vec<&str> {
    stack["stack"].as_array().unwrap().iter().map(|f| f["method"].as_str().unwrap()).collect()
}

/// Returns the load's path that a stack contains completely and in order, or `None`.
fn path(stack: &Value) -> Option<&'static str> {
    let methods = methods(stack);
    let shows = |chain: &[&str]| {
        chain.iter().enumerate().all(|(i, name)| {
            methods.get(i).and_then(|m| m.strip_prefix("AllocLoad.")) == Some(name)
        })
    };
    PATHS.iter().find(|(_, chain, _)| shows(chain)).map(|(name, ..)| *name)
}

/// Returns the bytes by path. Every stack of the load's own objects must show a path.
fn bytes_by_path(records: &[Value]) -> BTreeMap<&'static str, u64> {
    let mut sums = BTreeMap::new();
    for stack in of_type(records, "stack") {
        let is_made = methods(stack).contains(&"AllocLoad.make");
        match path(stack) {
            Some(path) => *sums.entry(path).or_default() += bytes(stack),
            None => assert!(!is_made, "the stack shows none of the load's call paths: {stack}"),
        }
    }
    sums
}

/// Asserts that for each class, the bytes of its stacks add up to its bytes, and the shares of its
/// stacks to 1.
fn check_sums(records: &[Value]) {
    for class in of_type(records, "class") {
        let of_class: Vec<_> =
            of_type(records, "stack").filter(|s| s["class"] == class["class"]).collect();
        assert_eq!(of_class.iter().map(|s| bytes(s)).sum::<u64>(), bytes(class), "{class}");
        let share: f64 = of_class.iter().map(|s| s["share"].as_f64().unwrap()).sum();
        assert!((share - 1.0).abs() < 1e-6, "{class}: {share}");
    }
}

/// Returns the accepted error of a path's estimate, as a share of its bytes.
///
/// Its bytes outside of TLABs are counted exactly. Of its T bytes in TLABs, S bytes were read.
/// These are objects of random sizes s, so the sum S has the variance S E[s²]/E[s]. Therefore the
/// estimate of T has a relative standard error of sqrt(E[s²]/E[s]/S). The sum of all paths, by
/// which the estimate is scaled, has a standard error, too. Four standard errors are allowed, and
/// five percent for differences between TLABs: on a busy machine, the threads get unequal shares of
/// CPU time, and so do the paths.
fn bound(truth: &Allocated, records: &[Value], path: &str) -> f64 {
    let summary = records.last().unwrap();
    let number = |field: &str| summary[field].as_f64().unwrap();
    let share_read = number("tlabs_read") / number("tlabs");
    let (_, _, size) = PATHS.iter().find(|(name, ..)| *name == path).unwrap();
    let whole = truth.paths[path] as f64;
    let outside: f64 = of_type(records, "class")
        .filter(|class| {
            of_type(records, "stack")
                .any(|s| s["class"] == class["class"] && self::path(s) == Some(path))
        })
        .map(|class| class["outside_bytes"].as_f64().unwrap())
        .sum();
    let inside = (whole - outside).max(0.0);
    let all = number("bytes") - number("outside_bytes");
    let largest = 9545.0;
    let variance = size / (inside * share_read).max(1.0) + largest / (all * share_read);
    (4.0 * variance.sqrt() + 0.05) * inside / whole
}

/// Asserts that every path above 1 % of the bytes is within its bound, and that the files agree.
fn check(runtime: &Runtime) {
    let name = &runtime.name;
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let (svg, lines, proto, json) =
        (file("a.svg"), file("a.folded"), file("a.pb.gz"), file("a.json"));
    let args = ["-s", "-o", &svg, "-o", &lines, "-o", &proto, "-o", &json];
    let (truth, records) = trace(runtime, "-XX:+UseG1GC", &args, "go 12 200 2");
    check_sums(&records);
    let found = bytes_by_path(&records);
    let summary = records.last().unwrap();
    for (path, &bytes) in truth.paths.iter().filter(|(_, bytes)| **bytes > truth.total / 100) {
        let off = found[path.as_str()] as f64 / bytes as f64 - 1.0;
        let bound = bound(&truth, &records, path);
        println!("{name}: {path}: {:+.2} % (bound {:.2} %)", off * 100.0, bound * 100.0);
        assert!(off.abs() <= bound, "{name}: {path} is off by {off}, more than {bound}");
    }
    println!(
        "{name}: {} stacks, {} bytes unsampled",
        summary["stacks"], summary["unsampled_bytes"]
    );
    assert_eq!(summary["other_stack_bytes"], 0);
    assert!(summary["unsampled_bytes"].as_u64().unwrap() < truth.total / 100, "{summary}");
    check_files(summary, [&svg, &lines, &proto, &json]);
}

/// Asserts that all files contain all bytes, with the class as innermost frame.
fn check_files(summary: &Value, [svg, lines, proto, json]: [&str; 4]) {
    let total = bytes(summary);
    let text = std::fs::read_to_string(lines).unwrap();
    let lines = folded::parse(&text);
    assert_eq!(folded::total(&lines), total);
    assert!(text.contains(";AllocLoad.b1;AllocLoad.b2;AllocLoad.make;long[] "), "{text}");
    assert!(lines.iter().all(|line| line.frames[0] == "java"), "{text}");

    let profile = pprof::read(Path::new(proto));
    let types = [("alloc_objects", "count"), ("alloc_space", "bytes")];
    assert_eq!(profile.types, types.map(|(kind, unit)| (kind.into(), unit.into())));
    let sum = |i: usize| profile.samples.iter().map(|s| s.values[i]).sum::<u64>();
    assert_eq!([sum(0), sum(1)], [summary["objects"].as_u64().unwrap(), total]);
    let is_made =
        |s: &&pprof::Sample| s.functions.starts_with(&["long[]".into(), "AllocLoad.make".into()]);
    assert!(profile.samples.iter().find(is_made).is_some());

    let samples = speedscope::read(Path::new(json));
    assert_eq!(samples.iter().map(|s| s.weight).sum::<u64>(), total);
    assert!(std::fs::read_to_string(json).unwrap().contains(r#""unit":"bytes""#));

    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.contains(" bytes, ") && svg.contains("<title>long[] ("), "{svg}");
}

#[test]
#[ignore = "long: make test-all"]
fn path_estimates_are_within_error_bounds_jdk_8() {
    check(named("zulu-8"));
}

#[test]
#[ignore = "long: make test-all"]
fn path_estimates_are_within_error_bounds_jdk_11() {
    check(named("temurin-11"));
}

#[test]
#[ignore = "long: make test-all"]
fn path_estimates_are_within_error_bounds_jdk_17() {
    check(named("temurin-17"));
}

#[test]
#[ignore = "long: make test-all"]
fn path_estimates_are_within_error_bounds_jdk_21() {
    check(named("temurin-21"));
}

#[test]
#[ignore = "long: make test-all"]
fn path_estimates_are_within_error_bounds_jdk_25() {
    check(named("temurin-25"));
}

#[test]
#[ignore = "long: make test-all"]
fn path_estimates_are_within_error_bounds_jdk_26_and_later() {
    for runtime in ["sid-26", "sid-27", "sid-28"].into_iter().filter_map(runtimes::of_unstable) {
        check(runtime);
    }
}

#[test]
fn class_bytes_are_split_by_call_path() {
    check_class_split_by_call_path("temurin-17");
}

#[test]
#[ignore = "long: make test-all"]
fn class_bytes_are_split_by_call_path_jdk_25() {
    check_class_split_by_call_path("temurin-25");
}

/// Checks a class that two paths allocate. Its bytes are divided between the paths by samples. If
/// each of n samples belongs to a path with probability p, about pn samples belong to this path, with
/// a relative standard error of sqrt((1 - p)/(pn)). The variance is doubled, because samples
/// represent different numbers of bytes. Four standard errors are allowed.
fn check_class_split_by_call_path(runtime: &str) {
    let (truth, records) = trace(named(runtime), "-XX:+UseG1GC", &["-s"], "go 8 200 2 shared");
    check_sums(&records);
    let class = of_type(&records, "class").find(|c| c["class"] == "long[]").unwrap();
    let of_d = of_type(&records, "stack")
        .filter(|s| s["class"] == "long[]" && path(s) == Some("d"))
        .map(bytes)
        .sum::<u64>();
    let whole = truth.classes["long[]"].1 as f64;
    let p = truth.paths["d"] as f64 / whole;
    let tlabs = records.last().unwrap()["tlabs"].as_f64().unwrap();
    let n = tlabs * class["share"].as_f64().unwrap();
    let bound = 4.0 * (2.0 * (1.0 - p) / (p * n)).sqrt();
    let off = of_d as f64 / bytes(class) as f64 / p - 1.0;
    println!("{runtime}: d: {:+.2} % (bound {:.2} %, {n:.0} samples)", off * 100.0, bound * 100.0);
    assert!(off.abs() < bound, "{runtime}: {off}, more than {bound}");
}

fn check_exact(runtime: &str, flag: &str) {
    let flags = format!("-XX:+UseG1GC {flag}");
    let (truth, records) = trace(named(runtime), &flags, &["--exact", "-s"], "go 2 200 2");
    check_sums(&records);
    let found = bytes_by_path(&records);
    for (path, &bytes) in truth.paths.iter().filter(|(_, bytes)| **bytes > 0) {
        assert_eq!(found[path.as_str()], bytes, "{runtime}: {path}");
    }
    let summary = records.last().unwrap();
    assert_eq!((&summary["lost"], &summary["unsampled_bytes"]), (&0.into(), &0.into()));
}

#[test]
fn exact_mode_counts_every_byte_by_path() {
    check_exact("temurin-17", "-XX:+DTraceAllocProbes");
    check_exact("temurin-25", "-XX:+DTraceAllocProbes");
}

#[test]
#[ignore = "long: make test-all"]
fn exact_mode_counts_every_byte_by_path_other_jdks() {
    check_exact("temurin-11", "-XX:+ExtendedDTraceProbes");
    check_exact("temurin-21", "-XX:+DTraceAllocProbes");
}

#[test]
#[ignore = "long: make test-all"]
fn exact_mode_with_stacks_loses_nothing_at_full_rate() {
    let flags = "-XX:+UseSerialGC -XX:+DTraceAllocProbes";
    let (truth, records) = trace(named("temurin-25"), flags, &["--exact", "-s"], "go 5 1000000 2");
    let found = bytes_by_path(&records);
    for path in ["a", "b", "c"] {
        assert_eq!(found[path], truth.paths[path], "{path}");
    }
    let all: u64 = truth.classes.values().map(|(objects, _)| objects).sum();
    println!("{:.2} million objects per second", all as f64 / 5e6);
    assert_eq!(records.last().unwrap()["lost"], 0);
}

/// Many threads run on few processors and preempt each other anywhere. Nevertheless each object is
/// reported with the name of its own class and the stack of its own thread.
#[test]
fn preempted_threads_keep_their_classes_and_stacks() {
    /// The classes that each path allocates, from the source of `AllocLoad`.
    const MADE: [(&str, &[&str]); 3] = [
        ("a", &["byte[]", "AllocLoad$Small", "AllocLoad$Node", "AllocLoad$Wide"]),
        ("b", &["char[]", "int[]", "java.lang.Object[]", "long[]"]),
        ("c", &["java.lang.String[][]", "double[]", "short[]", "float[]"]),
    ];
    for args in [&["-s"][..], &["-s", "--exact"]] {
        let flags = "-XX:+UseSerialGC -XX:+DTraceAllocProbes -XX:TLABSize=4k -XX:-ResizeTLAB";
        let args = [args, &["-t"]].concat();
        let (_, records) = trace(named("temurin-25"), flags, &args, "go 4 1000000 64");
        assert!(!of_type(&records, "class").any(|c| c["class"] == "(unknown)"), "{records:?}");
        bytes_by_path(&records);
        let made = |class: &Value| {
            let class = class.as_str().unwrap();
            MADE.iter().find(|(_, classes)| classes.contains(&class)).map(|(path, _)| *path)
        };
        let shown: Vec<_> =
            of_type(&records, "stack").filter_map(|s| Some((path(s)?, s))).collect();
        assert!(shown.len() > 10, "{records:?}");
        for (path, stack) in shown {
            assert_eq!(Some(path), made(&stack["class"]), "{stack}");
        }
    }
}

#[test]
fn large_objects_are_reported_with_their_stack() {
    let args = ["-s", "--large", "256k"];
    let (_, records) = trace(named("temurin-21"), "-XX:+UseG1GC", &args, "go 2 200 2");
    let large: Vec<_> = of_type(&records, "large").collect();
    assert!(large.len() > 10, "{records:?}");
    for record in large {
        assert_eq!(path(record), Some("c"), "{record}");
        let frame = &record["stack"][0];
        assert_eq!(frame["file"], "AllocLoad.java");
        assert!(frame["line"].as_u64().unwrap() > 200, "{record}");
    }
    let (_, records) = trace(named("temurin-21"), "-XX:+UseG1GC", &args[1..], "go 1 200 2");
    assert!(of_type(&records, "large").all(|r| r.get("stack").is_none()), "{records:?}");
    assert_eq!(of_type(&records, "stack").count(), 0);
}

#[test]
fn text_shows_stacks_below_the_table() {
    run_beside_others();
    let mut java = Load::start_program(named("temurin-17"), "-XX:+UseG1GC", "AllocLoad");
    let pid = java.pid().to_string();
    let tool = Tool::start("javaobjnew", &["-p", &pid, "-s", "--large", "256k"]);
    java.ask("go 2 200 2");
    let text = tool.interrupt().stdout;
    assert!(text.contains("\nlong[], "), "{text}");
    let stack = ["make", "b2", "b1", "b", "allocate"];
    let stack = stack.map(|name| format!("at AllocLoad.{name} (AllocLoad.java:"));
    let lines: Vec<_> = text.lines().map(str::trim_start).collect();
    let shown = lines.windows(5).any(|w| w.iter().zip(&stack).all(|(l, s)| l.starts_with(s)));
    assert!(shown, "{text}");
    // A large object, and the stack that allocated it.
    let at = lines.iter().position(|l| l.ends_with("double[]")).unwrap();
    assert!(lines[at + 1].starts_with(&stack[0]), "{text}");
}

#[test]
fn unwritable_file_is_reported_before_tracing() {
    run_beside_others();
    let java = Load::start_program(named("temurin-17"), "-XX:+UseG1GC", "AllocLoad");
    let pid = java.pid().to_string();
    for (file, why) in
        [("/no/such/folder/a.svg", "cannot create"), ("a.txt", "unknown file name extension")]
    {
        let output = tool::run("javaobjnew", &["-p", &pid, "-o", file]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stderr.contains(why) && output.stderr.contains(file), "{output:?}");
    }
    java.quit();
}

/// With separate threads, each line of folded stacks names its thread.
#[test]
fn threads_option_separates_threads_in_files() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.folded").display().to_string();
    let (_, records) =
        trace(named("temurin-21"), "-XX:+UseG1GC", &["-t", "-o", &file], "go 2 200 2");
    // Without `-s`, stacks are only in the files.
    assert_eq!(of_type(&records, "stack").count(), 0);
    let lines = folded::parse(&std::fs::read_to_string(&file).unwrap());
    for name in ["allocator-0-", "allocator-1-"] {
        assert!(lines.iter().any(|l| l.frames[1].starts_with(name)), "{lines:?}");
    }
    assert_eq!(folded::total(&lines), bytes(records.last().unwrap()));
}

//! javaobjnew compared with a program's own count of its allocations.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use jvmprobe_tests::{
    allocated::{self, trace},
    load::Load,
    run_beside_others,
    runtimes::{self, Runtime},
    slowness,
    tool::Tool,
};
use serde_json::Value;

fn class<'a>(records: &'a [Value], name: &str) -> &'a Value {
    let mut found = records.iter().filter(|r| r["type"] == "class" && r["class"] == name);
    found.next().unwrap_or_else(|| panic!("no {name}: {records:?}"))
}

fn number(record: &Value, field: &str) -> f64 {
    record[field].as_f64().unwrap_or_else(|| panic!("no number {field} in {record}"))
}

fn relative_error(estimate: f64, truth: u64) -> f64 {
    estimate / truth as f64 - 1.0
}

/// Asserts that the estimated total is within 5 % of the true one, and the estimate of each class
/// within 10 % if the class's share of all bytes is above `least`.
fn check(runtime: &Runtime, flags: &str, seconds: u32, least: f64) {
    // The number of full TLABs, and so the error of the estimates, depends on the work done.
    let load = format!("go {} 200 2", f64::from(seconds) * slowness());
    let (truth, records) = trace(runtime, flags, &[], &load);
    let summary = records.last().unwrap();
    let title = format!("{} {flags}", runtime.name);
    assert_eq!(summary["lost"], 0, "{summary}");
    let total = relative_error(number(summary, "bytes"), truth.total);
    println!("{title}: total {:+.2} %", total * 100.0);
    assert!(total.abs() <= 0.05, "{title}: {summary}");
    assert!(number(summary, "tlabs_read") > 0.0, "{title}: {summary}");
    let sum: f64 =
        records.iter().filter(|r| r["type"] == "class").map(|r| number(r, "bytes")).sum();
    assert!((sum / number(summary, "bytes") - 1.0).abs() < 0.001, "{title}: {sum} {summary}");
    // An emulated JVM fills few TLABs even in a longer time.
    let most = 0.1 * slowness().sqrt();
    for (name, (objects, bytes)) in &truth.classes {
        let share = *bytes as f64 / truth.total as f64;
        let found = class(&records, name);
        assert_eq!(found["estimated"], true);
        let (bytes, objects) = (
            relative_error(number(found, "bytes"), *bytes),
            relative_error(number(found, "objects"), *objects),
        );
        println!(
            "  {name}, {:.1} %: bytes {:+.1} %, objects {:+.1} %",
            share * 100.0,
            bytes * 100.0,
            objects * 100.0
        );
        if share > least {
            assert!(bytes.abs() <= most, "{title}: {name} is off by {bytes}");
            assert!(objects.abs() <= most, "{title}: {name} is off by {objects}");
        }
    }
}

#[test]
#[ignore = "long: make test-all"]
fn class_estimates_are_within_ten_percent_jdk_17() {
    check(runtimes::named("temurin-17"), "-XX:+UseG1GC", 30, 0.01);
}

#[test]
#[ignore = "long: make test-all"]
fn class_estimates_are_within_ten_percent_jdk_25() {
    check(runtimes::named("temurin-25"), "-XX:+UseG1GC", 30, 0.01);
}

/// The latest of these JDKs have compact headers by default.
#[test]
#[ignore = "long: make test-all"]
fn class_estimates_are_within_ten_percent_jdk_26_and_later() {
    for runtime in ["sid-26", "sid-27", "sid-28"].into_iter().filter_map(runtimes::of_unstable) {
        check(runtime, "-XX:+UseG1GC", 30, 0.01);
    }
}

#[test]
#[ignore = "long: make test-all"]
fn class_estimates_are_within_ten_percent_jdk_11() {
    check(runtimes::named("temurin-11"), "-XX:+UseG1GC", 30, 0.01);
}

#[test]
#[ignore = "long: make test-all"]
fn class_estimates_are_within_ten_percent_jdk_21() {
    check(runtimes::named("temurin-21"), "-XX:+UseSerialGC", 30, 0.01);
}

/// In JDK 8, a thread that needs a new TLAB hits the probe before it gets the TLAB.
#[test]
fn class_estimates_are_within_ten_percent_jdk_8_parallel() {
    check_layouts(&[("zulu-8", "-XX:+UseParallelGC")]);
}

#[test]
#[ignore = "long: make test-all"]
fn class_estimates_are_within_ten_percent_jdk_8_all_collectors() {
    for flags in [
        "-XX:+UseSerialGC",
        "-XX:+UseParallelGC",
        "-XX:+UseConcMarkSweepGC",
        "-XX:+UseG1GC",
        "-XX:+UseParallelGC -XX:-UseCompressedOops",
        "-XX:+UseParallelGC -XX:-TieredCompilation",
        "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-FastTLABRefill",
    ] {
        check(runtimes::named("zulu-8"), flags, 30, 0.01);
    }
}

#[test]
fn class_estimates_are_right_for_each_header_layout() {
    check_layouts(&[
        ("musl-17", "-XX:+UseSerialGC"),
        ("temurin-21", "-XX:+UseZGC -XX:+ZGenerational -Xmx256m"),
        ("temurin-25", "-XX:+UseG1GC -XX:+UseCompactObjectHeaders"),
    ]);
}

#[test]
#[ignore = "long: make test-all"]
fn class_estimates_are_right_for_more_collectors_and_layouts() {
    check_layouts(&[
        ("debian-17", "-XX:+UseParallelGC"),
        ("temurin-17", "-XX:+UseZGC -Xmx256m"),
        ("temurin-17", "-XX:+UseShenandoahGC -Xmx128m"),
        ("temurin-21", "-XX:+UseG1GC -XX:-UseCompressedClassPointers"),
        ("temurin-25", "-XX:+UseZGC -Xmx256m"),
    ]);
}

/// Checks only classes above 5 or 6 % of the bytes, because after ten seconds the estimate for a
/// class with few objects is not exact enough.
fn check_layouts(jvms: &[(&str, &str)]) {
    for (runtime, flags) in jvms {
        // AllocLoad counts 16 bytes for the header of an array. With these flags, headers have other
        // sizes, so its counts are less exact.
        let least = if flags.contains("Class") || flags.contains("Compact") { 0.06 } else { 0.05 };
        check(runtimes::named(runtime), flags, 10, least);
    }
}

#[test]
fn allocations_of_short_lived_threads_are_counted() {
    run_beside_others();
    let mut java = Load::start_program(runtimes::named("temurin-21"), "-XX:+UseG1GC", "AllocLoad");
    let pid = java.pid().to_string();
    let tool = Tool::start("javaobjnew", &["-p", &pid, "-j"]);
    let mut total = 0;
    for _ in 0..10 {
        total += allocated::parse(&java.ask("go 0.3 200 20")).total;
    }
    let records = tool.interrupt().json();
    let relative_error = relative_error(number(records.last().unwrap(), "bytes"), total);
    println!("total {:+.2} %", relative_error * 100.0);
    // The bytes that a thread allocates in its last TLAB are counted when the thread ends.
    assert!(relative_error.abs() < 0.05, "{relative_error}");
}

#[test]
fn threads_option_separates_threads() {
    let runtime = runtimes::named("temurin-21");
    let (truth, records) = trace(runtime, "-XX:+UseG1GC", &["-t"], "go 5 200 2");
    let of = |name: &str| -> f64 {
        let mine = records.iter().filter(|r| r["thread"] == name);
        mine.map(|r| number(r, "bytes")).sum()
    };
    for name in ["allocator-0", "allocator-1"] {
        let relative_error = relative_error(of(name), truth.total / 2);
        assert!(relative_error.abs() < 0.1, "{name}: {relative_error}");
    }
    assert!(records.iter().any(|r| r["thread"] == "allocator-1" && r["class"] == "long[]"));
}

fn check_exact(runtime: &str, flag: &str) {
    let (truth, records) = trace(
        runtimes::named(runtime),
        &format!("-XX:+UseG1GC {flag}"),
        &["--exact"],
        "go 2 200 2",
    );
    for (name, (objects, bytes)) in &truth.classes {
        let found = class(&records, name);
        assert_eq!(found["estimated"], false);
        let more = number(found, "objects") - *objects as f64;
        // The load's own strings, its threads and the JVM also allocate a little.
        let slack = if name.starts_with("AllocLoad$") { 0.0 } else { 1000.0 };
        assert!((0.0..=slack).contains(&more), "{runtime}: {name}: {more} more: {found}");
        if slack == 0.0 {
            assert_eq!(number(found, "bytes"), *bytes as f64, "{runtime}: {name}");
        }
    }
    let summary = records.last().unwrap();
    assert_eq!(summary["lost"], 0);
    assert!(relative_error(number(summary, "bytes"), truth.total).abs() < 0.01, "{summary}");
}

#[test]
fn exact_mode_counts_every_object() {
    check_exact("temurin-11", "-XX:+ExtendedDTraceProbes");
    check_exact("temurin-21", "-XX:+DTraceAllocProbes");
}

#[test]
#[ignore = "long: make test-all"]
fn exact_mode_counts_every_object_other_jdks() {
    check_exact("temurin-17", "-XX:+DTraceAllocProbes");
    check_exact("temurin-25", "-XX:+DTraceAllocProbes");
}

#[test]
#[ignore = "long: make test-all"]
fn exact_mode_loses_nothing_at_full_rate() {
    let flags = "-XX:+UseSerialGC -XX:+DTraceAllocProbes";
    let runtime = runtimes::named("temurin-25");
    let (truth, records) = trace(runtime, flags, &["--exact"], "go 5 1000000 2");
    for name in ["AllocLoad$Small", "AllocLoad$Node", "AllocLoad$Wide"] {
        let objects = number(class(&records, name), "objects");
        assert_eq!(objects, truth.classes[name].0 as f64, "{name}");
    }
    let all: u64 = truth.classes.values().map(|(objects, _)| objects).sum();
    println!("{:.2} million objects per second", all as f64 / 5e6);
    assert_eq!(records.last().unwrap()["lost"], 0);
}

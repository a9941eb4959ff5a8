//! `javagc --stack` compared with a program that knows which code requested its collections.
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use std::collections::{HashMap, HashSet};

use jvmprobe_tests::{load::Load, run_beside_others, runtimes, tool::Tool};
use serde_json::Value;

const SOURCE: &str = include_str!("java/AskLoad.java");

#[test]
fn every_gc_request_is_reported_with_its_stack() {
    check_request_stacks(&[
        ("temurin-11", "-XX:+UseSerialGC"),
        ("temurin-21", "-XX:+UseG1GC"),
        // A build without probes, where the requester is found in another way.
        ("musl-17", "-XX:+UseSerialGC"),
    ]);
}

#[test]
#[ignore = "long: make test-all"]
fn every_gc_request_is_reported_with_its_stack_other_jdks() {
    check_request_stacks(&[
        ("zulu-8", "-XX:+UseConcMarkSweepGC"),
        ("temurin-17", "-XX:+UseParallelGC"),
        ("debian-17", "-XX:+UseG1GC"),
        ("temurin-25", "-Xint -XX:+UseSerialGC"),
    ]);
}

fn check_request_stacks(runtimes: &[(&str, &str)]) {
    run_beside_others();
    for (name, flags) in runtimes {
        let mut load = Load::start_program(runtimes::named(name), flags, "AskLoad");
        let pid = load.pid().to_string();
        let tool = Tool::start("javagc", &["-p", &pid, "--stack", "-j"]);
        load.go(2.0);
        let truth = load.done();
        let output = tool.interrupt();
        assert!(output.status.success(), "{name}: {}", output.stderr);
        let mut seen: HashMap<String, HashSet<u64>> = HashMap::new();
        for line in output.stdout.lines() {
            let record: Value = serde_json::from_str(line).expect("JSON");
            let requests = record["requests"].as_array().map_or(&[][..], Vec::as_slice);
            let is_asked_for = record["cause"] == "System.gc()";
            assert_eq!(is_asked_for, !requests.is_empty(), "{name}: {line}");
            for request in requests {
                let thread = request["thread"].as_str().expect("a thread");
                check_stack(name, thread, &request["stack"]);
                let ts_ns = request["ts_ns"].as_u64().expect("a time");
                seen.entry(thread.to_owned()).or_default().insert(ts_ns);
            }
        }
        for thread in ["first", "second"] {
            let expected = number(&truth, thread);
            assert!(expected > 10, "{name}: {truth}");
            let found = seen.get(thread).map_or(0, |times| times.len() as u64);
            println!("{name}: {found} of {expected} requests of {thread}");
            assert_eq!(found, expected, "{name}: {thread} of {truth}");
        }
    }
}

/// Checks a stack from the innermost frame on, without the frames by which the JDK runs threads and
/// lambdas.
fn check_stack(name: &str, thread: &str, stack: &Value) {
    let frames = stack.as_array().expect("frames");
    let method = |frame: &Value| frame["method"].as_str().expect("a method").to_owned();
    let of_program = |name: &String| name.starts_with("AskLoad.") || name.ends_with(".gc");
    let methods: Vec<_> = frames.iter().map(method).filter(of_program).collect();
    let expected: &[&str] = match thread {
        "first" => &[
            "java.lang.Runtime.gc",
            "java.lang.System.gc",
            "AskLoad.cleanUp",
            "AskLoad.cleanUp",
            "AskLoad.cleanUp",
            "AskLoad.cleanUp",
            "AskLoad.cleanUp",
            "AskLoad.lambda$main$",
        ],
        "second" => &[
            "java.lang.Runtime.gc",
            "AskLoad.lambda$tidy$",
            "AskLoad.tidy",
            "AskLoad.lambda$main$",
        ],
        other => panic!("{name}: no caller has the name {other}: {stack}"),
    };
    let is_right = methods.len() == expected.len()
        && methods.iter().zip(expected).all(|(method, begin)| method.starts_with(begin));
    assert!(is_right, "{name}: {thread}: {methods:?}");
    let place = frames.iter().find(|frame| method(frame).starts_with("AskLoad."));
    let place = place.expect("found above");
    let line = SOURCE.lines().position(|line| line.contains(&format!("@{thread}")));
    let line = line.map(|index| index as u64 + 1);
    assert_eq!(place["line"].as_u64(), line, "{name}: {place}");
    assert_eq!(place["file"], "AskLoad.java", "{name}: {place}");
}

fn number(answer: &str, name: &str) -> u64 {
    let word =
        answer.split_ascii_whitespace().find_map(|w| w.strip_prefix(name)?.strip_prefix('='));
    word.and_then(|n| n.parse().ok()).expect("a number")
}

#[test]
fn text_prints_request_stacks_like_java() {
    run_beside_others();
    let mut load = Load::start_program(runtimes::named("temurin-21"), "", "AskLoad");
    let pid = load.pid().to_string();
    let tool = Tool::start("javagc", &["-p", &pid, "--stack"]);
    load.go(0.2);
    load.done();
    let output = tool.interrupt();
    for line in
        ["requested by ", "        at AskLoad.cleanUp (AskLoad.java:", "at java.lang.Runtime.gc"]
    {
        assert!(output.stdout.contains(line), "{line} is missing: {}", output.stdout);
    }
}

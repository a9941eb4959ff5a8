//! Names of Java threads that the kernel truncates: every tool shows the complete names, each for
//! the right thread.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use jvmprobe_tests::{
    container::Container,
    folded,
    load::Load,
    run_beside_others,
    runtimes::{self, Runtime, named},
    tool::{Tool, binary},
};

/// Names of the threads of `LongNameLoad`.
const NAMES: [&str; 4] = [
    "order-service-worker-0",
    "order-service-worker-1",
    "order-service-worker-2",
    "order-service-\u{437}\u{430}\u{43a}\u{430}\u{437}-3",
];
const LOAD: &str = "LongNameLoad";

#[test]
fn every_tool_shows_complete_thread_names() {
    for (name, flags) in [
        ("zulu-8", "-XX:+UseSerialGC"),
        ("temurin-11", "-XX:+UseG1GC"),
        ("temurin-17", "-XX:+UseParallelGC"),
        ("temurin-21", "-XX:+UseG1GC -XX:-UseCompressedOops"),
        ("temurin-25", "-XX:+UseShenandoahGC -XX:+UseCompactObjectHeaders"),
    ] {
        check(named(name), flags);
    }
    if let Some(runtime) = runtimes::of_unstable("sid-28") {
        check(runtime, "-XX:+UseG1GC");
    }
}

/// ZGC moves objects at any time, so a name may stay truncated, but is never another thread's.
#[test]
fn thread_names_are_never_swapped_with_zgc() {
    run_beside_others();
    for (name, flags) in [
        ("temurin-21", "-XX:+UseZGC"),
        ("temurin-21", "-XX:+UseZGC -XX:+ZGenerational"),
        ("temurin-25", "-XX:+UseZGC"),
    ] {
        let mut load = Load::start_program(named(name), flags, LOAD);
        // How many names are found before the objects move again depends on the collections. On a busy machine, there may
        // be none at first.
        let mut has_complete_names = || {
            let complete = profiled_thread_names(load.pid(), || load.ask("go 3"));
            !complete.is_empty()
        };
        assert!((0..8).any(|_| has_complete_names()), "{name} {flags}: no complete name");
    }
}

#[test]
fn thread_names_are_complete_in_a_container() {
    run_beside_others();
    let mut container = Container::start(named("temurin-17"), &["-XX:+UseSerialGC"], LOAD);
    let pid = container.pid();
    let complete = profiled_thread_names(pid, || container.run(3.0));
    assert_eq!(complete, NAMES.map(String::from).into(), "in a PID namespace");
}

fn check(runtime: &Runtime, flags: &str) {
    run_beside_others();
    let name = &runtime.name;
    let all: BTreeSet<_> = NAMES.map(String::from).into();
    let mut load = Load::start_program(runtime, flags, LOAD);
    binary("javaobjnew");
    binary("javagc");
    // On a busy machine, the threads may end before a tool has found time to read their names.
    let mut seen = Seen::default();
    for _ in 0..3 {
        seen = trace_with_every_tool(&mut load);
        if seen.by_javaprof == all && seen.by_javaobjnew == all {
            break;
        }
    }
    assert_eq!(seen.by_javaprof, all, "{name} {flags}");
    assert_eq!(seen.by_javaobjnew, all, "{name} {flags}: javaobjnew");
    // Only the last thread requests collections.
    assert_eq!(seen.by_javagc, [NAMES[3].to_owned()].into(), "{name} {flags}: javagc");
}

/// Thread names that the tools have shown.
#[derive(Default)]
struct Seen {
    by_javaprof: BTreeSet<String>,
    by_javaobjnew: BTreeSet<String>,
    /// Threads that requested collections.
    by_javagc: BTreeSet<String>,
}

fn trace_with_every_tool(load: &mut Load) -> Seen {
    let pid = load.pid().to_string();
    let allocations = Tool::start("javaobjnew", &["-p", &pid, "-t", "-j"]);
    let pauses = Tool::start("javagc", &["-p", &pid, "-s", "-j"]);
    let by_javaprof = profiled_thread_names(load.pid(), || load.ask("go 3"));
    let records = allocations.interrupt().json();
    let threads = records.iter().filter_map(|record| record["thread"].as_str());
    let by_javaobjnew =
        threads.filter(|thread| thread.starts_with("order-")).map(Into::into).collect();
    let stops = pauses.interrupt().json();
    let requests = stops.iter().filter_map(|stop| stop["requests"].as_array()).flatten();
    let by_javagc =
        requests.filter_map(|request| request["thread"].as_str()).map(Into::into).collect();
    Seen { by_javaprof, by_javaobjnew, by_javagc }
}

/// Profiles the JVM during `work`, and returns the complete thread names in the profile. The thread
/// `NAMES[i]` runs the method `LongNameLoad.work{i}`; no stack may have one thread's name and
/// another thread's method.
fn profiled_thread_names<T>(pid: u32, work: impl FnOnce() -> T) -> BTreeSet<String> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("stacks.folded").display().to_string();
    binary("javaprof");
    let profile = Tool::start("javaprof", &["-p", &pid.to_string(), "-t", "-q", "-o", &file]);
    work();
    let output = profile.interrupt();
    assert!(output.status.success(), "{output:?}");
    let lines = folded::parse(&std::fs::read_to_string(&file).unwrap());
    let mut complete = BTreeSet::new();
    for line in &lines {
        // Frame 0 is the command. Frame 1 is the thread, as NAME-ID.
        let Some((thread, _)) = line.frames.get(1).and_then(|name| name.rsplit_once('-')) else {
            continue;
        };
        let method = NAMES.iter().position(|name| *name == thread);
        if let Some(i) = method.filter(|i| line.has(&format!("LongNameLoad.work{i}"))) {
            complete.insert(NAMES[i].to_owned());
        }
        let another = (0..NAMES.len()).find(|j| line.has(&format!("LongNameLoad.work{j}")));
        assert!(
            method.is_none() || another.is_none() || another == method,
            "another thread's name: {line:?}"
        );
    }
    complete
}

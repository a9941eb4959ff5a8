//! javastack agrees with what virtual threads say about themselves.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "figures are printed")]

use std::{collections::BTreeMap, fs, time::Instant};

use jvmprobe_tests::{
    folded,
    load::{Load, VIRTUAL},
    run_beside_others,
    runtimes::{Runtime, named, of_unstable, selected},
    tool::{self, Output},
};
use serde_json::Value;

/// The exit status for a deadlock.
const DEADLOCK: i32 = 3;

/// JDKs with virtual threads.
fn runtimes() -> Vec<&'static Runtime> {
    let mut all = selected(&["temurin-21", "temurin-25"]);
    all.extend(["sid-26", "sid-27", "sid-28"].into_iter().filter_map(of_unstable));
    all
}

fn start(runtime: &Runtime, flags: &str) -> Load {
    Load::start_program(runtime, &format!("{VIRTUAL} {flags}"), "VirtualLoad").in_background()
}

fn dump(load: &Load, more: &[&str]) -> Output {
    let pid = load.pid().to_string();
    tool::run("javastack", &[&["-p", &pid], more].concat())
}

/// A thread: number, state, and frames, each as CLASS.METHOD:LINE, innermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ThreadText {
    number: String,
    state: String,
    frames: Vec<String>,
}

/// Returns the threads as they describe themselves (`Thread.getStackTrace`).
fn reported(load: &mut Load) -> BTreeMap<String, ThreadText> {
    let answer = load.ask("dump");
    let threads = answer.split_ascii_whitespace().filter_map(|text| {
        let [name, number, state, frames] = text.split(';').collect::<Vec<_>>()[..] else {
            return None;
        };
        let frames = frames.split(',').filter(|frame| !frame.is_empty()).map(str::to_owned);
        let (number, state) = (number.to_owned(), state.to_owned());
        Some((name.to_owned(), ThreadText { number, state, frames: frames.collect() }))
    });
    threads.collect()
}

/// Returns the virtual threads of a JSON dump, with their containers.
fn dumped(output: &Output) -> BTreeMap<String, (Value, Value)> {
    let dump = &output.json()[0]["threadDump"];
    let mut found = BTreeMap::new();
    for container in dump["threadContainers"].as_array().unwrap() {
        let threads = container["threads"].as_array().unwrap();
        let count: usize = container["threadCount"].as_str().unwrap().parse().unwrap();
        assert_eq!(count, threads.len());
        for thread in threads.iter().filter(|thread| thread["virtual"] == true) {
            let name = thread["name"].as_str().unwrap().to_owned();
            // The JDK's own threads, which wait for sockets.
            if name.contains("Poller") {
                continue;
            }
            let container: Value = ["container", "parent", "owner"]
                .map(|field| (field.to_owned(), container[field].clone()))
                .into_iter()
                .collect();
            let previous = found.insert(name, (thread.clone(), container));
            assert!(previous.is_none(), "{thread}");
        }
    }
    found
}

fn text(thread: &Value) -> ThreadText {
    let frame = |frame: &Value| {
        let (name, location) = frame.as_str().unwrap().split_once('(').unwrap();
        // The JVM reports modules separately.
        let name = name.rsplit('/').next().unwrap();
        let line = location.rsplit_once(':').map_or("0", |(_, line)| line.trim_end_matches(')'));
        format!("{name}:{line}")
    };
    ThreadText {
        number: thread["tid"].as_str().unwrap().to_owned(),
        state: thread["state"].as_str().unwrap().split(' ').next().unwrap().to_owned(),
        frames: thread["stack"].as_array().unwrap().iter().map(frame).collect(),
    }
}

fn without_lines(thread: &ThreadText) -> ThreadText {
    let name = |frame: &String| frame.split(':').next().unwrap().to_owned();
    ThreadText { frames: thread.frames.iter().map(name).collect(), ..thread.clone() }
}

/// The threads that `VirtualLoad` starts for the command `start`, except the one that runs.
const WAITING: [&str; 13] = [
    "holder",
    "parker",
    "deep",
    "timed-parker",
    "sleeper",
    "locker",
    "enterer",
    "waiter",
    "pinned",
    "socket-reader",
    "in-executor",
    "in-flock",
    "flock-owner",
];

/// Compares numbers, states, frames, locks and containers of all threads.
fn check(runtime: &Runtime, flags: &str) {
    let name = format!("{} {flags}", runtime.name);
    let mut load = start(runtime, flags);
    load.ask("start");
    for round in ["", "after a collection "] {
        let truth = reported(&mut load);
        let output = dump(&load, &["-j"]);
        assert!(output.status.success(), "{name}: {output:?}");
        assert_eq!(output.stderr, "", "{name}");
        let threads = dumped(&output);
        assert_eq!(threads.len(), WAITING.len() + 1, "{name}: {:?}", threads.keys());
        // In JDK 28, which is not released yet, some methods have line tables that are not decoded.
        let comparable = |thread: &ThreadText| match runtime.name.as_str() {
            "sid-28" => without_lines(thread),
            _ => thread.clone(),
        };
        for thread in WAITING {
            let (dumped, truth) =
                (comparable(&text(&threads[thread].0)), comparable(&truth[thread]));
            assert_eq!(dumped, truth, "{name}: {round}{thread}");
            assert_eq!(threads[thread].0["activity"], "still", "{name}: {round}{thread}");
        }
        let spinner = &threads["spinner"].0;
        assert_eq!(spinner["state"], "RUNNABLE", "{name}");
        // The compiler may have inlined `spin` into its caller. The frame of `spin` is then missing at
        // instructions without debug information.
        let innermost = text(spinner).frames[0].split(':').next().unwrap().to_owned();
        assert!(
            ["VirtualLoad.spin", "VirtualLoad.lambda$startAll$11"].contains(&&*innermost),
            "{name}: {innermost}"
        );
        assert_eq!(text(spinner).frames.last(), truth["spinner"].frames.last(), "{name}");
        assert!(spinner["carrier"].is_string(), "{name}: {spinner}");

        let on = |thread: &str, field: &str| threads[thread].0["blocked_on"][field].clone();
        let holder = format!("virtual thread #{} \"holder\"", truth["holder"].number);
        assert_eq!(on("locker", "class"), "java.util.concurrent.locks.ReentrantLock$NonfairSync");
        assert_eq!(on("locker", "owner"), holder, "{name}");
        assert_eq!(on("timed-parker", "class"), "java.lang.Class", "{name}");
        assert_eq!(on("pinned", "class"), "java.lang.Class", "{name}");
        assert_eq!(
            (on("enterer", "kind"), on("enterer", "class")),
            ("enter".into(), "java.lang.Object".into()),
            "{name}"
        );
        assert_eq!(on("waiter", "kind"), "wait", "{name}");
        // Before JDK 24, the carrier is shown as the owner of a monitor that its virtual thread holds. With
        // ZGC, the owner may be unknown.
        if runtime.major >= 24 && !flags.contains("UseZGC") {
            assert_eq!(on("enterer", "owner"), holder, "{name}");
        }

        let container = |thread: &str| threads[thread].1["container"].as_str().unwrap().to_owned();
        assert_eq!(container("parker"), "<root>", "{name}");
        assert!(container("in-executor").contains("ThreadPerTaskExecutor"), "{name}");
        assert!(container("in-flock").starts_with("the-flock/"), "{name}");
        assert_eq!(threads["in-flock"].1["owner"], truth["flock-owner"].number, "{name}");
        assert_eq!(threads["in-flock"].1["parent"], "<root>", "{name}");
        load.ask("collect");
    }
    load.kill();
}

#[test]
fn virtual_threads_agree_with_the_jvm() {
    run_beside_others();
    for runtime in runtimes() {
        check(runtime, "");
    }
}

/// Flags that compile all methods of the load. The second ones also compile the JDK's methods through which a
/// virtual thread starts and parks.
const COMPILED: [&str; 2] = [
    "-Xcomp -XX:CompileCommand=quiet -XX:CompileCommand=compileonly,VirtualLoad::*",
    "-Xcomp -XX:CompileCommand=quiet -XX:CompileCommand=compileonly,VirtualLoad::* \
     -XX:CompileCommand=compileonly,java.lang.VirtualThread::* \
     -XX:CompileCommand=compileonly,jdk.internal.vm.Continuation::* \
     -XX:CompileCommand=compileonly,java.util.concurrent.locks.*::*",
];

#[test]
fn interpreted_and_compiled_frames_agree_with_the_jvm() {
    run_beside_others();
    for runtime in [named("temurin-21"), named("temurin-25")] {
        check(runtime, "-Xint");
        for flags in COMPILED {
            check(runtime, flags);
        }
        check(runtime, &format!("{} -XX:TieredStopAtLevel=1", COMPILED[1]));
    }
}

#[test]
fn each_collector_agrees_with_the_jvm() {
    run_beside_others();
    for runtime in [named("temurin-21"), named("temurin-25")] {
        for flags in runtime.collectors() {
            check(runtime, flags);
        }
    }
    check(named("temurin-25"), "-XX:+UseCompactObjectHeaders");
    check(named("temurin-25"), "-XX:+UseCompactObjectHeaders -XX:+UseSerialGC");
    check(named("temurin-21"), "-Xmx40g");
}

#[test]
fn every_deadlock_with_virtual_threads_is_found_and_no_other_one() {
    run_beside_others();
    for runtime in runtimes() {
        let name = &runtime.name;
        let mut load = start(runtime, "");
        load.ask("start");
        let output = dump(&load, &["-q"]);
        assert!(
            output.status.success() && !output.stdout.contains("deadlock"),
            "{name}: {output:?}"
        );
        let kinds = [
            ("vv", "reentrant"),
            ("pv", "reentrant"),
            ("vpv", "monitors"),
            ("vvvpp", "both"),
            ("vvpp", "both"),
            ("vv", "monitors"),
        ];
        for (number, (kind, locks)) in kinds.into_iter().enumerate() {
            load.ask(&format!("deadlock {kind} {locks}"));
            let output = dump(&load, &["-j"]);
            assert_eq!(output.status.code(), Some(DEADLOCK), "{name} {kind}: {output:?}");
            let records = output.json();
            let found = records[0]["threadDump"]["deadlocks"].as_array().unwrap();
            assert_eq!(found.len(), number + 1, "{name} {kind}: {found:?}");
            let expected: Vec<_> = (0..kind.len()).map(|i| format!("dead-{number}-{i}")).collect();
            let is_it = |cycle: &Value| {
                let mut members: Vec<_> = cycle.as_array().unwrap().iter().collect();
                members.sort_by_key(|name| name.as_str());
                members == expected.iter().collect::<Vec<_>>()
            };
            assert!(found.iter().any(is_it), "{name} {kind}: {found:?}");
        }
        let text = dump(&load, &[]).stdout;
        assert_eq!(text.matches("Found one Java-level deadlock:").count(), kinds.len(), "{name}");
        load.kill();
    }
}

#[test]
fn equal_stacks_of_many_threads_are_printed_once() {
    const MANY: usize = 100_000;
    run_beside_others();
    for (runtime, flags) in
        [("temurin-21", "-Xmx1g"), ("temurin-25", "-Xmx1g"), ("temurin-25", "-Xmx2g -XX:+UseZGC")]
    {
        let mut load = start(named(runtime), flags);
        load.ask(&format!("park {MANY}"));
        let begin = Instant::now();
        let output = dump(&load, &[]);
        println!("{runtime} {flags}: {MANY} virtual threads in {:?}", begin.elapsed());
        assert!(output.status.success(), "{runtime}: {output:?}");
        let text = output.stdout;
        let header = format!("{MANY} virtual threads with equal stacks: #");
        assert_eq!(text.matches(&header).count(), 1, "{runtime}: {text}");
        let group = text.split(&header).nth(1).unwrap().split("\n\n").next().unwrap();
        assert_eq!(group.matches("at VirtualLoad.deep(").count(), 11, "{group}");
        // The JSON is not parsed, because the parsed dump would need several hundred megabytes.
        let json = dump(&load, &["-j"]).stdout;
        assert_eq!(json.matches("\"name\":\"many-").count(), MANY, "{runtime}");
        load.kill();
    }
}

/// Each stack in an output file has as many threads as report this stack.
#[test]
fn output_files_count_mounted_and_unmounted_virtual_threads() {
    const MANY: u64 = 1000;
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    for runtime in [named("temurin-21"), named("temurin-25")] {
        let mut load = start(runtime, "");
        load.ask("start");
        let truth = reported(&mut load);
        let path = dir.path().join(format!("{}.folded", runtime.name));
        let folded = |load: &Load| {
            let output = dump(load, &["-q", "-o", path.to_str().unwrap()]);
            assert!(output.status.success(), "{output:?}");
            let mut stacks = BTreeMap::new();
            for line in folded::parse(&fs::read_to_string(&path).unwrap()) {
                let frames = line.frames.into_iter().skip(1).rev().collect::<Vec<_>>();
                *stacks.entry(frames).or_insert(0) += line.count;
            }
            stacks
        };
        let before = folded(&load);
        let mut expected = BTreeMap::new();
        for thread in WAITING {
            *expected.entry(without_lines(&truth[thread]).frames).or_insert(0) += 1;
        }
        for (stack, count) in expected {
            assert_eq!(before.get(&stack), Some(&count), "{}: {stack:?}", runtime.name);
        }
        load.ask(&format!("park {MANY}"));
        let after = folded(&load);
        let deep = |stack: &&Vec<String>| {
            stack.iter().filter(|frame| *frame == "VirtualLoad.deep").count() == 11
        };
        let new = after.keys().filter(deep).map(|stack| after[stack]).sum::<u64>();
        assert_eq!(new, MANY, "{}", runtime.name);
        // The JSON has the same threads, apart from those without frames.
        let json = dump(&load, &["-j"]).json();
        let containers = json[0]["threadDump"]["threadContainers"].as_array().unwrap();
        let threads = containers.iter().flat_map(|it| it["threads"].as_array().unwrap());
        let with_stack = threads.filter(|thread| thread["stack"] != Value::Array(Vec::new()));
        assert_eq!(after.values().sum::<u64>(), with_stack.count() as u64, "{}", runtime.name);
        load.kill();
    }
}

#[test]
fn jvms_without_virtual_threads_have_none() {
    run_beside_others();
    for runtime in ["temurin-11", "temurin-17", "temurin-21"] {
        let load = Load::start_program(named(runtime), "", "LockLoad");
        let output = dump(&load, &["-j"]);
        assert!(output.status.success() && output.stderr.is_empty(), "{runtime}: {output:?}");
        assert!(dumped(&output).is_empty(), "{runtime}");
    }
}

#[test]
fn untracked_virtual_threads_are_listed_while_they_are_mounted() {
    run_beside_others();
    for runtime in [named("temurin-21"), named("temurin-25")] {
        let mut load = start(runtime, "-Djdk.trackAllThreads=false");
        load.ask("start");
        let threads = dumped(&dump(&load, &["-j"]));
        assert!(threads.contains_key("spinner"), "{:?}", threads.keys());
        assert!(threads.contains_key("in-executor"), "{:?}", threads.keys());
        assert!(!threads.contains_key("parker"), "{:?}", threads.keys());
        let spinner = text(&threads["spinner"].0);
        assert_eq!(spinner.frames[0].split(':').next(), Some("VirtualLoad.spin"));
        load.kill();
    }
}

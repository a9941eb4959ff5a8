//! `javaprof -e wall` and `-e off-cpu`: each thread's time, by its stack.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking")]

use std::collections::HashMap;

use jvmprobe_tests::{
    load::{Load, numbers},
    run_alone, run_beside_others,
    runtimes::named,
    tool::{Tool, binary},
};
use serde_json::Value;

const FEW: [&str; 1] = ["temurin-25"];
const REST: [&str; 4] = ["temurin-11", "temurin-17", "temurin-21", "sid-28"];

/// A stack of a thread: the frames' names, innermost first, and its time in nanoseconds.
#[derive(Debug)]
struct Time {
    thread: String,
    stack: Vec<String>,
    ns: u64,
}

fn times(records: &[Value]) -> Vec<Time> {
    let frames = |record: &Value| {
        let stack = record["stack"].as_array().unwrap();
        stack.iter().map(|frame| frame["method"].as_str().unwrap().to_owned()).collect()
    };
    let time = |record: &Value| Time {
        thread: record["thread"].as_str().unwrap().into(),
        stack: frames(record),
        ns: record["samples"].as_u64().unwrap(),
    };
    records.iter().filter(|record| record["type"] == "stack").map(time).collect()
}

fn sum<'a>(times: impl Iterator<Item = &'a Time>) -> u64 {
    times.map(|time| time.ns).sum()
}

fn profile_wait_load(
    runtime: &str,
    args: &[&str],
    seconds: f64,
) -> (HashMap<String, u64>, Vec<Value>) {
    let mut load = Load::start_program(named(runtime), "-XX:+UseSerialGC", "WaitLoad");
    let pid = load.pid().to_string();
    let tool = Tool::start("javaprof", &[&["-p", &pid, "-j", "-s", "-t"], args].concat());
    let answer = load.ask(&format!("go {seconds}"));
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    (numbers(&answer), output.json())
}

/// Whether a time is that of a thread's activity. A thread that computes beside other tests is often preempted for less
/// than `--min`. Such times, and run times too short to be sampled, have no stack.
fn is_of_activity(time: &Time, activity: &str) -> bool {
    let without_stack = ["[waits shorter than --min]", "[runs, not sampled]"];
    time.stack.contains(&format!("WaitLoad.{activity}"))
        || activity == "computes"
            && time.thread == activity
            && without_stack.contains(&time.stack[0].as_str())
}

/// Whether two times agree within 2 % or a millisecond.
fn agree(seen: u64, measured: u64) -> bool {
    seen.abs_diff(measured) <= (measured / 50).max(1_000_000)
}

fn check_wall_times(runtimes: &[&str]) {
    run_beside_others();
    binary("javaprof");
    for runtime in runtimes {
        let (measured, records) =
            profile_wait_load(runtime, &["-e", "wall", "--min", "100us"], 4.0);
        let times = times(&records);
        let summary = records.last().unwrap();
        assert_eq!((&summary["event"], &summary["unit"]), (&"wall".into(), &"ns".into()));
        assert_eq!(summary["lost"], 0, "{summary}");
        for activity in ["sleeps", "holds", "blocks", "parks", "computes", "reads"] {
            let method = format!("WaitLoad.{activity}");
            let own = times.iter().filter(|time| time.thread == activity);
            let seen = sum(own.filter(|time| is_of_activity(time, activity)));
            println!(
                "{runtime} {activity}: {seen} ns in the profile, {} ns measured",
                measured[activity]
            );
            assert!(
                agree(seen, measured[activity]),
                "{runtime} {activity}: {seen} of {}",
                measured[activity]
            );
            // No other thread runs this method.
            let others = times.iter().filter(|time| time.thread != activity);
            let others: Vec<_> = others.filter(|time| time.stack.contains(&method)).collect();
            assert!(others.is_empty(), "{runtime} {activity}: {others:?}");
        }
        let has = |time: &Time, name: &str| time.stack.iter().any(|frame| frame.contains(name));
        let of = |thread: &str, name: &str| {
            sum(times.iter().filter(|t| {
                t.thread == thread && t.stack[0] != "[runs, not sampled]" && has(t, name)
            }))
        };
        // The stacks of these threads show why they waited.
        assert!(of("sleeps", "Thread.sleep") * 100 > measured["sleeps"] * 97, "{runtime}");
        assert!(of("parks", "LockSupport.parkNanos") * 100 > measured["parks"] * 97, "{runtime}");
        assert!(of("blocks", "ObjectMonitor::") * 100 > measured["blocks"] * 95, "{runtime}");
        // This thread did not wait, except for a safepoint or two.
        assert!(of("computes", "[blocked]") * 100 < measured["computes"], "{runtime}");
        // The times of a thread that existed during the whole trace add up to the duration of the
        // trace.
        let duration = summary["duration_ns"].as_u64().unwrap();
        let mut threads: HashMap<&str, u64> = HashMap::new();
        for time in &times {
            *threads.entry(&time.thread).or_default() += time.ns;
        }
        let old = ["VM Thread", "Common-Cleaner", "Service Thread", "Finalizer", "pool-1-thread-1"];
        let old: Vec<_> = old.into_iter().filter_map(|name| threads.get_key_value(name)).collect();
        assert!(old.len() >= 4, "{runtime}: {threads:?}");
        for (thread, all) in old {
            assert!(
                all.abs_diff(duration) * 100 <= duration,
                "{runtime} {thread}: {all} {duration}"
            );
        }
        // The pool had no work.
        let pool = times.iter().filter(|time| time.thread.starts_with("pool-1"));
        for time in pool.filter(|time| time.ns > 100_000_000) {
            let activity = &time.stack[0];
            assert_eq!(activity, "[idle]");
        }
    }
}

#[test]
fn wall_times_match_the_program_measurement() {
    check_wall_times(&FEW);
}

#[test]
#[ignore = "long: make test-all"]
fn wall_times_match_the_program_measurement_on_other_jdks() {
    check_wall_times(&REST);
}

/// Compares every thread of a hanging program with the JVM's own stack trace.
fn check_stacks_of_hung_threads(runtimes: &[&str]) {
    run_beside_others();
    for runtime in runtimes {
        let mut load = Load::start_program(named(runtime), "-XX:+UseSerialGC", "HangLoad");
        load.ask("hang");
        let pid = load.pid().to_string();
        let args = ["-p", &pid, "-j", "-s", "-t", "-e", "wall", "--idle", "2"];
        let output = Tool::start("javaprof", &args).wait();
        assert!(output.status.success(), "{output:?}");
        let dump = load.ask("dump");
        let records = output.json();
        let summary = records.last().unwrap();
        let duration = summary["duration_ns"].as_u64().unwrap();
        let is_java =
            |name: &&str| ["java.", "jdk.", "HangLoad"].iter().any(|of| name.starts_with(of));
        // The JVM's own stack traces lack frames of lambdas, and no others. So these are not compared.
        let is_shown = |name: &&str| !name.contains("$$Lambda") && !name.contains("LambdaForm");
        // Time by thread and Java frames.
        let mut stacks: HashMap<String, HashMap<Vec<&str>, u64>> = HashMap::new();
        for record in records.iter().filter(|record| record["type"] == "stack") {
            let frames = record["stack"].as_array().unwrap().iter();
            let names = frames.map(|frame| frame["method"].as_str().unwrap());
            let names = names.filter(is_java).filter(is_shown);
            let thread = record["thread"].as_str().unwrap().to_owned();
            let ns = record["samples"].as_u64().unwrap();
            *stacks.entry(thread).or_default().entry(names.collect()).or_default() += ns;
        }
        let mut compared = 0;
        for (thread, measured) in dump.split_whitespace().filter_map(|word| word.split_once('=')) {
            let measured: Vec<_> = measured.split(',').filter(is_shown).collect();
            let ours = ["takes-one", "takes-other", "parks", "sleeps", "waits"];
            if !ours.contains(&thread) && !thread.starts_with("pool-1") {
                continue;
            }
            let seen = &stacks[thread];
            println!("{runtime} {thread}: {seen:?}");
            assert!(agree(seen[&measured], duration), "{runtime} {thread}: {seen:?} of {duration}");
            // A thread that waits for a monitor wakes up from time to time, too briefly to be
            // sampled.
            let others = seen.keys().filter(|stack| **stack != measured && !stack.is_empty());
            assert_eq!(others.count(), 0, "{runtime} {thread}: {seen:?}, {measured:?}");
            compared += 1;
        }
        assert_eq!(compared, 7, "{runtime}: {dump}");
        load.kill();
    }
}

#[test]
fn hung_thread_stacks_match_jvm_dump() {
    check_stacks_of_hung_threads(&FEW);
}

#[test]
#[ignore = "long: make test-all"]
fn hung_thread_stacks_match_jvm_dump_on_other_jdks() {
    check_stacks_of_hung_threads(&REST);
}

#[test]
fn off_cpu_event_excludes_running_time() {
    run_beside_others();
    let (measured, records) = profile_wait_load("temurin-17", &["-e", "off-cpu", "--idle"], 2.0);
    let times = times(&records);
    let of = |activity: &str| {
        let method = format!("WaitLoad.{activity}");
        sum(times.iter().filter(|time| time.stack.contains(&method)))
    };
    assert!(agree(of("sleeps"), measured["sleeps"]), "{} of {}", of("sleeps"), measured["sleeps"]);
    // A computing thread waits only for a processor.
    let computes = times.iter().filter(|time| time.stack.iter().any(|f| f == "WaitLoad.computes"));
    let blocked = sum(computes.filter(|time| time.stack[0] != "[waits for a processor]"));
    assert!(blocked * 100 < measured["computes"], "{blocked} of {}", measured["computes"]);
    let runs = times.iter().find(|time| time.stack[0].starts_with("[runs"));
    assert!(runs.is_none());
    assert!(!times.iter().any(|time| time.stack[0] == "[idle]"));
}

#[test]
fn frequent_thread_switches_lose_no_time() {
    run_beside_others();
    let mut load = Load::start_program(named("temurin-21"), "-XX:+UseSerialGC", "WaitLoad");
    let pid = load.pid().to_string();
    let tool = Tool::start("javaprof", &["-p", &pid, "-j", "-s", "-t", "-e", "wall"]);
    let answer = load.ask("switch 3");
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    let switches = numbers(&answer)["switches"];
    let records = output.json();
    let times = times(&records);
    assert_eq!(records.last().unwrap()["lost"], 0);
    let mut threads: HashMap<&str, u64> = HashMap::new();
    for time in times.iter().filter(|time| time.thread.starts_with("switcher-")) {
        *threads.entry(&time.thread).or_default() += time.ns;
    }
    println!("{switches} switches; {threads:?}");
    assert_eq!(threads.len(), 20);
    // Each thread existed for three seconds, whatever it did.
    for (thread, all) in threads {
        assert!((2_800_000_000..3_600_000_000).contains(&all), "{thread}: {all}");
    }
    let short = times.iter().any(|time| time.stack[0] == "[waits shorter than --min]");
    assert!(short, "{switches} switches");
}

#[test]
fn later_jvm_has_wall_times_from_its_start() {
    run_alone();
    let tool = Tool::start("javaprof", &["-a", "-j", "-s", "-t", "-e", "wall"]);
    let mut load = Load::start_program(named("temurin-17"), "-XX:+UseSerialGC", "WaitLoad");
    let pid = load.pid();
    let answer = load.ask("go 2");
    load.quit();
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    let records = output.json();
    let ours: Vec<_> = records.iter().filter(|r| r["pid"] == pid).cloned().collect();
    let times = times(&ours);
    let duration = records.last().unwrap()["duration_ns"].as_u64().unwrap();
    let mut threads: HashMap<&str, u64> = HashMap::new();
    for time in &times {
        *threads.entry(&time.thread).or_default() += time.ns;
    }
    for (name, measured) in numbers(&answer) {
        let name = name.as_str();
        let method = format!("WaitLoad.{name}");
        let seen = sum(times.iter().filter(|time| time.stack.contains(&method)));
        println!("{name}: {seen} seen, {measured} measured, thread {}", threads[name]);
        // "writes" waits in a lambda, not in the method of this name. In a JVM that is starting up,
        // threads spend more time in runs that are too short to be sampled, so up to 10 % of the time
        // of each other activity may be missing.
        assert!(name == "writes" || seen * 10 > measured * 9, "{name}: {seen} of {measured}");
        assert!(seen < measured + measured / 50, "{name}: {seen} of {measured}");
        assert!((1_900_000_000..2_600_000_000).contains(&threads[name]), "{name}: {threads:?}");
    }
    // No thread has more time than has elapsed. "java" is both the launcher and the main thread.
    let most = threads.iter().filter(|(name, _)| **name != "java").map(|(_, all)| *all).max();
    assert!(most.unwrap() < duration, "{threads:?}");
}

#[test]
fn long_waits_keep_their_stacks_across_intervals() {
    run_beside_others();
    let mut load = Load::start_program(named("temurin-17"), "-XX:+UseSerialGC", "WaitLoad");
    let pid = load.pid().to_string();
    let args = ["-p", &pid, "-j", "-s", "-t", "-e", "wall", "--min", "100us", "1", "5"];
    let tool = Tool::start("javaprof", &args);
    let answer = load.ask("go 3.5");
    let output = tool.wait();
    assert!(output.status.success(), "{output:?}");
    let records = output.json();
    let summaries = records.iter().filter(|record| record["type"] == "summary");
    assert_eq!(summaries.count(), 5);
    let times = times(&records);
    for (name, measured) in numbers(&answer).into_iter().filter(|(name, _)| name != "writes") {
        let seen = sum(times.iter().filter(|time| is_of_activity(time, &name)));
        println!("{name}: {seen} seen, {measured} measured");
        assert!(agree(seen, measured), "{name}: {seen} of {measured}");
    }
    // The main thread waits for the others during several intervals, in each of which names are
    // resolved again.
    let waits = times.iter().filter(|t| t.stack.iter().any(|f| f == "WaitLoad.go"));
    let waits = sum(waits);
    assert!(waits > 3_000_000_000, "{waits}");
    let unknown = sum(times.iter().filter(|t| t.stack.iter().any(|f| f == "[unknown]")));
    assert_eq!(unknown, 0);
    assert!(!output.stderr.contains("lost"), "{}", output.stderr);
}

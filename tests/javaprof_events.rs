//! `javaprof -e`: events are counted exactly, with their stacks, for every kind of event.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking")]

use std::collections::HashMap;

use jvmprobe_tests::{
    load::{Load, classes, numbers},
    pprof, run_beside_others,
    runtimes::named,
    tool::{Output, Tool, binary, run},
};
use serde_json::Value;

/// `make test` runs one JDK, `make test-all` all of them.
const FEW: [&str; 1] = ["temurin-21"];
const ALL: [&str; 5] = ["temurin-11", "temurin-17", "temurin-21", "temurin-25", "sid-28"];

/// Stacks of an event: the frames' names, innermost first, and the count.
#[derive(Debug)]
struct Stacks(Vec<(Vec<String>, u64)>);

impl Stacks {
    fn of(output: &Output, event: &str) -> Self {
        let records = output.json();
        let stacks = records.iter().filter(|r| r["type"] == "stack" && r["event"] == event);
        let frames = |record: &Value| {
            let stack = record["stack"].as_array().unwrap();
            stack.iter().map(|frame| frame["method"].as_str().unwrap().to_owned()).collect()
        };
        Self(stacks.map(|r| (frames(r), r["samples"].as_u64().unwrap())).collect())
    }

    /// Returns the stacks whose innermost frame is this one.
    fn ending(&self, label: &str) -> Self {
        let ends = |(stack, _): &&(Vec<String>, u64)| stack.first().is_some_and(|n| n == label);
        Self(self.0.iter().filter(ends).cloned().collect())
    }

    /// Returns the stacks in which these methods call each other, directly or indirectly, outermost
    /// first.
    fn with(&self, callers: &[&str]) -> Self {
        let has = |(stack, _): &&(Vec<String>, u64)| {
            let mut outer = stack.iter().rev();
            callers.iter().all(|caller| outer.any(|name| name == caller))
        };
        Self(self.0.iter().filter(has).cloned().collect())
    }

    /// Returns the stacks without this frame.
    fn without(&self, name: &str) -> Self {
        let has = |(stack, _): &&(Vec<String>, u64)| !stack.iter().any(|frame| frame == name);
        Self(self.0.iter().filter(has).cloned().collect())
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }
}

/// Profiles a load while it executes a command. Returns the load's answer and the tool's output.
fn profile_command(
    runtime: &str,
    command: &str,
    events: &[&str],
) -> (HashMap<String, u64>, Output) {
    let mut load = Load::start_program(named(runtime), "-XX:+UseSerialGC", "EventLoad");
    let pid = load.pid().to_string();
    let mut args = vec!["-p", &pid, "-j", "-s"];
    args.extend(events.iter().flat_map(|event| ["-e", event]));
    let tool = Tool::start("javaprof", &args);
    let answer = numbers(&load.ask(command));
    let output = tool.interrupt();
    assert!(output.status.success(), "{runtime} {command}: {output:?}");
    let summaries = output.json();
    let summaries: Vec<_> = summaries.iter().filter(|r| r["type"] == "summary").collect();
    assert_eq!(summaries.len(), events.len(), "{}", output.stdout);
    for (summary, event) in summaries.iter().zip(events) {
        assert_eq!(summary["event"], *event);
        assert_eq!(summary["lost"], 0, "{summary}");
        if summary["samples"] == 0 {
            continue;
        }
        // The C library's clone3() has no unwind table at its system call, so some stacks of these two
        // events end there: those of the creation of a thread, and those of a new thread that waits
        // for its first processor.
        let is_known = !["tracepoint:sched:sched_process_fork", "context-switches"].contains(event);
        let share = |name: &str| summary[name].as_f64().unwrap();
        assert!(share("complete") > 0.99 || !is_known, "{runtime} {summary}");
        assert!(share("unnamed_frames") < 0.05, "{runtime} {summary}");
    }
    (answer, output)
}

fn check_java_event_counts(runtimes: &[&str]) {
    run_beside_others();
    binary("javaprof");
    for runtime in runtimes {
        // At a low rate, every event is reported with its class.
        let events = ["exceptions", "classes", "threads", "gc-requests"];
        let (counted_by_load, output) = profile_command(runtime, "throw 200", &events);
        let thrown = Stacks::of(&output, "exceptions");
        let worse = thrown.ending("EventLoad$Worse");
        assert_eq!(worse.count(), counted_by_load["worse"], "{runtime}: {}", output.stdout);
        let walked = worse.with(&["EventLoad.main", "EventLoad.caught", "EventLoad.worse"]);
        assert_eq!(
            walked.count() + worse.with(&["[not walked]"]).count(),
            counted_by_load["worse"]
        );
        let bad = thrown.ending("java.lang.IllegalStateException");
        assert_eq!(bad.count(), counted_by_load["bad"], "{runtime}");
        let deep =
            bad.with(&["EventLoad.caught", "EventLoad.bad", "EventLoad.bad", "EventLoad.bad"]);
        assert_eq!(deep.count() + bad.with(&["[not walked]"]).count(), counted_by_load["bad"]);
        assert_eq!(thrown.ending("EventLoad$Silent").count(), 0, "it has no stack trace");
        assert!(
            output.stderr.contains("without a stack trace are not recorded"),
            "{}",
            output.stderr
        );

        let (counted_by_load, output) = profile_command(runtime, "define 60", &events);
        let defined = Stacks::of(&output, "classes").ending("Many0000");
        assert_eq!(
            defined.count(),
            counted_by_load["defined"] + counted_by_load["hidden"],
            "{runtime}"
        );
        assert_eq!(defined.with(&["EventLoad.main", "EventLoad.define"]).count(), defined.count());

        let (counted_by_load, output) = profile_command(runtime, "start 25", &events);
        let started = Stacks::of(&output, "threads").ending("java.lang.Thread");
        let right = started.with(&["EventLoad.main", "EventLoad.starts"]);
        assert_eq!(right.count(), counted_by_load["started"], "{runtime}");

        let (counted_by_load, output) = profile_command(runtime, "collect 9", &events);
        let asked = Stacks::of(&output, "gc-requests").with(&["EventLoad.collects", "JVM_GC"]);
        assert_eq!(asked.count(), counted_by_load["collected"], "{runtime}");

        // At a high rate, not every stack can be walked, but the sum is exact, also by class.
        let (counted_by_load, output) = profile_command(runtime, "flood 60000", &["exceptions"]);
        let worse = Stacks::of(&output, "exceptions").ending("EventLoad$Worse");
        assert_eq!(worse.count(), counted_by_load["worse"], "{runtime}");
        let summary = output.json().pop().unwrap();
        let (samples, value) = (summary["samples"].as_u64().unwrap(), summary["value"].as_u64());
        assert!(samples * 10 < value.unwrap(), "{runtime}: thinned: {summary}");
        let walked = worse.with(&["EventLoad.flood", "EventLoad.worse"]).count();
        assert!(walked * 100 >= worse.count() * 95, "{runtime}: {walked} of {}", worse.count());
    }
}

/// Exceptions are counted from a JVM's first instruction on. A message reports how many have no
/// known class, because the JVM had not finished starting.
#[test]
fn startup_exceptions_of_unknown_class_are_reported() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let commands = dir.path().join("commands");
    std::fs::write(&commands, "flood 10000\nquit\n").unwrap();
    for runtime in ["temurin-17", "temurin-21"] {
        let java = named(runtime).java.display().to_string();
        let (classes, commands) = (classes().display().to_string(), commands.display().to_string());
        let script = "exec \"$0\" -XX:+UseSerialGC -cp \"$1\" EventLoad <\"$2\" >/dev/null";
        let command = ["sh", "-c", script, &java, &classes, &commands];
        let args = [&["-e", "exceptions", "-j", "-s", "--"][..], &command].concat();
        let output = run("javaprof", &args);
        assert!(output.status.success(), "{runtime}: {output:?}");
        let thrown = Stacks::of(&output, "exceptions");
        let known = thrown.ending("EventLoad$Worse").count();
        let unknown = thrown.ending("[unknown class]").count();
        println!("{runtime}: {known} by class, {unknown} of unknown class");
        assert!(known <= 20_000 && known + unknown >= 20_000, "{runtime}: {}", output.stderr);
        let line = format!("the class of {unknown} exceptions is unknown");
        assert_eq!(output.stderr.contains(&line), unknown > 0, "{runtime}: {}", output.stderr);
    }
}

#[test]
fn java_events_are_counted_exactly() {
    check_java_event_counts(&FEW);
}

#[test]
#[ignore = "long: make test-all"]
fn java_events_are_counted_exactly_on_all_jdks() {
    check_java_event_counts(&ALL);
}

#[test]
fn compile_events_match_the_compilation_log() {
    check_compile_events(&["temurin-25"]);
}

#[test]
#[ignore = "long: make test-all"]
fn compile_events_match_the_compilation_log_on_other_jdks() {
    check_compile_events(&["temurin-17", "temurin-21"]);
}

fn check_compile_events(runtimes: &[&str]) {
    run_beside_others();
    binary("javaprof");
    for runtime in runtimes {
        let flags = "-XX:+UseSerialGC -XX:+PrintCompilation";
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("compiled");
        let flags = format!(
            "{flags} -XX:+UnlockDiagnosticVMOptions -XX:+LogVMOutput -XX:-DisplayVMOutput -XX:LogFile={}",
            file.display()
        );
        let mut load = Load::start_program(named(runtime), &flags, "EventLoad");
        let pid = load.pid().to_string();
        let tool = Tool::start("javaprof", &["-p", &pid, "-j", "-s", "-e", "compiles"]);
        load.ask("throw 30000");
        load.ask("spin 300");
        let output = tool.interrupt();
        load.quit();
        let text = std::fs::read_to_string(&file).unwrap();
        // Format: TIME ID FLAGS TIER METHOD [@ BCI] (SIZE bytes). Lines about native wrappers and
        // about abandoned compilations or code end differently and are skipped.
        let mut expected: HashMap<(String, String), u64> = HashMap::new();
        for line in
            text.lines().filter(|line| line.contains(" EventLoad::") && line.ends_with("bytes)"))
        {
            let method = line.split_whitespace().find(|w| w.starts_with("EventLoad::")).unwrap();
            let before = line.split(" EventLoad::").next().unwrap().trim_end();
            let tier = before.chars().last().unwrap();
            let compiler = if tier == '4' { "C2" } else { "C1" };
            let osr = if before.contains('%') { " (OSR)" } else { "" };
            let key = (format!("{compiler} tier {tier}{osr}"), method.replace("::", "."));
            *expected.entry(key).or_default() += 1;
        }
        assert!(expected.len() > 3, "{text}");
        assert!(expected.keys().any(|(compiler, _)| compiler.ends_with("(OSR)")), "{text}");
        let mut seen: HashMap<(String, String), u64> = HashMap::new();
        for record in output.json().iter().filter(|r| r["type"] == "stack") {
            let name = |i: usize| record["stack"][i]["method"].as_str().unwrap().to_owned();
            if name(0).starts_with("EventLoad.") {
                *seen.entry((name(1), name(0))).or_default() += record["times"].as_u64().unwrap();
                assert!(record["samples"].as_u64().unwrap() > 1000, "nanoseconds: {record}");
            }
        }
        assert_eq!(seen, expected, "{runtime}");
    }
}

#[test]
fn allocation_stalls_match_the_gc_log() {
    check_allocation_stalls(&[("temurin-17", ""), ("temurin-21", "-XX:+ZGenerational")]);
}

#[test]
#[ignore = "long: make test-all"]
fn allocation_stalls_match_the_gc_log_on_other_jdks() {
    check_allocation_stalls(&[("temurin-21", ""), ("temurin-25", "")]);
}

/// Compares all allocation stalls with the JVM's log.
fn check_allocation_stalls(kinds: &[(&str, &str)]) {
    run_beside_others();
    binary("javaprof");
    for (runtime, flag) in kinds {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("gc.log");
        let flags = format!("-XX:+UseZGC {flag} -Xmx96m -Xlog:gc:file={}", log.display());
        let mut load = Load::start_program(named(runtime), &flags, "EventLoad");
        let pid = load.pid().to_string();
        let tool = Tool::start("javaprof", &["-p", &pid, "-j", "-s", "-t", "-e", "stalls"]);
        load.ask("stall 1500");
        let output = tool.interrupt();
        load.quit();
        let text = std::fs::read_to_string(&log).unwrap();
        let mut counted_by_load: HashMap<String, u64> = HashMap::new();
        for (_, rest) in text.lines().filter_map(|line| line.split_once("Allocation Stall (")) {
            // A line about a single stall contains a time. Lines with the sums of an interval do
            // not.
            if let Some((thread, time)) = rest.split_once(')')
                && time.trim_start().starts_with(|c: char| c.is_ascii_digit())
            {
                *counted_by_load.entry(thread.into()).or_default() += 1;
            }
        }
        let mut seen: HashMap<String, u64> = HashMap::new();
        let mut unnamed = 0;
        for record in output.json().iter().filter(|r| r["type"] == "stack") {
            let thread = record["thread"].as_str().unwrap();
            let samples = record["samples"].as_u64().unwrap();
            *seen.entry(thread.to_owned()).or_default() += samples;
            let frames = record["stack"].as_array().unwrap();
            // The JVM's own threads allocate and stall, too.
            if thread.starts_with("staller")
                && frames.iter().all(|frame| frame["method"] != "EventLoad.stalls")
            {
                assert!(frames.iter().any(|frame| frame["method"] == "[unknown]"), "{record}");
                unnamed += samples;
            }
        }
        // The first collection unloads classes, perhaps before the stacks of the first stalls are
        // named.
        let all = seen.values().sum::<u64>();
        assert!(unnamed * 50 <= all, "{runtime} {flag}: {unnamed} of {all}: {}", output.stdout);
        println!("{runtime} {flag}: {seen:?}");
        assert!(counted_by_load.values().sum::<u64>() > 10, "{runtime} {flag}: {text}");
        let sum = |counts: &HashMap<String, u64>| counts.values().sum::<u64>();
        assert_eq!(
            sum(&seen),
            sum(&counted_by_load),
            "{runtime} {flag}: {seen:?} {counted_by_load:?}"
        );
        // If events come too fast, a sampled one also represents events of other threads.
        for (thread, counted_by_load) in
            counted_by_load.iter().filter(|(thread, _)| thread.starts_with("staller"))
        {
            assert!(
                seen[thread].abs_diff(*counted_by_load) * 20 <= *counted_by_load,
                "{runtime} {flag}: {seen:?}"
            );
        }
    }
}

#[test]
fn deopt_events_report_the_deoptimization_reason() {
    run_beside_others();
    for runtime in ["temurin-17", "temurin-25"] {
        let (_, output) = profile_command(runtime, "surprise 3", &["deopt"]);
        let deopts = Stacks::of(&output, "deopt").with(&["EventLoad.expects"]);
        assert!(deopts.count() >= 1, "{runtime}: {}", output.stdout);
        for (stack, _) in &deopts.0 {
            assert_eq!(stack[0], "unstable_if (reinterpret)", "{runtime}: {stack:?}");
        }
    }
}

#[test]
fn page_fault_counts_match_the_kernel_counts() {
    run_beside_others();
    binary("javaprof");
    // At a low rate, every page fault has its own stack. At a high rate, the stack of one in
    // several hundred is walked and also represents the skipped page faults before it, including
    // those of other threads. So the sum is exact, and the shares are estimates.
    for (event, command, least, exact) in [
        ("page-faults", "linger 100", 1500, true),
        ("page-faults", "touch 60", 10_000, false),
        ("page-faults/10", "touch 60", 10_000, false),
    ] {
        let mut load = Load::start_program(named("temurin-17"), "-XX:+UseSerialGC", "EventLoad");
        let pid = load.pid().to_string();
        load.ask("touch 1");
        load.ask("linger 1");
        let tool = Tool::start("javaprof", &["-p", &pid, "-j", "-s", "-e", event]);
        let answer = numbers(&load.ask(command));
        let (counted_by_load, own) = (answer["faults"], answer["own"]);
        let output = tool.interrupt();
        let stacks = Stacks::of(&output, "page-faults");
        let touched = stacks.with(&["EventLoad.main", "EventLoad.touch"]).count();
        let others = stacks.without("EventLoad.touch");
        println!(
            "{event} {command}: {touched} seen of {own}, {} of {counted_by_load}",
            stacks.count()
        );
        // The counts of all stacks add up to the kernel's count for the process. The counts of the
        // stacks with `touch` add up to the kernel's count for the main thread. The remaining page
        // faults are those of other threads, mostly compiler threads, and those of the main thread
        // when it counts and answers.
        let all = stacks.count();
        assert!(
            all + counted_by_load / 100 >= counted_by_load
                && all <= counted_by_load + counted_by_load / 100 + 100,
            "{event} {command}: {all} of {counted_by_load}"
        );
        assert!(own > least, "{event} {command}: {own} of {counted_by_load}");
        let off = if exact { 20 } else { own / 20 };
        assert!(
            touched.abs_diff(own) <= off,
            "{event} {command}: {touched} of {own}; others: {others:?}",
        );
        let samples = output.json().pop().unwrap()["samples"].as_u64().unwrap();
        assert!(exact || samples < counted_by_load / 5, "{samples} samples of {counted_by_load}");
    }
}

#[test]
fn usdt_uprobe_and_tracepoint_hits_are_counted() {
    run_beside_others();
    let events = [
        "usdt:hotspot:thread__start",
        "uprobe:libjvm:JVM_StartThread",
        "tracepoint:sched:sched_process_fork",
        "context-switches",
    ];
    let (counted_by_load, output) = profile_command("temurin-17", "start 30", &events);
    let count = |event: &str, caller: &str| Stacks::of(&output, event).with(&[caller]).count();
    let started = counted_by_load["started"];
    assert_eq!(count(events[0], "JavaThread::run"), started, "{}", output.stdout);
    assert_eq!(count(events[1], "EventLoad.starts"), started, "{}", output.stdout);
    assert_eq!(count(events[2], "EventLoad.starts"), started, "{}", output.stdout);
    assert!(
        count(events[3], "EventLoad.starts") >= started / 2,
        "the main thread waits for each new thread"
    );
}

#[test]
fn each_event_is_written_to_a_separate_profile() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let mut load = Load::start_program(named("temurin-17"), "-XX:+UseSerialGC", "EventLoad");
    let pid = load.pid().to_string();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let files = [path("a.svg"), path("a.folded"), path("a.pb.gz"), path("a.json")];
    let mut args = vec!["-p", &pid, "-f", "-e", "cpu", "-e", "exceptions"];
    args.extend(files.iter().flat_map(|file| ["-o", file]));
    let tool = Tool::start("javaprof", &args);
    load.ask("throw 20000");
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    for line in output.stdout.lines() {
        assert!(line.starts_with("cpu;java;") || line.starts_with("exceptions;java;"), "{line}");
    }
    let mut names: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let expected = [
        "a.cpu.folded",
        "a.cpu.svg",
        "a.exceptions.folded",
        "a.exceptions.svg",
        "a.json",
        "a.pb.gz",
    ];
    assert_eq!(names, expected);
    let folded = std::fs::read_to_string(path("a.exceptions.folded")).unwrap();
    let worse: u64 = folded
        .lines()
        .filter(|line| line.contains(";EventLoad$Worse "))
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
        .sum();
    assert_eq!(worse, 40_000);
    let profile = pprof::read(std::path::Path::new(&files[2]));
    let types: Vec<_> = profile.types.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(types, ["samples", "cpu", "exceptions_samples", "exceptions"]);
    let of = |at: usize| profile.samples.iter().map(|sample| sample.values[at]).sum::<u64>();
    assert!(of(0) > 0 && of(3) >= 60_000, "{} {}", of(0), of(3));
    let scope = std::fs::read_to_string(&files[3]).unwrap();
    assert!(scope.contains("\"exceptions: java ") && scope.contains("\"cpu: java "));
}

#[test]
fn unavailable_events_are_rejected_before_tracing_starts() {
    run_beside_others();
    let load = Load::start_program(named("temurin-17"), "-XX:+UseSerialGC", "EventLoad");
    let pid = load.pid().to_string();
    let fails = |events: &[&str], code: i32, words: &[&str]| {
        let mut args = vec!["-p", &pid, "-d", "1"];
        args.extend(events.iter().flat_map(|event| ["-e", event]));
        let output = run("javaprof", &args);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert_eq!(output.stdout, "");
        for word in words {
            assert!(output.stderr.contains(word), "{word}: {}", output.stderr);
        }
        if code == 1 {
            assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
        }
    };
    fails(&["pagefaults"], 2, &["similar names: page-faults"]);
    fails(&["page-faults/0"], 2, &["1 to 10000"]);
    fails(&["cpu/1000000000hz"], 2, &["1 to 10000"]);
    fails(&["cpu", "cpu/9hz"], 2, &["twice"]);
    fails(&["wall", "off-cpu"], 2, &["a part of wall"]);
    fails(&["tracepoint:sched:sched_swich"], 1, &["sched:sched_switch"]);
    fails(&["cpu", "usdt:hotspot:nothing"], 1, &["hotspot:nothing"]);
    fails(&["uprobe:libc:no_such_function"], 1, &["no_such_function in libc"]);
    fails(&["uprobe:libnothing:f"], 1, &["libnothing*"]);
    let has_counters = std::path::Path::new("/sys/bus/event_source/devices/cpu").exists();
    if has_counters {
        println!(
            "skipped: the error on a machine without hardware counters, because this machine has \
             them"
        );
    } else {
        fails(&["cpu", "cycles"], 1, &["count cycles", "virtual machines"]);
    }
    if std::path::Path::new("/sys/bus/event_source/devices/kprobe").exists() {
        fails(&["kprobe:no_such_function_at_all"], 1, &["no_such_function_at_all"]);
    } else {
        fails(&["kprobe:do_exit"], 1, &["without kprobes"]);
    }
    // With `--skip-missing`, javaprof skips missing events and prints a message about each.
    let args = ["-p", &pid, "-d", "1", "-e", "cpu", "-e", "usdt:a:b", "-e", "tracepoint:a:b"];
    let output = run("javaprof", &[&args[..], &["--skip-missing"]].concat());
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stderr.matches("skipping event").count(), 2, "{}", output.stderr);
}

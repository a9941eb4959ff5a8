//! javagc: how long collections waited for a CPU, compared with the scheduler's own counters.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use std::{
    fs,
    os::unix::fs::FileExt,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use jvmprobe_tests::{
    cgroup::{Cgroup, Limits},
    load::{BUSY_GC_LOAD, Load},
    proc::{monotonic_ns, threads},
    run_alone, run_beside_others,
    runtimes::{Runtime, named},
    tool::{Tool, without_btf},
};
use serde_json::Value;

/// Pauses shorter than this are not compared one by one, in nanoseconds.
const LONG: u64 = 5_000_000;
/// Maximum difference between a wait and the scheduler's counters, in nanoseconds: a thread's wait may end shortly
/// before or after a reading.
const SLACK: u64 = 2_000_000;

/// One reading of the scheduler's counters: the time before and after it, and the wait of each thread.
struct Reading {
    from: u64,
    to: u64,
    delays: Vec<u64>,
}

/// Reads how long the VM thread and the collector's threads of a process have waited for a CPU, every millisecond until
/// `is_over`.
fn watch(pid: u32, is_over: &AtomicBool) -> Vec<Reading> {
    let is_gc = |name: &&String| name.starts_with("GC Thread") || *name == "VM Thread";
    let all = threads(pid);
    let own = all.iter().filter(|(_, name)| is_gc(name));
    let open = |tid| fs::File::open(format!("/proc/{pid}/task/{tid}/schedstat")).unwrap();
    let files: Vec<_> = own.map(|(tid, _)| open(tid)).collect();
    let mut readings = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let from = monotonic_ns();
        let delay = |file: &fs::File| {
            let mut text = [0; 100];
            let length = file.read_at(&mut text, 0).unwrap();
            let text = String::from_utf8_lossy(&text[..length]);
            text.split(' ').nth(1).unwrap().parse().unwrap()
        };
        let delays = files.iter().map(delay).collect();
        readings.push(Reading { from, to: monotonic_ns(), delays });
        thread::sleep(Duration::from_millis(1));
    }
    readings
}

/// Returns the longest wait of a thread between two readings.
fn longest(before: &Reading, after: &Reading) -> u64 {
    after.delays.iter().zip(&before.delays).map(|(a, b)| a - b).max().unwrap()
}

/// The threads of a JVM with this collector exist before the trace, so that they can be watched.
fn command(runtime: &Runtime, flags: &str) -> Command {
    let mut command = runtime.command();
    command.args(flags.split_ascii_whitespace());
    command.args(["-XX:-UseDynamicNumberOfGCThreads", BUSY_GC_LOAD]);
    command
}

/// Runs a load, and returns the pauses with the counters of the same time, and the tool's text.
fn trace(mut load: Load) -> (Vec<Value>, Vec<Reading>, String) {
    load.run(0.5);
    let pid = load.pid();
    let dir = tempfile::tempdir().unwrap();
    let (json, text) = (dir.path().join("gc.json"), dir.path().join("gc.txt"));
    let [json_name, text_name] = [&json, &text].map(|path| path.display().to_string());
    let args = ["-p", &pid.to_string(), "-o", &json_name, "-o", &text_name];
    let tool = Tool::start("javagc", &args);
    let is_over = AtomicBool::new(false);
    let readings = thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(pid, &is_over));
        load.run(3.0);
        is_over.store(true, Ordering::Relaxed);
        watcher.join().unwrap()
    });
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    load.kill();
    let json = fs::read_to_string(json).unwrap();
    let records = json.lines().map(|line| serde_json::from_str(line).unwrap());
    (records.collect(), readings, fs::read_to_string(text).unwrap())
}

fn ns(record: &Value, field: &str) -> u64 {
    record[field].as_u64().unwrap_or_else(|| panic!("{field} of {record}"))
}

fn pauses(records: &[Value]) -> Vec<&Value> {
    records.iter().filter(|record| record["type"] == "pause").collect()
}

/// Compares the waits of the pauses with the scheduler's counters, and their sum with that of the summary.
fn check_waits(title: &str, records: &[Value], readings: &[Reading]) -> usize {
    let pauses = pauses(records);
    // Before the end of the first stop, the worker threads are not known yet.
    let (first, known) = pauses.split_first().unwrap();
    let mut sum = first["cpu_wait_ns"].as_u64().unwrap_or(0);
    let (mut compared, mut wrong) = (0, Vec::new());
    for pause in known {
        let (wait, stopped) = (ns(pause, "cpu_wait_ns"), ns(pause, "stopped_ns"));
        assert!(wait <= stopped, "{title}: {pause}");
        sum += wait;
        if stopped < LONG {
            continue;
        }
        let begin = ns(pause, "ts_ns") + pause["ttsp_ns"].as_u64().unwrap_or(0);
        let end = ns(pause, "ts_ns") + stopped;
        // The counters grow when a wait is over. So the readings around the pause may include a wait that was over
        // before it, and those inside may lack one that was over just before its end.
        let readings_between = |from: u64, to: u64| {
            let inside = |r: &&Reading| r.from >= from && r.to <= to;
            let mut inside = readings.iter().filter(inside);
            Some((inside.next()?, inside.next_back()?))
        };
        let around = readings_between(begin - SLACK, end + SLACK);
        let (Some(around), Some(inside)) = (around, readings_between(begin, end)) else { continue };
        // On a busy machine, readings may be far apart.
        if around.0.to > begin || around.1.from < end {
            continue;
        }
        compared += 1;
        let least = longest(inside.0, inside.1).min(end - begin);
        let most = longest(around.0, around.1);
        if wait > most + SLACK || wait + SLACK < least {
            wrong.push((least, wait, most, stopped));
        }
    }
    let summary = records.iter().find(|record| record["type"] == "summary").unwrap();
    assert_eq!(ns(summary, "cpu_wait_ns"), sum, "{title}: {summary}");
    println!("{title}: {} pauses waited {sum} ns; {compared} compared, {wrong:?}", pauses.len());
    // A thread may wait after the last thread has stopped, but before the collection begins.
    assert!(
        wrong.len() * 10 <= compared,
        "{title}: of {compared}: (least, wait, most, stopped) {wrong:?}"
    );
    compared
}

/// The last JVM has no USDT probes.
#[test]
fn throttled_collections_show_their_wait_for_a_cpu() {
    run_alone();
    for (name, flags) in [
        ("temurin-25", "-XX:+UseG1GC"),
        ("temurin-17", "-XX:+UseSerialGC"),
        ("musl-17", "-XX:+UseParallelGC"),
    ] {
        let limits = Limits { cpu_percent: Some(40), ..Limits::default() };
        let group = match Cgroup::new("throttled-gc", limits) {
            Ok(group) => group,
            Err(error) => {
                println!("skipped: no control group with a CPU limit: {error}");
                return;
            }
        };
        let title = format!("{name} {flags}");
        let mut java = command(named(name), flags);
        group.enter(&mut java);
        let load = Load::spawn(java);
        let (records, readings, text) = trace(load);
        assert!(check_waits(&title, &records, &readings) >= 5, "{title}");
        let periods: u64 = pauses(&records).iter().map(|p| ns(p, "throttled_periods")).sum();
        let all = group.throttled_periods().unwrap();
        println!("{title}: quota used up in {periods} of {all} periods");
        assert!(periods > 0 && periods <= all, "{title}: {periods} of {all}");
        let summary = records.last().unwrap();
        assert_eq!(ns(summary, "throttled_periods"), periods, "{title}");
        let lines: Vec<_> = text.lines().filter(|line| line.contains("(CPU quota)")).collect();
        println!("{}", lines.first().unwrap());
        let is_long = |p: &&&Value| {
            let wait = p["cpu_wait_ns"].as_u64().unwrap_or(0);
            wait >= 1_000_000 && wait >= ns(p, "stopped_ns") / 10
        };
        let long = pauses(&records).iter().filter(is_long).count();
        let named =
            text.lines().filter(|line| line.contains(" for a CPU") && line.contains("  waited "));
        assert_eq!(named.count(), long, "{title}");
        let total = text.lines().find(|line| line.starts_with("GC waited ")).unwrap();
        println!("{total}");
        assert!(text.contains("CPU quota used up "), "{title}: {text}");
    }
}

/// The JVM shares one CPU with a process that never sleeps.
#[test]
fn wait_on_a_crowded_cpu_is_not_a_quota() {
    run_alone();
    let pinned = |command: &mut Command| {
        let mut taskset = Command::new("taskset");
        taskset.args(["-c", "0"]).arg(command.get_program()).args(command.get_args());
        taskset
    };
    let mut spinner = pinned(Command::new("sh").args(["-c", "while :; do :; done"]));
    let mut spinner = spinner.spawn().unwrap();
    let load = Load::spawn(pinned(&mut command(named("temurin-21"), "-XX:+UseG1GC")));
    let (records, readings, text) = trace(load);
    spinner.kill().unwrap();
    spinner.wait().unwrap();
    assert!(check_waits("crowded CPU", &records, &readings) >= 5);
    assert!(text.contains(" for a CPU\n"), "{text}");
    assert!(!text.contains("CPU quota"), "{text}");
    assert!(pauses(&records).iter().all(|pause| pause["throttled_periods"] == 0), "{records:?}");
}

/// Without a quota, the waits are those that the scheduler counts, which are short on an idle machine.
#[test]
fn collections_without_a_quota_are_not_throttled() {
    run_alone();
    let load = Load::spawn(command(named("temurin-17"), "-XX:+UseParallelGC"));
    let (records, readings, text) = trace(load);
    check_waits("no quota", &records, &readings);
    assert!(!text.contains("CPU quota"), "{text}");
    assert!(pauses(&records).iter().all(|pause| pause["throttled_periods"] == 0), "{records:?}");
}

#[test]
fn waits_are_unknown_where_they_are_not_measured() {
    run_beside_others();
    // The only probe of ZGC is hit when the stop is over.
    let mut load = Load::start(named("temurin-25"), "-XX:+UseZGC");
    let pid = load.pid().to_string();
    let tool = Tool::start("javagc", &["-p", &pid, "-j", "--safepoints"]);
    load.run(1.0);
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    let is_unknown =
        |record: &Value| record["cpu_wait_ns"].is_null() && record["throttled_periods"].is_null();
    let records = output.json();
    let stops = records.iter().filter(|record| record["stopped_ns"].is_u64());
    assert!(stops.clone().count() > 2 && stops.clone().all(is_unknown), "{output:?}");
    load.kill();
    // Without BTF, the kernel's counters cannot be located.
    let mut load = Load::start(named("temurin-21"), "-XX:+UseG1GC");
    let pid = load.pid().to_string();
    let tool = Tool::spawn(without_btf("javagc", &["-p", &pid, "-j", "-v"]));
    load.run(1.0);
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.contains("waits for a CPU are unknown"), "{output:?}");
    let records = output.json();
    assert!(pauses(&records).len() > 2, "{output:?}");
    assert!(records.iter().filter(|r| r["type"] != "cycle").all(is_unknown), "{output:?}");
    load.kill();
}

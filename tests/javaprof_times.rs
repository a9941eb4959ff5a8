//! javaprof's time axis: the times of samples, and of stops of the application.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jvmprobe_tests::{
    folded,
    load::Load,
    page::times,
    proc::monotonic_ns,
    run_beside_others,
    runtimes::named,
    tool::{Output, Tool, binary},
};

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

fn assert_success(output: Output) {
    assert!(output.status.success(), "{output:?}");
}

/// A program that is busy for a second, then idle for one, and busy again.
#[test]
fn sample_timestamps_fall_into_busy_periods() {
    run_beside_others();
    binary("javaprof");
    let mut load = Load::start_program(named("temurin-21"), "-XX:+UseSerialGC", "CpuLoad");
    load.run(1.0);
    let dir = tempfile::tempdir().unwrap();
    let (page, lines) = (dir.path().join("p.html"), dir.path().join("p.folded"));
    let pid = load.pid().to_string();
    let (to_page, to_lines) = (page.to_str().unwrap(), lines.to_str().unwrap());
    let files = ["-o", to_page, "-o", to_lines, "--timeline"];
    let tool = Tool::start("javaprof", &[&["-p", &pid, "-F", "499"], &files[..]].concat());
    let mut busy = Vec::new();
    for _ in 0..2 {
        let begin = now_ms();
        load.run(1.0);
        busy.push((begin, now_ms()));
        std::thread::sleep(Duration::from_secs(1));
    }
    assert_success(tool.interrupt());
    let times = times(&page);
    let all: u64 = times.counts.iter().map(|row| row[3]).sum();
    let told = folded::parse(&fs::read_to_string(&lines).unwrap());
    assert_eq!(all, folded::total(told.iter()), "each sample has its time");
    // Counts by second, from the page and from the folded stacks.
    let mut seconds = [BTreeMap::<u64, u64>::new(), BTreeMap::new()];
    for [slot, _, _, count] in &times.counts {
        *seconds[0].entry(slot * times.slot_ns / 1_000_000_000).or_default() += count;
    }
    for line in &told {
        *seconds[1].entry(line.frames[0].parse().unwrap()).or_default() += line.count;
    }
    assert_eq!(seconds[0], seconds[1]);
    let is_busy = |slot: u64| {
        let at = times.begin_ms + slot * times.slot_ns / 1_000_000;
        let near = 2 * times.slot_ns / 1_000_000;
        busy.iter().any(|(begin, end)| (begin - near..end + near).contains(&at))
    };
    let within: u64 = times.counts.iter().filter(|row| is_busy(row[0])).map(|row| row[3]).sum();
    println!("{within} of {all} samples in {busy:?}");
    assert!(all > 50 && within * 100 > all * 95, "{within} of {all}");
    load.quit();
}

/// Compares each stop, by its operation and length, with the JVM's log.
#[test]
fn stops_on_the_time_axis_match_the_jvm_log() {
    run_beside_others();
    binary("javaprof");
    for (runtime, flag) in [("temurin-17", "-XX:+UseG1GC"), ("temurin-25", "-XX:+UseSerialGC")] {
        let dir = tempfile::tempdir().unwrap();
        let page = dir.path().join("p.html");
        let mut load = Load::start(named(runtime), flag);
        let pid = load.pid().to_string();
        let tool = Tool::start("javaprof", &["-p", &pid, "-o", page.to_str().unwrap()]);
        load.run(2.0);
        assert_success(tool.interrupt());
        let log = load.quit();
        times(&page).assert_stops_match_log(&log, runtime);
    }
}

/// An interval's time is that of its last samples, not the time when it was printed.
#[test]
fn consecutive_intervals_leave_no_gap() {
    run_beside_others();
    binary("javaprof");
    let mut load = Load::start_program(named("temurin-21"), "-XX:+UseSerialGC", "CpuLoad");
    load.go(60.0);
    let pid = load.pid().to_string();
    let before = monotonic_ns();
    let output = Tool::start("javaprof", &["-p", &pid, "-F", "999", "-j", "-s", "0.5", "5"]).wait();
    let after = monotonic_ns();
    let records = output.json();
    let summaries: Vec<_> = records.iter().filter(|record| record["type"] == "summary").collect();
    assert_eq!(summaries.len(), 5, "{}", output.stdout);
    let number = |record: &serde_json::Value, field: &str| record[field].as_u64().unwrap();
    for two in summaries.windows(2) {
        let apart = number(two[1], "ts_ns") - number(two[0], "ts_ns");
        let length = number(two[1], "duration_ns");
        assert_eq!(apart, length, "{two:?}");
    }
    let first = number(summaries[0], "ts_ns") - number(summaries[0], "duration_ns");
    assert!(before < first && number(summaries[4], "ts_ns") < after, "{before} {after} {first}");
    // Records of one interval have the same time.
    for record in &records {
        assert!(summaries.iter().any(|summary| summary["time"] == record["time"]), "{record}");
    }
    load.kill();
}

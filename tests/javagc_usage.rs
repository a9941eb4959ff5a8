//! javagc's options and output formats.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{process::Command, time::Duration};

use jvmprobe_tests::{
    load::Load,
    run_alone, run_beside_others,
    runtimes::named,
    tool::{self, Tool, binary},
};
use rustix::process::Signal;
use serde_json::Value;

const G1: &str = "-XX:+UseG1GC";

fn pid(load: &Load) -> String {
    load.pid().to_string()
}

fn of_type<'a>(records: &'a [Value], wanted: &'a str) -> impl Iterator<Item = &'a Value> {
    records.iter().filter(move |r| r["type"] == wanted)
}

#[test]
fn text_has_one_header_pause_lines_and_a_summary() {
    run_beside_others();
    let mut load = Load::start(named("temurin-17"), G1);
    let tool = Tool::start("javagc", &["-p", &pid(&load)]);
    load.run(1.0);
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    let header = output.stdout.lines().next().unwrap();
    let columns: Vec<_> = header.split_ascii_whitespace().collect();
    let expected =
        "TIME PID COLLECTOR OPERATION CAUSE TTSP(ms) PAUSE(ms) STOPPED(ms) HEAP-BEFORE HEAP-AFTER";
    assert_eq!(columns.join(" "), expected);
    assert_eq!(output.stdout.matches("HEAP-BEFORE").count(), 1);
    let lines: Vec<_> =
        output.stdout.lines().filter(|l| l.contains("G1CollectForAllocation ")).collect();
    let (pauses, summary): (Vec<_>, Vec<_>) =
        lines.into_iter().partition(|l| l.contains(&pid(&load)));
    assert!(pauses.len() > 5, "{}", output.stdout);
    assert_eq!(summary.len(), 1, "{}", output.stdout);
    for line in pauses {
        assert!(line.contains(" G1 "), "{line}");
    }
    assert!(output.stdout.contains("GC stopped the application"), "{}", output.stdout);
    // Safepoints without collections are counted, not listed.
    assert!(output.stdout.contains("Other safepoints stopped it"), "{}", output.stdout);
    assert!(!output.stdout.contains("ThreadDump"), "{}", output.stdout);
    // stderr has only messages to the user, and there is no colour in a pipe.
    assert!(output.stderr.lines().all(|l| l.starts_with("javagc: ")), "{}", output.stderr);
    assert!(!output.stdout.contains('\x1b'));
    load.quit();
}

/// Checks that the listing has more than ten rows, and that the values in its numeric columns end
/// where the names of the columns end.
fn assert_aligned(text: &str) {
    let header = text.lines().next().unwrap();
    let names = ["TTSP(ms)", "PAUSE(ms)", "STOPPED(ms)", "HEAP-BEFORE", "HEAP-AFTER"];
    let ends = names.map(|name| header.find(name).unwrap() + name.len());
    let mut rows = 0;
    for line in text.lines().skip(1).take_while(|line| !line.is_empty()) {
        let line: Vec<char> = line.chars().collect();
        for end in ends {
            let is_end = line[end - 1] != ' ' && line.get(end).is_none_or(|c| *c == ' ');
            assert!(is_end, "column {end}: {}", line.iter().collect::<String>());
        }
        rows += 1;
    }
    assert!(rows > 10, "{text}");
}

#[test]
fn columns_stay_aligned_and_no_line_ends_in_blanks() {
    run_beside_others();
    // Some operations of these collectors have names of 28 characters, which is the width of the
    // column, and some have names of 30 characters, which are truncated.
    for (runtime, flags) in [
        ("temurin-17", "-XX:+UseShenandoahGC"),
        ("temurin-21", "-XX:+UseZGC -XX:+ZGenerational"),
        ("temurin-21", "-XX:+UseParallelGC"),
    ] {
        let mut load = Load::start(named(runtime), flags);
        let tool = Tool::start("javagc", &["-p", &pid(&load), "--safepoints"]);
        load.run(1.5);
        let output = tool.interrupt();
        assert_aligned(&output.stdout);
        for line in output.stdout.lines().chain(output.stderr.lines()) {
            assert_eq!(line, line.trim_end(), "{runtime} {flags}");
        }
    }
    let load = Load::start(named("temurin-17"), G1);
    let output = tool::run("javagc", &["-p", &pid(&load), "--list-probes"]);
    assert!(output.stdout.lines().all(|line| line == line.trim_end()), "{}", output.stdout);
}

#[test]
fn json_objects_carry_the_documented_fields() {
    run_beside_others();
    let mut load = Load::start(named("temurin-25"), G1);
    let tool = Tool::start("javagc", &["-p", &pid(&load), "-j", "--safepoints", "--pools", "-H"]);
    load.run(1.0);
    let records = tool.interrupt().json();
    let fields = [
        "time",
        "ts_ns",
        "pid",
        "collector",
        "op",
        "cause",
        "full",
        "collections",
        "ttsp_ns",
        "pause_ns",
        "stopped_ns",
        "heap_before",
        "heap_after",
        "operations",
    ];
    for kind in ["pause", "safepoint"] {
        let record = of_type(&records, kind).next().unwrap_or_else(|| panic!("no {kind}"));
        for field in fields {
            assert!(record.get(field).is_some(), "{field} in {record}");
        }
        let time = record["time"].as_str().unwrap();
        assert!(time.len() == 30 && time.ends_with('Z'), "{time}");
    }
    // A young collection empties Eden, so the used memory after it must be 0.
    let young = |r: &&Value| r["op"] == "G1CollectForAllocation";
    let pause = of_type(&records, "pause").find(young).unwrap();
    let pools = pause["pools"].as_array().unwrap();
    let eden =
        pools.iter().find(|p| p["pool"] == "G1 Eden Space").unwrap_or_else(|| panic!("{pause}"));
    assert!(eden["before"].as_u64() > Some(0) && eden["after"] == 0, "{eden}");
    let heap: u64 = pools
        .iter()
        .filter(|p| {
            ["G1 Eden Space", "G1 Survivor Space", "G1 Old Gen"]
                .contains(&p["pool"].as_str().unwrap())
        })
        .map(|p| p["after"].as_u64().unwrap())
        .sum();
    let after = pause["heap_after"].as_u64().unwrap();
    assert!(heap.abs_diff(after) <= 2 << 20, "pools {heap}, heap_after {after}");
    let summary = of_type(&records, "summary").next().unwrap();
    let histogram = summary["histograms"]["stopped_us"].as_array().unwrap();
    let counted: u64 = histogram.iter().map(|slot| slot[2].as_u64().unwrap()).sum();
    assert_eq!(counted, summary["pauses"].as_u64().unwrap());
    load.quit();
}

#[test]
fn interval_and_count_give_that_many_summaries() {
    run_beside_others();
    let mut load = Load::start(named("temurin-17"), "-XX:+UseParallelGC");
    let tool = Tool::start("javagc", &["-p", &pid(&load), "-j", "0.4", "3"]);
    load.go(3.0);
    let output = tool.wait();
    assert!(output.status.success());
    let records = output.json();
    assert_eq!(of_type(&records, "summary").count(), 3, "{}", output.stdout);
    assert_eq!(records.len(), 3, "nothing but summaries");
    let duration = |r: &Value| r["duration_ns"].as_u64().unwrap() as f64 / 1e9;
    let total: f64 = records.iter().map(duration).sum();
    assert!((1.1..2.5).contains(&total), "three times 0.4 s took {total} s");
    assert!(records.iter().any(|r| r["pauses"].as_u64() > Some(0)), "{}", output.stdout);
}

#[test]
fn duration_ends_the_trace_and_the_summary_agrees() {
    run_alone();
    let mut load = Load::start(named("temurin-17"), "-XX:+UseSerialGC");
    let tool = Tool::start("javagc", &["-p", &pid(&load), "-j", "-d", "1"]);
    load.go(2.0);
    let output = tool.wait();
    assert!(output.status.success());
    let records = output.json();
    let summary = records.last().unwrap();
    assert_eq!(summary["type"], "summary");
    let seconds = summary["duration_ns"].as_u64().unwrap() as f64 / 1e9;
    assert!((0.99..1.8).contains(&seconds), "{seconds}");
    let stopped: u64 = of_type(&records, "pause").map(|r| r["stopped_ns"].as_u64().unwrap()).sum();
    let share = stopped as f64 / summary["duration_ns"].as_u64().unwrap() as f64;
    assert!((share - summary["stopped_share"].as_f64().unwrap()).abs() < 1e-6, "{share} {summary}");
}

#[test]
fn freed_and_allocated_bytes_match_the_heap_sizes() {
    run_beside_others();
    let mut load = Load::start(named("temurin-21"), "-XX:+UseParallelGC");
    let tool = Tool::start("javagc", &["-p", &pid(&load), "-j"]);
    load.run(1.0);
    let records = tool.interrupt().json();
    let heaps: Vec<_> = of_type(&records, "pause")
        .map(|r| (r["heap_before"].as_u64().unwrap(), r["heap_after"].as_u64().unwrap()))
        .collect();
    let freed: u64 = heaps.iter().map(|(before, after)| before.saturating_sub(*after)).sum();
    let allocated: u64 = heaps.windows(2).map(|w| w[1].0.saturating_sub(w[0].1)).sum();
    let summary = records.last().unwrap();
    assert_eq!(summary["freed_bytes"].as_u64(), Some(freed));
    assert_eq!(summary["allocated_bytes"].as_u64(), Some(allocated));
    assert!(allocated > 100 << 20, "{summary}");
}

#[test]
fn threshold_hides_short_stops_but_counts_them() {
    run_beside_others();
    let mut load = Load::start(named("temurin-17"), G1);
    let tool = Tool::start("javagc", &["-p", &pid(&load), "-j", "-t", "1.5"]);
    load.run(1.5);
    let records = tool.interrupt().json();
    let shown: Vec<_> = of_type(&records, "pause").collect();
    assert!(shown.iter().all(|r| r["stopped_ns"].as_u64() >= Some(1_500_000)));
    assert_eq!(of_type(&records, "cycle").count(), 0);
    let summary = records.last().unwrap();
    assert!(summary["pauses"].as_u64().unwrap() > shown.len() as u64, "{summary}");
}

#[test]
fn stops_of_two_jvms_are_reported_separately() {
    run_beside_others();
    let mut first = Load::start(named("temurin-17"), G1);
    let mut second = Load::start(named("temurin-25"), "-XX:+UseSerialGC");
    let tool = Tool::start("javagc", &["-p", &pid(&first), "-p", &pid(&second), "-j"]);
    first.go(1.0);
    second.run(1.0);
    std::thread::sleep(Duration::from_millis(300));
    let records = tool.interrupt().json();
    for (load, collector) in [(&first, "G1"), (&second, "Serial")] {
        let mine: Vec<_> = records.iter().filter(|r| r["pid"] == load.pid()).collect();
        assert!(mine.len() > 10, "{} records of {collector}", mine.len());
        assert!(mine.iter().all(|r| r["collector"] == collector));
        assert_eq!(mine.iter().filter(|r| r["type"] == "summary").count(), 1);
    }
}

#[test]
fn all_option_traces_running_and_later_jvms() {
    run_beside_others();
    let mut early = Load::start(named("temurin-17"), "-XX:+UseParallelGC");
    let tool = Tool::start("javagc", &["-a", "-j"]);
    let mut same_file = Load::start(named("temurin-17"), "-XX:+UseSerialGC");
    let mut other_file = Load::start(named("musl-17"), G1);
    std::thread::sleep(Duration::from_millis(500));
    for load in [&mut early, &mut same_file, &mut other_file] {
        load.run(0.7);
    }
    let pids = [early.pid(), same_file.pid(), other_file.pid()];
    let logs =
        [early, same_file, other_file].map(|load| jvmprobe_tests::gclog::parse(&load.quit()));
    std::thread::sleep(Duration::from_millis(500));
    let output = tool.interrupt();
    let records = output.json();
    for ((pid, log), collector) in pids.iter().zip(&logs).zip(["Parallel", "Serial", "G1"]) {
        let mine: Vec<_> = records.iter().filter(|r| r["pid"] == *pid).collect();
        let pauses = mine.iter().filter(|r| r["type"] == "pause").count();
        let logged = log.stops.iter().filter(|s| !s.collections.is_empty()).count();
        assert_eq!(pauses, logged, "{collector}: {}", output.stderr);
        assert!(mine.iter().all(|r| r["collector"] == collector), "{mine:?}");
        let summaries = mine.iter().filter(|r| r["type"] == "summary").count();
        assert_eq!(summaries, 1, "{collector} ended: {}", output.stderr);
    }
}

#[test]
fn output_format_follows_the_file_extension() {
    run_beside_others();
    let mut load = Load::start(named("temurin-17"), G1);
    let dir = tempfile::tempdir().unwrap();
    for (name, is_json) in [("out.jsonl", true), ("out.txt", false)] {
        let path = dir.path().join(name);
        let tool = Tool::start("javagc", &["-p", &pid(&load), "-o", path.to_str().unwrap(), "-T"]);
        load.run(0.5);
        let output = tool.interrupt();
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
        let text = std::fs::read_to_string(&path).unwrap();
        let first = text.lines().next().unwrap();
        assert_eq!(first.starts_with('{'), is_json, "{first}");
        assert_eq!(first.starts_with("TIME"), !is_json, "{first}");
    }
}

#[test]
fn sigterm_and_sighup_end_the_trace_like_ctrl_c() {
    run_beside_others();
    let mut load = Load::start(named("temurin-17"), G1);
    for signal in [Signal::TERM, Signal::HUP] {
        let tool = Tool::start("javagc", &["-p", &pid(&load), "-j", "-q"]);
        load.run(0.5);
        tool.signal(signal);
        let output = tool.wait();
        assert!(output.status.success(), "{signal:?}: {output:?}");
        assert_eq!(output.json().len(), 1, "{output:?}");
    }
}

#[test]
fn list_probes_matches_readelf() {
    run_beside_others();
    let load = Load::start(named("temurin-17"), G1);
    let output = tool::run("javagc", &["-p", &pid(&load), "--list-probes"]);
    assert!(output.status.success(), "{output:?}");
    let notes =
        Command::new("readelf").arg("-nW").arg(named("temurin-17").libjvm()).output().unwrap();
    let notes = String::from_utf8(notes.stdout).unwrap();
    let listed = output.stdout.lines().filter(|l| !l.starts_with('#'));
    let locations: usize =
        listed.map(|l| l.split_ascii_whitespace().nth(1).unwrap().parse::<usize>().unwrap()).sum();
    assert_eq!(locations, notes.matches("    Name: ").count());
    assert!(output.stdout.contains("hotspot:gc__begin "), "{}", output.stdout);
}

#[test]
fn completions_and_man_page_contain_every_option() {
    let help = tool::run("javagc", &["--help"]);
    assert!(help.status.success());
    let man = include_str!("../man/javagc.8").replace('\\', "");
    let bash = tool::run("javagc", &["--completions", "bash"]);
    assert!(bash.status.success() && bash.stdout.contains("complete"), "{bash:?}");
    let options: Vec<_> = help
        .stdout
        .split(|c: char| c.is_whitespace() || c == ',')
        .filter(|word| word.starts_with("--") && word.len() > 4)
        .map(|word| word.trim_end_matches([']', '.', ')', ':']))
        .collect();
    assert!(options.len() > 12, "{options:?}");
    for option in options {
        assert!(man.contains(option), "{option} is not in the man page");
        assert!(bash.stdout.contains(option), "{option} is not completed");
    }
    let lint = Command::new("mandoc")
        .args(["-T", "lint", "-W", "warning"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../man/javagc.8"))
        .output();
    let lint = lint.expect("mandoc (tests/setup installs it)");
    assert!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stdout));
    assert!(binary("javagc").exists());
}

/// A host may have no jps, so a tool without a target lists the JVMs that it could trace.
#[test]
fn missing_target_lists_the_running_jvms() {
    run_beside_others();
    let load = Load::start(named("temurin-17"), G1);
    for tool in ["javagc", "javaobjnew", "javaprof"] {
        let output = tool::run(tool, &[]);
        assert_eq!(output.status.code(), Some(2), "{tool}: {output:?}");
        assert!(output.stdout.is_empty() && output.stderr.contains("-p PID"), "{output:?}");
        let line = output.stderr.lines().find(|line| line.trim_start().starts_with(&pid(&load)));
        let line = line.unwrap_or_else(|| panic!("{tool}: {}", output.stderr));
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        assert_eq!((words[1], words[3], words[4]), ("root", "G1", "GcLoad"), "{line}");
        assert!(words[2].starts_with("17."), "{line}");
    }
    load.quit();
}

#[test]
fn name_option_selects_a_jvm_by_main_class() {
    run_beside_others();
    let mut load = Load::start(named("temurin-17"), G1);
    let tool = Tool::start("javagc", &["--name", "^GcLoad$", "-j"]);
    load.run(1.0);
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    let own = load.pid();
    assert!(of_type(&output.json(), "pause").any(|pause| pause["pid"] == own), "{output:?}");
    let nobody = tool::run("javagc", &["--name", "NobodyIsCalledSo"]);
    assert_eq!(nobody.status.code(), Some(1), "{nobody:?}");
    assert!(nobody.stderr.contains("`NobodyIsCalledSo`"), "{nobody:?}");
    load.quit();
}

#[test]
fn two_output_files_contain_the_same_pauses() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let [text, json] = ["a.txt", "a.jsonl"].map(|name| dir.path().join(name));
    let mut load = Load::start(named("temurin-17"), G1);
    let [text_arg, json_arg] = [&text, &json].map(|path| path.to_str().unwrap());
    let tool = Tool::start("javagc", &["-p", &pid(&load), "-o", text_arg, "-o", json_arg]);
    load.run(1.0);
    let output = tool.interrupt();
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    let read = |path| std::fs::read_to_string(path).unwrap();
    let records: Vec<Value> =
        read(&json).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let pauses = of_type(&records, "pause").count();
    let text = read(&text);
    let rows = text
        .lines()
        .take_while(|line| !line.starts_with("PID "))
        .filter(|line| line.split_ascii_whitespace().nth(1) == Some(&pid(&load)));
    assert!(pauses > 5);
    // Concurrent cycles have rows, too.
    assert_eq!(rows.count(), pauses + of_type(&records, "cycle").count(), "{text}");
    load.quit();
}

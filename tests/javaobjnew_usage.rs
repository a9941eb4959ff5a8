//! javaobjnew's options and output formats.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{process::Command, time::Duration};

use jvmprobe_tests::{
    allocated,
    load::Load,
    proc::{breakpoints, probes_leaked},
    run_alone, run_beside_others,
    runtimes::named,
    tool::{self, Tool},
};
use rustix::process::Signal;
use serde_json::Value;

const G1: &str = "-XX:+UseG1GC";

fn load(runtime: &str, flags: &str) -> Load {
    run_beside_others();
    Load::start_program(named(runtime), flags, "AllocLoad")
}

fn pid(load: &Load) -> String {
    load.pid().to_string()
}

fn of_type<'a>(records: &'a [Value], wanted: &'a str) -> impl Iterator<Item = &'a Value> {
    records.iter().filter(move |r| r["type"] == wanted)
}

#[test]
fn text_table_lists_the_largest_classes_first() {
    run_beside_others();
    let mut load = load("temurin-17", G1);
    let tool = Tool::start("javaobjnew", &["-p", &pid(&load)]);
    load.ask("go 2 200 2");
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<_> = output.stdout.lines().collect();
    let header = lines.iter().find(|l| l.contains("BYTES/s")).unwrap();
    let columns: Vec<_> = header.split_ascii_whitespace().collect();
    assert_eq!(columns, ["BYTES/s", "SHARE", "OBJECTS", "BYTES", "AVERAGE", "CLASS"]);
    let rows: Vec<_> = lines.iter().filter(|l| l.contains(" % ")).collect();
    assert!(rows.len() > 8, "{}", output.stdout);
    for class in ["long[]", "java.lang.Object[]", "java.lang.String[][]", "AllocLoad$Wide"] {
        assert!(rows.iter().any(|row| row.trim_end().ends_with(class)), "{}", output.stdout);
    }
    let share = |row: &str| -> f64 {
        row.split_ascii_whitespace().nth(1).and_then(|s| s.parse().ok()).unwrap()
    };
    assert!(rows.is_sorted_by(|a, b| share(a) >= share(b)), "{}", output.stdout);
    assert!(output.stdout.contains("Estimated from"), "{}", output.stdout);
    // stderr has only messages to the user, and there is no colour in a pipe.
    assert!(output.stderr.lines().all(|l| l.starts_with("javaobjnew: ")), "{}", output.stderr);
    assert!(!output.stdout.contains('\x1b'));
    assert!(output.stdout.lines().all(|line| line == line.trim_end()), "{}", output.stdout);
    load.quit();
}

#[test]
fn json_objects_carry_the_documented_fields() {
    run_beside_others();
    let mut load = load("temurin-25", G1);
    let tool = Tool::start("javaobjnew", &["-p", &pid(&load), "-j", "-t", "--large", "100k"]);
    load.ask("go 1 200 2");
    let records = tool.interrupt().json();
    let class = [
        "time",
        "pid",
        "class",
        "tid",
        "thread",
        "bytes",
        "objects",
        "estimated",
        "bytes_per_second",
        "share",
        "average_bytes",
        "outside_objects",
        "outside_bytes",
        "humongous_objects",
        "humongous_bytes",
    ];
    let summary = [
        "time",
        "ts_ns",
        "pid",
        "jvm",
        "scope",
        "duration_ns",
        "bytes",
        "objects",
        "estimated",
        "bytes_per_second",
        "classes",
        "other_bytes",
        "tlabs",
        "tlabs_read",
        "outside_objects",
        "outside_bytes",
        "humongous_objects",
        "humongous_bytes",
        "lost",
    ];
    let large = ["time", "ts_ns", "pid", "tid", "thread", "class", "bytes", "humongous"];
    let man = include_str!("../man/javaobjnew.8");
    for (kind, fields) in [("class", &class[..]), ("summary", &summary), ("large", &large)] {
        let record = of_type(&records, kind).next().unwrap_or_else(|| panic!("no {kind}"));
        let mut keys: Vec<_> = record.as_object().unwrap().keys().map(String::as_str).collect();
        keys.retain(|key| *key != "type");
        keys.sort_unstable();
        let mut expected = fields.to_vec();
        expected.sort_unstable();
        assert_eq!(keys, expected, "{record}");
        for field in fields {
            assert!(man.contains(field), "{field} is not in the man page");
        }
    }
    assert_eq!(records.last().unwrap()["pid"], load.pid());
    let shares: f64 = of_type(&records, "class").map(|r| r["share"].as_f64().unwrap()).sum();
    assert!((shares - 1.0).abs() < 1e-6, "{shares}");
}

#[test]
fn interval_and_count_give_that_many_tables() {
    let mut load = load("temurin-17", "-XX:+UseParallelGC");
    let tool = Tool::start("javaobjnew", &["-p", &pid(&load), "-j", "0.5", "3"]);
    load.ask("go 3 200 2");
    let output = tool.wait();
    assert!(output.status.success());
    let records = output.json();
    let scopes: Vec<_> =
        of_type(&records, "summary").map(|r| r["scope"].as_str().unwrap()).collect();
    assert_eq!(scopes, ["interval", "interval", "interval", "trace"]);
    let bytes: Vec<_> =
        of_type(&records, "summary").map(|r| r["bytes"].as_f64().unwrap()).collect();
    let sum: f64 = bytes[..3].iter().sum();
    assert!((sum / bytes[3] - 1.0).abs() < 0.01, "{bytes:?}");
    // The load allocates 200 MB/s from its start on.
    assert!(bytes[1] > 60e6 && bytes[1] < 140e6, "{bytes:?}");
}

#[test]
fn duration_ends_the_trace() {
    let mut load = load("temurin-17", "-XX:+UseSerialGC");
    let tool = Tool::start("javaobjnew", &["-p", &pid(&load), "-j", "-q", "-d", "1"]);
    load.ask("go 2 200 2");
    let output = tool.wait();
    assert!(output.status.success());
    let records = output.json();
    let seconds = records.last().unwrap()["duration_ns"].as_u64().unwrap() as f64 / 1e9;
    assert!((0.99..1.8).contains(&seconds), "{seconds}");
}

#[test]
fn options_set_row_count_and_order() {
    run_beside_others();
    let mut load = load("temurin-17", G1);
    for (option, field) in [("-C", "objects"), ("-S", "bytes"), ("--top", "bytes")] {
        let tool = Tool::start("javaobjnew", &["-p", &pid(&load), "-j", option, "4"]);
        load.ask("go 1 200 2");
        let records = tool.interrupt().json();
        let values: Vec<_> =
            of_type(&records, "class").map(|r| r[field].as_u64().unwrap()).collect();
        assert_eq!(values.len(), 4, "{option}");
        assert!(values.is_sorted_by(|a, b| a >= b), "{option}: {values:?}");
    }
    let tool = Tool::start("javaobjnew", &["-p", &pid(&load), "--top", "3"]);
    load.ask("go 1 200 2");
    let output = tool.interrupt();
    assert!(output.stdout.contains("more classes with"), "{}", output.stdout);
}

#[test]
fn large_option_reports_objects_and_marks_humongous_ones() {
    run_beside_others();
    // With regions of 1 MiB, AllocLoad's arrays of 320 kB are not humongous, but GcLoad's arrays of
    // 2 MB are.
    let mut load = Load::start(named("temurin-21"), "-XX:+UseG1GC -XX:G1HeapRegionSize=1m");
    let tool = Tool::start("javaobjnew", &["-p", &pid(&load), "-j", "--large", "1m"]);
    load.run(1.0);
    let records = tool.interrupt().json();
    let large: Vec<_> = of_type(&records, "large").collect();
    assert!(large.len() > 5, "{records:?}");
    for record in &large {
        assert_eq!(record["class"], "byte[]", "{record}");
        assert_eq!(record["bytes"], 2_000_016, "{record}");
        assert_eq!(record["humongous"], true, "{record}");
        assert!(record["thread"].as_str().unwrap().starts_with("allocator-"), "{record}");
    }
    let bytes = of_type(&records, "class").find(|r| r["class"] == "byte[]").unwrap();
    assert_eq!(bytes["humongous_objects"], large.len(), "{bytes}");
    assert_eq!(bytes["humongous_bytes"], large.len() * 2_000_016, "{bytes}");
    let tool = Tool::start("javaobjnew", &["-p", &pid(&load), "--large", "1m"]);
    load.run(0.5);
    let output = tool.interrupt();
    assert!(output.stdout.lines().any(|l| l.ends_with("1.9M H byte[]")), "{}", output.stdout);
    assert!(output.stdout.contains("humongous, "), "{}", output.stdout);
}

#[test]
fn unusual_class_names_are_complete_and_escaped() {
    run_beside_others();
    for (runtime, exact) in [("temurin-17", true), ("temurin-21", true), ("temurin-25", false)] {
        let flags = "-XX:+UseSerialGC -XX:+DTraceAllocProbes -Xmx256m";
        let mut load = Load::start_program(named(runtime), flags, "NameLoad");
        let mut args = vec!["-p", "", "-j"];
        let own = pid(&load);
        args[1] = &own;
        if exact {
            args.push("--exact");
        }
        let tool = Tool::start("javaobjnew", &args);
        // The load unloads the classes before javaobjnew prints their names. Without `--exact`, the
        // load allocates enough objects for each class to be in the sample.
        let (ask, times) = if exact { ("names 500", 1) } else { ("names 100000", 10) };
        for _ in 0..times {
            load.ask(ask);
        }
        let output = tool.interrupt();
        let records = output.json();
        let find = |name: &str| of_type(&records, "class").find(|r| r["class"] == name);
        for name in ["odd.Größe", "odd.日本", "odd.😀", r"odd.line\x0abreak\x1b31m"] {
            for suffix in ["", "[]", "[][]"] {
                let name = format!("{name}{suffix}");
                let found = find(&name).unwrap_or_else(|| panic!("no {name} in {}", output.stdout));
                if exact {
                    let expected = if suffix == "[]" { 1500 } else { 500 };
                    assert_eq!(found["objects"], expected, "{runtime}: {found}");
                }
            }
        }
        let long: Vec<_> = of_type(&records, "class")
            .filter(|r| r["class"].as_str().unwrap().starts_with("odd.LongLong"))
            .collect();
        assert_eq!(long.len(), 3, "{runtime}: {long:?}");
        assert!(long.iter().all(|r| r["class"].as_str().unwrap().len() < 1100));
        let lambda = of_type(&records, "class")
            .filter(|r| r["class"].as_str().unwrap().starts_with("NameLoad$$Lambda"));
        let lambda: Vec<_> = lambda.collect();
        assert!(!lambda.is_empty(), "{runtime}: {}", output.stdout);
        assert!(lambda.iter().all(|r| !r["class"].as_str().unwrap().contains("0x")), "{lambda:?}");
    }
}

#[test]
fn classes_beyond_100000_are_counted_as_other() {
    run_beside_others();
    let flags = "-XX:+UseSerialGC -XX:+DTraceAllocProbes -Xmx1g";
    let mut load = Load::start_program(named("temurin-21"), flags, "NameLoad");
    let tool = Tool::start("javaobjnew", &["-p", &pid(&load), "-j", "--exact"]);
    load.ask("classes 140000");
    let records = tool.interrupt().json();
    let summary = records.last().unwrap();
    let mine =
        of_type(&records, "class").filter(|r| r["class"].as_str().unwrap().starts_with("many.C"));
    let counted = mine.filter(|r| r["objects"] == 1).count() as u64;
    assert!((100_000..140_000).contains(&counted), "{counted}: {summary}");
    // The bytes of the classes beyond the limit are reported in `other_bytes`.
    let others = summary["other_bytes"].as_u64().unwrap();
    assert!(others >= (140_000 - counted) * 16, "{counted}: {summary}");
    assert_eq!(summary["lost"], 0, "{summary}");
}

#[test]
fn allocations_of_two_jvms_are_reported_separately() {
    run_beside_others();
    let mut first = load("temurin-17", G1);
    let mut second = Load::start(named("temurin-25"), "-XX:+UseSerialGC");
    let tool = Tool::start("javaobjnew", &["-p", &pid(&first), "-p", &pid(&second), "-j"]);
    second.go(1.0);
    first.ask("go 1 200 2");
    second.done();
    let records = tool.interrupt().json();
    for (load, class) in [(&first, "AllocLoad$Wide"), (&second, "byte[]")] {
        let mine: Vec<_> = records.iter().filter(|r| r["pid"] == load.pid()).collect();
        assert_eq!(mine.iter().filter(|r| r["type"] == "summary").count(), 1);
        assert!(mine.iter().any(|r| r["class"] == class), "{mine:?}");
    }
    let foreign = |r: &&Value| r["pid"] == second.pid() && r["class"] == "AllocLoad$Wide";
    assert!(!records.iter().any(|r| foreign(&r)));
}

#[test]
fn all_option_traces_running_and_later_jvms() {
    let early = load("temurin-17", G1);
    let tool = Tool::start("javaobjnew", &["-a", "-j"]);
    let same_file = load("temurin-17", "-XX:+UseSerialGC");
    let other_file = load("musl-17", "-XX:+UseParallelGC");
    std::thread::sleep(Duration::from_millis(800));
    let loads = [early, same_file, other_file].map(|mut load| {
        let told = allocated::parse(&load.ask("go 1 200 2")).total;
        let pid = load.pid();
        load.quit();
        (pid, told as f64)
    });
    std::thread::sleep(Duration::from_millis(500));
    let output = tool.interrupt();
    let records = output.json();
    for (pid, told) in loads {
        let mine: Vec<_> = of_type(&records, "summary").filter(|r| r["pid"] == pid).collect();
        assert_eq!(mine.len(), 1, "{}", output.stderr);
        let bytes = mine[0]["bytes"].as_f64().unwrap();
        // The upper bound allows for the JVM's own allocations.
        assert!((0.95 * told..told + 100e6).contains(&bytes), "{told}: {}", mine[0]);
    }
}

#[test]
fn sigterm_and_sighup_end_the_trace_like_ctrl_c() {
    run_beside_others();
    let mut load = load("temurin-17", G1);
    for signal in [Signal::TERM, Signal::HUP] {
        let tool = Tool::start("javaobjnew", &["-p", &pid(&load), "-j", "--top", "1"]);
        load.ask("go 0.5 200 2");
        tool.signal(signal);
        let output = tool.wait();
        assert!(output.status.success(), "{signal:?}: {output:?}");
        assert_eq!(output.json().len(), 2, "{output:?}");
    }
}

#[test]
fn concurrent_traces_report_the_same_bytes() {
    let mut load = load("temurin-17", G1);
    let own = pid(&load);
    let tools =
        [Tool::start("javaobjnew", &["-p", &own, "-j"]), Tool::start("javaobjnew", &["-a", "-j"])];
    load.ask("go 1 200 2");
    let bytes = tools.map(|tool| {
        let records = tool.interrupt().json();
        let mine = of_type(&records, "summary").find(|r| r["pid"] == load.pid());
        mine.unwrap()["bytes"].as_f64().unwrap()
    });
    assert!((bytes[0] / bytes[1] - 1.0).abs() < 0.02, "{bytes:?}");
}

#[test]
fn no_breakpoint_remains_after_interrupt_or_kill() {
    // Tools of other tests that trace all JVMs would have breakpoints here, too.
    run_alone();
    let mut load = load("temurin-17", G1);
    let own = pid(&load);
    assert_eq!(breakpoints(load.pid(), named("temurin-17")), 0, "before");
    let leaked = probes_leaked();
    for kill in [false, true] {
        let tool = Tool::start("javaobjnew", &["-p", &own]);
        load.ask("go 0.3 200 2");
        assert_eq!(breakpoints(load.pid(), named("temurin-17")), 3, "while tracing");
        if kill {
            tool.signal(Signal::KILL);
            assert!(!tool.wait().status.success());
        } else {
            assert!(tool.interrupt().status.success());
        }
        assert_eq!(breakpoints(load.pid(), named("temurin-17")), 0, "after, kill: {kill}");
    }
    assert!(probes_leaked() <= leaked, "see dmesg");
    load.quit();
}

#[test]
fn completions_and_man_page_contain_every_option() {
    let help = tool::run("javaobjnew", &["--help"]);
    assert!(help.status.success());
    let man = include_str!("../man/javaobjnew.8").replace('\\', "");
    let bash = tool::run("javaobjnew", &["--completions", "bash"]);
    assert!(bash.status.success() && bash.stdout.contains("complete"), "{bash:?}");
    let options: Vec<_> = help
        .stdout
        .split(|c: char| c.is_whitespace() || c == ',')
        .filter(|word| word.starts_with("--") && word.len() > 4)
        .map(|word| word.trim_end_matches([']', '.', ')', ':', ';']))
        .collect();
    assert!(options.len() > 12, "{options:?}");
    for option in options {
        assert!(man.contains(option), "{option} is not in the man page");
        assert!(bash.stdout.contains(option), "{option} is not completed");
    }
    let lint = Command::new("mandoc")
        .args(["-T", "lint", "-W", "warning"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../man/javaobjnew.8"))
        .output();
    let lint = lint.expect("mandoc (tests/setup installs it)");
    assert!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stdout));
}

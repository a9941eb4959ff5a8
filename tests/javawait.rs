//! javawait: kinds of waits that a program cannot log itself, real pools, views, and errors.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "figures are printed")]

use std::{
    collections::HashMap,
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    cgroup::{Cgroup, Limits},
    load::{Load, VIRTUAL, classes},
    programs::jars,
    run_alone, run_beside_others,
    runtimes::{named, selected},
    tool::{self, Tool, assert_refused, binary, without_btf},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Returns the waits among the records of a trace.
fn waits(records: &[Value]) -> Vec<&Value> {
    records.iter().filter(|record| record["type"] == "wait").collect()
}

fn ns(wait: &Value, field: &str) -> u64 {
    wait[field].as_u64().unwrap()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn has_frame(stack: &Value, name: &str) -> bool {
    stack.as_array().unwrap().iter().any(|frame| text(frame, "method").ends_with(name))
}

/// Starts `PoolLoad` with a pool's DataSource, whose jars are in `pool`.
fn pool_load(source: &str, pool: &[&str]) -> Load {
    let mut path = vec![classes().to_path_buf()];
    path.extend(jars("h2"));
    path.extend(pool.iter().flat_map(|name| jars(name)));
    let path: Vec<_> = path.iter().map(|path| path.to_str().unwrap()).collect();
    let mut command = named("temurin-21").command();
    command.args(["-XX:+UseSerialGC", "-cp", &path.join(":"), "PoolLoad", source]);
    Load::spawn(command)
}

#[test]
fn first_row_names_the_pool_and_its_slow_user() {
    run_beside_others();
    binary("javawait");
    for (source, pool, name) in [
        ("com.zaxxer.hikari.HikariDataSource", "hikaricp", "HikariCP connection"),
        ("org.apache.tomcat.jdbc.pool.DataSource", "tomcat", "Tomcat JDBC connection"),
    ] {
        let mut load = pool_load(source, &[pool]);
        let pid = load.pid().to_string();
        let (json, table) =
            (Tool::start("javawait", &["-p", &pid, "-j"]), Tool::start("javawait", &["-p", &pid]));
        println!("{name}: {}", load.ask("go 4"));
        let (json, table) = (json.interrupt(), table.interrupt());
        assert!(json.status.success() && table.status.success(), "{json:?} {table:?}");
        let records = json.json();
        let first = records.iter().find(|record| record["type"] == "group").unwrap();
        println!("{first}");
        assert_eq!((text(first, "kind"), text(first, "on")), ("park", name));
        assert_eq!(text(first, "at"), "PoolLoad$OrderDao.find");
        let slow = &first["ended_by"][0];
        assert_eq!(text(slow, "at"), "PoolLoad$ReportDao.run");
        assert!((390_000_000..600_000_000).contains(&ns(slow, "mean_held_ns")), "{slow}");
        let lines: Vec<_> = table.stdout.lines().collect();
        let head = lines.iter().position(|line| line.contains("ENDED BY")).unwrap();
        let row = lines[head + 2];
        assert!(row.contains(name) && row.contains("PoolLoad$ReportDao.run"), "{}", table.stdout);
        if pool == "hikaricp" {
            let record = records.iter().find(|record| record["type"] == "pool").unwrap();
            assert_eq!(text(record, "name"), "HikariPool-1");
            let numbers = ["in_use", "size", "max_size"].map(|field| ns(record, field));
            assert_eq!(numbers, [2, 2, 2], "{record}");
            let line = "HikariPool-1: 2 of 2 connections in use";
            assert!(table.stdout.contains(line), "{}", table.stdout);
        }
        let held = "held by PoolLoad$ReportDao.run";
        assert!(table.stdout.contains(held), "{}", table.stdout);
    }
}

#[test]
fn waits_in_progress_are_reported_at_the_end() {
    run_beside_others();
    for jdk in selected(&["temurin-11", "temurin-25"]) {
        let runtime = &jdk.name;
        let mut load = Load::start_program(jdk, "-XX:+UseSerialGC", "HangLoad");
        load.ask("hang");
        let pid = load.pid().to_string();
        let output = tool::run("javawait", &["-p", &pid, "-j", "-d", "1.5"]);
        assert!(output.status.success(), "{output:?}");
        let records = output.json();
        let all = waits(&records);
        let last = |thread: &str| {
            let own = all.iter().filter(|wait| wait["thread"] == thread);
            *own.max_by_key(|wait| ns(wait, "end_ns")).unwrap()
        };
        for (thread, kind, frame, owner) in [
            ("takes-one", "monitor", "HangLoad.takesOne", Some("takes-other")),
            ("takes-other", "monitor", "HangLoad.takesOther", Some("takes-one")),
            ("parks", "park", "HangLoad.parks", None),
            ("sleeps", "sleep", "HangLoad.sleeps", None),
            ("waits", "wait", "HangLoad.waits", None),
        ] {
            let wait = last(thread);
            assert_eq!(wait["in_progress"], true, "{runtime}: {wait}");
            assert_eq!(text(wait, "kind"), kind, "{runtime}: {wait}");
            assert!(has_frame(&wait["stack"], frame), "{runtime}: {wait}");
            assert_eq!(wait["holder"]["thread"].as_str(), owner, "{runtime}: {wait}");
            // Up to JDK 23, one of the threads that wait for a monitor wakes up from time to time. These parts belong to
            // one wait.
            if kind != "monitor" {
                assert!(ns(wait, "length_ns") > 1_400_000_000, "{runtime}: {wait}");
            }
        }
        let idle = all.iter().filter(|wait| text(wait, "thread").starts_with("pool-1"));
        assert!(idle.clone().count() >= 2 && idle.clone().all(|wait| wait["idle"] == true));
        load.kill();
    }
}

#[test]
fn stopped_threads_are_reported_as_stopped() {
    run_beside_others();
    let mut load = Load::start_program(named("temurin-17"), "-XX:+UseSerialGC", "CpuLoad");
    let pid = load.pid().to_string();
    load.go(4.0);
    let tool = Tool::start("javawait", &["-p", &pid, "-j"]);
    let process = Pid::from_raw(load.pid().cast_signed()).unwrap();
    thread::sleep(Duration::from_millis(300));
    kill_process(process, Signal::STOP).unwrap();
    let begin = Instant::now();
    thread::sleep(Duration::from_millis(500));
    kill_process(process, Signal::CONT).unwrap();
    let stopped = begin.elapsed();
    thread::sleep(Duration::from_millis(500));
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    let records = output.json();
    let all = waits(&records);
    // The thread that computes was running.
    let own: Vec<_> = all.iter().filter(|wait| wait["kind"] == "stopped").collect();
    let busy = own.iter().find(|wait| wait["thread"] == "cpu-worker");
    let busy = busy.unwrap_or_else(|| panic!("{own:?}"));
    let length = Duration::from_nanos(ns(busy, "length_ns"));
    println!("stopped for {stopped:?}, reported {length:?}");
    assert!(length > Duration::from_millis(480) && length < stopped + Duration::from_millis(50));
}

/// Returns a counter of a control group's `cpu.stat`.
fn cpu_stat(pid: u32, name: &str) -> Option<u64> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    // Each line is NUMBER:CONTROLLERS:PATH; cgroup v2 has no controllers.
    let is_cpu = |line: &&str| {
        let controllers = line.split(':').nth(1).unwrap_or("-");
        controllers.is_empty() || controllers.split(',').any(|controller| controller == "cpu")
    };
    let line = groups.lines().rev().find(is_cpu)?;
    let path = line.rsplit(':').next()?.trim_start_matches('/');
    ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/unified"]
        .iter()
        .filter_map(|root| fs::read_to_string(Path::new(root).join(path).join("cpu.stat")).ok())
        .find_map(|stat| {
            let mut lines = stat.lines();
            lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        })
}

#[test]
fn throttling_is_distinguished_from_the_run_queue() {
    run_alone();
    let limits = Limits { cpu_percent: Some(30), ..Limits::default() };
    let group = match Cgroup::new("throttled", limits) {
        Ok(group) => group,
        Err(error) => {
            println!("skipped: no control group with a CPU limit: {error}");
            return;
        }
    };
    let mut command = named("temurin-17").command();
    command.args(["-XX:+UseSerialGC", "-Xint", "-cp"]).arg(classes()).arg("CpuLoad");
    group.enter(&mut command);
    let mut load = Load::spawn(command);
    let pid = load.pid();
    let periods = || cpu_stat(pid, "nr_throttled").unwrap_or(0);
    load.go(60.0);
    let tool = Tool::start("javawait", &["-p", &pid.to_string(), "-j"]);
    thread::sleep(Duration::from_millis(500));
    let before = periods();
    let begin = jvmprobe_tests::proc::monotonic_ns();
    thread::sleep(Duration::from_secs(3));
    let throttled = periods() - before;
    let end = jvmprobe_tests::proc::monotonic_ns();
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    let records = output.json();
    let all = waits(&records);
    let within = |wait: &&&Value| ns(wait, "begin_ns") >= begin && ns(wait, "end_ns") <= end;
    let busy = all.iter().filter(|wait| wait["thread"] == "cpu-worker");
    let busy: Vec<_> = busy.filter(within).collect();
    let of = |kind: &str| -> Vec<u64> {
        let own = busy.iter().filter(|wait| wait["kind"] == kind);
        own.map(|wait| ns(wait, "length_ns")).collect()
    };
    let (throttles, queued) = (of("throttled"), of("run queue"));
    let (sum, other) = (throttles.iter().sum::<u64>(), queued.iter().sum::<u64>());
    println!("{throttled} periods throttled; {throttles:?}; run queue {other} ns");
    // In each period of 100 ms, the thread runs for 30 ms and is throttled for 70 ms.
    assert!(throttled >= 20, "{throttled}");
    assert!(throttles.len() as u64 + 3 >= throttled, "{throttles:?}");
    assert!((1_700_000_000..2_400_000_000).contains(&sum), "{sum}");
    assert!(other < sum / 4, "{other}");
    load.kill();
}

#[test]
fn pinned_virtual_threads_are_a_kind_of_their_own() {
    run_beside_others();
    for (runtime, pinned) in [("temurin-21", true), ("temurin-25", false)] {
        let flags = format!("{VIRTUAL} -XX:+UseSerialGC");
        let mut load = Load::start_program(named(runtime), &flags, "VirtualLoad").in_background();
        load.ask("start");
        let pid = load.pid().to_string();
        let output = tool::run("javawait", &["-p", &pid, "-j", "-d", "1"]);
        assert!(output.status.success(), "{output:?}");
        let records = output.json();
        let all = waits(&records);
        let own = all.iter().filter(|wait| has_frame(&wait["stack"], "VirtualLoad.pinned"));
        let own: Vec<_> = own.collect();
        // Since JDK 24, a virtual thread is unmounted although it holds a monitor.
        assert_eq!(own.is_empty(), !pinned, "{runtime}: {own:?}");
        for wait in &own {
            assert_eq!(text(wait, "kind"), "pinned", "{wait}");
            assert!(
                wait["virtual_thread"].is_u64() && !text(wait, "pinned_by").is_empty(),
                "{wait}"
            );
        }
        load.kill();
    }
}

#[test]
fn virtual_threads_without_a_carrier_are_counted() {
    run_beside_others();
    for (runtime, unmounts_at_monitors) in [("temurin-21", false), ("temurin-25", true)] {
        let flags = format!("{VIRTUAL} -XX:+UseSerialGC");
        let mut load = Load::start_program(named(runtime), &flags, "VirtualLoad").in_background();
        load.ask("start");
        load.ask("park 50");
        let holder = load.ask("dump");
        let holder = holder.split_ascii_whitespace().find_map(|text| text.strip_prefix("holder;"));
        let holder = holder.and_then(|text| text.split(';').next()).unwrap();
        let holder = format!("virtual thread #{holder} \"holder\"");
        let pid = load.pid().to_string();
        let begin = Instant::now();
        let output = tool::run("javawait", &["-p", &pid, "-j", "-d", "2"]);
        let elapsed = begin.elapsed().as_secs_f64();
        assert!(output.status.success(), "{output:?}");
        let records = output.json();
        let rows = || records.iter().filter(|record| record["type"] == "unmounted");
        let row = |kind: &str, on: Option<&str>| {
            rows().find(|row| text(row, "kind") == kind && row["on"].as_str() == on)
        };
        // "deep", and the threads of `park`, have the same application frame.
        let deep = rows().find(|row| text(row, "at") == "VirtualLoad.deep").unwrap();
        println!("{deep}");
        assert_eq!((text(deep, "kind"), ns(deep, "max_threads")), ("park", 51), "{deep}");
        assert!((deep["mean_threads"].as_f64().unwrap() - 51.0).abs() < 1e-6, "{deep}");
        let total = ns(deep, "total_ns") as f64 / 1e9;
        assert!((51.0 * 1.9..51.0 * elapsed).contains(&total), "{total} {elapsed}");
        assert!(ns(deep, "readings") >= 1 && deep["complete"] == true, "{deep}");
        assert!(has_frame(&deep["stack"], "VirtualLoad.deep"), "{deep}");
        let lock = "java.util.concurrent.locks.ReentrantLock$NonfairSync";
        let locker = row("park", Some(lock)).unwrap();
        assert_eq!((text(locker, "owner"), ns(locker, "max_threads")), (&*holder, 1), "{locker}");
        let socket = row("socket read", None).unwrap();
        assert_eq!(ns(socket, "max_threads"), 1, "{socket}");
        let sleeper = row("sleep", None).unwrap();
        // Since JDK 24, "holder" is unmounted, too, although it holds a monitor.
        let sleepers: u64 = rows()
            .filter(|row| text(row, "kind") == "sleep")
            .map(|row| ns(row, "max_threads"))
            .sum();
        assert_eq!(sleepers, if unmounts_at_monitors { 2 } else { 1 }, "{sleeper}");
        let entering = row("monitor", Some("java.lang.Object"));
        assert_eq!(entering.is_some(), unmounts_at_monitors, "{runtime}");
        if let Some(entering) = entering {
            assert_eq!(text(entering, "owner"), holder, "{entering}");
        }
        assert_eq!(row("wait", Some("java.lang.Object")).is_some(), unmounts_at_monitors);
        assert!(row("run queue", Some("carrier")).is_none(), "{runtime}");
        load.kill();
    }
}

#[test]
fn locks_of_the_jvm_have_its_names() {
    run_beside_others();
    for runtime in ["temurin-17", "temurin-21", "temurin-25"] {
        let load = Load::start_program(named(runtime), "-XX:+UseSerialGC", "WaitLoad");
        let pid = load.pid().to_string();
        let output = tool::run("javawait", &["-p", &pid, "-j", "--idle", "-d", "1.5"]);
        assert!(output.status.success(), "{output:?}");
        let records = output.json();
        // Whether the wait has ended (every 250 ms), or lasts until the end of the trace.
        for (thread, lock, ends) in [
            ("Monitor Deflation Thread", "MonitorDeflation_lock", true),
            ("Service Thread", "Service_lock", false),
        ] {
            let all = waits(&records);
            let of = |wait: &&&Value| text(wait, "thread") == thread && wait["in_progress"] != ends;
            let wait = all.iter().find(of).unwrap_or_else(|| panic!("{runtime}: {thread}"));
            assert_eq!((text(wait, "kind"), text(wait, "on")), ("native lock", lock), "{wait}");
        }
    }
}

#[test]
fn locks_show_waits_and_hold_times() {
    run_beside_others();
    let mut load = Load::start_program(named("temurin-25"), "-XX:+UseSerialGC", "WaitLoad");
    let pid = load.pid().to_string();
    let tool = Tool::start("javawait", &["-p", &pid, "-j", "--locks"]);
    load.ask("go 2");
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    let records = output.json();
    let lock =
        records.iter().find(|record| record["type"] == "lock" && record["kind"] == "monitor");
    let lock = lock.unwrap_or_else(|| panic!("no monitor: {}", output.stdout));
    println!("{lock}");
    assert!(text(lock, "on").starts_with("java.lang.Object@0x"), "{lock}");
    // The holder sleeps for 40 ms while it holds the lock.
    assert!((20_000_000..60_000_000).contains(&ns(lock, "mean_hold_ns")), "{lock}");
    assert_eq!((ns(lock, "threads"), ns(lock, "threads_at_once")), (1, 1), "{lock}");
    assert_eq!(text(&lock["ended_by"][0], "at"), "WaitLoad.holds", "{lock}");
}

#[test]
fn output_files_join_the_stacks_of_waiter_and_holder() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (folded, page) = (path("w.folded"), path("w.html"));
    let mut load = Load::start_program(named("temurin-21"), "-XX:+UseSerialGC", "WaitLoad");
    let pid = load.pid().to_string();
    let tool = Tool::start("javawait", &["-p", &pid, "-q", "-o", &folded, "-o", &page]);
    load.ask("go 2");
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    assert!(fs::read_to_string(page).unwrap().contains("<html"));
    let folded = fs::read_to_string(folded).unwrap();
    let mut times: HashMap<&str, u64> = HashMap::new();
    for line in folded.lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        for kind in ["[sleep]", "[monitor]", "[socket read]"] {
            if stack.contains(kind) {
                *times.entry(kind).or_default() += count.parse::<u64>().unwrap();
            }
        }
    }
    println!("{times:?}");
    assert!(times.len() == 3 && times.values().all(|&ns| ns > 500_000_000), "{folded}");
    let held = folded.lines().find(|line| line.contains("[monitor];[held by holds]")).unwrap();
    let (waiter, holder) = held.split_once("[monitor]").unwrap();
    assert!(waiter.contains("WaitLoad.blocks") && holder.contains("WaitLoad.holds"), "{held}");
}

#[test]
fn intervals_have_tables_of_their_own() {
    run_beside_others();
    let mut load = Load::start_program(named("temurin-17"), "-XX:+UseSerialGC", "WaitLoad");
    let pid = load.pid().to_string();
    let tool = Tool::start("javawait", &["-p", &pid, "-j", "-t", "1", "2"]);
    load.ask("go 3");
    let output = tool.wait();
    assert!(output.status.success(), "{output:?}");
    let records = output.json();
    let summaries: Vec<_> = records.iter().filter(|record| record["type"] == "summary").collect();
    assert_eq!(summaries.len(), 2, "{summaries:?}");
    for summary in summaries {
        assert_eq!(text(summary, "scope"), "interval");
        assert!(ns(summary, "waits") > 50, "{summary}");
    }
    let sleeps = records.iter().filter(|r| r["type"] == "group" && r["thread"] == "sleeps");
    assert!(sleeps.clone().any(|group| group["kind"] == "sleep" && ns(group, "count") > 20));
}

#[test]
fn errors_say_what_to_do() {
    run_beside_others();
    assert_refused(&tool::run("javawait", &["-p", "4194305"]), 1, &["4194305"]);
    assert_refused(&tool::run("javawait", &["-p", "1", "--min", "5"]), 2, &["100us, 1ms"]);
    let load = Load::start_program(named("temurin-17"), "-XX:+UseSerialGC", "WaitLoad");
    let pid = load.pid().to_string();
    let output = tool::run_command(without_btf("javawait", &["-p", &pid]));
    assert_refused(&output, 1, &["BTF"]);
}

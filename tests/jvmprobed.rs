//! End-to-end tests of jvmprobed: the stored data of a JVM agrees with the JVM's own activity.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    allocated,
    load::Load,
    proc::cpu_seconds,
    run_alone, run_beside_others,
    runtimes::named,
    scrape::{after_windows, until_windows},
    slowness,
    tool::{Tool, assert_refused, run},
};
use jvmprobed::{clock::unix_ns, store::reader::StoreReader};
use libjvmprobe::{stack::profile::Measure, trace::pauses::record::Record};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// A daemon's folders and port.
struct TestDaemon {
    dir: TempDir,
    listen: String,
}

impl TestDaemon {
    fn new() -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Self { dir: tempfile::tempdir().unwrap(), listen: free.to_string() }
    }

    fn store(&self) -> String {
        self.dir.path().join("store").display().to_string()
    }

    fn args<'a>(&'a self, store: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        // This machine's own configuration must not be used.
        let config: &[&str] =
            if more.contains(&"--config") { &[] } else { &["--config", "/dev/null"] };
        let own = [config, &["--window", "5s", "--listen", &self.listen, "--dir", store]].concat();
        own.into_iter().chain(more.iter().copied()).collect()
    }

    fn start(&self, more: &[&str]) -> Tool {
        Tool::start("jvmprobed", &self.args(&self.store(), more))
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.listen).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn show(&self, args: &[&str]) -> jvmprobe_tests::tool::Output {
        let store = self.store();
        let mut all = vec!["show", "--dir", &store];
        all.extend(args);
        run("jvmprobed", &all)
    }
}

/// Returns the number of pauses in the JVM's log.
fn logged_pauses(load: &Load) -> usize {
    let is_pause = |line: &&str| line.contains(" Pause ") && line.ends_with("ms");
    load.log().lines().filter(is_pause).count()
}

/// Returns the sum of the folded stacks that contain a word.
fn sum(path: &Path, word: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap();
    let counts = text.lines().filter(|line| line.contains(word));
    counts.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

#[test]
fn stored_data_matches_the_jvm_activity() {
    run_beside_others();
    let daemon = TestDaemon::new();
    let mut load = Load::start_program(named("temurin-17"), "-XX:+UseSerialGC", "AllocLoad");
    load.ask("go 1 200 2");
    let early = cpu_seconds(load.pid());
    // On an emulated processor, the tracers would exceed the default limit and step down.
    let tool = daemon.start(&["-F", "99", "--max-cpu", "100"]);
    // There, reading the tables of libjvm.so takes seconds.
    thread::sleep(Duration::from_secs(3).mul_f64(slowness() - 1.0));
    let before = logged_pauses(&load);
    let begun = cpu_seconds(load.pid());
    let truth = allocated::parse(&load.ask("go 6 1000 2"));
    let done = cpu_seconds(load.pid());
    let pauses = logged_pauses(&load) - before;
    let info = daemon.get("/metrics");
    // Other JVMs of this host may run the same program.
    let pid = load.pid().to_string();
    let label = format!("pid=\"{pid}\"");
    assert!(info.contains("jvm=\"AllocLoad\"") && info.contains(&label), "{info}");
    assert!(daemon.get("/-/ready").starts_with("HTTP/1.1 200"));
    let begin = Instant::now();
    tool.signal(Signal::TERM);
    let output = tool.wait();
    assert!(output.status.success(), "{output:?}");
    println!("{}ended within {:?}", output.stderr, begin.elapsed());

    // CPU time as accounted by the kernel.
    let said = daemon.show(&["--jvm", &pid]).stdout;
    let account =
        said.lines().find_map(|line| line.split_once(" s of CPU time as counted by the kernel"));
    let account: f64 = account.unwrap_or_else(|| panic!("{said}")).0.parse().unwrap();
    let (least, most) = (done - begun, cpu_seconds(load.pid()) - early);
    println!("CPU time {account} s: {least} to {most}");
    assert!((least - 0.02..=most + 0.02).contains(&account), "{account}: {least} to {most}");

    // Each pause is in the window in which it ended.
    let windows = StoreReader::open(Path::new(&daemon.store())).unwrap().read(0, u64::MAX).unwrap();
    for window in windows.iter().map(|stored| &stored.window) {
        for record in window.jvms.iter().flat_map(|jvm_data| &jvm_data.pauses) {
            let Record::Pause(stop) = record else { continue };
            let begin: jiff::Timestamp = stop.time.parse().unwrap();
            let end = u64::try_from(begin.as_nanosecond()).unwrap() + stop.stopped_ns;
            let slack = 10_000_000;
            assert!((window.begin_ns - slack..window.end_ns + slack).contains(&end), "{stop:?}");
        }
    }

    let shown = daemon.show(&["--gc", "-j", "--jvm", &pid]);
    assert!(shown.status.success(), "{shown:?}");
    let of_type = |kind: &str| shown.json().iter().filter(|r| r["type"] == kind).count();
    // Beyond a rate, pauses are only counted.
    let limited = shown.json().iter().filter_map(|r| r["pauses"]["count"].as_u64()).sum::<u64>();
    assert_eq!((of_type("pause") + limited as usize, of_type("lost")), (pauses, 0), "{limited}");
    assert!(pauses > 0);

    let alloc = daemon.dir.path().join("alloc.folded");
    let wanted = ["--alloc", "-q", "--jvm", &pid, "-o", alloc.to_str().unwrap()];
    assert!(daemon.show(&wanted).status.success());
    let off = sum(&alloc, "") as f64 / truth.total as f64 - 1.0;
    assert!(off.abs() <= 0.05, "allocated: {off}");

    let cpu = daemon.dir.path().join("cpu.folded");
    let wanted = ["-q", "--jvm", &pid, "-o", cpu.to_str().unwrap()];
    assert!(daemon.show(&wanted).status.success());
    let (own, all) = (sum(&cpu, "AllocLoad."), sum(&cpu, ""));
    println!("{own} of {all} samples");
    assert!(own > all / 2 && all > 5, "{own} of {all}");
    load.quit();
}

#[test]
fn json_log_option_formats_every_line() {
    run_beside_others();
    let daemon = TestDaemon::new();
    let config = daemon.dir.path().join("jvmprobed.toml");
    fs::write(&config, "log = \"json\"\n").unwrap();
    let config = config.to_str().unwrap();
    for how in [&["--log", "json"][..], &["--config", config]] {
        let tool = daemon.start(how);
        tool.signal(Signal::HUP);
        thread::sleep(Duration::from_secs(1));
        tool.signal(Signal::TERM);
        let output = tool.wait();
        assert!(output.status.success(), "{output:?}");
        let lines: Vec<Value> =
            output.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let has =
            |text: &str| lines.iter().any(|line| line["message"].as_str().unwrap().contains(text));
        assert!(has("Tracing all JVMs") && has("reloaded the configuration"), "{}", output.stderr);
        assert!(lines.iter().all(|line| line["tool"] == "jvmprobed" && line["time"].is_string()));
    }
    let refused = run("jvmprobed", &["--log", "json", "--dir", "/dev/null/x"]);
    assert!(!refused.status.success());
    let line: Value = serde_json::from_str(refused.stderr.trim()).unwrap();
    assert_eq!(line["level"], "warning", "{line}");
}

/// Attaching to each short-lived JVM would take more CPU time than the JVMs themselves.
#[test]
fn short_lived_jvms_are_skipped_and_lasting_ones_traced() {
    run_alone();
    let daemon = TestDaemon::new();
    let tool = daemon.start(&[]);
    let runtime = named("temurin-17");
    for _ in 0..20 {
        let brief = || Command::new(&runtime.java).arg("-version").stderr(Stdio::null()).spawn();
        let both = [brief().unwrap(), brief().unwrap()];
        both.into_iter().for_each(|mut jvm| assert!(jvm.wait().unwrap().success()));
    }
    let mut load = Load::start_program(runtime, "-XX:+UseSerialGC", "AllocLoad");
    let begin = Instant::now();
    load.ask("go 1 200 2");
    let pid = format!("pid=\"{}\"", load.pid());
    while !daemon.get("/metrics").contains(&pid) {
        assert!(begin.elapsed() < Duration::from_secs(90), "{}", daemon.get("/metrics"));
        thread::sleep(Duration::from_millis(200));
    }
    let metrics = daemon.get("/metrics");
    let short_lived = "jvmprobed_jvms_given_up_total{reason=\"short-lived\"}";
    let left_out = metric(&metrics, short_lived);
    let seen = metric(&metrics, "jvmprobed_jvms_seen_total");
    println!("{left_out} skipped, {seen} detected");
    assert!(left_out >= 1.0, "{metrics}");
    // The lasting JVM is traced like any other.
    let truth = allocated::parse(&load.ask("go 3 200 2"));
    tool.signal(Signal::TERM);
    assert!(tool.wait().status.success());
    let alloc = daemon.dir.path().join("alloc.folded");
    let wanted = ["--alloc", "-q", "--jvm", "AllocLoad", "-o", alloc.to_str().unwrap()];
    assert!(daemon.show(&wanted).status.success());
    assert!(sum(&alloc, "") as f64 >= 0.95 * truth.total as f64);
    load.quit();
}

/// A window is on disk at its end, even if the daemon is killed then.
#[test]
fn completed_window_survives_a_kill() {
    run_beside_others();
    let daemon = TestDaemon::new();
    let mut load = Load::start(named("temurin-21"), "-XX:+UseParallelGC");
    let tool = daemon.start(&[]);
    load.go(3600.0);
    until_windows(&daemon.listen, 1.0);
    tool.signal(Signal::KILL);
    assert!(!tool.wait().status.success());
    let table = daemon.show(&["--jvm", "GcLoad"]);
    // On a busy machine, all of the few samples may be in the collector.
    let has_samples = table.stdout.contains("; estimated from samples:\n");
    assert!(table.status.success() && has_samples, "{table:?}");
    let shown = daemon.show(&["--gc", "-j", "--jvm", "GcLoad"]);
    assert!(shown.json().iter().any(|record| record["type"] == "pause"), "{shown:?}");
    // The next daemon continues with the existing windows.
    let tool = daemon.start(&[]);
    assert!(tool.interrupt().stderr.contains("1 window"));
    drop(load);
}

/// Kills the whole daemon at about the time when it writes a window. `jvmprobed_store.rs` kills a
/// process that contains only the store, more often and at shorter intervals.
#[test]
#[ignore = "long: make test-all"]
fn killed_daemon_loses_at_most_the_last_window() {
    run_beside_others();
    let daemon = TestDaemon::new();
    let mut load = Load::start(named("temurin-21"), "-XX:+UseSerialGC");
    load.go(3600.0);
    let (mut stored, mut killed_late) = (0, 0);
    for round in 0..50_u64 {
        let tool = daemon.start(&[]);
        // The daemon is killed 4 to 8 s after its start, at a different time in each round:
        // before, while or after it writes its first window.
        thread::sleep(Duration::from_millis(4_000 + round * 79 % 4_000));
        let completed = metric(&daemon.get("/metrics"), "jvmprobed_windows_total") as usize;
        tool.signal(Signal::KILL);
        tool.wait();
        let windows =
            StoreReader::open(daemon.store().as_ref()).unwrap().read(0, u64::MAX).unwrap();
        let now = windows.len();
        let least = stored + completed.saturating_sub(1);
        assert!(
            (least..=stored + completed + 1).contains(&now),
            "{round}: {stored}, {completed}, {now}"
        );
        assert!(windows.is_sorted_by_key(|stored| stored.window.begin_ns));
        (stored, killed_late) = (now, killed_late + completed);
    }
    println!("{stored} windows are stored, {killed_late} had been counted as written");
    assert!(killed_late > 5 && stored > 5, "{killed_late}, {stored}");
    let shown = daemon.show(&["--since", "2h", "--gc", "-j"]);
    assert!(shown.status.success() && shown.stderr.is_empty(), "{}", shown.stderr);
    assert!(shown.json().iter().any(|record| record["type"] == "pause"));
    drop(load);
}

/// Returns a value from `/metrics`.
fn metric(metrics: &str, name: &str) -> f64 {
    let line =
        metrics.lines().find(|line| line.strip_prefix(name).is_some_and(|l| l.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("no {name}: {metrics}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// Waits until the daemon has reached this saving step, and returns its metrics at that time.
fn wait_for_step(daemon: &TestDaemon, step: f64) -> String {
    let begin = Instant::now();
    loop {
        let metrics = daemon.get("/metrics");
        if metric(&metrics, "jvmprobed_saving") == step {
            return metrics;
        }
        assert!(begin.elapsed() < Duration::from_secs(400), "{metrics}");
        thread::sleep(Duration::from_millis(200));
    }
}

/// Starts a daemon with a CPU limit close to zero. The rate cannot be lowered further, so it stops
/// collecting allocation, then samples.
fn start_with_tiny_cpu_limit(daemon: &TestDaemon, load: &mut Load, more: &[&str]) -> Tool {
    let tool = daemon.start(&[&["-F", "1"], more].concat());
    let metrics = wait_for_step(daemon, 0.0);
    assert_eq!(metric(&metrics, "jvmprobed_sampling_hertz"), 1.0);
    assert_eq!(metric(&metrics, "jvmprobed_collected{what=\"alloc\"}"), 1.0);
    load.go(300.0);
    let metrics = wait_for_step(daemon, 1.0);
    assert_eq!(metric(&metrics, "jvmprobed_collected{what=\"alloc\"}"), 0.0);
    assert_eq!(metric(&metrics, "jvmprobed_collected{what=\"cpu\"}"), 1.0);
    let metrics = wait_for_step(daemon, 2.0);
    assert_eq!(metric(&metrics, "jvmprobed_collected{what=\"cpu\"}"), 0.0);
    assert_eq!(metric(&metrics, "jvmprobed_sampling_hertz"), 0.0);
    tool
}

#[test]
fn exceeding_the_cpu_limit_reduces_collection_and_is_logged() {
    run_beside_others();
    let daemon = TestDaemon::new();
    let mut load = Load::start(named("temurin-21"), "-XX:+UseSerialGC");
    let tool = start_with_tiny_cpu_limit(&daemon, &mut load, &["--max-cpu", "0.01"]);
    // Waits for a window without samples and allocation, but with pauses.
    after_windows(&daemon.listen, 2);
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    let told: Vec<_> = output.stderr.lines().filter(|line| line.contains("[saving ")).collect();
    assert_eq!(told.len(), 2, "{output:?}");
    assert!(
        told[0].contains("collecting less from now on: pauses, 1 CPU samples per second. "),
        "{told:?}"
    );
    let has = |line: &str, values: [&str; 3]| {
        values.iter().all(|value| line.contains(&format!(" {value}")))
    };
    assert!(has(told[0], ["step=\"1\"", "hertz=\"1\"", "allocation=\"false\""]), "{told:?}");
    assert!(has(told[1], ["step=\"2\"", "hertz=\"0\"", "allocation=\"false\""]), "{told:?}");
    // No tracer has ended because of an error.
    assert!(!output.stderr.contains("stopped collecting"), "{output:?}");
    let shown = daemon.show(&["--alloc", "--jvm", "GcLoad"]);
    assert!(shown.stdout.contains("alloc was not collected for "), "{shown:?}");
    let shown = daemon.show(&["--since", "10s", "--gc", "-j", "--jvm", "GcLoad"]);
    assert!(shown.json().iter().any(|record| record["type"] == "pause"), "{shown:?}");
    load.kill();
}

/// Allocates for 20 seconds and compares the allocation in each complete window with that of the load at that time.
fn assert_each_window_has_its_allocation(daemon: &TestDaemon, load: &mut Load) {
    let mut rounds = Vec::new();
    while rounds.len() < 20 {
        let begin = unix_ns();
        let truth = allocated::parse(&load.ask("go 1 200 2"));
        rounds.push((begin, unix_ns(), truth.total as f64));
    }
    let (first, last) = (rounds[0].0, rounds[rounds.len() - 1].1);
    // Waits until the last complete window is stored.
    thread::sleep(Duration::from_secs(6));
    let windows = StoreReader::open(Path::new(&daemon.store())).unwrap().read(0, u64::MAX).unwrap();
    let mut compared = 0;
    for window in windows.iter().map(|stored| &stored.window) {
        if window.begin_ns < first || window.end_ns > last {
            continue;
        }
        let mine = window.jvms.iter().filter(|jvm_data| jvm_data.identity.pid == load.pid());
        let profiles = mine.flat_map(|jvm_data| &jvm_data.profiles);
        let allocation = profiles.filter(|profile| profile.measure == Measure::Allocation);
        let stored: u64 = allocation.flat_map(|profile| &profile.samples).map(|s| s.count).sum();
        let expected = rounds.iter().map(|&(begin, end, bytes)| {
            let overlap = end.min(window.end_ns).saturating_sub(begin.max(window.begin_ns));
            bytes * overlap as f64 / (end - begin) as f64
        });
        let off = stored as f64 / expected.sum::<f64>() - 1.0;
        assert!(off.abs() <= 0.06, "window of {}: {stored} bytes, {off:+.3}", window.begin_ns);
        compared += 1;
    }
    assert!(compared >= 1, "{compared}");
}

/// With a higher limit, everything is collected again, and the recorded allocation is that of the
/// load.
#[test]
#[ignore = "long: make test-all"]
fn raised_cpu_limit_resumes_full_collection() {
    run_alone();
    let daemon = TestDaemon::new();
    let config = daemon.dir.path().join("own.toml");
    fs::write(&config, "[take]\nmax-cpu = 0.01\n").unwrap();
    let mut load = Load::start_program(named("temurin-17"), "-XX:+UseSerialGC", "AllocLoad");
    let mut other = Load::start(named("temurin-21"), "-XX:+UseSerialGC");
    let tool =
        start_with_tiny_cpu_limit(&daemon, &mut other, &["--config", config.to_str().unwrap()]);
    fs::write(&config, "[take]\nmax-cpu = 400.0\n").unwrap();
    tool.signal(Signal::HUP);
    let metrics = wait_for_step(&daemon, 1.0);
    assert_eq!(metric(&metrics, "jvmprobed_collected{what=\"cpu\"}"), 1.0);
    let metrics = wait_for_step(&daemon, 0.0);
    assert_eq!(metric(&metrics, "jvmprobed_collected{what=\"alloc\"}"), 1.0);
    // Gives the daemon time to attach its probes again.
    thread::sleep(Duration::from_secs(5));
    assert_each_window_has_its_allocation(&daemon, &mut load);
    let name =
        format!("jvmprobe_allocated_bytes_total{{jvm=\"AllocLoad\",pid=\"{}\"}}", load.pid());
    let before = metric(&daemon.get("/metrics"), &name);
    let truth = allocated::parse(&load.ask("go 6 200 2"));
    after_windows(&daemon.listen, 2);
    let off = (metric(&daemon.get("/metrics"), &name) - before) / truth.total as f64 - 1.0;
    assert!(off.abs() <= 0.05, "allocated: {off}");
    let output = tool.interrupt();
    assert_eq!(output.stderr.matches("collecting more from now on").count(), 2, "{output:?}");
    assert!(!output.stderr.contains("stopped collecting"), "{output:?}");
    other.kill();
    load.quit();
}

/// Each push target that does not exist or does not accept profiles is reported, and everything
/// else continues.
#[test]
fn each_failing_push_target_is_logged() {
    run_beside_others();
    let daemon = TestDaemon::new();
    let mut load = Load::start(named("temurin-21"), "-XX:+UseSerialGC");
    // No server listens on the first port. The daemon's own port speaks HTTP, but accepts no
    // profiles.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let targets = [
        format!("otlp=http://{closed}/"),
        format!("otlp=grpc://{}/", daemon.listen),
        format!("pyroscope=http://{}/", daemon.listen),
    ];
    let push: Vec<_> = targets.iter().flat_map(|to| ["--push", to]).collect();
    let tool = daemon.start(&push);
    load.go(15.0);
    let metrics = until_windows(&daemon.listen, 2.0);
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    for to in &targets {
        // There is a message for each different error: profiles and metrics may get different answers, and a broken
        // connection causes one error in the request that it interrupts and another one in the next request.
        let told: Vec<_> = output.stderr.lines().filter(|line| line.contains(&**to)).collect();
        assert!((1..=3).contains(&told.len()), "{to}: {output:?}");
        assert!(told[0].ends_with("; retrying, new data is queued"), "{told:?}");
        let later = format!("jvmprobed_push_requests_total{{target=\"{to}\",outcome=\"later\"}}");
        assert!(metric(&metrics, &later) > 0.0, "{metrics}");
    }
    assert!(output.stderr.contains("onnection refused"), "{output:?}");
    assert!(daemon.show(&["--jvm", "GcLoad"]).status.success());
    load.kill();
}

#[test]
fn startup_errors_are_reported_in_one_line() {
    run_beside_others();
    let daemon = TestDaemon::new();
    let store = daemon.store();
    let other = daemon.dir.path().join("other").display().to_string();
    let tool = daemon.start(&["--no-alloc"]);
    assert_refused(&run("jvmprobed", &daemon.args(&store, &[])), 1, &["another", &store]);
    assert_refused(&run("jvmprobed", &daemon.args(&other, &[])), 1, &["in use", &daemon.listen]);
    let wrong = daemon.dir.path().join("wrong.toml");
    fs::write(&wrong, "[take]\nfrequencies = 5\n").unwrap();
    let wrong = wrong.to_str().unwrap();
    let refused = run("jvmprobed", &["--config", wrong, "--dir", &other]);
    assert_refused(&refused, 1, &["line 2", "frequencies"]);
    let refused = run("jvmprobed", &daemon.args(&other, &["--push", "otlp=ftp://127.0.0.1/"]));
    assert_refused(&refused, 2, &["ftp"]);
    let refused = run("jvmprobed", &["--config", "/dev/null", "--listen", "192.0.2.1:9464"]);
    assert_refused(&refused, 1, &["192.0.2.1:9464", "not an address of this host"]);
    // The first daemon still runs and reloads its configuration.
    tool.signal(Signal::HUP);
    thread::sleep(Duration::from_millis(500));
    let output = tool.interrupt();
    assert!(
        output.status.success() && output.stderr.contains("reloaded the configuration"),
        "{output:?}"
    );
}

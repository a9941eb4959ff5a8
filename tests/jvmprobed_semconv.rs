//! Metrics by OpenTelemetry's semantic conventions, compared with the management beans of the JVMs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    fs,
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    load::{Load, numbers},
    run_beside_others,
    runtimes::{Runtime, named, of_unstable},
    scrape,
    tool::{Tool, binary},
};
use rustix::process::Signal;
use serde_json::Value;

const WINDOW: Duration = Duration::from_secs(5);
/// Maximum difference of the duration of a collection, in seconds, on a machine that is busy with other tests.
const MAX_DIFFERENCE: f64 = 0.02;
/// JVMs of the test: each kind of collector, and most JDKs.
const JVMS: [(&str, &str); 7] = [
    ("zulu-8", "-XX:+UseParallelGC"),
    ("temurin-11", "-XX:+UseSerialGC"),
    ("temurin-17", "-XX:+UseG1GC"),
    ("temurin-17", "-XX:+UseShenandoahGC"),
    ("temurin-21", "-XX:+UseG1GC"),
    ("temurin-21", "-XX:+UseZGC"),
    ("temurin-25", "-XX:+UseZGC"),
];

/// A jvmprobed that traces these processes.
struct Daemon {
    tool: Tool,
    listen: String,
    _folder: tempfile::TempDir,
}

impl Daemon {
    fn start(loads: &[Load]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let pids: Vec<_> = loads.iter().map(|load| load.pid().to_string()).collect();
        let config = folder.path().join("config");
        let pids = pids.join("|");
        fs::write(
            &config,
            format!(
                "[[rule]]\naction = \"select\"\nwhen = {{ \"process.pid\" = \"^({pids})$\" }}\n"
            ),
        )
        .unwrap();
        let store = folder.path().join("store").display().to_string();
        let config = config.display().to_string();
        let args = ["--config", &config, "--window", "5s", "--listen", &listen, "--dir", &store];
        let tool = Tool::start("jvmprobed", &args);
        Self { tool, listen, _folder: folder }
    }

    fn metrics(&self) -> String {
        scrape::get(&self.listen)
    }
}

fn label(name: &str, value: &str) -> String {
    format!("{name}=\"{value}\"")
}

/// Returns the names that are compared together, with all causes. A pause of generational ZGC's old generation counts as
/// one of a minor collection if such a collection runs at that time, which jvmprobed does not know.
fn names(name: &str) -> Vec<&str> {
    const PAUSES: [&str; 2] = ["ZGC Major Pauses", "ZGC Minor Pauses"];
    if PAUSES.contains(&name) { PAUSES.to_vec() } else { vec![name] }
}

/// Number and seconds of the collections of a JVM by name, action and cause.
type Collections = BTreeMap<[String; 3], (f64, f64)>;

/// Returns the collections of a JVM, as its management beans report them.
fn reported_collections(load: &mut Load) -> Collections {
    let answer: Value = serde_json::from_str(&load.ask("collections")["done ".len()..]).unwrap();
    let mut collections = Collections::new();
    for (key, sums) in answer.as_object().unwrap() {
        let mut key: Vec<_> = key.splitn(3, '/').map(str::to_owned).collect();
        if names(&key[0]).len() > 1 {
            key[0] = names(&key[0])[0].to_owned();
            key[2].clear();
        }
        // jvmprobed cannot tell a cycle of the old generation from one of the young generation.
        if key[1] == "end of Old GC cycle" {
            key[1] = "end of Young GC cycle".to_owned();
        }
        let (count, seconds) = collections.entry(key.try_into().unwrap()).or_default();
        *count += sums[0].as_f64().unwrap();
        *seconds += sums[1].as_f64().unwrap() / 1000.0;
    }
    collections
}

/// Returns the collections of a JVM in the metrics, for messages.
fn of_jvm(metrics: &str, pid: &str) -> String {
    let lines =
        metrics.lines().filter(|line| line.contains(pid) && line.contains("gc_duration_seconds_"));
    let lines: Vec<_> = lines.filter(|line| !line.contains("_bucket")).collect();
    lines.join("\n")
}

/// Compares the collections since the JVM and the daemon reported the first ones.
fn check_collections(
    context: &str,
    (first_metrics, metrics): (&str, &str),
    (first, load): (&Collections, &mut Load),
) {
    let pid = label("pid", &load.pid().to_string());
    let mut reported = reported_collections(load);
    for (key, (count, seconds)) in first {
        let sums = reported.get_mut(key).unwrap();
        *sums = (sums.0 - count, sums.1 - seconds);
    }
    assert!(!reported.is_empty(), "{context}");
    let grown = |metric: &str, labels: &[&str]| {
        scrape::sum(metrics, metric, labels) - scrape::sum(first_metrics, metric, labels)
    };
    for ([name, action, cause], (count, seconds)) in &reported {
        let found = |suffix| {
            let metric = format!("jvm_gc_duration_seconds_{suffix}");
            let sum = |name: &str| {
                let cause = label("jvm_gc_cause", cause).replace("\"\"", "");
                let labels =
                    [&*pid, &label("jvm_gc_name", name), &label("jvm_gc_action", action), &cause];
                grown(&metric, &labels)
            };
            names(name).into_iter().map(sum).sum::<f64>()
        };
        let all = of_jvm(metrics, &pid);
        assert_eq!(
            found("count"),
            *count,
            "{context} {name}, {action}, {cause}\n{reported:?}\n{all}"
        );
        // The beans report whole milliseconds, and the VM thread may wait for a CPU between the two measurements.
        // Parallel runs a young collection in the stop of a full one; only the sum of both durations is known.
        let difference = (found("sum") - seconds).abs();
        let is_known = difference <= MAX_DIFFERENCE * count || context.contains("Parallel");
        assert!(is_known, "{context} {name}, {action}, {cause}: {difference}");
    }
    let seconds: f64 = reported.values().map(|(_, seconds)| seconds).sum();
    let difference = grown("jvm_gc_duration_seconds_sum", &[&pid]) - seconds;
    let all: f64 = reported.values().map(|(count, _)| count).sum();
    assert_eq!(grown("jvm_gc_duration_seconds_count", &[&pid]), all, "{context}");
    assert!(difference.abs() <= MAX_DIFFERENCE * all, "{context}: {difference}");
}

fn check_values(context: &str, metrics: &str, load: &mut Load) {
    let pid = label("pid", &load.pid().to_string());
    let sum =
        |name: &str, labels: &[&str]| scrape::sum(metrics, name, &[&[&*pid], labels].concat());
    let near = |name: &str, labels: &[&str], truth: f64, unit: f64| {
        let value = sum(name, labels);
        let limit = unit.max(truth * 0.01);
        assert!(
            (value - truth).abs() <= limit,
            "{context} {name} {labels:?}: {value}, not {truth}"
        );
    };
    let pools: Vec<Value> = serde_json::from_str(&load.ask("pools")["done ".len()..]).unwrap();
    for pool in &pools {
        let name = label("jvm_memory_pool_name", pool["name"].as_str().unwrap());
        let kind = if pool["type"] == "HEAP" { "heap" } else { "non_heap" };
        let labels = [&*name, &label("jvm_memory_type", kind)];
        // The JVM allocates for each answer, in ZGC's case one more page of 2 MB.
        for (metric, key, unit) in [
            ("used", "used", 4_500_000.0),
            ("committed", "committed", 4_500_000.0),
            ("limit", "max", 1.0),
            ("init", "init", 1.0),
            ("used_after_last_gc", "after", 1.0),
        ] {
            let truth = pool[key].as_f64().unwrap();
            if truth >= 0.0 {
                near(&format!("jvm_memory_{metric}_bytes"), &labels, truth, unit);
            }
        }
    }
    let answer = load.ask("threads");
    for text in answer["done ".len()..].trim().split(',').filter(|text| !text.is_empty()) {
        let fields: Vec<_> = text.split(' ').collect();
        let labels =
            [&*label("jvm_thread_daemon", fields[0]), &label("jvm_thread_state", fields[1])];
        near("jvm_thread_count", &labels, fields[2].parse().unwrap(), 1.0);
    }
    let counts = numbers(&load.ask("counts"));
    let (loaded, unloaded) = (counts["loaded"] as f64, counts["unloaded"] as f64);
    near("jvm_class_loaded_total", &[], loaded, 1.0);
    near("jvm_class_unloaded_total", &[], unloaded, 1.0);
    near("jvm_class_count", &[], loaded - unloaded, 1.0);
    near("jvm_cpu_count", &[], counts["processors"] as f64, 0.0);
    let process = format!("/proc/{}", load.pid());
    let descriptors = fs::read_dir(format!("{process}/fd")).unwrap().count();
    near("jvm_file_descriptor_count", &[], descriptors as f64, 1.0);
    let limits = fs::read_to_string(format!("{process}/limits")).unwrap();
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let limit = limit.split_whitespace().next().unwrap().parse().unwrap();
    near("jvm_file_descriptor_limit", &[], limit, 0.0);
    let cpu = sum("jvm_cpu_time_seconds_total", &[]);
    assert_eq!(cpu, sum("jvmprobe_cpu_seconds_total", &[]), "{context}");
    let has =
        |name: &str| metrics.lines().any(|line| line.starts_with(name) && line.contains(&pid));
    for name in ["jvm_cpu_recent_utilization_ratio{", "jvm_system_cpu_utilization_ratio{"] {
        assert!(has(name), "{context}: no {name}");
    }
    if !context.starts_with("zulu-8") {
        near("jvm_buffer_count", &[&label("jvm_buffer_pool_name", "direct")], 2.0, 0.0);
        near(
            "jvm_buffer_memory_used_bytes",
            &[&label("jvm_buffer_pool_name", "direct")],
            3_070_000.0,
            0.0,
        );
    }
    let share = sum("jvm_cpu_recent_utilization_ratio", &[]);
    assert!((0.0..=1.0).contains(&share) && cpu > 0.0, "{context}: {share}");
    assert!(sum("jvm_system_cpu_utilization_ratio", &[]) <= 1.0, "{context}");
    let load_1m = fs::read_to_string("/proc/loadavg").unwrap();
    let load_1m: f64 = load_1m.split(' ').next().unwrap().parse().unwrap();
    // The load of this machine changes slowly.
    near("jvm_system_cpu_load_1m", &[], load_1m, 3.0);
}

/// Allocates garbage in parts, because jvmprobed records at most a hundred stops per second of a JVM one by one.
fn churn(loads: &mut [Load], parts: usize) {
    for _ in 0..parts {
        for load in &mut *loads {
            load.ask("churn 5000");
        }
        thread::sleep(Duration::from_millis(800));
    }
    for load in loads {
        load.ask("collect");
    }
}

/// Compares the metrics of JVMs that run at the same time.
fn check(jvms: &[(&'static Runtime, String)]) {
    run_beside_others();
    binary("jvmprobed");
    let start =
        |(runtime, flags): &(&Runtime, String)| Load::start_program(runtime, flags, "HoldLoad");
    let mut loads: Vec<_> = jvms.iter().map(start).collect();
    for load in &mut loads {
        load.ask("observe");
    }
    let daemon = Daemon::start(&loads);
    // Values of a JVM may be reported before its pauses are traced.
    let is_traced = |metrics: &str, load: &Load| {
        let pid = label("pid", &load.pid().to_string());
        ["jvm_memory_used_bytes", "jvmprobe_stopped_seconds_total"]
            .iter()
            .all(|metric| scrape::sum(metrics, metric, &[&pid]) > 0.0)
    };
    let end = Instant::now() + Duration::from_secs(120);
    while !loads.iter().all(|load| is_traced(&daemon.metrics(), load)) {
        assert!(Instant::now() < end, "{}", daemon.metrics());
        for load in &mut loads {
            load.ask("collect");
        }
        thread::sleep(WINDOW);
    }
    // These collections are in the metrics when their window has ended.
    let first_metrics = scrape::after_windows(&daemon.listen, 2);
    let first: Vec<_> = loads.iter_mut().map(reported_collections).collect();
    for load in &mut loads {
        load.ask("start");
    }
    churn(&mut loads, 8);
    churn(&mut loads, 4);
    for load in &mut loads {
        // The JVM loads the classes for its answers now, so that it does not have to after the metrics were read.
        for command in ["collections", "pools", "threads", "counts"] {
            load.ask(command);
        }
    }
    // All values are those of a window that began after the last command.
    let metrics = scrape::after_windows(&daemon.listen, 2);
    for ((load, (runtime, flags)), first) in loads.iter_mut().zip(jvms).zip(&first) {
        let context = format!("{} {flags}", runtime.name);
        check_collections(&context, (&first_metrics, &metrics), (first, load));
        check_values(&context, &metrics, load);
    }
    daemon.tool.signal(Signal::TERM);
    assert!(daemon.tool.wait().status.success());
    loads.into_iter().for_each(|load| drop(load.quit()));
}

#[test]
fn metrics_of_the_conventions_match_the_management_beans() {
    check(&JVMS.map(|(name, flags)| (named(name), flags.to_owned())));
}

#[test]
#[ignore = "long: make test-all"]
fn metrics_of_the_conventions_match_the_management_beans_of_each_jdk() {
    let fixed = ["zulu-8", "temurin-11", "temurin-17", "temurin-21", "temurin-25"].map(named);
    let all =
        fixed.into_iter().chain(["sid-26", "sid-27", "sid-28"].into_iter().filter_map(of_unstable));
    for runtime in all {
        let jvms: Vec<_> =
            runtime.collectors().into_iter().map(|flags| (runtime, flags.to_owned())).collect();
        check(&jvms);
    }
}

//! Files of JVMs that jvmprobed opens, according to strace. It opens each file of a traced JVM once, whatever
//! number of tracers runs, and hardly any files of a JVM that the rules drop.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeMap, fs, path::Path, process::Command, thread, time::Duration};

use jvmprobe_tests::{
    load::Load,
    run_beside_others,
    runtimes::named,
    tool::{Tool, binary},
};
use rustix::process::{Pid, Signal, kill_process};

/// Time within which the daemon reads the JVMs and attaches all tracers.
const RUN_TIME: Duration = Duration::from_secs(12);

/// Returns how often each file below /proc/PID was opened, by its path relative to that directory.
fn opens(trace: &str, pid: u32) -> BTreeMap<String, u32> {
    let directory = format!("\"/proc/{pid}/");
    let mut opens = BTreeMap::new();
    for line in trace.lines() {
        if let Some((_, path)) = line.split_once(&directory) {
            let path = path.split('"').next().unwrap();
            *opens.entry(path.to_owned()).or_default() += 1;
        }
    }
    opens
}

/// Returns the PID of the daemon below strace.
fn child(pid: u32) -> Pid {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    Pid::from_raw(children.trim().parse().unwrap()).unwrap()
}

#[test]
fn each_jvm_is_read_once_and_a_dropped_one_is_not_read() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let rule = "[[rule]]\naction = \"drop\"\nwhen = { \"service.name\" = \"^left-alone$\" }\n";
    fs::write(path("rules.toml"), rule).unwrap();
    let (traced, dropped) = (named("temurin-17"), named("temurin-21"));
    let mut command = dropped.command();
    command.env("OTEL_SERVICE_NAME", "left-alone");
    let (mut dropped, mut traced) = (Load::spawn(command), Load::start(traced, ""));
    dropped.go(RUN_TIME.as_secs_f64());
    traced.go(RUN_TIME.as_secs_f64());

    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-e", "trace=open,openat,openat2", "-o", &path("trace")]);
    command.arg(binary("jvmprobed")).args(["--config", &path("rules.toml")]);
    command.args(["--listen", "none", "--dir", &path("store")]);
    let tool = Tool::spawn(command);
    thread::sleep(RUN_TIME);
    kill_process(child(tool.pid()), Signal::INT).unwrap();
    let output = tool.wait();
    assert!(output.status.success(), "{output:?}");

    let trace = fs::read_to_string(Path::new(&path("trace"))).unwrap();
    let of_traced = opens(&trace, traced.pid());
    for file in ["cmdline", "environ"] {
        assert_eq!(of_traced.get(file), Some(&1), "{file}: {of_traced:#?}");
    }
    // Opened by the registry, and perhaps by the sampler to name code.
    assert!((1..=2).contains(&of_traced["mem"]), "{of_traced:#?}");
    let mapped = of_traced.iter().filter(|(path, _)| path.starts_with("map_files/"));
    assert!(mapped.clone().count() > 1, "{of_traced:#?}");
    assert!(mapped.clone().all(|(_, &times)| times == 1), "{of_traced:#?}");

    let of_dropped = opens(&trace, dropped.pid());
    assert_eq!(of_dropped.get("environ"), Some(&1), "{of_dropped:#?}");
    let forbidden = ["mem", "map_files/", "root"];
    let is_forbidden = |path: &String| forbidden.iter().any(|prefix| path.starts_with(prefix));
    assert!(!of_dropped.keys().any(is_forbidden), "{of_dropped:#?}");
}

//! javaobjnew under failure: a clear one-line message, the right exit status, nothing left behind.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use jvmprobe_tests::{
    child_process::{loader, sleeper},
    container::Container,
    load::Load,
    run_beside_others,
    runtimes::{Runtime, named},
    tool::{self, Tool, assert_refused, binary},
};

const G1: &str = "-XX:+UseG1GC";

fn load(runtime: &str, flags: &str) -> Load {
    run_beside_others();
    Load::start_program(named(runtime), flags, "AllocLoad")
}

fn run(load: &Load, args: &[&str]) -> tool::Output {
    tool::run("javaobjnew", &[&["-p", &load.pid().to_string()], args].concat())
}

#[test]
fn usage_errors_exit_with_2() {
    for args in [
        &[][..],
        &["-p", "x"],
        &["-p", "1", "-d", "0"],
        &["-a", "-p", "1"],
        &["-p", "1", "-C", "1", "-S", "1"],
        &["-p", "1", "--large", "1x"],
    ] {
        assert_refused(&tool::run("javaobjnew", args), 2, &["error: ", "--help"]);
    }
}

#[test]
fn missing_process_is_rejected() {
    run_beside_others();
    assert_refused(&tool::run("javaobjnew", &["-p", "4194305"]), 1, &["no process 4194305"]);
}

#[test]
fn process_that_is_no_jvm_is_rejected() {
    run_beside_others();
    let other = sleeper();
    let pid = other.pid().to_string();
    assert_refused(&tool::run("javaobjnew", &["-p", &pid]), 1, &[&pid, "sleep", "not a JVM"]);
}

#[test]
fn exact_mode_names_the_missing_jvm_flag() {
    run_beside_others();
    assert_refused(
        &run(&load("temurin-17", G1), &["--exact"]),
        1,
        &["-XX:+DTraceAllocProbes (or -XX:+ExtendedDTraceProbes)", "omit --exact"],
    );
    let output = run(&load("temurin-25", G1), &["--exact"]);
    assert_refused(&output, 1, &["-XX:+DTraceAllocProbes", "JDK 25"]);
    assert!(!output.stderr.contains("Extended"), "{}", output.stderr);
}

#[test]
fn exact_mode_without_probes_suggests_the_default() {
    run_beside_others();
    let output = run(&load("musl-17", "-XX:+UseSerialGC"), &["--exact"]);
    assert_refused(&output, 1, &["no USDT probe hotspot:object__alloc", "omit --exact"]);
}

/// Returns a copy of a runtime whose libjvm.so has no symbol table.
fn stripped(from: &Runtime, to: &Path) -> Runtime {
    let home = from.java.parent().and_then(Path::parent).unwrap();
    let copied = Command::new("cp").arg("-rL").arg(home).arg(to).status().unwrap();
    assert!(copied.success());
    let runtime = Runtime { java: to.join("bin/java"), ..from.clone() };
    let strip = Command::new("strip").arg(runtime.libjvm()).status().expect("strip (binutils)");
    assert!(strip.success());
    runtime
}

#[test]
fn stripped_build_error_suggests_exact_mode() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let runtime = stripped(named("temurin-21"), &dir.path().join("jre"));
    let plain = Load::start_program(&runtime, G1, "AllocLoad");
    let words = ["AllocTracer", "stripped", "-XX:+DTraceAllocProbes", "--exact"];
    assert_refused(&run(&plain, &[]), 1, &words);
    drop(plain);
    // With `--exact`, as the message suggests, the stripped build is traced.
    let flags = "-XX:+UseG1GC -XX:+DTraceAllocProbes";
    let mut exact = Load::start_program(&runtime, flags, "AllocLoad");
    let pid = exact.pid().to_string();
    let tool = Tool::start("javaobjnew", &["-p", &pid, "-j", "--exact"]);
    exact.ask("go 0.5 200 2");
    let records = tool.interrupt().json();
    assert!(records.iter().any(|r| r["class"] == "AllocLoad$Node"), "{records:?}");
}

#[test]
fn stripped_build_without_probes_is_rejected() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let runtime = stripped(named("musl-17"), &dir.path().join("jre"));
    let load = Load::start_program(&runtime, "-XX:+UseSerialGC", "AllocLoad");
    let output = run(&load, &[]);
    assert_refused(&output, 1, &["AllocTracer", "stripped", "a build with its symbol table"]);
    assert!(!output.stderr.contains("--exact"), "{}", output.stderr);
}

#[test]
fn missing_capabilities_are_named() {
    run_beside_others();
    let load = load("temurin-17", G1);
    let without = |caps: &str, args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args([&format!("--bounding-set={caps}"), &format!("--inh-caps={caps}")]);
        command.arg(binary("javaobjnew")).args(["-p", &load.pid().to_string()]).args(args);
        tool::run_command(command)
    };
    assert_refused(&without("-all", &[]), 1, &["CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE"]);
    let some = "-all,+bpf,+perfmon,+sys_ptrace";
    assert_refused(&without(some, &[]), 1, &["CAP_SYS_ADMIN"]);
}

#[test]
fn trace_ends_when_a_busy_target_is_killed() {
    run_beside_others();
    let mut load = load("temurin-17", G1);
    let tool = Tool::start("javaobjnew", &["-p", &load.pid().to_string(), "-j"]);
    load.go(5.0);
    std::thread::sleep(Duration::from_millis(1500));
    load.kill();
    let output = tool.wait();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.contains("has ended"), "{}", output.stderr);
    let records = output.json();
    assert_eq!(records.last().unwrap()["type"], "summary");
    assert!(records.iter().any(|r| r["class"] == "AllocLoad$Wide"), "{records:?}");
}

#[test]
fn closed_stdout_ends_the_trace_quietly() {
    run_beside_others();
    let load = load("temurin-17", G1);
    let script =
        format!("timeout 20 {} -p {} 1 | true", binary("javaobjnew").display(), load.pid());
    let output =
        Command::new("bash").args(["-c", &format!("set -o pipefail; {script}")]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1, "only Tracing...");
}

#[test]
fn full_disk_is_reported() {
    run_beside_others();
    let mut load = load("temurin-17", G1);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let child = Command::new(binary("javaobjnew"))
        .args(["-p", &load.pid().to_string(), "-d", "1"])
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    load.ask("go 1 200 2");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("No space left"), "{said}");
}

#[test]
fn idle_jvm_has_an_empty_table() {
    run_beside_others();
    let load = load("temurin-17", G1);
    let tool = Tool::start("javaobjnew", &["-p", &load.pid().to_string(), "0.3", "2"]);
    let output = tool.wait();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout.matches("PID ").count(), 3, "{}", output.stdout);
    assert!(!output.stdout.contains("NaN"), "{}", output.stdout);
}

#[test]
fn process_with_libjvm_but_no_jvm_is_rejected() {
    run_beside_others();
    let other = loader(&named("temurin-17").libjvm());
    let pid = other.pid().to_string();
    let refused = tool::run("javaobjnew", &["-p", &pid]);
    assert_refused(&refused, 1, &[&pid, "python", "not a JVM", "libjvm.so", "list JVMs"]);
}

#[test]
fn stopped_jvm_is_reported_as_stopped() {
    run_beside_others();
    let load = load("temurin-17", G1);
    let pid = load.pid().to_string();
    let signal = |name: &str| {
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    };
    signal("-STOP");
    let output = tool::run("javaobjnew", &["-p", &pid, "-d", "1"]);
    signal("-CONT");
    assert!(output.status.success(), "{output:?}");
    for words in ["is stopped (SIGSTOP)", &format!("kill -CONT {pid}"), "was stopped"] {
        assert_eq!(output.stderr.matches(words).count(), 1, "{words}: {}", output.stderr);
    }
}

#[test]
fn trace_ends_on_time_if_target_is_stopped() {
    run_beside_others();
    let mut load = load("temurin-17", G1);
    let tool = Tool::start("javaobjnew", &["-p", &load.pid().to_string(), "-j", "-d", "2"]);
    load.go(1.0);
    std::thread::sleep(Duration::from_millis(500));
    let signal = |name: &str| {
        let status = Command::new("kill").args([name, &load.pid().to_string()]).status().unwrap();
        assert!(status.success());
    };
    signal("-STOP");
    let output = tool.wait();
    signal("-CONT");
    assert!(output.status.success(), "{output:?}");
    assert!(output.json().iter().any(|r| r["type"] == "class"), "{output:?}");
    load.done();
}

/// On the host, a different build of libjvm.so is at the same path.
#[test]
fn a_jvm_in_a_container_is_traced_from_outside() {
    run_beside_others();
    let mut container = Container::start(named("temurin-21"), &[G1], "AllocLoad");
    let pid = container.pid().to_string();
    let tool = Tool::start("javaobjnew", &["-p", &pid, "-j", "-t"]);
    container.run(0.7);
    let records = tool.interrupt().json();
    let wide = records.iter().find(|r| r["class"] == "AllocLoad$Wide").unwrap();
    assert_eq!(wide["pid"], container.pid(), "{wide}");
    assert!(wide["thread"].as_str().unwrap().starts_with("allocator-"), "{wide}");
}

#[test]
fn tracing_works_without_kernel_btf() {
    run_beside_others();
    let mut load = load("temurin-17", G1);
    let pid = load.pid().to_string();
    let tool = Tool::spawn(tool::without_btf("javaobjnew", &["-p", &pid, "-j"]));
    load.ask("go 0.7 200 2");
    let records = tool.interrupt().json();
    assert!(records.iter().any(|r| r["class"] == "long[]"), "{records:?}");
}

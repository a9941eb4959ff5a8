//! What goes wrong around a trace: with real processes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    load::Load,
    need_root,
    proc::breakpoints,
    runtimes::named,
    tool::{self, Tool, binary},
};

/// How often to attach and detach; `JVMPROBE_CYCLES=1000` for the long run.
fn cycles() -> usize {
    std::env::var("JVMPROBE_CYCLES").map_or(100, |n| n.parse().unwrap())
}

fn files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// How long the load takes, in ms: its pauses and all else.
fn turn(load: &mut Load) -> u128 {
    let begin = Instant::now();
    load.run(0.2);
    begin.elapsed().as_millis()
}

#[test]
fn a_jvm_that_is_traced_again_and_again_is_as_it_was() {
    need_root();
    binary("javagc");
    let runtime = named("temurin-17");
    // Its heap is there from the beginning: only what comes on top may grow.
    let flags = "-XX:+UseG1GC -Xms64m -XX:+AlwaysPreTouch";
    let mut load = Load::start_program(runtime, flags, "GcLoad");
    load.run(2.0);
    let pid = load.pid();
    let once = || {
        let args = ["-p", &pid.to_string(), "-d", "0.05", "-j"];
        let output = tool::run("javagc", &args);
        assert!(output.status.success(), "{output:?}");
    };
    // What is allocated the first time stays.
    once();
    let before = (files(pid), resident_kib(pid), turn(&mut load));
    (0..cycles()).for_each(|_| once());
    let after = (files(pid), resident_kib(pid), turn(&mut load));
    println!("descriptors, KiB, ms: {before:?}, {after:?}");
    assert_eq!(after.0, before.0, "descriptors");
    assert!(after.1 < before.1 + 8192, "KiB: {before:?}, {after:?}");
    assert!(after.2 < before.2 * 2 + 100, "ms: {before:?}, {after:?}");
    assert_eq!(breakpoints(pid, runtime), 0);
}

#[test]
fn two_thousand_threads_are_counted() {
    need_root();
    binary("javaobjnew");
    let flags = "-XX:+UseSerialGC -Xss256k -Xmx512m";
    let mut load = Load::start_program(named("temurin-17"), flags, "AllocLoad");
    for tool in ["javaobjnew", "javaprof", "javagc"] {
        let trace = Tool::start(tool, &["-p", &load.pid().to_string()]);
        load.ask("go 3 200 2000");
        let output = trace.interrupt();
        assert!(output.status.success(), "{tool}: {output:?}");
        assert!(output.stdout.contains(&format!("{}", load.pid())), "{tool}: {output:?}");
    }
}

/// A folder on a disk of 16 KiB, in a mount namespace of the command's own.
fn on_a_small_disk(script: &str, args: &[&str]) -> Command {
    let mount = "set -e; mount -t tmpfs -o size=16k none /mnt; ";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &format!("{mount}{script}"), "sh"]).args(args);
    command
}

#[test]
fn a_full_disk_is_told_in_one_line() {
    need_root();
    let mut load = Load::start_program(named("temurin-17"), "-XX:+UseG1GC", "GcLoad");
    load.go(60.0);
    let pid = load.pid().to_string();
    let fill = "head -c 1m /dev/zero >/mnt/zero 2>/dev/null || true; exec \"$@\"";
    for (tool, file) in
        [("javagc", "/mnt/a.json"), ("javaprof", "/mnt/a.svg"), ("javaobjnew", "/mnt/a.svg")]
    {
        let tool_path = binary(tool).display().to_string();
        let args = [tool_path.as_str(), "-p", &pid, "-d", "1", "-o", file];
        let output = tool::run_command(on_a_small_disk(fill, &args));
        assert_eq!(output.status.code(), Some(1), "{tool}: {output:?}");
        let said = output.stderr.lines().filter(|line| line.contains("No space left")).count();
        assert_eq!(said, 1, "{tool}: {output:?}");
        assert!(!output.stderr.contains("panicked"), "{tool}: {output:?}");
    }
}

/// An upgrade while a JVM runs: its libjvm.so is another file's by now, or none's.
#[test]
fn a_libjvm_that_was_replaced_or_removed_is_the_one_that_runs() {
    need_root();
    let original = named("temurin-17");
    let home = original.java.canonicalize().unwrap();
    let home = home.ancestors().nth(2).unwrap();
    for replaced in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("jre");
        let status = Command::new("cp").arg("-rL").args([home, &copy]).status();
        assert!(status.unwrap().success());
        let runtime =
            jvmprobe_tests::runtimes::Runtime { java: copy.join("bin/java"), ..original.clone() };
        let mut load = Load::start_program(&runtime, "-XX:+UseG1GC", "GcLoad");
        load.run(1.0);
        let libjvm: &Path = &copy.join("lib/server/libjvm.so");
        fs::remove_file(libjvm).unwrap();
        if replaced {
            fs::copy(named("temurin-21").libjvm(), libjvm).unwrap();
        }
        for tool in ["javagc", "javaobjnew", "javaprof"] {
            let trace = Tool::start(tool, &["-p", &load.pid().to_string()]);
            load.run(1.0);
            std::thread::sleep(Duration::from_millis(100));
            let output = trace.interrupt();
            assert!(output.status.success(), "{tool}: {output:?}");
            let word = match tool {
                "javagc" => "G1 Evacuation Pause",
                "javaobjnew" => "byte[]",
                _ => "GcLoad.",
            };
            assert!(output.stdout.contains(word), "{tool}: {output:?}");
        }
    }
}

//! Tools end quietly and never panic if the reader of their output has gone.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    process::{Command, Stdio},
};

use jvmprobe_tests::{load::Load, run_beside_others, runtimes::named, tool::binary};

const TOOLS: [&str; 6] = ["javaprof", "javagc", "javaobjnew", "javaclass", "javastack", "javawait"];

/// Runs a line of bash with the variables `$tool` and `$pid`. None of its processes may panic or
/// end by SIGABRT.
fn bash(tool: &str, pid: u32, line: &str) -> std::process::Output {
    let script = format!("set -o pipefail; tool={}; pid={pid}; {line}", binary(tool).display());
    let output = Command::new("bash").args(["-c", &script]).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("panicked"), "{tool}: {line}: {said}");
    // 128 + SIGABRT.
    assert_ne!(output.status.code(), Some(134), "{tool}: {line}: {said}");
    output
}

#[test]
fn help_and_completions_survive_closed_or_full_stdout() {
    run_beside_others();
    for tool in TOOLS {
        for option in ["--completions bash", "--help", "-h", "--version"] {
            for reader in ["true", "head -n 1", "head -c 1"] {
                bash(tool, 0, &format!("$tool {option} | {reader}"));
            }
            // stdout is closed, or is a device that is always full.
            assert!(bash(tool, 0, &format!("$tool {option} >&-")).status.success(), "{tool}");
            bash(tool, 0, &format!("$tool {option} > /dev/full"));
        }
        let full = bash(tool, 0, "$tool --completions bash > /dev/full");
        assert_eq!(full.status.code(), Some(1), "{full:?}");
        assert!(String::from_utf8_lossy(&full.stderr).contains("No space left"), "{full:?}");
    }
}

#[test]
fn exit_status_is_unaffected_by_closed_or_full_stderr() {
    run_beside_others();
    for tool in TOOLS {
        for streams in ["2>&-", "2> /dev/full", "2> >(true)", ">&- 2>&-"] {
            for (args, code) in [("-p 4194305", 1), ("-v -p 4194305", 1), ("-p x", 2)] {
                let output = bash(tool, 0, &format!("$tool {args} {streams}"));
                assert_eq!(output.status.code(), Some(code), "{tool} {args} {streams}");
            }
        }
    }
}

#[test]
fn javagc_exits_cleanly_with_closed_streams() {
    assert_clean_exit_with_closed_streams("javagc");
}

#[test]
fn javaobjnew_exits_cleanly_with_closed_streams() {
    assert_clean_exit_with_closed_streams("javaobjnew");
}

#[test]
fn javaprof_exits_cleanly_with_closed_streams() {
    assert_clean_exit_with_closed_streams("javaprof");
}

fn assert_clean_exit_with_closed_streams(tool: &str) {
    run_beside_others();
    let load = Load::start_program(named("temurin-17"), "-XX:+UseSerialGC", "AllocLoad");
    let pid = load.pid();
    for streams in
        ["| true", "| head -n 1", ">&-", "2>&-", ">&- 2>&-", "-v 2> >(true)", "-v 2>&1 | head -n 1"]
    {
        let output = bash(tool, pid, &format!("$tool -p $pid -d 0.2 {streams}"));
        assert!(output.status.success(), "{tool} {streams}: {output:?}");
    }
}

#[test]
fn maps_are_written_when_streams_are_closed() {
    run_beside_others();
    let load = Load::start_program(named("temurin-17"), "-XX:+UseSerialGC", "AllocLoad");
    let pid = load.pid();
    let map = format!("/tmp/perf-{pid}.map");
    for streams in ["| true", ">&-", "2>&-"] {
        let output = bash("javaprof", pid, &format!("$tool --write-maps -p $pid {streams}"));
        assert!(output.status.success(), "{streams}: {output:?}");
        // The map is written even if its path cannot be printed.
        fs::remove_file(&map).unwrap();
    }
}

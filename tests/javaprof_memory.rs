//! javaprof's memory is bounded, and it counts the samples whose stacks it discards.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use jvmprobe_tests::{
    folded::{self, total},
    load::Load,
    proc::cpu_seconds,
    run_beside_others,
    runtimes::named,
    tool::{Tool, binary},
};

const HERTZ: f64 = 1999.0;
const SECONDS: f64 = 5.0;

/// Returns the peak memory of a process, in KiB.
fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Profiles a load whose stacks never repeat. Returns the lines, the messages, and the tool's peak
/// memory.
fn profile(size: &str) -> (Vec<folded::Line>, String, u64) {
    let mut load = Load::start_program(named("temurin-17"), "-XX:+UseSerialGC", "WideLoad");
    load.run(1.0);
    let hertz = HERTZ.to_string();
    let args = ["-p", &load.pid().to_string(), "-F", &hertz, "-f", "--max-memory", size];
    let tool = Tool::start("javaprof", &args);
    let before = cpu_seconds(load.pid());
    load.run(SECONDS);
    let used = cpu_seconds(load.pid()) - before;
    let peak = peak(tool.pid());
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    let lines = folded::parse(&output.stdout);
    // No sample is missing.
    let ratio = total(&lines) as f64 / (used * HERTZ);
    assert!((0.7..1.3).contains(&ratio), "{ratio}\n{}", output.stderr);
    // The frames that all stacks share were neither discarded nor renamed.
    let turns = lines.iter().filter(|line| line.has("WideLoad.turn"));
    let folds: Vec<_> = lines.iter().filter(|l| l.has("[stacks beyond --max-memory]")).collect();
    let other = total(&lines) - total(turns) - total(folds.iter().copied());
    assert!(other * 5 < total(&lines), "{other} of {}", total(&lines));
    assert!(lines.iter().all(|line| line.frames[0] == "java"), "{lines:#?}");
    (lines, output.stderr, peak)
}

#[test]
fn max_memory_option_limits_stored_stacks() {
    run_beside_others();
    binary("javaprof");
    let (all, said, _) = profile("1G");
    assert!(!said.contains("--max-memory"), "{said}");
    assert!(all.iter().all(|line| !line.has("[stacks beyond --max-memory]")));
    let (few, said, peak) = profile("2M");
    assert!(said.contains("see --max-memory"), "{said}");
    let folded = few.iter().find(|line| line.has("[stacks beyond --max-memory]")).unwrap();
    let told: u64 = said
        .lines()
        .find_map(|line| line.split_once("dropped the stacks of ")?.1.split_once(" samples"))
        .map(|(count, _)| count.parse().unwrap())
        .unwrap();
    assert_eq!(folded.count, told);
    assert!(few.len() * 2 < all.len(), "{} of {}", few.len(), all.len());
    println!("{} stacks; {} in {peak} KiB", all.len(), few.len());
    // The peak includes the symbols of libjvm.so and of the kernel, because stacks are named before
    // they are discarded.
    assert!(peak < 100 << 10, "{peak} KiB");
}

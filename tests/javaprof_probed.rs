//! While javaobjnew's probes are attached, javaprof's stacks are complete, also those of samples in the kernel's
//! breakpoint handler and in the out-of-line copy of the probed instruction.
#![allow(clippy::print_stdout, reason = "figures are printed")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use jvmprobe_tests::{
    folded::{self, Line, total},
    load::Load,
    run_beside_others,
    runtimes::{self, Runtime, named},
    tool::{self, Tool, binary},
};

/// A young generation of 3 MB has small TLABs, and many of them.
const SMALL: &str = "-Xmx20m -Xmn3m -XX:+UseSerialGC";

/// Minimum share of complete stacks. A version whose walker did not recognize breakpoints reached
/// 0.86 to 0.97.
const COMPLETE: f64 = 0.995;

#[test]
fn stacks_at_probed_instructions_are_complete() {
    run_beside_others();
    binary("javaobjnew");
    check(named("temurin-17"));
    check(named("zulu-8"));
    // In each of these builds, the functions that javaobjnew probes begin with a different instruction.
    runtimes::of_unstable("sid-27").map(check);
}

/// Whether a sample was taken while a thread was at an allocation probe. Frames of other uprobes belong to the probes with
/// which javaprof observes compiled code, and to that with which javaobjnew observes the end of threads.
fn is_probed(line: &Line) -> bool {
    let is_of_probe =
        |frame: &String| frame.starts_with("AllocTracer::") || frame.contains("uprobe");
    let others = ["CompileBroker::compiler_thread_loop", "NMethodSweeper::", "Threads::remove"];
    let is_other = |frame: &String| others.iter().any(|other| frame.starts_with(other));
    !line.frames.iter().any(is_other) && line.frames.iter().any(is_of_probe)
}

/// Asserts that all stacks at probes contain the load's own method, and that nearly all are
/// complete.
fn check(runtime: &Runtime) {
    let name = &runtime.name;
    let mut load = Load::start_program(runtime, SMALL, "AllocLoad");
    let pid = load.pid().to_string();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("stacks.folded").display().to_string();
    load.ask("go 0.5 work 2");
    let probes = Tool::start("javaobjnew", &["-p", &pid]);
    let profile = Tool::start("javaprof", &["-p", &pid, "-F", "1999", "-j", "-o", &file]);
    load.ask("go 3 work 2");
    let records = profile.interrupt().json();
    tool::assert_traced("javaobjnew", &probes.interrupt());

    let summary = records.last().unwrap();
    let share = summary["complete"].as_f64().unwrap();
    let lines = folded::parse(&std::fs::read_to_string(&file).unwrap());
    // The VM thread hits the GC probes that the tools of other tests attach to the same libjvm.so.
    let is_own = |line: &&Line| is_probed(line) && !line.has("VMThread::run");
    let probed: Vec<_> = lines.iter().filter(is_own).collect();
    let at_probes = total(probed.iter().copied());
    println!(
        "{name}: {:.3} % complete, {at_probes} of {} samples at probes",
        share * 100.0,
        total(&lines)
    );
    assert!(at_probes > 50, "{name}: no samples at probes");
    // During the profile, only the load's threads allocate and, at the end, the main thread, which reports
    // the result.
    let is_lost = |line: &&&Line| !line.has("AllocLoad.allocate") && !line.has("AllocLoad.main");
    let lost: Vec<_> = probed.iter().filter(is_lost).collect();
    assert!(lost.is_empty(), "{name}: {lost:#?}");
    assert!(share >= COMPLETE, "{name}: {share} of the stacks are complete: {summary}");
}

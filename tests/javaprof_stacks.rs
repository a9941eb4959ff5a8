//! Stacks of JVMs with default flags: complete, named, and none impossible.
//!
//! The load knows its own call graph (`tests/lib/callgraph.rs`), so the tests also find stacks that
//! look complete but lack a frame in the middle.
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    callgraph::{CallGraph, Report, Walk, is_entry, is_rare},
    folded,
    load::{Load, classes},
    run_beside_others,
    runtimes::{self, Runtime},
    speedscope::{self, Sample},
    stackload::{self, Native, all_flags},
    tool::{Output, Tool, binary},
};
use rustix::process::{Pid, Signal, kill_process};

/// Duration of most profiles, in seconds.
const SECONDS: f64 = 2.5;

/// Runtimes: `make test` uses one of them for each behaviour, `make test-all` uses all.
const ALL: [&str; 7] =
    ["zulu-8", "temurin-11", "temurin-17", "debian-17", "temurin-21", "temurin-25", "musl-17"];

/// Flags for JDK 8: each collector, each compiler alone, and no compiler.
const FLAGS_FOR_JDK_8: [&str; 7] = [
    "-XX:+UseSerialGC",
    "-XX:+UseParallelGC",
    "-XX:+UseConcMarkSweepGC",
    "-XX:+UseG1GC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-TieredCompilation",
    "-Xint",
];

/// The table of calls agrees with the JVM's own stacks. Without this, the other tests prove
/// nothing.
#[test]
fn call_table_matches_jvm_stack_traces() {
    check_call_table(&["temurin-25"]);
}

#[test]
#[ignore = "long: make test-all"]
fn call_table_matches_jvm_stack_traces_on_all_jdks() {
    check_call_table(&ALL);
}

fn check_call_table(names: &[&str]) {
    run_beside_others();
    for name in names {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let file = dir.path().join("self.folded");
        let flags = format!("-Dstackload.self={}", file.display());
        let runtime = runtimes::named(name);
        let mut load = stackload::start(runtime, &flags, Native::WithoutFramePointers);
        load.run(3.0);
        let text = fs::read_to_string(&file).expect("written");
        let report = CallGraph::new(Walk::Jvm).check(&text);
        println!("{name}: {report}");
        assert!(report.samples > 50 && report.wrong == 0, "{name}: {}", report.offenders());
    }
}

/// If the JVM keeps frame pointers, a walk by frame pointers lacks some frames that other walks
/// have, but it shows no calls that the program does not make.
#[test]
fn frame_pointer_stacks_are_possible() {
    check_frame_pointer_walk(&["temurin-17"]);
}

#[test]
#[ignore = "long: make test-all"]
fn frame_pointer_stacks_are_possible_on_all_jdks() {
    check_frame_pointer_walk(&ALL);
}

fn check_frame_pointer_walk(names: &[&str]) {
    run_beside_others();
    for name in names {
        let flags = "-XX:+PreserveFramePointer";
        let report =
            profile(runtimes::named(name), flags, Native::WithFramePointers, Walk::FramePointers);
        println!("{name}: {report}");
        assert!(report.is_possible(), "{name}: {report}{}", report.offenders());
    }
}

#[test]
#[ignore = "long: make test-all"]
fn stacks_are_complete_on_jdk_11() {
    run_beside_others();
    check(runtimes::named("temurin-11"), "");
}

#[test]
fn stacks_are_complete_on_jdk_17() {
    run_beside_others();
    check(runtimes::named("temurin-17"), "");
}

#[test]
#[ignore = "long: make test-all"]
fn stacks_are_complete_on_debian_jdk_17() {
    run_beside_others();
    check(runtimes::named("debian-17"), "");
}

#[test]
#[ignore = "long: make test-all"]
fn stacks_are_complete_on_jdk_21() {
    run_beside_others();
    check(runtimes::named("temurin-21"), "");
}

#[test]
fn stacks_are_complete_on_jdk_25() {
    run_beside_others();
    check(runtimes::named("temurin-25"), "");
}

#[test]
#[ignore = "long: make test-all"]
fn stacks_are_complete_on_jdk_26_and_later() {
    run_beside_others();
    for runtime in ["sid-26", "sid-27", "sid-28"].into_iter().filter_map(runtimes::of_unstable) {
        check(runtime, "-XX:+UseG1GC");
    }
}

#[test]
fn nearly_all_stacks_are_complete_on_musl() {
    run_beside_others();
    let runtime = runtimes::named("musl-17");
    let report = profile(runtime, "", Native::WithoutFramePointers, Walk::Complete);
    report.assert_without_tables(&runtime.name);
}

#[test]
fn stacks_are_complete_in_c1_code() {
    run_beside_others();
    check(runtimes::named("temurin-11"), "-XX:TieredStopAtLevel=1");
}

#[test]
#[ignore = "long: make test-all"]
fn stacks_are_complete_in_c2_code() {
    run_beside_others();
    check(runtimes::named("temurin-11"), "-XX:-TieredCompilation");
}

#[test]
#[ignore = "long: make test-all"]
fn stacks_are_complete_with_one_code_heap() {
    run_beside_others();
    check(runtimes::named("temurin-17"), "-XX:-SegmentedCodeCache -XX:+UseSerialGC");
}

#[test]
#[ignore = "long: make test-all"]
fn stacks_are_complete_with_a_small_code_cache() {
    run_beside_others();
    check(runtimes::named("temurin-17"), "-XX:ReservedCodeCacheSize=4m -XX:+UseParallelGC");
}

#[test]
fn stacks_are_complete_with_generational_zgc() {
    run_beside_others();
    check(runtimes::named("temurin-21"), "-XX:+UseZGC -XX:+ZGenerational");
}

#[test]
#[ignore = "long: make test-all"]
fn stacks_are_complete_with_zgc() {
    run_beside_others();
    check(runtimes::named("temurin-25"), "-XX:+UseZGC");
}

#[test]
#[ignore = "long: make test-all"]
fn stacks_are_complete_with_shenandoah() {
    run_beside_others();
    check(runtimes::named("temurin-17"), "-XX:+UseShenandoahGC");
}

#[test]
#[ignore = "long: make test-all"]
fn stacks_are_complete_with_debug_non_safepoints() {
    run_beside_others();
    check(runtimes::named("temurin-25"), EXACT);
}

#[test]
fn stacks_are_complete_in_interpreted_code() {
    run_beside_others();
    check(runtimes::named("temurin-21"), "-Xint");
}

#[test]
#[ignore = "long: make test-all"]
fn stacks_are_complete_with_preserved_frame_pointers() {
    run_beside_others();
    check(runtimes::named("temurin-25"), "-XX:+PreserveFramePointer");
}

/// The code cache of JDK 8 has a layout of its own.
#[test]
fn stacks_are_complete_on_jdk_8() {
    run_beside_others();
    check(runtimes::named("zulu-8"), "");
}

#[test]
#[ignore = "long: make test-all"]
fn jdk_8_stacks_are_complete_with_each_gc_and_compiler() {
    run_beside_others();
    let zulu = runtimes::named("zulu-8");
    for flags in FLAGS_FOR_JDK_8 {
        check(zulu, flags);
    }
}

/// In JDK 8, code compiled by C1 saves all registers below its frame before it calls the sine
/// function.
#[test]
#[ignore = "long: make test-all"]
fn jdk_8_stacks_through_sine_calls_are_complete() {
    run_beside_others();
    let flags = "-XX:TieredStopAtLevel=1 -Dstackload.parts=library";
    let walk = Walk::Complete;
    let report = profile(runtimes::named("zulu-8"), flags, Native::WithoutFramePointers, walk);
    assert!(report.methods.contains("Numbers.waves"), "{report}");
    let offenders = report.offenders();
    assert!(!offenders.contains("Numbers.waves"), "{report}{offenders}");
}

#[test]
#[ignore = "long: make test-all"]
fn stacks_are_complete_on_jdk_8_without_symbols() {
    run_beside_others();
    let Some(runtime) = runtimes::of_unstable("sid-8") else { return };
    for flags in ["", "-XX:+UseG1GC", "-Xint"] {
        let walk = Walk::WithoutSymbols;
        let report = profile(runtime, flags, Native::WithoutFramePointers, walk);
        report.assert(&format!("{} {flags}", runtime.name));
    }
}

fn check(runtime: &Runtime, flags: &str) {
    let title = format!("{} {flags}", runtime.name);
    let report = profile(runtime, flags, Native::WithoutFramePointers, Walk::Complete);
    report.assert(&title);
    let graph = CallGraph::new(Walk::Complete);
    let threads = ["calls", "library", "outside"];
    let missing: Vec<_> = threads
        .into_iter()
        .flat_map(|thread| graph.scenes(thread))
        .filter(|scene| !report.methods.contains(*scene))
        .collect();
    assert!(missing.is_empty(), "{title}: {missing:?} never seen: {report}");
    let has_virtual = report.methods.contains("Straight.bottom");
    assert_eq!(has_virtual, runtime.major >= 21, "{title}: virtual threads: {report}");
}

/// Profiles a new load, which is interpreted at first and compiled soon.
fn profile(runtime: &Runtime, flags: &str, native: Native, walk: Walk) -> Report {
    run_beside_others();
    // Builds the tools now, so that the build does not run beside the load.
    binary("javaprof");
    let mut load = stackload::start(runtime, flags, native);
    let walk_option = if walk == Walk::FramePointers { "fp" } else { "auto" };
    // The tool starts before the load's work does. If a busy machine delays the tool, the profile is not
    // shorter.
    let tool = start(&load, &["-f", "-t", "--stacks", walk_option]);
    load.go(SECONDS);
    load.done();
    let output = tool.interrupt();
    assert!(output.status.success(), "{}: {}", runtime.name, output.stderr);
    let report = CallGraph::new(walk).check(&output.stdout);
    assert!(report.samples > 500, "{}: {report}\n{}", runtime.name, output.stderr);
    report
}

fn start(load: &Load, args: &[&str]) -> Tool {
    let pid = load.pid().to_string();
    Tool::start("javaprof", &[&["-p", &pid, "-F", "999"], args].concat())
}

/// By default, HotSpot records inlining information at calls and polls only; with these flags, for
/// each instruction.
const EXACT: &str = "-XX:+UnlockDiagnosticVMOptions -XX:+DebugNonSafepoints";

/// JVM flags that inline some of StackLines' methods and not others.
const INLINING: &str = "-XX:CompileCommand=inline,StackLines.in* \
                        -XX:CompileCommand=dontinline,StackLines.leaf \
                        -XX:CompileCommand=dontinline,StackLines.left \
                        -XX:CompileCommand=dontinline,StackLines.right \
                        -XX:CompileCommand=dontinline,StackLines.plain \
                        -XX:CompileCommand=dontinline,StackLines.nested \
                        -XX:CompileCommand=dontinline,StackLines.calling \
                        -XX:CompileCommand=dontinline,StackLines.neighbours";

/// Call chains of StackLines. Each call has the method, and the end of the comment on the line that the
/// method executes.
const CHAINS: [&[(&str, &str)]; 5] = [
    &[("run", "run"), ("plain", "plain")],
    &[("run", "run"), ("nested", "nested"), ("inOuter", "inOuter"), ("inInner", "inInner")],
    &[
        ("run", "run"),
        ("calling", "calling"),
        ("inFirst", "inFirst"),
        ("inSecond", "inSecond"),
        ("leaf", "leaf"),
    ],
    &[("run", "run"), ("neighbours", "neighbours left"), ("left", "left")],
    &[("run", "run"), ("neighbours", "neighbours right"), ("right", "right")],
];

#[test]
fn line_numbers_and_inlining_match_source() {
    check_lines_and_inlining(&["temurin-21"]);
}

#[test]
#[ignore = "long: make test-all"]
fn line_numbers_and_inlining_match_source_on_all_jdks() {
    check_lines_and_inlining(&ALL);
}

fn check_lines_and_inlining(names: &[&str]) {
    run_beside_others();
    for name in names {
        check_lines(runtimes::named(name), "");
        check_lines(runtimes::named(name), EXACT);
    }
}

#[test]
fn c1_line_numbers_match_source() {
    check_lines_in_c1_code(&["temurin-17"]);
}

#[test]
#[ignore = "long: make test-all"]
fn c1_line_numbers_match_source_on_other_jdks() {
    check_lines_in_c1_code(&["zulu-8", "temurin-11", "temurin-21", "temurin-25"]);
}

fn check_lines_in_c1_code(names: &[&str]) {
    run_beside_others();
    for name in names {
        check_lines(runtimes::named(name), "-XX:TieredStopAtLevel=1");
        check_lines(runtimes::named(name), "-XX:TieredStopAtLevel=3");
    }
}

#[test]
fn interpreted_methods_have_names_and_lines() {
    check_lines_in_interpreted_code(&["temurin-25"]);
}

#[test]
#[ignore = "long: make test-all"]
fn interpreted_methods_have_names_and_lines_on_all_jdks() {
    check_lines_in_interpreted_code(&ALL);
}

fn check_lines_in_interpreted_code(names: &[&str]) {
    run_beside_others();
    for name in names {
        check_lines(runtimes::named(name), "-Xint");
        // Compiled frames between interpreted ones, and the other way round.
        check_lines(
            runtimes::named(name),
            "-XX:CompileCommand=exclude,StackLines.inFirst \
             -XX:CompileCommand=exclude,StackLines.neighbours",
        );
    }
}

fn check_lines(runtime: &Runtime, flags: &str) {
    run_beside_others();
    binary("javaprof");
    let title = format!("{} {flags}", runtime.name);
    // For methods that neither call nor poll, C2 of JDK 8 records nothing at all, and by default the code
    // that it generates does not poll in counted loops.
    let polls = if runtime.major == 8 { "-XX:+UseCountedLoopSafepoints" } else { "" };
    let flags = format!("{INLINING} {polls} {flags} -Dstackload.parts=lines");
    let mut load = stackload::start(runtime, &flags, Native::WithoutFramePointers);
    load.run(1.0);
    // The load runs for long enough to be sampled even if a busy machine delays the start of the tool.
    load.go(3.0);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("x.json");
    let tool = start(&load, &["-q", "-o", file.to_str().expect("UTF-8")]);
    load.done();
    let output = tool.interrupt();
    assert!(output.status.success(), "{title}: {}", output.stderr);

    let chains: Vec<Chain> = CHAINS.into_iter().map(chain).collect();
    let (mut total, mut right, mut wrong) = (0, 0, Vec::new());
    // For each chain: the weight of the samples that begin with the chain's first two calls, and the
    // weight of those that show the complete chain.
    let mut seen = vec![(0, 0); chains.len()];
    let all = speedscope::read(&file);
    let all: Vec<_> = all.iter().filter(|sample| sample.thread.contains(" lines-")).collect();
    // How long the JVM itself works for the program, for example to end a thread or to decide what to compile, depends on the
    // machine.
    let (by_jvm, by_program): (Vec<_>, Vec<_>) = all.into_iter().partition(is_in_jvm);
    let is_possible =
        |calls: Chain| calls.is_empty() || chains.iter().any(|chain| chain.starts_with(&calls));
    let possible = by_jvm.iter().filter(|sample| is_possible(calls_of(sample))).count();
    assert!(
        possible * 100 >= by_jvm.len() * 99,
        "{title}: {possible} of {} in the JVM",
        by_jvm.len()
    );
    let weight = |samples: &[&Sample]| samples.iter().map(|sample| sample.weight).sum::<u64>();
    let (by_jvm, in_program) = (weight(&by_jvm), weight(&by_program));
    assert!(
        by_jvm * 10 < in_program,
        "{title}: {by_jvm} ns in the JVM, {in_program} ns in the program"
    );
    for sample in by_program {
        let calls = calls_of(sample);
        total += sample.weight;
        if !calls.is_empty() && chains.iter().any(|chain| chain.starts_with(&calls)) {
            right += sample.weight;
        } else {
            wrong.push(format!("  {} {calls:?} {:?}", sample.weight, sample.frames.last()));
        }
        for (chain, (some, whole)) in chains.iter().zip(&mut seen) {
            if calls.len() > 1 && chain.starts_with(&calls[..2]) {
                *some += sample.weight;
                *whole += if *chain == calls { sample.weight } else { 0 };
            }
        }
    }
    let share = |part: u64, of: u64| part as f64 * 100.0 / of.max(1) as f64;
    let shares: Vec<_> = seen.iter().map(|&(some, whole)| share(whole, some).round()).collect();
    println!("{title}: {:.2} % right, chains seen completely: {shares:?} %", share(right, total));
    wrong.truncate(12);
    assert!(share(right, total) >= 99.0, "{title}: wrong:\n{}", wrong.join("\n"));
    let some: u64 = seen.iter().map(|(some, _)| some).sum();
    assert!(share(some, total) >= 98.0, "{title}: {some} of {total} ns below run()");
    for (chain, whole) in CHAINS.iter().zip(shares) {
        // Inlined methods that call nothing are known only if an option makes the JVM record them.
        let is_inlined = chain.iter().any(|(method, _)| *method == "inInner");
        let wanted = match () {
            () if !is_inlined => 95.0,
            () if flags.contains(EXACT) || flags.contains("-Xint") => 5.0,
            () => 0.0,
        };
        assert!(whole >= wanted, "{title}: {whole} % of {chain:?}");
    }
}

/// Methods with lines, outermost first.
type Chain = Vec<(String, u64)>;

fn chain(calls: &[(&str, &str)]) -> Chain {
    let source = include_str!("java/StackLines.java");
    let line = |mark: &str| {
        let comment = format!("// at {mark}");
        let at = source.lines().position(|line| line.ends_with(&comment));
        at.unwrap_or_else(|| panic!("no {comment}")) as u64 + 1
    };
    calls.iter().map(|(method, mark)| (format!("StackLines.{method}"), line(mark))).collect()
}

/// Returns whether a sample is in native code, and its stack is known up to the first function of the thread.
fn is_in_jvm(sample: &&Sample) -> bool {
    let last = sample.frames.last().is_some_and(|frame| matches!(&*frame.kind, "jvm" | "native"));
    last && sample.frames.first().is_some_and(|frame| is_entry(&frame.name))
}

/// Returns the program's calls on a stack.
fn calls_of(sample: &Sample) -> Chain {
    let ours = sample.frames.iter().filter(|frame| frame.name.starts_with("StackLines."));
    ours.map(|frame| (frame.name.clone(), frame.line.unwrap_or(0))).collect()
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a pid");
    kill_process(pid, signal).expect("the JVM runs");
}

/// Starts a load, lets it warm up for 1.5 s, and lets it run for another two seconds in the
/// background.
fn start_warm_load(runtime: &str, flags: &str) -> Load {
    run_beside_others();
    binary("javaprof");
    let mut load = stackload::start(runtimes::named(runtime), flags, Native::WithoutFramePointers);
    load.run(1.5);
    load.go(2.0);
    load
}

fn assert_stacks_are_complete(title: &str, output: &Output) {
    assert!(output.status.success(), "{title}: {}", output.stderr);
    let report = CallGraph::new(Walk::Complete).check(&output.stdout);
    report.assert(title);
    assert!(report.samples > 300, "{title}: {report}\n{}", output.stderr);
}

#[test]
fn stopped_jvm_has_method_names() {
    check_stopped_jvm(&["temurin-11"]);
}

#[test]
#[ignore = "long: make test-all"]
fn stopped_jvm_has_method_names_on_other_jdks() {
    check_stopped_jvm(&["temurin-17", "temurin-25"]);
}

/// A stopped JVM does not answer requests, so the names must come from its memory.
fn check_stopped_jvm(names: &[&str]) {
    run_beside_others();
    for name in names {
        let mut load = start_warm_load(name, "");
        // The JVM is stopped both when the profile begins and when it ends.
        signal(load.pid(), Signal::STOP);
        let tool = start(&load, &["-f", "-t"]);
        signal(load.pid(), Signal::CONT);
        thread::sleep(Duration::from_millis(1_500));
        signal(load.pid(), Signal::STOP);
        let output = tool.interrupt();
        assert_stacks_are_complete(&format!("{name}, stopped"), &output);
        signal(load.pid(), Signal::CONT);
        load.done();
    }
}

#[test]
fn methods_have_names_with_attach_disabled() {
    check_jvm_with_attach_disabled("temurin-21");
}

#[test]
#[ignore = "long: make test-all"]
fn methods_have_names_with_attach_disabled_on_jdk_11() {
    check_jvm_with_attach_disabled("temurin-11");
}

fn check_jvm_with_attach_disabled(name: &str) {
    run_beside_others();
    let mut load = start_warm_load(name, "-XX:+DisableAttachMechanism");
    let tool = start(&load, &["-f", "-t"]);
    load.done();
    assert_stacks_are_complete(&format!("{name}, no attach"), &tool.interrupt());
}

#[test]
fn killed_jvm_ends_the_profile() {
    check_killed_jvm(&["temurin-17"]);
}

#[test]
#[ignore = "long: make test-all"]
fn killed_jvm_ends_the_profile_on_other_jdks() {
    check_killed_jvm(&["temurin-11", "temurin-25"]);
}

/// The JVM is killed while it is sampled, and the profile ends normally.
fn check_killed_jvm(names: &[&str]) {
    run_beside_others();
    for name in names {
        let mut load = start_warm_load(name, "");
        let tool = start(&load, &["-f", "-t"]);
        thread::sleep(Duration::from_millis(1_000));
        load.kill();
        let output = tool.wait();
        assert!(output.status.success(), "{name}: {output:?}");
        let lines = folded::parse(&output.stdout);
        let samples = folded::total(&lines);
        let of_calls = folded::total(lines.iter().filter(|l| l.frames[1].starts_with("calls-")));
        // The share of named frames depends on what was read before the JVM died.
        println!("{name}: {samples} samples, {of_calls} of the thread \"calls\"");
        assert!(of_calls > 100, "{name}: {output:?}");
    }
}

#[test]
fn starting_jvm_is_profiled_or_rejected() {
    check_starting_jvm(&["temurin-25"]);
}

#[test]
#[ignore = "long: make test-all"]
fn starting_jvm_is_profiled_or_rejected_on_other_jdks() {
    check_starting_jvm(&["temurin-11", "musl-17"]);
}

/// A JVM that is still starting is rejected with a one-line message, or profiled like any other.
fn check_starting_jvm(names: &[&str]) {
    run_beside_others();
    binary("javaprof");
    for &name in names {
        let mut profiled = 0;
        for delay in [0, 5, 10, 20, 30, 50] {
            let title = format!("{name} after {delay} ms");
            let mut java = spawn_running_load(runtimes::named(name), 2.0);
            thread::sleep(Duration::from_millis(delay));
            let pid = java.id().to_string();
            let mut command = Command::new(binary("javaprof"));
            command.args(["-p", &pid, "-F", "999", "-f", "-t"]);
            let output = jvmprobe_tests::tool::run_command(command);
            java.wait().expect("java ends");
            assert!(!output.stderr.contains("panicked"), "{title}: {}", output.stderr);
            if !output.status.success() {
                println!("{title}: {}", output.stderr.trim_end());
                assert_eq!(output.status.code(), Some(1), "{title}: {output:?}");
                assert_eq!(output.stderr.lines().count(), 1, "{title}: {output:?}");
                continue;
            }
            let report = CallGraph::new(Walk::Complete).check(&output.stdout);
            println!("{title}: {report}");
            let is_guess = name == "musl-17" && report.is_possible_without_tables();
            assert!(is_guess || report.is_possible(), "{title}: {}", report.offenders());
            profiled += u32::from(report.methods.contains("StackCalls.run"));
        }
        assert!(profiled > 0, "{name}: never profiled");
    }
}

/// Starts a JVM with the load without waiting until it is ready.
fn spawn_running_load(runtime: &Runtime, seconds: f64) -> Child {
    let flags = all_flags(runtime, "", Native::WithoutFramePointers);
    let mut child = runtime
        .command()
        .args(flags.split_ascii_whitespace())
        .args([Path::new("-cp"), classes(), Path::new("StackLoad")])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("start java");
    let mut stdin = child.stdin.take().expect("piped");
    writeln!(stdin, "go {seconds}\nquit").expect("java reads commands");
    child
}

/// Returns the soak test's duration: $JVMPROBE_SOAK_SECONDS, or 20.
fn soak_seconds() -> f64 {
    let text = std::env::var("JVMPROBE_SOAK_SECONDS").unwrap_or_else(|_| "20".into());
    text.parse().expect("JVMPROBE_SOAK_SECONDS is a number of seconds")
}

#[test]
fn class_unloading_keeps_method_names_correct() {
    check_class_unloading(&["temurin-25"]);
}

#[test]
#[ignore = "long: make test-all"]
fn class_unloading_keeps_method_names_correct_on_other_jdks() {
    check_class_unloading(&["temurin-11", "temurin-17", "temurin-21"]);
}

/// Classes are loaded and unloaded, and their code's addresses are reused: no thread gets names of
/// another thread's classes, no samples are lost, and memory is bounded.
fn check_class_unloading(names: &[&str]) {
    run_beside_others();
    binary("javaprof");
    let seconds = soak_seconds();
    for name in names {
        let flags = "-XX:+UseSerialGC -XX:ReservedCodeCacheSize=4m";
        let mut load = Load::start_program(runtimes::named(name), flags, "ChurnLoad");
        load.go(seconds / 2.0);
        let begin = Instant::now();
        let tool = start(&load, &["-f", "-t"]);
        let mut peak = 0;
        while begin.elapsed().as_secs_f64() < seconds / 2.0 - 0.5 {
            thread::sleep(Duration::from_millis(250));
            peak = peak.max(resident_kib(tool.pid()));
        }
        let generations = load.done();
        let output = tool.interrupt();
        assert!(output.status.success(), "{name}: {}", output.stderr);
        check_churn(name, &output);
        println!("{name}: {peak} KiB resident at most, {}", generations.trim());
        assert!(peak < 256 << 10, "{name}: {peak} KiB");
    }
}

fn check_churn(name: &str, output: &Output) {
    let (mut samples, mut right, mut complete, mut unnamed) = (0, 0, 0, 0);
    let mut wrong = Vec::new();
    for line in folded::parse(&output.stdout) {
        let (thread, _tid) = line.frames[1].rsplit_once('-').expect("NAME-TID");
        if !thread.starts_with("Churn") {
            continue;
        }
        let frames = &line.frames[2..];
        samples += line.count;
        complete += if is_entry(&frames[0]) { line.count } else { 0 };
        for pair in frames.windows(2).filter(|pair| pair[1].starts_with("Churn")) {
            let (caller, callee) = (pair[0].as_str(), pair[1].as_str());
            assert!(callee.starts_with(thread), "{name}: {callee} in thread {thread}: {line:?}");
            let expected = match callee.rsplit_once('.').expect("a method").1 {
                "first" | "second" => format!("{thread}.run"),
                _ => "java.lang.Thread.run".into(),
            };
            // Either the caller's class was unloaded before its name could be read, or the stack is
            // incomplete: the walk ended at this call, in interpreter code that had no frame yet.
            if caller == "[unknown]" || !is_entry(&frames[0]) {
                unnamed += line.count;
                continue;
            }
            if caller == expected || caller == "java.lang.Thread.runWith" {
                right += line.count;
            } else {
                wrong.push(format!("{caller} calls {callee}: {line:?}"));
            }
        }
    }
    let share = complete as f64 / samples as f64;
    println!(
        "{name}: {samples} samples, {:.2} % complete, {right} calls right, {unnamed} without a name",
        share * 100.0
    );
    println!("{name}: impossible calls: {wrong:#?}");
    assert!(is_rare(wrong.len() as u64, samples), "{name}: {wrong:#?}");
    assert!(unnamed * 300 <= right, "{name}: {unnamed} calls from frames without a name");
    assert!(samples > 500 && right > samples && share >= 0.99, "{name}: {samples} {right} {share}");
    // "N samples were lost", "N loads and unloads of code were lost".
    let lost: u64 = output
        .stderr
        .lines()
        .filter(|line| line.contains(" lost"))
        .filter_map(|line| line.split_ascii_whitespace().find_map(|word| word.parse::<u64>().ok()))
        .sum();
    assert!(lost * 1_000 <= samples, "{name}: {lost} lost: {}", output.stderr);
}

/// Returns a process's resident memory in KiB, from /proc.
fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("proc(5)");
    line.split_ascii_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("kilobytes")
}

//! javaprof on a program without a known call graph: its class files say which calls are possible.
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use std::process::Command;

use jvmprobe_tests::{
    calls::Checker,
    programs, run_beside_others, runtimes,
    tool::{binary, run_command},
};

/// The Kotlin compiler during warm-up: a hundred thousand methods that were not written for this
/// test, interpreted, compiled, inlined, deoptimised and compiled again.
fn assert_no_impossible_calls(runtime: &str) {
    run_beside_others();
    let runtime = runtimes::named(runtime);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = programs::kotlinc(folder.path(), 5);
    let profile = folder.path().join("profile.json");
    let mut command = Command::new(binary("javaprof"));
    command.args(["-F", "499", "--signatures", "-o"]).arg(&profile).arg("--");
    command.arg(&runtime.java).args(&program.args);
    let output = run_command(command);
    assert!(output.status.success(), "{}: {}", runtime.name, output.stderr);
    assert!(folder.path().join("out.jar").exists(), "{}: nothing was compiled", runtime.name);
    let checker = Checker::new(programs::class_path(runtime, &program));
    let report = checker.check_file(&profile, 499);
    println!("{}: {}", runtime.name, report.summary());
    assert!(report.java > 3_000 && report.calls > 100_000, "{}", report.summary());
    assert_eq!(checker.unreadable_files(), "");
    let unknown: u64 = report.unknown.values().sum();
    assert!(unknown * 100 <= report.calls, "{}", report.summary());
    // Until the walker has the JVM's layout, stacks are walked by frame pointers. Of half a million
    // calls, 4 to 15 are wrong ones from that time; there are more if the tool starts slowly.
    assert!(report.rate() <= 6.0, "{}{}", report.details(false), report.summary());
}

#[test]
#[ignore = "long: make test-all"]
fn stacks_on_jdk_17_contain_no_impossible_calls() {
    assert_no_impossible_calls("temurin-17");
}

#[test]
#[ignore = "long: make test-all"]
fn stacks_on_jdk_21_contain_no_impossible_calls() {
    assert_no_impossible_calls("temurin-21");
}

#[test]
fn stacks_on_jdk_25_contain_no_impossible_calls() {
    assert_no_impossible_calls("temurin-25");
}

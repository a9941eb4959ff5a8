//! javaprof on a program that does not know its own calls: the class files do.
#![allow(clippy::print_stdout, reason = "figures, for whoever runs it")]

use std::process::Command;

use jvmprobe_tests::{
    calls::Checker,
    need_root, programs, runtimes,
    tool::{binary, run_command},
};

/// The Kotlin compiler while it warms up: a hundred thousand methods that nobody wrote for us,
/// interpreted, compiled, inlined, thrown away and compiled again.
fn no_impossible_calls(runtime: &str) {
    need_root();
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
    assert_eq!(checker.trouble(), "");
    let unknown: u64 = report.unknown.values().sum();
    assert!(unknown * 100 <= report.calls, "{}", report.summary());
    // Before the JVM has told how its stacks are walked, frame pointers must do: of half a million
    // calls 4 to 15 come from there, the more the slower it starts.
    assert!(report.rate() <= 6.0, "{}{}", report.details(false), report.summary());
}

#[test]
#[ignore = "long: make test-all"]
fn jdk_17_has_no_impossible_calls() {
    no_impossible_calls("temurin-17");
}

#[test]
#[ignore = "long: make test-all"]
fn jdk_21_has_no_impossible_calls() {
    no_impossible_calls("temurin-21");
}

#[test]
fn jdk_25_has_no_impossible_calls() {
    no_impossible_calls("temurin-25");
}

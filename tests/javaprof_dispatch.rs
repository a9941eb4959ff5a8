//! javaprof's stacks in HotSpot's stubs for type checks and for virtual and interface calls.
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use std::{process::Stdio, thread::sleep, time::Duration};

use jvmprobe_tests::{
    child_process::ChildProcess,
    folded::{self, Line},
    load::classes,
    run_beside_others,
    runtimes::{self, Runtime},
    tool::run,
};

/// JVM flags with which each method has a frame of its own.
const FRAMES: &str = "-XX:CompileCommand=quiet -XX:CompileCommand=dontinline,DispatchLoad.*";

/// Call chains of the program below `main`, outermost method first.
const CHAINS: [&[&str]; 3] = [
    &["callsCasts", "casts"],
    &["callsShapes", "shapes", "area"],
    &["callsForms", "forms", "size"],
];

/// Name of a stub in which there must be samples, and the methods that may call it.
const TYPE_TESTS: (&str, &[&str]) = ("slow_subtype_check", &["casts"]);
const DISPATCH: (&str, &[&str]) = ("vtable chunks", &["shapes", "forms"]);

#[test]
fn type_check_stubs_have_correct_callers() {
    check_type_check_stubs(&["temurin-21"]);
}

#[test]
#[ignore = "long: make test-all"]
fn type_check_stubs_have_correct_callers_on_other_jdks() {
    check_type_check_stubs(&["temurin-11", "temurin-17", "temurin-25"]);
}

fn check_type_check_stubs(names: &[&str]) {
    for name in names {
        check(runtimes::named(name), "-XX:TieredStopAtLevel=1", TYPE_TESTS);
    }
}

#[test]
fn vtable_stubs_have_correct_interpreted_callers() {
    check_vtable_stubs(&["temurin-21"]);
}

#[test]
#[ignore = "long: make test-all"]
fn vtable_stubs_have_correct_interpreted_callers_on_other_jdks() {
    check_vtable_stubs(&["temurin-11", "temurin-17", "temurin-25"]);
}

fn check_vtable_stubs(names: &[&str]) {
    for name in names {
        check(runtimes::named(name), "-XX:CompileCommand=exclude,DispatchLoad.calls*", DISPATCH);
    }
}

fn check(runtime: &Runtime, flags: &str, (stub, callers): (&str, &[&str])) {
    run_beside_others();
    let title = format!("{} {flags}", runtime.name);
    let mut command = runtime.command();
    command.args(FRAMES.split(' ')).arg(flags).arg("-cp").arg(classes()).arg("DispatchLoad");
    let load = ChildProcess::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
    // Time until hot methods are compiled.
    sleep(Duration::from_secs(1));
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("x.folded");
    let (pid, file) = (load.pid().to_string(), file.to_str().expect("UTF-8"));
    let output = run("javaprof", &["-q", "-F", "999", "-p", &pid, "-o", file, "4"]);
    assert!(output.status.success(), "{title}: {}", output.stderr);

    let text = std::fs::read_to_string(file).expect("written");
    let lines = folded::parse(&text);
    let ours: Vec<_> = lines.iter().filter(|line| line.has("DispatchLoad.main")).collect();
    let wrong: Vec<_> = ours.iter().filter(|line| !is_possible(line)).collect();
    let in_stub: Vec<_> =
        lines.iter().filter(|line| line.frames.iter().any(|f| f.contains(stub))).collect();
    println!(
        "{title}: {} samples, {} in {stub}",
        folded::total(ours.iter().copied()),
        folded::total(in_stub.iter().copied())
    );
    assert!(wrong.is_empty(), "{title}: {wrong:#?}");
    assert!(folded::total(in_stub.iter().copied()) > 20, "{title}: hardly any {stub}");
    let called = |line: &Line| {
        let at = line.frames.iter().position(|frame| frame.contains(stub)).unwrap_or(0);
        let caller = at.checked_sub(1).map_or("", |at| &line.frames[at]);
        callers.iter().any(|name| caller == format!("DispatchLoad.{name}"))
    };
    let without: Vec<_> = in_stub.iter().filter(|line| !called(line)).collect();
    assert!(without.is_empty(), "{title}: no caller of {stub}: {without:#?}");
}

/// Returns whether the program's methods call each other in the order of this stack.
fn is_possible(line: &Line) -> bool {
    let ours = line.frames.iter().filter(|frame| frame.starts_with("DispatchLoad"));
    let names: Vec<_> = ours.map(|frame| frame.rsplit('.').next().unwrap_or_default()).collect();
    match names.split_first() {
        Some((&"main", rest)) => CHAINS.iter().any(|chain| chain.starts_with(rest)),
        _ => false,
    }
}

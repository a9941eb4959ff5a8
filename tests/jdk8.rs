//! JDK 8: what cannot be done with it yet is said, and what can be is done.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use jvmprobe_tests::{
    load::Load,
    need_root,
    runtimes::{named, of_unstable},
    tool::{self, Tool, assert_refused},
};

#[test]
fn a_build_with_symbols_is_not_told_that_it_has_none() {
    need_root();
    let mut load = Load::start(named("zulu-8"), "-XX:+UseSerialGC");
    let pid = load.pid().to_string();
    let output = tool::run("javaobjnew", &["-p", &pid]);
    assert_refused(&output, 1, &["JDK 8 has another one", "use JDK 11", "--exact"]);
    assert!(!output.stderr.contains("stripped"), "{}", output.stderr);
    let output = tool::run("javaobjnew", &["-p", &pid, "--exact"]);
    assert_refused(&output, 1, &["JDK 8", "-XX:+DTraceAllocProbes"]);
    assert!(!output.stderr.contains("leave --exact out"), "{}", output.stderr);
    let output = tool::run("javaprof", &["-p", &pid, "--stacks", "hotspot"]);
    assert_refused(&output, 1, &["stacks of JDK 8 cannot be walked"]);
    let output = tool::run("javaprof", &["-p", &pid, "--symbols", "hotspot"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stderr.contains("methods of JDK 8 cannot be named"), "{}", output.stderr);
    // Without such wishes it is profiled by frame pointers.
    let tool = Tool::start("javaprof", &["-p", &pid]);
    load.run(1.0);
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.contains("by frame pointers: stacks of JDK 8"), "{}", output.stderr);
    assert!(output.stdout.contains("GcLoad.allocate"), "{}", output.stdout);
}

#[test]
fn a_build_without_probes_and_symbols_is_told_of_both() {
    need_root();
    let Some(runtime) = of_unstable("sid-8") else { return };
    let load = Load::start(runtime, "-XX:+UseSerialGC");
    let pid = load.pid().to_string();
    let words = ["no USDT probe", "no symbol table", "it is stripped", "or with its symbol table"];
    assert_refused(&tool::run("javagc", &["-p", &pid]), 1, &words);
    let words = ["no symbol table", "it is stripped", "a build with its symbol table"];
    assert_refused(&tool::run("javaobjnew", &["-p", &pid]), 1, &words);
    let output = tool::run("javaobjnew", &["-p", &pid, "--exact"]);
    assert_refused(&output, 1, &["no USDT probe hotspot:object__alloc", "with probes"]);
    assert!(!output.stderr.contains("leave --exact out"), "{}", output.stderr);
}

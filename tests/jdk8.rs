//! JDK 8: supported features work, and for the others there is a message.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use jvmprobe_tests::{
    load::Load,
    run_beside_others,
    runtimes::{named, of_unstable},
    tool::{self, Tool, assert_refused},
};

#[test]
fn jdk_8_with_symbols_is_profiled_from_memory() {
    run_beside_others();
    let mut load = Load::start(named("zulu-8"), "-XX:+UseSerialGC");
    let pid = load.pid().to_string();
    let output = tool::run("javaobjnew", &["-p", &pid, "--exact"]);
    assert_refused(&output, 1, &["JDK 8", "-XX:+DTraceAllocProbes", "omit --exact"]);
    let how = ["--walk", "hotspot", "--symbols", "hotspot"];
    let tool = Tool::start("javaprof", &[&["-p", &pid][..], &how].concat());
    load.run(1.0);
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    assert!(!output.stderr.contains("agent"), "{}", output.stderr);
    assert!(output.stdout.contains("GcLoad.allocate"), "{}", output.stdout);
    // JDK 8 cannot write a map for perf.
    let output = tool::run("javaprof", &["-p", &pid, "--symbols", "perfmap"]);
    assert_refused(&output, 1, &["JDK 8 cannot write a map", "--symbols hotspot or agent"]);
}

#[test]
fn missing_probes_and_symbols_are_both_reported() {
    run_beside_others();
    let Some(runtime) = of_unstable("sid-8") else { return };
    let load = Load::start(runtime, "-XX:+UseSerialGC");
    let pid = load.pid().to_string();
    let words = ["no USDT probe", "no symbol table", "it is stripped", "install openjdk-8-dbg"];
    // For these options, the JVM's counters are not sufficient.
    for option in ["--stack", "--pools"] {
        let output = tool::run("javagc", &["-p", &pid, option]);
        assert_eq!(output.status.code(), Some(1), "{}", output.stderr);
    }
    let output = tool::run("javagc", &["-p", &pid, "-d", "0.1"]);
    assert!(output.status.success(), "{}", output.stderr);
    assert!(output.stderr.contains("from the JVM's own counters"), "{}", output.stderr);
    for word in words {
        assert!(output.stderr.contains(word), "{word}: {}", output.stderr);
    }
    let words = ["it is stripped", "a build with its symbol table", "install openjdk-8-dbg"];
    assert_refused(&tool::run("javaobjnew", &["-p", &pid]), 1, &words);
    let output = tool::run("javaobjnew", &["-p", &pid, "--exact"]);
    assert_refused(&output, 1, &["no USDT probe hotspot:object__alloc", "with probes"]);
    assert!(!output.stderr.contains("omit --exact"), "{}", output.stderr);
}

//! HotSpot's layout in each runtime, compared with the table of fields by JDK.

use jvmprobe_tests::{
    load::Load,
    run_beside_others,
    runtimes::{self, Runtime},
    tool::{self, binary},
};

/// Returns the fields that `-v` reports as missing in a JVM.
fn missing_fields(runtime: &Runtime) -> Vec<String> {
    let load = Load::start_program(runtime, "-XX:+UseSerialGC", "CpuLoad");
    let output = tool::run("javagc", &["-v", "-p", &load.pid().to_string(), "-d", "0.1"]);
    assert!(output.status.success(), "{output:?}");
    let lines = output.stderr.lines().filter(|line| line.contains("this libjvm.so of JDK"));
    lines.map(|line| format!("{}: {line}", runtime.name)).collect()
}

#[test]
fn each_jdk_has_the_fields_of_the_layout_table() {
    run_beside_others();
    binary("javagc");
    let fixed = [
        "zulu-8",
        "temurin-11",
        "temurin-17",
        "debian-17",
        "temurin-21",
        "temurin-25",
        "musl-11",
        "musl-17",
    ];
    let mut all: Vec<_> = fixed.into_iter().map(runtimes::named).collect();
    all.extend(["sid-26", "sid-27", "sid-28"].into_iter().filter_map(runtimes::of_unstable));
    let found: Vec<_> = all.into_iter().flat_map(missing_fields).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

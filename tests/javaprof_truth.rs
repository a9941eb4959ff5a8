//! javaprof's results compared with what the program itself measures.
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use std::collections::HashMap;

use jvmprobe_tests::{
    callgraph::is_entry,
    folded::{self, Line, total},
    load::{FRAMES, Load},
    run_beside_others,
    runtimes::{self, Runtime},
    tool::{Tool, binary},
};

#[test]
fn cpu_shares_match_measurement_on_jdk_11() {
    check_shares(runtimes::named("temurin-11"));
}

#[test]
#[ignore = "long: make test-all"]
fn cpu_shares_match_measurement_on_jdk_8() {
    check_shares(runtimes::named("zulu-8"));
}

#[test]
#[ignore = "long: make test-all"]
fn cpu_shares_match_measurement_on_jdk_17() {
    check_shares(runtimes::named("temurin-17"));
}

#[test]
#[ignore = "long: make test-all"]
fn cpu_shares_match_measurement_on_debian_jdk_17() {
    check_shares(runtimes::named("debian-17"));
}

#[test]
#[ignore = "long: make test-all"]
fn cpu_shares_match_measurement_on_jdk_21() {
    check_shares(runtimes::named("temurin-21"));
}

#[test]
#[ignore = "long: make test-all"]
fn cpu_shares_match_measurement_on_jdk_25() {
    check_shares(runtimes::named("temurin-25"));
}

#[test]
#[ignore = "long: make test-all"]
fn cpu_shares_match_measurement_on_jdk_26_and_later() {
    run_beside_others();
    for runtime in ["sid-26", "sid-27", "sid-28"].into_iter().filter_map(runtimes::of_unstable) {
        check_shares(runtime);
    }
}

#[test]
#[ignore = "long: make test-all"]
fn cpu_shares_match_measurement_on_musl() {
    check_shares(runtimes::named("musl-17"));
}

fn check_shares(runtime: &Runtime) {
    run_beside_others();
    // Builds the tools now, so that the build does not run beside the load.
    binary("javaprof");
    let title = &runtime.name;
    // The methods are not inlined, but there are no frame pointers, as in JVMs with default flags.
    let flags = FRAMES.replace("-XX:+PreserveFramePointer", "");
    let mut load = Load::start_program(runtime, &flags, "CpuLoad");
    // Most methods are compiled before the profile.
    load.run(2.0);
    load.go(4.0);
    let pid = load.pid().to_string();
    let tool = Tool::start("javaprof", &["-p", &pid, "-F", "499", "-f", "-t"]);
    let measured = load.done();
    let output = tool.interrupt();
    assert!(output.status.success(), "{title}: {}", output.stderr);
    let lines = folded::parse(&output.stdout);
    let worker: Vec<_> = lines.iter().filter(|l| l.frames[1].starts_with("cpu-worker-")).collect();
    let samples = total(worker.iter().copied());
    assert!(samples > 300, "{title}: {samples} samples of the worker\n{}", output.stdout);

    check_call_graph(title, &worker);
    check_quality(title, &worker, samples);

    // The tool starts slightly later than the load, so shares are compared, not sums.
    let truth: HashMap<&str, f64> = measured
        .split_ascii_whitespace()
        .filter_map(|word| word.split_once('='))
        .map(|(name, nanos)| (name, nanos.parse().expect("nanoseconds")))
        .collect();
    let all: f64 = truth.values().sum();
    for (name, nanos) in truth {
        let expected = nanos / all;
        let method = format!("CpuLoad.{name}");
        let seen = total(worker.iter().copied().filter(|l| l.has(&method))) as f64;
        let share = seen / samples as f64;
        // Four standard deviations of a count of samples, and a little for what the
        // program does between its measurements.
        let error = 4.0 * (expected * (1.0 - expected) / samples as f64).sqrt() + 0.01;
        println!("{title}: {method} {share:.3}, measured {expected:.3} (within {error:.3})");
        assert!((share - expected).abs() <= error, "{title}: {method} {share} for {expected}");
    }
}

/// Asserts that the program makes every call that is seen.
fn check_call_graph(title: &str, lines: &[&Line]) {
    let callers: HashMap<&str, &[&str]> = HashMap::from([
        ("CpuLoad.small", &["CpuLoad.work"][..]),
        ("CpuLoad.medium", &["CpuLoad.work"]),
        ("CpuLoad.large", &["CpuLoad.work"]),
        ("CpuLoad.deep", &["CpuLoad.large", "CpuLoad.deep"]),
    ]);
    let (mut edges, mut full, mut partial) = (0, 0, 0);
    for line in lines {
        for pair in line.frames.windows(2) {
            if let Some(callers) = callers.get(pair[1].as_str()) {
                let is_known = callers.contains(&pair[0].as_str());
                assert!(is_known, "{title}: {} called by {}: {line:?}", pair[1], pair[0]);
                edges += 1;
            }
        }
        let depth = line.frames.iter().filter(|frame| *frame == "CpuLoad.deep").count();
        assert!(depth <= 20, "{title}: depth {depth}: {line:?}");
        // During descent and return there are fewer frames for a short time.
        full += if depth == 20 { line.count } else { 0 };
        partial += if (1..20).contains(&depth) { line.count } else { 0 };
    }
    assert!(edges > 0, "{title}: no calls seen");
    assert!(
        partial * 100 <= full,
        "{title}: {partial} stacks lack frames of the recursion, {full} have all"
    );
}

fn check_quality(title: &str, lines: &[&Line], samples: u64) {
    let complete = total(lines.iter().copied().filter(|l| is_entry(&l.frames[2])));
    let frames: u64 = lines.iter().map(|l| l.count * (l.frames.len() as u64 - 2)).sum();
    let unnamed = |l: &&&Line| l.frames.iter().filter(|f| f.contains("[unknown")).count() as u64;
    let unnamed: u64 = lines.iter().map(|l| l.count * unnamed(&l)).sum();
    let (complete, named) =
        (complete as f64 / samples as f64, 1.0 - unnamed as f64 / frames as f64);
    println!("{title}: {:.2} % complete, {:.2} % of frames named", complete * 100.0, named * 100.0);
    assert!(complete >= 0.99, "{title}: {complete} complete: {lines:#?}");
    assert!(named >= 0.995, "{title}: {named} of frames named: {lines:#?}");
}

#[test]
fn reused_addresses_have_no_stale_names() {
    check_reused_addresses("temurin-17");
}

#[test]
#[ignore = "long: make test-all"]
fn reused_addresses_have_no_stale_names_on_jdk_25() {
    check_reused_addresses("temurin-25");
}

fn check_reused_addresses(name: &str) {
    run_beside_others();
    binary("javaprof");
    let flags = "-XX:+PreserveFramePointer -XX:+UseSerialGC -XX:ReservedCodeCacheSize=4m";
    let mut load = Load::start_program(runtimes::named(name), flags, "ChurnLoad");
    load.run(1.0);
    load.go(8.0);
    let pid = load.pid().to_string();
    let tool = Tool::start("javaprof", &["-p", &pid, "-F", "999", "-f", "-t"]);
    let generations = load.done();
    let output = tool.interrupt();
    assert!(output.status.success(), "{name}: {}", output.stderr);
    let mut right = 0;
    let mut seen = std::collections::HashSet::new();
    for line in folded::parse(&output.stdout) {
        let (thread, _tid) = line.frames[1].rsplit_once('-').expect("NAME-TID");
        if !thread.starts_with("Churn") {
            continue;
        }
        for frame in line.frames[2..].iter().filter(|frame| frame.starts_with("Churn")) {
            assert!(frame.starts_with(thread), "{name}: {frame} in thread {thread}: {line:?}");
            right += line.count;
        }
        seen.insert(thread.to_owned());
    }
    println!("{name}: {right} frames of {} generations, {}", seen.len(), generations.trim());
    assert!(seen.len() > 20 && right > 500, "{name}: {right} in {seen:?}\n{}", output.stdout);
}

#[test]
fn inlined_methods_are_shown() {
    check_inlined_methods(&[("temurin-21", "hotspot"), ("temurin-11", "agent")]);
}

#[test]
#[ignore = "long: make test-all"]
fn inlined_methods_are_shown_on_all_jdks() {
    let runtimes = ["zulu-8", "temurin-11", "temurin-17", "temurin-21", "temurin-25", "musl-17"];
    let all = runtimes.into_iter().flat_map(|name| [(name, "hotspot"), (name, "agent")]);
    check_inlined_methods(&all.collect::<Vec<_>>());
}

/// A method that is inlined at every call is nevertheless shown, with its line, in the method into
/// which it was inlined.
fn check_inlined_methods(ways: &[(&str, &str)]) {
    run_beside_others();
    binary("javaprof");
    for (name, symbols) in ways {
        let mut load = Load::start_program(runtimes::named(name), &exact_inlining(), "CpuLoad");
        load.run(2.0);
        load.go(2.0);
        let pid = load.pid().to_string();
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
        let (folded_file, json_file) = (path("p.folded"), path("p.json"));
        let args = ["-p", &pid, "-F", "499", "--symbols", symbols];
        let args = [&args[..], &["-o", &folded_file, "-o", &json_file]].concat();
        let tool = Tool::start("javaprof", &args);
        load.done();
        let output = tool.interrupt();
        assert!(output.status.success(), "{name}: {}", output.stderr);

        let lines = folded::parse(&std::fs::read_to_string(&folded_file).expect("written"));
        let medium = total(lines.iter().filter(|l| l.has("CpuLoad.medium")));
        let mut inlined = 0;
        for line in lines.iter().filter(|l| l.has("CpuLoad.mix")) {
            let at = line.frames.iter().position(|f| f == "CpuLoad.mix").expect("it has");
            assert_eq!(line.frames[at - 1], "CpuLoad.medium", "{name}: {line:?}");
            inlined += line.count;
        }
        println!(
            "{name}, {symbols}: {inlined} of {medium} samples of CpuLoad.medium in CpuLoad.mix"
        );
        assert!(medium > 30 && inlined > medium / 4, "{name}: {inlined} of {medium}");

        let text = std::fs::read_to_string(&json_file).expect("written");
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let source: Vec<_> = include_str!("java/CpuLoad.java").lines().collect();
        let body = |head: &str| {
            let begin = source.iter().position(|l| l.contains(head)).expect("a method");
            begin as u64 + 1..begin as u64 + 8
        };
        let mut with_line = 0;
        for frame in json["shared"]["frames"].as_array().expect("frames") {
            let lines = match frame["name"].as_str() {
                Some("CpuLoad.mix") => body("long mix("),
                Some("CpuLoad.medium") => body("void medium("),
                _ => continue,
            };
            if let Some(line) = frame["line"].as_u64() {
                assert!(lines.contains(&line), "{name}: {frame}");
                assert_eq!(frame["file"], "CpuLoad.java", "{name}: {frame}");
                with_line += 1;
            }
        }
        assert!(with_line >= 2, "{name}: no lines");
    }
}

/// JVM flags that record inlining for every instruction, not only for calls and polls.
fn exact_inlining() -> String {
    format!("{FRAMES} -XX:+UnlockDiagnosticVMOptions -XX:+DebugNonSafepoints")
}

#[test]
fn fifty_agent_loads_leave_nothing_behind() {
    check_repeated_agent_loads(50);
}

#[test]
#[ignore = "long: make test-all"]
fn two_hundred_agent_loads_leave_nothing_behind() {
    check_repeated_agent_loads(200);
}

/// Loads the agent `times` times into one JVM, which continues as before and retains nothing.
fn check_repeated_agent_loads(times: usize) {
    run_beside_others();
    let mut load = Load::start_program(runtimes::named("temurin-17"), FRAMES, "CpuLoad");
    let pid = load.pid().to_string();
    let fds = || std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count();
    load.run(0.5);
    let profile = || {
        let args = ["-p", &pid, "-d", "0.01", "-q", "--symbols", "agent"];
        let output = jvmprobe_tests::tool::run("javaprof", &args);
        assert!(output.status.success(), "{}", output.stderr);
    };
    profile();
    let before = fds();
    // Each profile loads the agent twice.
    for _ in 0..times / 2 {
        profile();
    }
    assert!(fds() <= before, "{} descriptors, {before} before", fds());
    for folder in ["/tmp", "/dev/shm", "/var/tmp"] {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let name = entry.file_name();
            assert!(
                !name.to_string_lossy().contains("jvmprobe-"),
                "left behind: {folder}/{name:?}"
            );
        }
    }
    load.run(0.5);
}

/// A map for `perf`: owned by root, with the program's methods, and unfolded on request.
#[test]
fn perf_maps_contain_the_program_methods() {
    use std::os::unix::fs::MetadataExt;
    run_beside_others();
    let runtime = runtimes::named("temurin-17");
    let mut load = Load::start_program(runtime, &exact_inlining(), "CpuLoad");
    load.run(2.0);
    let pid = load.pid().to_string();
    let map = format!("/tmp/perf-{pid}.map");
    let write = |more: &[&str]| {
        let args = [&["-p", &pid, "--write-maps"], more].concat();
        let output = jvmprobe_tests::tool::run("javaprof", &args);
        assert!(output.status.success(), "{}", output.stderr);
        assert!(output.stdout.contains(&map), "{}", output.stdout);
        std::fs::read_to_string(&map).expect("the map")
    };
    let has =
        |text: &str, name: &str| text.lines().any(|line| line.splitn(3, ' ').nth(2) == Some(name));
    for text in [write(&[]), write(&["--symbols", "agent"])] {
        for method in ["CpuLoad.small", "CpuLoad.medium", "CpuLoad.deep", "Interpreter"] {
            assert!(has(&text, method), "{method} is missing: {text}");
        }
    }
    let meta = std::fs::metadata(&map).expect("the map");
    assert_eq!((meta.uid(), meta.mode() & 0o777), (0, 0o644));

    let text = write(&["--symbols", "agent", "--unfold", "all", "--slashes", "--annotate"]);
    assert!(has(&text, "CpuLoad::medium->CpuLoad::mix_[i]"), "{text}");
    assert!(has(&text, "CpuLoad::deep_[j]"), "{text}");

    // A symbolic link of that name to another file: the JVM must not write through it, and javaprof
    // replaces the link.
    let dir = tempfile::tempdir().expect("a temporary folder");
    let victim = dir.path().join("victim");
    std::fs::write(&victim, "precious").expect("write");
    std::fs::remove_file(&map).expect("remove");
    std::os::unix::fs::symlink(&victim, &map).expect("link");
    let args = ["-p", &pid, "--write-maps", "--symbols", "perfmap"];
    let output = jvmprobe_tests::tool::run("javaprof", &args);
    assert_eq!(output.status.code(), Some(1), "{}", output.stdout);
    assert!(output.stderr.contains(&format!("perf-{pid}.map")), "{}", output.stderr);
    assert!(has(&write(&[]), "CpuLoad.small"));
    assert!(std::fs::symlink_metadata(&map).expect("the map").is_file());
    assert_eq!(std::fs::read_to_string(&victim).expect("it is there"), "precious");
    std::fs::remove_file(&map).expect("remove");
}

/// The JVM's memory and the agent give the same result: every method, every inlined range, every
/// line.
#[test]
fn memory_and_agent_report_equal_methods() {
    compare_memory_with_agent(&["temurin-17", "temurin-25"]);
}

#[test]
#[ignore = "long: make test-all"]
fn memory_and_agent_report_equal_methods_on_other_jdks() {
    compare_memory_with_agent(&["zulu-8", "temurin-11", "debian-17", "temurin-21", "musl-17"]);
}

fn compare_memory_with_agent(names: &[&str]) {
    run_beside_others();
    binary("javaprof");
    for name in names {
        let mut load = Load::start_program(runtimes::named(name), &exact_inlining(), "CpuLoad");
        load.run(1.5);
        let pid = load.pid().to_string();
        let map = |symbols: &str| -> HashMap<u64, String> {
            let args = ["-p", &pid, "--write-maps", "--unfold", "all", "--lines", "--signatures"];
            let args = [&args[..], &["--symbols", symbols]].concat();
            let output = jvmprobe_tests::tool::run("javaprof", &args);
            assert!(output.status.success(), "{name}: {}", output.stderr);
            let path = format!("/tmp/perf-{pid}.map");
            let text = std::fs::read_to_string(&path).expect("the map");
            std::fs::remove_file(&path).expect("remove the map");
            let entry = |line: &str| {
                let (start, rest) = line.split_once(' ')?;
                let (_, code) = rest.split_once(' ')?;
                Some((u64::from_str_radix(start, 16).ok()?, code.to_owned()))
            };
            text.lines().filter_map(entry).collect()
        };
        // The JVM is idle, but it may still be compiling, and it runs some code to load an agent.
        // So its memory is read both before and after.
        let (before, reported, after) = (map("hotspot"), map("agent"), map("hotspot"));
        let mut methods = 0;
        for (start, code) in &reported {
            // The agent has more specific names for stubs, and one name for all method handle
            // intrinsics.
            if !code.contains('.') || code.starts_with("java.lang.invoke.MethodHandle.") {
                continue;
            }
            let read = [before.get(start), after.get(start)];
            assert!(read.contains(&Some(code)), "{name}: at {start:x}: {code}, but {read:?}");
            methods += 1;
        }
        println!("{name}: {methods} methods and ranges are the same, of {}", reported.len());
        assert!(methods > 100, "{name}: {methods}");
    }
}

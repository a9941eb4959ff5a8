//! JDK 8: what can be done is done, and what cannot be is said.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use jvmprobe_tests::{
    load::Load,
    need_root,
    runtimes::{named, of_unstable},
    tool::{self, Tool, assert_refused},
};

#[test]
fn a_build_with_symbols_is_read() {
    need_root();
    let mut load = Load::start(named("zulu-8"), "-XX:+UseSerialGC");
    let pid = load.pid().to_string();
    let output = tool::run("javaobjnew", &["-p", &pid, "--exact"]);
    assert_refused(&output, 1, &["JDK 8", "-XX:+DTraceAllocProbes", "leave --exact out"]);
    let how = ["--walk", "hotspot", "--symbols", "hotspot"];
    let tool = Tool::start("javaprof", &[&["-p", &pid][..], &how].concat());
    load.run(1.0);
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    assert!(!output.stderr.contains("agent"), "{}", output.stderr);
    assert!(output.stdout.contains("GcLoad.allocate"), "{}", output.stdout);
    // A map for perf it cannot write.
    let output = tool::run("javaprof", &["-p", &pid, "--symbols", "perfmap"]);
    assert_refused(&output, 1, &["JDK 8 cannot write a map", "--symbols hotspot or agent"]);
}

#[test]
fn a_build_without_probes_and_symbols_is_told_of_both() {
    need_root();
    let Some(runtime) = of_unstable("sid-8") else { return };
    let load = Load::start(runtime, "-XX:+UseSerialGC");
    let pid = load.pid().to_string();
    let words = ["no USDT probe", "no symbol table", "it is stripped", "install openjdk-8-dbg"];
    // With these, its counters do not do.
    for option in ["--stack", "--pools"] {
        let output = tool::run("javagc", &["-p", &pid, option]);
        assert_eq!(output.status.code(), Some(1), "{}", output.stderr);
    }
    let output = tool::run("javagc", &["-p", &pid, "-d", "0.1"]);
    assert!(output.status.success(), "{}", output.stderr);
    assert!(output.stderr.contains("told by its own counters"), "{}", output.stderr);
    for word in words {
        assert!(output.stderr.contains(word), "{word}: {}", output.stderr);
    }
    let words = ["it is stripped", "a build with its symbol table", "install openjdk-8-dbg"];
    assert_refused(&tool::run("javaobjnew", &["-p", &pid]), 1, &words);
    let output = tool::run("javaobjnew", &["-p", &pid, "--exact"]);
    assert_refused(&output, 1, &["no USDT probe hotspot:object__alloc", "with probes"]);
    assert!(!output.stderr.contains("leave --exact out"), "{}", output.stderr);
}

/// Young and full collections that the log has, each with its cause and its nanoseconds.
fn logged(log: &str) -> [Vec<(String, u64)>; 2] {
    let mut found = [Vec::new(), Vec::new()];
    for line in log.lines() {
        let Some((_, text)) = line.split_once(": [") else { continue };
        let (kind, full) = match text.strip_prefix("Full GC (") {
            Some(rest) => (rest, 1),
            None => (text.strip_prefix("GC (").unwrap_or_default(), 0),
        };
        let Some((cause, rest)) = kind.split_once(") ") else { continue };
        let Some((_, seconds)) = rest.trim_end_matches(" secs]").rsplit_once(", ") else {
            continue;
        };
        let seconds: f64 = seconds.parse().unwrap();
        found[full].push((cause.to_owned(), (seconds * 1e9) as u64));
    }
    found
}

/// Each collection is told once, by the JVM's own stamps or as a part of a sum.
#[test]
fn without_probes_and_symbols_collections_are_counted() {
    need_root();
    let Some(runtime) = of_unstable("sid-8") else { return };
    // Serial's log has a young collection and the full one behind it in one line.
    for flags in ["-XX:+UseParallelGC", "-XX:+UseParallelGC -XX:-UseAdaptiveSizePolicy"] {
        let mut load = Load::start(runtime, flags);
        let pid = load.pid().to_string();
        let tool = Tool::start("javagc", &["-p", &pid, "--json"]);
        let begin = load.log().len();
        load.run(2.5);
        let log = load.log();
        let output = tool.interrupt();
        assert!(output.status.success(), "{flags}: {}", output.stderr);
        load.quit();
        let logged = logged(&log[begin..]);
        // How many of each there are is up to the JVM: at times it does little but full ones.
        assert!(logged.iter().map(Vec::len).sum::<usize>() > 10, "{flags}: {logged:?}");
        assert!(logged.iter().all(|kind| !kind.is_empty()), "{flags}: {logged:?}");
        let records = output.json();
        let mut alone = 0;
        for (full, logged) in logged.iter().enumerate() {
            let mut logged = logged.iter();
            let is_of = |r: &&serde_json::Value| r["full"].as_bool() == Some(full == 1);
            for record in records.iter().filter(|r| r["type"] == "pause").filter(is_of) {
                let number = |name: &str| record[name].as_u64().unwrap();
                let these: Vec<_> = logged.by_ref().take(number("collections") as usize).collect();
                assert_eq!(these.len() as u64, number("collections"), "{flags}: {record}");
                let sum: u64 = these.iter().map(|(_, ns)| ns).sum();
                // The log's stamps are outside of the counters', some 20 microseconds where
                // nothing comes between them.
                let slack = 5_000_000 * these.len() as u64 + sum / 10;
                assert!(number("pause_ns").abs_diff(sum) < slack, "{flags}: {these:?} {record}");
                assert!(number("stopped_ns") >= number("pause_ns"), "{record}");
                alone += usize::from(these.len() == 1);
            }
            assert_eq!(logged.next(), None, "{flags}");
        }
        assert!(alone > 0, "{flags}: {alone}");
    }
}

//! JVMs in user namespaces answer javaprof's requests for their compiled code, and are not
//! disturbed by them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, chown},
    path::Path,
};

use jvmprobe_tests::{
    folded,
    load::{FRAMES, Load},
    run_beside_others,
    runtimes::named,
    tool::{self, Tool, assert_refused, binary},
    userns::{Mapping, Namespaced},
};

const MAPPINGS: [Mapping; 4] =
    [Mapping::RootOnly, Mapping::RootOnlyAndPids, Mapping::Other, Mapping::Range];

fn start(runtime: &str, mapping: Mapping) -> Namespaced {
    run_beside_others();
    binary("javaprof");
    Namespaced::start(named(runtime), mapping, FRAMES, "CpuLoad")
}

/// Returns the files in a folder with their owners, except the JVM's performance data.
fn files(folder: &Path) -> BTreeMap<String, u32> {
    fs::read_dir(folder)
        .unwrap()
        .flatten()
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().uid()))
        .filter(|(name, _)| !name.starts_with("hsperfdata_"))
        .collect()
}

/// Asserts that javaprof's attach request works although it is the first one that the JVM gets. Before
/// its first request, a JVM has no attach socket.
fn assert_jvm_answers_first_request(runtime: &str, mapping: Mapping, symbols: &str) {
    let what = format!("{runtime} {mapping:?} {symbols}");
    let mut jvm = start(runtime, mapping);
    jvm.run(0.5);
    let args = ["-p", &jvm.pid().to_string(), "-F", "499", "-f", "--symbols", symbols];
    let tool = Tool::start("javaprof", &args);
    jvm.run(0.5);
    let output = tool.interrupt();
    assert!(output.status.success(), "{what}: {output:?}");
    let lines = folded::parse(&output.stdout);
    assert!(lines.iter().any(|line| line.has("CpuLoad.deep")), "{what}: {lines:#?}");
    // Only the socket is left, on which the JVM listens from then on.
    let socket = format!(".java_pid{}", jvm.ns_pid());
    assert_eq!(files(&jvm.tmp()), BTreeMap::from([(socket, mapping.uid())]), "{what}");
    assert_jvm_is_undisturbed(&mut jvm, &what);
}

/// Asserts that the JVM works and has printed only its program's output, no thread dump.
fn assert_jvm_is_undisturbed(jvm: &mut Namespaced, what: &str) {
    jvm.run(0.1);
    let output = jvm.output();
    let is_own = |line: &str| line.starts_with("ready ") || line.starts_with("done ");
    // From JDK 21 on, the JVM prints a warning when an agent is loaded.
    let is_warning = |line: &str| line.starts_with("WARNING: ");
    assert!(output.lines().all(|line| is_own(line) || is_warning(line)), "{what}: {output}");
}

#[test]
fn jvm_in_user_namespace_loads_the_agent() {
    run_beside_others();
    for mapping in MAPPINGS {
        assert_jvm_answers_first_request("temurin-17", mapping, "agent");
    }
    for runtime in ["temurin-11", "temurin-25"] {
        assert_jvm_answers_first_request(runtime, Mapping::Range, "agent");
    }
}

#[test]
fn jvm_in_user_namespace_writes_its_perf_map() {
    run_beside_others();
    for mapping in MAPPINGS {
        assert_jvm_answers_first_request("temurin-21", mapping, "perfmap");
    }
}

#[test]
fn written_perf_maps_belong_to_the_mapped_user() {
    run_beside_others();
    for mapping in MAPPINGS {
        let mut jvm = start("temurin-17", mapping);
        jvm.run(0.5);
        let output = tool::run("javaprof", &["-p", &jvm.pid().to_string(), "--write-maps"]);
        assert!(output.status.success(), "{mapping:?}: {output:?}");
        let name = format!("perf-{}.map", jvm.ns_pid());
        assert_eq!(files(&jvm.tmp()), BTreeMap::from([(name.clone(), mapping.uid())]));
        let owner = format!("belongs to user {},", mapping.uid());
        assert!(output.stdout.contains(&owner), "{mapping:?}: {}", output.stdout);
        let map = fs::read_to_string(jvm.tmp().join(name)).unwrap();
        assert!(map.contains("CpuLoad.deep"), "{mapping:?}: {map}");
        assert_jvm_is_undisturbed(&mut jvm, &format!("{mapping:?}"));
    }
}

#[test]
fn jvm_of_unmapped_user_gets_no_attach_request() {
    run_beside_others();
    let mut jvm = start("temurin-17", Mapping::Nothing);
    for symbols in ["agent", "perfmap"] {
        let args = ["-p", &jvm.pid().to_string(), "-d", "0.2", "--symbols", symbols];
        let words = ["cannot attach", "user 12345 is not mapped"];
        assert_refused(&tool::run("javaprof", &args), 1, &words);
    }
    assert_jvm_is_undisturbed(&mut jvm, "nothing mapped");
    // The names are read from the JVM's memory without a request. The host's /tmp is not a mount of
    // the JVM's user namespace, so the map belongs to root.
    let output = tool::run("javaprof", &["-p", &jvm.pid().to_string(), "--write-maps"]);
    let map = format!("/tmp/perf-{}.map", jvm.pid());
    let owner = fs::metadata(&map).map(|meta| meta.uid());
    fs::remove_file(&map).unwrap();
    assert!(output.status.success() && owner.unwrap() == 0, "{output:?}");
}

/// The attach file, which makes the JVM treat SIGQUIT as an attach request, exists already. If it
/// belongs to another user, javaprof refuses to attach. If it belongs to the JVM's user (here root),
/// javaprof uses it and does not remove it.
#[test]
fn leftover_attach_file_is_used_and_foreign_one_rejected() {
    run_beside_others();
    binary("javaprof");
    let mut load = Load::start_program(named("temurin-17"), FRAMES, "CpuLoad");
    load.run(0.5);
    let pid = load.pid().to_string();
    let request = format!("/proc/{pid}/cwd/.attach_pid{pid}");
    let run = || tool::run("javaprof", &["-p", &pid, "-d", "0.2", "--symbols", "perfmap"]);
    fs::write(&request, "").unwrap();
    chown(&request, Some(12345), None).unwrap();
    let refused = run();
    chown(&request, Some(0), None).unwrap();
    // If a signal had been sent, the JVM would have printed its threads.
    load.run(0.1);
    let served = run();
    fs::remove_file(&request).expect("javaprof must not remove this file");
    assert_refused(
        &refused,
        1,
        &["cannot attach", &request, "not a regular file of the JVM's user"],
    );
    assert!(served.status.success(), "{served:?}");
    load.run(0.1);
    load.quit();
}

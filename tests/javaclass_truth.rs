//! javaclass compared with the JVM's log, its probes and a program's own record, for each class and
//! each method.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use jvmprobe_tests::{
    load::{self, Load},
    run_beside_others,
    runtimes::{self, Runtime},
    tool::{Tool, run},
};
use serde_json::Value;

const JDKS: [&str; 4] = ["temurin-11", "temurin-17", "temurin-21", "temurin-25"];
const NEWEST: [&str; 3] = ["sid-26", "sid-27", "sid-28"];

fn text<'a>(record: &'a Value, field: &str) -> &'a str {
    record[field].as_str().unwrap_or_else(|| panic!("no {field} in {record}"))
}

/// Returns javaclass's records of a JVM, after checking that the report is complete.
fn records(load: &Load, args: &[&str]) -> Vec<Value> {
    let pid = load.pid().to_string();
    let output = run("javaclass", &[&["-p", &pid, "-j"], args].concat());
    assert!(output.status.success(), "{output:?}");
    let records = output.json();
    let summary = records.last().unwrap();
    assert_eq!((text(summary, "type"), &summary["complete"]), ("summary", &true.into()));
    assert_eq!(summary["unreadable"], 0, "{}", output.stderr);
    records
}

fn classes(records: &[Value]) -> impl Iterator<Item = &Value> {
    records.iter().filter(|record| record["type"] == "class")
}

/// Returns usage and reason, by class and method with its descriptor.
fn methods(records: &[Value]) -> BTreeMap<(String, String), (String, String)> {
    let mut found = BTreeMap::new();
    for class in classes(records) {
        for method in class["method_list"].as_array().into_iter().flatten() {
            let name = format!("{}{}", text(method, "name"), text(method, "descriptor"));
            let why = method["why"].as_str().unwrap_or_default();
            let usage = (text(method, "usage").to_owned(), why.to_owned());
            found.insert((text(class, "class").to_owned(), name), usage);
        }
    }
    found
}

/// Asserts that the reported usage agrees with the methods' names (`called…`, `late…`, `never…`).
/// If `expects_known` is set, also bounds the number of called methods that are reported as
/// unknown.
fn check_names(title: &str, records: &[Value], expects_known: bool) {
    let (mut called, mut unknown) = (0, 0);
    for ((class, method), (usage, why)) in methods(records) {
        if !class.starts_with("UseLoad$") || usage == "abstract" {
            continue;
        }
        let what = format!("{title}: {class}.{method} is {usage} ({why})");
        if method.starts_with("called") || method.starts_with("late") {
            assert_ne!(usage, "not called", "{what}");
            called += 1;
            unknown += u32::from(usage == "unknown");
        } else if method.starts_with("never") {
            assert_ne!(usage, "called", "{what}");
            let is_small = method.starts_with("neverGetter");
            assert!(!expects_known || is_small || usage == "not called", "{what}");
        }
    }
    println!("{title}: {unknown} of {called} called methods are unknown");
    assert!(called > 20, "{title}: {called}");
    // If an accessor was first called by compiled code, its usage cannot be known.
    assert!(!expects_known || unknown * 10 <= called, "{title}: {unknown} of {called} unknown");
}

fn check_states(title: &str, records: &[Value]) {
    let state = |name: &str| {
        let class = classes(records).find(|class| text(class, "class") == name);
        class.map(|class| text(class, "state").to_owned())
    };
    for (class, expected) in [
        ("UseLoad", Some("initialized")),
        ("UseLoad$OnlyLoaded", Some("loaded")),
        ("UseLoad$OnlyLinked", Some("linked")),
        ("UseLoad$Blocks", Some("initializing")),
        ("UseLoad$Fails", Some("failed")),
        ("UseLoad$NeverLoaded", None),
    ] {
        assert_eq!(state(class).as_deref(), expected, "{title}: {class}");
    }
}

fn check_use(runtime: &Runtime, flags: &str, expects_known: bool) {
    let title = format!("{} {flags}", runtime.name);
    let mut load = Load::start_program(runtime, flags, "UseLoad");
    let records_before = records(&load, &["--methods"]);
    check_states(&title, &records_before);
    load.ask("go");
    load.ask("late");
    let records = records(&load, &["--methods"]);
    check_states(&title, &records);
    check_names(&title, &records, expects_known);
    let blocks = classes(&records).find(|class| text(class, "class") == "UseLoad$Blocks");
    let tid = blocks.unwrap()["initializer"].as_u64().unwrap();
    let comm = std::fs::read_to_string(format!("/proc/{}/task/{tid}/comm", load.pid()));
    assert_eq!(comm.unwrap(), "blocks\n", "{title}");
    load.quit();
}

#[test]
fn called_methods_are_never_reported_unused() {
    for runtime in runtimes::selected(&JDKS) {
        check_use(runtime, "", true);
    }
}

#[test]
fn called_methods_are_never_reported_unused_newest_jdks() {
    for runtime in NEWEST.into_iter().filter_map(runtimes::of_unstable) {
        check_use(runtime, "", true);
    }
}

#[test]
fn called_methods_are_never_reported_unused_with_jvm_flags() {
    for (name, flags, expects_known) in [
        ("temurin-25", "-Xshare:off", true),
        ("temurin-11", "-XX:-TieredCompilation -XX:+UseSerialGC", true),
        ("temurin-17", "-Xint", false),
        ("temurin-21", "-XX:+UseZGC", true),
    ] {
        check_use(runtimes::named(name), flags, expects_known);
    }
}

#[test]
#[ignore = "long: make test-all"]
fn called_methods_are_never_reported_unused_with_more_flags() {
    for (name, flags, expects_known) in [
        ("temurin-17", "-Xshare:off", true),
        ("temurin-21", "-XX:-TieredCompilation", true),
        ("temurin-17", "-XX:TieredStopAtLevel=1", false),
        ("temurin-21", "-XX:TieredStopAtLevel=3", false),
        ("temurin-25", "-Xint", false),
        ("temurin-11", "-Xcomp", false),
        ("temurin-21", "-Xcomp", false),
        ("temurin-25", "-XX:+UseZGC", true),
        ("temurin-25", "-XX:+UseCompactObjectHeaders", true),
        ("temurin-17", "-XX:-UseCompressedOops", true),
        ("temurin-21", "-XX:+UseParallelGC -XX:-UseCompressedClassPointers", true),
    ] {
        check_use(runtimes::named(name), flags, expects_known);
    }
}

/// Returns a class name in the form that javaclass reports: without addresses and numbers of hidden
/// classes.
fn without_hidden_class_suffix(name: &str) -> String {
    let name = name.split(['/', '+']).next().unwrap();
    match name.rsplit_once("$$Lambda$") {
        Some((host, number)) if number.bytes().all(|b| b.is_ascii_digit()) => {
            format!("{host}$$Lambda")
        }
        _ => name.to_owned(),
    }
}

/// Contents of a log: names of all loaded classes with their sources, and names of the initialised
/// ones.
struct Log {
    loaded: Vec<(String, String)>,
    initialized: BTreeSet<String>,
}

fn read_log(path: &Path) -> Log {
    let log = std::fs::read_to_string(path).unwrap();
    let mut read = Log { loaded: Vec::new(), initialized: BTreeSet::new() };
    for line in log.lines() {
        if let Some((name, source)) = line.split_once(" source: ") {
            read.loaded.push((without_hidden_class_suffix(name.trim()), source.trim().to_owned()));
        } else if let Some((_, rest)) = line.split_once("Initializing '") {
            let name = rest.split('\'').next().unwrap();
            // Addresses follow a plus, or a slash that does not belong to a package.
            let cut = name.find("/0x").or_else(|| name.find("+0x")).unwrap_or(name.len());
            read.initialized.insert(without_hidden_class_suffix(&name[..cut].replace('/', ".")));
        }
    }
    read
}

/// Asserts that each class is reported as often as it is logged, and in the state that the log
/// shows.
fn check_log(runtime: &Runtime, flags: &str) {
    let title = format!("{} {flags}", runtime.name);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("classes.log");
    let flags = format!("{flags} -Xlog:class+load,class+init:file={}:none", path.display());
    let mut load = Load::start_program(runtime, &flags, "UseLoad");
    load.ask("go");
    let records = records(&load, &[]);
    // The log is read before `quit`, because the JVM loads more classes when it exits.
    let log = read_log(&path);
    load.quit();
    let mut counts: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
    for (name, _) in &log.loaded {
        counts.entry(name).or_default().0 += 1;
    }
    for class in classes(&records) {
        counts.entry(text(class, "class")).or_default().1 += class["classes"].as_i64().unwrap();
    }
    let wrong: Vec<_> =
        counts.iter().filter(|(_, (logged, reported))| logged != reported).collect();
    assert!(wrong.is_empty(), "{title}: logged and reported counts differ: {wrong:?}");
    let mut states = 0;
    for class in classes(&records).filter(|class| class["hidden"] == false) {
        let name = text(class, "class");
        let has_begun = !matches!(text(class, "state"), "loaded" | "linked");
        let is_logged = log.initialized.contains(name);
        // From JDK 26 on, archives contain classes that are already initialised.
        let is_ready = runtime.major >= 26 && class["archived"] == true && !is_logged;
        assert!(has_begun == is_logged || is_ready && has_begun, "{title}: {class}");
        states += 1;
    }
    for (name, source) in &log.loaded {
        let class = classes(&records).find(|class| text(class, "class") == name.as_str());
        let Some(class) = class else { continue };
        if class["hidden"] == true {
            continue;
        }
        if source.starts_with("shared objects file") {
            assert_eq!(class["archived"], true, "{title}: {source}: {class}");
        } else if let Some(module) = source.strip_prefix("jrt:/") {
            assert_eq!(class["origin"], module, "{title}: {source}: {class}");
            assert_eq!(class["archived"], false, "{title}: {source}: {class}");
        } else if let Some(path) = source.strip_prefix("file:") {
            assert_eq!(class["origin"], path, "{title}: {source}: {class}");
        }
    }
    println!("{title}: {} classes logged, {states} states right", log.loaded.len());
    assert!(states > 300, "{title}: {states}");
}

#[test]
fn every_logged_class_is_reported_with_state_and_origin() {
    for name in JDKS {
        check_log(runtimes::named(name), "");
        check_log(runtimes::named(name), "-Xshare:off");
    }
    for runtime in NEWEST.into_iter().filter_map(runtimes::of_unstable) {
        check_log(runtime, "");
    }
}

/// Runs a program that uses many parts of the JDK, and asserts that no method that it enters is
/// reported as unused.
fn check_entered(runtime: &Runtime, flags: &str, rounds: u32, jar: Option<&Path>) {
    run_beside_others();
    let title = format!("{} {flags}", runtime.name);
    let flags = format!("-XX:+DTraceMethodProbes {flags}");
    let jar = jar.unwrap_or_else(|| load::classes());
    let mut load = Load::start_jar(runtime, &flags, jar, "WorkLoad");
    let pid = load.pid().to_string();
    let tracer = Tool::start("entered", &["-p", &pid]);
    load.ask(&format!("go {rounds}"));
    let entered = tracer.interrupt();
    assert!(entered.status.success(), "{entered:?}");
    let reported = methods(&records(&load, &["--methods"]));
    load.quit();
    let (mut called, mut unknown, mut missing) = (0_usize, BTreeMap::<_, usize>::new(), Vec::new());
    let mut wrong = Vec::new();
    for record in entered.json() {
        let (class, method) =
            (&without_hidden_class_suffix(text(&record, "class")), text(&record, "method"));
        let descriptor = text(&record, "descriptor");
        // Longer names were truncated; hidden classes have their address in the name.
        if class.contains("0x") || descriptor.len() > 120 || method.len() > 60 {
            continue;
        }
        match reported.get(&(class.to_owned(), format!("{method}{descriptor}"))) {
            None => missing.push(format!("{class}.{method}{descriptor}")),
            Some((usage, why)) => {
                called += 1;
                match usage.as_str() {
                    "called" => {}
                    "unknown" => *unknown.entry(why.clone()).or_default() += 1,
                    _ => wrong.push(format!("{class}.{method}{descriptor}: {usage}")),
                }
            }
        }
    }
    let all: usize = unknown.values().sum();
    println!(
        "{title}: {called} methods entered, {all} of them unknown {unknown:?}, {} gone",
        missing.len()
    );
    assert!(wrong.is_empty(), "{title}: {} wrong: {wrong:#?}", wrong.len());
    assert!(called > 3000, "{title}: {called}");
    assert!(all * 10 < called, "{title}: {all} of {called} unknown: {unknown:?}");
    assert!(missing.len() * 100 < called, "{title}: {called} reported, missing {missing:#?}");
}

#[test]
fn entered_methods_are_never_reported_unused() {
    check_entered(runtimes::named("temurin-21"), "", 8, None);
}

#[test]
#[ignore = "long: make test-all"]
fn entered_methods_are_never_reported_unused_other_jdks() {
    for name in JDKS.into_iter().filter(|name| *name != "temurin-21") {
        check_entered(runtimes::named(name), "", 8, None);
    }
}

#[test]
#[ignore = "long: make test-all"]
fn entered_methods_are_never_reported_unused_newest_jdks() {
    for runtime in NEWEST.into_iter().filter_map(runtimes::of_unstable) {
        check_entered(runtime, "", 8, None);
    }
}

/// Checks a JVM in which methods are compiled early and often, and deoptimised; one without tiers;
/// and one without a CDS archive.
fn check_entered_with_jit_flags(runtime: &str) {
    const EARLY: &str = "-XX:Tier3InvocationThreshold=2 -XX:Tier3MinInvocationThreshold=2 \
                         -XX:Tier3CompileThreshold=2 -XX:Tier4InvocationThreshold=20 \
                         -XX:Tier4MinInvocationThreshold=20 -XX:Tier4CompileThreshold=20";
    for flags in [EARLY, "-XX:-TieredCompilation", "-Xshare:off"] {
        check_entered(runtimes::named(runtime), flags, 60, None);
    }
}

#[test]
#[ignore = "long: make test-all"]
fn entered_methods_are_not_reported_unused_jit_flags_jdk_11() {
    check_entered_with_jit_flags("temurin-11");
}

#[test]
#[ignore = "long: make test-all"]
fn entered_methods_are_not_reported_unused_jit_flags_jdk_17() {
    check_entered_with_jit_flags("temurin-17");
}

#[test]
#[ignore = "long: make test-all"]
fn entered_methods_are_not_reported_unused_jit_flags_jdk_21() {
    check_entered_with_jit_flags("temurin-21");
}

#[test]
#[ignore = "long: make test-all"]
fn entered_methods_are_not_reported_unused_jit_flags_jdk_25() {
    check_entered_with_jit_flags("temurin-25");
}

/// An AOT cache contains call counts of another run (JEP 515).
#[test]
fn call_counts_from_an_aot_cache_are_ignored() {
    let runtime = runtimes::named("temurin-25");
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("load.aot");
    let flags = format!("-XX:AOTCacheOutput={}", cache.display());
    // An AOT cache requires a class path of jars.
    let jar = load::jar(dir.path());
    let mut load = Load::start_jar(runtime, &flags, &jar, "WorkLoad");
    load.ask("go 30");
    load.quit();
    assert!(cache.exists());
    let flags = format!("-XX:AOTCache={}", cache.display());
    // This run has not executed a round yet, so methods that only the training run called must not
    // be reported as called.
    let load = Load::start_jar(runtime, &flags, &jar, "WorkLoad");
    let reported = methods(&records(&load, &["--methods"]));
    let of_parser =
        reported.iter().filter(|((class, _), _)| class.starts_with("com.sun.org.apache"));
    for (method, (usage, _)) in of_parser {
        assert_ne!(usage, "called", "{method:?}");
    }
    load.quit();
    check_entered(runtime, &flags, 5, Some(&jar));
}

/// Returns the lines of HotSpot's log file, each with the ID of the thread that wrote it. A `<writer>` element
/// precedes the lines of a thread. It may stand in the middle of another thread's line, which continues after the next
/// `<writer>` element of that thread.
fn lines_of_threads(log: &str) -> Vec<(&str, String)> {
    let (mut lines, mut last_of) = (Vec::<(&str, String)>::new(), BTreeMap::<&str, usize>::new());
    let (mut writer, mut is_first) = ("", false);
    for line in log.lines() {
        if let Some(thread) = line.strip_prefix("<writer thread='") {
            (writer, is_first) = (thread.split('\'').next().unwrap(), true);
            continue;
        }
        // A line about a compilation begins with a time, and one about a callee with "@".
        let is_begin = line.trim_start().starts_with(|c: char| c == '@' || c.is_ascii_digit());
        match last_of.get(writer).filter(|_| is_first && !is_begin) {
            Some(&torn) => lines[torn].1.push_str(line),
            None => {
                last_of.insert(writer, lines.len());
                lines.push((writer, line.to_owned()));
            }
        }
        is_first = false;
    }
    lines
}

/// Returns the methods that C1 has inlined at tier 1 or 2, where it does not count calls, by class
/// and name.
fn inlined_uncounted(log: &str) -> BTreeSet<(String, String)> {
    let (mut tiers, mut inlined) = (BTreeMap::new(), BTreeSet::new());
    for (writer, line) in lines_of_threads(log) {
        let line = line.replace("&lt;", "<").replace("&gt;", ">");
        let Some((before, after)) = line.split_once("::") else { continue };
        let class = before.split_whitespace().last().unwrap_or_default();
        let name = after.split_whitespace().next().unwrap_or_default();
        match before.split_once("@ ") {
            // A line about a callee: the bytecode index of the call, then the callee.
            Some(_) => {
                let message = after.split_once(" bytes)").map(|(_, message)| message.trim());
                let is_inlined = matches!(message, Some("" | "inline"));
                if is_inlined && matches!(tiers.get(writer), Some(1 | 2)) {
                    inlined.insert((without_hidden_class_suffix(class), name.to_owned()));
                }
            }
            // A line about a compilation: time, number, flags, tier, method.
            None => {
                let mut words = before.split_whitespace().rev().skip(1);
                if let Some(tier) = words.next().and_then(|tier| tier.parse::<u32>().ok()) {
                    tiers.insert(writer, tier);
                }
            }
        }
    }
    inlined
}

#[test]
fn torn_lines_of_the_compilation_log_are_joined() {
    let log = "<writer thread='1'/>\n  12  3  2  A::a (9 bytes)\n  @ 1  B::large\n<writer thread='2'/>\n  \
               13  4  3  C::c (9 bytes)\n<writer thread='1'/>\n (99 bytes)   callee is too large\n  @ 5  \
               B::small (3 bytes)   inline\n";
    let expected = [("B".to_owned(), "small".to_owned())];
    assert_eq!(inlined_uncounted(log), BTreeSet::from(expected));
}

/// Asserts that each method that was inlined without counting is reported as called or unknown,
/// because it may have run.
fn check_inlined(runtime: &Runtime) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("compilations.log");
    // With these delays of 0, C1 uses tier 2 whenever C2 has work, so tier 2 code is frequent on
    // any machine.
    let flags = format!(
        "-XX:+UnlockDiagnosticVMOptions -XX:+PrintCompilation -XX:+PrintInlining -XX:+LogVMOutput \
         -XX:-DisplayVMOutput -XX:Tier3DelayOn=0 -XX:Tier3DelayOff=0 -XX:LogFile={}",
        path.display()
    );
    let mut load = Load::start_program(runtime, &flags, "WorkLoad");
    load.ask("go 20");
    // The log is read before the report, because the JVM compiles and inlines further methods after the report.
    // Its last line may be incomplete.
    let log = std::fs::read_to_string(&path).unwrap();
    let (log, _) = log.rsplit_once('\n').unwrap();
    let inlined = inlined_uncounted(log);
    let reported = methods(&records(&load, &["--methods"]));
    load.quit();
    // The log has no descriptors, so a method counts as wrong only if all methods of this name are
    // reported as not called.
    let mut usages = BTreeMap::<_, BTreeSet<_>>::new();
    for ((class, method), (usage, why)) in &reported {
        let name = method.split('(').next().unwrap().to_owned();
        let usage = if why.is_empty() { usage } else { why };
        usages.entry((class.clone(), name)).or_default().insert(usage.as_str());
    }
    let is = |method: &&(String, String), usage: &str| {
        usages.get(*method).is_some_and(|all| all.iter().all(|one| *one == usage))
    };
    let wrong: Vec<_> = inlined.iter().filter(|method| is(method, "not called")).collect();
    let unknown = inlined.iter().filter(|method| is(method, "inlined uncounted")).count();
    println!("{}: {} methods inlined uncounted, {unknown} unknown", runtime.name, inlined.len());
    assert!(wrong.is_empty(), "{}: of {} inlined: {wrong:?}", runtime.name, inlined.len());
    assert!(inlined.len() > 100, "{}: {}", runtime.name, inlined.len());
}

#[test]
fn methods_inlined_without_counters_are_unknown() {
    check_inlined(runtimes::named("temurin-17"));
}

#[test]
#[ignore = "long: make test-all"]
fn methods_inlined_without_counters_are_unknown_other_jdks() {
    for name in ["temurin-11", "temurin-21", "temurin-25"] {
        check_inlined(runtimes::named(name));
    }
    for runtime in NEWEST.into_iter().filter_map(runtimes::of_unstable) {
        check_inlined(runtime);
    }
}

#[test]
fn methods_of_redefined_classes_are_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let (jar, manifest) = (dir.path().join("agent.jar"), dir.path().join("manifest"));
    let lines = "Premain-Class: RedefineLoad\nCan-Retransform-Classes: true\n";
    std::fs::write(&manifest, lines).unwrap();
    let mut command = std::process::Command::new("jar");
    command.arg("cfm").args([&jar, &manifest]).arg("-C").arg(load::classes());
    assert!(command.arg("RedefineLoad.class").status().unwrap().success());
    for name in JDKS {
        let flags = format!("-javaagent:{}", jar.display());
        let mut load = Load::start_program(runtimes::named(name), &flags, "RedefineLoad");
        let usage = |load: &Load, class: &str, method: &str| {
            let reported = methods(&records(load, &["--methods"]));
            let key = (format!("RedefineLoad${class}"), format!("{method}(I)V"));
            reported[&key].clone()
        };
        let (called, not) = ("called".to_owned(), "not called".to_owned());
        for class in ["Replaced", "Kept"] {
            assert_eq!(usage(&load, class, "calledBefore").0, called, "{name}");
            assert_eq!(usage(&load, class, "neverCalled").0, not, "{name}");
        }
        assert_eq!(usage(&load, "Kept", "neverCalledLong").0, not, "{name}");
        load.ask("go");
        let unknown = ("unknown".to_owned(), "redefined".to_owned());
        assert_eq!(usage(&load, "Replaced", "calledBefore"), unknown, "{name}");
        assert_eq!(usage(&load, "Replaced", "neverCalled"), unknown, "{name}");
        assert_eq!(usage(&load, "Kept", "calledBefore").0, called, "{name}");
        // Compiled code that was discarded with the old class may have inlined any short method.
        let uncounted = ("unknown".to_owned(), "inlined uncounted".to_owned());
        assert_eq!(usage(&load, "Kept", "neverCalled"), uncounted, "{name}");
        assert_eq!(usage(&load, "Kept", "neverCalledLong").0, not, "{name}");
        load.quit();
    }
}

#[test]
fn matches_of_a_list_set_the_exit_status() {
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("list");
    let mut load = Load::start_program(runtimes::named("temurin-21"), "", "UseLoad");
    load.ask("go");
    let pid = load.pid().to_string();
    let check = |lines: &str, status: i32, words: &[&str]| {
        std::fs::write(&list, lines).unwrap();
        let output = run("javaclass", &["-p", &pid, "--list", list.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(status), "{lines}: {output:?}");
        for word in words {
            assert!(output.stdout.contains(word), "no {word:?}: {output:?}");
        }
    };
    check("UseLoad$Used\n", 3, &["initialized", "UseLoad$Used"]);
    check("UseLoad$NeverLoaded\n# a comment\n\n", 0, &["not loaded"]);
    check("UseLoad$OnlyLoaded", 0, &["loaded"]);
    check("UseLoad$Used#calledOnce\nUseLoad$NeverLoaded", 3, &["called", "not loaded"]);
    check("UseLoad$Used#neverStatic(I)I", 0, &["not called"]);
    check("UseLoad$Used#neverGetter", 3, &["unknown", "small"]);
    check("com.acme.*", 0, &["not loaded"]);
    check("java.util.concurrent.*", 3, &["initialized", "java.base"]);
    check("a b", 1, &[]);
    let path = load::classes().display().to_string();
    check("UseLoad", 3, &[&path]);
}

#[test]
fn zgc_class_origins_are_found_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let jar = load::jar(dir.path());
    for name in ["temurin-21", "temurin-25"] {
        for path in [load::classes(), jar.as_path()] {
            let load = Load::start_jar(runtimes::named(name), "-XX:+UseZGC", path, "UseLoad");
            let records = records(&load, &[]);
            let mine = classes(&records).find(|class| text(class, "class") == "UseLoad").unwrap();
            let slash = if path.is_dir() { "/" } else { "" };
            assert_eq!(text(mine, "origin"), format!("{}{slash}", path.display()), "{name}");
            assert_eq!(mine["origin_by_name"], true, "{name}: {mine}");
            load.quit();
        }
    }
}

/// Each generation of a program's classes is unloaded while the next one runs.
#[test]
fn concurrent_class_unloading_leaves_reports_complete() {
    check_churn(&["temurin-17"]);
}

#[test]
#[ignore = "long: make test-all"]
fn concurrent_class_unloading_leaves_reports_complete_other_jdks() {
    check_churn(&["temurin-11", "temurin-21", "temurin-25"]);
}

fn check_churn(names: &[&str]) {
    for name in names {
        let mut load = Load::start_program(runtimes::named(name), "-Xmx32m", "ChurnLoad");
        let pid = load.pid().to_string();
        load.go(8.0);
        for _ in 0..40 {
            let output = run("javaclass", &["-p", &pid, "-j", "--methods"]);
            assert!(output.status.success(), "{name}: {output:?}");
            let records = output.json();
            assert_eq!(records.last().unwrap()["complete"], true, "{name}: {}", output.stderr);
            let unreadable = records.last().unwrap()["unreadable"].as_u64().unwrap();
            assert_eq!(unreadable, 0, "{name}: {}", output.stderr);
            for class in classes(&records) {
                let is_named = |c: char| c.is_alphanumeric() || "._$-".contains(c);
                assert!(text(class, "class").chars().all(is_named), "{name}: {class}");
            }
        }
        load.done();
        load.quit();
    }
}

//! Trace contexts that the threads of a program publish, in the results of each tool.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use jvmprobe_tests::{
    load::{Load, numbers},
    pprof,
    receiver::Receiver,
    run_beside_others,
    runtimes::named,
    stackload::compile_native,
    tool::{Output, Tool, binary, run},
};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

const OTEL: [&str; 2] = ["-DVARIABLE=otel_thread_ctx_v1", "-DCONVENTION=1"];
const ELASTIC: [&str; 2] =
    ["-DVARIABLE=elastic_apm_profiling_correlation_tls_v1", "-DCONVENTION=2"];
const IS_AARCH64: bool = cfg!(target_arch = "aarch64");
const DESCRIPTOR: &str = if IS_AARCH64 { "-mtls-dialect=desc" } else { "-mtls-dialect=gnu2" };
const GENERAL: &str = if IS_AARCH64 { "-mtls-dialect=trad" } else { "-mtls-dialect=gnu" };
/// Makes the block of thread-local variables too large for the space near the thread pointer.
const LARGE: &str = "-DPADDING=100000";

/// Spans for which each thread works in `SpanLoad.work` and `SpanLoad.allocate`; 0 for none.
const SPANS: [(&str, &[u64]); 5] =
    [("one", &[1]), ("two", &[2, 3]), ("none", &[0]), ("sleeps", &[4]), ("allocates", &[0, 5, 6])];

fn spans_of(thread: &str) -> Option<&'static [u64]> {
    SPANS.iter().find(|(name, _)| *name == thread).map(|(_, spans)| *spans)
}

/// Returns the number of a span by its ids; 0 for none.
fn span(trace: &str, span: &str) -> u64 {
    if trace.is_empty() && span.is_empty() {
        return 0;
    }
    let number = u64::from_str_radix(span, 16).unwrap() & 0xff;
    let expected = (
        format!("4bf92f3577b34da6a3ce929d0e0e47{number:02x}"),
        format!("00f067aa0ba902{number:02x}"),
    );
    assert_eq!((trace, span), (&*expected.0, &*expected.1));
    assert!((1..=6).contains(&number), "{span}");
    number
}

fn span_of(record: &Value) -> u64 {
    let text = |field: &str| record[field].as_str().unwrap_or_default();
    span(text("trace_id"), text("span_id"))
}

fn has(record: &Value, method: &str) -> bool {
    let stack = record["stack"].as_array().unwrap();
    stack.iter().any(|frame| frame["method"] == method)
}

fn number(record: &Value, field: &str) -> u64 {
    record[field].as_u64().unwrap_or_else(|| panic!("{field}: {record}"))
}

/// Asserts that the values have the same shares as `expected`, within this number of percentage points.
fn assert_shares(
    what: &str,
    values: &BTreeMap<u64, u64>,
    expected: &BTreeMap<u64, u64>,
    points: f64,
) {
    let share = |values: &BTreeMap<u64, u64>, span: &u64| {
        let all: u64 = values.values().sum();
        100.0 * values.get(span).copied().unwrap_or(0) as f64 / all as f64
    };
    println!("{what}: {values:?}, expected {expected:?}");
    for span in expected.keys() {
        let (found, wanted) = (share(values, span), share(expected, span));
        assert!((found - wanted).abs() < points, "{what}, span {span}: {found} % of {wanted} %");
    }
    assert!(values.keys().eq(expected.keys()), "{what}: {values:?}");
}

fn library(dir: &TempDir, flags: &[&str]) -> PathBuf {
    let path = dir.path().join("libspanload.so");
    compile_native("spanload.c", &path, flags);
    path
}

fn start(runtime: &str, library: &Path) -> Load {
    let runtime = named(runtime);
    // Later JDKs print a warning if a library is loaded without this flag.
    let access = if runtime.major >= 21 { "--enable-native-access=ALL-UNNAMED" } else { "" };
    let mut load = Load::start_program(runtime, &format!("-XX:+UseSerialGC {access}"), "SpanLoad");
    load.ask(&format!("load {}", library.display()));
    load
}

fn success(output: Output) -> Output {
    assert!(output.status.success(), "{output:?}");
    output
}

/// Checks the spans of the stacks in javaprof's JSON, and that the records of spans are their sums.
/// Returns the number of samples of `SpanLoad.work` in each span for the event `cpu`.
fn check_records(records: &[Value], what: &str) -> BTreeMap<u64, u64> {
    let of_type = |kind: &'static str| records.iter().filter(move |record| record["type"] == kind);
    let mut sums: HashMap<(String, u64), u64> = HashMap::new();
    let (mut cpu, mut slept) = (BTreeMap::new(), BTreeMap::<u64, u64>::new());
    for record in of_type("stack") {
        let (event, span) = (record["event"].as_str().unwrap(), span_of(record));
        *sums.entry((event.into(), span)).or_default() += number(record, "samples");
        let spans = spans_of(record["thread"].as_str().unwrap());
        assert!(span == 0 || spans.is_some_and(|all| all.contains(&span)), "{what}: {record}");
        if has(record, "SpanLoad.work") {
            assert!(spans.is_some_and(|all| all.contains(&span)), "{what}: {record}");
            if event == "cpu" {
                *cpu.entry(span).or_default() += number(record, "samples");
            }
        }
        let is_wait = event == "wall" && record["stack"][0]["method"] == "[blocked]";
        if is_wait && record["thread"] == "sleeps" {
            *slept.entry(span).or_default() += number(record, "samples");
        }
    }
    // The thread also waits before it has published its span and afterwards.
    assert_eq!(slept.iter().max_by_key(|(_, ns)| **ns).map(|(span, _)| *span), Some(4), "{what}");
    for record in of_type("span") {
        let key = (record["event"].as_str().unwrap().to_owned(), span_of(record));
        assert_eq!(sums.remove(&key), Some(number(record, "samples")), "{what}: {record}");
        assert_eq!(record["trace_id"].is_null(), record["span_id"].is_null());
    }
    assert!(sums.is_empty(), "{what}: no record of {sums:?}");
    cpu
}

/// Checks the labels of the samples in a file with javaprof's events.
fn check_labels(file: &Path, what: &str) {
    let mut seen = BTreeSet::new();
    for sample in pprof::read(file).samples {
        let label = |name: &str| sample.labels.get(name).map_or("", String::as_str);
        let span = span(label("trace_id"), label("span_id"));
        if sample.functions.iter().any(|function| function == "SpanLoad.work") {
            assert!(spans_of(label("thread")).unwrap().contains(&span), "{what}: {sample:?}");
            seen.insert(span);
        }
    }
    assert_eq!(seen, [0, 1, 2, 3].into(), "{what}");
}

fn check(what: &str, runtime: &str, flags: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let mut load = start(runtime, &library(&dir, flags));
    let (pid, file) = (load.pid().to_string(), dir.path().join("cpu.pb.gz"));
    let of_profile =
        ["-p", &pid, "-F", "499", "-e", "cpu", "-e", "wall", "-j", "-s", "-t", "--span", "-o"];
    let tool = Tool::start("javaprof", &[&of_profile[..], &[file.to_str().unwrap()]].concat());
    let measured = numbers(&load.ask("go 1.2"));
    let output = success(tool.interrupt());
    let cpu = check_records(&output.json(), what);
    let measured = measured.into_iter().filter_map(|(name, ns)| Some((name.parse().ok()?, ns)));
    assert_shares(what, &cpu, &measured.collect(), 8.0);
    check_labels(&file, what);

    let file = dir.path().join("alloc.pb.gz");
    let tool = Tool::start(
        "javaobjnew",
        &["-p", &pid, "-t", "-j", "--stacks", "-o", file.to_str().unwrap()],
    );
    let measured = numbers(&load.ask("go 0.6"));
    let output = success(tool.interrupt());
    // Standard output has each stack of a class and a thread once, without spans.
    let mut stacks = BTreeSet::new();
    for record in output.json().iter().filter(|record| record["type"] == "stack") {
        let key = ["class", "thread", "tid", "stack"].map(|field| record[field].to_string());
        assert!(stacks.insert(key), "{what}: {record}");
    }
    let mut bytes = BTreeMap::new();
    for sample in pprof::read(&file).samples {
        let label = |name: &str| sample.labels.get(name).map_or("", String::as_str);
        let span = span(label("trace_id"), label("span_id"));
        assert!(
            span == 0 || spans_of(label("thread")).is_some_and(|all| all.contains(&span)),
            "{what}: {sample:?}"
        );
        if sample.functions.iter().any(|function| function == "SpanLoad.allocate") {
            *bytes.entry(span).or_default() += sample.values[1];
        }
    }
    let measured = measured
        .into_iter()
        .filter_map(|(name, n)| Some((name.strip_prefix("bytes")?.parse().ok()?, n)));
    assert_shares(what, &bytes, &measured.collect(), 10.0);
    load.quit();
}

#[test]
fn opentelemetry_contexts_by_tls_descriptor_are_read() {
    run_beside_others();
    binary("javaprof");
    check("near the thread pointer", "temurin-21", &[&OTEL[..], &[DESCRIPTOR]].concat());
    check("in a module", "temurin-17", &[&OTEL[..], &[DESCRIPTOR, LARGE]].concat());
}

#[test]
fn elastic_contexts_by_general_dynamic_tls_are_read() {
    run_beside_others();
    check("glibc", "temurin-25", &[&ELASTIC[..], &[GENERAL, LARGE]].concat());
}

#[test]
fn elastic_contexts_on_musl_are_read() {
    run_beside_others();
    check("musl", "musl-17", &[&ELASTIC[..], &[GENERAL]].concat());
}

#[test]
fn library_loaded_during_the_trace_is_found() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let library = library(&dir, &[&OTEL[..], &[DESCRIPTOR]].concat());
    let mut load = Load::start_program(named("temurin-21"), "-XX:+UseSerialGC", "SpanLoad");
    let pid = load.pid().to_string();
    let file = dir.path().join("all.folded");
    let tool =
        Tool::start("javaprof", &["-p", &pid, "-F", "199", "--span", "-o", file.to_str().unwrap()]);
    load.ask("go 0.1");
    load.ask(&format!("load {}", library.display()));
    // Mappings are read again after two seconds, if samples arrive.
    load.ask("go 3");
    load.ask("go 0.5");
    let output = success(tool.interrupt());
    let first = |word: &str| {
        let rows = output.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.filter(|row| row.first() == Some(&word))
            .map(|row| row[1].to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(first("4bf92f3577b34da6a3ce929d0e0e4701"), ["00f067aa0ba90201"], "{output:?}");
    assert_eq!(first("(no"), ["span)"], "{output:?}");
    let folded = fs::read_to_string(&file).unwrap();
    let root = "java;[span 4bf92f3577b34da6a3ce929d0e0e4701-00f067aa0ba90201];";
    let of_span: Vec<_> = folded.lines().filter(|line| line.starts_with(root)).collect();
    assert!(of_span.iter().any(|line| line.contains(";SpanLoad.work")), "{folded}");
    assert!(folded.lines().any(|line| line.starts_with("java;[no span];")), "{folded}");
    load.quit();
}

/// Profiles the load, and asserts that it has samples and that no sample has a span.
fn assert_without_spans(load: &mut Load, what: &str) {
    let pid = load.pid().to_string();
    let tool = Tool::start("javaprof", &["-p", &pid, "-F", "199", "-j", "-s", "-t", "--span"]);
    load.ask("go 0.3");
    let output = success(tool.interrupt());
    assert!(output.stderr.contains("no sampled thread has published a span"), "{what}: {output:?}");
    let records = output.json();
    let works = |record: &&Value| record["type"] == "stack" && has(record, "SpanLoad.work");
    assert!(records.iter().any(|record| works(&record)), "{what}: {records:?}");
    let spans: Vec<_> = records.iter().filter(|record| record["type"] == "span").collect();
    assert!(spans.len() == 1 && spans[0]["trace_id"].is_null(), "{what}: {spans:?}");
}

#[test]
fn bad_pointers_give_samples_without_spans() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let mut load = start("temurin-21", &library(&dir, &[&OTEL[..], &[DESCRIPTOR]].concat()));
    // Unmapped, of the kernel, not canonical, and at the ends of the address space.
    for address in ["8", "ffff888000000000", "8000000000000000", "7ffffffffff8", "fffffffffffffff0"]
    {
        load.ask(&format!("bad {address}"));
        assert_without_spans(&mut load, address);
    }
    load.quit();
}

/// Replaces the relocations in the section headers by one for a TLS descriptor at this address. The dynamic linker
/// does not read section headers.
fn relocate(bytes: &mut Vec<u8>, address: u64) {
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let headers = usize::try_from(word(bytes, 40)).unwrap();
    let number = usize::from(u16::from_le_bytes(bytes[60..62].try_into().unwrap()));
    // The type of relocations of TLS descriptors.
    let kind = if IS_AARCH64 { 1031 } else { 36 };
    let relocation = [address, kind, 0].map(u64::to_le_bytes).concat();
    let mut changed = 0;
    for header in (0..number).map(|index| headers + 64 * index) {
        // SHT_RELA
        if bytes[header + 4] == 4 {
            let end = bytes.len() as u64;
            bytes[header + 24..header + 32].copy_from_slice(&end.to_le_bytes());
            bytes[header + 32..header + 40].copy_from_slice(&24_u64.to_le_bytes());
            changed += 1;
        }
    }
    bytes.extend(relocation);
    assert!(changed > 0);
}

#[test]
fn malformed_libraries_give_samples_without_spans() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let path = library(&dir, &[&OTEL[..], &[DESCRIPTOR]].concat());
    let whole = fs::read(&path).unwrap();
    let headers = usize::try_from(u64::from_le_bytes(whole[40..48].try_into().unwrap())).unwrap();
    let relocated = |address: u64| {
        let mut bytes = whole.clone();
        relocate(&mut bytes, address);
        bytes
    };
    for (what, bytes) in [
        ("truncated", whole[..headers].to_vec()),
        ("descriptor outside of the address space", relocated(u64::MAX - 7)),
        ("descriptor in the file's header", relocated(0)),
    ] {
        // A new file, because the JVM of the last round may still map the old one.
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        let mut load = start("temurin-21", &path);
        assert_without_spans(&mut load, what);
        load.quit();
    }
}

#[test]
fn daemon_pushes_links_and_stores_labels() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(None);
    let mut load = start("temurin-21", &library(&dir, &[&OTEL[..], &[DESCRIPTOR]].concat()));
    let (pid, store) = (load.pid().to_string(), dir.path().join("store"));
    let store = store.to_str().unwrap();
    let push = format!("otlp=http://127.0.0.1:{}", receiver.http);
    let mut daemon = Command::new(binary("jvmprobed"));
    daemon.args(["--config", "/dev/null", "--window", "5s", "--listen", "127.0.0.1:0", "-F", "99"]);
    daemon.args(["--dir", store, "--push", &push]);
    let tool = Tool::spawn(daemon);
    load.ask("go 7");
    tool.signal(Signal::TERM);
    success(tool.wait());
    let (mut seen, mut allocated) = (BTreeSet::new(), BTreeSet::new());
    let requests = receiver.requests();
    let profiles = requests.iter().flat_map(|r| r["profiles"].as_array().into_iter().flatten());
    let own = profiles.filter(|p| p["resource"]["process.pid"] == load.pid());
    for profile in own {
        for sample in profile["samples"].as_array().unwrap() {
            let text = |field: &str| sample["link"][field].as_str().unwrap_or_default();
            let span = span(text("trace_id"), text("span_id"));
            let runs = |method: &str| {
                sample["stack"].as_array().unwrap().iter().any(|frame| frame["name"] == method)
            };
            if runs("SpanLoad.work") && profile["type"][0] == "cpu" {
                let thread = sample["attributes"]["thread.name"].as_str().unwrap();
                assert!(spans_of(thread).unwrap().contains(&span), "{sample}");
                seen.insert(span);
            }
            if runs("SpanLoad.allocate") && profile["type"][0] == "alloc_space" {
                allocated.insert(span);
            }
        }
    }
    println!("pushed: {seen:?}, allocated: {allocated:?}");
    assert_eq!(seen, [0, 1, 2, 3].into());
    assert!(allocated.contains(&5) && allocated.is_subset(&[0, 5, 6].into()), "{allocated:?}");
    let file = dir.path().join("stored.pb.gz");
    let shown = run(
        "jvmprobed",
        &["show", "--dir", store, "--jvm", &pid, "-q", "-o", file.to_str().unwrap()],
    );
    success(shown);
    check_labels(&file, "stored");
    load.quit();
}

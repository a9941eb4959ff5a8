//! javawait compared with a program that logs its own waits, and with the JVM's flight recorder: every wait.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader, Read, Write},
    ops::Range,
    process::{ChildStdout, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use jvmprobe_tests::{
    child_process::ChildProcess,
    load::classes,
    proc::monotonic_ns,
    run_beside_others,
    runtimes::{Runtime, named},
    tool::{Tool, binary},
};
use serde_json::Value;

/// Expected waits of at least this length are compared, in nanoseconds.
const COMPARED_NS: u64 = 2_000_000;
/// Reported waits shorter than this may be unexpected, in nanoseconds.
const OPTIONAL_NS: u64 = 1_200_000;
/// Maximum difference between the recorder's clock and ours, in nanoseconds.
const CLOCK_NS: u64 = 500_000;
/// Kinds of waits that `WaitTruth` logs.
const KINDS: [&str; 8] =
    ["monitor", "wait", "park", "sleep", "socket read", "accept", "pipe", "poll"];
/// Kinds of waits that it does not log, and that can delay a thread before or after a logged wait.
const DELAYS: [&str; 4] = ["run queue", "throttled", "safepoint", "page fault"];
/// Events of the flight recorder and the kinds of their waits.
const EVENTS: [(&str, &str); 3] =
    [("JavaMonitorEnter", "monitor"), ("JavaMonitorWait", "wait"), ("ThreadPark", "park")];

/// A wait that is expected, or one that javawait has reported.
#[derive(Debug)]
struct Wait {
    thread: String,
    kind: String,
    time: Range<u64>,
    /// Name of the thread that ended the wait; `None` after a timeout.
    holder: Option<String>,
    /// How the holder is involved: `held` or `woke`. Without it, the holder of an expected wait is unknown.
    relation: Option<String>,
}

impl Wait {
    fn logged(line: &str) -> Self {
        let words: Vec<_> = line.split_whitespace().collect();
        let ["wait", thread, kind, begin, end, holder] = words[..] else { panic!("{line}") };
        let is_lock = ["monitor-", "reentrant-", "lock-", "semaphore"]
            .iter()
            .any(|of| thread.starts_with(of));
        Self {
            thread: thread.into(),
            kind: kind.replace('_', " "),
            time: begin.parse().unwrap()..end.parse().unwrap(),
            holder: (holder != "-").then(|| holder.into()),
            relation: Some(if is_lock { "held" } else { "woke" }.into()),
        }
    }

    fn reported(record: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Self {
            thread: text(&record["thread"]).unwrap(),
            kind: text(&record["kind"]).unwrap(),
            time: record["begin_ns"].as_u64().unwrap()..record["end_ns"].as_u64().unwrap(),
            holder: text(&record["holder"]["thread"]),
            relation: text(&record["holder"]["relation"]),
        }
    }

    /// Events of parked threads have no holder. `offset` is our clock's time at the begin of 1970, in nanoseconds.
    fn recorded(event: &Value, offset: i128) -> Option<Self> {
        let values = &event["values"];
        let name = |thread: &Value| thread["javaName"].as_str().map(str::to_owned);
        let begin: Timestamp = values["startTime"].as_str()?.parse().unwrap();
        let duration: SignedDuration = values["duration"].as_str()?.parse().unwrap();
        let begin = u64::try_from(begin.as_nanosecond() + offset).ok()?;
        let kind = EVENTS.iter().find(|(n, _)| event["type"].as_str().unwrap().ends_with(n))?.1;
        let relation = if kind == "monitor" { "held" } else { "woke" };
        Some(Self {
            thread: name(&values["eventThread"])?,
            kind: kind.into(),
            time: begin..begin + u64::try_from(duration.as_nanos()).ok()?,
            holder: name(&values["previousOwner"]).or_else(|| name(&values["notifier"])),
            relation: (kind != "park").then(|| relation.into()),
        })
    }

    fn length(&self) -> u64 {
        self.time.end - self.time.start
    }

    /// Returns how long this wait was in progress during a time.
    fn overlap(&self, time: &Range<u64>) -> u64 {
        self.time.end.min(time.end).saturating_sub(self.time.start.max(time.start))
    }
}

/// A JVM that runs `WaitTruth`.
struct Program {
    child: ChildProcess,
    stdout: BufReader<ChildStdout>,
}

impl Program {
    fn start(runtime: &Runtime, flags: &str) -> Self {
        let mut command = runtime.command();
        // A first access to a huge page takes longer than a millisecond, so this memory is allocated at the start.
        command.args(["-Xms64m", "-Xmx64m", "-XX:+AlwaysPreTouch"]);
        command.args((!flags.contains("GC")).then_some("-XX:+UseSerialGC"));
        command.args(flags.split_ascii_whitespace()).arg("-cp").arg(classes()).arg("WaitTruth");
        let mut child = ChildProcess::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let stdout = BufReader::new(child.0.stdout.take().unwrap());
        let mut program = Self { child, stdout };
        program.lines_until("ready");
        // This loads all classes.
        program.send("go 0.5");
        program.lines_until("done");
        program
    }

    fn send(&mut self, command: &str) {
        writeln!(self.child.0.stdin.as_ref().unwrap(), "{command}").unwrap();
    }

    /// Returns the lines before the next one that begins with this word.
    fn lines_until(&mut self, word: &str) -> Vec<String> {
        let lines = self.stdout.by_ref().lines().map(Result::unwrap);
        lines.take_while(|line| !line.starts_with(word)).collect()
    }
}

/// Logged and reported waits, and the time during which all waits were traced.
struct Trace {
    logged: Vec<Wait>,
    reported: Vec<Wait>,
    time: Range<u64>,
}

/// Runs javawait for this time. `is_started`: the threads that wait start before it, and not after.
fn trace(program: &mut Program, is_started: bool, seconds: u64) -> Trace {
    let pid = program.child.pid().to_string();
    if is_started {
        program.send(&format!("go {}", seconds + 1));
    }
    let tool = Tool::start("javawait", &["-p", &pid, "-v", "-j", "--min", "1ms"]);
    let begin = monotonic_ns();
    if !is_started {
        program.send(&format!("go {seconds}"));
    }
    sleep(Duration::from_secs(seconds));
    let time = begin..monotonic_ns();
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    assert!(!output.stderr.contains("lost"), "{}", output.stderr);
    let logged = program.lines_until("done").iter().map(|line| Wait::logged(line)).collect();
    let mut records = output.json();
    records.retain(|record| record["type"] == "wait");
    Trace { logged, reported: records.iter().map(Wait::reported).collect(), time }
}

/// Results for one kind of waits.
#[derive(Debug, Default)]
struct Figures {
    matched: usize,
    missing: usize,
    extra: usize,
    wrong_length: usize,
    max_difference_ns: u64,
    wrong_kind: usize,
    with_holder: usize,
    no_holder: usize,
    wrong_holder: usize,
    /// Wrong holders with the relation `held`, and holders of waits that a timeout has ended.
    false_holder: usize,
}

impl Figures {
    /// Compares a wait with the reported ones of its thread.
    fn compare(&mut self, expected: &Wait, reported: &[&Wait]) {
        let inner = expected.time.start + CLOCK_NS..expected.time.end.saturating_sub(CLOCK_NS);
        let parts = reported.iter().filter(|wait| wait.overlap(&inner) > 0);
        let (delays, waits): (Vec<&Wait>, Vec<&Wait>) =
            parts.partition(|wait| DELAYS.contains(&&*wait.kind));
        let delay: u64 = delays.iter().map(|delay| delay.overlap(&expected.time)).sum();
        let length = expected.length().saturating_sub(delay);
        if length < COMPARED_NS {
            return;
        }
        let Some(wait) = waits.iter().max_by_key(|wait| wait.length()) else {
            println!("missing: {expected:?}, {delays:?}");
            self.missing += 1;
            return;
        };
        let difference = length.abs_diff(wait.length());
        let is_different = difference > (length / 50).max(1_000_000);
        let long = waits.iter().filter(|wait| wait.length() >= OPTIONAL_NS).count();
        if long > 1 || is_different || wait.kind != expected.kind {
            println!("different: {expected:?}, {waits:?}, {delays:?}");
        }
        self.matched += 1;
        self.extra += long.saturating_sub(1);
        self.wrong_length += usize::from(is_different);
        self.max_difference_ns = self.max_difference_ns.max(difference);
        self.wrong_kind += usize::from(wait.kind != expected.kind);
        // If a wait is reported in several parts, each part names the thread that ended that part. The program logs the
        // thread that ended the last one.
        let wait = waits.iter().max_by_key(|wait| wait.time.end).unwrap_or(wait);
        if expected.relation.is_some() {
            let is_wrong = wait.holder.is_some() && wait.holder != expected.holder;
            let is_held = wait.relation.as_deref() == Some("held");
            let has_relation = wait.holder.is_none() || wait.relation == expected.relation;
            self.with_holder += usize::from(expected.holder.is_some());
            self.no_holder += usize::from(expected.holder.is_some() && wait.holder.is_none());
            self.wrong_holder += usize::from(is_wrong || !has_relation);
            self.false_holder += usize::from(is_wrong && (is_held || expected.holder.is_none()));
        }
    }

    fn check(&self, title: &str, kind: &str) {
        assert!(self.matched > 30, "{title} {kind}: too few");
        assert_eq!((self.missing, self.false_holder), (0, 0), "{title} {kind}");
        // At most 1 %, or one wait if there are less than a hundred.
        let is_rare = |count: usize, of: usize| count * 100 <= of.max(100);
        assert!(is_rare(self.wrong_kind, self.matched), "{title} {kind}");
        // Two successive parks of a thread may belong to one acquisition of a lock, or to two.
        assert!(is_rare(self.extra, self.matched), "{title} {kind}");
        assert!(is_rare(self.wrong_holder + self.no_holder, self.with_holder), "{title} {kind}");
    }
}

/// Compares each expected wait during the trace. `has_all`: the threads of these waits have no other ones of [`KINDS`].
fn compare(title: &str, expected: &[Wait], trace: &Trace, has_all: bool) {
    let mut figures: BTreeMap<&str, Figures> = BTreeMap::new();
    let threads: BTreeSet<_> = expected.iter().map(|wait| &wait.thread).collect();
    for thread in threads {
        let is_own = |wait: &&Wait| wait.thread == *thread;
        let expected: Vec<_> = expected.iter().filter(is_own).collect();
        let reported: Vec<_> = trace.reported.iter().filter(is_own).collect();
        for wait in expected.iter().filter(|wait| wait.overlap(&trace.time) == wait.length()) {
            figures.entry(&wait.kind).or_default().compare(wait, &reported);
        }
        let own = expected[0].time.start..expected.last().unwrap().time.end;
        let is_unexpected = |wait: &&&Wait| {
            KINDS.contains(&&*wait.kind)
                && wait.length() >= OPTIONAL_NS
                && wait.overlap(&own) == wait.length()
                && expected.iter().all(|other| wait.overlap(&other.time) == 0)
        };
        for wait in reported.iter().filter(is_unexpected).filter(|_| has_all) {
            println!("unexpected: {wait:?}");
            figures.entry(&wait.kind).or_default().extra += 1;
        }
    }
    for (kind, figures) in &figures {
        println!("{title} {kind}: {figures:?}");
    }
    assert_eq!(figures.len(), if has_all { KINDS.len() } else { EVENTS.len() }, "{title}");
    figures.iter().for_each(|(kind, figures)| figures.check(title, kind));
    // A thread that is delayed twice for less than `--min` logs a longer wait.
    let sum = |part: fn(&Figures) -> usize| -> usize { figures.values().map(part).sum() };
    assert!(sum(|f| f.wrong_length) * 100 <= sum(|f| f.matched), "{title}: different lengths");
}

fn check(runtime: &str, all_flags: &[&str], is_started: bool, seconds: u64) {
    run_beside_others();
    binary("javawait");
    for flags in all_flags {
        let mut program = Program::start(named(runtime), flags);
        let trace = trace(&mut program, is_started, seconds);
        compare(&format!("{runtime} {flags}"), &trace.logged, &trace, true);
    }
}

#[test]
fn every_logged_wait_is_reported() {
    check("temurin-25", &[""], true, 3);
}

#[test]
#[ignore = "long: make test-all"]
fn every_logged_wait_of_new_threads_is_reported() {
    check("temurin-25", &[""], false, 10);
}

#[test]
#[ignore = "long: make test-all"]
fn every_logged_wait_is_reported_in_each_locking_mode() {
    check("temurin-11", &["", "-XX:-UseBiasedLocking", "-XX:+UseHeavyMonitors"], true, 10);
    check("temurin-17", &["", "-XX:+UseBiasedLocking", "-XX:+UseHeavyMonitors"], true, 10);
    let modes = [0, 1, 2].map(|n| format!("-XX:+UnlockExperimentalVMOptions -XX:LockingMode={n}"));
    check("temurin-21", &modes.each_ref().map(|mode| &**mode), true, 10);
    let table = "-XX:+UnlockDiagnosticVMOptions -XX:+UseObjectMonitorTable";
    let modes = ["-XX:LockingMode=0", "-XX:LockingMode=1", table];
    check("temurin-25", &modes, true, 10);
}

/// The relation of a holder depends on the lock's class, which javawait finds by such references.
#[test]
#[ignore = "long: make test-all"]
fn every_logged_wait_is_reported_with_each_form_of_references() {
    check("temurin-21", &["-XX:-UseCompressedOops", "-XX:+UseZGC -XX:+ZGenerational"], true, 10);
    check("temurin-25", &["-XX:+UseCompactObjectHeaders", "-XX:+UseZGC"], true, 10);
}

fn check_recording(name: &str) {
    run_beside_others();
    let runtime = named(name);
    let dir = tempfile::tempdir().unwrap();
    let (settings, path) = (dir.path().join("settings.jfc"), dir.path().join("recording.jfr"));
    let event = |(name, _)| {
        let setting = |name, value| format!("<setting name=\"{name}\">{value}</setting>");
        let settings = setting("enabled", "true") + &setting("threshold", "0 ms");
        format!("<event name=\"jdk.{name}\">{settings}</event>")
    };
    let events: String = EVENTS.map(event).concat();
    let text = format!("<configuration version=\"2.0\">{events}</configuration>");
    fs::write(&settings, text).unwrap();
    let options = format!("filename={},settings={}", path.display(), settings.display());
    let mut program = Program::start(runtime, &format!("-XX:StartFlightRecording={options}"));
    let trace = trace(&mut program, true, 10);
    // The JVM writes the recording when it exits.
    program.send("quit");
    assert!(program.child.0.wait().unwrap().success());
    let offset = i128::from(monotonic_ns()) - Timestamp::now().as_nanosecond();
    let mut command = Command::new(runtime.java.with_file_name("jfr"));
    command.args(["print", "--json", "--events", &EVENTS.map(|(name, _)| name).join(",")]);
    let json: Value = serde_json::from_slice(&command.arg(path).output().unwrap().stdout).unwrap();
    let events = json["recording"]["events"].as_array().unwrap().iter();
    // A thread that waits for a lock again after it was woken is parked twice. For javawait, that is one wait.
    let is_compared = |wait: &Wait| {
        let is_lock = wait.thread.starts_with("reentrant-") || wait.thread.starts_with("lock-");
        !is_lock && trace.logged.iter().any(|logged| logged.thread == wait.thread)
    };
    let recorded = events.filter_map(|event| Wait::recorded(event, offset)).filter(is_compared);
    let recorded: Vec<_> = recorded.collect();
    compare(&format!("{name} recording"), &recorded, &trace, false);
}

#[test]
#[ignore = "long: make test-all"]
fn every_recorded_wait_is_reported() {
    for name in ["temurin-11", "temurin-17", "temurin-21", "temurin-25"] {
        check_recording(name);
    }
}

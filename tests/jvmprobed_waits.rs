//! jvmprobed --waits: metrics and stored profiles agree with the waits that a program logs.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    path::Path,
    process::{ChildStdout, Stdio},
};

use jvmprobe_tests::{
    child_process::ChildProcess,
    load::classes,
    pprof,
    proc::monotonic_ns,
    run_beside_others,
    runtimes::named,
    scrape::{completed_windows, sum, until_windows},
    tool::{Tool, run},
};
use jvmprobed::{clock::unix_ns, store::reader::StoreReader, window::Window};
use libjvmprobe::stack::profile::{Measure, Profile, Sample};
use rustix::process::Signal;

/// Kinds of the waits that `WaitTruth` logs, except for waits of threads without work.
const KINDS: [&str; 6] = ["monitor", "wait", "park", "sleep", "socket read", "pipe"];
/// Name of the thread that spins and sleeps by turns.
const SPINNER: &str = "spinner";
/// Minimum length of recorded waits, in nanoseconds.
const MIN_NS: u64 = 1_000_000;
/// A wait that ended within this time of the end of a window may belong to either window, in nanoseconds. The program
/// takes the time after the wait, when the thread may have been interrupted.
const EDGE_NS: u64 = 20_000_000;

/// Number and total length in nanoseconds of waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    times: u64,
    ns: u64,
}

impl Sum {
    fn add(&mut self, times: u64, ns: u64) {
        self.times += times;
        self.ns += ns;
    }
}

/// A wait that the program has logged.
struct Logged {
    thread: String,
    kind: String,
    begin_ns: u64,
    end_ns: u64,
}

impl Logged {
    fn parse(line: &str) -> Self {
        let words: Vec<_> = line.split_whitespace().collect();
        let ["wait", thread, kind, begin, end, _] = words[..] else { panic!("{line}") };
        let (begin_ns, end_ns) = (begin.parse().unwrap(), end.parse().unwrap());
        Self { thread: thread.into(), kind: kind.replace('_', " "), begin_ns, end_ns }
    }
}

/// Times of the thread that spins and sleeps, in nanoseconds.
struct Spun {
    cpu_ns: u64,
    elapsed_ns: u64,
}

impl Spun {
    fn parse(line: &str) -> Self {
        let words: Vec<_> = line.split_whitespace().collect();
        let ["spun", SPINNER, cpu, elapsed] = words[..] else { panic!("{line}") };
        Self { cpu_ns: cpu.parse().unwrap(), elapsed_ns: elapsed.parse().unwrap() }
    }
}

/// A JVM that runs `WaitTruth`.
struct Program {
    child: ChildProcess,
    stdout: BufReader<ChildStdout>,
}

impl Program {
    fn start() -> Self {
        let mut command = named("temurin-21").command();
        command.args(["-Xmx64m", "-XX:+UseSerialGC", "-cp"]).arg(classes()).arg("WaitTruth");
        let mut child = ChildProcess::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let stdout = BufReader::new(child.0.stdout.take().unwrap());
        let mut program = Self { child, stdout };
        program.lines_until("ready");
        // This loads all classes.
        program.go(0.5);
        program
    }

    /// Runs the threads that wait and the one that spins. Returns all waits, and the times of the latter.
    fn go(&mut self, seconds: f64) -> (Vec<Logged>, Spun) {
        writeln!(self.child.0.stdin.as_ref().unwrap(), "go {seconds} spin").unwrap();
        let lines = self.lines_until("done");
        let (spun, waits): (Vec<_>, Vec<_>) =
            lines.iter().partition(|line| line.starts_with("spun"));
        let [spun] = spun[..] else { panic!("{spun:?}") };
        (waits.into_iter().map(|line| Logged::parse(line)).collect(), Spun::parse(spun))
    }

    fn lines_until(&mut self, word: &str) -> Vec<String> {
        let lines = self.stdout.by_ref().lines().map(Result::unwrap);
        lines.take_while(|line| !line.starts_with(word)).collect()
    }
}

/// Returns the profiles of waits in a window.
fn profiles(window: &Window) -> impl Iterator<Item = &Profile> {
    let all = window.jvms.iter().flat_map(|jvm_data| &jvm_data.profiles);
    all.filter(|profile| profile.measure == Measure::Elapsed("wait".into()))
}

/// Returns the sum of a window's waits by kind, for the threads that are wanted.
fn stored(window: &Window, is_wanted: impl Fn(&Sample) -> bool) -> BTreeMap<String, Sum> {
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    for profile in profiles(window) {
        for sample in profile.samples.iter().filter(|sample| is_wanted(sample)) {
            let label = &profile.frame(*sample.stack.last().unwrap()).name;
            let kind = label.strip_prefix('[').unwrap().strip_suffix(']').unwrap();
            sums.entry(kind.into()).or_default().add(sample.occurrences, sample.count);
        }
    }
    sums
}

/// Returns the sum of the logged waits by kind that ended in this period.
fn ended(logged: &[Logged], begin_ns: u64, end_ns: u64) -> BTreeMap<&str, Sum> {
    let mut sums: BTreeMap<&str, Sum> = KINDS.map(|kind| (kind, Sum::default())).into();
    for wait in logged.iter().filter(|wait| (begin_ns..end_ns).contains(&wait.end_ns)) {
        let ns = wait.end_ns - wait.begin_ns;
        if let Some(sum) = sums.get_mut(&*wait.kind).filter(|_| ns >= MIN_NS) {
            sum.add(1, ns);
        }
    }
    sums
}

#[test]
fn waits_by_kind_and_stack_agree_with_the_program() {
    run_beside_others();
    let mut program = Program::start();
    let pid = program.child.pid();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (config, store, pushed) = (path("config"), path("store"), path("pushed"));
    let rule = format!("action = \"select\"\nwhen = {{ \"process.pid\" = \"^{pid}$\" }}\n");
    fs::write(&config, format!("[take]\nwaits = \"1ms\"\n[[rule]]\n{rule}")).unwrap();
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    // A high limit, so that a busy machine does not make the daemon save CPU time.
    let args = ["--config", &config, "--listen", &listen, "--dir", &store, "--max-cpu", "200"];
    let args = [&args[..], &["--window", "10s", "-F", "199"]].concat();
    let push = format!("dir={pushed}");
    let args = [&args[..], &["--push", &push]].concat();
    let daemon = Tool::start("jvmprobed", &args);
    // The first window ends while the threads wait.
    let (logged, spun) = program.go(12.0);
    let metrics = until_windows(&listen, 1.0);
    daemon.signal(Signal::TERM);
    let output = daemon.wait();
    assert!(output.status.success(), "{output:?}");

    let all = StoreReader::open(Path::new(&store)).unwrap().read(0, u64::MAX).unwrap();
    let all: Vec<_> = all.iter().map(|stored| &stored.window).collect();
    let threads: BTreeSet<_> = logged.iter().map(|wait| &*wait.thread).collect();
    let clocks_ns = unix_ns() - monotonic_ns();
    let mut compared = 0;
    for window in &all {
        let [begin_ns, end_ns] = [window.begin_ns, window.end_ns].map(|ns| ns - clocks_ns);
        let least = ended(&logged, begin_ns + EDGE_NS, end_ns - EDGE_NS);
        let most = ended(&logged, begin_ns - EDGE_NS, end_ns + EDGE_NS);
        let own = stored(window, |sample| threads.contains(&*sample.thread));
        for kind in KINDS {
            let (sum, least, most) =
                (own.get(kind).copied().unwrap_or_default(), least[kind], most[kind]);
            println!("{kind}: stored {sum:?}, logged {least:?} to {most:?}");
            // Two percent, and some waits at the edges.
            let is_near = |value: u64, least: u64, most: u64, slack: u64| {
                let least = (least - least / 50).saturating_sub(slack);
                (least..=most + most / 50 + slack).contains(&value)
            };
            assert!(is_near(sum.times, least.times, most.times, 3), "{kind}: number");
            assert!(is_near(sum.ns, least.ns, most.ns, 3 * EDGE_NS), "{kind}: length");
            compared += sum.times;
        }
    }
    assert!(compared > 1000, "{compared} waits in {} windows", all.len());

    // The metrics are those of the windows that were complete when they were read.
    let complete = completed_windows(&metrics) as usize;
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    for window in &all[..complete] {
        for (kind, sum) in stored(window, |_| true) {
            sums.entry(kind).or_default().add(sum.times, sum.ns);
        }
    }
    let of_jvm = format!("pid=\"{pid}\"");
    let value =
        |name: &str, kind: &str| sum(&metrics, name, &[&of_jvm, &format!("kind=\"{kind}\"")]);
    for (kind, sum) in &sums {
        assert_eq!(value("jvmprobe_waits_total", kind), sum.times as f64, "{kind}");
        let seconds = value("jvmprobe_waited_seconds_total", kind);
        assert!((seconds - sum.ns as f64 / 1e9).abs() < 1e-6, "{kind}: {seconds}");
    }
    let times: u64 = sums.values().map(|sum| sum.times).sum();
    assert_eq!(sum(&metrics, "jvmprobe_waits_total", &[]), times as f64);
    assert_eq!(sum(&metrics, "jvmprobed_samples_total", &["of=\"wait\""]), times as f64);
    assert_eq!(sum(&metrics, "jvmprobed_lost_total", &["reason=\"waits\""]), 0.0);
    assert_eq!(sum(&metrics, "jvmprobed_collected", &["what=\"wait\""]), 1.0);
    // A thread that waits for a connection has no work.
    assert!(!sums.contains_key("accept"), "{sums:?}");

    // The stacks have the methods that wait, below the label with the kind.
    for (thread, kind, method) in [
        ("monitor-1", "monitor", "WaitTruth.monitor"),
        ("reentrant-1", "park", "WaitTruth.reentrant"),
        ("sleep", "sleep", "WaitTruth$Actor.sleepNow"),
    ] {
        let label = format!("[{kind}]");
        let has = |profile: &Profile, sample: &Sample, name: &str| {
            sample.stack.iter().any(|&id| &*profile.frame(id).name == name)
        };
        let (mut with, mut all_ns) = (0, 0);
        for profile in all.iter().flat_map(|window| profiles(window)) {
            for sample in profile.samples.iter().filter(|sample| &*sample.thread == thread) {
                if has(profile, sample, &label) {
                    all_ns += sample.count;
                    with += if has(profile, sample, method) { sample.count } else { 0 };
                }
            }
        }
        assert!(with > 0 && with * 100 >= all_ns * 99, "{thread}: {with} of {all_ns} ns");
    }
    let files = fs::read_dir(&pushed).unwrap().map(|file| file.unwrap().path());
    let pprofs = files.filter(|path| path.extension().is_some_and(|ending| ending == "gz"));
    let mut pushed_ns = 0;
    for pprof in pprofs.map(|path| pprof::read(&path)) {
        let at = pprof.types.iter().position(|(name, _)| name == "wait").unwrap();
        assert_eq!(pprof.types[at].1, "nanoseconds");
        pushed_ns += pprof.samples.iter().map(|sample| sample.values[at]).sum::<u64>();
    }
    let stored_ns: u64 = all.iter().flat_map(|window| profiles(window)).map(Profile::total).sum();
    assert_eq!(pushed_ns, stored_ns);
    let shown = run("jvmprobed", &["show", "--dir", &store, "-e", "wait"]).stdout;
    let row = |kind: &str, method: &str| {
        shown.lines().any(|line| line.contains(kind) && line.trim_end().ends_with(method))
    };
    assert!(row("monitor", "WaitTruth.monitor") && row("park", "WaitTruth.reentrant"), "{shown}");
    check_wall(&store, pid, &spun);
}

/// Compares the wall-clock time of the thread that spins and sleeps with the times that it has measured itself.
fn check_wall(store: &str, pid: u32, spun: &Spun) {
    let dir = tempfile::tempdir().unwrap();
    let [folded, pprof] =
        ["wall.folded", "wall.pb.gz"].map(|name| dir.path().join(name).display().to_string());
    let jvm = pid.to_string();
    let args = ["show", "--dir", store, "--wall", "-t", "-s", "--jvm", &jvm];
    let output = run("jvmprobed", &[&args[..], &["-o", &folded, "-o", &pprof]].concat());
    assert!(output.status.success(), "{output:?}");
    let shown = output.stdout;
    let text = fs::read_to_string(&folded).unwrap();
    let of_thread = format!(";{SPINNER}-");
    let (mut on_cpu_ns, mut waiting_ns, mut spinning_ns) = (0, 0, 0);
    for line in text.lines().filter(|line| line.contains(&of_thread)) {
        let (stack, ns) = line.rsplit_once(' ').unwrap();
        let ns: u64 = ns.parse().unwrap();
        match stack.ends_with(";[on CPU]") {
            true => on_cpu_ns += ns,
            false => waiting_ns += ns,
        }
        spinning_ns += if stack.contains(";WaitTruth.spin;") { ns } else { 0 };
    }
    println!(
        "{SPINNER}: on CPU {on_cpu_ns} of {} ns, waiting {waiting_ns}, in total {} of {} ns",
        spun.cpu_ns,
        on_cpu_ns + waiting_ns,
        spun.elapsed_ns
    );
    // At most ten percent more, and at most one part in `less` less.
    let is_near = |value: u64, truth: u64, less: u64| {
        (truth - truth / less..=truth + truth / 10).contains(&value)
    };
    assert!(is_near(on_cpu_ns, spun.cpu_ns, 10), "time on CPU");
    // On a busy machine, the thread often waits for a CPU for less than the minimum length of recorded waits.
    assert!(is_near(on_cpu_ns + waiting_ns, spun.elapsed_ns, 4), "wall-clock time");
    assert!(spinning_ns > on_cpu_ns / 2, "{spinning_ns} ns in the method that spins");
    let total_ns = |value: &str| value.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    let all_ns: u64 = text.lines().map(total_ns).sum();
    let pprof = pprof::read(Path::new(&pprof));
    let at = pprof.types.iter().position(|(name, _)| name == "wall").unwrap();
    assert_eq!(pprof.samples.iter().map(|sample| sample.values[at]).sum::<u64>(), all_ns);
    // The tables by code and by thread.
    let row = |name: &str| shown.lines().any(|line| line.trim_end().ends_with(name));
    assert!(row(" WaitTruth.spin") && row(&format!(" {SPINNER}")), "{shown}");
    assert!(shown.contains("s of wall-clock time of threads in "), "{shown}");
}

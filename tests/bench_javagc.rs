//! Prints figures for javagc: `make bench`. Nothing is asserted, because times depend on the
//! machine. Each figure is a median with its spread. `cargo bench --bench javagc -- start overhead`
//! runs only those parts.
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    bench::{median, run_parts, spread, usage},
    fake::Fake,
    gclog,
    load::{BUSY_GC_LOAD, Load},
    run_alone,
    runtimes::named,
    tool::{Tool, binary},
};

fn main() {
    run_alone();
    let parts: [(&str, fn()); 4] = [
        ("start", start_and_end),
        ("overhead", pause_overhead),
        ("throughput", throughput),
        ("memory", memory),
    ];
    run_parts(&parts);
}

/// Measures the time from exec to `Tracing...`, and from Ctrl-C to the end of the process.
fn start_and_end() {
    for (name, flags) in
        [("temurin-17", "-XX:+UseG1GC"), ("temurin-25", "-XX:+UseZGC"), ("musl-17", "-XX:+UseG1GC")]
    {
        let load = Load::start(named(name), flags);
        let (mut starts, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..15 {
            let begin = Instant::now();
            let tool = Tool::start("javagc", &["-p", &load.pid().to_string()]);
            starts.push(begin.elapsed().as_secs_f64() * 1e3);
            thread::sleep(Duration::from_millis(50));
            let begin = Instant::now();
            tool.interrupt();
            ends.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        println!("exec to attached, {name} {flags}: {} ms", spread(starts));
        println!("Ctrl-C to exit,   {name} {flags}: {} ms", spread(ends));
    }
}

/// Compares the log's `Total` of ZGC's short pauses with and without the tool, alternately in one
/// JVM, so that both see the same state of the machine.
fn pause_overhead() {
    for (name, flags) in [("temurin-17", "-XX:+UseZGC"), ("temurin-25", "-XX:+UseZGC")] {
        let mut load = Load::start(named(name), &format!("{flags} {BUSY_GC_LOAD}"));
        let pid = load.pid().to_string();
        load.run(1.0);
        let mut traced = Vec::new();
        for round in 0..16 {
            let tool = (round % 2 == 1).then(|| Tool::start("javagc", &["-p", &pid, "-q"]));
            let begin = jvmprobe_tests::proc::monotonic_ns();
            load.run(1.0);
            if let Some(tool) = tool {
                traced.push((begin, jvmprobe_tests::proc::monotonic_ns()));
                tool.interrupt();
            }
        }
        let log = gclog::parse(&load.quit());
        let is_traced = |ns| traced.iter().any(|(from, to)| (*from..*to).contains(&ns));
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for stop in log.stops.iter().filter(|s| !s.collections.is_empty()) {
            let micros = stop.total_ns as f64 / 1e3;
            if is_traced(stop.end_ns) { with.push(micros) } else { without.push(micros) }
        }
        let quartile = |v: &[f64]| (v[v.len() / 4], v[v.len() * 3 / 4]);
        let (a, b) = (median(&mut without), median(&mut with));
        println!(
            "pause, {name} {flags}: {a:.1} us without (quartiles {:.1?}, n={}), {b:.1} us with (quartiles {:.1?}, n={}): {:+.1} us",
            quartile(&without),
            without.len(),
            quartile(&with),
            with.len(),
            b - a
        );
    }
}

/// Measures how many stops per second are received without loss; each stop hits five probes.
fn throughput() {
    for rate in [10_000.0, 20_000.0, 50_000.0, 100_000.0] {
        let mut fake = Fake::start();
        let tool = Tool::start("javagc", &["-p", &fake.pid().to_string(), "-j"]);
        let count = 200_000;
        let seconds = fake.fire(count, rate);
        let records = tool.interrupt().json();
        let summary = records.last().expect("a summary");
        println!(
            "throughput: {:.0} stops/s fired ({:.0} probe hits/s), {} of {count} reported one by one, {} lost",
            count as f64 / seconds,
            5.0 * count as f64 / seconds,
            summary["pauses"],
            summary["lost"]
        );
    }
}

/// Measures peak resident memory while tracing.
fn memory() {
    for args in [&["-q"][..], &["--pools", "--safepoints"], &["-H", "-j"]] {
        let mut load = Load::start(named("temurin-25"), &format!("-XX:+UseG1GC {BUSY_GC_LOAD}"));
        let mut child = Command::new(binary("javagc"))
            .args(["-p", &load.pid().to_string()])
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start javagc");
        let mut line = String::new();
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        stderr.read_line(&mut line).expect("it says Tracing");
        load.run(3.0);
        let used = usage(child.id());
        println!(
            "memory, javagc {}: peak {} kB; CPU use {:.1} % of one core",
            args.join(" "),
            used.peak_kb,
            used.seconds * 100.0 / 3.0
        );
        child.kill().expect("it still runs");
        child.wait().expect("it ends");
    }
}

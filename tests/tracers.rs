//! The library's tracers without a tool: several in one process, as in the daemon.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    allocated, bpf::held_by, load::Load, run_alone, run_beside_others, runtimes::named,
};
use libjvmprobe::{
    Pid, Result,
    bpf::preflight,
    hotspot::java_threads::ConnectionPool,
    jvms::{Arrivals, Lost, Times, Tool, Trace, registry},
    stack::profile::Profile,
    sys::Pace,
    trace::{
        self,
        allocations::{self, AllocationReport, jvm_totals::Scope},
        pauses::{self, record::Record},
        samples::{self, About, StackWalk, SymbolSource, Targets, events::EventSpec},
        waits,
    },
};

const INTERVAL: Duration = Duration::from_millis(700);

/// Probes that are hit too often are attached only once every few seconds, so an interval must be
/// longer than that.
const LONG_INTERVAL: Duration = Duration::from_secs(10);

fn times(interval: Duration) -> Times {
    Times { interval: Some(interval), pace: Pace::Calm, ..Times::default() }
}

/// Sums over a JVM's intervals.
struct Seen {
    pid: u32,
    intervals: u64,
    sum: u64,
}

impl Seen {
    fn of(pid: u32) -> Self {
        Self { pid, intervals: 0, sum: 0 }
    }

    fn add(&mut self, amount: u64) {
        self.intervals += 1;
        self.sum += amount;
    }
}

/// Individual pauses, which must agree with the summaries.
struct Pauses {
    seen: Seen,
    individual: u64,
}

impl trace::Sink for Pauses {}

impl pauses::Sink for Pauses {
    fn record(&mut self, record: &Record) -> Result<()> {
        match record {
            Record::Pause(stop) if stop.pid == self.seen.pid => self.individual += 1,
            Record::Summary(summary) if summary.pid == self.seen.pid => {
                self.seen.add(summary.pauses);
            }
            Record::Lost(lost) => panic!("{lost:?}"),
            _ => {}
        }
        Ok(())
    }
}

#[derive(Default)]
struct Thinned {
    tlabs: u64,
    outside: u64,
    /// Bytes by the load's allocation paths.
    paths: BTreeMap<String, u64>,
}

struct Allocations(Seen, Thinned);

impl trace::Sink for Allocations {}

impl allocations::Sink for Allocations {
    fn table(&mut self, report: &AllocationReport<'_>) -> Result<()> {
        assert_eq!(report.scope, Scope::Interval);
        let (summary, profile) = (&report.table.summary, report.profile().unwrap());
        assert_eq!(
            profile.total(),
            report.table.rows.iter().map(|row| row.class.bytes).sum::<u64>()
        );
        if summary.pid == self.0.pid {
            assert_eq!(summary.lost, 0);
            self.0.add(summary.bytes);
            self.1.tlabs += summary.tlabs.unwrap();
            self.1.outside += summary.outside_objects.unwrap();
            for sample in &profile.samples {
                let mut frames = sample.stack.iter().map(|&id| profile.frame(id));
                let of_path = |name: &str| {
                    let method = name.strip_prefix("AllocLoad.")?;
                    ["a", "b", "c", "d"].contains(&method).then(|| method.to_owned())
                };
                if let Some(path) = frames.find_map(|frame| of_path(&frame.name)) {
                    *self.1.paths.entry(path).or_default() += sample.count;
                }
            }
        }
        Ok(())
    }
}

struct Samples(Seen);

impl trace::Sink for Samples {}

impl samples::Sink for Samples {
    fn profiles(&mut self, profiles: &mut [Profile], _: &About) -> Result<()> {
        let profile = std::mem::take(&mut profiles[0]);
        let is_loads = |name: &str| name.starts_with("AllocLoad.");
        let own = profile.samples.iter().filter(|sample| {
            let mut frames = sample.stack.iter().map(|&id| profile.frame(id));
            sample.pid == self.0.pid && frames.any(|frame| is_loads(&frame.name))
        });
        self.0.add(own.map(|sample| sample.count).sum());
        Ok(())
    }
}

/// Traces all JVMs until it is stopped.
fn trace<T: Tool>(
    tracer: T,
    interval: Duration,
    begun: Sender<()>,
    stop: &AtomicBool,
) -> Result<Trace<T>> {
    let options = registry::Options { pace: Pace::Calm, ..Default::default() };
    let arrivals = Arrivals::open(options)?;
    let mut trace = Trace::start(tracer, Vec::new(), Some(arrivals))?;
    begun.send(()).unwrap();
    trace.run(times(interval), stop)?;
    Ok(trace)
}

fn trace_pauses(pid: u32, begun: Sender<()>, stop: &AtomicBool) -> Result<Pauses> {
    let options = pauses::Options { all: true, pace: Pace::Calm, ..Default::default() };
    let seen = Pauses { seen: Seen::of(pid), individual: 0 };
    let tracer = pauses::Tracer::new(options, seen, &[])?;
    let mut trace = trace(tracer, INTERVAL, begun, stop)?;
    trace.tool.finish(&mut trace.jvms)?;
    Ok(trace.tool.sink)
}

fn trace_allocations(
    pid: u32,
    interval: Duration,
    begun: Sender<()>,
    stop: &AtomicBool,
) -> Result<Allocations> {
    let options = allocations::Options {
        by_stack: true,
        max_memory: 64 << 20,
        intervals: true,
        keeps_whole_trace: false,
        pace: Pace::Calm,
        ..allocations::Options::NONE
    };
    let tracer = allocations::Tracer::new(options, Allocations(Seen::of(pid), Thinned::default()))?;
    let mut trace = trace(tracer, interval, begun, stop)?;
    trace.tool.finish(&mut trace.jvms)?;
    Ok(trace.tool.sink)
}

fn trace_samples(pid: u32, begun: Sender<()>, stop: &AtomicBool) -> Result<Samples> {
    let options = samples::Options {
        targets: Targets::EveryJvm,
        named_by_user: false,
        events: vec![EventSpec::cpu()],
        frequency: 99,
        rate: None,
        skip_missing: false,
        user: true,
        kernel: true,
        walk: StackWalk::Auto,
        symbols: SymbolSource::Auto,
        signatures: false,
        min_wait: Duration::from_millis(1),
        idle: false,
        spans: true,
        slot_ns: 0,
        max_memory: 64 << 20,
        keeps_whole_trace: false,
        pace: Pace::Calm,
        registry: None,
    };
    let mut tracer = samples::Sampler::new(options, Samples(Seen::of(pid)))?;
    tracer.start()?;
    begun.send(()).unwrap();
    tracer.run(times(INTERVAL), stop)?;
    let (sink, _, profiles) = tracer.finish()?;
    assert!(
        profiles.iter().all(|profile| profile.samples.is_empty()),
        "samples are left, although keeps_whole_trace is off"
    );
    Ok(sink)
}

/// Receives waits, and drops them.
struct NoWaits;

impl trace::Sink for NoWaits {
    fn lost(&mut self, _: Lost) -> Result<()> {
        Ok(())
    }
}

impl waits::Sink for NoWaits {
    fn wait(&mut self, _: waits::Wait) -> Result<()> {
        Ok(())
    }

    fn unmounted(&mut self, _: &waits::UnmountedReading) -> Result<()> {
        Ok(())
    }

    fn pool(&mut self, _: Pid, _: ConnectionPool) {}

    fn report(&mut self, _: u64) -> Result<()> {
        Ok(())
    }
}

fn trace_waits(begun: Sender<()>, stop: &AtomicBool) -> Result<()> {
    let min = Duration::from_millis(1);
    let options = waits::Options { min, pace: Pace::Calm, virtual_threads: false, holders: false };
    let mut trace = trace(waits::Tracer::new(options, NoWaits)?, INTERVAL, begun, stop)?;
    trace.tool.finish_ended(&mut trace.jvms)
}

/// Returns the number of pauses in the JVM's log.
fn logged_pauses(load: &Load) -> u64 {
    let is_pause = |line: &&str| line.contains(" Pause ") && line.ends_with("ms");
    load.log().lines().filter(is_pause).count() as u64
}

#[test]
fn three_tracers_in_one_process_report_correct_sums() {
    run_beside_others();
    preflight::check().unwrap();
    let mut load = Load::start_program(named("temurin-17"), "-XX:+UseSerialGC", "AllocLoad");
    load.ask("go 1 200 2");
    let (pid, before) = (load.pid(), logged_pauses(&load));
    let stop = Arc::new(AtomicBool::new(false));
    let (begun, all) = channel();
    let tracers = {
        let spawn = |run_tracer: fn(u32, Sender<()>, &AtomicBool) -> Result<Seen>| {
            let (begun, stop) = (begun.clone(), Arc::clone(&stop));
            thread::spawn(move || run_tracer(pid, begun, &stop))
        };
        [
            spawn(|pid, begun, stop| {
                let Pauses { seen, individual } = trace_pauses(pid, begun, stop)?;
                assert_eq!(seen.sum, individual);
                Ok(seen)
            }),
            spawn(|pid, begun, stop| {
                trace_allocations(pid, INTERVAL, begun, stop).map(|taken| taken.0)
            }),
            spawn(|pid, begun, stop| trace_samples(pid, begun, stop).map(|taken| taken.0)),
        ]
    };
    drop(begun);
    for _ in &tracers {
        all.recv_timeout(Duration::from_secs(60)).expect("each tracer starts within a minute");
    }
    let truth = allocated::parse(&load.ask("go 5 200 2"));
    stop.store(true, Ordering::Relaxed);
    let [pauses, allocations, samples] = tracers.map(|tracer| tracer.join().unwrap().unwrap());
    assert!(pauses.intervals > 2 && allocations.intervals > 2 && samples.intervals > 2);
    assert_eq!(pauses.sum, logged_pauses(&load) - before);
    assert!(pauses.sum > 0 && samples.sum > 0, "{} {}", pauses.sum, samples.sum);
    let off = allocations.sum as f64 / truth.total as f64 - 1.0;
    assert!(off.abs() <= 0.05, "allocations: {off}");
}

type RunTracer = fn(u32, Sender<()>, &AtomicBool) -> Result<()>;

/// The daemon stops tracers that cost too much, and later starts them again.
#[test]
fn stopped_tracers_release_their_bpf_objects() {
    run_beside_others();
    preflight::check().unwrap();
    let load = Load::start_program(named("temurin-17"), "-XX:+UseSerialGC", "AllocLoad");
    let pid = load.pid();
    let run_each_tracer = || {
        let tracers: [RunTracer; 4] = [
            |pid, begun, stop| trace_pauses(pid, begun, stop).map(drop),
            |pid, begun, stop| trace_allocations(pid, INTERVAL, begun, stop).map(drop),
            |pid, begun, stop| trace_samples(pid, begun, stop).map(drop),
            |_, begun, stop| trace_waits(begun, stop),
        ];
        for run_tracer in tracers {
            let stop = Arc::new(AtomicBool::new(false));
            let (begun, begins) = channel();
            let stopped = Arc::clone(&stop);
            let tracer = thread::spawn(move || run_tracer(pid, begun, &stopped));
            begins
                .recv_timeout(Duration::from_secs(60))
                .expect("the tracer starts within a minute");
            let begin = Instant::now();
            while held_by(std::process::id()).links.is_empty() {
                assert!(begin.elapsed() < Duration::from_secs(60), "nothing is attached");
                thread::sleep(Duration::from_millis(50));
            }
            stop.store(true, Ordering::Relaxed);
            tracer.join().unwrap().unwrap();
        }
    };
    // Attachments are released in the background.
    let maps_after_release = |max: usize| {
        let begin = Instant::now();
        loop {
            let held = held_by(std::process::id());
            // The two programs of bpf/inodes.rs stay loaded.
            if held.links.is_empty() && held.programs.len() <= 2 && held.maps.len() <= max {
                return held.maps.len();
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "left behind: {held:?}");
            thread::sleep(Duration::from_millis(50));
        }
    };
    run_each_tracer();
    let maps = maps_after_release(usize::MAX);
    run_each_tracer();
    maps_after_release(maps);
    load.quit();
}

/// There are more TLABs than the number of stacks that can be walked. TLABs without a stack are
/// added to the weights of the others. The test runs alone: the estimate depends on how much of each on period the
/// JVM runs, and there are few of them.
#[test]
fn sampled_tlabs_represent_the_total_allocation() {
    run_alone();
    preflight::check().unwrap();
    let flags = "-XX:+UseSerialGC -XX:-ResizeTLAB -XX:TLABSize=16k";
    let mut load = Load::start_program(named("temurin-21"), flags, "AllocLoad");
    load.ask("go 1 200 2");
    let pid = load.pid();
    let stop = Arc::new(AtomicBool::new(false));
    let (begun, begins) = channel();
    let tracer = thread::spawn({
        let stop = Arc::clone(&stop);
        move || trace_allocations(pid, LONG_INTERVAL, begun, &stop)
    });
    begins.recv_timeout(Duration::from_secs(60)).expect("the tracer starts within a minute");
    let truth = allocated::parse(&load.ask("go 20 200 2 stay"));
    thread::sleep(INTERVAL);
    stop.store(true, Ordering::Relaxed);
    let Allocations(seen, thinned) = tracer.join().unwrap().unwrap();
    println!(
        "{} TLABs, {} outside, {:?} of {truth:?}",
        thinned.tlabs, thinned.outside, thinned.paths
    );
    assert!(thinned.tlabs < truth.total / (16 << 10) / 5, "{}", thinned.tlabs);
    let off = seen.sum as f64 / truth.total as f64 - 1.0;
    assert!(off.abs() <= 0.02, "allocations: {off}");
    // Most intervals have no TLABs that were read, so their classes are estimated from the objects that began TLABs.
    // Path a has small objects and few bytes, for which this estimate is worst.
    for (path, &bytes) in truth.paths.iter().filter(|(_, bytes)| **bytes > 0) {
        let off = thinned.paths[path] as f64 / bytes as f64 - 1.0;
        let max = if bytes > truth.total / 5 { 0.25 } else { 0.5 };
        assert!(off.abs() <= max, "{path}: {off}");
    }
}

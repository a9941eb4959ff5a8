//! Threads of the library's tracers. Each tracer is created in its own thread.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{SyncSender, TrySendError},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use libjvmprobe::{
    Pid, Result as TracerResult,
    bpf::{clock::monotonic_ns, cost::Cost},
    hotspot::java_threads::ConnectionPool,
    jvms::{Lost, Registry, Times, Trace},
    stack::profile::Profile,
    sys::Pace,
    trace::{
        Sink,
        allocations::{self, AllocationReport},
        pauses::{self, record::Record},
        samples::{self, About, StackWalk, SymbolSource, Targets, events::EventSpec},
        waits::{self, UnmountedReading},
    },
};

use crate::collect::{
    batch::{Batch, Delivery},
    ladder::Measures,
    stalls,
    waits::{DELAY_NS, Delivered, Waits},
};

/// Default length of a window.
pub const DEFAULT_WINDOW: Duration = Duration::from_secs(15);

/// Maximum number of collections, and of other stops, per second that are recorded one by one for each JVM.
/// Stops beyond that are reported as sums.
const MAX_STOPS_PER_SECOND: u64 = 100;
/// Maximum number of batches that wait for the main loop. When the queue is full, stops are dropped and
/// counted, and a tracer that sends other data waits. So memory is bounded however busy the main loop is.
pub const MAX_BATCHES: usize = 16_384;

/// Name of the tracer of stops in records of cost.
pub const STOPS: &str = "pauses";
/// Name of the tracer of allocation in records of cost.
pub const ALLOCATION: &str = "allocation";
/// Name of the tracer of allocation in records of loss.
const ALLOCATIONS: &str = "allocations";
/// Name of the sampler, also in records of cost and loss.
pub const SAMPLES: &str = "samples";
/// Name of the tracer of waits, also in records of cost and loss.
pub const WAITS: &str = "waits";

/// Name of the search for deadlocks.
const THREADS: &str = "threads";

/// Pace of the tracers. It is calm, because results are needed only when a window ends.
pub const PACE: Pace = Pace::Calm;

/// Options of the tracers.
#[derive(Clone, Debug)]
pub struct Options {
    /// CPU samples per second. The value may change at run time.
    pub rate: Arc<AtomicU64>,
    /// Whether off-CPU time is recorded, too.
    pub off_cpu: bool,
    /// Minimum length of recorded waits; `None` if waits are not recorded.
    pub waits: Option<Duration>,
    /// Whether allocation is recorded.
    pub allocation: bool,
    /// Maximum cost of the probes of allocation to all JVMs together, in millionths of a processor. The value
    /// may change at run time.
    pub allocation_ppm: Arc<AtomicU64>,
    /// Maximum CPU time for walking and naming stacks of samples of all tenants together, in millionths of a
    /// processor, and the same for recording waits. The value may change at run time.
    pub stack_ppm: Arc<AtomicU64>,
    /// Time without progress after which a thread dump is taken, in seconds; 0 for no thread dumps.
    pub thread_dumps: Arc<AtomicU64>,
    /// Maximum time for the search for deadlocks, in millionths of elapsed time. The value may change at run time.
    pub thread_ppm: Arc<AtomicU64>,
    /// Approximate memory limit of the sampler, and of the tracer of allocation, in bytes each. The profiles of waits take
    /// at most half of it.
    pub max_memory: usize,
    /// The registry, shared by all tracers.
    pub registry: Registry,
    /// Begin of the first window. All tracers report at the ends of windows.
    pub begin: Instant,
    /// Length of a window.
    pub window: Duration,
}

/// All running tracers. The daemon may stop some of them for a while.
#[derive(Debug)]
pub struct Tracers {
    options: Options,
    /// Channel that new tracers send to; `None` when all are stopping.
    out: Option<SyncSender<Delivery>>,
    running: Vec<Running>,
}

#[derive(Debug)]
struct Running {
    name: &'static str,
    stop: Arc<AtomicBool>,
}

type RunTracer = fn(&Options, &SyncSender<Delivery>, &AtomicBool) -> TracerResult<()>;

impl Tracers {
    /// Starts the tracers. Each sends [`Batch::Started`] when it has started, or [`Batch::Ended`] with the
    /// reason if it cannot.
    ///
    /// # Errors
    /// A thread cannot be created.
    pub fn start(options: Options, out: SyncSender<Delivery>) -> Result<Self> {
        let (has_allocation, has_waits) = (options.allocation, options.waits.is_some());
        let mut tracers = Self { options, out: Some(out), running: Vec::new() };
        tracers.add("pauses", pauses)?;
        tracers.add(SAMPLES, samples)?;
        if has_allocation {
            tracers.add(ALLOCATIONS, allocations)?;
        }
        if has_waits {
            tracers.add(WAITS, waits)?;
        }
        let thread_dumps = tracers.options.thread_dumps.load(Ordering::Relaxed);
        tracers.set_thread_dumps(thread_dumps)?;
        Ok(tracers)
    }

    fn add(&mut self, name: &'static str, run_tracer: RunTracer) -> Result<()> {
        let Some(out) = self.out.clone() else { return Ok(()) };
        let stop = Arc::new(AtomicBool::new(false));
        let (options, stopped) = (self.options.clone(), Arc::clone(&stop));
        let run = move || {
            let ended = run_tracer(&options, &out, &stopped);
            let reason = match ended {
                Ok(()) if stopped.load(Ordering::Relaxed) => return,
                // `Batch::Ended` is not sent, because the daemon would then remove the tracer of this name
                // from its list. A successor of the same name may run already.
                Err(error) if stopped.load(Ordering::Relaxed) => {
                    log::warn!(
                        "the last {name} before their tracer was stopped may be missing: {error}"
                    );
                    return;
                }
                Err(error) => error.to_string(),
                Ok(()) => "the tracer has ended".into(),
            };
            BatchSink::new(&options, &out, name).send(Batch::Ended { tracer: name, reason });
        };
        let thread = thread::Builder::new().name(format!("tracer-{name}"));
        thread.spawn(run).context("cannot start a thread")?;
        self.running.push(Running { name, stop });
        Ok(())
    }

    /// Asks one tracer to deliver its data and end.
    fn stop_tracer(&mut self, name: &str) {
        self.running.retain(|tracer| {
            if tracer.name == name {
                tracer.stop.store(true, Ordering::Relaxed);
            }
            tracer.name != name
        });
    }

    /// Changes the set of collected measures.
    ///
    /// # Errors
    /// A thread cannot be created.
    pub fn change(&mut self, from: Measures, to: Measures) -> Result<()> {
        self.options.rate.store(to.hertz.max(1), Ordering::Relaxed);
        self.options.off_cpu = to.off_cpu;
        // The sampler reads whether to record off-CPU time only when it starts. So it is restarted if that
        // changes.
        let samples = |measures: Measures| (measures.hertz > 0, measures.off_cpu);
        if samples(from) != samples(to) {
            self.restart(SAMPLES, to.hertz > 0, self::samples)?;
        }
        if from.allocation != to.allocation {
            self.restart(ALLOCATIONS, to.allocation, allocations)?;
        }
        if from.waits != to.waits {
            self.restart(WAITS, to.waits, waits)?;
        }
        Ok(())
    }

    /// Stops a tracer, and starts a new one if it `is_wanted`.
    fn restart(
        &mut self,
        name: &'static str,
        is_wanted: bool,
        run_tracer: RunTracer,
    ) -> Result<()> {
        self.stop_tracer(name);
        if is_wanted { self.add(name, run_tracer) } else { Ok(()) }
    }

    /// Changes the time without progress after which a thread dump is taken, in seconds; 0 for no thread dumps.
    ///
    /// # Errors
    /// A thread cannot be created.
    pub fn set_thread_dumps(&mut self, after: u64) -> Result<()> {
        if after == 0 {
            self.stop_tracer(THREADS);
            return Ok(());
        }
        self.options.thread_dumps.store(after, Ordering::Relaxed);
        let is_running = self.running.iter().any(|tracer| tracer.name == THREADS);
        if is_running { Ok(()) } else { self.add(THREADS, threads) }
    }

    /// Returns their options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Removes a tracer that has ended.
    pub fn remove(&mut self, name: &str) {
        self.running.retain(|tracer| tracer.name != name);
    }

    /// Returns the names of the running tracers that report at the end of each window.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.running.iter().map(|tracer| tracer.name).filter(|&name| name != THREADS)
    }

    /// Returns the number of running tracers.
    pub fn len(&self) -> usize {
        self.running.len()
    }

    /// Returns whether no tracer runs.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Asks all tracers to deliver their data and end. The channel is disconnected when the last one has ended.
    pub fn stop(&mut self) {
        self.out = None;
        for tracer in self.running.drain(..) {
            tracer.stop.store(true, Ordering::Relaxed);
        }
    }
}

fn times(options: &Options) -> Times {
    let aligned_to = Some(options.begin);
    Times { interval: Some(options.window), aligned_to, duration: None, count: None, pace: PACE }
}

/// Sink that sends to the main loop. Errors are ignored, because the receiver is only gone at shutdown.
struct BatchSink {
    to: SyncSender<Delivery>,
    /// Name of the tracer.
    tracer: &'static str,
    /// Begin of the first window, on `CLOCK_MONOTONIC` in nanoseconds.
    begin_ns: u64,
    /// Length of a window in nanoseconds.
    window_ns: u64,
    /// Time of the last report, on `CLOCK_MONOTONIC` in nanoseconds.
    reported_ns: u64,
    /// Number of stops that did not fit into the queue and are not reported yet.
    dropped: u64,
}

impl BatchSink {
    fn new(options: &Options, to: &SyncSender<Delivery>, tracer: &'static str) -> Self {
        let now = monotonic_ns();
        let since = u64::try_from(options.begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let begin_ns = now.saturating_sub(since);
        let window_ns = u64::try_from(options.window.as_nanos()).unwrap_or(u64::MAX);
        Self { to: to.clone(), tracer, begin_ns, window_ns, reported_ns: now, dropped: 0 }
    }

    /// Sends data of the interval since the last report.
    fn send(&self, batch: Batch) {
        let _ = self.to.send(Delivery { at_ns: self.data_ns(), batch });
    }

    /// Returns the middle of the interval since the last report. The interval ends at the end of a window at the latest,
    /// however long it takes to make the report.
    fn data_ns(&self) -> u64 {
        let into_window = self.reported_ns.saturating_sub(self.begin_ns) % self.window_ns;
        let window_end = self.reported_ns.saturating_add(self.window_ns - into_window);
        self.reported_ns.midpoint(monotonic_ns().min(window_end))
    }

    /// Reports that all data until a time on `CLOCK_MONOTONIC` was sent.
    fn end_interval_at(&mut self, end_ns: u64) {
        self.reported_ns = end_ns;
        let batch = Batch::Reported { tracer: self.tracer };
        let _ = self.to.send(Delivery { at_ns: self.reported_ns, batch });
    }

    /// Sends a stop unless the queue is full. It must not block, because the tracer has to drain its ring buffer.
    fn send_stop(&mut self, record: Record) {
        if self.dropped > 0 {
            let batch = Batch::Lost { kind: "pauses", events: self.dropped };
            if self.to.try_send(Delivery { at_ns: monotonic_ns(), batch }).is_ok() {
                self.dropped = 0;
            }
        }
        // The time of a stop may come from the JVM's memory, which is not trusted, so a time in the future is
        // replaced by the present time.
        let at_ns = record.end_ns().unwrap_or_else(|| self.data_ns()).min(monotonic_ns());
        let batch = Batch::Pause(record.into());
        if let Err(TrySendError::Full(_)) = self.to.try_send(Delivery { at_ns, batch }) {
            self.dropped += 1;
        }
    }
}

impl Sink for BatchSink {
    fn lost(&mut self, lost: Lost) -> TracerResult<()> {
        self.send(Batch::Lost { kind: self.tracer, events: lost.events() });
        Ok(())
    }

    fn cost(&mut self, cost: Cost) {
        let tracer = if self.tracer == ALLOCATIONS { ALLOCATION } else { self.tracer };
        self.send(Batch::Cost { tracer, cost });
    }

    fn reported(&mut self) {
        self.end_interval_at(monotonic_ns());
    }
}

impl pauses::Sink for BatchSink {
    fn record(&mut self, record: &Record) -> TracerResult<()> {
        if let Record::Lost(lost) = record {
            self.send(Batch::Lost { kind: "pauses", events: lost.events() });
        }
        self.send_stop(record.clone());
        Ok(())
    }
}

fn pauses(options: &Options, out: &SyncSender<Delivery>, stop: &AtomicBool) -> TracerResult<()> {
    let tracer_options = pauses::Options {
        all: true,
        no_totals: true,
        pace: PACE,
        max_stops_per_second: Some(MAX_STOPS_PER_SECOND),
        ..Default::default()
    };
    let tracer = pauses::Tracer::new(tracer_options, BatchSink::new(options, out, "pauses"), &[])?;
    let arrivals = options.registry.subscribe()?;
    let mut trace = Trace::start(tracer, Vec::new(), Some(arrivals))?;
    trace.tool.sink.send(Batch::Started);
    trace.run(times(options), stop)?;
    trace.tool.finish(&mut trace.jvms)
}

impl allocations::Sink for BatchSink {
    fn table(&mut self, report: &AllocationReport<'_>) -> TracerResult<()> {
        let pid = report.table.summary.pid;
        self.send(Batch::Allocated { pid, profile: report.profile() });
        Ok(())
    }

    fn spans_left_out(&mut self, allocations: u64) {
        self.send(Batch::Lost { kind: "spans", events: allocations });
    }
}

fn allocations(
    options: &Options,
    out: &SyncSender<Delivery>,
    stop: &AtomicBool,
) -> TracerResult<()> {
    let tracer_options = allocations::Options {
        by_stack: true,
        spans: true,
        max_memory: options.max_memory,
        intervals: true,
        keeps_whole_trace: false,
        pace: PACE,
        ..allocations::Options::NONE
    };
    let tracer =
        allocations::Tracer::new(tracer_options, BatchSink::new(options, out, ALLOCATIONS))?;
    let tracer = tracer.with_cost_budget(Arc::clone(&options.allocation_ppm));
    let arrivals = options.registry.subscribe()?;
    let mut trace = Trace::start(tracer, Vec::new(), Some(arrivals))?;
    trace.tool.sink.send(Batch::Started);
    trace.run(times(options), stop)?;
    trace.tool.finish(&mut trace.jvms)
}

impl samples::Sink for BatchSink {
    fn profiles(&mut self, profiles: &mut [Profile], about: &About) -> TracerResult<()> {
        let profiles = profiles.iter_mut().map(std::mem::take).collect();
        let About { lost_stacks, lost_code, .. } = *about;
        self.send(Batch::Samples { profiles, lost_stacks, lost_code });
        Ok(())
    }
}

/// Sink of the tracer of waits.
struct WaitSink {
    batches: BatchSink,
    waits: Waits,
}

impl WaitSink {
    fn send(&mut self, delivered: Vec<Delivered>) {
        for Delivered { at_ns, pid, profile, kinds } in delivered {
            let batch = Batch::Waits { pid, profile, kinds };
            let _ = self.batches.to.send(Delivery { at_ns, batch });
        }
    }
}

impl Sink for WaitSink {
    fn lost(&mut self, lost: Lost) -> TracerResult<()> {
        self.batches.lost(lost)
    }

    fn cost(&mut self, cost: Cost) {
        self.batches.cost(cost);
    }
}

impl waits::Sink for WaitSink {
    fn wait(&mut self, wait: waits::Wait) -> TracerResult<()> {
        self.waits.add(&wait);
        Ok(())
    }

    fn unmounted(&mut self, _: &UnmountedReading) -> TracerResult<()> {
        Ok(())
    }

    fn pool(&mut self, _: Pid, _: ConnectionPool) {}

    fn report(&mut self, end_ns: u64) -> TracerResult<()> {
        // The report is late by this time, so that all waits of the window are known.
        let end_ns = end_ns.saturating_sub(DELAY_NS);
        let ended = self.waits.take_ended(end_ns);
        self.send(ended);
        self.batches.end_interval_at(end_ns);
        Ok(())
    }
}

fn waits(options: &Options, out: &SyncSender<Delivery>, stop: &AtomicBool) -> TracerResult<()> {
    let Some(min) = options.waits else { return Ok(()) };
    let batches = BatchSink::new(options, out, WAITS);
    let waits = Waits::new(batches.begin_ns, options.window, options.max_memory / 2);
    let tracer_options = waits::Options { min, pace: PACE, virtual_threads: false, holders: false };
    let tracer = waits::Tracer::new(tracer_options, WaitSink { batches, waits })?;
    let tracer = tracer.with_cpu_budget(Arc::clone(&options.stack_ppm));
    let arrivals = options.registry.subscribe()?;
    let mut trace = Trace::start(tracer, Vec::new(), Some(arrivals))?;
    trace.tool.sink.batches.send(Batch::Started);
    // A window is reported after its end, when the tracer has reported all waits that ended in it.
    let times = Times {
        aligned_to: Some(options.begin + Duration::from_nanos(DELAY_NS)),
        ..times(options)
    };
    trace.run(times, stop)?;
    trace.tool.finish_ended(&mut trace.jvms)?;
    let sink = &mut trace.tool.sink;
    let all = sink.waits.take_all();
    sink.send(all);
    Ok(())
}

/// Searches for deadlocks and JVMs without progress. It reports nothing at the end of a window, because a dump belongs to
/// the window in which it is delivered.
fn threads(options: &Options, out: &SyncSender<Delivery>, stop: &AtomicBool) -> TracerResult<()> {
    let search = stalls::Options {
        registry: options.registry.clone(),
        after: Arc::clone(&options.thread_dumps),
        ppm: Arc::clone(&options.thread_ppm),
    };
    let send = |batch| _ = out.send(Delivery { at_ns: monotonic_ns(), batch });
    let started = || send(Batch::Started);
    stalls::search(&search, stop, started, |dump| send(Batch::Threads(dump.into())))
}

fn samples(options: &Options, out: &SyncSender<Delivery>, stop: &AtomicBool) -> TracerResult<()> {
    let mut events = vec![EventSpec::cpu()];
    if options.off_cpu {
        events.push(EventSpec::off_cpu());
    }
    let tracer_options = samples::Options {
        targets: Targets::EveryJvm,
        named_by_user: false,
        events,
        frequency: options.rate.load(Ordering::Relaxed),
        rate: Some(Arc::clone(&options.rate)),
        skip_missing: true,
        user: true,
        kernel: true,
        walk: StackWalk::Auto,
        symbols: SymbolSource::HotSpot,
        signatures: false,
        min_wait: Duration::from_millis(1),
        idle: false,
        spans: true,
        slot_ns: 0,
        max_memory: options.max_memory,
        keeps_whole_trace: false,
        pace: PACE,
        registry: Some(options.registry.clone()),
    };
    let tracer = samples::Sampler::new(tracer_options, BatchSink::new(options, out, SAMPLES))?;
    let mut tracer = tracer.with_stack_budget(Arc::clone(&options.stack_ppm));
    tracer.start()?;
    tracer.sink.send(Batch::Started);
    tracer.run(times(options), stop)?;
    tracer.finish().map(drop)
}

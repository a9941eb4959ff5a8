//! Main loop: receives batches from the tracers and passes complete windows on.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, sync_channel},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use libjvmprobe::{
    bpf::{self, clock::monotonic_ns},
    jvms::{
        MinAge, Registry, Select, Slots, host_attributes, host_name, next_report,
        registry::{self, Search},
    },
    process::start_readers,
    sys::{
        budget, limited,
        privileges::{ATTACH, KERNEL_SYMBOLS, MAPS, RAISE_PRIORITY, READ, keep_only},
        return_memory_sooner,
    },
};

use crate::{
    collect::{
        batch::{Batch, Delivery},
        costs::ResourceUse,
        jvms::Jvms,
        ladder::Measures,
        limit_log::LimitLog,
        saving::{self, Saving},
        signals::{self, Signals},
        tracers::{self, MAX_BATCHES, Tracers},
        values::HostCpuReader,
        watchdog::Watchdog,
        window_builder::WindowBuilder,
        window_worker::WindowWorker,
    },
    config::Rule,
    identity::Rules,
    metrics::{
        Sets, SharedTotals,
        figures::{DaemonMetrics, Figures},
        server::{self, Health, cost::serving_ns},
    },
    net::Net,
    notify::Notify,
    push::{Push, retry, target},
    store::{self, Store},
};

/// Maximum number of JVMs that are followed at once. This number of JVMs takes about 80 MB. Tenants share the slots
/// fairly: see [`Slots`].
const MAX_JVMS: usize = 1000;
/// Interval at which the loop checks for JVMs that have ended.
const TICK: Duration = Duration::from_secs(1);
/// Maximum time until the tracers have started.
const MAX_START_TIME: Duration = Duration::from_secs(20);
/// Maximum times at shutdown: first until the tracers have ended, then until their last data is on disk, and
/// then until it is pushed; and for all of this, which leaves some time for detaching within five seconds.
const MAX_STOP_TIME: Duration = Duration::from_millis(1500);
const MAX_WRITE_TIME: Duration = Duration::from_secs(1);
const MAX_PUSH_TIME: Duration = Duration::from_millis(1500);
const MAX_SHUTDOWN_TIME: Duration = Duration::from_millis(3200);

/// Options of the daemon.
#[derive(Debug)]
pub struct Options {
    /// CPU samples per second.
    pub hertz: u64,
    /// Whether off-CPU time is recorded, too.
    pub off_cpu: bool,
    /// Minimum length of recorded waits; `None` if waits are not recorded.
    pub waits: Option<Duration>,
    /// Length of a window.
    pub window: Duration,
    /// Whether allocation is recorded.
    pub allocation: bool,
    /// Time without progress after which a thread dump is taken, in seconds; 0 for no thread dumps.
    pub thread_dumps: u64,
    /// Limits on CPU time and memory of the daemon.
    pub limits: saving::Limits,
    /// Rules that select and rename JVMs.
    pub rules: Vec<Rule>,
    /// Listeners of metrics and health.
    pub serve: server::Options,
    /// Sets of metrics of JVMs that are exported.
    pub sets: Sets,
    /// Push targets.
    pub targets: Vec<target::Options>,
    /// Directory of the queues of push targets.
    pub queues: PathBuf,
    /// Verbosity: 1 also logs details, 2 also logs libbpf's messages.
    pub verbose: u8,
}

/// Settings that a reload changes.
#[derive(Debug)]
pub struct Changed {
    /// Rules that select and rename JVMs. They apply to JVMs that are found from now on.
    pub rules: Vec<Rule>,
    /// Limits on CPU time and memory of the daemon.
    pub limits: saving::Limits,
    /// See [`Options::thread_dumps`].
    pub thread_dumps: u64,
    /// Maximum age of windows, and maximum size of the store in bytes.
    pub bounds: (Duration, u64),
}

/// Runs the daemon until a signal ends it. SIGHUP calls `read_again`.
///
/// # Errors
/// The daemon cannot start. Later failures of tracers are logged, and the daemon continues with the others.
pub fn run(options: Options, store: Store, read_again: impl Fn() -> Result<Changed>) -> Result<()> {
    // This must come before any thread starts.
    return_memory_sooner();
    bpf::set_libbpf_output(options.verbose > 1);
    bpf::preflight::check()?;
    // Cached now, because reading the name from PID 1's namespace needs rights that `keep_only` drops below.
    host_name();
    // Opened before rights are dropped, and before systemd is notified that the daemon is ready.
    let listeners = server::Listeners::open(&options.serve)?;
    let notify = Notify::from_env().context("NOTIFY_SOCKET")?;
    keep_only(MAPS | READ | ATTACH | RAISE_PRIORITY | KERNEL_SYMBOLS);
    set_target_memory(options.limits);
    // Started while this process has little memory that the child processes would share.
    start_readers().context("cannot start a reader process")?;
    bpf::start_keeper().context("cannot start the process that detaches probes")?;
    // Cached now, so that a message about an invalid setting comes first.
    host_attributes();
    let net = Net::start().context("cannot start a thread")?;
    let signals = signals::listen(&net).context("cannot handle signals")?;
    let totals = SharedTotals::default();
    let push = Push::start(&net, &options.targets, &options.queues, retry::Limits::default())?;
    {
        let mut totals = totals.lock();
        totals.targets = push.ledgers();
        totals.sets = options.sets;
    }
    let health = Arc::new(Health::default());
    let _serving = listeners.start(&totals, &health).context("cannot start a thread")?;
    let slots = Slots::new(MAX_JVMS);
    // Measured now, before the machine is busy with the daemon's own work.
    bpf::trap_cost::trap_costs();
    let measures = Measures {
        hertz: options.hertz,
        off_cpu: options.off_cpu,
        waits: options.waits.is_some(),
        allocation: options.allocation,
    };
    let saving = Saving::new(options.limits, measures, options.window);
    let rules = Arc::new(Rules::new(options.rules));
    let min_age = MinAge::default();
    let registry = Registry::start(registry::Options {
        targets: Search::AllJvms,
        pace: tracers::PACE,
        slots: Some(slots.clone()),
        min_age: min_age.clone(),
        identify: true,
        select: Some(Arc::clone(&rules) as Arc<dyn Select>),
    })?;
    let allocation_ppm = Arc::new(AtomicU64::new(saving.allocation_ppm()));
    let stack_ppm = Arc::new(AtomicU64::new(saving.stack_ppm()));
    let thread_ppm = Arc::new(AtomicU64::new(saving.thread_ppm()));
    let tracer_options = tracers::Options {
        registry: registry.clone(),
        rate: Arc::new(AtomicU64::new(options.hertz)),
        off_cpu: options.off_cpu,
        waits: options.waits,
        allocation: options.allocation,
        allocation_ppm: Arc::clone(&allocation_ppm),
        stack_ppm: Arc::clone(&stack_ppm),
        thread_dumps: Arc::new(AtomicU64::new(options.thread_dumps)),
        thread_ppm: Arc::clone(&thread_ppm),
        max_memory: usize::try_from(options.limits.memory_bytes / 4).unwrap_or(usize::MAX),
        begin: Instant::now(),
        window: options.window,
    };
    let (window_end, window_end_ns) = next_end(&tracer_options);
    let jvms = Jvms::open(Arc::clone(&rules), registry, options.window, options.sets)?;
    let (out, batches) = sync_channel(MAX_BATCHES);
    let tracers = Tracers::start(tracer_options, out)?;
    let mut daemon = Daemon {
        jvms,
        rules,
        slots,
        builder: WindowBuilder::new(totals.clone()),
        host_cpu: HostCpuReader::begin(),
        worker: WindowWorker::start(store, push, &totals, options.window)?,
        totals,
        window_end,
        window_end_ns,
        closed_end_ns: None,
        watchdog: Watchdog::new(options.window),
        limit_log: LimitLog::default(),
        batches,
        tracers,
        saving,
        allocation_ppm,
        stack_ppm,
        thread_ppm,
        min_age,
        notify,
        health,
    };
    daemon.wait_for_tracers(&signals)?;
    daemon.run_loop(&signals, read_again);
    daemon.shut_down(&net);
    Ok(())
}

/// Sets the part of the memory limit that data of targets may take: unwind tables in the kernel, symbols, mappings,
/// threads. The rest is for profiles and for the daemon itself.
fn set_target_memory(limits: saving::Limits) {
    budget::set_process_limit(usize::try_from(limits.memory_bytes / 2).unwrap_or(usize::MAX));
}

/// Returns the next end of a window, as an instant and on `CLOCK_MONOTONIC` in nanoseconds.
fn next_end(options: &tracers::Options) -> (Instant, u64) {
    let now = Instant::now();
    let at = next_report(options.begin, options.window, now);
    let wait = u64::try_from((at - now).as_nanos()).unwrap_or_default();
    (at, monotonic_ns().saturating_add(wait))
}

struct Daemon {
    jvms: Jvms,
    rules: Arc<Rules>,
    slots: Slots,
    builder: WindowBuilder,
    host_cpu: HostCpuReader,
    totals: SharedTotals,
    worker: WindowWorker,
    /// End of the open window.
    window_end: Instant,
    /// End of the open window, on `CLOCK_MONOTONIC` in nanoseconds.
    window_end_ns: u64,
    /// End of the window that was closed last, on `CLOCK_MONOTONIC` in nanoseconds.
    closed_end_ns: Option<u64>,
    watchdog: Watchdog,
    limit_log: LimitLog,
    batches: Receiver<Delivery>,
    tracers: Tracers,
    saving: Saving,
    /// Budgets shared with the tracers, see [`tracers::Options`].
    allocation_ppm: Arc<AtomicU64>,
    stack_ppm: Arc<AtomicU64>,
    thread_ppm: Arc<AtomicU64>,
    /// Age below which new JVMs are not followed, shared with the registry.
    min_age: MinAge,
    notify: Notify,
    health: Arc<Health>,
}

impl Daemon {
    /// Waits until every tracer has started or failed, for at most [`MAX_START_TIME`]. Failures are logged; the daemon
    /// fails only if all tracers have failed.
    fn wait_for_tracers(&mut self, signals: &Signals) -> Result<()> {
        let (mut begun, mut failed) = (0, Vec::new());
        let until = Instant::now() + MAX_START_TIME;
        let mut next_tick = Instant::now();
        while begun + failed.len() < self.tracers.len() && !signals.stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now >= next_tick {
                next_tick = now + TICK;
                self.report_alive();
            }
            if now >= until {
                log::warn!(
                    "some tracers have not started within {} s: their data is missing until they have",
                    MAX_START_TIME.as_secs()
                );
                break;
            }
            match self.batches.recv_timeout(TICK) {
                Ok(Delivery { batch: Batch::Started, .. }) => begun += 1,
                Ok(Delivery { batch: Batch::Ended { tracer, reason }, .. }) => {
                    failed.push((tracer, reason));
                }
                Ok(delivery) => self.handle_batch(delivery),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if let Some((_, reason)) = failed.first()
            && failed.len() == self.tracers.len()
        {
            bail!("{reason}");
        }
        for (tracer, reason) in failed {
            self.log_ended(tracer, &reason);
        }
        self.register_new_jvms();
        self.update_own_metrics();
        let stored = store::describe(self.totals.lock().store_counts);
        let now = self.jvms.running();
        log::info!(
            "Tracing all JVMs on this host, {now} now; {stored} stored... Hit Ctrl-C to end."
        );
        self.notify.ready(&format!("{} JVMs", self.jvms.running()));
        self.health.set_ready(true);
        Ok(())
    }

    fn run_loop(&mut self, signals: &Signals, read_again: impl Fn() -> Result<Changed>) {
        let mut next_tick = Instant::now();
        while !signals.stop.load(Ordering::Relaxed) {
            let until = next_tick.min(self.window_end);
            match self.batches.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(delivery) => self.handle_batch(delivery),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(TICK),
            }
            self.register_new_jvms();
            let now = Instant::now();
            if now >= next_tick {
                next_tick = now + TICK;
                self.remove_ended_jvms();
                self.watchdog.watch(self.tracers.names(), now);
                self.report_alive();
            }
            if now >= self.window_end {
                self.close_window(false);
            }
            if self.is_delivered() {
                self.complete_window();
            }
            if signals.reload.swap(false, Ordering::Relaxed) {
                self.reload(&read_again);
            }
        }
    }

    fn handle_batch(&mut self, delivery: Delivery) {
        // A tracer may deliver data of the next window before this loop has noticed the end of the open one.
        if delivery.at_ns >= self.window_end_ns {
            self.close_window(false);
        }
        match delivery {
            Delivery { batch: Batch::Ended { tracer, reason }, .. } => {
                self.log_ended(tracer, &reason);
            }
            Delivery { batch: Batch::Reported { tracer }, at_ns } => {
                self.watchdog.reported(tracer, at_ns);
            }
            delivery => self.builder.add(delivery, &mut self.jvms),
        }
    }

    fn log_ended(&mut self, tracer: &str, reason: &str) {
        log::warn!("stopped collecting {tracer}: {reason}");
        self.tracers.remove(tracer);
        self.watchdog.watch(self.tracers.names(), Instant::now());
        self.totals.lock().add_abandoned(tracer);
    }

    fn register_new_jvms(&mut self) {
        let new = self.jvms.take_new();
        let changed = self.jvms.take_changed();
        let dropped_attributes = self.jvms.take_dropped_attributes();
        let mut totals = self.totals.lock();
        totals.seen = totals.seen.saturating_add(new.len() as u64);
        for (identity, dropped) in dropped_attributes {
            limited::add("attributes", &identity.tenant(), dropped);
        }
        for (old, new) in &changed {
            totals.replace_identity(old, new);
            self.builder.replace_identity(old, new);
        }
        self.jvms.take_read().iter().for_each(|identity| totals.admit(identity));
        totals.raise_abandoned("short-lived", self.jvms.exited_unexamined());
    }

    fn remove_ended_jvms(&mut self) {
        let ended = self.jvms.take_ended();
        let mut totals = self.totals.lock();
        ended.iter().for_each(|identity| totals.ended(identity));
        totals.remove_expired();
    }

    fn report_alive(&mut self) {
        self.notify.report_alive();
        self.health.report_alive();
    }

    /// Ends the interval of the open window, and begins the next one. The last window ends now.
    fn close_window(&mut self, is_last: bool) {
        // The previous window may still wait for data: at shutdown, if this loop was delayed, or if a tracer was. It is
        // judged nevertheless, because the tracer may be slow for the very reason that it costs too much.
        if is_last {
            self.finish_window();
        } else {
            self.complete_window();
        }
        let options = self.tracers.options();
        (self.window_end, self.window_end_ns) = next_end(options);
        let window_ns = u64::try_from(options.window.as_nanos()).unwrap_or_default();
        // If this loop was delayed, the window ends at the last boundary that has passed.
        let previous_ns = self.window_end_ns.saturating_sub(window_ns);
        let end_ns = if is_last { monotonic_ns() } else { previous_ns };
        self.closed_end_ns = Some(end_ns);
        // The CPU time must be read before the gauges, because the gauges contain the CPU time that
        // `Jvms::cpu_times` has read last.
        let cpu_times = self.jvms.cpu_times();
        let host_ticks = self.host_cpu.read();
        let gauges = self.jvms.gauges(host_ticks);
        for (identity, has_recent) in self.jvms.without_gauges() {
            limited::add("gauges", &identity.tenant(), 1);
            if !has_recent {
                self.totals.lock().clear_values(identity);
            }
        }
        for (identity, gauges) in gauges {
            let mut totals = self.totals.lock();
            // It may have got no series before, or lost them.
            totals.admit(&identity);
            totals.add(&identity, &Figures { gauges, ..Figures::default() });
        }
        self.builder.close(end_ns, cpu_times, host_ticks);
    }

    /// Returns whether there is a closed window to which no more data will be added: every tracer that is not overdue
    /// has reported since the window's end. Otherwise, the window is completed at the end of the next one.
    fn is_delivered(&self) -> bool {
        let end_ns = self.closed_end_ns.filter(|_| self.builder.has_closed());
        end_ns.is_some_and(|end_ns| self.watchdog.have_delivered(end_ns))
    }

    /// If there is a closed window, completes it, passes it on to the worker thread, and judges what it has cost.
    fn complete_window(&mut self) {
        if self.finish_window() {
            self.adjust_measures();
        }
    }

    /// If there is a closed window, completes it and passes it on to the worker thread. Returns whether there was one.
    fn finish_window(&mut self) -> bool {
        let Some(window) = self.builder.finish() else { return false };
        for (tenant, jvms) in self.slots.take_refused() {
            limited::add("jvms", &tenant, jvms);
        }
        let limited = limited::take();
        self.limit_log.log(&limited);
        for ((reason, tenant), count) in limited {
            self.totals.lock().add_limited(reason, &tenant, count);
        }
        self.update_own_metrics();
        self.worker.enqueue(window);
        let stored = store::describe(self.totals.lock().store_counts);
        self.notify.status(&format!("{} JVMs; {stored}", self.jvms.running()));
        true
    }

    fn update_own_metrics(&self) {
        let resource_use = ResourceUse::now();
        let mut totals = self.totals.lock();
        totals.last_reports = self.watchdog.times();
        totals.collected = self.saving.collected();
        totals.own = DaemonMetrics {
            processor_ns: resource_use.processor_ns.saturating_add(serving_ns()),
            memory_bytes: resource_use.memory,
            hertz: self.saving.current().hertz,
            saving: self.saving.step(),
            window_delay_ns: totals.own.window_delay_ns,
            target_memory_bytes: budget::Budget::of_process().held() as u64,
        };
    }

    fn adjust_measures(&mut self) {
        let before = self.saving.current();
        let change = self.saving.evaluate(self.jvms.running(), self.builder.probes());
        self.set_budgets();
        let Some(change) = change else { return };
        log::info!(saving:serde = change.values(); "{}", change.describe());
        if let Err(error) = self.tracers.change(before, change.to) {
            log::warn!("failed to change what is collected: {error:#}");
        }
        self.builder.set_collected(&self.saving.collected());
        self.update_own_metrics();
    }

    fn set_budgets(&self) {
        self.allocation_ppm.store(self.saving.allocation_ppm(), Ordering::Relaxed);
        self.stack_ppm.store(self.saving.stack_ppm(), Ordering::Relaxed);
        self.thread_ppm.store(self.saving.thread_ppm(), Ordering::Relaxed);
        self.min_age.set(self.saving.min_age());
    }

    fn reload(&mut self, read_again: impl Fn() -> Result<Changed>) {
        self.notify.reloading();
        match read_again() {
            Ok(Changed { rules, limits, thread_dumps, bounds: (age, size) }) => {
                self.rules.set(rules);
                self.saving.set_limits(limits);
                set_target_memory(limits);
                self.set_budgets();
                self.worker.set_bounds(age, size);
                if let Err(error) = self.tracers.set_thread_dumps(thread_dumps) {
                    log::warn!("failed to change thread dumps: {error:#}");
                }
                log::info!("reloaded the configuration");
            }
            Err(error) => {
                log::warn!("cannot reload the configuration, keeping the previous one: {error:#}")
            }
        }
        self.notify.ready(&format!("{} JVMs", self.jvms.running()));
    }

    /// Collects the last data of the tracers, and passes it on.
    fn shut_down(mut self, net: &Net) {
        self.notify.stopping();
        self.health.set_ready(false);
        self.tracers.stop();
        let begin = Instant::now();
        let until = begin + MAX_STOP_TIME;
        loop {
            // Batches that arrive all the time do not prolong the wait.
            let left = until.saturating_duration_since(Instant::now());
            match self.batches.recv_timeout(left) {
                Ok(delivery) if !left.is_zero() => self.handle_batch(delivery),
                Err(RecvTimeoutError::Disconnected) => break,
                Ok(_) | Err(RecvTimeoutError::Timeout) => {
                    log::warn!("a tracer did not stop in time: its last data is not stored");
                    break;
                }
            }
        }
        self.close_window(true);
        self.finish_window();
        if let Some(push) = self.worker.end(MAX_WRITE_TIME) {
            let left = MAX_SHUTDOWN_TIME.saturating_sub(begin.elapsed());
            push.end(net, left.min(MAX_PUSH_TIME));
        }
    }
}

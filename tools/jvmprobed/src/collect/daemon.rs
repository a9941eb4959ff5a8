//! Main loop: receives batches from the tracers and hands on complete windows.

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
    bpf,
    jvms::{
        Registry, Select, Slots, host_name,
        registry::{self, Search},
    },
    process::start_readers,
    sys::{
        privileges::{ATTACH, KERNEL_SYMBOLS, MAPS, RAISE_PRIORITY, READ, keep_only},
        return_memory_sooner,
    },
};

use crate::{
    collect::{
        batch::Batch,
        jvms::Jvms,
        saving::{self, Measures, Probes, Saving},
        signals::{self, Signals},
        tracers::{self, MAX_PIECES, Tracers, WINDOW},
        window_builder::WindowBuilder,
        window_worker::WindowWorker,
    },
    config::Rule,
    identity::Rules,
    metrics::{
        SharedTotals,
        figures::{DaemonMetrics, Figures},
        server::{self, Health, cost::serving_ns},
    },
    net::Net,
    notify::Notify,
    push::{Push, retry, target},
    store::{self, Store},
};

/// Time after the end of a window within which the tracers deliver its data.
const GRACE: Duration = Duration::from_secs(2);
/// Maximum number of JVMs that are followed at once; they take about 80 MB. A control group gets at most half
/// of the free slots.
const MAX_JVMS: usize = 1000;
/// Interval at which the loop checks for JVMs that have ended.
const TICK: Duration = Duration::from_secs(1);
/// Maximum time at shutdown for the tracers to end, then to write their last data to disk, and then to push it.
const TO_END: Duration = Duration::from_millis(2500);
const TO_WRITE: Duration = Duration::from_secs(1);
const TO_PUSH: Duration = Duration::from_millis(1500);

/// Options of the daemon.
#[derive(Debug)]
pub struct Options {
    /// CPU samples per second.
    pub hertz: u64,
    /// Whether off-CPU time is recorded, too.
    pub off_cpu: bool,
    /// Whether allocation is recorded.
    pub allocation: bool,
    /// Limits on CPU time and memory of the daemon.
    pub limits: saving::Limits,
    /// Rules that select and rename JVMs.
    pub rules: Vec<Rule>,
    /// Listeners of metrics and health.
    pub serve: server::Options,
    /// Push targets.
    pub targets: Vec<target::Options>,
    /// Directory of the queues of push targets.
    pub queues: PathBuf,
    /// 1 also logs what is found and ignored, 2 also logs libbpf's messages.
    pub verbose: u8,
}

/// Settings that a reload changes.
#[derive(Debug)]
pub struct Changed {
    /// Rules that select and rename JVMs. They apply to JVMs that are found from now on.
    pub rules: Vec<Rule>,
    /// Limits on CPU time and memory of the daemon.
    pub limits: saving::Limits,
    /// Maximum age of windows, and maximum size of the store in bytes.
    pub bounds: (Duration, u64),
}

/// Runs the daemon until a signal ends it. SIGHUP calls `read_again`.
///
/// # Errors
/// The daemon cannot start. After the start, it continues with the tracers that work.
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
    // Started while this process has little memory that the child processes would share.
    start_readers().context("cannot start a reader process")?;
    let net = Net::start().context("cannot start a thread")?;
    let asked = signals::listen(&net).context("cannot handle signals")?;
    let book = SharedTotals::default();
    let push = Push::start(&net, &options.targets, &options.queues, retry::Limits::default())?;
    book.lock().targets = push.ledgers();
    let health = Arc::new(Health::default());
    let _serving = listeners.start(&book, &health).context("cannot start a thread")?;
    let slots = Slots::new(MAX_JVMS);
    // Measured now, before the machine is busy with the daemon's own work.
    bpf::trap_cost::prices();
    let asked_for =
        Measures { hertz: options.hertz, off_cpu: options.off_cpu, allocation: options.allocation };
    let saving = Saving::new(options.limits, asked_for);
    let rules = Arc::new(Rules::new(options.rules));
    let registry = Registry::start(registry::Options {
        targets: Search::AllJvms,
        pace: tracers::PACE,
        slots: Some(slots.clone()),
        identify: true,
        select: Some(Arc::clone(&rules) as Arc<dyn Select>),
    })?;
    let allocation_ppm = Arc::new(AtomicU64::new(saving.allocation_ppm()));
    let stack_ppm = Arc::new(AtomicU64::new(saving.stack_ppm()));
    let wanted = tracers::Options {
        registry: registry.clone(),
        rate: Arc::new(AtomicU64::new(options.hertz)),
        off_cpu: options.off_cpu,
        allocation: options.allocation,
        allocation_ppm: Arc::clone(&allocation_ppm),
        stack_ppm: Arc::clone(&stack_ppm),
        max_memory: usize::try_from(options.limits.memory / 4).unwrap_or(usize::MAX),
    };
    let jvms = Jvms::open(Arc::clone(&rules), registry)?;
    let (out, pieces) = sync_channel(MAX_PIECES);
    let takers = Tracers::start(wanted, out)?;
    let mut daemon = Daemon {
        jvms,
        rules,
        slots,
        gather: WindowBuilder::new(book.clone()),
        handing: WindowWorker::start(store, push, &book)?,
        book,
        pieces,
        takers,
        saving,
        allocation_ppm,
        stack_ppm,
        notify,
        health,
    };
    daemon.begin(&asked)?;
    daemon.go_on(&asked, read_again);
    daemon.end(&net);
    Ok(())
}

struct Daemon {
    jvms: Jvms,
    rules: Arc<Rules>,
    slots: Slots,
    gather: WindowBuilder,
    book: SharedTotals,
    handing: WindowWorker,
    pieces: Receiver<Batch>,
    takers: Tracers,
    saving: Saving,
    /// Budgets shared with the tracers, see [`tracers::Options`].
    allocation_ppm: Arc<AtomicU64>,
    stack_ppm: Arc<AtomicU64>,
    notify: Notify,
    health: Arc<Health>,
}

impl Daemon {
    /// Waits until every tracer has started or failed. Failures are logged; the daemon fails only if no
    /// tracer has started.
    fn begin(&mut self, asked: &Signals) -> Result<()> {
        let (mut begun, mut failed) = (0, Vec::new());
        while begun + failed.len() < self.takers.len() {
            match self.pieces.recv_timeout(TICK) {
                Ok(Batch::Begun) => begun += 1,
                Ok(Batch::Ended { what, why }) => failed.push((what, why)),
                Ok(piece) => self.gather.take(piece, &mut self.jvms),
                Err(RecvTimeoutError::Timeout) if asked.stop.load(Ordering::Relaxed) => break,
                Err(RecvTimeoutError::Timeout) => self.alive(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if let (0, Some((_, why))) = (begun, failed.first()) {
            bail!("{why}");
        }
        for (what, why) in failed {
            self.tell_ended(what, &why);
        }
        self.look();
        self.tell_own();
        let kept = store::describe(self.book.lock().kept);
        let now = self.jvms.running();
        log::info!("Tracing all JVMs on this host, {now} now; {kept} stored... Hit Ctrl-C to end.");
        self.notify.ready(&format!("{} JVMs", self.jvms.running()));
        self.health.set_ready(true);
        Ok(())
    }

    fn go_on(&mut self, asked: &Signals, read_again: impl Fn() -> Result<Changed>) {
        let mut next_cut = Instant::now() + WINDOW + GRACE;
        let mut next_tick = Instant::now();
        while !asked.stop.load(Ordering::Relaxed) {
            let until = next_tick.min(next_cut);
            match self.pieces.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(piece) => self.take(piece),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(TICK),
            }
            self.look();
            let now = Instant::now();
            if now >= next_tick {
                next_tick = now + TICK;
                self.part();
                self.alive();
            }
            if now >= next_cut {
                // After suspend, missed windows are not made up for.
                next_cut = (next_cut + WINDOW).max(now);
                self.cut();
                self.judge();
            }
            if asked.reload.swap(false, Ordering::Relaxed) {
                self.reload(&read_again);
            }
        }
    }

    fn take(&mut self, piece: Batch) {
        match piece {
            Batch::Ended { what, why } => self.tell_ended(what, &why),
            piece => self.gather.take(piece, &mut self.jvms),
        }
    }

    fn tell_ended(&self, what: &str, why: &str) {
        log::warn!("stopped collecting {what}: {why}");
        self.book.lock().give_up(what);
    }

    fn look(&mut self) {
        let new = self.jvms.look();
        let mut book = self.book.lock();
        new.iter().for_each(|who| book.found(who));
        book.set_given_up("short-lived", self.jvms.left_out());
    }

    fn part(&mut self) {
        let ended = self.jvms.part();
        let mut book = self.book.lock();
        ended.iter().for_each(|who| book.ended(who));
        book.sweep();
    }

    fn alive(&mut self) {
        self.notify.alive();
        self.health.alive();
    }

    /// Ends the current window and hands it on.
    fn cut(&mut self) {
        // Read before the gauges, which contain the CPU time, too.
        let cpu_ns = self.jvms.cpu_ns();
        for (who, gauges) in self.jvms.gauges() {
            self.book.lock().add(&who, &Figures { gauges, ..Figures::default() });
        }
        for who in self.jvms.without_gauges() {
            self.book.lock().limit("gauges", &who.tenant(), 1);
        }
        let collected = self.saving.collected();
        let left_out = collected.iter().filter(|(_, is)| !is).map(|&(what, _)| what);
        let window = self.gather.cut(left_out, cpu_ns);
        for (tenant, jvms) in self.slots.take_refused() {
            self.book.lock().limit("jvms", &tenant, jvms);
        }
        self.tell_own();
        self.handing.window(window);
        let kept = store::describe(self.book.lock().kept);
        self.notify.status(&format!("{} JVMs; {kept}", self.jvms.running()));
    }

    fn tell_own(&self) {
        let taken = saving::ResourceUse::now();
        let mut book = self.book.lock();
        book.collected = self.saving.collected();
        book.own = DaemonMetrics {
            processor_ns: taken.processor_ns.saturating_add(serving_ns()),
            memory_bytes: taken.memory,
            hertz: self.saving.taking().hertz,
            saving: self.saving.step(),
            window_delay_ns: book.own.window_delay_ns,
        };
    }

    fn judge(&mut self) {
        let before = self.saving.taking();
        let book = self.book.lock();
        let probes = Probes {
            stops_ns: book.spent_ns(|tracer| tracer == tracers::STOPS),
            allocation_ns: book.spent_ns(|tracer| tracer == tracers::ALLOCATION),
            others_ns: book
                .spent_ns(|tracer| ![tracers::STOPS, tracers::ALLOCATION].contains(&tracer)),
        };
        drop(book);
        let change = self.saving.judge(self.jvms.running(), probes);
        self.set_budgets();
        let Some(change) = change else { return };
        log::info!(saving:serde = change.values(); "{}", change.told());
        if let Err(error) = self.takers.change(before, change.to) {
            log::warn!("failed to change what is collected: {error:#}");
        }
        self.tell_own();
    }

    fn set_budgets(&self) {
        self.allocation_ppm.store(self.saving.allocation_ppm(), Ordering::Relaxed);
        self.stack_ppm.store(self.saving.stack_ppm(), Ordering::Relaxed);
    }

    fn reload(&mut self, read_again: impl Fn() -> Result<Changed>) {
        self.notify.reloading();
        match read_again() {
            Ok(Changed { rules, limits, bounds: (age, size) }) => {
                self.rules.set(rules);
                self.saving.set_limits(limits);
                self.set_budgets();
                self.handing.set_bounds(age, size);
                log::info!("reloaded the configuration");
            }
            Err(error) => {
                log::warn!("cannot reload the configuration, keeping the previous one: {error:#}")
            }
        }
        self.notify.ready(&format!("{} JVMs", self.jvms.running()));
    }

    /// Collects the last data of the tracers, and hands them on.
    fn end(mut self, net: &Net) {
        self.notify.stopping();
        self.health.set_ready(false);
        self.takers.stop();
        let until = Instant::now() + TO_END;
        loop {
            match self.pieces.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(piece) => self.take(piece),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    log::warn!("a tracer did not stop in time: its last data is not stored");
                    break;
                }
            }
        }
        self.cut();
        if let Some(push) = self.handing.end(TO_WRITE) {
            push.end(net, TO_PUSH);
        }
    }
}

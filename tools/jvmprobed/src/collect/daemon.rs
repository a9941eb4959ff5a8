//! The loop: pieces come in, windows go out.

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
    follow::{
        Registry, Select, Slots, host_name,
        registry::{self, Whom},
    },
    own::{
        Facts, Level, give_back_soon, inform, note,
        privileges::{ATTACH, HURRY, KERNEL_SYMBOLS, MAPS, READ, keep},
        say,
    },
    process::start_readers,
};

use crate::{
    collect::{
        gather::Gather,
        handing::Handing,
        jvms::Jvms,
        piece::Piece,
        saving::{self, Probes, Saving, Taking},
        signals::{self, Asked},
        takers::{self, MAX_PIECES, Takers, WINDOW},
    },
    config::Rule,
    identity::Rules,
    metrics::{
        SharedBook,
        figures::{Figures, Own},
        server::{self, Health, cost::serving_ns},
    },
    net::Net,
    notify::Notify,
    push::{Push, retry, target},
    store::{self, Store},
};

/// What takers hand over of a window comes within this after its end.
const GRACE: Duration = Duration::from_secs(2);
/// Maximum number of JVMs that are followed at once: some 80 MB. A control group gets at most half of the slots that
/// are free.
const MAX_JVMS: usize = 1000;
/// How often to look for JVMs that have ended.
const TICK: Duration = Duration::from_secs(1);
/// How long takers may take to end, then the disk to take what they had, and then targets.
const TO_END: Duration = Duration::from_millis(2500);
const TO_WRITE: Duration = Duration::from_secs(1);
const TO_PUSH: Duration = Duration::from_millis(1500);

/// What the daemon is told.
#[derive(Debug)]
pub struct Options {
    /// What is taken.
    pub hertz: u64,
    /// Times off the processor, too.
    pub off_cpu: bool,
    /// Allocation.
    pub allocation: bool,
    /// What may be taken of the machine.
    pub limits: saving::Limits,
    /// Which JVMs, under which names.
    pub rules: Vec<Rule>,
    /// Listeners of metrics and health.
    pub serve: server::Options,
    /// Where to push to.
    pub targets: Vec<target::Options>,
    /// Where what waits to be pushed is kept.
    pub queues: PathBuf,
    /// 1 to say what is found and ignored, 2 for what libbpf says, too.
    pub verbose: u8,
}

/// What can change while it runs.
#[derive(Debug)]
pub struct Changed {
    /// Which JVMs, under which names: of those that come.
    pub rules: Vec<Rule>,
    /// What may be taken of the machine.
    pub limits: saving::Limits,
    /// How long windows are kept, and how much.
    pub bounds: (Duration, u64),
}

/// Runs until it is told to end. `read_again` is asked on SIGHUP.
///
/// # Errors
/// Why it cannot begin; afterwards it goes on with what can be had.
pub fn run(options: Options, store: Store, read_again: impl Fn() -> Result<Changed>) -> Result<()> {
    // Before there are threads.
    give_back_soon();
    bpf::set_libbpf_output(options.verbose > 1);
    bpf::preflight::check()?;
    // While there is the right to ask for it.
    host_name();
    // Taken before rights are given up, and before anybody is told that all is well.
    let listeners = server::Listeners::open(&options.serve)?;
    let notify = Notify::from_env().context("NOTIFY_SOCKET")?;
    keep(MAPS | READ | ATTACH | HURRY | KERNEL_SYMBOLS);
    // While there is little memory that they share.
    start_readers().context("start a process that reads")?;
    let net = Net::start().context("start a thread")?;
    let asked = signals::listen(&net).context("handle signals")?;
    let book = SharedBook::default();
    let push = Push::start(&net, &options.targets, &options.queues, retry::Limits::default())?;
    book.lock().targets = push.ledgers();
    let health = Arc::new(Health::default());
    let _serving = listeners.start(&book, &health).context("start a thread")?;
    let slots = Slots::new(MAX_JVMS);
    // Measured before there is anything else to do.
    bpf::trap::prices();
    let asked_for =
        Taking { hertz: options.hertz, off_cpu: options.off_cpu, allocation: options.allocation };
    let saving = Saving::new(options.limits, asked_for);
    let rules = Arc::new(Rules::new(options.rules));
    let registry = Registry::start(registry::Options {
        whom: Whom::Everyone,
        pace: takers::PACE,
        slots: Some(slots.clone()),
        identify: true,
        select: Some(Arc::clone(&rules) as Arc<dyn Select>),
        verbose: options.verbose > 0,
    })?;
    let allocation_ppm = Arc::new(AtomicU64::new(saving.allocation_ppm()));
    let stack_ppm = Arc::new(AtomicU64::new(saving.stack_ppm()));
    let wanted = takers::Options {
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
    let takers = Takers::start(wanted, out)?;
    let mut daemon = Daemon {
        jvms,
        rules,
        slots,
        gather: Gather::new(book.clone()),
        handing: Handing::start(store, push, &book)?,
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
    gather: Gather,
    book: SharedBook,
    handing: Handing,
    pieces: Receiver<Piece>,
    takers: Takers,
    saving: Saving,
    /// As in [`takers::Options`].
    allocation_ppm: Arc<AtomicU64>,
    stack_ppm: Arc<AtomicU64>,
    notify: Notify,
    health: Arc<Health>,
}

impl Daemon {
    /// Waits until all takers have begun. Those that cannot are told; it is an error if none can.
    fn begin(&mut self, asked: &Asked) -> Result<()> {
        let (mut begun, mut failed) = (0, Vec::new());
        while begun + failed.len() < self.takers.len() {
            match self.pieces.recv_timeout(TICK) {
                Ok(Piece::Begun) => begun += 1,
                Ok(Piece::Ended { what, why }) => failed.push((what, why)),
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
        inform(&format!(
            "Takes all JVMs of this host, {now} now; {kept} kept... Hit Ctrl-C to end."
        ));
        self.notify.ready(&format!("{} JVMs", self.jvms.running()));
        self.health.set_ready(true);
        Ok(())
    }

    fn go_on(&mut self, asked: &Asked, read_again: impl Fn() -> Result<Changed>) {
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
                // A machine that has slept does not make up for it.
                next_cut = (next_cut + WINDOW).max(now);
                self.cut();
                self.judge();
            }
            if asked.reload.swap(false, Ordering::Relaxed) {
                self.reload(&read_again);
            }
        }
    }

    fn take(&mut self, piece: Piece) {
        match piece {
            Piece::Ended { what, why } => self.tell_ended(what, &why),
            piece => self.gather.take(piece, &mut self.jvms),
        }
    }

    fn tell_ended(&self, what: &str, why: &str) {
        note(&format!("{what} are not taken any more: {why}"));
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

    /// Hands on what was taken until now.
    fn cut(&mut self) {
        // Gauges have it, too.
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
        let taken = saving::Taken::now();
        let mut book = self.book.lock();
        book.collected = self.saving.collected();
        book.own = Own {
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
            stops_ns: book.spent_ns(|tracer| tracer == takers::STOPS),
            allocation_ns: book.spent_ns(|tracer| tracer == takers::ALLOCATION),
            others_ns: book
                .spent_ns(|tracer| ![takers::STOPS, takers::ALLOCATION].contains(&tracer)),
        };
        drop(book);
        let change = self.saving.judge(self.jvms.running(), probes);
        self.set_budgets();
        let Some(change) = change else { return };
        let facts = Facts { about: "saving", values: &change.values() };
        say(Level::Info, &change.told(), Some(facts));
        if let Err(error) = self.takers.change(before, change.to) {
            note(&format!("that could not be changed: {error:#}"));
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
                inform("the configuration was read again");
            }
            Err(error) => note(&format!("the configuration stays as it was: {error:#}")),
        }
        self.notify.ready(&format!("{} JVMs", self.jvms.running()));
    }

    /// Takes what takers still have, and hands it on.
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
                    note("a taker has not ended in time: what it took last is not kept");
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

//! The trace itself: attach, take events, notice who comes and goes, sum up.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::Result;
use libjvmprobe::{
    Error, Pid,
    cli::{self, Schedule, note},
    hotspot::HotSpot,
    jvm::{Fate, FileId, Target, scan::Scanner},
    trace::{
        self,
        attach::{Links, Plan, Scope},
        clock,
        walker::Walker,
    },
};

use crate::{
    args::Args, event::Event, instants, jvm::Jvm, record::Record, report::Report,
    requests::Requests, session::Session, summary::Totals,
};

/// How often to look for JVMs that end, start or get ready.
const TICK: Duration = Duration::from_millis(200);

/// Cookies lie above all process numbers: see `target_key()` in bpf/jvm.bpf.h.
const COOKIE: u64 = 1 << 32;

/// A running trace.
pub struct Tracer<'a> {
    args: &'a Args,
    report: Report,
    session: Session,
    /// By the key that the kernel side knows them by.
    jvms: BTreeMap<u64, Jvm>,
    /// Attachments to a file, for all processes that map it.
    files: HashMap<FileId, Attached>,
    scanner: Scanner,
    requests: Requests,
}

/// Attachments, and since when they are complete.
struct Attached {
    _links: Links,
    since_ns: u64,
}

impl<'a> Tracer<'a> {
    /// Attaches to the JVMs that the arguments name, all or none.
    pub fn start(args: &'a Args, report: Report) -> Result<Self> {
        let targets: Vec<_> =
            args.pids.iter().map(|&pid| Target::open(pid)).collect::<Result<_, _>>()?;
        let hotspots: Vec<_> = targets.iter().map(|target| HotSpot::read(target).ok()).collect();
        let plans: Vec<_> = targets
            .iter()
            .zip(&hotspots)
            .map(|(target, hotspot)| instants::plan(&target.libjvm, hotspot.as_ref(), args))
            .collect::<Result<_, _>>()?;
        // JVMs still to come may need any of the programs.
        let programs: HashSet<_> = plans.iter().flatten().map(|plan| plan.program).collect();
        let session = Session::load((!args.all).then_some(&programs), args.stack)?;
        let mut tracer = Self {
            args,
            report,
            session,
            jvms: BTreeMap::new(),
            files: HashMap::new(),
            scanner: Scanner::new(),
            requests: Requests::default(),
        };
        for ((target, hotspot), plans) in targets.into_iter().zip(hotspots).zip(plans) {
            tracer.add_alone(target, hotspot, &plans)?;
        }
        if args.all {
            tracer.scan();
        }
        Ok(tracer)
    }

    /// Takes events until the trace is over, then sums up.
    pub fn run(mut self, stop: &AtomicBool) -> Result<()> {
        let Args { duration, interval, count, .. } = *self.args;
        let mut schedule = Schedule::new(Instant::now(), TICK, duration, interval, count);
        loop {
            self.take_events(schedule.timeout(Instant::now(), None))?;
            let due = schedule.due(Instant::now());
            if stop.load(Ordering::Relaxed) || self.report.is_closed() {
                break;
            }
            if due.report {
                self.summarize()?;
                if due.end {
                    return Ok(());
                }
            }
            if due.end {
                break;
            }
            if due.tick {
                self.tick()?;
                if self.jvms.is_empty() && !self.args.all {
                    return Ok(());
                }
            }
        }
        self.take_events(Duration::ZERO)?;
        self.note_lost()?;
        self.summarize()
    }

    /// One line about what is traced.
    pub fn describe(&self) -> String {
        let collector = |jvm: &Jvm| jvm.hotspot().map_or("", |h| h.collector.name());
        let jvms = self.jvms.values().map(|jvm| (jvm.target.pid(), collector(jvm)));
        cli::describe(self.args.all, jvms)
    }

    fn take_events(&mut self, timeout: Duration) -> Result<()> {
        for event in self.session.events(timeout)? {
            let key = event.target();
            if self.args.all && !self.jvms.contains_key(&key) {
                // A JVM that the last scan was too early for.
                self.scan();
            }
            let Some(jvm) = self.jvms.get_mut(&key) else {
                continue;
            };
            if let Event::Request(request) = &event {
                self.requests.take(request, jvm.hotspot());
            }
            if let Some(mut record) = jvm.take(&event) {
                if let Record::Pause(stop) = &mut record {
                    self.requests.settle(key, stop);
                }
                self.report.record(&record)?;
            }
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<()> {
        self.note_lost()?;
        let fates: Vec<_> = self.jvms.iter().map(|(key, jvm)| (*key, jvm.fate())).collect();
        if fates.iter().any(|(_, fate)| *fate != Fate::Alive) {
            // The last stops may have come between the last wait and the end.
            self.take_events(Duration::ZERO)?;
        }
        for (key, fate) in fates.into_iter().filter(|(_, fate)| *fate != Fate::Alive) {
            let Some(jvm) = self.jvms.remove(&key) else {
                continue;
            };
            let pid = jvm.target.pid();
            note(&match fate {
                Fate::Execed => format!("process {pid} runs another program now"),
                _ => format!("process {pid} has ended"),
            });
            self.report.record(&jvm.summary(clock::monotonic_ns()))?;
            self.session.forget(key);
            self.requests.forget(key);
            self.scanner.forget(pid);
        }
        if self.args.all {
            self.scan();
        }
        let mut set_up = Vec::new();
        for (key, jvm) in &mut self.jvms {
            if let Some(hotspot) = jvm.learn_more() {
                self.session.set_gauge(*key, &hotspot.gauge)?;
                set_up.push(*key);
            }
        }
        for key in set_up {
            if let (Some(walker), Some(jvm)) = (self.session.walker(), self.jvms.get(&key)) {
                know_stacks(&mut self.requests, walker, key, jvm.target.pid(), jvm.hotspot());
            }
        }
        Ok(())
    }

    fn note_lost(&mut self) -> Result<()> {
        for (key, jvm) in &mut self.jvms {
            let now = clock::rfc3339(clock::monotonic_ns());
            if let Some(record) = jvm.note_lost(self.session.lost(*key), now) {
                self.report.record(&record)?;
            }
        }
        Ok(())
    }

    fn summarize(&mut self) -> Result<()> {
        let now = clock::monotonic_ns();
        for jvm in self.jvms.values_mut() {
            self.report.record(&jvm.summary(now))?;
            jvm.next_interval(now);
        }
        Ok(())
    }

    /// Adds JVMs that are new, with what they need attached.
    fn scan(&mut self) {
        for target in self.scanner.scan() {
            let pid = target.pid();
            if let Err(error) = self.add_found(target) {
                note(&format!("process {pid} is not traced: {error}"));
            }
        }
        for (pid, error) in self.scanner.take_refused() {
            if self.args.verbose {
                note(&format!("process {pid} is not traced: {error}"));
            }
        }
    }

    fn add_found(&mut self, target: Target) -> Result<(), Error> {
        let hotspot = HotSpot::read(&target).ok();
        let plan = || instants::plan(&target.libjvm, None, self.args);
        if !trace::sees_initial_pids() {
            // The kernel's process numbers are not ours: attach one by one.
            let plans = plan()?;
            return self.add_alone(target, hotspot, &plans);
        }
        let key = target.pid().0.into();
        let id = target.libjvm.id;
        if !self.files.contains_key(&id) {
            let plans = plan()?;
            self.set_gauge(key, hotspot.as_ref());
            self.know_stacks(key, target.pid(), hotspot.as_ref());
            let links =
                self.session.attach(&target.libjvm, &plans, Scope::Everyone, 0, note_loss)?;
            let since_ns = clock::monotonic_ns();
            self.files.insert(id, Attached { _links: links, since_ns });
        }
        let since_ns = self.files.get(&id).map_or(0, |attached| attached.since_ns);
        if !self.requests.knows(key) {
            self.know_stacks(key, target.pid(), hotspot.as_ref());
        }
        self.add(key, target, hotspot, since_ns, None);
        Ok(())
    }

    /// Adds a JVM with attachments of its own.
    fn add_alone(
        &mut self,
        target: Target,
        hotspot: Option<HotSpot>,
        plans: &[Plan],
    ) -> Result<(), Error> {
        let pid = target.pid();
        let key = COOKIE | u64::from(pid.0);
        // Before the first event, which wants to know the heap already.
        self.set_gauge(key, hotspot.as_ref());
        self.know_stacks(key, pid, hotspot.as_ref());
        let links =
            self.session.attach(&target.libjvm, plans, Scope::Process(pid), key, note_loss)?;
        self.add(key, target, hotspot, clock::monotonic_ns(), Some(links));
        Ok(())
    }

    fn add(
        &mut self,
        key: u64,
        target: Target,
        hotspot: Option<HotSpot>,
        since_ns: u64,
        links: Option<Links>,
    ) {
        if self.args.verbose {
            let path = target.libjvm.seen_as.display();
            note(&format!("process {} runs {path}", target.pid()));
        }
        self.set_gauge(key, hotspot.as_ref());
        let totals = Totals::new(clock::monotonic_ns(), self.args.histogram);
        self.jvms.insert(key, Jvm::new(target, hotspot, since_ns, totals, self.args.pools, links));
    }

    /// Gets ready for the stacks of a JVM that has set itself up. Before anything is
    /// attached: the first stack wants to be walked, too.
    fn know_stacks(&mut self, key: u64, pid: Pid, hotspot: Option<&HotSpot>) {
        if let Some(walker) = self.session.walker() {
            know_stacks(&mut self.requests, walker, key, pid, hotspot);
        }
    }

    fn set_gauge(&self, key: u64, hotspot: Option<&HotSpot>) {
        if let Some(hotspot) = hotspot
            && let Err(error) = self.session.set_gauge(key, &hotspot.gauge)
        {
            note(&error.to_string());
        }
    }
}

fn know_stacks(
    requests: &mut Requests,
    walker: &mut Walker,
    key: u64,
    pid: Pid,
    hotspot: Option<&HotSpot>,
) {
    if let Some(hotspot) = hotspot.filter(|hotspot| hotspot.is_set_up)
        && let Err(error) = requests.add(key, pid, hotspot, walker)
    {
        note(&format!("stacks of process {pid} are not shown: {error}"));
    }
}

fn note_loss(loss: &str) {
    note(&format!("{loss}: CAP_SYS_ADMIN is missing"));
}

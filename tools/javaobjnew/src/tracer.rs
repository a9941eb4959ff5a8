//! The trace itself: attach, collect, notice who comes and goes, sum up.

use std::{
    collections::{BTreeMap, HashMap},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::Result;
use libjvmprobe::{
    Error, Pid,
    bpf::{
        self, clock,
        idle::Idle,
        probes::{Links, Plan, Scope as AttachScope},
    },
    cli::{self, Schedule},
    follow::{Arrival, Arrivals, ready},
    hotspot::HotSpot,
    own::note,
    process::{Fate, FileId, Target},
    stack::native::Files,
};

use crate::{
    args::Args,
    census::Budget,
    event::Event,
    flames::Flames,
    jvm::{Jvm, Options, Scope, kernel_layout},
    places,
    report::Report,
    session::Session,
    stacks::Stacks,
};

/// How often to look for JVMs that end, start or get ready.
const TICK: Duration = Duration::from_millis(200);

/// How often to collect what was counted: while the threads that were counted still
/// have names.
const COLLECT: Duration = Duration::from_secs(1);

/// Of 65,536 threads (before Linux 6.1: 32,768) that the kernel side can know. Beyond this,
/// it is told to forget those that have ended.
const MANY_THREADS: usize = 16_384;

/// A JVM has set itself up within a few seconds; one with a very large heap takes longer.
const SETTING_UP: Duration = Duration::from_secs(60);

/// A running trace.
pub struct Tracer<'a> {
    args: &'a Args,
    report: Report,
    session: Session,
    /// By the key that the kernel side knows them by.
    jvms: BTreeMap<u64, Jvm>,
    /// JVMs that have not set themselves up yet, and until when they are asked again.
    young: Vec<(Arrival, Instant)>,
    /// Attachments to a file, for all processes that map it.
    files: HashMap<FileId, Links>,
    /// Where every JVM is traced.
    arrivals: Option<Arrivals>,
    budget: Budget,
    adapted: Instant,
    /// Files that JVMs have mapped.
    maps: Files,
    /// What all that have ended have allocated.
    flames: Flames,
    /// Files that no JVM runs any more.
    idle: Idle<FileId>,
}

impl<'a> Tracer<'a> {
    /// Attaches to the JVMs that the arguments name, all or none.
    pub fn start(args: &'a Args, report: Report) -> Result<Self> {
        let targets: Vec<_> =
            args.pids.iter().map(|&pid| Target::open(pid)).collect::<Result<_, _>>()?;
        let hotspots: Vec<_> = targets.iter().map(ready::wait_for_vm).collect::<Result<_, _>>()?;
        let budget = Budget::new();
        let mut session = Session::load(args)?;
        session.set_tlab_share(budget.share());
        let mut tracer = Self {
            args,
            report,
            session,
            jvms: BTreeMap::new(),
            young: Vec::new(),
            files: HashMap::new(),
            arrivals: args.all.then(|| Arrivals::open(args.verbose)),
            budget,
            adapted: Instant::now(),
            maps: Files::default(),
            flames: Flames::new(args.max_memory),
            idle: Idle::default(),
        };
        for (target, hotspot) in targets.into_iter().zip(hotspots) {
            let plans = tracer.plan(&target)?;
            tracer.add_alone(target, hotspot, &plans)?;
        }
        if let Some(walker) = tracer.session.walker() {
            walker.settle();
        }
        tracer.look()?;
        Ok(tracer)
    }

    /// One line about what is traced.
    pub fn describe(&self) -> String {
        let jvms = self.jvms.values().map(|jvm| (jvm.target.pid(), jvm.hotspot().collector.name()));
        cli::describe(self.args.all, jvms)
    }

    /// Traces until the trace is over, then sums up.
    pub fn run(mut self, stop: &AtomicBool) -> Result<Flames> {
        self.follow(stop)?;
        self.take_events(Duration::ZERO)?;
        self.collect()?;
        let now = clock::monotonic_ns();
        for mut jvm in std::mem::take(&mut self.jvms).into_values() {
            if !self.args.prints_tables() {
                jvm.stops.tell(&jvm.target.process);
            }
            self.sum_up(jvm, now)?;
        }
        Ok(self.flames)
    }

    fn follow(&mut self, stop: &AtomicBool) -> Result<()> {
        let Args { duration, interval, count, .. } = *self.args;
        let begin = Instant::now();
        let mut schedule = Schedule::new(begin, TICK, duration, interval, count);
        let mut next_collect = begin + COLLECT;
        loop {
            let next_look = self.arrivals.as_ref().map(Arrivals::next_look);
            self.take_events(schedule.timeout(Instant::now(), next_look))?;
            self.look()?;
            let now = Instant::now();
            let due = schedule.due(now);
            if stop.load(Ordering::Relaxed) || self.report.is_closed() {
                break;
            }
            if due.report {
                self.collect()?;
                self.interval_tables()?;
            }
            if due.end {
                break;
            }
            if now >= next_collect {
                self.collect()?;
                next_collect = now + COLLECT;
            }
            if due.tick {
                self.tick()?;
                if self.jvms.is_empty() && self.young.is_empty() && !self.args.all {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Reports the whole trace of a JVM.
    fn sum_up(&mut self, mut jvm: Jvm, now_ns: u64) -> Result<()> {
        let table = jvm.table(Scope::Trace, now_ns);
        if let Some(stacks) = jvm.stacks.as_ref().filter(|_| !self.args.output.is_empty()) {
            self.flames.add(&jvm.target.process.comm, &table, stacks);
        }
        self.report.table(&table, jvm.stacks.as_ref())
    }

    fn take_events(&mut self, timeout: Duration) -> Result<()> {
        for event in self.session.events(timeout)? {
            let Some(jvm) = self.jvms.get_mut(&event.target()) else {
                continue;
            };
            match event {
                Event::Name(name) => jvm.told(name),
                Event::Large(large) => {
                    if let Some(record) = jvm.large(large) {
                        self.report.large(record)?;
                    }
                }
                Event::Tlab(tlab) => {
                    let stands_for = 1.0 / self.budget.share();
                    self.budget.spend(|| jvm.read_tlab(&tlab, stands_for));
                }
                Event::Stack(number, stack) => {
                    if let Some(walker) = self.session.walker() {
                        jvm.take_stack(number, &stack, &mut self.maps, walker)?;
                    }
                }
            }
        }
        let elapsed = self.adapted.elapsed();
        if elapsed >= TICK {
            self.adapted = Instant::now();
            let share = self.budget.adapt(elapsed);
            self.session.set_tlab_share(share);
        }
        Ok(())
    }

    /// Takes what the kernel side has counted.
    fn collect(&mut self) -> Result<()> {
        let tallies = self.session.tallies()?;
        // What it told before it counted.
        self.take_events(Duration::ZERO)?;
        self.jvms.values_mut().for_each(Jvm::begin_collection);
        for (key, tally) in tallies {
            if let Some(jvm) = self.jvms.get_mut(&key.target) {
                jvm.take(&key, &tally);
            }
        }
        for (target, tally) in self.session.others()? {
            if let Some(jvm) = self.jvms.get_mut(&target) {
                jvm.take_others(&tally);
            }
        }
        let counted = if self.args.exact { Vec::new() } else { self.session.counted()? };
        let has_many = counted.len() > MANY_THREADS;
        for (target, jvm) in &mut self.jvms {
            if let Some(lost) = jvm.note_lost(self.session.lost(*target)) {
                self.report.lost(lost)?;
            }
            if self.args.exact {
                continue;
            }
            let own: Vec<_> = counted.iter().filter(|c| c.target == *target).collect();
            let ended = jvm.take_threads(&own);
            if has_many {
                for counted in ended {
                    self.session.forget_thread(counted);
                }
            }
        }
        Ok(())
    }

    fn interval_tables(&mut self) -> Result<()> {
        let now = clock::monotonic_ns();
        for jvm in self.jvms.values_mut() {
            if self.args.prints_tables() {
                let table = jvm.table(Scope::Interval, now);
                self.report.table(&table, jvm.stacks.as_ref())?;
                jvm.stops.tell(&jvm.target.process);
            }
            jvm.next_interval(now);
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<()> {
        let fates: Vec<_> = self.jvms.iter().map(|(key, jvm)| (*key, jvm.fate())).collect();
        if fates.iter().any(|(_, fate)| *fate != Fate::Alive) {
            // What came between the last look and the end.
            self.collect()?;
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
            self.sum_up(jvm, clock::monotonic_ns())?;
            self.session.forget(key);
            if let Some(arrivals) = &mut self.arrivals {
                arrivals.forget(pid);
            }
        }
        let used = self.jvms.values().map(|jvm| jvm.target.libjvm.id);
        let used = used.chain(self.young.iter().map(|(young, _)| young.target.libjvm.id));
        self.idle.release(&mut self.files, used, Instant::now());
        for jvm in self.jvms.values_mut() {
            jvm.stops.look(&jvm.target.process);
        }
        Ok(())
    }

    fn plan(&self, target: &Target) -> Result<Vec<Plan>, Error> {
        if self.args.exact {
            places::exact(&target.libjvm)
        } else {
            places::sampled(&target.libjvm)
        }
    }

    /// Adds JVMs that are new and have set themselves up, with what they need attached.
    fn look(&mut self) -> Result<()> {
        let now = Instant::now();
        let mut young = std::mem::take(&mut self.young);
        for (Arrival { hotspot, target }, _) in &mut young {
            match hotspot {
                Ok(hotspot) => hotspot.look_again(),
                Err(_) => *hotspot = HotSpot::read(target),
            }
        }
        let arrivals = self.arrivals.as_mut().map(Arrivals::take).unwrap_or_default();
        young.extend(arrivals.into_iter().map(|arrival| (arrival, now + SETTING_UP)));
        for (arrival, ask_until) in young {
            let is_set_up = arrival.hotspot.as_ref().is_ok_and(|hotspot| hotspot.is_set_up);
            if is_set_up || now > ask_until {
                self.add_found(arrival);
                self.session.make_room()?;
            } else if arrival.target.process.fate() == Fate::Alive {
                self.young.push((arrival, ask_until));
            }
        }
        Ok(())
    }

    fn add_found(&mut self, Arrival { target, hotspot }: Arrival) {
        let pid = target.pid();
        if let Err(error) = hotspot.and_then(|hotspot| self.try_add(target, hotspot)) {
            note(&format!("process {pid} is not traced: {error}"));
        }
    }

    fn try_add(&mut self, target: Target, hotspot: HotSpot) -> Result<(), Error> {
        if !bpf::reaches_everyone() {
            // Hits of several processes could not be told apart: attach one by one.
            let plans = self.plan(&target)?;
            return self.add_alone(target, hotspot, &plans);
        }
        if self.args.exact {
            places::fires(&target, &hotspot)?;
        }
        let id = target.libjvm.id;
        let key = target.pid().0.into();
        if !self.files.contains_key(&id) {
            let plans = self.plan(&target)?;
            let links = self.session.attach(&target.libjvm, &plans, AttachScope::Everyone, 0)?;
            self.files.insert(id, links);
        }
        self.add(key, target, hotspot, None)
    }

    /// Adds a JVM with attachments of its own.
    fn add_alone(&mut self, target: Target, hotspot: HotSpot, plans: &[Plan]) -> Result<(), Error> {
        if self.args.exact {
            places::fires(&target, &hotspot)?;
        }
        let pid = target.pid();
        let key = bpf::key_alone(pid);
        let scope = AttachScope::Process(pid);
        let links = self.session.attach(&target.libjvm, plans, scope, key)?;
        self.add(key, target, hotspot, Some(links))
    }

    /// From here on it is counted: what is attached does nothing before.
    fn add(
        &mut self,
        key: u64,
        target: Target,
        hotspot: HotSpot,
        links: Option<Links>,
    ) -> Result<(), Error> {
        if self.args.verbose {
            let path = target.libjvm.seen_as.display();
            note(&format!("process {} runs {path}", target.pid()));
        }
        let stacks = self.stacks(key, target.pid(), &hotspot);
        let walks = stacks.as_ref().is_some_and(Stacks::are_known);
        let layout = kernel_layout(&hotspot, walks)?;
        let before = if self.args.exact { Vec::new() } else { hotspot.thread_bytes()? };
        let options = Options { by_thread: self.args.threads, exact: self.args.exact };
        let jvm = Jvm::new(target, hotspot, options, stacks, links)?;
        self.session.add(key, &layout, &before)?;
        self.jvms.insert(key, jvm);
        Ok(())
    }

    /// Gets ready for a JVM's stacks, where they are wanted.
    fn stacks(&mut self, key: u64, pid: Pid, hotspot: &HotSpot) -> Option<Stacks> {
        let walker = self.session.walker()?;
        let stacks = Stacks::new(key, pid, hotspot, &mut self.maps, walker);
        Some(stacks.unwrap_or_else(|error| {
            note(&format!("stacks of process {pid} are not shown: {error}"));
            Stacks::default()
        }))
    }
}

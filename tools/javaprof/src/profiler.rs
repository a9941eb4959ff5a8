//! The profile as it is taken: sample, follow the JVMs' code, notice who comes and
//! goes, collect.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant, SystemTime},
};

use anyhow::Result;
use libjvmprobe::{
    Addr, Error, Pid,
    cli::{Schedule, note},
    hotspot::places,
    jvm::{Fate, Process, Target, scan::Scanner},
    stack::{Stack, maps::FileCache},
    trace::perf::Clock,
};

use crate::{
    args::{Args, StackWalk, SymbolSource},
    event::Event,
    progress::Progress,
    session::{MANY_STACKS, Options, SampleKey, Session},
    traced::Traced,
};

/// How often to look for processes that end, start or get ready.
const TICK: Duration = Duration::from_millis(200);
/// How often to collect what was counted, in ticks.
const COLLECT_EVERY: u32 = 5;

/// A command that was started maps its code, and may end again, within less than a
/// tick: so often to look at it, for so long.
const LOOK: Duration = Duration::from_millis(10);
const START: Duration = Duration::from_secs(1);

/// What was sampled, not yet named.
#[derive(Default)]
pub struct Raw {
    /// Counts of samples that are alike.
    pub samples: HashMap<SampleKey, u64>,
    /// Stacks by their numbers.
    pub stacks: HashMap<u64, Stack>,
    /// Processes, also those that have ended, with their incarnations.
    pub processes: Vec<(u32, Traced)>,
    /// Samples a second, of each processor.
    pub hertz: u64,
    /// How long was sampled.
    pub duration: Duration,
    /// When it began.
    pub begin: Option<SystemTime>,
    /// Samples that could not be counted.
    pub lost: u64,
    /// Loads and unloads of code that could not be sent.
    pub lost_code: u64,
    /// What made the processors take samples.
    pub clock: Option<Clock>,
}

impl Raw {
    /// The addresses without a name yet that were sampled in a process, as they are looked
    /// up, sorted.
    fn addresses(&self, pid: u32) -> Vec<Addr> {
        let keys = self.samples.keys().filter(|key| key.pid == pid);
        let stacks: HashSet<_> = keys.map(|key| key.user).collect();
        let stacks = stacks.iter().filter_map(|id| self.stacks.get(id));
        let addrs: BTreeSet<_> = stacks.flat_map(Stack::addresses).collect();
        addrs.into_iter().collect()
    }
}

/// A process that was named. Java code that is no HotSpot JVM's is profiled as native code
/// is.
fn open(pid: Pid) -> Result<Traced, Error> {
    match Target::open(pid) {
        Ok(target) => Ok(Traced::jvm(target)),
        Err(error @ (Error::OpenJ9 { .. } | Error::NativeImage { .. })) => {
            note(&format!(
                "{error}: its stacks are walked by frame pointers, its methods are not named"
            ));
            Ok(Traced::other(Process::open(pid)?))
        }
        Err(error) => Err(error),
    }
}

/// A profile that is being taken.
pub struct Profiler<'a> {
    args: &'a Args,
    session: Session,
    files: FileCache,
    processes: BTreeMap<u32, Traced>,
    raw: Raw,
    scanner: Scanner,
    /// Since the kernel side last forgot them.
    stacks_sent: usize,
    /// How many processes, or programs of a process, have been under a number before.
    incarnations: HashMap<u32, u32>,
}

impl<'a> Profiler<'a> {
    /// Finds the JVMs that the arguments name, and is ready to sample them.
    pub fn new(args: &'a Args) -> Result<Self> {
        let processes: Vec<_> = args.pids.iter().map(|&pid| open(pid)).collect::<Result<_, _>>()?;
        let session = Session::load(Options {
            hertz: args.frequency,
            every_process: args.system_wide,
            user: !args.kernel_stacks_only,
            kernel: !args.user_stacks_only,
            unwind: args.stacks != StackWalk::Fp,
        })?;
        let mut profiler = Self {
            args,
            session,
            files: FileCache::default(),
            processes: BTreeMap::new(),
            raw: Raw { hertz: args.frequency, ..Default::default() },
            scanner: Scanner::new(),
            stacks_sent: 0,
            incarnations: HashMap::new(),
        };
        for traced in processes {
            profiler.add(traced)?;
        }
        if args.all || args.system_wide {
            profiler.scan();
        }
        Ok(profiler)
    }

    /// Profiles a process that is about to become a JVM.
    pub fn add_process(&mut self, pid: Pid) -> Result<()> {
        self.add(Traced::future_jvm(Process::open(pid)?))
    }

    /// Begins to sample.
    pub fn start(&mut self) -> Result<()> {
        self.tell_walker()?;
        self.raw.begin = Some(SystemTime::now());
        self.raw.clock = Some(self.session.start(self.args.frequency)?);
        // What is no failure can wait: a large JVM has thousands of methods.
        if self.args.symbols == SymbolSource::Auto { Ok(()) } else { self.get_maps() }
    }

    /// One line about what is profiled.
    pub fn describe(&self) -> String {
        let hertz = self.args.frequency;
        let clock = self.raw.clock.map_or("", Clock::name);
        let jvms = self.processes.values().filter(|p| p.is_jvm()).count();
        let what = match (self.args.system_wide, self.args.all, self.processes.len()) {
            (true, ..) => format!("every process ({jvms} JVMs now)"),
            (_, true, n) => format!("all JVMs ({n} now)"),
            (.., 1) => self.processes.keys().map(|pid| format!("process {pid}")).collect(),
            (.., n) => format!("{n} processes"),
        };
        format!("{what} at {hertz} Hz ({clock})")
    }

    /// Samples until it is time to end.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<()> {
        let begin = Instant::now();
        let mut schedule = Schedule::new(begin, TICK, self.args.limit(), None, None);
        let mut progress = Progress::new(self.args.quiet);
        let mut next_look = (!self.args.command.is_empty()).then_some(begin);
        let mut ticks = 0;
        self.get_maps()?;
        loop {
            self.take_events(schedule.timeout(Instant::now(), next_look))?;
            let now = Instant::now();
            let due = schedule.due(now);
            if stop.load(Ordering::Relaxed) || due.end {
                break;
            }
            if next_look.is_some_and(|at| now >= at) {
                next_look = (now - begin < START).then_some(now + LOOK);
                self.follow_changes()?;
                for traced in self.processes.values_mut() {
                    // Gone in the meantime: what was seen before must do.
                    let _ = traced.refresh_maps(&mut self.files, &mut self.session);
                }
            }
            if due.tick {
                ticks += 1;
                self.tick(ticks % COLLECT_EVERY == 0)?;
                progress.show(begin.elapsed(), || self.raw.samples.values().sum());
                if self.processes.is_empty() && !self.args.all && !self.args.system_wide {
                    break;
                }
            }
        }
        self.raw.duration = begin.elapsed();
        progress.clear();
        Ok(())
    }

    /// Samples no more, and hands out what there is.
    pub fn finish(mut self) -> Result<Raw> {
        self.session.stop();
        self.collect()?;
        self.raw.lost = self.session.lost();
        for (pid, traced) in &mut self.processes {
            self.raw.lost_code += self.session.lost_of((*pid).into());
            traced.ask_again(&self.args.symbols, &self.raw.addresses(*pid));
        }
        for (pid, traced) in std::mem::take(&mut self.processes) {
            self.raw.processes.push((self.incarnation(pid), traced));
        }
        Ok(self.raw)
    }

    fn add(&mut self, mut traced: Traced) -> Result<()> {
        let pid = traced.pid();
        if !self.processes.contains_key(&pid.0) {
            self.session.add_target(pid.0.into())?;
        }
        // It may have ended already: then this is said when its fate is seen.
        let _ = traced.refresh_maps(&mut self.files, &mut self.session);
        self.follow(&mut traced);
        self.processes.insert(pid.0, traced);
        Ok(())
    }

    fn follow(&mut self, traced: &mut Traced) {
        if self.args.symbols != SymbolSource::None
            && let Err(error) = traced.follow(&mut self.session)
        {
            let pid = traced.pid();
            note(&format!("what process {pid} compiles meanwhile is not followed: {error}"));
        }
    }

    fn tell_walker(&mut self) -> Result<()> {
        for traced in self.processes.values_mut() {
            match traced.tell_walker(self.args, &mut self.session) {
                Ok(()) => {}
                Err(error) if self.args.stacks == StackWalk::Auto => {
                    let pid = traced.pid();
                    note(&format!("stacks of process {pid} are walked by frame pointers: {error}"));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn get_maps(&mut self) -> Result<()> {
        for traced in self.processes.values_mut() {
            match traced.get_map(&self.args.symbols, &self.session) {
                Ok(_) => {}
                Err(error) if self.args.symbols == SymbolSource::Auto => {
                    note(&format!("methods compiled before the profile have no names: {error}"));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn take_events(&mut self, timeout: Duration) -> Result<()> {
        for event in self.session.events(timeout)? {
            match event {
                Event::Stack(id, raw) => {
                    let pid = u32::try_from(raw.target).unwrap_or(0);
                    let stack = match self.processes.get_mut(&pid) {
                        Some(traced) => {
                            let stack = traced.resolve(&raw);
                            traced.look_for(&stack, &mut self.files, &mut self.session);
                            stack
                        }
                        None => places::plain(&raw),
                    };
                    self.raw.stacks.insert(id, stack);
                    self.stacks_sent += 1;
                }
                Event::Code(event) => {
                    let pid = u32::try_from(event.target).unwrap_or(0);
                    if let Some(traced) = self.processes.get_mut(&pid) {
                        traced.take(event);
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes what was counted. Of processes that are new, the code is known from here on.
    fn collect(&mut self) -> Result<()> {
        if self.stacks_sent > MANY_STACKS {
            self.stacks_sent = 0;
            self.session.forget_stacks();
        }
        let batch = self.session.collect();
        // Behind the samples, so that their stacks are among them.
        self.take_events(Duration::ZERO)?;
        for (mut key, count) in batch {
            key.incarnation = self.incarnation(key.pid);
            if self.args.system_wide
                && !self.processes.contains_key(&key.pid)
                && let Ok(process) = Process::open(Pid(key.pid))
            {
                self.processes.insert(key.pid, Traced::other(process));
            }
            if let Some(traced) = self.processes.get_mut(&key.pid)
                && let Some(stack) = self.raw.stacks.get(&key.user)
            {
                traced.look_for(stack, &mut self.files, &mut self.session);
            }
            *self.raw.samples.entry(key).or_default() += count;
        }
        Ok(())
    }

    fn tick(&mut self, collect: bool) -> Result<()> {
        if collect {
            self.collect()?;
        }
        self.follow_changes()?;
        if self.args.all || self.args.system_wide {
            self.scan();
        }
        self.tell_walker()?;
        self.get_maps()
    }

    /// Puts aside a process that is no more what it was, with all of its samples: what
    /// comes under its number from now on is another one's.
    fn retire(&mut self, pid: u32) -> Result<()> {
        self.collect()?;
        if let Some(traced) = self.processes.remove(&pid) {
            self.raw.lost_code += self.session.lost_of(pid.into());
            let incarnation = self.incarnations.entry(pid).or_default();
            self.raw.processes.push((*incarnation, traced));
            *incarnation += 1;
        }
        self.session.forget(pid.into());
        Ok(())
    }

    fn incarnation(&self, pid: u32) -> u32 {
        self.incarnations.get(&pid).copied().unwrap_or(0)
    }

    /// Notices processes that ended, run another program or became JVMs.
    fn follow_changes(&mut self) -> Result<()> {
        let fates: Vec<_> = self.processes.iter().map(|(pid, p)| (*pid, p.fate())).collect();
        for (pid, fate) in fates {
            match fate {
                Fate::Alive => {}
                Fate::Ended => {
                    self.retire(pid)?;
                    self.scanner.forget(Pid(pid));
                }
                // As the command that was started does when it becomes a JVM.
                Fate::Execed => {
                    if let Ok(process) = Process::open(Pid(pid)) {
                        self.retire(pid)?;
                        self.add(Traced::future_jvm(process))?;
                    }
                }
            }
        }
        let mut became = Vec::new();
        for (pid, traced) in &mut self.processes {
            if traced.has_become_jvm() {
                became.push(*pid);
            }
        }
        for pid in became {
            if let Some(mut traced) = self.processes.remove(&pid) {
                self.follow(&mut traced);
                self.processes.insert(pid, traced);
            }
        }
        Ok(())
    }

    fn scan(&mut self) {
        for target in self.scanner.scan() {
            let pid = target.pid();
            if let Err(error) = self.add(Traced::jvm(target)) {
                note(&format!("process {pid} is not profiled: {error:#}"));
            }
        }
        for (pid, error) in self.scanner.take_refused() {
            if self.args.verbose {
                note(&format!("process {pid} is not profiled: {error}"));
            }
        }
    }
}

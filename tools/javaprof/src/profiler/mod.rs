//! The profile as it is taken: sample, follow the JVMs' code, notice who comes and
//! goes, collect.

mod collect;
mod kept;
mod newcomers;
mod processes;
mod sampled;
mod thinned;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::atomic::AtomicBool,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use libbpf_rs::Link;
use libjvmprobe::{
    Error, Pid, Result,
    bpf::{self, clock, perf::Clock, probes::Links, session::Attach},
    follow::{self, Arrivals, Stops, Watch, ready},
    own::{Idle, note},
    process::{FileId, Process, Target},
    stack::{Stack, native::Files, profile::Profile, raw::RawStack},
};

use collect::addresses;
use newcomers::Newcomers;
use sampled::Sampled;

use crate::{
    args::{Args, StackWalk, SymbolSource},
    event::{Event, Stop},
    events::{Asked, What, attach},
    naming::{self, Naming},
    progress::Progress,
    report::Report,
    session::{self, Count, Options, SampleKey, Session},
    traced::Traced,
    waits::Waits,
};

/// A command that was started maps its code, and may end again, within less than a
/// tick: so often to look at it, for so long.
const LOOK: Duration = Duration::from_millis(10);
const START: Duration = Duration::from_secs(1);

/// So many stops of applications are shown, some ten megabytes.
const MAX_STOPS: usize = 100_000;

/// Counts of samples that are alike.
pub type Samples = HashMap<SampleKey, Count>;
/// Stacks by their numbers.
pub type Stacks = HashMap<u64, Stack>;

/// What is said of a profile as a whole.
#[derive(Default)]
pub struct Raw {
    /// Samples a second, of each processor.
    pub hertz: u64,
    /// How long was sampled.
    pub duration: Duration,
    /// When it began.
    pub begin: Option<SystemTime>,
    /// Samples that could not be counted.
    pub lost: u64,
    /// Samples of which a stack could not be sent.
    pub lost_stacks: u64,
    /// Loads and unloads of code that could not be sent.
    pub lost_code: u64,
    /// JVMs whose methods have no names, for nothing was asked of them.
    pub unnamed: Vec<Pid>,
    /// What made the processors take samples.
    pub clock: Option<Clock>,
    /// When it began, on the kernel's clock, if it is wanted when samples were taken.
    pub begin_ns: u64,
    /// When applications were stopped meanwhile.
    pub stops: Vec<Stop>,
}

/// A process that was named. Java code that is no HotSpot JVM's is profiled as native code
/// is.
fn open(pid: Pid, files: &mut Files) -> Result<Traced> {
    match Target::open(pid) {
        Ok(target) => {
            let hotspot = ready::wait_for_any_vm(&target)?;
            Ok(Traced::jvm(target, hotspot, files))
        }
        Err(error @ (Error::OpenJ9 { .. } | Error::NativeImage { .. })) => {
            note(&format!(
                "{error}: its stacks are walked by frame pointers, its methods are not named"
            ));
            let process = Process::open(pid)?;
            let stops = Some(Stops::new(&process));
            let mut traced = Traced::other(process, files);
            traced.stops = stops;
            Ok(traced)
        }
        Err(error) => Err(error),
    }
}

/// A profile that is being taken.
pub struct Profiler<'a> {
    args: &'a Args,
    /// What is sampled.
    events: Vec<Asked>,
    session: Session,
    /// While these are there, samples are taken.
    sampling: Vec<Link>,
    begin: Instant,
    progress: Progress,
    /// When a command that was started is looked at again, in its first second.
    next_look: Option<Instant>,
    /// Since when, and how many were lost by then, what is named now was sampled.
    interval: (Instant, u64),
    /// Shows the profile of an interval.
    report: Report<'a>,
    /// What stands above it, once sampling has begun.
    title: String,
    /// What the intervals before had, for what is written at the end.
    before: Vec<Profile>,
    /// Samples without their stacks in what was shown.
    folded: u64,
    files: Files,
    processes: BTreeMap<u32, Traced>,
    /// What was sampled of them and has no names yet.
    sampled: Sampled,
    newcomers: Newcomers,
    stacks: Stacks,
    /// The same as they came, of threads that wait: their waits may end when all was named.
    raws: HashMap<u64, RawStack>,
    /// About how many bytes they take.
    stacks_size: usize,
    naming: Naming,
    raw: Raw,
    /// Waits of threads, if they are wanted.
    waits: Option<Waits>,
    /// Where every JVM is profiled.
    arrivals: Option<Arrivals>,
    /// Attachments that all JVMs share that run the same libjvm.so.
    shared: Option<HashMap<FileId, Links>>,
    /// The same for the events that are in it, by their numbers.
    shared_events: HashMap<(FileId, usize), Links>,
    /// ... and which of these no JVM runs any more.
    idle: Idle<FileId>,
    idle_events: Idle<(FileId, usize)>,
    /// Since the kernel side last forgot them.
    stacks_sent: usize,
}

impl Raw {
    /// Says of a profile what is known of it as a whole.
    pub fn describe(&self, profile: &mut Profile) {
        profile.hertz = self.hertz;
        profile.duration_ns = u64::try_from(self.duration.as_nanos()).unwrap_or(u64::MAX);
        profile.begin_unix_ns = self
            .begin
            .and_then(|begin| begin.duration_since(UNIX_EPOCH).ok())
            .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0));
        profile.lost = self.lost;
    }
}

impl<'a> Profiler<'a> {
    /// Finds the JVMs that the arguments name, and is ready to sample them.
    pub fn new(args: &'a Args, report: Report<'a>) -> Result<Self> {
        let common = &args.common;
        let mut files = Files::default();
        let processes: Vec<_> =
            common.pids()?.iter().map(|&pid| open(pid, &mut files)).collect::<Result<_, _>>()?;
        let every_jvm = common.all || args.system_wide;
        let events = args.events();
        let session = session::load(Options {
            hertz: args.hertz(),
            events: &events,
            every_process: args.system_wide,
            newcomers: common.all && !args.system_wide,
            user: !args.kernel_stacks_only,
            kernel: !args.user_stacks_only,
            unwind: args.walk != StackWalk::Fp,
            waits: events.iter().position(Asked::has_waits).and_then(|at| u32::try_from(at).ok()),
            min_wait: u64::try_from(args.min.as_nanos()).unwrap_or(u64::MAX),
            slot_ns: args.slot_ns(),
        })?;
        let mut profiler = Self {
            args,
            naming: Naming::new(events.clone(), args.signatures, args.idle, args.slot_ns()),
            before: naming::empty(&events, args.slot_ns()),
            events,
            session,
            sampling: Vec::new(),
            begin: Instant::now(),
            progress: Progress::new(common.quiet),
            next_look: None,
            interval: (Instant::now(), 0),
            report,
            title: String::new(),
            folded: 0,
            files,
            processes: BTreeMap::new(),
            sampled: Sampled::default(),
            newcomers: Newcomers::default(),
            stacks: Stacks::new(),
            raws: HashMap::new(),
            stacks_size: 0,
            raw: Raw { hertz: args.hertz(), ..Default::default() },
            waits: None,
            arrivals: every_jvm.then(|| Arrivals::open(common.verbose)),
            shared: (every_jvm && bpf::reaches_everyone()).then(HashMap::new),
            shared_events: HashMap::new(),
            idle: Idle::default(),
            idle_events: Idle::default(),
            stacks_sent: 0,
        };
        for traced in processes {
            profiler.add(traced)?;
        }
        profiler.take_arrivals();
        Ok(profiler)
    }

    /// Profiles a process that is about to become a JVM.
    pub fn add_process(&mut self, pid: Pid) -> Result<()> {
        let future = Traced::future_jvm(Process::open(pid)?, &mut self.files);
        self.add(future)
    }

    /// Begins to sample.
    pub fn start(&mut self) -> Result<()> {
        self.tell_walker()?;
        if self.arrivals.is_none() {
            self.session.settle();
        }
        // What is no failure can wait: a large JVM has thousands of methods. A JVM that is
        // asked works for us, which is no part of what it is busy with.
        if self.args.symbols != SymbolSource::Auto {
            self.get_maps()?;
        }
        self.raw.begin = Some(SystemTime::now());
        self.raw.begin_ns = clock::monotonic_ns();
        session::begin_times(&mut self.session, self.raw.begin_ns);
        let (frequency, skip) = (self.args.frequency, self.args.skip_missing);
        let kernel = attach::kernel(&self.session, &self.events, frequency, skip)?;
        self.raw.clock = kernel.clock;
        self.sampling = kernel.links;
        if let Some(at) = self.events.iter().position(Asked::has_waits) {
            let is_wall = self.events[at].what == What::Wall;
            let number = u32::try_from(at).unwrap_or(0);
            let slot_ns = self.args.slot_ns();
            self.waits = Some(Waits::begin(&mut self.session, number, is_wall, slot_ns));
            self.find_sleepers()?;
        }
        for event in &self.events {
            if let What::Java(java) = event.what
                && let Some(unseen) = java.unseen()
            {
                note(unseen);
            }
        }
        self.title = format!("{} of {}", self.what(), self.describe());
        Ok(())
    }

    /// What stands above the profile, once sampling has begun.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// What is sampled, in words.
    fn what(&self) -> String {
        let what = |event: &Asked| match event.what {
            What::Cpu => "Processor time".to_owned(),
            _ => event.name.to_string(),
        };
        let all: Vec<_> = self.events.iter().map(what).collect();
        all.join(", ")
    }

    /// One line about what is profiled.
    pub fn describe(&self) -> String {
        let hertz = self.args.hertz();
        let jvms = self.processes.values().filter(|p| p.is_jvm()).count();
        let what = match (self.args.system_wide, self.args.common.all, self.processes.len()) {
            (true, ..) => format!("every process ({jvms} JVMs now)"),
            (_, true, n) => format!("all JVMs ({n} now)"),
            (.., 1) => self.processes.keys().map(|pid| format!("process {pid}")).collect(),
            (.., n) => format!("{n} processes"),
        };
        match self.raw.clock {
            Some(clock) => format!("{what} at {hertz} Hz ({})", clock.name()),
            None => what,
        }
    }

    /// Samples until it is time to end.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<()> {
        self.begin = Instant::now();
        self.interval.0 = self.begin;
        self.next_look = (!self.args.command.is_empty()).then_some(self.begin);
        self.get_maps()?;
        follow::run::run(self, self.args.times(), stop)?;
        self.raw.duration = self.begin.elapsed();
        self.progress.clear();
        Ok(())
    }

    /// What was sampled since the last interval, as a profile that is shown; it is kept for
    /// the end.
    fn tell_interval(&mut self, until: Instant) -> Result<()> {
        let lost = self.session.lost(0);
        let (since, lost_before) = std::mem::replace(&mut self.interval, (until, lost));
        let raw = Raw {
            hertz: self.args.hertz(),
            duration: until - since,
            begin: self.raw.begin.map(|begin| begin + (since - self.begin)),
            lost: lost - lost_before,
            ..Raw::default()
        };
        // What is shown and what is kept have given up the same.
        self.shrink_named();
        let mut profiles = self.naming.take(&raw);
        self.report.show(&mut profiles, &self.title)?;
        let folded: u64 = profiles.iter().map(|profile| profile.folded).sum();
        if folded > 0 {
            note(&format!(
                "of {folded} samples the stacks were not kept, for want of room: see --max-memory"
            ));
        }
        self.folded += folded;
        for (before, profile) in self.before.iter_mut().zip(profiles) {
            before.absorb(profile);
        }
        naming::shrink(&mut self.before, self.args.max_memory / 2);
        Ok(())
    }

    /// Samples no more, and hands out what there is: all of it. What no interval has told is
    /// shown.
    pub fn finish(mut self) -> Result<(Raw, Vec<Profile>)> {
        // To detach may take a while, which is no part of the trace.
        let end = clock::monotonic_ns();
        self.sampling.clear();
        self.stop_events();
        self.collect()?;
        self.collect_thinned(None);
        self.finish_waits(end);
        self.raw.lost = self.session.lost(0);
        self.name_retired();
        for (pid, mut traced) in std::mem::take(&mut self.processes) {
            traced.tell_stops();
            traced.tell_why_unknown();
            self.raw.lost_code += self.session.lost(pid.into());
            let mut samples = self.sampled.take(pid);
            self.settle(&mut samples);
            traced.ask_again(&addresses(&samples, &self.stacks));
            self.naming.add(Some(traced.into_named()), &samples, &self.stacks);
        }
        // Of these nothing is known but that they ran.
        for samples in std::mem::take(&mut self.sampled.by_pid).into_values() {
            self.naming.add(None, &samples, &self.stacks);
        }
        self.raw.lost_stacks = self.naming.lost_stacks();
        self.tell_interval(self.begin + self.raw.duration)?;
        let mut profiles = self.before;
        let folded: u64 = profiles.iter().map(|profile| profile.folded).sum();
        if folded > self.folded && !self.args.output.is_empty() {
            note(&format!(
                "in what is written, of {folded} samples the stacks were not kept: see --max-memory"
            ));
        }
        profiles.iter_mut().for_each(|profile| self.raw.describe(profile));
        Ok((self.raw, profiles))
    }

    /// Takes no more events of files: what is counted from here on is all there is.
    fn stop_events(&mut self) {
        self.shared_events.clear();
        self.processes.values_mut().for_each(Traced::stop_events);
    }
}

impl Watch for Profiler<'_> {
    fn take_events(&mut self, timeout: Duration) -> Result<()> {
        for event in self.session.events(timeout)? {
            match event {
                Event::Stack(id, raw) => {
                    self.stacks_sent += 1;
                    self.keep_stack(id, raw);
                }
                Event::Label(label) => {
                    let pid = u32::try_from(label.target).unwrap_or(0);
                    match self.processes.get_mut(&pid) {
                        Some(traced) => traced.labels.take(label.label, &label.text),
                        // It may turn out to be a JVM, and this is told once.
                        None => self.newcomers.tell(pid, label),
                    }
                }
                Event::Stop(stop) if self.raw.stops.len() < MAX_STOPS => self.raw.stops.push(stop),
                Event::Stop(_) => {}
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

    fn next_look(&self) -> Option<Instant> {
        let next_arrival = self.arrivals.as_ref().map(Arrivals::next_look);
        self.next_look.into_iter().chain(next_arrival).min()
    }

    /// Adds JVMs that are new, and gets ready for those that have set themselves up.
    fn look(&mut self) -> Result<()> {
        if self.arrivals.is_some() {
            self.take_arrivals();
            self.tell_walker()?;
            self.get_maps()?;
        }
        let now = Instant::now();
        if self.next_look.is_some_and(|at| now >= at) {
            self.next_look = (now - self.begin < START).then_some(now + LOOK);
            // Its files first: all else can be done when it has ended, too.
            self.refresh_maps();
            self.follow_changes()?;
            self.refresh_maps();
        }
        Ok(())
    }

    fn tick(&mut self, collect: bool) -> Result<()> {
        if collect {
            self.collect()?;
            self.stay_within_memory()?;
        }
        self.follow_changes()?;
        if let Some(shared) = &mut self.shared {
            let used = self.processes.values().filter_map(Traced::libjvm);
            self.idle.release(shared, used, Instant::now());
            let used: HashSet<_> = self.processes.values().filter_map(Traced::libjvm).collect();
            let numbers = 0..self.events.len();
            let used = used.iter().flat_map(|file| numbers.clone().map(|number| (*file, number)));
            self.idle_events.release(&mut self.shared_events, used, Instant::now());
        }
        for traced in self.processes.values_mut() {
            traced.look_at_stops();
        }
        self.tell_walker()?;
        self.get_maps()?;
        self.look_for_events();
        if self.next_look.is_none() {
            self.name_retired();
        }
        self.progress.show(self.begin.elapsed(), || self.sampled.taken());
        Ok(())
    }

    fn report(&mut self) -> Result<()> {
        self.collect()?;
        self.name_all()?;
        self.progress.clear();
        self.tell_interval(Instant::now())
    }

    /// [`finish`](Self::finish) does, with all that was taken until then.
    fn report_last(&mut self) -> Result<()> {
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.processes.is_empty() && !self.args.common.all && !self.args.system_wide
    }

    fn is_closed(&self) -> bool {
        self.report.is_closed()
    }
}

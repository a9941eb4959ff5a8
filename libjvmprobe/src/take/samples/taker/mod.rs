//! The profile as it is taken: sample, follow the JVMs' code, notice who comes and
//! goes, collect.

mod about;
mod collect;
mod kept;
mod newcomers;
mod processes;
mod sampled;
mod tenants;
mod thinned;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use libbpf_rs::Link;

pub use about::{About, Sink};
pub use tenants::Limited;

use about::Since;
use collect::{addresses, learn};
use newcomers::Newcomers;
use sampled::Sampled;
use tenants::{Tenants, Work};

use crate::{
    Error, Pid, Result,
    bpf::{self, clock, cost::Costs, perf::Clock, probes::Links, session::Attach},
    follow::{self, Arrival, Arrivals, End, Stops, Times, Watch, ready, registry},
    image::Image,
    own::{Idle, Pace, note},
    process::{FileId, Process, Target, libjvm::native_image},
    stack::{Stack, code_log::SharedNames, native::Files, profile::Profile, raw::RawStack},
    take::samples::{
        Options, SymbolSource, Whom,
        event::Event,
        events::{Asked, What, attach},
        naming::{self, Naming},
        session::{self, Count, SampleKey, Session},
        traced::Traced,
        waits::Waits,
    },
};

/// A command that was started maps its code, and may end again, within less than a
/// tick: so often to look at it, for so long.
const LOOK: Duration = Duration::from_millis(10);
const START: Duration = Duration::from_secs(1);

/// Counts of samples that are alike.
pub(super) type Samples = HashMap<SampleKey, Count>;
/// Stacks by their numbers.
pub(super) type Stacks = HashMap<u64, Stack>;

/// A process that was named. Java code that is no HotSpot JVM's is profiled as native code
/// is.
fn open(pid: Pid, files: &mut Files) -> Result<(Traced, Option<Arrival>)> {
    match Target::open(pid) {
        Ok(target) => {
            let hotspot = ready::wait_for_any_vm(&target)?;
            let arrival = Arrival::new(target, hotspot);
            Ok((Traced::jvm(arrival.clone(), files), Some(arrival)))
        }
        Err(error @ (Error::OpenJ9 { .. } | Error::NativeImage { .. })) => {
            note(&match native_image(pid).and_then(|elf| Image::read(&elf).ok().flatten()) {
                Some(_) => format!(
                    "process {pid} is a GraalVM native image: its stacks are walked and named by \
                     its own tables"
                ),
                None => format!(
                    "{error}: its stacks are walked by frame pointers, its methods are not named"
                ),
            });
            let process = Process::open(pid)?;
            let stops = Some(Stops::new(&process));
            let mut traced = Traced::other(process, files);
            traced.stops = stops;
            Ok((traced, None))
        }
        Err(error) => Err(error),
    }
}

/// Takes samples, and makes profiles of them. To be used in the thread in which it was made.
pub struct Taker<S> {
    /// Who is told.
    pub sink: S,
    options: Options,
    session: Session,
    /// While these are there, samples are taken.
    sampling: Vec<Link>,
    begin: Instant,
    /// When a command that was started is looked at again, in its first second.
    next_look: Option<Instant>,
    /// Since when what is named now was sampled, and what was lost by then.
    interval: Since,
    /// What the intervals before had, for what is written at the end.
    before: Vec<Profile>,
    files: Files,
    processes: BTreeMap<u32, Traced>,
    /// What their code is called, where several have the same.
    code_names: SharedNames,
    /// What was sampled of them and has no names yet.
    sampled: Sampled,
    newcomers: Newcomers,
    /// Shares of walking and naming by tenant.
    tenants: Tenants,
    stacks: Stacks,
    /// The same as they came, of threads that wait: their waits may end when all was named.
    raws: HashMap<u64, RawStack>,
    /// About how many bytes they take.
    stacks_size: usize,
    naming: Naming,
    about: About,
    /// Waits of threads, if they are wanted.
    waits: Option<Waits>,
    /// Where every JVM is profiled, or one is that has not set itself up yet.
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

impl<S: Sink> Taker<S> {
    /// Finds the processes that are named, and is ready to sample.
    ///
    /// # Errors
    /// [`Error::Permission`] or [`Error::Kernel`] where the kernel refuses; why one that is named
    /// cannot be sampled.
    pub fn new(options: Options, sink: S) -> Result<Self> {
        let mut files = Files::default();
        let named = match &options.whom {
            Whom::Named(pids) => &pids[..],
            _ => &[],
        };
        let processes: Vec<_> =
            named.iter().map(|&pid| open(pid, &mut files)).collect::<Result<_, _>>()?;
        let finds_jvms = options.finds_jvms();
        let (events, slot_ns) = (options.events.clone(), options.slot_ns);
        let session = session::load(&options)?;
        let mut taker = Self {
            sink,
            naming: Naming::new(events, options.signatures, options.idle, slot_ns),
            before: naming::empty(&options.events, slot_ns),
            session,
            sampling: Vec::new(),
            begin: Instant::now(),
            next_look: None,
            interval: Since::now(),
            files,
            processes: BTreeMap::new(),
            code_names: SharedNames::default(),
            sampled: Sampled::default(),
            newcomers: Newcomers::default(),
            tenants: Tenants::new(options.pace.collects_every()),
            stacks: Stacks::new(),
            raws: HashMap::new(),
            stacks_size: 0,
            about: About { hertz: options.hertz(), ..Default::default() },
            waits: None,
            arrivals: None,
            shared: (finds_jvms && bpf::reaches_everyone()).then(HashMap::new),
            shared_events: HashMap::new(),
            idle: Idle::default(),
            idle_events: Idle::default(),
            stacks_sent: 0,
            options,
        };
        for (traced, arrival) in processes {
            taker.add(traced)?;
            if let Some(arrival) = arrival {
                Arrivals::read_again(&mut taker.arrivals, arrival, &mut taker.session)?;
            }
        }
        if finds_jvms {
            let Options { registry, pace, verbose, .. } = &taker.options;
            let options =
                registry::Options { pace: *pace, verbose: *verbose, ..Default::default() };
            let arrivals = match registry {
                Some(registry) => registry.subscribe(),
                None => Arrivals::open(options),
            }?;
            arrivals.wait_for_first();
            arrivals.wake(&mut taker.session)?;
            taker.arrivals = Some(arrivals);
        }
        taker.take_arrivals()?;
        Ok(taker)
    }

    /// Sets what walking and naming stacks may take of all tenants together, in millionths of a processor. A
    /// tenant that exceeds its share loses stacks, which the sink is [told](Sink::limited). It is read once per
    /// interval, and has no effect but at [`Pace::Calm`].
    #[must_use]
    pub fn with_stack_budget(mut self, ppm: Arc<AtomicU64>) -> Self {
        if self.options.pace == Pace::Calm {
            self.tenants.set_budget(ppm);
        }
        self
    }

    /// Profiles a process that is about to become a JVM.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`], [`Error::Bpf`].
    pub fn add_process(&mut self, pid: Pid) -> Result<()> {
        let future = Traced::future_jvm(Process::open(pid)?, &mut self.files);
        self.add(future)
    }

    /// Begins to sample.
    ///
    /// # Errors
    /// What cannot be sampled, or walked.
    pub fn start(&mut self) -> Result<()> {
        self.tell_walker()?;
        if !self.options.finds_jvms() {
            self.session.settle();
        }
        // Before there are samples: while the code of a large JVM is read, what is sampled may be freed or
        // replaced. And a JVM that is asked works for us, which is no part of what it is busy with.
        if self.options.symbols != SymbolSource::Auto || !self.options.finds_jvms() {
            self.get_maps()?;
        }
        self.begin = Instant::now();
        self.interval.begin = self.begin;
        self.about.begin = Some(SystemTime::now());
        self.about.begin_ns = clock::monotonic_ns();
        session::begin_times(&mut self.session, self.about.begin_ns);
        self.sample()?;
        if let Some(at) = self.options.events.iter().position(Asked::has_waits) {
            let is_wall = self.options.events[at].what == What::Wall;
            let number = u32::try_from(at).unwrap_or(0);
            let slot_ns = self.options.slot_ns;
            self.waits = Some(Waits::begin(&mut self.session, number, is_wall, slot_ns));
            self.find_sleepers()?;
        }
        for event in &self.options.events {
            if let What::Java(java) = event.what
                && let Some(unseen) = java.unseen()
            {
                note(unseen);
            }
        }
        Ok(())
    }

    fn sample(&mut self) -> Result<()> {
        let (frequency, skip) = (self.options.frequency, self.options.skip_missing);
        let kernel = attach::kernel(&self.session, &self.options.events, frequency, skip)?;
        self.about.clock = kernel.clock;
        self.sampling = kernel.links;
        Ok(())
    }

    /// Samples at another rate from here on, if that is wanted.
    fn follow_rate(&mut self) -> Result<()> {
        let Some(rate) = &self.options.rate else { return Ok(()) };
        let rate = rate.load(Ordering::Relaxed);
        if rate == self.options.frequency || rate == 0 {
            return Ok(());
        }
        self.sampling.clear();
        self.options.frequency = rate;
        self.about.hertz = self.options.hertz();
        self.sample()
    }

    /// The processes that are sampled just now.
    pub fn pids(&self) -> impl ExactSizeIterator<Item = Pid> {
        self.processes.keys().map(|&pid| Pid(pid))
    }

    /// How many of them are JVMs.
    pub fn jvms(&self) -> usize {
        self.processes.values().filter(|process| process.is_jvm()).count()
    }

    /// Samples a second, of each processor.
    pub fn hertz(&self) -> u64 {
        self.about.hertz
    }

    /// What makes the processors take samples, once that has begun, if anything does.
    pub fn clock(&self) -> Option<Clock> {
        self.about.clock
    }

    /// Samples until it is time to end. What no report has told is told by
    /// [`finish`](Self::finish).
    ///
    /// # Errors
    /// Where it cannot go on, or the sink says so.
    pub fn run(&mut self, times: Times, stop: &AtomicBool) -> Result<End> {
        self.next_look = (self.options.whom == Whom::Command).then(Instant::now);
        self.get_maps()?;
        let end = follow::run::run(self, times, stop)?;
        self.about.duration = self.begin.elapsed();
        Ok(end)
    }

    /// Tells what was sampled since the last interval `until` then; it is kept for the end, where that is wanted.
    fn tell_interval(&mut self, until: Instant) -> Result<()> {
        let now = Since {
            begin: until,
            lost: self.session.lost(0),
            lost_stacks: self.naming.lost_stacks(),
            lost_code: self.about.lost_code + self.lost_code(),
        };
        let since = std::mem::replace(&mut self.interval, now);
        let mut about = About {
            hertz: self.options.hertz(),
            duration: until - since.begin,
            begin: self.about.begin.map(|begin| begin + (since.begin - self.begin)),
            lost: self.interval.lost - since.lost,
            lost_stacks: self.interval.lost_stacks - since.lost_stacks,
            lost_code: self.interval.lost_code - since.lost_code,
            clock: self.about.clock,
            begin_ns: self.about.begin_ns,
            end_ns: self.about.begin_ns + (until - self.begin).as_nanos() as u64,
            ..About::default()
        };
        if !self.options.keeps_all {
            about.unnamed = std::mem::take(&mut self.about.unnamed);
            about.stops = std::mem::take(&mut self.about.stops);
        }
        // What is shown and what is kept have given up the same.
        self.shrink_named();
        let mut profiles = self.naming.take(&about);
        let costs = self.session.costs().map(Costs::take).transpose()?.unwrap_or_default();
        for cost in costs {
            self.tenants.charge_walks(cost.pid, cost.ns);
            self.sink.cost(cost);
        }
        self.share_anew();
        self.sink.profiles(&mut profiles, &about)?;
        if self.options.keeps_all {
            for (before, profile) in self.before.iter_mut().zip(profiles) {
                before.absorb(profile);
            }
            naming::shrink(&mut self.before, self.options.max_memory / 2);
        }
        Ok(())
    }

    /// Samples no more, and hands out what there is: all of it, if that was to be kept. What no
    /// interval has told is told first.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn finish(mut self) -> Result<(S, About, Vec<Profile>)> {
        // To detach may take a while, which is no part of the trace.
        let end = clock::monotonic_ns();
        self.sampling.clear();
        self.stop_events();
        self.collect()?;
        self.collect_thinned(None);
        self.finish_waits(end);
        self.about.lost = self.session.lost(0);
        self.name_retired();
        for (pid, mut traced) in std::mem::take(&mut self.processes) {
            traced.tell_stops();
            traced.tell_why_unknown();
            self.about.lost_code += self.session.lost(pid.into());
            let mut samples = self.sampled.take(pid);
            self.settle(&mut samples);
            samples.keys().for_each(|key| traced.learn_thread(key));
            traced.ask_again(&addresses(&samples, &self.stacks));
            self.naming.add(Some(traced.into_named()), &samples, &self.stacks);
        }
        // Of these nothing is known but that they ran.
        for samples in std::mem::take(&mut self.sampled.by_pid).into_values() {
            self.naming.add(None, &samples, &self.stacks);
        }
        self.about.lost_stacks = self.naming.lost_stacks();
        for (event, count) in self.naming.without_class() {
            note(&format!(
                "the class of {count} {event} is not known: they happened before the JVM had set itself up"
            ));
        }
        self.tell_interval(self.begin + self.about.duration)?;
        let mut profiles = self.before;
        profiles.iter_mut().for_each(|profile| self.about.describe(profile));
        Ok((self.sink, self.about, profiles))
    }

    /// Loads and unloads of code that could not be sent, of processes that still run.
    fn lost_code(&self) -> u64 {
        self.processes.keys().map(|&pid| self.session.lost(pid.into())).sum()
    }

    /// Takes no more events of files: what is counted from here on is all there is.
    fn stop_events(&mut self) {
        self.shared_events.clear();
        self.processes.values_mut().for_each(Traced::stop_events);
    }
}

impl<S: Sink> Watch for Taker<S> {
    fn take_events(&mut self, timeout: Duration) -> Result<()> {
        let events: Vec<_> = self.session.events(timeout)?.collect();
        self.tenants.begin_work();
        let stacks = events.iter().filter_map(|event| match event {
            Event::Stack(_, raw) => Some(raw),
            _ => None,
        });
        let tenants = &mut self.tenants;
        learn(&mut self.processes, stacks, |pid| tenants.charge(pid, Work::Stacks));
        for event in events {
            match event {
                Event::Stack(id, raw) => {
                    self.stacks_sent += 1;
                    let pid = u32::try_from(raw.target).unwrap_or(0);
                    self.keep_stack(id, raw);
                    self.tenants.charge(pid, Work::Stacks);
                }
                Event::Label(label) => {
                    let pid = u32::try_from(label.target).unwrap_or(0);
                    match self.processes.get_mut(&pid) {
                        Some(traced) => traced.labels.take(label.label, &label.text),
                        // It may turn out to be a JVM, and this is told once.
                        None => self.newcomers.tell(pid, label),
                    }
                }
                Event::Stop(stop) => self.about.stops.push(stop),
                Event::Code(event) => {
                    let pid = u32::try_from(event.target).unwrap_or(0);
                    // An incomplete record of loads and unloads gives wrong names.
                    if let Some(traced) = self.processes.get_mut(&pid)
                        && !self.tenants.leaves_out_code(pid)
                    {
                        traced.take(event);
                    }
                    self.tenants.charge(pid, Work::Code);
                }
            }
        }
        Ok(())
    }

    fn next_look(&self) -> Option<Instant> {
        self.next_look
    }

    /// Adds JVMs that are new, and gets ready for those that have set themselves up.
    fn look(&mut self) -> Result<()> {
        if self.take_arrivals()? {
            self.tell_walker()?;
            self.get_maps()?;
        }
        let now = Instant::now();
        if self.next_look.is_some_and(|at| now >= at) {
            self.next_look = (now - self.begin < START).then_some(now + LOOK);
            // Its files first: all else can be done when it has ended, too.
            self.refresh_maps();
            self.follow_changes(true)?;
            self.refresh_maps();
            // A native image needs no time to set itself up.
            self.tell_walker()?;
        }
        Ok(())
    }

    fn tick(&mut self, collect: bool) -> Result<()> {
        if collect {
            self.collect()?;
            self.stay_within_memory()?;
        }
        self.limit();
        self.follow_changes(self.options.pace.looks_closely(collect))?;
        if let Some(shared) = &mut self.shared {
            let used = self.processes.values().filter_map(Traced::libjvm);
            self.idle.release(shared, used, Instant::now());
            let used: HashSet<_> = self.processes.values().filter_map(Traced::libjvm).collect();
            let numbers = 0..self.options.events.len();
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
        self.sink.goes_on(self.begin.elapsed(), self.sampled.taken());
        Ok(())
    }

    fn report(&mut self) -> Result<()> {
        self.collect()?;
        let until = self.name_all()?;
        self.tell_interval(until)?;
        self.follow_rate()
    }

    /// [`finish`](Self::finish) does, with all that was taken until then.
    fn report_last(&mut self) -> Result<()> {
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.processes.is_empty() && !self.options.finds_jvms()
    }

    fn is_closed(&self) -> bool {
        self.sink.is_closed()
    }
}

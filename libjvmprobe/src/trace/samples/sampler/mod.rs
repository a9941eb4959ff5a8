//! The sampler: takes and collects samples, follows the JVMs' compiled code, and notices processes that start
//! and end.

mod about;
mod collect;
mod new_processes;
mod processes;
mod thinned;
mod unnamed;
mod unnamed_samples;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use libbpf_rs::{Link, skel::Skel};

pub use about::{About, Sink};

use about::Since;
use collect::{addresses, prefetch_java_frames};
use new_processes::NewProcesses;
use unnamed_samples::Sampled;

use crate::{
    Error, Pid, Result,
    bpf::{
        self, clock, cost::Costs, offcpu::Hook, perf::Clock, session::Attach, spans::SpanSources,
    },
    jvms::{self, Arrival, Arrivals, End, Stops, Tick, Times, Watch, ready, registry},
    native_image::Image,
    process::{Process, Target, libjvm::native_image},
    stack::{Stack, code_log::SharedNames, native::Files, profile::Profile},
    sys::{Idle, Pace},
    trace::{
        samples::{
            Options, SymbolSource, Targets,
            event::Event,
            events::{EventKind, EventSpec, attach},
            naming::{self, Naming},
            process::{Shared, SharedKey, Traced},
            session::{self, Count, SampleKey, Session},
            waits::Waits,
        },
        tenants::{Tenants, Work},
    },
};

/// A command that was started may map its code and exit within less than a tick. It is therefore checked at this
/// interval for its first second (`START`).
const START_POLL_INTERVAL: Duration = Duration::from_millis(10);
const START: Duration = Duration::from_secs(1);

/// Counts of samples, by key.
pub(super) type Samples = HashMap<SampleKey, Count>;
/// Stacks by their numbers.
pub(super) type Stacks = HashMap<u64, Stack>;

/// Opens a process that the user named. Java code of a native image or of an OpenJ9 JVM is profiled like native code.
fn open(pid: Pid, files: &mut Files) -> Result<(Traced, Option<Arrival>)> {
    match Target::open(pid) {
        Ok(target) => {
            let hotspot = ready::wait_for_any_vm(&target)?;
            let arrival = Arrival::new(target, hotspot);
            Ok((Traced::jvm(arrival.clone(), files), Some(arrival)))
        }
        Err(error @ (Error::OpenJ9 { .. } | Error::NativeImage { .. })) => {
            match native_image(pid).and_then(|elf| Image::read(&elf).ok().flatten()) {
                Some(_) => log::warn!(
                    "process {pid} is a GraalVM native image: using its own tables to walk and \
                     name its stacks"
                ),
                None => log::warn!(
                    "{error}; walking stacks by frame pointers, so Java methods have no names"
                ),
            }
            let process = Process::open(pid)?;
            let stops = Some(Stops::new(&process));
            let mut traced = Traced::other(process, files);
            traced.stops = stops;
            Ok((traced, None))
        }
        Err(error) => Err(error),
    }
}

/// Samples processes, and makes profiles of the samples. Must be used in the thread that made it.
pub struct Sampler<S> {
    /// Receives the profiles.
    pub sink: S,
    options: Options,
    session: Session,
    /// Attachments to events of the kernel; dropping them ends the sampling.
    sampling: Vec<Link>,
    /// Attachments to the scheduler's events, if waits are recorded.
    switches: Vec<Link>,
    begin: Instant,
    /// Time of the next check of a command that was started. Set in its first second only.
    next_poll: Option<Instant>,
    /// Start of the current interval, and the loss counters at that time.
    interval: Since,
    /// Merged profiles of earlier intervals, for `finish`.
    before: Vec<Profile>,
    files: Files,
    processes: BTreeMap<u32, Traced>,
    /// Names of compiled code. Processes in which the same names occur share them.
    code_names: SharedNames,
    /// Samples that have no names yet, by process.
    sampled: Sampled,
    new_processes: NewProcesses,
    /// Shares of the CPU time for walking and naming, by tenant.
    tenants: Tenants,
    stacks: Stacks,
    /// Approximate size of `stacks`, in bytes.
    stacks_size: usize,
    naming: Naming,
    about: About,
    /// Reads the waits of threads, if an event has waits.
    waits: Option<Waits>,
    /// Search for the processes that publish trace contexts, if these are read.
    span_sources: Option<SpanSources>,
    /// Source of new JVMs and of later readings of them. Present if every JVM is sampled, or if one that was named
    /// has to be read again.
    arrivals: Option<Arrivals>,
    /// Attachments to a libjvm.so, shared by all JVMs that run the file. `None` if each JVM has its own.
    shared: Option<Shared>,
    /// For each unused file of `shared`, the time since which no JVM has run it. The attachments to a file
    /// are released ten seconds after that time.
    idle: Idle<SharedKey>,
    /// Number of stacks received since the kernel side's table of known stacks was last cleared.
    stacks_sent: usize,
}

impl<S: Sink> Sampler<S> {
    /// Opens the named processes, loads the BPF side, and subscribes to new JVMs if every JVM is sampled. Sampling
    /// begins with [`start`](Self::start).
    ///
    /// # Errors
    /// [`Error::Permission`] or [`Error::Kernel`] if the kernel rejects the BPF side; the reason if a named process
    /// cannot be sampled.
    pub fn new(options: Options, sink: S) -> Result<Self> {
        let mut files = Files::default();
        let named = match &options.targets {
            Targets::Named(pids) => &pids[..],
            _ => &[],
        };
        let processes: Vec<_> =
            named.iter().map(|&pid| open(pid, &mut files)).collect::<Result<_, _>>()?;
        let finds_jvms = options.finds_jvms();
        let (events, slot_ns) = (options.events.clone(), options.slot_ns);
        let session = session::load(&options)?;
        let span_sources = session::span_sources(&session)?;
        let mut sampler = Self {
            sink,
            naming: Naming::new(events, options.signatures, options.idle, slot_ns),
            before: naming::empty(&options.events, slot_ns),
            session,
            sampling: Vec::new(),
            switches: Vec::new(),
            begin: Instant::now(),
            next_poll: None,
            interval: Since::now(),
            files,
            processes: BTreeMap::new(),
            code_names: SharedNames::default(),
            sampled: Sampled::default(),
            new_processes: NewProcesses::default(),
            tenants: Tenants::new(options.pace.collect_interval()),
            stacks: Stacks::new(),
            stacks_size: 0,
            about: About { hertz: options.hertz(), ..Default::default() },
            waits: None,
            span_sources,
            arrivals: None,
            shared: (finds_jvms && bpf::can_share_attachments()).then(Shared::new),
            idle: Idle::default(),
            stacks_sent: 0,
            options,
        };
        for (traced, arrival) in processes {
            sampler.add(traced)?;
            if let Some(arrival) = arrival {
                Arrivals::read_again(&mut sampler.arrivals, arrival, &mut sampler.session)?;
            }
        }
        if finds_jvms {
            let Options { registry, pace, .. } = &sampler.options;
            let options = registry::Options { pace: *pace, ..Default::default() };
            let arrivals = match registry {
                Some(registry) => registry.subscribe(),
                None => Arrivals::open(options),
            }?;
            arrivals.wait_for_first();
            arrivals.wake(&mut sampler.session)?;
            sampler.arrivals = Some(arrivals);
        }
        sampler.take_arrivals()?;
        Ok(sampler)
    }

    /// Sets the CPU time that walking and naming stacks may take, for all tenants together, in millionths of a
    /// processor. A tenant that exceeds its share loses stacks, which is [counted](crate::sys::limited). The
    /// budget is read once per interval. It is ignored unless the pace is [`Pace::Calm`].
    #[must_use]
    pub fn with_stack_budget(mut self, ppm: Arc<AtomicU64>) -> Self {
        if self.options.pace == Pace::Calm {
            self.tenants.set_budget(ppm);
        }
        self
    }

    /// Adds a process that may become a JVM, such as a command that is about to be started.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`], [`Error::Bpf`].
    pub fn add_process(&mut self, pid: Pid) -> Result<()> {
        let future = Traced::future_jvm(Process::open(pid)?, &mut self.files);
        self.add(future)
    }

    /// Starts sampling.
    ///
    /// # Errors
    /// If an event cannot be attached to, or if a process cannot be walked or named in the way that the options
    /// require.
    pub fn start(&mut self) -> Result<()> {
        self.configure_walker()?;
        if !self.options.finds_jvms() {
            self.session.flush();
        }
        // Code maps are read before sampling begins, because sampled code may be freed or replaced while the
        // code of a large JVM is read. In addition, a JVM that writes its map on request spends CPU time on
        // that, which must not appear in its profile.
        if self.options.symbols != SymbolSource::Auto || !self.options.finds_jvms() {
            self.read_code_maps()?;
        }
        self.begin = Instant::now();
        self.interval.begin = self.begin;
        self.about.begin = Some(SystemTime::now());
        self.about.begin_ns = clock::monotonic_ns();
        session::begin_times(&mut self.session, self.about.begin_ns);
        self.sample()?;
        if let Some(at) = self.options.events.iter().position(EventSpec::has_waits) {
            let is_wall = self.options.events[at].what == EventKind::Wall;
            let number = u32::try_from(at).unwrap_or(0);
            let slot_ns = self.options.slot_ns;
            self.switches = Hook::find()?.attach(self.session.skel.object_mut())?;
            self.waits = Some(Waits::begin(&mut self.session, number, is_wall, slot_ns));
        }
        for event in &self.options.events {
            if let EventKind::Java(java) = event.what
                && let Some(limitation) = java.limitation()
            {
                log::warn!("{limitation}");
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

    /// Restarts sampling if the configured rate has changed.
    fn apply_rate(&mut self) -> Result<()> {
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

    /// Returns the processes that are being sampled.
    pub fn pids(&self) -> impl ExactSizeIterator<Item = Pid> {
        self.processes.keys().map(|&pid| Pid(pid))
    }

    /// Returns the number of JVMs that are being sampled.
    pub fn jvms(&self) -> usize {
        self.processes.values().filter(|process| process.is_jvm()).count()
    }

    /// Returns the samples per second and processor.
    pub fn hertz(&self) -> u64 {
        self.about.hertz
    }

    /// Returns the clock whose ticks trigger samples on each processor. `None` before sampling starts, or if
    /// no event needs such a clock.
    pub fn clock(&self) -> Option<Clock> {
        self.about.clock
    }

    /// Samples until `times` have passed, `stop` is set, no process is left, or the sink is closed.
    /// [`finish`](Self::finish) reports the samples since the last report.
    ///
    /// # Errors
    /// If the trace cannot continue, or if the sink returns an error.
    pub fn run(&mut self, times: Times, stop: &AtomicBool) -> Result<End> {
        self.next_poll = (self.options.targets == Targets::Command).then(Instant::now);
        self.read_code_maps()?;
        let end = jvms::run::run(self, times, stop)?;
        self.about.duration = self.begin.elapsed();
        Ok(end)
    }

    /// Reports to the sink an interval that begins at the end of the last one and ends at `until`. If the
    /// profiles of the whole trace are kept, adds those of the interval to them.
    fn report_interval(&mut self, until: Instant) -> Result<()> {
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
        if !self.options.keeps_whole_trace {
            about.unnamed = std::mem::take(&mut self.about.unnamed);
            about.stops = std::mem::take(&mut self.about.stops);
        }
        // The named samples are shrunk first, so that the reported profiles and the kept ones have lost the same
        // stacks.
        self.shrink_named();
        let mut profiles = self.naming.take(&about);
        let costs = self.session.costs().map(Costs::take).transpose()?.unwrap_or_default();
        for cost in costs {
            self.tenants.charge_walks(cost.pid, cost.ns);
            self.sink.cost(cost);
        }
        self.start_share_interval();
        self.sink.profiles(&mut profiles, &about)?;
        if self.options.keeps_whole_trace {
            for (before, profile) in self.before.iter_mut().zip(profiles) {
                before.absorb(profile);
            }
            naming::shrink(&mut self.before, self.options.max_memory / 2);
        }
        Ok(())
    }

    /// Stops sampling, and reports the last interval. Returns the sink, the totals, and the profiles of the
    /// whole trace. The profiles are empty unless [`keeps_whole_trace`](Options::keeps_whole_trace) is set.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    pub fn finish(mut self) -> Result<(S, About, Vec<Profile>)> {
        let asleep = self.find_sleepers()?;
        // The end time is read before detaching, because that may take a while and does not belong to the trace.
        let end = clock::monotonic_ns();
        self.sampling.clear();
        self.switches.clear();
        self.detach_events();
        self.collect()?;
        self.collect_thinned(None);
        self.finish_waits(end, asleep);
        self.about.lost = self.session.lost(0);
        self.name_retired();
        for (pid, mut traced) in std::mem::take(&mut self.processes) {
            traced.report_stopped();
            traced.report_unreadable_version();
            self.about.lost_code += self.session.lost(pid.into());
            let mut samples = self.sampled.take(pid);
            self.distribute_running_time(&mut samples);
            samples.keys().for_each(|key| traced.look_up_thread_name(key));
            traced.reread_code_map(&addresses(&samples, &self.stacks));
            self.naming.add(Some(traced.into_named()), &samples, &self.stacks);
        }
        // Nothing is known of these processes except that they were sampled.
        for samples in std::mem::take(&mut self.sampled.by_pid).into_values() {
            self.naming.add(None, &samples, &self.stacks);
        }
        self.about.lost_stacks = self.naming.lost_stacks();
        for (event, count) in self.naming.without_class() {
            log::warn!(
                "the class of {count} {event} is unknown: they occurred before the JVM was \
                 initialized"
            );
        }
        self.report_interval(self.begin + self.about.duration)?;
        let mut profiles = self.before;
        profiles.iter_mut().for_each(|profile| self.about.describe(profile));
        Ok((self.sink, self.about, profiles))
    }

    /// Returns the number of loads and unloads of code that could not be sent, for the processes that are still
    /// sampled.
    fn lost_code(&self) -> u64 {
        self.processes.keys().map(|&pid| self.session.lost(pid.into())).sum()
    }

    /// Detaches from all events that are located in files. Their counts do not change afterwards.
    fn detach_events(&mut self) {
        if let Some(shared) = &mut self.shared {
            shared.retain(|(_, event), _| event.is_none());
        }
        self.processes.values_mut().for_each(Traced::detach_events);
    }
}

impl<S: Sink> Watch for Sampler<S> {
    fn take_events(&mut self, timeout: Duration) -> Result<()> {
        let events: Vec<_> = self.session.events(timeout)?.collect();
        self.tenants.begin_work();
        let stacks = events.iter().filter_map(|event| match event {
            Event::Stack(_, raw) => Some(raw),
            _ => None,
        });
        let tenants = &mut self.tenants;
        prefetch_java_frames(&mut self.processes, stacks, |pid| tenants.charge(pid, Work::Stacks));
        for event in events {
            match event {
                Event::Stack(id, raw) => {
                    self.stacks_sent += 1;
                    let pid = u32::try_from(raw.target).unwrap_or(0);
                    self.take_stack(id, &raw);
                    self.tenants.charge(pid, Work::Stacks);
                }
                Event::Label(label) => {
                    let pid = u32::try_from(label.target).unwrap_or(0);
                    match self.processes.get_mut(&pid) {
                        Some(traced) => traced.labels.take(label.label, &label.text),
                        // The process may turn out to be a JVM, and the kernel side sends each text only once.
                        None => self.new_processes.add_label(pid, label),
                    }
                }
                Event::Stop(stop) => self.about.stops.push(stop),
                Event::Code(event) => {
                    let pid = u32::try_from(event.target).unwrap_or(0);
                    // If the kernel side leaves out some loads and unloads, all others are ignored as well,
                    // because an incomplete code log would give wrong names.
                    if let Some(traced) = self.processes.get_mut(&pid)
                        && !self.tenants.leaves_out_metadata(pid)
                    {
                        traced.take(event);
                    }
                    self.tenants.charge(pid, Work::Metadata);
                }
            }
        }
        Ok(())
    }

    fn next_poll(&self) -> Option<Instant> {
        self.next_poll
    }

    /// Adds new JVMs, and configures the walker and reads the maps for those that have finished starting.
    fn poll(&mut self) -> Result<()> {
        if self.take_arrivals()? {
            self.configure_walker()?;
            self.read_code_maps()?;
        }
        let now = Instant::now();
        if self.next_poll.is_some_and(|at| now >= at) {
            self.next_poll = (now - self.begin < START).then_some(now + START_POLL_INTERVAL);
            // The mappings are read first, because they cannot be read after the process has ended.
            self.refresh_maps();
            self.update_processes(true)?;
            self.refresh_maps();
            // A native image has no start-up phase to wait for.
            self.configure_walker()?;
        }
        Ok(())
    }

    fn tick(&mut self, Tick { collect, closely }: Tick) -> Result<()> {
        if collect {
            self.collect_within_limits()?;
        }
        self.apply_limits();
        self.update_processes(closely)?;
        if let Some(shared) = &mut self.shared {
            let files: HashSet<_> = self.processes.values().filter_map(Traced::libjvm).collect();
            let used: Vec<_> =
                shared.keys().filter(|(file, _)| files.contains(file)).copied().collect();
            self.idle.release(shared, used, Instant::now());
        }
        for traced in self.processes.values_mut() {
            traced.check_stopped();
        }
        self.configure_walker()?;
        self.read_code_maps()?;
        self.find_missing_events();
        self.find_span_sources();
        if self.next_poll.is_none() {
            self.name_retired();
        }
        self.sink.progress(self.begin.elapsed(), self.sampled.total_samples());
        Ok(())
    }

    fn report(&mut self) -> Result<()> {
        self.collect_within_limits()?;
        let until = self.name_all()?;
        self.report_interval(until)?;
        self.sink.reported();
        self.apply_rate()
    }

    /// Does nothing: [`finish`](Self::finish) reports the last interval, with all samples up to the end.
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

//! The registry: finds and reads JVMs once for all tracers of this process.
//!
//! It runs in a thread of its own, because a target can delay reads of its memory (see
//! `crate::process::reader`), and a tracer that waited for such a read would lose events of other JVMs.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    os::fd::OwnedFd,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::event::{EventfdFlags, eventfd};

use crate::{
    Error, Pid, Result,
    bpf::{foreign_breakpoints::ForeignBreakpoints, session::Attach, start_keeper},
    hotspot::HotSpot,
    jvms::{
        finder::{Finder, MinAge},
        identity::JvmIdentity,
        slots::Slots,
    },
    process::{Candidate, Fate, Process, Target, cgroup, reader, scan},
    sys::{
        Pace, PriorityBoost, priority,
        privileges::{READ, keep_only},
        reading_cost::{self, PAUSE_FACTOR},
        thread_cpu_time,
    },
};

/// Maximum startup time. A JVM usually finishes starting within a few seconds; a very large heap takes longer.
const MAX_STARTUP: Duration = Duration::from_secs(60);
/// Interval of reads of a JVM that is starting up. It is short, because a JVM can be traced completely only
/// after its startup, and startup takes only 100 ms in the shortest programs.
const fn read_interval(pace: Pace) -> Duration {
    Duration::from_millis(match pace {
        Pace::Prompt => 10,
        Pace::Calm => 20,
    })
}
/// Time for which a process that has mapped libjvm.so is read often. After that time, it is read only every
/// [`SLOW_READ_INTERVAL`], and a debug message is logged if it has not created a JVM.
const VM_CREATION_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval of reads after [`VM_CREATION_TIMEOUT`].
const SLOW_READ_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time to read one JVM.
const MAX_READING: Duration = Duration::from_secs(5);
/// A read that takes longer than this counts as slow; presumably, the target's memory answers slowly.
const SLOW: Duration = Duration::from_millis(500);
/// Number of JVMs of a tenant that a tracer in a daemon begins to follow at once.
const MAX_AT_ONCE: usize = 16;
/// Interval of checks whether the tenant of a JVM still has to wait.
const HELD_BACK_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which a JVM that could not be followed arrives again.
const POSTPONED: Duration = Duration::from_secs(10);
/// A successful read that takes more CPU time than this is charged to the tenant. Reading a libjvm.so for the first time
/// takes 30 ms.
const COSTLY: Duration = Duration::from_millis(50);
/// Interval of reads of a JVM that has not finished starting within [`MAX_STARTUP`]. A JVM that has not published a
/// process context when it was ready is checked once more after this time: agents publish it after the JVM's startup.
const RARE_READ_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum number of deselected JVMs whose end is watched.
const MAX_DESELECTED: usize = 1000;
/// Time after which the thread interrupts reading JVMs and searches for new ones.
const MAX_ROUND: Duration = Duration::from_millis(100);
/// Maximum number of tenants for which the time spent on reading their JVMs is recorded.
const MAX_TENANTS: usize = 10_000;
/// Maximum time that a tracer waits until all JVMs that ran at the start have been read.
const MAX_FIRST: Duration = Duration::from_secs(10);

/// A JVM as it was last read, or the reason why it cannot be read.
pub type Reading = Result<Arc<HotSpot>, Arc<Error>>;

/// Startup stage of a JVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Still starting: later arrivals will contain more data.
    Starting,
    /// The JVM has started, or has not finished starting within a minute. Hardly any more data will follow.
    Ready,
}

/// A JVM that is new, or that was read again.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The process and its libjvm.so. All arrivals of one JVM share this object.
    pub target: Arc<Target>,
    /// The JVM as it was last read.
    pub hotspot: Reading,
    /// Startup stage at that read.
    pub stage: Stage,
    /// Its attributes, if the registry [identifies](Options::identify) JVMs.
    pub identity: Option<Arc<JvmIdentity>>,
}

impl Arrival {
    /// Makes the arrival of a JVM that was not found by a registry.
    pub(crate) fn new(target: Target, hotspot: Result<HotSpot>) -> Self {
        let is_set_up = hotspot.as_ref().is_ok_and(|hotspot| hotspot.is_set_up);
        Self {
            target: Arc::new(target),
            hotspot: hotspot.map(Arc::new).map_err(Arc::new),
            stage: if is_set_up { Stage::Ready } else { Stage::Starting },
            identity: None,
        }
    }
}

/// Configuration of a registry.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// JVMs that it finds.
    pub targets: Search,
    /// Determines the intervals at which it searches for new JVMs and reads those that are starting up.
    pub pace: Pace,
    /// Slots, one for each followed JVM; `None` if their number is unlimited.
    pub slots: Option<Slots>,
    /// Age below which new JVMs are not followed.
    pub min_age: MinAge,
    /// Whether to determine the attributes of each JVM, too.
    pub identify: bool,
    /// Selects JVMs by their attributes; `None` selects all.
    pub select: Option<Arc<dyn Select>>,
}

/// Selects JVMs by their attributes.
pub trait Select: fmt::Debug + Send + Sync {
    /// Returns whether a JVM is wanted; `None` if that depends on attributes that are only known after reading it.
    /// `is_read` states whether it was read. A JVM that is not wanted is neither published nor read further.
    fn selects(&self, identity: &JvmIdentity, is_read: bool) -> Option<bool>;
}

/// Set of JVMs that a registry finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Search {
    /// All JVMs of this machine.
    #[default]
    AllJvms,
    /// JVMs that run in this process or its descendants.
    Command(Pid),
    /// No JVMs. Subscribers hand over named JVMs that are still starting up, and the registry reads these
    /// until they have started.
    Given,
}

/// Handle of a registry. Its thread ends when the last clone and the last subscription are dropped.
#[derive(Clone, Debug)]
pub struct Registry(Arc<Handle>);

#[derive(Debug)]
struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.changed.notify_all();
    }
}

#[derive(Debug)]
struct Shared {
    options: Options,
    /// The process of [`Search::Command`].
    command: Option<Process>,
    state: Mutex<State>,
    changed: Condvar,
    exited_unexamined: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Running JVMs, as last published.
    present: BTreeMap<Pid, Arrival>,
    subscribers: Vec<Weak<Queue>>,
    given: Vec<Arrival>,
    /// Whether all JVMs that ran at the start were read once.
    has_read_all: bool,
    has_ended: bool,
}

/// Arrivals that a subscriber has not yet received.
#[derive(Debug)]
struct Queue {
    /// Latest arrival of each process.
    arrivals: Mutex<BTreeMap<Pid, Arrival>>,
    /// Eventfd that is readable while arrivals are queued.
    wake: OwnedFd,
}

impl Queue {
    fn push(&self, arrival: Arrival) {
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        arrivals.insert(arrival.target.pid(), arrival);
        self.wake_up();
    }

    /// Makes the subscriber call [`Arrivals::take`].
    fn wake_up(&self) {
        // A write fails only if the counter is at its maximum, and then the descriptor is readable already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn take(&self) -> Vec<Arrival> {
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        std::mem::take(&mut *arrivals).into_values().collect()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, arrival: &Arrival) {
        let mut state = self.lock();
        state.present.insert(arrival.target.pid(), arrival.clone());
        state.subscribers.retain(|subscriber| match subscriber.upgrade() {
            Some(queue) => {
                queue.push(arrival.clone());
                true
            }
            None => false,
        });
    }
}

impl Registry {
    /// Starts the registry's thread.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`] if the command has ended; [`Error::Io`] if a process or thread cannot be started.
    pub fn start(options: Options) -> Result<Self> {
        let command = match options.targets {
            Search::Command(pid) => Some(Process::open(pid)?),
            Search::AllJvms | Search::Given => None,
        };
        // The process from which readers are forked is started here and not in the new thread, so that the
        // caller gets the error if the start fails.
        reader::start_readers().map_err(|e| Error::io("start a reader process", e))?;
        start_keeper().map_err(|e| Error::io("start the process that detaches probes", e))?;
        let shared = Arc::new(Shared {
            options,
            command,
            state: Mutex::default(),
            changed: Condvar::new(),
            exited_unexamined: AtomicU64::new(0),
        });
        let work = Arc::clone(&shared);
        let thread = thread::Builder::new().name("registry".into());
        thread.spawn(|| Worker::new(work).run()).map_err(|e| Error::io("start a thread", e))?;
        Ok(Self(Arc::new(Handle(shared))))
    }

    /// Subscribes to all running and all future JVMs. Must be called by the thread that attaches to them; the scheduler
    /// prefers that thread as long as the result lives.
    ///
    /// # Errors
    /// [`Error::Io`] if no descriptor is free.
    pub fn subscribe(&self) -> Result<Arrivals> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = wake.map_err(|e| Error::io("create an eventfd", e.into()))?;
        let queue = Arc::new(Queue { arrivals: Mutex::default(), wake });
        let mut state = self.0.0.lock();
        state.present.values().for_each(|arrival| queue.push(arrival.clone()));
        state.subscribers.push(Arc::downgrade(&queue));
        drop(state);
        let (registry, refused) = (self.clone(), BTreeMap::new());
        Ok(Arrivals {
            queue,
            registry,
            refused,
            held_back: Vec::new(),
            next_share: Instant::now(),
            postponed: Vec::new(),
            _priority_boost: PriorityBoost::begin(),
        })
    }

    /// Returns the number of processes that exited while they waited to be examined. A process waits if its
    /// tenant starts many processes, or if there was no slot for it.
    pub fn exited_unexamined(&self) -> u64 {
        self.0.0.exited_unexamined.load(Ordering::Relaxed)
    }
}

/// Subscription of one tracer: queue of new and updated JVMs.
#[derive(Debug)]
pub struct Arrivals {
    queue: Arc<Queue>,
    registry: Registry,
    /// JVMs whose further arrivals are dropped.
    refused: BTreeMap<Pid, Weak<Target>>,
    /// JVMs that arrive later, because their tenant takes long to read or has many.
    held_back: Vec<Arrival>,
    /// Earliest time at which they arrive if no others do.
    next_share: Instant,
    /// JVMs that could not be followed when they arrived, and the time at which they arrive again.
    postponed: Vec<(Instant, Arrival)>,
    /// Raises the priority of the subscribing thread, so that it learns of a JVM within 100 ms even on a busy
    /// machine. Some JVMs live for only one second. The thread itself uses little CPU time.
    _priority_boost: PriorityBoost,
}

impl Arrivals {
    /// Starts a registry with these options and subscribes to it.
    ///
    /// # Errors
    /// Returns the errors of [`Registry::start`] and [`Registry::subscribe`].
    pub fn open(options: Options) -> Result<Self> {
        Registry::start(options)?.subscribe()
    }

    /// Waits until all JVMs that ran when the registry started were read once, at most `MAX_FIRST`.
    pub(crate) fn wait_for_first(&self) {
        let shared = &self.registry.0.0;
        let is_waiting = |state: &mut State| !state.has_read_all;
        drop(shared.changed.wait_timeout_while(shared.lock(), MAX_FIRST, is_waiting));
    }

    /// Ensures that `session` stops waiting for events when a JVM arrives.
    ///
    /// # Errors
    /// [`Error::Io`] if no descriptor is free.
    pub(crate) fn wake(&self, session: &mut dyn Attach) -> Result<()> {
        let waker = self.queue.wake.try_clone();
        session.wake_on(waker.map_err(|e| Error::io("duplicate an eventfd", e))?);
        Ok(())
    }

    /// Queues a JVM that was not found by a registry, to be read again until it has started or ended. If
    /// `arrivals` is `None`, starts a registry for such JVMs, whose arrivals wake up `session`.
    ///
    /// # Errors
    /// The errors of [`Self::open`] and [`Self::wake`].
    pub(crate) fn read_again(
        arrivals: &mut Option<Self>,
        arrival: Arrival,
        session: &mut dyn Attach,
    ) -> Result<()> {
        if arrival.stage == Stage::Ready {
            return Ok(());
        }
        let arrivals = match arrivals {
            Some(arrivals) => arrivals,
            None => {
                let opened = Self::open(Options { targets: Search::Given, ..Options::default() })?;
                opened.wake(session)?;
                arrivals.insert(opened)
            }
        };
        arrivals.hand_over(arrival);
        Ok(())
    }

    /// Returns the JVMs that are new or were read again since the last call, each in its latest state.
    pub fn take(&mut self) -> Vec<Arrival> {
        let mut arrivals = self.queue.take();
        let pids = pids_of(&arrivals);
        self.postponed.retain(|(_, old)| is_current(old, &pids));
        let now = Instant::now();
        arrivals.extend(self.postponed.extract_if(.., |(at, _)| *at <= now).map(|(_, due)| due));
        if !arrivals.is_empty() {
            self.refused.retain(|_, target| target.strong_count() > 0);
        }
        arrivals.retain(|Arrival { target, .. }| {
            let refused = self.refused.get(&target.pid()).and_then(Weak::upgrade);
            refused.is_none_or(|refused| !Arc::ptr_eq(&refused, target))
        });
        match self.registry.0.0.options.pace {
            Pace::Calm if arrivals.is_empty() && Instant::now() < self.next_share => arrivals,
            Pace::Calm => self.share(
                arrivals,
                |arrival| cgroup::tenant_of(arrival.target.pid()),
                |tenant| tenant != cgroup::HOST && reading_cost::wait_until(tenant).is_some(),
            ),
            _ => arrivals,
        }
    }

    /// Returns those of the arrivals that the caller is to follow now, one of each tenant, then a second one of each, and so
    /// on. Keeps those beyond [`MAX_AT_ONCE`], and those of tenants that must wait. The caller reads files of each JVM, and
    /// meanwhile could not serve other tenants.
    fn share(
        &mut self,
        new: Vec<Arrival>,
        tenant_of: impl Fn(&Arrival) -> Arc<str>,
        must_wait: impl Fn(&str) -> bool,
    ) -> Vec<Arrival> {
        let pids = pids_of(&new);
        self.held_back.retain(|held| is_current(held, &pids));
        let mut all = std::mem::take(&mut self.held_back);
        all.extend(new);
        let mut numbers = HashMap::new();
        let (mut taken, mut has_more) = (Vec::new(), false);
        for arrival in all {
            let tenant = tenant_of(&arrival);
            let waits = must_wait(&tenant);
            let number = numbers.entry(tenant).or_insert(0);
            *number += 1;
            if waits || *number > MAX_AT_ONCE {
                has_more |= !waits;
                self.held_back.push(arrival);
            } else {
                taken.push((*number, arrival));
            }
        }
        self.next_share = Instant::now();
        if has_more {
            self.queue.wake_up();
        } else {
            self.next_share += HELD_BACK_INTERVAL;
        }
        taken.sort_by_key(|&(number, _)| number);
        taken.into_iter().map(|(_, arrival)| arrival).collect()
    }

    /// Drops further arrivals of a JVM that has ended or cannot be followed.
    pub(crate) fn refuse(&mut self, target: &Arc<Target>) {
        self.refused.insert(target.pid(), Arc::downgrade(target));
    }

    /// Lets a JVM arrive again after [`POSTPONED`], because it cannot be followed at this time.
    pub(crate) fn postpone(&mut self, arrival: Arrival) {
        self.postponed.push((Instant::now() + POSTPONED, arrival));
    }

    /// Queues a JVM that was not found by a registry, to be read until it has started or ended.
    fn hand_over(&self, arrival: Arrival) {
        let shared = &self.registry.0.0;
        shared.lock().given.push(arrival);
        shared.changed.notify_all();
    }

    /// Returns whether the registry searches only a command and its descendants for JVMs.
    pub(crate) fn is_of_command(&self) -> bool {
        self.registry.0.0.command.is_some()
    }

    /// Returns whether no further JVM can arrive.
    pub(crate) fn is_over(&self) -> bool {
        let Shared { options, command, .. } = &*self.registry.0.0;
        match options.targets {
            Search::AllJvms => false,
            Search::Command(_) => command.as_ref().is_none_or(|c| c.fate() == Fate::Ended),
            Search::Given => true,
        }
    }
}

fn pids_of(arrivals: &[Arrival]) -> HashSet<Pid> {
    arrivals.iter().map(|arrival| arrival.target.pid()).collect()
}

/// Returns whether a JVM that arrived earlier is still alive and is not one of those that have arrived since.
fn is_current(earlier: &Arrival, since: &HashSet<Pid>) -> bool {
    !since.contains(&earlier.target.pid()) && earlier.target.process.fate() == Fate::Alive
}

/// A JVM that is opened, or that is not opened yet.
#[derive(Debug)]
enum Found {
    /// Not selected yet: neither its libjvm.so nor its memory is opened.
    Unopened(Candidate),
    Opened(Arc<Target>),
}

impl Found {
    fn process(&self) -> &Arc<Process> {
        match self {
            Self::Unopened(candidate) => &candidate.process,
            Self::Opened(target) => &target.process,
        }
    }
}

/// A JVM that is starting up.
#[derive(Debug)]
struct Starting {
    jvm: Found,
    /// Result of the last read; `None` before the first one.
    hotspot: Option<Reading>,
    identity: Option<JvmIdentity>,
    /// Whether the JVM is selected; `None` while undecided.
    is_wanted: Option<bool>,
    tenant: Arc<str>,
    since: Instant,
    /// Time of its first publication.
    first_published: Option<Instant>,
    /// Whether everything but its process context was read.
    is_ready: bool,
    next_read: Instant,
}

impl Starting {
    fn new(jvm: Found, hotspot: Option<Reading>, first_published: Option<Instant>) -> Self {
        let now = Instant::now();
        Self {
            tenant: cgroup::tenant_of(jvm.process().pid),
            jvm,
            hotspot,
            identity: None,
            is_wanted: None,
            since: now,
            first_published,
            is_ready: false,
            next_read: now,
        }
    }

    /// Returns the JVM. Opens its libjvm.so at the first call.
    fn open(&mut self) -> Result<Arc<Target>> {
        let target = match &self.jvm {
            Found::Unopened(candidate) => Arc::new(candidate.open()?),
            Found::Opened(target) => Arc::clone(target),
        };
        self.jvm = Found::Opened(Arc::clone(&target));
        Ok(target)
    }

    /// Reads the current state of the JVM.
    fn read(&self, target: &Target) -> Reading {
        match &self.hotspot {
            Some(Ok(hotspot)) => {
                let mut hotspot = HotSpot::clone(hotspot);
                hotspot.refresh();
                Ok(Arc::new(hotspot))
            }
            Some(Err(_)) | None => HotSpot::read(target).map(Arc::new).map_err(Arc::new),
        }
    }

    /// Determines the JVM's attributes from outside, unless an earlier call has. Returns `false` if these attributes
    /// already show that the JVM is not wanted.
    ///
    /// # Errors
    /// [`Error::Io`] if the process does not answer. A later call may succeed.
    fn identify(&mut self, options: &Options) -> Result<bool> {
        if options.identify && self.identity.is_none() {
            let identity = JvmIdentity::of(self.jvm.process())?;
            self.is_wanted =
                options.select.as_ref().and_then(|select| select.selects(&identity, false));
            self.identity = Some(identity);
        }
        Ok(self.is_wanted != Some(false))
    }

    /// Adds the attributes that require reading the JVM, if the read succeeded. Returns whether the JVM is
    /// wanted.
    fn identify_read(&mut self, options: &Options, hotspot: &Reading) -> bool {
        let Some(identity) = &mut self.identity else { return true };
        if let Ok(hotspot) = hotspot {
            identity.add_runtime(hotspot);
        }
        let select = options.select.as_ref().filter(|_| self.is_wanted.is_none());
        select.and_then(|select| select.selects(identity, true)).unwrap_or(true)
    }

    /// Reads the process context of a selected JVM, unless an earlier call has. Returns whether it has one.
    fn read_context(&mut self) -> bool {
        let process = self.jvm.process();
        self.identity.as_mut().is_some_and(|identity| identity.read_context(process))
    }

    /// Returns the arrival of this JVM.
    fn arrival(&self, target: Arc<Target>, hotspot: Reading, stage: Stage) -> Arrival {
        Arrival { target, hotspot, stage, identity: self.identity.clone().map(Arc::new) }
    }

    /// Returns this JVM, which is ready, to be checked for a process context once more; `None` if its attributes are not
    /// needed.
    fn awaiting_context(mut self, hotspot: Reading) -> Option<Self> {
        (self.is_ready, self.hotspot) = (true, Some(hotspot));
        self.next_read = Instant::now() + RARE_READ_INTERVAL;
        self.identity.is_some().then_some(self)
    }
}

/// State of the registry's thread.
struct Worker {
    shared: Arc<Shared>,
    finder: Option<Finder>,
    starting: Vec<Starting>,
    /// JVMs that are not selected.
    deselected: Vec<Arc<Process>>,
    /// Time spent on reading the JVMs of each tenant. JVMs of the tenant with the least time are read first.
    reading_time: HashMap<Arc<str>, Duration>,
    next_sweep: Instant,
    sweeps: u32,
    /// Search for breakpoints of other tracers; only in a daemon.
    breakpoints: Option<ForeignBreakpoints>,
}

impl Worker {
    fn new(shared: Arc<Shared>) -> Self {
        let is_daemon = shared.options.pace == Pace::Calm;
        Self {
            breakpoints: is_daemon.then(ForeignBreakpoints::new).flatten(),
            shared,
            finder: None,
            starting: Vec::new(),
            deselected: Vec::new(),
            reading_time: HashMap::new(),
            next_sweep: Instant::now(),
            sweeps: 0,
        }
    }

    fn run(mut self) {
        let Options { targets, pace, slots, min_age, .. } = self.shared.options.clone();
        // In a daemon, hostile processes could keep this thread busy, while others have to read events.
        let _priority_boost = match pace {
            Pace::Prompt => Some(PriorityBoost::begin()),
            Pace::Calm => {
                priority::lower();
                None
            }
        };
        let of = match targets {
            Search::Command(pid) => Some(pid),
            Search::AllJvms | Search::Given => None,
        };
        if targets != Search::Given {
            self.finder = Some(Finder::open(pace, of, slots, min_age));
        }
        keep_only(READ);
        loop {
            self.find();
            let is_done = self.read_due();
            let now = Instant::now();
            let mut next = now
                + if self.finder.is_some() {
                    pace.mapping_poll_interval()
                } else {
                    SLOW_READ_INTERVAL
                };
            if let Some(at) = self.starting.iter().map(|starting| starting.next_read).min() {
                next = next.min(at);
            }
            let mut state = self.shared.lock();
            if is_done && !state.has_read_all {
                state.has_read_all = true;
                self.shared.changed.notify_all();
            }
            let is_idle = |state: &mut State| !state.has_ended && state.given.is_empty();
            let pause = next.saturating_duration_since(now);
            let waited = self.shared.changed.wait_timeout_while(state, pause, is_idle);
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.has_ended {
                return;
            }
            let given = std::mem::take(&mut state.given);
            drop(state);
            self.starting.extend(given.into_iter().map(|Arrival { target, hotspot, .. }| {
                Starting::new(Found::Opened(target), Some(hotspot), Some(Instant::now()))
            }));
        }
    }

    /// Detects processes that have ended, and finds new ones.
    fn find(&mut self) {
        let now = Instant::now();
        if now >= self.next_sweep {
            let pace = self.shared.options.pace;
            self.next_sweep = now + pace.tick();
            self.sweeps = self.sweeps.wrapping_add(1);
            let collect = self.sweeps.is_multiple_of(pace.ticks_to_collect());
            self.sweep(|_| true, pace.checks_closely(collect));
        }
        let Some(finder) = &mut self.finder else { return };
        let mapped = finder.mapped();
        let again: Vec<_> = finder.already_found(&mapped).collect();
        if !again.is_empty() {
            self.sweep(|pid| again.contains(&pid), true);
        }
        let Some(finder) = &mut self.finder else { return };
        let found = finder.find(mapped, now);
        self.shared.exited_unexamined.store(finder.exited_unexamined(), Ordering::Relaxed);
        let new = |candidate| Starting::new(Found::Unopened(candidate), None, None);
        self.starting.extend(found.into_iter().map(new));
    }

    /// Forgets processes that have ended or now run another program, so that new processes with their PIDs
    /// are found.
    fn sweep(&mut self, is_checked: impl Fn(Pid) -> bool, closely: bool) {
        // Each process is checked once, so that all lists agree even if it ends meanwhile.
        let mut fates = HashMap::new();
        let mut removed = Vec::new();
        let mut stays = |process: &Arc<Process>| {
            let fate = || is_checked(process.pid) && process.fate_if(closely) != Fate::Alive;
            let is_removed = *fates.entry(Arc::as_ptr(process)).or_insert_with(fate);
            removed.extend(is_removed.then_some(process.pid));
            !is_removed
        };
        self.shared.lock().present.retain(|_, arrival| stays(&arrival.target.process));
        self.starting.retain(|starting| stays(starting.jvm.process()));
        self.deselected.retain(&mut stays);
        if let Some(finder) = &mut self.finder {
            removed.into_iter().for_each(|pid| finder.forget(pid));
        }
    }

    /// Reads the starting JVMs that are due, for at most about [`MAX_ROUND`]. Returns whether all were read.
    fn read_due(&mut self) -> bool {
        let begin = Instant::now();
        while let Some(next) = self.next_due(begin) {
            if begin.elapsed() > MAX_ROUND {
                return false;
            }
            let starting = self.starting.swap_remove(next);
            let still = self.read(starting);
            self.starting.extend(still);
        }
        if self.starting.is_empty() || self.reading_time.len() > MAX_TENANTS {
            self.reading_time.clear();
        }
        true
    }

    /// Returns the index of the next JVM to read, among those that were due at `then`.
    fn next_due(&self, then: Instant) -> Option<usize> {
        let due = self.starting.iter().enumerate().filter(|(_, one)| one.next_read <= then);
        let reading_time =
            |one: &Starting| self.reading_time.get(&one.tenant).copied().unwrap_or_default();
        due.min_by_key(|(_, one)| reading_time(one)).map(|(at, _)| at)
    }

    /// Releases the slot of a JVM that is not wanted, and watches for its end.
    fn deselect(&mut self, jvm: &Found) {
        let process = jvm.process();
        if let Some(slots) = &self.shared.options.slots {
            slots.release(process.pid);
        }
        // If the list is full, the next scan of all processes notices the end of the JVM.
        if self.deselected.len() < MAX_DESELECTED {
            self.deselected.push(Arc::clone(process));
        }
    }

    /// Handles a failure to identify or open a JVM. Returns the JVM if another attempt must be made.
    fn refuse(
        &mut self,
        mut starting: Starting,
        error: &Error,
        took: Duration,
    ) -> Option<Starting> {
        let pid = starting.jvm.process().pid;
        reading_cost::charge(&starting.tenant, took);
        if scan::is_final(error) {
            log::debug!("ignoring process {pid}: {error}");
            self.deselect(&starting.jvm);
            return None;
        }
        if starting.jvm.process().fate() != Fate::Alive {
            self.finder.iter_mut().for_each(|finder| finder.forget(pid));
            return None;
        }
        starting.next_read = Instant::now() + SLOW_READ_INTERVAL.max(took * PAUSE_FACTOR);
        Some(starting)
    }

    /// Reads a starting JVM. Publishes the result if the process has created a JVM. Returns the JVM if it
    /// must be read again.
    fn read(&mut self, mut starting: Starting) -> Option<Starting> {
        if starting.is_ready {
            self.read_late_context(starting);
            return None;
        }
        if let Some(until) = reading_cost::wait_until(&starting.tenant) {
            starting.next_read = until;
            return Some(starting);
        }
        let options = &self.shared.options;
        let (begin, cpu_begin) = (Instant::now(), thread_cpu_time());
        let read = reader::within(MAX_READING, || {
            // If the JVM is not selected, neither its libjvm.so nor its memory is opened.
            if !starting.identify(options)? {
                return Ok(None);
            }
            let target = starting.open()?;
            let _mark = target.libjvm.mark_reading(&target.process)?;
            let hotspot = starting.read(&target);
            // The tracers attach to a file only after one of its JVMs was published.
            if let (Some(breakpoints), None, Ok(hotspot)) =
                (&mut self.breakpoints, starting.first_published, &hotspot)
            {
                breakpoints.search(&target, &hotspot.memory);
            }
            Ok(Some((target, hotspot)))
        });
        let now = Instant::now();
        let took = now - begin;
        *self.reading_time.entry(Arc::clone(&starting.tenant)).or_default() += took;
        let (target, hotspot) = match read {
            Ok(Some(read)) => read,
            Err(error) => return self.refuse(starting, &error, took),
            Ok(None) => {
                self.deselect(&starting.jvm);
                return None;
            }
        };
        let cost = thread_cpu_time().saturating_sub(cpu_begin);
        let has_own_symbols = target.libjvm.has_untrusted_symbols;
        if hotspot.is_err() || has_own_symbols || cost > COSTLY {
            reading_cost::charge(&starting.tenant, cost);
        }
        let pid = target.pid();
        let age = now - starting.since;
        let has_vm = match &hotspot {
            Ok(hotspot) => hotspot.has_vm,
            Err(_) => age >= VM_CREATION_TIMEOUT,
        };
        let is_new = has_vm && starting.first_published.is_none();
        if is_new {
            if !starting.identify_read(options, &hotspot) {
                self.deselect(&starting.jvm);
                return None;
            }
            starting.first_published = Some(now);
        }
        let is_set_up = hotspot.as_ref().is_ok_and(|hotspot| hotspot.is_set_up);
        let is_ready = starting
            .first_published
            .is_some_and(|first_published| is_set_up || now - first_published > MAX_STARTUP);
        let has_context =
            (is_new || is_ready) && reader::within(MAX_READING, || starting.read_context());
        if starting.first_published.is_some() && (is_new || is_ready || hotspot.is_ok()) {
            let stage = if is_ready { Stage::Ready } else { Stage::Starting };
            self.shared.publish(&starting.arrival(target, hotspot.clone(), stage));
        }
        if is_set_up || is_ready && hotspot.is_err() {
            return (!has_context).then(|| starting.awaiting_context(hotspot)).flatten();
        }
        if let Err(error) = &hotspot {
            log::debug!("cannot read the JVM of process {pid}: {error}");
        }
        let is_patient = age < VM_CREATION_TIMEOUT;
        if starting.first_published.is_none() && !is_patient {
            log::debug!("process {pid} has mapped libjvm.so, but has not created a JVM");
        }
        let pause = match (is_patient, is_ready) {
            (true, _) => read_interval(options.pace),
            (false, false) => SLOW_READ_INTERVAL,
            (false, true) => RARE_READ_INTERVAL,
        };
        // The first read of a JVM may fail because it is starting up, and may include reading a file for all JVMs.
        let has_failed_again = hotspot.is_err() && starting.hotspot.is_some();
        let rest = match (took > SLOW, has_failed_again) {
            (true, _) => took * PAUSE_FACTOR,
            // A JVM that is starting up fails several times, which costs little.
            (false, true) if cost > COSTLY => cost * PAUSE_FACTOR,
            (false, true) => Duration::ZERO,
            (false, false) => Duration::ZERO,
        };
        starting.next_read = now + pause.max(rest);
        starting.hotspot = Some(hotspot);
        Some(starting)
    }

    /// Checks whether a JVM has published its process context after its startup, and publishes the JVM again if so.
    fn read_late_context(&mut self, mut starting: Starting) {
        let begin = Instant::now();
        let has_context = reader::within(MAX_READING, || starting.read_context());
        *self.reading_time.entry(Arc::clone(&starting.tenant)).or_default() += begin.elapsed();
        if let (true, Found::Opened(target), Some(hotspot)) =
            (has_context, &starting.jvm, &starting.hotspot)
        {
            let (target, hotspot) = (Arc::clone(target), hotspot.clone());
            self.shared.publish(&starting.arrival(target, hotspot, Stage::Ready));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        hotspot::testing::FakeJvm,
        jvms::testing::{WaitingShell, arrival, library},
        process::{LibJvm, context::testing::Published},
    };

    fn given() -> Registry {
        Registry::start(Options { targets: Search::Given, ..Options::default() }).unwrap()
    }

    /// Waits for the next arrivals.
    fn next(arrivals: &mut Arrivals) -> Vec<Arrival> {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(60) {
            let taken = arrivals.take();
            if !taken.is_empty() {
                return taken;
            }
            thread::sleep(Duration::from_millis(1));
        }
        panic!("nothing arrives");
    }

    #[test]
    fn subscribers_receive_each_stage_of_a_jvm_once() {
        let (library, mut jvm, one) = (library(), FakeJvm::new("UseG1GC"), WaitingShell::new());
        let registry = given();
        let mut first = registry.subscribe().unwrap();
        let starting = arrival(&one, &library, Ok(jvm.hotspot()));
        first.hand_over(starting.clone());
        let [arrival] = &next(&mut first)[..] else { panic!("there is one JVM") };
        assert_eq!(arrival.stage, Stage::Starting);
        jvm.set_up();
        let ready = loop {
            let arrival = next(&mut first).remove(0);
            if arrival.stage == Stage::Ready {
                break arrival;
            }
        };
        assert!(ready.hotspot.is_ok_and(|hotspot| hotspot.is_set_up));
        assert!(Arc::ptr_eq(&ready.target, &starting.target));
        // A later subscriber receives each JVM once.
        let mut second = registry.subscribe().unwrap();
        assert_eq!(second.take().len(), 1);
        thread::sleep(3 * read_interval(Pace::Prompt));
        assert!(first.take().is_empty() && second.take().is_empty());
    }

    #[test]
    fn jvm_is_not_reported_to_the_subscriber_that_refused_it() {
        let (library, jvm, one) = (library(), FakeJvm::new("UseG1GC"), WaitingShell::new());
        let (registry, starting) = (given(), arrival(&one, &library, Ok(jvm.hotspot())));
        let [mut one, mut other] = [(); 2].map(|()| registry.subscribe().unwrap());
        one.refuse(&starting.target);
        one.hand_over(starting);
        assert_eq!(next(&mut other).len(), 1);
        assert!(one.take().is_empty());
    }

    #[test]
    fn postponed_jvm_arrives_again_unless_it_was_read_again_or_ended() {
        let (library, jvm) = (library(), FakeJvm::new("UseG1GC"));
        let processes = [(); 3].map(|()| WaitingShell::new());
        let registry = given();
        let mut arrivals = registry.subscribe().unwrap();
        let [one, two, three] =
            processes.each_ref().map(|process| arrival(process, &library, Ok(jvm.hotspot())));
        [&one, &two, &three].into_iter().for_each(|arrival| arrivals.postpone(arrival.clone()));
        assert!(arrivals.take().is_empty());
        arrivals.hand_over(two.clone());
        assert_eq!(next(&mut arrivals).len(), 1);
        arrivals.postponed.iter_mut().for_each(|(at, _)| *at = Instant::now());
        let [_, _, third] = processes;
        drop(third);
        let again: Vec<_> = arrivals.take().iter().map(|arrival| arrival.target.pid()).collect();
        assert_eq!(again, [one.target.pid()]);
        assert!(arrivals.take().is_empty());
    }

    #[test]
    fn ended_processes_are_removed_and_their_descriptors_closed() {
        let (library, jvm, one) = (library(), FakeJvm::new("UseG1GC"), WaitingShell::new());
        let registry = given();
        let mut arrivals = registry.subscribe().unwrap();
        arrivals.hand_over(arrival(&one, &library, Ok(jvm.hotspot())));
        next(&mut arrivals);
        drop(one);
        let begin = Instant::now();
        while registry.subscribe().unwrap().take().len() == 1 {
            assert!(begin.elapsed() < Duration::from_secs(60));
            thread::sleep(read_interval(Pace::Prompt));
        }
        // The registry holds no reference to the target, so the target's descriptors are closed.
        let queued = arrivals.take();
        let weak = queued.first().map(|arrival| Arc::downgrade(&arrival.target));
        drop(queued);
        assert!(weak.is_none_or(|target| target.strong_count() == 0));
    }

    /// Selects all JVMs except those with this collector.
    #[derive(Debug)]
    struct ExcludesCollector {
        collector: &'static str,
    }

    impl Select for ExcludesCollector {
        fn selects(&self, identity: &JvmIdentity, is_read: bool) -> Option<bool> {
            let collector = identity.attributes.get("jvm.gc.name").map_or("", String::as_str);
            is_read.then_some(collector != self.collector)
        }
    }

    #[test]
    fn jvm_rejected_by_the_selector_is_not_reported() {
        let (library, jvm) = (library(), FakeJvm::new("UseG1GC"));
        for (collector, is_reported) in [("G1", false), ("Serial", true)] {
            let select: Arc<dyn Select> = Arc::new(ExcludesCollector { collector });
            let options = Options { identify: true, select: Some(select), ..Options::default() };
            let options = Options { targets: Search::Given, ..options };
            let registry = Registry::start(options).unwrap();
            let mut arrivals = registry.subscribe().unwrap();
            let mut worker = Worker::new(Arc::clone(&registry.0.0));
            let one = WaitingShell::new();
            let arrival = arrival(&one, &library, Ok(jvm.hotspot()));
            let starting =
                Starting::new(Found::Opened(arrival.target), Some(arrival.hotspot), None);
            assert_eq!(worker.read(starting).is_some(), is_reported);
            assert_eq!(
                (arrivals.take().len(), worker.deselected.len()),
                (is_reported.into(), (!is_reported).into())
            );
            drop(one);
            worker.sweep(|_| true, true);
            assert!(worker.deselected.is_empty());
        }
    }

    #[test]
    fn context_published_after_the_startup_is_reported_once() {
        let (library, mut jvm) = (library(), FakeJvm::new("UseG1GC"));
        jvm.set_up();
        let options = Options { identify: true, targets: Search::Given, ..Options::default() };
        let registry = Registry::start(options).unwrap();
        let mut arrivals = registry.subscribe().unwrap();
        let mut worker = Worker::new(Arc::clone(&registry.0.0));
        let process = Process::open(Pid(std::process::id())).unwrap();
        let libjvm = LibJvm::of_file(&library.path()).unwrap();
        let target = Arc::new(Target { process: Arc::new(process), libjvm });
        let starting = Starting::new(Found::Opened(target), Some(Ok(jvm.hotspot().into())), None);
        let claimed = |arrivals: &mut Arrivals| {
            let [arrival] = &arrivals.take()[..] else { panic!("one arrival") };
            assert_eq!(arrival.stage, Stage::Ready);
            arrival.identity.as_ref().unwrap().claimed.get("service.instance.id").cloned()
        };
        let starting = worker.read(starting).unwrap();
        assert_eq!(claimed(&mut arrivals), None);
        assert!(starting.next_read > Instant::now());
        let published = Published::new("service.instance.id", "i-1");
        assert!(worker.read(starting).is_none());
        assert_eq!(claimed(&mut arrivals).as_deref(), Some("i-1"));
        // A JVM that has published it before is not read again.
        let process = Process::open(Pid(std::process::id())).unwrap();
        let libjvm = LibJvm::of_file(&library.path()).unwrap();
        let target = Arc::new(Target { process: Arc::new(process), libjvm });
        let starting = Starting::new(Found::Opened(target), Some(Ok(jvm.hotspot().into())), None);
        assert!(worker.read(starting).is_none());
        assert_eq!(claimed(&mut arrivals).as_deref(), Some("i-1"));
        drop(published);
    }

    #[test]
    fn processes_of_a_tenant_that_takes_long_to_read_wait() {
        let (library, jvm) = (library(), FakeJvm::new("UseG1GC"));
        let mut worker = Worker::new(Arc::clone(&given().0.0));
        let mut read = |tenant: &str| {
            // A new process of the same tenant waits, too.
            let process = WaitingShell::new();
            let arrival = arrival(&process, &library, Ok(jvm.hotspot()));
            let starting =
                Starting::new(Found::Opened(arrival.target), Some(arrival.hotspot), None);
            let starting = worker.read(Starting { tenant: tenant.into(), ..starting }).unwrap();
            (starting.first_published.is_some(), starting.next_read)
        };
        reading_cost::charge(&"costly".into(), Duration::from_secs(11));
        for _ in 0..2 {
            let (is_read, next) = read("costly");
            assert!(!is_read && next > Instant::now() + Duration::from_secs(90));
        }
        let (is_read, next) = read("cheap");
        assert!(is_read && next < Instant::now() + Duration::from_secs(10));
    }

    #[test]
    fn jvms_of_a_tenant_that_takes_long_to_read_arrive_later() {
        let (library, jvm) = (library(), FakeJvm::new("UseG1GC"));
        let mut arrivals = given().subscribe().unwrap();
        let processes = [WaitingShell::new(), WaitingShell::new()];
        let new = processes.each_ref().map(|one| arrival(one, &library, Ok(jvm.hotspot())));
        let [costly, cheap] = new.each_ref().map(|arrival| arrival.target.pid());
        let mut share = |new: &[Arrival], waiting: &str| -> Vec<_> {
            let tenant = |arrival: &Arrival| {
                if arrival.target.pid() == costly { "costly".into() } else { "cheap".into() }
            };
            let taken = arrivals.share(new.to_vec(), tenant, |tenant| tenant == waiting);
            taken.iter().map(|arrival| arrival.target.pid()).collect()
        };
        assert_eq!(share(&new, "costly"), [cheap]);
        // The latest state of a JVM replaces the one that was held back.
        assert!(share(&new[..1], "costly").is_empty());
        assert_eq!(share(&[], ""), [costly]);
        assert!(share(&[], "").is_empty());
        let [first, _] = processes;
        assert!(share(&new[..1], "costly").is_empty());
        drop(first);
        assert!(share(&[], "").is_empty(), "it has ended");
    }

    #[test]
    fn jvms_of_different_tenants_arrive_by_turns() {
        let (library, jvm) = (library(), FakeJvm::new("UseG1GC"));
        let mut arrivals = given().subscribe().unwrap();
        let processes: Vec<_> = (0..MAX_AT_ONCE + 3).map(|_| WaitingShell::new()).collect();
        let new = processes.iter().map(|one| arrival(one, &library, Ok(jvm.hotspot())));
        let new: Vec<_> = new.collect();
        let last = new.last().unwrap().target.pid();
        let tenant = |arrival: &Arrival| {
            if arrival.target.pid() == last { "other".into() } else { "many".into() }
        };
        let taken = arrivals.share(new, tenant, |_| false);
        assert_eq!(taken.len(), MAX_AT_ONCE + 1);
        assert_eq!(taken[1].target.pid(), last);
        // The tracer is woken for the rest.
        assert_eq!(rustix::io::read(&arrivals.queue.wake, &mut [0; 8]), Ok(8));
        assert_eq!(arrivals.share(Vec::new(), tenant, |_| false).len(), 2);
    }

    #[test]
    fn jvms_of_the_tenant_with_the_least_reading_time_are_read_first() {
        let (library, jvm) = (library(), FakeJvm::new("UseG1GC"));
        let shared = Arc::clone(&given().0.0);
        let mut worker = Worker::new(shared);
        let processes = [(); 3].map(|()| WaitingShell::new());
        let tenants = ["slow", "slow", "quick"];
        for (process, tenant) in processes.iter().zip(tenants) {
            let arrival = arrival(process, &library, Ok(jvm.hotspot()));
            let starting =
                Starting::new(Found::Opened(arrival.target), Some(arrival.hotspot), None);
            worker.starting.push(Starting { tenant: tenant.into(), ..starting });
        }
        let tenant_of = |due: Option<usize>, worker: &Worker| {
            due.map(|due| worker.starting[due].tenant.to_string())
        };
        worker.reading_time.insert("slow".into(), Duration::from_secs(1));
        assert_eq!(tenant_of(worker.next_due(Instant::now()), &worker).unwrap(), "quick");
        worker.reading_time.insert("quick".into(), Duration::from_secs(2));
        assert_eq!(tenant_of(worker.next_due(Instant::now()), &worker).unwrap(), "slow");
    }
}

//! The tracer: receives the waits of the kernel side, joins those that belong together, and reports them to a sink.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant},
};

use libbpf_rs::Link;

use crate::{
    Addr, Error, Pid, Result,
    bpf::{
        self, clock, cost::Costs, offcpu::Hook, preflight, probes::Plan, records::text,
        session::Attach,
    },
    hotspot::{HotSpot, java_threads::ConnectionPool},
    jvms::{ByKey, Followed, Lost, Reading, Tool},
    process::{
        Target,
        blocking_call::{self, Operation},
        os_threads::os_threads,
    },
    stack::{Frame, name::KernelNames, namer::Namers, raw::RawStack},
    sys::Pace,
    trace::{
        self,
        samples::idle::is_idle,
        waits::{
            classify::{self, Reason},
            event::{self, Event, wait_event, waker},
            jvm::{Held, Jvm, MAX_STACKS, MAX_STACKS_SIZE, Stack},
            limits::Limits,
            resources,
            session::{self, Session},
            unmounted::{Schedule, UnmountedReading},
            wait::{Awaited, Holder, Kind, Others, Relation, ThreadName, Wait},
        },
    },
};

/// If a thread has run for longer than this after a wait, its next wait is another one, in nanoseconds. A thread that was
/// woken too early tries to enter a monitor for some time before it waits again (`ObjectMonitor::TrySpin`).
const MAX_PAUSE_NS: u64 = 150_000;
/// The same for a thread that is parked.
const MAX_PARK_PAUSE_NS: u64 = 100_000;
/// If more time than this has passed after a wait, the thread's next wait is another one, in nanoseconds.
const MAX_GAP_NS: u64 = 500_000;
/// The same for a thread that is parked.
const MAX_PARK_GAP_NS: u64 = 300_000;
/// Time after which a wait is reported even if it may go on. Up to JDK 23, one thread of those that wait for a monitor wakes
/// up at least once per second (`ObjectMonitor::EnterI`, objectMonitor.cpp).
const MAX_HELD: Duration = Duration::from_millis(1500);
/// Interval at which waits that may go on are examined.
const RELEASE_INTERVAL: Duration = Duration::from_millis(20);
/// Name of the JVM's thread that runs safepoints.
const VM_THREAD: &str = "VM Thread";

/// Options of a trace of waits.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Minimum length of a reported wait.
    pub min: Duration,
    /// How soon events are read. With [`Pace::Calm`], the cost of the BPF programs is reported, too.
    pub pace: Pace,
    /// Whether virtual threads that wait without a carrier are read at intervals.
    pub virtual_threads: bool,
    /// Whether a wait is reported in detail: the thread that ended it, with its stack and its own waits, the state of the
    /// pool, and the name of a lock of the JVM itself.
    pub holders: bool,
}

/// Receiver of the results.
pub trait Sink: trace::Sink {
    /// Receives a wait that has ended.
    ///
    /// # Errors
    /// If the trace cannot go on.
    fn wait(&mut self, wait: Wait) -> Result<()>;

    /// Receives the virtual threads that wait without a carrier.
    ///
    /// # Errors
    /// If the trace cannot go on.
    fn unmounted(&mut self, reading: &UnmountedReading) -> Result<()>;

    /// Receives the state of a connection pool at a time when a thread had waited for a connection.
    fn pool(&mut self, pid: Pid, pool: ConnectionPool);

    /// Called at the end of each interval, and at the end of the trace. `end_ns` is the time on `CLOCK_MONOTONIC`.
    ///
    /// # Errors
    /// If the trace cannot go on.
    fn report(&mut self, end_ns: u64) -> Result<()>;
}

/// The tracer of waits, a `Tool` for [`crate::jvms::Trace`].
pub struct Tracer<S> {
    /// Receives the results.
    pub sink: S,
    pub(super) session: Session,
    /// Attachments of the BPF programs.
    _links: Vec<Link>,
    pub(super) namers: Namers,
    open_files: blocking_call::Files,
    kernel: KernelNames,
    pub(super) kernel_stacks: HashMap<u64, Stack>,
    /// Waits whose stacks have not been received, because another processor sends them.
    early: Vec<wait_event>,
    pub(super) began_ns: u64,
    /// Time at which the waits that may go on were examined last.
    released: Instant,
    /// Minimum length of a wait in nanoseconds.
    pub(super) min_ns: u64,
    /// When unmounted virtual threads are read.
    pub(super) schedule: Schedule,
    pub(super) options: Options,
    limits: Limits,
    /// Number of context switches of threads that could not be recorded, as last reported.
    lost: u64,
}

impl<S: Sink> Tracer<S> {
    /// Loads the BPF object, and starts to record.
    ///
    /// # Errors
    /// [`crate::Error::Permission`] or [`crate::Error::Kernel`] if the kernel refuses.
    pub fn new(options: Options, sink: S) -> Result<Self> {
        if !bpf::sees_initial_pids() {
            return Err(Error::Kernel {
                what: "record the waits of threads in another PID namespace".into(),
                hint: "run it on the host, or in a container with the host's PID namespace".into(),
            });
        }
        // First, because Linux before 5.15 also lacks what the hook needs, with a message that helps less.
        preflight::check_walker()?;
        let hook = Hook::find()?;
        let mut session = session::load(&hook, options)?;
        let links = session::attach(&mut session, &hook)?;
        let began_ns = clock::monotonic_ns();
        session::begin(&mut session, began_ns);
        Ok(Self {
            sink,
            session,
            _links: links,
            namers: Namers::default(),
            open_files: blocking_call::Files::default(),
            kernel: KernelNames::default(),
            kernel_stacks: HashMap::new(),
            early: Vec::new(),
            began_ns,
            released: Instant::now(),
            min_ns: u64::try_from(options.min.as_nanos()).unwrap_or(u64::MAX),
            schedule: Schedule::default(),
            options,
            limits: Limits::default(),
            lost: 0,
        })
    }

    /// Sets the CPU time that recording waits may take, for all tenants together, in millionths of a processor. If a tenant
    /// exceeds its share, a random part of its waits is recorded. The others are added to the recorded ones and
    /// [counted](crate::sys::limited). The budget is read once per interval. It is ignored unless the pace is
    /// [`Pace::Calm`].
    #[must_use]
    pub fn with_cpu_budget(mut self, ppm: Arc<AtomicU64>) -> Self {
        if self.options.pace == Pace::Calm {
            self.limits.set_budget(ppm);
        }
        self
    }

    /// Reports the waits that have not ended, and the end of the trace. `is_reported`: the last interval has been reported
    /// just now.
    ///
    /// # Errors
    /// Errors of the sink.
    pub fn finish(&mut self, jvms: &mut ByKey<Jvm>, is_reported: bool) -> Result<()> {
        if is_reported {
            return Ok(());
        }
        self.take_events(jvms, Duration::ZERO)?;
        self.read_unmounted(jvms, true)?;
        let end_ns = clock::monotonic_ns();
        self.report_in_progress(jvms, end_ns)?;
        for followed in jvms.values_mut() {
            self.release(&mut followed.jvm, true)?;
        }
        self.sink.report(end_ns)
    }

    /// Reports the waits that have ended, and the end of the trace. Waits that have not ended are not reported.
    ///
    /// # Errors
    /// Errors of the sink.
    pub fn finish_ended(&mut self, jvms: &mut ByKey<Jvm>) -> Result<()> {
        self.take_events(jvms, Duration::ZERO)?;
        for followed in jvms.values_mut() {
            self.release(&mut followed.jvm, true)?;
        }
        Tool::report(self, jvms)
    }

    /// Returns the kernel's frames of a thread that waited, without those of the context switch.
    pub(super) fn kernel_stack_of_wait(&self, id: u64) -> Stack {
        let stack = self.kernel_stacks.get(&id).cloned().unwrap_or_default();
        let is_switch = |frame: &Frame| matches!(&*frame.name, "schedule" | "__schedule");
        match stack.iter().position(is_switch) {
            Some(at) => stack.get(..at).unwrap_or_default().into(),
            None => stack,
        }
    }

    /// Takes a stack.
    fn take_stack(&mut self, jvms: &mut ByKey<Jvm>, id: u64, raw: &RawStack) -> Result<()> {
        if raw.target == 0 {
            let mut frames = self.kernel.stack(raw.addresses());
            frames.reverse();
            self.kernel_stacks.insert(id, frames.into());
            return Ok(());
        }
        let Some(Followed { jvm, hotspot: Ok(hotspot), .. }) = jvms.get_mut(&raw.target) else {
            return Ok(());
        };
        let Some(walker) = self.session.walker() else { return Ok(()) };
        jvm.take_stack(hotspot, &mut self.namers, walker, id, raw)
    }

    fn has_stacks(&self, jvm: &Jvm, event: &wait_event) -> bool {
        let is_known = |id: u64, stacks: &HashMap<u64, Stack>| {
            id.is_multiple_of(2) || stacks.contains_key(&id)
        };
        let waker_is_known =
            event.waker.tgid != jvm.pid.0 || is_known(event.waker.user, &jvm.stacks);
        is_known(event.user, &jvm.stacks)
            && is_known(event.kernel, &self.kernel_stacks)
            && is_known(event.waker.kernel, &self.kernel_stacks)
            && waker_is_known
    }

    /// Makes the record of a wait and reports it, or holds it back if it may go on.
    fn take_wait(
        &mut self,
        jvm: &mut Jvm,
        hotspot: Option<&HotSpot>,
        event: &wait_event,
    ) -> Result<()> {
        let stack = jvm.stacks.get(&event.user).cloned().unwrap_or_default();
        let kernel_stack = self.kernel_stack_of_wait(event.kernel);
        let waker_comm = text(&event.waker.comm);
        let by_vm_thread = event.waker.tgid == jvm.pid.0 && waker_comm == VM_THREAD;
        let reason = classify::reason(event, &stack, &kernel_stack, by_vm_thread);
        let (mut kind, mut awaited) = match reason {
            Reason::Of(kind) => (kind, self.awaited(jvm, kind, event, &stack)),
            Reason::File(operation, descriptor) => {
                self.file(jvm.pid, operation, descriptor, &kernel_stack)
            }
        };
        let number = (event.number != 0).then_some(event.number);
        let mut pinned_by = None;
        if number.is_some() && kind.can_be_pinned() {
            pinned_by = Some(classify::pinned_by(kind, &stack));
            kind = Kind::Pinned;
        }
        let thread = ThreadName {
            pid: jvm.pid,
            tid: event.tid,
            name: jvm.name(event.tid, text(&event.comm)),
            virtual_thread: number,
        };
        awaited.resource = resources::resource(kind, &stack);
        if kind == Kind::NativeLock && self.options.holders {
            awaited.name = jvm.native_lock(hotspot, event.args[0]).unwrap_or_default();
        }
        let woken = if event.woken < event.began { event.ended } else { event.woken };
        let run_queue_ns = match kind {
            Kind::RunQueue | Kind::Throttled => event.ended.saturating_sub(event.began),
            _ => event.ended.saturating_sub(woken),
        };
        let lock_kind = if event.enters.monitor != 0 { Kind::Monitor } else { kind };
        let holder = if self.options.holders {
            self.holder(jvm, event, lock_kind, &awaited, &stack, waker_comm)
        } else {
            None
        };
        let wait = Wait {
            kind,
            begin_ns: event.began,
            end_ns: event.ended,
            run_queue_ns,
            was_throttled: event.flags & event::WOKEN_THROTTLED != 0,
            is_unseen: event.flags & event::UNSEEN != 0,
            is_in_progress: false,
            is_idle: is_idle(stack.iter()),
            pinned_by,
            stack,
            kernel_stack,
            holder,
            awaited,
            thread,
            others: Others { times: event.others.waits, ns: event.others.ns },
        };
        let pool_of = wait.awaited.resource.filter(|_| self.options.holders);
        for pool in jvm.connection_pools(pool_of) {
            self.sink.pool(jvm.pid, pool);
        }
        self.join_or_report(jvm, wait, event)
    }

    /// Joins a wait with the thread's last one if the thread was only woken too early. Otherwise, reports the last one.
    fn join_or_report(&mut self, jvm: &mut Jvm, mut wait: Wait, event: &wait_event) -> Result<()> {
        if let Some(held) = jvm.held.remove(&event.tid) {
            let before = &held.wait;
            let is_same = before.kind == wait.kind
                && before.awaited.address == wait.awaited.address
                && is_same_place(&before.stack, &wait.stack)
                && held.wakes == event.wakes
                && event.began.saturating_sub(before.end_ns) < max_gap(wait.kind)
                && event.on_ns.saturating_sub(held.on_ns) < max_pause(wait.kind);
            if is_same {
                wait.begin_ns = before.begin_ns;
                wait.run_queue_ns = wait.run_queue_ns.saturating_add(before.run_queue_ns);
                wait.is_unseen |= before.is_unseen;
                wait.others.add(before.others);
            } else {
                self.report_wait(jvm, held.wait)?;
            }
        }
        // A shorter wait is received only because it may belong to the last one.
        if wait.length_ns() < self.min_ns {
            return Ok(());
        }
        if !wait.awaited.is_lock {
            return self.report_wait(jvm, wait);
        }
        let (on_ns, wakes) = (event.on_ns, event.wakes);
        jvm.held.insert(event.tid, Held { wait, on_ns, wakes, at: Instant::now(), is_over: false });
        Ok(())
    }

    /// Reports the waits that cannot go on any more; all of them if `all`.
    fn release(&mut self, jvm: &mut Jvm, all: bool) -> Result<()> {
        let mut over = Vec::new();
        for (&tid, held) in &mut jvm.held {
            // The event of the thread's next wait may have been sent after the events were read. So the wait is reported
            // after the next reading.
            let was_over = held.is_over;
            held.is_over = held.at.elapsed() > MAX_HELD
                || session::thread(&self.session, tid).is_none_or(|thread| {
                    thread.on_ns.saturating_sub(held.on_ns) >= max_pause(held.wait.kind)
                });
            let has_next = self.early.iter().any(|event| event.tid == tid);
            if all || was_over && held.is_over && !has_next {
                over.push(tid);
            }
        }
        for tid in over {
            if let Some(held) = jvm.held.remove(&tid) {
                self.report_wait(jvm, held.wait)?;
            }
        }
        Ok(())
    }

    pub(super) fn report_wait(&mut self, jvm: &mut Jvm, mut wait: Wait) -> Result<()> {
        if !self.options.holders {
            return self.sink.wait(wait);
        }
        if let Some(holder) = &mut wait.holder {
            let waited = jvm.longest_within(holder.thread.tid, wait.begin_ns, wait.end_ns);
            // A wait that is a small part of this one does not explain it.
            let waited = waited
                .filter(|(_, ns)| ns.saturating_mul(4) > wait.end_ns.saturating_sub(wait.begin_ns));
            holder.waited = waited.map(|(waited, _)| Box::new(waited.clone()));
        }
        if let Some(resource) = wait.awaited.resource {
            jvm.acquire(resource.key(), &wait.thread, wait.end_ns);
        } else if wait.awaited.is_lock && wait.awaited.address != 0 {
            jvm.acquire(wait.awaited.address, &wait.thread, wait.end_ns);
        }
        jvm.keep(&wait);
        self.sink.wait(wait)
    }

    /// Returns the object or the lock that a thread waited for.
    fn awaited(&self, jvm: &mut Jvm, kind: Kind, event: &wait_event, stack: &[Frame]) -> Awaited {
        let awaited = match kind {
            Kind::Monitor => &event.enters,
            Kind::Wait => &event.waits_for,
            Kind::Park => &event.parks_for,
            _ => return Awaited::default(),
        };
        let class = jvm.class(awaited.klass);
        let is_synchronizer = match &class {
            Some((_, is_synchronizer)) => *is_synchronizer,
            None => classify::acquires(stack),
        };
        if awaited.monitor != 0 {
            jvm.add_monitor(awaited.object, awaited.monitor);
        }
        Awaited {
            object: awaited.object,
            address: if awaited.monitor != 0 { awaited.monitor } else { awaited.object },
            is_lock: kind == Kind::Monitor || kind == Kind::Park && is_synchronizer,
            class: class.map(|(name, _)| name),
            name: "".into(),
            resource: None,
        }
    }

    /// Returns the file that a thread waited for, and the kind of its wait. `kernel` are the kernel's frames.
    pub(super) fn file(
        &mut self,
        pid: Pid,
        operation: Operation,
        descriptor: u32,
        kernel: &[Frame],
    ) -> (Kind, Awaited) {
        let call = self.open_files.call(pid, operation, descriptor);
        let operation = call.as_ref().map_or(operation, |call| call.operation);
        let file = call.map(|call| call.file);
        let kind = classify::kind_of_file(operation, file.as_deref(), kernel);
        let name = file.unwrap_or_else(|| format!("descriptor {descriptor}"));
        (kind, Awaited { name: name.into(), ..Awaited::default() })
    }

    /// Returns the thread that ended a wait.
    fn holder(
        &self,
        jvm: &mut Jvm,
        event: &wait_event,
        kind: Kind,
        awaited: &Awaited,
        waiter: &[Frame],
        comm: String,
    ) -> Option<Holder> {
        let waker = &event.waker;
        let kernel = self.kernel_stacks.get(&waker.kernel).map_or(&[][..], |stack| &**stack);
        let is_involved =
            waker.woken != 0 && waker.tid != event.tid && may_be_waker(event, waker, kernel);
        if !is_involved || matches!(kind, Kind::Safepoint | Kind::RunQueue | Kind::Throttled) {
            return None;
        }
        let is_ours = waker.tgid == jvm.pid.0;
        let stack = if is_ours { jvm.stacks.get(&waker.user).cloned() } else { None };
        let stack = stack.unwrap_or_default();
        let thread = ThreadName {
            pid: Pid(waker.tgid),
            tid: waker.tid,
            name: if is_ours { jvm.name(waker.tid, comm) } else { comm.into() },
            virtual_thread: (waker.number != 0).then_some(waker.number),
        };
        let resource = awaited.resource.filter(|of| is_ours && of.is_returned(&stack));
        let released = match resource {
            Some(resource) => Some(resource.key()),
            None if is_ours && awaited.is_lock && classify::releases(kind, waiter, &stack) => {
                Some(awaited.address)
            }
            None => None,
        };
        let (relation, held_ns, is_exact) = match released {
            None => (Relation::Woke, 0, false),
            Some(lock) => {
                // If the holder acquired the lock before this wait, it may have released it in between, unseen because no
                // thread waited. It has then held the lock since this wait began; of a pool, it may hold another element.
                let acquired = jvm.release(lock, &thread, waker.woken);
                let acquired = acquired.filter(|&at| at >= event.began);
                let least = if resource.is_some() { waker.woken } else { event.began };
                let since = acquired.unwrap_or(least);
                (Relation::Held, waker.woken.saturating_sub(since), acquired.is_some())
            }
        };
        Some(Holder { thread, relation, held_ns, is_exact, stack, waited: None })
    }
}

/// Functions of the kernel that serve interrupts of x86-64 and aarch64, and its threads that do so. A soft interrupt that a
/// thread serves itself when it sends over the loopback device is not an interrupt.
const INTERRUPTS: [&str; 6] = [
    "asm_sysvec_",
    "asm_common_interrupt",
    "hrtimer_interrupt",
    "run_ksoftirqd",
    "el0_interrupt",
    "el1_interrupt",
];

/// Returns the PID of the JVM that has a key.
fn pid_of(key: u64) -> u32 {
    (key & u64::from(u32::MAX)) as u32
}

/// Returns the time that may pass between two parts of a wait, in nanoseconds.
pub(super) fn max_gap(kind: Kind) -> u64 {
    if kind == Kind::Monitor { MAX_GAP_NS } else { MAX_PARK_GAP_NS }
}

/// Returns the time for which a thread may run between two parts of a wait, in nanoseconds.
pub(super) fn max_pause(kind: Kind) -> u64 {
    if kind == Kind::Monitor { MAX_PAUSE_NS } else { MAX_PARK_PAUSE_NS }
}

/// Whether two stacks have the same Java frames. Below them, the JVM may wait with or without a timeout.
fn is_same_place(one: &[Frame], other: &[Frame]) -> bool {
    let java =
        |stack: &[Frame]| stack.iter().filter(|frame| frame.is_java()).cloned().collect::<Vec<_>>();
    java(one) == java(other)
}

/// Whether the thread in which a wait was ended has ended it. If an interrupt ended the wait, for example that of a timer,
/// the thread was only interrupted. `kernel` are the kernel's frames at that time.
fn may_be_waker(event: &wait_event, waker: &waker, kernel: &[Frame]) -> bool {
    let is_futex = |call: i32| i64::from(call) == libc::SYS_futex;
    let is_same_futex =
        is_futex(waker.call) && is_futex(event.call) && waker.address == event.args[0];
    // Without the kernel's symbols, interrupts cannot be recognized.
    let is_unnamed = |frame: &Frame| frame.name.starts_with("[unknown");
    let is_interrupt = |frame: &Frame| {
        is_unnamed(frame) || INTERRUPTS.iter().any(|name| frame.name.starts_with(name))
    };
    is_same_futex || !kernel.is_empty() && !kernel.iter().any(is_interrupt)
}

impl<S: Sink> Tool for Tracer<S> {
    type Jvm = Jvm;
    const TRACES_STARTING_JVMS: bool = false;

    fn session(&mut self) -> &mut dyn Attach {
        &mut self.session
    }

    fn plan(&mut self, _: &Target, _: Option<&HotSpot>) -> Result<Vec<Plan>> {
        Ok(Vec::new())
    }

    fn prepare(&mut self, key: u64, pid: Pid, hotspot: Option<&HotSpot>) {
        if let (Some(hotspot), Some(walker)) = (hotspot, self.session.walker()) {
            self.namers.add(key, pid, hotspot, walker);
        }
    }

    fn admit(&mut self, key: u64, target: &Target, hotspot: &Reading) -> Result<Jvm> {
        let pid = target.pid();
        let hotspot = hotspot.as_deref().ok();
        if let Some(hotspot) = hotspot.filter(|hotspot| hotspot.is_set_up) {
            self.sink.jvm(hotspot)?;
        }
        let reader = hotspot.and_then(|hotspot| {
            let read = hotspot.awaited_reader().and_then(|mut reader| {
                let fields = reader.fields()?;
                let threads = reader.threads()?;
                // The Zero VM does not store the IDs of its threads.
                if threads.is_empty() {
                    return Err(Error::layout("its threads have no IDs"));
                }
                Ok((reader, fields, threads))
            });
            read.inspect_err(|error| {
                log::warn!(
                    "process {pid}: locks and their owners are not shown, because the JVM's threads \
                     cannot be read: {error}"
                );
            })
            .ok()
        });
        let (reader, fields) = match reader {
            Some((reader, fields, listed)) => {
                for thread in os_threads(pid)? {
                    let java_thread = listed.get(&thread.namespace_tid).copied();
                    let java_thread = java_thread.unwrap_or(Addr(0));
                    session::set_java_thread(&self.session, thread.tid, java_thread);
                }
                (Some(reader), Some(fields))
            }
            None => (None, None),
        };
        self.session.flush();
        session::add_jvm(&self.session, key, pid, fields.as_ref())?;
        if let Some(costs) = self.session.costs() {
            costs.add(pid.0.into());
        }
        self.limits.add(&self.session, key, pid.0);
        Ok(Jvm::new(pid, hotspot, reader))
    }

    fn take_events(&mut self, jvms: &mut ByKey<Jvm>, timeout: Duration) -> Result<()> {
        // With a calm pace, lists of threads are read only when events are.
        let is_prompt = self.options.pace == Pace::Prompt;
        let next_list = jvms.values().filter_map(|followed| followed.jvm.next_list()).min();
        let next_list = next_list.filter(|_| is_prompt);
        let next = next_list.into_iter().chain(self.schedule.time_left());
        let timeout = next.fold(timeout, Duration::min);
        let mut waits = std::mem::take(&mut self.early);
        let early = waits.len();
        let events = self.session.events(timeout)?;
        self.limits.begin_work();
        for event in events {
            let key = event.target();
            self.limits.switch_to(pid_of(key));
            match event {
                Event::Stack(id, raw) => self.take_stack(jvms, id, &raw)?,
                Event::Wait(event) => waits.push(*event),
                Event::Thread(thread) => {
                    let tid = u32::try_from(thread.tid).unwrap_or(0);
                    if let Some(followed) = jvms.get_mut(&key) {
                        followed.jvm.add_thread(tid);
                    }
                }
            }
        }
        let mut current = HashSet::new();
        for (number, event) in waits.into_iter().enumerate() {
            let Some(Followed { jvm, hotspot, .. }) = jvms.get_mut(&event.target) else { continue };
            self.limits.switch_to(pid_of(event.target));
            // The waits of a thread stay in their order.
            let follows = self.early.iter().any(|other| other.tid == event.tid);
            if number >= early && (follows || !self.has_stacks(jvm, &event)) {
                self.early.push(event);
                continue;
            }
            let hotspot = hotspot.as_deref().ok();
            if let Some(hotspot) = hotspot.filter(|_| current.insert(event.target)) {
                jvm.forget_unloaded(hotspot);
            }
            self.take_wait(jvm, hotspot, &event)?;
        }
        let is_release_due = self.released.elapsed() >= RELEASE_INTERVAL;
        if is_release_due {
            self.released = Instant::now();
        }
        for followed in jvms.values_mut() {
            let jvm = &mut followed.jvm;
            let pid = jvm.pid.0;
            self.limits.switch_to(pid);
            if is_release_due {
                self.release(jvm, false)?;
            }
            if jvm.next_list().is_some() && !self.limits.leaves_out_list(pid) {
                self.limits.switch_to(0);
                for (tid, java_thread) in jvm.listed_threads() {
                    session::set_java_thread(&self.session, tid, java_thread);
                }
                self.limits.charge_list(pid);
            }
        }
        self.limits.switch_to(0);
        self.limits.apply(&self.session);
        self.read_unmounted(jvms, false)
    }

    fn collect(&mut self, jvms: &mut ByKey<Jvm>) -> Result<()> {
        self.namers.release_unused(self.session.walker());
        self.open_files.release_old();
        self.take_events(jvms, Duration::ZERO)?;
        let stacks: usize = jvms.values().map(|followed| followed.jvm.stacks.len()).sum();
        let size: usize = jvms.values().map(|followed| followed.jvm.stacks_size).sum();
        if stacks + self.kernel_stacks.len() > MAX_STACKS || size > MAX_STACKS_SIZE {
            // A stack that occurs again is sent again.
            bpf::records::clear(&self.session.skel.maps.known_stacks)?;
            jvms.values_mut().for_each(|followed| followed.jvm.forget_stacks());
            self.kernel_stacks.clear();
        }
        Ok(())
    }

    fn lost(&mut self, followed: &mut Followed<Jvm>, events: u64) -> Result<()> {
        self.sink.lost(Lost::now(followed.target.pid().0, events))
    }

    fn report(&mut self, jvms: &mut ByKey<Jvm>) -> Result<()> {
        for followed in jvms.values_mut() {
            followed.report_stopped();
        }
        self.read_unmounted(jvms, true)?;
        let costs = self.session.costs().map(Costs::take).transpose()?.unwrap_or_default();
        for cost in costs {
            self.limits.charge_cost(&cost);
            self.sink.cost(cost);
        }
        self.limits.next_interval(&self.session);
        if self.options.pace == Pace::Calm {
            let lost = self.session.lost(0);
            let events = lost.saturating_sub(std::mem::replace(&mut self.lost, lost));
            if events > 0 {
                self.sink.lost(Lost::now(0, events))?;
            }
        }
        self.sink.report(clock::monotonic_ns())
    }

    fn forget(&mut self, key: u64) {
        self.namers.forget(key);
    }

    fn on_end(&mut self, _: u64, mut followed: Followed<Jvm>) -> Result<()> {
        let pid = followed.jvm.pid;
        session::remove_jvm(&self.session, pid);
        self.limits.remove(&self.session, pid.0);
        if let Some(cost) = self.session.costs().and_then(|costs| costs.take_last(pid.0.into())) {
            self.sink.cost(cost);
        }
        self.release(&mut followed.jvm, true)
    }

    fn is_closed(&self) -> bool {
        self.sink.is_closed()
    }
}

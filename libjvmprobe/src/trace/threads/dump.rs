//! Takes dumps: walks the stacks of all platform threads of a JVM, names them, and reads what each thread waits for.
//!
//! A thread that does not run has a constant stack, which is walked in user space. The thread's registers and
//! its number of context switches are read before and after the walk. If a value has changed, the thread ran
//! during the walk, and the attempt is repeated. The JVM's data about its threads is read between the same
//! two readings. A thread that runs is interrupted on its processor, and a BPF program walks its stack.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, hash_map::Entry},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    Addr, Pid, Result,
    bpf::{
        session::Attach,
        user_walker::{FrameRegisters, Registers, trail, walk},
        walker::WalkTables,
    },
    hotspot::{
        HotSpot,
        java_threads::{BlockedOn, FrameState, HeldMonitor, JavaThread, OwnedSynchronizers},
        pages::Pages,
        virtual_threads::{Container, VirtualThreads},
        walking::JvmLayout,
    },
    process::{
        blocking_call::{self, BlockingCall, blocking_call},
        memory::Memory,
        os_threads::{OsThread, os_threads},
        reader::within,
    },
    stack::{
        Frame,
        name::KernelNames,
        namer::StackNamer,
        native::Files,
        raw::{RawFrame, RawStack},
    },
    sys::{budget::Reservation, limited},
    trace::{
        live::{AT_ONCE, Live},
        threads::{
            ThreadId, VirtualThread,
            changes::Change,
            deadlocks::cycles,
            event::{Event, waiting_thread},
            limit::{self, LeftOut, Named, Ranks, Stacks, awaited_owner, select},
            session::{self, Part, Session},
        },
    },
};

/// Maximum time of reads of a JVM's memory for one dump. Threads that are not walked by then are shown as moving.
const MAX_DUMP: Duration = Duration::from_secs(10);
/// Maximum number of attempts to walk the threads that do not run.
const MAX_TRIES: u32 = 8;
/// Time within which each thread that runs is expected to be sampled at least once, also if many threads share a
/// processor. Sampling ends as soon as all of them have been sampled.
const MAX_SAMPLING: Duration = Duration::from_millis(250);

/// How a thread was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It did not run during the attempt that walked it, so its stack, state and locks belong together.
    Still,
    /// It was interrupted on its processor, and its stack was walked at that instant.
    Running,
    /// It ran during each attempt to walk it, and was not interrupted on a processor, so its stack is
    /// unknown.
    Moving,
}

/// A thread of a dump.
#[derive(Clone, Debug)]
pub struct Thread {
    /// The thread as the kernel describes it.
    pub os: OsThread,
    /// The thread as the JVM describes it; `None` for the JVM's own threads and those of native code.
    pub java: Option<JavaThread>,
    /// Frames, innermost first. Threads with equal stacks share them.
    pub frames: Arc<[Frame]>,
    /// Monitors that it holds. Those of the innermost frame come first. Among the monitors of one frame, the
    /// one that was entered last comes first. The monitors of a thread that runs are not known.
    pub held: Vec<HeldMonitor>,
    /// The system call in which it waits for input or output. It is read only for threads that own a lock for which
    /// another thread waits.
    pub call: Option<BlockingCall>,
    /// How it was found.
    pub activity: Activity,
    /// Index of its container in [`Dump::containers`].
    pub container: usize,
    /// Its activity since the previous dump; `None` if the dump was not compared with a previous one, or if that one
    /// does not have the thread.
    pub change: Option<Change>,
}

impl Thread {
    /// Makes a thread whose stack is not known.
    pub(super) fn new(os: OsThread, java: Option<JavaThread>) -> Self {
        Self {
            os,
            java,
            frames: Arc::default(),
            held: Vec::new(),
            call: None,
            activity: Activity::Moving,
            container: 0,
            change: None,
        }
    }

    /// Returns the thread's name: the complete one if the JVM has it, otherwise the one that the kernel has.
    pub fn name(&self) -> &str {
        self.java.as_ref().and_then(|java| java.name.as_deref()).unwrap_or(&self.os.name)
    }

    /// Returns the object that it waits for.
    pub fn blocked_on(&self) -> Option<&BlockedOn> {
        self.java.as_ref()?.blocked_on.as_ref()
    }

    /// Returns the number of the virtual thread that is mounted on it.
    pub fn carried(&self) -> Option<u64> {
        self.java.as_ref()?.mounted
    }
}

/// A dump of a JVM.
#[derive(Debug)]
pub struct Dump {
    /// PID of the JVM; 0 if a core file does not contain it.
    pub pid: Pid,
    /// Name and version of the JVM.
    pub version: String,
    /// The platform threads: the Java threads in the JVM's order, then the others by thread ID.
    pub threads: Vec<Thread>,
    /// Numbers of platform threads that are not in the dump.
    pub left_out: LeftOut,
    /// The virtual threads, by container and number.
    pub virtual_threads: Vec<VirtualThread>,
    /// The thread containers. The first one is the root.
    pub containers: Vec<Container>,
    /// Why virtual threads or containers are missing.
    pub missing: Option<String>,
    /// Deadlocks. Each thread waits for a lock that the next one owns, and the last one for a lock of the first.
    ///
    /// A deadlock without virtual threads is reported only if there was one attempt during which none of its threads
    /// ran. During this attempt, each thread therefore waited for its lock and held the lock that the previous thread
    /// waited for. A deadlock with a virtual thread is reported only if a second read of all its members agrees with
    /// the first one, and if none of its platform threads and carriers has run during the second read.
    pub deadlocks: Vec<Vec<ThreadId>>,
    /// The ownable synchronizers that the threads own; `None` if the heap was not searched for them.
    pub synchronizers: Option<OwnedSynchronizers>,
    /// Memory that is reserved for the dump.
    pub(super) memory: Reservation,
}

impl Dump {
    /// Makes a dump without virtual threads, and counts the threads that are left out.
    pub(super) fn new(
        pid: Pid,
        hotspot: &HotSpot,
        threads: Vec<Thread>,
        left_out: LeftOut,
        memory: Reservation,
    ) -> Self {
        limited::add("threads", memory.tenant(), left_out.all());
        Self {
            left_out,
            memory,
            pid,
            version: hotspot.version.clone(),
            threads,
            virtual_threads: Vec::new(),
            containers: VirtualThreads::default().containers,
            missing: None,
            deadlocks: Vec::new(),
            synchronizers: None,
        }
    }

    /// Searches the heap of the JVM for the ownable synchronizers that the threads own.
    pub fn search_synchronizers(&mut self, hotspot: &HotSpot) {
        let found = hotspot.owned_synchronizers();
        self.synchronizers = Some(found.unwrap_or_else(|error| OwnedSynchronizers {
            incomplete: Some(error.to_string()),
            ..OwnedSynchronizers::default()
        }));
    }
}

/// Takes dumps of JVMs.
pub struct Dumper {
    /// Reports the threads that do not run.
    waiting: Session,
    /// Walks the stacks of threads that run; loaded when the first such thread is found.
    running: Option<Session>,
    with_kernel: bool,
    max_threads: usize,
    pub(super) max_virtual_threads: usize,
    tables: WalkTables,
    files: Files,
    kernel: KernelNames,
    jvms: HashMap<Pid, Jvm>,
}

/// Data for walking and naming the stacks of a JVM.
struct Jvm {
    namer: StackNamer,
    layout: JvmLayout,
}

/// The stacks of a thread before they are named.
#[derive(Clone, Debug)]
pub(super) struct Walked {
    pub(super) user: RawStack,
    /// Registers of each frame; empty if the thread was interrupted while it ran.
    pub(super) registers: Vec<FrameRegisters>,
    /// Monitors that the thread holds, by frames of `user`.
    pub(super) held: Vec<HeldMonitor>,
    /// ID of the kernel stack; 0 for none.
    kernel: u64,
    pub(super) activity: Activity,
    /// Number of the last attempt during which the thread did not run. Threads with the same number have data of the same
    /// time.
    attempt: u32,
}

/// The walked threads, and the JVM's data about each Java thread by its thread ID in the JVM's PID namespace.
#[derive(Default)]
struct Attempts {
    walked: BTreeMap<u32, Walked>,
    java: HashMap<u32, JavaThread>,
    /// State of each thread when its stack was walked.
    seen: HashMap<u32, waiting_thread>,
    /// Thread IDs in the order of the JVM's list.
    order: Vec<u32>,
    /// Threads for whose stacks no memory could be reserved.
    left_out: HashSet<u32>,
    /// For each thread of the deadlocks that were found in any attempt, the thread that it waits for, both by the
    /// addresses of their JavaThreads. A deadlock does not end.
    deadlocks: BTreeMap<Addr, Addr>,
}

impl Dumper {
    /// Loads the BPF side. `with_kernel` includes the kernel's frames. A dump has at most `max_threads` platform threads,
    /// the most important ones, and at most `max_virtual_threads` virtual threads.
    ///
    /// # Errors
    /// [`crate::Error::Permission`] or [`crate::Error::Kernel`] if the kernel rejects it.
    pub fn new(with_kernel: bool, max_threads: usize, max_virtual_threads: usize) -> Result<Self> {
        Ok(Self {
            waiting: session::load(Part::Waiting, with_kernel)?,
            running: None,
            with_kernel,
            max_threads,
            max_virtual_threads,
            tables: WalkTables::default(),
            files: Files::default(),
            kernel: KernelNames::default(),
            jvms: HashMap::new(),
        })
    }

    /// Takes a dump of a JVM.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] if the JVM's threads cannot be read, [`crate::Error::Bpf`], [`crate::Error::Io`].
    pub fn dump(&mut self, pid: Pid, hotspot: &HotSpot) -> Result<Dump> {
        let mut dump = within(MAX_DUMP, || self.platform_threads(pid, hotspot))?;
        self.add_virtual_threads(hotspot, &mut dump);
        dump.deadlocks.sort();
        Ok(dump)
    }

    /// Releases the data of all JVMs if one of them is not selected any more. Also releases the data of files
    /// that no JVM has used for some seconds. A caller that runs for a long time must call this regularly.
    pub fn retain(&mut self, is_selected: impl Fn(Pid) -> bool) {
        let mut walker = self.running.as_mut().and_then(Session::walker);
        if !self.jvms.keys().all(|&pid| is_selected(pid)) {
            for (pid, _) in self.jvms.drain() {
                if let Some(walker) = &mut walker {
                    walker.forget(pid.0.into());
                }
            }
            self.tables = WalkTables::default();
        }
        self.files.release_unused(walker);
    }

    fn platform_threads(&mut self, pid: Pid, hotspot: &HotSpot) -> Result<Dump> {
        self.add(pid, hotspot)?;
        let mut threads = os_threads(pid)?;
        let memory = Memory::open(pid)?;
        let mut space = Reservation::within(&memory.share());
        let mut left_out = select(&mut threads, self.max_threads, &mut space, || {
            let java = hotspot.java_threads_uncounted()?;
            let ranks = Ranks::of(java.iter());
            let by_tid = java.iter().filter_map(|java| Some((java.tid?, java.address)));
            let by_tid: HashMap<_, _> = by_tid.collect();
            Ok(move |os: &OsThread| ranks.get(by_tid.get(&os.namespace_tid).copied()))
        })?;
        let ids = threads.iter().map(|thread| (thread.tid, thread.namespace_tid)).collect();
        let mut attempts = self.walk_waiting(pid, hotspot, &ids, &memory, &mut space)?;
        let mut sent = HashMap::new();
        let running: Vec<_> = (ids.keys().copied())
            .filter(|tid| !attempts.walked.contains_key(tid) && !attempts.left_out.contains(tid))
            .collect();
        let walked = &mut attempts.walked;
        if let Err(error) = self.sample_running(pid, &running, walked, &mut sent, &mut space) {
            log::warn!(
                "process {pid}: cannot sample the threads that run, so they are shown without stacks: {error}"
            );
        }
        // These events contain the kernel stacks of the threads that do not run.
        for event in self.waiting.events(Duration::ZERO)? {
            if let Event::Stack(id, stack) = event {
                sent.insert(id, stack);
            }
        }
        let (mut stacks, all) = (Stacks::default(), threads.len());
        threads.retain(|thread| !attempts.left_out.contains(&thread.tid));
        let mut threads: Vec<_> = threads
            .into_iter()
            .filter_map(|os| {
                self.thread(pid, hotspot, os, &mut attempts, &sent, (&mut stacks, &mut space))
            })
            .collect();
        drop(stacks);
        left_out.memory += (all - threads.len()) as u64;
        let order: HashMap<_, _> =
            attempts.order.iter().enumerate().map(|(at, &tid)| (tid, at)).collect();
        let position =
            |thread: &Thread| order.get(&thread.os.namespace_tid).copied().unwrap_or(usize::MAX);
        threads.sort_by_cached_key(|thread| (position(thread), thread.os.tid));
        let mut dump = Dump::new(pid, hotspot, threads, left_out, space);
        dump.deadlocks = cycles(&attempts.deadlocks)
            .into_iter()
            .map(|cycle| cycle.into_iter().map(ThreadId::Platform).collect())
            .collect();
        let threads = &mut dump.threads;
        let java = threads.iter().filter_map(|thread| thread.java.as_ref());
        let owners: BTreeSet<_> = java.filter_map(awaited_owner).collect();
        let is_owner = |thread: &&mut Thread| {
            thread.java.as_ref().is_some_and(|java| owners.contains(&java.address))
        };
        let mut open_files = blocking_call::Files::default();
        for owner in threads.iter_mut().filter(is_owner) {
            owner.call = blocking_call(pid, owner.os.tid, &memory, &mut open_files);
        }
        Ok(dump)
    }

    /// Names the frames of a stack, outermost first.
    pub(super) fn name(&mut self, pid: Pid, hotspot: &HotSpot, raw: &RawStack) -> Vec<Frame> {
        let Some(jvm) = self.jvms.get_mut(&pid) else { return Vec::new() };
        jvm.namer.name_without_walker(hotspot, &mut self.files, raw).frames
    }

    fn thread(
        &mut self,
        pid: Pid,
        hotspot: &HotSpot,
        os: OsThread,
        attempts: &mut Attempts,
        sent: &HashMap<u64, RawStack>,
        (stacks, space): (&mut Stacks, &mut Reservation),
    ) -> Option<Thread> {
        let java = attempts.java.remove(&os.namespace_tid);
        let mut thread = Thread::new(os, java);
        let Some(walked) = attempts.walked.remove(&thread.os.tid) else { return Some(thread) };
        let Walked { user, held, kernel, activity, .. } = walked;
        let jvm = self.jvms.get_mut(&pid)?;
        let (kernel_names, files) = (&mut self.kernel, &mut self.files);
        let named = limit::named(stacks, space, (kernel, user), |user| {
            let of_kernel = sent.get(&kernel).map(|stack| kernel_names.stack(stack.addresses()));
            name_stack(&mut jvm.namer, hotspot, files, of_kernel.unwrap_or_default(), user)
        })?;
        thread.set_stack(named, held, activity);
        Some(thread)
    }

    /// Prepares the walk of a JVM's stacks, with its current layout and mappings.
    fn add(&mut self, pid: Pid, hotspot: &HotSpot) -> Result<()> {
        session::begin_dump(&self.waiting, pid)?;
        let layout = hotspot.walking()?;
        let jvm = match self.jvms.entry(pid) {
            Entry::Occupied(jvm) => {
                let jvm = jvm.into_mut();
                jvm.layout = layout;
                if !jvm.namer.refresh_mappings(&mut self.files) {
                    return Ok(());
                }
                jvm
            }
            Entry::Vacant(vacant) => {
                let namer = StackNamer::without_walker(pid, hotspot, &mut self.files, false)?;
                let namer = namer.with_origins(hotspot);
                vacant.insert(Jvm { namer, layout })
            }
        };
        self.tables.set_mappings(pid.0.into(), jvm.namer.mappings());
        Ok(())
    }

    /// Walks the threads that do not run, and reads the JVM's data about its threads. `ids` are the thread
    /// IDs in the JVM's PID namespace, by the thread IDs in the PID namespace of this process. Memory for the stacks is
    /// reserved in `space`.
    fn walk_waiting(
        &mut self,
        pid: Pid,
        hotspot: &HotSpot,
        ids: &HashMap<u32, u32>,
        memory: &Memory,
        space: &mut Reservation,
    ) -> Result<Attempts> {
        let mut attempts = Attempts::default();
        let mut ranks = Ranks::default();
        let selected: HashSet<_> = ids.values().copied().collect();
        let mut before = self.waiting_threads(pid, ids)?;
        let mut has_open_java_thread = true;
        for attempt in 0..MAX_TRIES {
            let mut java = Vec::new();
            if has_open_java_thread {
                java = match attempt {
                    0 => hotspot.java_threads()?,
                    _ => hotspot.java_threads_uncounted()?,
                };
                ranks = Ranks::of(java.iter());
                java.retain(|thread| thread.tid.is_some_and(|tid| selected.contains(&tid)));
                attempts.order = java.iter().filter_map(|thread| thread.tid).collect();
            }
            let mut java: HashMap<_, _> =
                java.into_iter().filter_map(|thread| Some((thread.tid?, thread))).collect();
            let address = |tid: u32| Some(java.get(ids.get(&tid)?)?.address);
            // A thread that waits for a lock is walked again if it has run since it was walked.
            let is_new = |thread: &&waiting_thread| match attempts.walked.get(&thread.tid) {
                None => !attempts.left_out.contains(&thread.tid),
                Some(walked) if walked.attempt + 1 == attempt => false,
                Some(_) => {
                    let java = ids.get(&thread.tid).and_then(|id| attempts.java.get(id));
                    java.is_some_and(|java| awaited_owner(java).is_some())
                }
            };
            let new = before.values().filter(is_new);
            let mut new: Vec<_> = new.map(|thread| (*thread, address(thread.tid))).collect();
            new.sort_by_key(|&(_, java)| ranks.get(java));
            let mut tried = self.walk(pid, hotspot, memory, &new, space, &mut attempts.left_out);
            let still =
                attempts.walked.iter_mut().filter(|(_, walked)| walked.attempt + 1 == attempt);
            let all = still.chain(tried.iter_mut().map(|(tid, walked)| (&*tid, walked)));
            read_held(hotspot, all.filter_map(|(tid, walked)| Some((address(*tid)?, walked))));
            let after = self.waiting_threads(pid, ids)?;
            for (tid, walked) in tried {
                if let (Some(first), Some(now)) = (before.get(&tid), after.get(&tid))
                    && is_same(first, now)
                {
                    attempts.walked.insert(tid, walked);
                    attempts.seen.insert(tid, *first);
                }
            }
            // All threads that have not run since they were walked, in this attempt or an earlier one, get
            // the JVM's data of this attempt. So the data of all these threads is of the same time.
            let seen = &attempts.seen;
            attempts.walked.retain(|tid, walked| {
                let is_still = match (seen.get(tid), after.get(tid)) {
                    (Some(seen), Some(now)) => is_same(seen, now),
                    _ => false,
                };
                if is_still {
                    walked.attempt = attempt;
                    attempts.java.extend(ids.get(tid).and_then(|id| java.remove_entry(id)));
                }
                // A stack that was walked in an earlier attempt stays valid for that attempt, even if the
                // thread has run since then.
                is_still || walked.attempt < attempt
            });
            for (id, thread) in java {
                attempts.java.entry(id).or_insert(thread);
            }
            let current = attempts.walked.iter().filter(|(_, walked)| walked.attempt == attempt);
            let java = current.filter_map(|(tid, _)| attempts.java.get(ids.get(tid)?));
            let waits = java.filter_map(|java| Some((java.address, awaited_owner(java)?)));
            let waits: BTreeMap<_, _> = waits.collect();
            let is_dead: BTreeSet<_> = cycles(&waits).into_iter().flatten().collect();
            let dead = waits.into_iter().filter(|(waiting, _)| is_dead.contains(waiting));
            attempts.deadlocks.extend(dead);
            // A thread that waits for a lock may wake up for a short time to check the lock. If it did so
            // during this attempt, a further attempt may find that it is part of a deadlock.
            let is_done = |tid: &u32| {
                if attempts.left_out.contains(tid) {
                    return true;
                }
                let Some(walked) = attempts.walked.get(tid) else { return false };
                let java = ids.get(tid).and_then(|id| attempts.java.get(id));
                let waiting = java.filter(|java| awaited_owner(java).is_some());
                walked.attempt == attempt
                    || waiting.is_none_or(|java| attempts.deadlocks.contains_key(&java.address))
            };
            let open = after.keys().chain(attempts.walked.keys()).filter(|tid| !is_done(tid));
            let mut open = open.peekable();
            if open.peek().is_none() {
                break;
            }
            // The JVM's own threads often wake up. To walk only these again, the JVM's data is not needed.
            let is_java = |tid| ids.get(tid).is_none_or(|id| attempts.java.contains_key(id));
            has_open_java_thread = open.any(is_java);
            before = after;
        }
        Ok(attempts)
    }

    /// Walks threads, each given with the address of its JavaThread if it has one. Adds those to `left_out` for whose
    /// stacks no memory can be reserved in `space`.
    fn walk(
        &mut self,
        pid: Pid,
        hotspot: &HotSpot,
        memory: &Memory,
        threads: &[(waiting_thread, Option<Addr>)],
        space: &mut Reservation,
        left_out: &mut HashSet<u32>,
    ) -> Vec<(u32, Walked)> {
        let Some(layout) = self.jvms.get(&pid).map(|jvm| jvm.layout) else { return Vec::new() };
        let Some(walk_data) = self.tables.walk_data(pid.0.into()) else { return Vec::new() };
        let mut pages = Pages::scattered(memory);
        let mut walk = |live: &mut Live<'_, '_>,
                        (thread, java): &(waiting_thread, Option<Addr>)| {
            let mut walked = live.walk(thread);
            if let Some(java) = java.filter(|_| !has_java_frames(&walked.user)) {
                live.walk_java_frames(pid.0.into(), hotspot, java, &mut walked);
            }
            (thread.tid, walked)
        };
        let mut walked = Vec::new();
        for some in threads.chunks(AT_ONCE) {
            let sp = |(thread, _): &(waiting_thread, _)| thread.sp;
            let stacks = Live::walk_all(&mut pages, &layout, &walk_data, some, sp, &mut walk);
            for (tid, stack) in stacks {
                match limit::reserve_raw(space, &stack.user) {
                    true => walked.push((tid, stack)),
                    false => _ = left_out.insert(tid),
                }
            }
        }
        walked
    }

    /// Returns those of some threads that do not run. `ids` has the threads, see [`Self::walk_waiting`].
    fn waiting_threads(
        &self,
        pid: Pid,
        ids: &HashMap<u32, u32>,
    ) -> Result<BTreeMap<u32, waiting_thread>> {
        let threads = session::waiting_threads(&self.waiting)?;
        let own = threads.into_iter();
        let own = own.filter(|thread| thread.tgid == pid.0 && ids.contains_key(&thread.tid));
        Ok(own.map(|thread| (thread.tid, thread)).collect())
    }

    /// Samples the threads `running`, which are not in `walked`, because they ran during each attempt. Adds them to
    /// `walked`. The kernel side sends stacks, which are added to `sent` if memory can be reserved for them.
    fn sample_running(
        &mut self,
        pid: Pid,
        running: &[u32],
        walked: &mut BTreeMap<u32, Walked>,
        sent: &mut HashMap<u64, RawStack>,
        space: &mut Reservation,
    ) -> Result<()> {
        if running.is_empty() {
            return Ok(());
        }
        let session = match &mut self.running {
            Some(session) => session,
            none => none.insert(session::load(Part::Running, self.with_kernel)?),
        };
        session::begin_dump(session, pid)?;
        if let (Some(walker), Some(jvm)) = (session.walker(), self.jvms.get_mut(&pid)) {
            jvm.namer.set_walker(pid.0.into(), &jvm.layout, walker)?;
        }
        session.flush();
        let links = session::sample_running(session)?;
        let end = Instant::now() + MAX_SAMPLING;
        while Instant::now() < end && running.iter().any(|tid| !walked.contains_key(tid)) {
            for event in session.events(Duration::from_millis(2))? {
                match event {
                    Event::Stack(id, stack) => {
                        if limit::reserve_raw(space, &stack) {
                            sent.insert(id, stack);
                        }
                    }
                    Event::Running(thread)
                        if thread.tgid == pid.0 && running.contains(&thread.tid) =>
                    {
                        // The kernel side sent the stack before this event, which refers to it.
                        if let Some(user) = sent.get(&thread.user) {
                            let (user, kernel) = (user.clone(), thread.kernel);
                            let activity = Activity::Running;
                            let (registers, held) = (Vec::new(), Vec::new());
                            let walk =
                                || Walked { user, registers, held, kernel, activity, attempt: 0 };
                            walked.entry(thread.tid).or_insert_with(walk);
                        }
                    }
                    Event::Running(_) => {}
                }
            }
        }
        drop(links);
        Ok(())
    }
}

/// Returns whether a stack contains a Java frame.
pub(super) fn has_java_frames(stack: &RawStack) -> bool {
    let is_java = |frame: &RawFrame| match frame {
        RawFrame::Code { compile_id, .. } => *compile_id != 0,
        RawFrame::Interpreted { .. } => true,
    };
    stack.frames.iter().any(is_java)
}

/// Returns whether a thread has not run between two readings of its registers and context switches.
fn is_same(before: &waiting_thread, after: &waiting_thread) -> bool {
    let registers = |thread: &waiting_thread| (thread.ip, thread.sp, thread.fp, thread.others);
    before.switches == after.switches && registers(before) == registers(after)
}

impl Live<'_, '_> {
    fn walk(&mut self, thread: &waiting_thread) -> Walked {
        let start = Registers::new([thread.ip, thread.sp, thread.fp], thread.others);
        Walked { kernel: thread.kernel, ..self.walk_still(thread.tgid.into(), &start) }
    }

    /// Walks the stack of a thread that does not run. `key` is the key of its process.
    pub(super) fn walk_still(&mut self, key: u64, start: &Registers) -> Walked {
        let (user, registers) = self.walk_from(key, start);
        let (held, activity) = (Vec::new(), Activity::Still);
        Walked { user, registers, held, kernel: 0, activity, attempt: u32::MAX }
    }

    /// Continues a stack with its Java frames, from the innermost Java frame that the JVM has recorded for
    /// the thread. The caller does this if the walk of the native frames did not reach a Java frame, for
    /// example because a native file has no unwind table.
    pub(super) fn walk_java_frames(
        &mut self,
        key: u64,
        hotspot: &HotSpot,
        java: Addr,
        walked: &mut Walked,
    ) {
        let Ok(Some(frame)) = hotspot.last_java_frame(self.pages, java) else { return };
        let start =
            Registers { ip: frame.pc.0, sp: frame.sp.0, fp: frame.fp.0, ..Registers::default() };
        let (user, registers) = self.walk_from(key, &start);
        walked.user.frames.extend(user.frames);
        walked.registers.extend(registers);
    }

    fn walk_from(&mut self, key: u64, start: &Registers) -> (RawStack, Vec<FrameRegisters>) {
        let (_, stack) = walk(self, key, start);
        let stack = RawStack::of(key, stack.unloads, stack.frames.iter().copied());
        (stack, trail(self, start))
    }
}

/// Reads the monitors that threads hold. Each thread is given by the address of its JavaThread.
pub(super) fn read_held<'a>(
    hotspot: &HotSpot,
    threads: impl Iterator<Item = (Addr, &'a mut Walked)>,
) {
    let mut threads: Vec<_> = threads.collect();
    let stacks: Vec<_> =
        threads.iter().map(|(java, walked)| (*java, frame_states(walked))).collect();
    match hotspot.held_monitors(&stacks) {
        Ok(held) => {
            for ((_, walked), held) in threads.iter_mut().zip(held) {
                walked.held = held;
            }
        }
        Err(error) => log::debug!("cannot read the monitors that threads hold: {error}"),
    }
}

/// Names the frames of a stack, and appends them to the frames of the kernel.
pub(super) fn name_stack(
    namer: &mut StackNamer,
    hotspot: &HotSpot,
    files: &mut Files,
    mut frames: Vec<Frame>,
    user: &RawStack,
) -> Named {
    let named = namer.name_without_walker(hotspot, files, user);
    let before = frames.len();
    frames.extend(named.frames.into_iter().rev());
    let begins = named.begins.into_iter().map(|begin| before + begin).collect();
    Named { frames: frames.into(), begins }
}

impl Thread {
    /// Sets its stack, the monitors that it holds, and its activity.
    pub(super) fn set_stack(&mut self, stack: Named, held: Vec<HeldMonitor>, activity: Activity) {
        let monitor = |monitor: HeldMonitor| {
            let frame = stack.begins.get(monitor.frame)? + monitor.depth;
            Some(HeldMonitor { frame, depth: 0, ..monitor })
        };
        self.held = held.into_iter().filter_map(monitor).collect();
        self.frames = stack.frames;
        self.activity = activity;
    }
}

/// Returns the states of a thread's frames. Only compiled and interpreted frames can have entered monitors.
fn frame_states(walked: &Walked) -> Vec<FrameState> {
    let frames = walked.user.frames.iter().zip(&walked.registers);
    let state = |(frame, registers): (&RawFrame, &FrameRegisters)| match *frame {
        RawFrame::Code { compile_id: 0, .. } => FrameState::Other,
        RawFrame::Code { addr, .. } => {
            FrameState::Compiled { pc: addr, sp: Addr(registers.sp), fp: registers.fp }
        }
        RawFrame::Interpreted { .. } => FrameState::Interpreted(Addr(registers.fp)),
    };
    frames.map(state).collect()
}

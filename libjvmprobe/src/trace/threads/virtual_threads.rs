//! Virtual threads of a dump: names their stacks, and takes the frames of mounted ones from their carriers.
//!
//! Virtual threads are read after the platform threads. The frames of a mounted virtual thread are therefore used only if
//! it was mounted on the same carrier both when the carrier's stack was walked and when the virtual thread was read.

use std::{collections::HashMap, sync::Arc, time::Duration};

use crate::{
    Addr, Pid, Result,
    hotspot::{
        HotSpot,
        java_threads::{BlockKind, BlockedOn, HeldMonitor, JavaThread, Owner, ThreadStatus},
        virtual_threads::{self, ChunkFrame, Container, VirtualThreads},
    },
    process::os_threads::os_threads,
    stack::{
        Frame,
        raw::{RawFrame, RawStack},
    },
    trace::threads::{Activity, Dump, Dumper, Thread, deadlocks::cycles, dump::positions},
};

/// The method through which a carrier enters a continuation. The frames of its direct and indirect callees
/// belong to the virtual thread.
const ENTRY: &str = "jdk.internal.vm.Continuation.enterSpecial";
/// The outermost method of a continuation.
const OUTERMOST: &str = "jdk.internal.vm.Continuation.enter";
/// Maximum number of times that all threads are read again to confirm deadlocks.
const MAX_CONFIRMATIONS: usize = 8;
/// Maximum number of frames of all distinct stacks together.
const MAX_FRAMES: usize = 4 << 20;

/// A virtual thread of a dump.
#[derive(Clone, Debug)]
pub struct VirtualThread {
    /// The thread as the JDK describes it.
    pub java: virtual_threads::VirtualThread,
    /// Frames, innermost first. Threads with equal stacks share them.
    pub frames: Arc<[Frame]>,
    /// Monitors that it holds, with the frames that have entered them. Empty for a thread that is not
    /// mounted, because its monitors are not read.
    pub held: Vec<HeldMonitor>,
    /// Position of its carrier in the platform threads, if it is mounted.
    pub carrier: Option<usize>,
    /// Its status as Java code sees it.
    pub status: ThreadStatus,
    /// How it was found. A thread that is not mounted does not run, so it is [`Activity::Still`] unless it
    /// changed during each read.
    pub activity: Activity,
}

/// The virtual threads of a dump.
#[derive(Clone, Debug, Default)]
pub struct VirtualDump {
    /// The thread containers. The first one is the root.
    pub containers: Vec<Container>,
    /// The virtual threads, by container and number.
    pub threads: Vec<VirtualThread>,
    /// Index of the container of each platform thread that is in a container other than the root, by the
    /// position of the thread.
    pub platform: HashMap<usize, usize>,
    /// Whether threads may be missing.
    pub is_incomplete: bool,
}

/// A member of a deadlock: a position in the platform threads or in the virtual threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Member {
    /// A platform thread.
    Platform(usize),
    /// A virtual thread.
    Virtual(usize),
}

impl Dumper {
    /// Returns the virtual threads of a JVM whose platform threads were dumped just before. Removes the frames of
    /// mounted virtual threads from their carriers' stacks.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] if the JVM's virtual threads cannot be read, [`crate::Error::Memory`].
    pub fn virtual_threads(
        &mut self,
        pid: Pid,
        hotspot: &HotSpot,
        threads: &mut [Thread],
    ) -> Result<VirtualDump> {
        let unloads = hotspot.classes_unloaded().unwrap_or(0);
        let VirtualThreads { containers, threads: read, platform, holders, is_incomplete } =
            hotspot.virtual_threads()?;
        // The read of the platform threads does not find an owner that is a virtual thread without a carrier.
        // `holders` contains such owners.
        for thread in threads.iter_mut() {
            let on = thread.java.as_mut().and_then(|java| java.blocked_on.as_mut());
            if let Some(on) =
                on.filter(|on| on.owner == Owner::Unknown && on.kind != BlockKind::Park)
                && let Some(owner) = holders.get(&on.object)
            {
                on.owner = owner.clone();
            }
        }
        let positions = positions(threads);
        let mut mounted = split_carriers(threads);
        let mut stacks: HashMap<Arc<[ChunkFrame]>, Arc<[Frame]>> = HashMap::new();
        let (mut named, mut is_incomplete) = (0, is_incomplete);
        let mut found = Vec::with_capacity(read.len());
        for mut java in read {
            let in_heap = match stacks.get(&java.frames) {
                Some(frames) => Arc::clone(frames),
                None if named > MAX_FRAMES => {
                    is_incomplete = true;
                    Arc::default()
                }
                None => {
                    let raw = raw_stack(pid, unloads, &java.frames);
                    let frames: Arc<[Frame]> = self.name(pid, hotspot, &raw).into();
                    named += frames.len() + 1;
                    stacks.insert(Arc::clone(&java.frames), Arc::clone(&frames));
                    frames
                }
            };
            let carrier = java.carrier.and_then(|carrier| positions.get(&carrier).copied());
            let (frames, held, activity) = match carrier {
                None if java.is_moving => (in_heap, Vec::new(), Activity::Moving),
                None => (in_heap, Vec::new(), Activity::Still),
                Some(carrier) => match mounted.remove(&(carrier, java.number)) {
                    Some(Mounted { frames, held, activity }) => {
                        (joined(frames, &in_heap), held, activity)
                    }
                    None => (Arc::default(), Vec::new(), Activity::Moving),
                },
            };
            let of_carrier = carrier.and_then(|at| threads.get_mut(at)?.java.as_mut());
            let status = java.state.status().or(of_carrier.as_ref().and_then(|java| java.status));
            if java.blocked_on.is_none() && activity == Activity::Still {
                // The JavaThread of the carrier contains the monitor that the virtual thread waits for.
                java.blocked_on = of_carrier.and_then(|carrier| carrier.blocked_on.take());
            }
            let status = status.unwrap_or(ThreadStatus::Runnable);
            found.push(VirtualThread { java, frames, held, carrier, status, activity });
        }
        let platform = platform
            .into_iter()
            .filter_map(|(address, container)| Some((*positions.get(&address)?, container)))
            .collect();
        Ok(VirtualDump { containers, threads: found, platform, is_incomplete })
    }

    /// Returns the deadlocks of a dump, of platform threads and of virtual threads. A deadlock that has a
    /// virtual thread is returned only if a second read of all its members agrees with the first one, and if
    /// none of its platform threads and carriers has run during the second read.
    pub fn all_deadlocks(
        &self,
        pid: Pid,
        hotspot: &HotSpot,
        Dump { threads, deadlocks, .. }: &Dump,
        found: &VirtualDump,
    ) -> Vec<Vec<Member>> {
        let carries = |at: &usize| threads.get(*at).is_some_and(|thread| carried(thread).is_some());
        let platform = deadlocks.iter().filter(|cycle| !cycle.iter().any(carries));
        let mut all: Vec<_> = platform.map(|cycle| members(cycle)).collect();
        let mut open = mixed_cycles(threads, &found.threads);
        // A thread that waits for a monitor may wake up at times to try to enter it. The second read is then
        // repeated.
        for _ in 0..MAX_CONFIRMATIONS {
            if open.is_empty() {
                break;
            }
            let Ok(again) = Again::read(pid, hotspot) else { break };
            let (confirmed, unconfirmed): (Vec<_>, Vec<_>) = open
                .into_iter()
                .partition(|cycle| cycle.iter().all(|&at| again.confirms(threads, found, at)));
            all.extend(confirmed);
            open = unconfirmed;
        }
        all
    }
}

impl Dump {
    /// Returns its deadlocks in the form of [`Dumper::all_deadlocks`], without virtual threads.
    pub fn platform_deadlocks(&self) -> Vec<Vec<Member>> {
        self.deadlocks.iter().map(|cycle| members(cycle)).collect()
    }
}

fn members(cycle: &[usize]) -> Vec<Member> {
    cycle.iter().copied().map(Member::Platform).collect()
}

/// Returns the number of the virtual thread that is mounted on a platform thread.
pub fn carried(thread: &Thread) -> Option<u64> {
    thread.java.as_ref()?.mounted
}

/// The part of a carrier's stack that belongs to the mounted virtual thread.
struct Mounted {
    frames: Vec<Frame>,
    held: Vec<HeldMonitor>,
    activity: Activity,
}

/// Removes the frames of virtual threads from the stacks of their carriers. Returns them by the position of the carrier
/// and the number of the virtual thread.
fn split_carriers(threads: &mut [Thread]) -> HashMap<(usize, u64), Mounted> {
    let mut mounted = HashMap::new();
    for (at, thread) in threads.iter_mut().enumerate() {
        let Some(number) = carried(thread) else { continue };
        let Some(entry) = thread.frames.iter().position(|frame| &*frame.name == ENTRY) else {
            continue;
        };
        let mut frames: Vec<_> = thread.frames.drain(..=entry).collect();
        frames.pop();
        let (held, mut of_carrier): (Vec<_>, Vec<_>) =
            std::mem::take(&mut thread.held).into_iter().partition(|held| held.frame < entry);
        for monitor in &mut of_carrier {
            monitor.frame = monitor.frame.saturating_sub(entry + 1);
        }
        thread.held = of_carrier;
        mounted.insert((at, number), Mounted { frames, held, activity: thread.activity });
    }
    mounted
}

/// Returns the frames of a mounted thread: those on the carrier's stack and, if these are not all, those in the heap.
fn joined(mut frames: Vec<Frame>, in_heap: &[Frame]) -> Arc<[Frame]> {
    if frames.last().is_none_or(|frame| &*frame.name != OUTERMOST) {
        frames.extend_from_slice(in_heap);
    }
    frames.into()
}

fn raw_stack(pid: Pid, unloads: u64, frames: &[ChunkFrame]) -> RawStack {
    let raw = |(index, frame): (usize, &ChunkFrame)| match *frame {
        // The innermost address of a raw stack must lie in the current instruction, and the others are return
        // addresses. In the heap, the innermost address is a return address, too. The byte before it belongs
        // to the call.
        ChunkFrame::Code { addr, compile_id } => {
            RawFrame::Code { addr: Addr(addr.0.saturating_sub(u64::from(index == 0))), compile_id }
        }
        ChunkFrame::Interpreted { method, bci } => RawFrame::Interpreted { method, bci },
    };
    let frames = frames.iter().enumerate().map(raw).collect();
    RawStack { target: pid.0.into(), unloads, frames }
}

/// Returns the lock that a thread waits for.
fn lock(on: Option<&BlockedOn>) -> Option<&BlockedOn> {
    on.filter(|on| on.kind != BlockKind::Wait)
}

/// Returns the object that a member waits for.
pub fn blocked_on<'a>(
    member: Member,
    threads: &'a [Thread],
    found: &'a [VirtualThread],
) -> Option<&'a BlockedOn> {
    match member {
        Member::Platform(at) => threads.get(at)?.java.as_ref()?.blocked_on.as_ref(),
        Member::Virtual(at) => found.get(at)?.java.blocked_on.as_ref(),
    }
}

/// Returns the cycles of threads that wait for locks of each other. Leaves out cycles without a virtual thread.
fn mixed_cycles(threads: &[Thread], found: &[VirtualThread]) -> Vec<Vec<Member>> {
    let virtual_by_number: HashMap<_, _> = (found.iter().enumerate())
        .map(|(at, thread)| (thread.java.number, Member::Virtual(at)))
        .collect();
    let platform: HashMap<_, _> = (threads.iter().enumerate())
        .filter_map(|(at, thread)| Some((thread.java.as_ref()?.address, (at, carried(thread)))))
        .collect();
    let owner = |member: Member| -> Option<Member> {
        match &lock(blocked_on(member, threads, found))?.owner {
            // A carrier owns monitors for the virtual thread that is mounted on it.
            Owner::Thread(address) => match platform.get(address)? {
                (_, Some(number)) => virtual_by_number.get(number).copied(),
                (at, None) => Some(Member::Platform(*at)),
            },
            Owner::VirtualThread { number, .. } => virtual_by_number.get(number).copied(),
            Owner::None | Owner::Unknown => None,
        }
    };
    let platform = (threads.iter().enumerate())
        .filter(|(_, thread)| carried(thread).is_none() && thread.activity == Activity::Still)
        .filter(|(_, thread)| thread.java.as_ref().is_some_and(|java| !java.is_moving))
        .map(|(at, _)| Member::Platform(at));
    let found_still = (found.iter().enumerate())
        .filter(|(_, thread)| thread.activity == Activity::Still && !thread.java.is_moving)
        .map(|(at, _)| Member::Virtual(at));
    let waits = platform.chain(found_still);
    let waits = waits.filter_map(|member| Some((member, owner(member)?))).collect();
    let is_mixed = |cycle: &Vec<Member>| cycle.iter().any(|at| matches!(at, Member::Virtual(_)));
    let mut cycles = cycles(&waits);
    cycles.retain(is_mixed);
    cycles
}

/// A second read of all threads.
struct Again {
    /// CPU time of each thread before and after the read.
    before: HashMap<u32, Duration>,
    after: HashMap<u32, Duration>,
    /// The platform threads by the address of their JavaThread, and the virtual threads by number.
    platform: HashMap<Addr, JavaThread>,
    virtual_threads: HashMap<u64, virtual_threads::VirtualThread>,
    holders: HashMap<Addr, Owner>,
}

impl Again {
    fn read(pid: Pid, hotspot: &HotSpot) -> Result<Self> {
        let cpu = || -> Result<HashMap<_, _>> {
            Ok(os_threads(pid)?.into_iter().map(|thread| (thread.tid, thread.cpu())).collect())
        };
        let before = cpu()?;
        let platform = hotspot.java_threads()?;
        let VirtualThreads { threads, holders, .. } = hotspot.virtual_threads()?;
        Ok(Self {
            before,
            after: cpu()?,
            platform: platform.into_iter().map(|thread| (thread.address, thread)).collect(),
            virtual_threads: threads.into_iter().map(|thread| (thread.number, thread)).collect(),
            holders,
        })
    }

    /// Whether this read shows that a member of a cycle still waits for a lock of the same class with the
    /// same owner. If the member is a platform thread or has a carrier, this thread must not have run during
    /// the read.
    fn confirms(&self, threads: &[Thread], found: &VirtualDump, member: Member) -> bool {
        let on = blocked_on(member, threads, &found.threads);
        match member {
            Member::Platform(at) => {
                let now = self.still(threads, at).and_then(|thread| thread.blocked_on.as_ref());
                self.is_same(on, now)
            }
            Member::Virtual(at) => {
                let Some(thread) = found.threads.get(at) else { return false };
                let now = self.virtual_threads.get(&thread.java.number);
                let Some(now) = now.filter(|now| !now.is_moving) else { return false };
                if (thread.java.state, thread.java.carrier) != (now.state, now.carrier) {
                    return false;
                }
                let Some(carrier) = thread.carrier else {
                    return self.is_same(on, now.blocked_on.as_ref());
                };
                let carrier = self.still(threads, carrier);
                let Some(carrier) = carrier.filter(|java| java.mounted == Some(now.number)) else {
                    return false;
                };
                let now = now.blocked_on.as_ref().or(carrier.blocked_on.as_ref());
                self.is_same(on, now)
            }
        }
    }

    /// Returns a platform thread that has not run during the read.
    fn still(&self, threads: &[Thread], at: usize) -> Option<&JavaThread> {
        let thread = threads.get(at)?;
        let cpu = |times: &HashMap<u32, Duration>| times.get(&thread.os.tid).copied();
        let java = self.platform.get(&thread.java.as_ref()?.address)?;
        let has_not_run = cpu(&self.before)? == cpu(&self.after)?;
        (has_not_run && !java.is_moving).then_some(java)
    }

    /// Whether two reads show the same wait. The addresses of the objects are not compared, because the
    /// collector may have moved the object between the reads.
    fn is_same(&self, before: Option<&BlockedOn>, now: Option<&BlockedOn>) -> bool {
        let (Some(before), Some(now)) = (before, now) else { return false };
        let owner = match (&now.owner, now.kind) {
            (Owner::Unknown, BlockKind::Enter) => self.holders.get(&now.object),
            (owner, _) => Some(owner),
        };
        (before.kind, &before.class) == (now.kind, &now.class)
            && owner.is_some_and(|owner| identity(owner) == identity(&before.owner))
    }
}

/// Returns the JavaThread or the number of an owner, by which two reads are compared. The name of an owner is
/// not compared, because a read does not always find it.
fn identity(owner: &Owner) -> (Option<Addr>, Option<u64>) {
    match *owner {
        Owner::Thread(address) => (Some(address), None),
        Owner::VirtualThread { number, .. } => (None, Some(number)),
        Owner::None | Owner::Unknown => (None, None),
    }
}

//! Virtual threads of a dump: names their stacks, and takes the frames of mounted ones from their carriers.
//!
//! Virtual threads are read after the platform threads. The frames of a mounted virtual thread are therefore used only if
//! it was mounted on the same carrier both when the carrier's stack was walked and when the virtual thread was read.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use crate::{
    Addr, Pid, Result,
    hotspot::{
        HotSpot,
        java_threads::{BlockKind, HeldMonitor, JavaThread, Owner, ThreadStatus},
        virtual_threads::{self, ChunkFrame, VirtualThreads},
    },
    process::os_threads::os_threads,
    stack::{
        Frame,
        raw::{RawFrame, RawStack, short_compile_id},
    },
    sys::limited,
    trace::threads::{Activity, Dump, Dumper, Thread, ThreadId, Waits},
};

/// The method through which a carrier enters a continuation. The frames of its direct and indirect callees
/// belong to the virtual thread.
const ENTRY: &str = "jdk.internal.vm.Continuation.enterSpecial";
/// The outermost method of a continuation.
const OUTERMOST: &str = "jdk.internal.vm.Continuation.enter";
/// Maximum number of times that all threads are read again to confirm deadlocks.
const MAX_CONFIRMATIONS: usize = 8;

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

impl Dumper {
    /// Adds the virtual threads to a dump of the platform threads, and the deadlocks that have a virtual thread.
    pub(super) fn add_virtual_threads(&mut self, hotspot: &HotSpot, dump: &mut Dump) {
        let pid = dump.pid;
        let unloads = hotspot.classes_unloaded().unwrap_or(0);
        let read = hotspot.virtual_threads(self.max_virtual_threads);
        let waits = dump.add_virtual_threads(read, |frames| {
            self.name(pid, hotspot, &raw_stack(pid.0.into(), unloads, frames))
        });
        let carriers: HashSet<_> = dump
            .threads
            .iter()
            .filter_map(|thread| thread.java.as_ref().filter(|java| java.mounted.is_some()))
            .map(|java| ThreadId::Platform(java.address))
            .collect();
        dump.deadlocks.retain(|cycle| !cycle.iter().any(|thread| carriers.contains(thread)));
        dump.deadlocks.extend(self.confirmed(pid, hotspot, &waits));
    }

    /// Returns the cycles of waiting threads that have a virtual thread and are deadlocks.
    fn confirmed(&self, pid: Pid, hotspot: &HotSpot, waits: &Waits) -> Vec<Vec<ThreadId>> {
        let is_virtual = |thread: &ThreadId| matches!(thread, ThreadId::Virtual(_));
        let mixed = waits.cycles().iter().filter(|cycle| cycle.iter().any(is_virtual));
        let (mut open, mut all): (Vec<_>, Vec<_>) = (mixed.cloned().collect(), Vec::new());
        // A thread that waits for a monitor may wake up at times to try to enter it. The second read is then
        // repeated.
        for _ in 0..MAX_CONFIRMATIONS {
            if open.is_empty() {
                break;
            }
            let Ok(again) = self.waits_of_still_threads(pid, hotspot) else { break };
            let is_same = |&thread: &ThreadId| again.get(thread) == waits.get(thread);
            let (confirmed, unconfirmed): (Vec<_>, Vec<_>) =
                open.into_iter().partition(|cycle| cycle.iter().all(is_same));
            all.extend(confirmed);
            open = unconfirmed;
        }
        all
    }

    /// Reads the threads that wait for locks. Leaves out those that have used CPU time during the read, and virtual
    /// threads whose carriers have.
    fn waits_of_still_threads(&self, pid: Pid, hotspot: &HotSpot) -> Result<Waits> {
        let cpu = || -> Result<HashMap<_, _>> {
            let threads = os_threads(pid)?.into_iter();
            Ok(threads.map(|thread| (thread.namespace_tid, thread.cpu())).collect())
        };
        let before = cpu()?;
        let platform = hotspot.java_threads_uncounted()?;
        let found = hotspot.virtual_threads(self.max_virtual_threads)?;
        let after = cpu()?;
        let is_still = |thread: &JavaThread| {
            let before = thread.tid.and_then(|tid| before.get(&tid));
            before.is_some() && before == thread.tid.and_then(|tid| after.get(&tid))
        };
        Ok(Waits::among(platform.iter().map(|thread| (thread, is_still(thread))), &found))
    }
}

impl Dump {
    /// Adds the virtual threads that were read. Moves the frames of mounted virtual threads from their carriers' stacks
    /// to them. `name` names the frames of a stack in the heap, and returns them outermost first. Returns the threads
    /// that wait for locks of others.
    pub(super) fn add_virtual_threads(
        &mut self,
        read: Result<VirtualThreads>,
        mut name: impl FnMut(&[ChunkFrame]) -> Vec<Frame>,
    ) -> Waits {
        let read = read.unwrap_or_else(|error| {
            self.missing = Some(format!("virtual threads are missing: {error}"));
            VirtualThreads::default()
        });
        if read.is_incomplete {
            self.missing = Some("some virtual threads or containers could not be read".into());
        }
        let is_still = |thread: &Thread| thread.activity == Activity::Still;
        let platform = self.threads.iter().filter_map(|t| Some((t.java.as_ref()?, is_still(t))));
        let waits = Waits::among(platform, &read);
        let VirtualThreads { containers, threads: read, platform, holders, .. } = read;
        let threads = &mut self.threads;
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
        let java = |(at, thread): (usize, &Thread)| Some((thread.java.as_ref()?.address, at));
        let positions: HashMap<_, _> = threads.iter().enumerate().filter_map(java).collect();
        for (address, container) in platform {
            let thread = positions.get(&address).and_then(|&at| threads.get_mut(at));
            thread.into_iter().for_each(|thread| thread.container = container);
        }
        self.containers = containers;
        let mut mounted = split_carriers(threads);
        let mut stacks: HashMap<Arc<[ChunkFrame]>, Arc<[Frame]>> = HashMap::new();
        self.virtual_threads.reserve(read.len());
        let (memory, mut lack_memory) = (&mut self.memory, 0);
        for mut java in read {
            let named = stacks.entry(Arc::clone(&java.frames)).or_insert_with_key(|frames| {
                let mut frames = name(frames);
                frames.reverse();
                if !memory.reserve(size_of_val(&*frames)) {
                    lack_memory += 1;
                    frames.clear();
                }
                frames.into()
            });
            let in_heap = Arc::clone(named);
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
            self.virtual_threads.push(VirtualThread {
                java,
                frames,
                held,
                carrier,
                status,
                activity,
            });
        }
        if lack_memory > 0 {
            limited::add("threads", self.memory.tenant(), lack_memory);
            self.missing = Some("stacks of some virtual threads would take too much memory".into());
        }
        waits
    }
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
        let Some(number) = thread.carried() else { continue };
        let Some(entry) = thread.frames.iter().position(|frame| &*frame.name == ENTRY) else {
            continue;
        };
        let frames = thread.frames[..entry].to_vec();
        thread.frames = thread.frames[entry + 1..].into();
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

/// Makes the raw stack of frames in the heap. `key` is the key of their process.
pub(in crate::trace) fn raw_stack(key: u64, unloads: u64, frames: &[ChunkFrame]) -> RawStack {
    let raw = |(index, frame): (usize, &ChunkFrame)| match *frame {
        // The innermost address of a raw stack must lie in the current instruction, and the others are return
        // addresses. In the heap, the innermost address is a return address, too. The byte before it belongs
        // to the call.
        ChunkFrame::Code { addr, compile_id } => RawFrame::Code {
            addr: Addr(addr.0.saturating_sub(u64::from(index == 0))),
            compile_id: short_compile_id(compile_id),
        },
        ChunkFrame::Interpreted { method, bci } => RawFrame::Interpreted { method, bci },
    };
    let frames = frames.iter().enumerate().map(raw).collect();
    RawStack { target: key, unloads, frames }
}

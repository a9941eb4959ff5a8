//! Virtual threads: their containers, states, locks and stacks, read from the Java heap (JDK 21 and later).
//!
//! Sources: java.base's java/lang/{VirtualThread,Thread}.java, jdk/internal/vm/{ThreadContainers,SharedThreadContainer,
//! StackableScope,Continuation,StackChunk,ThreadDumper}.java, jdk/internal/misc/ThreadFlock.java,
//! java/util/concurrent/{ThreadPerTaskExecutor,ConcurrentHashMap}.java; hotspot/share/oops/stackChunkOop.hpp,
//! runtime/stackChunkFrameStream.inline.hpp, runtime/continuationFreezeThaw.cpp, runtime/objectMonitor.hpp.
//!
//! | module | contents |
//! |---|---|
//! | `classes` | the classes of java.base that are read here, with the offsets of their fields |
//! | `sets` | keys of a `ConcurrentHashMap` |
//! | `containers` | thread containers and the threads in them |
//! | `reader` | one virtual thread |
//! | `chunks` | the frames in a `StackChunk` |
//!
//! The JVM has no list of virtual threads, but Java code of the JDK keeps sets of them. `ThreadContainers`
//! refers to a set of the threads that were started without a container, and to the containers. Each
//! container has a set of its own threads. With `-Djdk.trackAllThreads=false`, the set of the threads without
//! a container does not exist. Such a thread is then found only while it is mounted, because a JavaThread
//! refers to the virtual thread that is mounted on it.
//!
//! A virtual thread that is not mounted has its stack in the heap, in `StackChunk` objects. When the JVM
//! mounts a thread, it copies at least the innermost frames to the carrier's stack. The other frames of the
//! mounted thread may remain in a chunk until the copied frames return to them.
//!
//! While virtual threads are read, they continue to run, and collectors move objects. Therefore each thread
//! is read several times, until its state, its carrier and the position of its stack are the same before and
//! after a read.

mod chunks;
mod classes;
mod containers;
mod reader;
mod sets;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

pub use self::chunks::ChunkFrame;
pub(super) use self::classes::WANTED;
use self::reader::Reader;
use crate::{
    Addr, Result,
    hotspot::{
        HotSpot,
        boot_classes::BootClasses,
        java_threads::{BlockedOn, Owner, ThreadStatus},
        resolved::Layout,
    },
    process::{memory::Memory, reader::within},
};

/// The first JDK with virtual threads. (JDK 19 and 20 have them as a preview.)
const FIRST_WITH_VIRTUAL_THREADS: u32 = 21;
/// Maximum time for all virtual threads. Those that could not be read by then are missing.
const MAX_TIME: Duration = Duration::from_secs(8);
/// Maximum number of virtual threads that can be read.
pub const MAX_VIRTUAL_THREADS: usize = 1 << 20;

/// A virtual thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualThread {
    /// Address of its `java.lang.VirtualThread`.
    pub object: Addr,
    /// The number that `Thread.threadId()` returns.
    pub number: u64,
    /// Its name, with harmful characters escaped; empty if it has none.
    pub name: Arc<str>,
    /// Its state.
    pub state: VirtualState,
    /// Address of the carrier's JavaThread if it is mounted.
    pub carrier: Option<Addr>,
    /// Index of its container in [`VirtualThreads::containers`].
    pub container: usize,
    /// The object that it waits for.
    pub blocked_on: Option<BlockedOn>,
    /// Frames in the heap, innermost first. If it is mounted, these are frames beyond those on the carrier's stack.
    pub frames: Arc<[ChunkFrame]>,
    /// Whether the thread changed during each read, or a part of its data could not be read. Its data may
    /// then be inconsistent or incomplete.
    pub is_moving: bool,
}

/// A thread container: a group of threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Its name, with harmful characters escaped.
    pub name: Arc<str>,
    /// Index of the container that encloses it; `None` for the root.
    pub parent: Option<usize>,
    /// Number of the thread that owns it.
    pub owner: Option<u64>,
}

/// The virtual threads of a JVM and the thread containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualThreads {
    /// The containers. The first one is the root.
    pub containers: Vec<Container>,
    /// The virtual threads, by container and number.
    pub threads: Vec<VirtualThread>,
    /// The platform threads that are in a container other than the root: the address of the thread's
    /// JavaThread, and the index of the container.
    pub platform: Vec<(Addr, usize)>,
    /// The virtual thread that has an object in its lock stack, and therefore owns the object's monitor, by
    /// the address of the object.
    pub holders: HashMap<Addr, Owner>,
    /// Whether threads may be missing, because time ran out or data could not be read.
    pub is_incomplete: bool,
}

impl Default for VirtualThreads {
    fn default() -> Self {
        let root = Container { name: "<root>".into(), parent: None, owner: None };
        Self {
            containers: vec![root],
            threads: Vec::new(),
            platform: Vec::new(),
            holders: HashMap::new(),
            is_incomplete: false,
        }
    }
}

/// State of a virtual thread: a constant of `java.lang.VirtualThread`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are those of java.lang.VirtualThread")]
pub enum VirtualState {
    New,
    Started,
    /// Can run and is not mounted (JDK 19 and 20, and early builds of 21).
    Runnable,
    Running,
    Parking,
    Parked,
    /// Parked without being unmounted. Its carrier is parked, too.
    Pinned,
    TimedParking,
    TimedParked,
    /// Parked with a timeout, without being unmounted. Its carrier is parked, too.
    TimedPinned,
    Unparked,
    Yielding,
    Yielded,
    Blocking,
    Blocked,
    Unblocked,
    /// About to wait in `Object.wait`.
    Waiting,
    Wait,
    /// About to wait in `Object.wait` with a timeout.
    TimedWaiting,
    TimedWait,
    Terminated,
    /// Another value.
    Unknown,
}

impl VirtualState {
    /// Returns the status that Java code sees; `None` if the thread has the same status as its carrier.
    pub fn status(self) -> Option<ThreadStatus> {
        Some(match self {
            Self::New => ThreadStatus::New,
            Self::Running => return None,
            Self::Parked | Self::Pinned => ThreadStatus::Parked,
            Self::TimedParked | Self::TimedPinned => ThreadStatus::ParkedTimed,
            Self::Blocked => ThreadStatus::Blocked,
            Self::Wait => ThreadStatus::Waiting,
            Self::TimedWait => ThreadStatus::TimedWaiting,
            Self::Terminated => ThreadStatus::Terminated,
            _ => ThreadStatus::Runnable,
        })
    }

    /// Whether it is parked, so that its `parkBlocker` is the object that it waits for.
    fn is_parked(self) -> bool {
        matches!(self, Self::Parked | Self::Pinned | Self::TimedParked | Self::TimedPinned)
    }

    /// Whether it waits for a monitor, or in `Object.wait`, without being mounted.
    fn is_at_monitor(self) -> bool {
        matches!(self, Self::Blocked | Self::Wait | Self::TimedWait)
    }
}

impl HotSpot {
    /// Returns at most `max` of its virtual threads; none before JDK 21.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming the missing field or class, [`crate::Error::Memory`] if the JVM has exited.
    pub fn virtual_threads(&self, max: usize) -> Result<VirtualThreads> {
        read(&self.memory, &self.layout, &self.boot_classes, max)
    }
}

/// Reads at most `max` virtual threads of a JVM.
///
/// # Errors
/// The errors of [`HotSpot::virtual_threads`].
pub(super) fn read(
    memory: &Memory,
    layout: &Layout,
    classes: &BootClasses,
    max: usize,
) -> Result<VirtualThreads> {
    if layout.major < FIRST_WITH_VIRTUAL_THREADS {
        return Ok(VirtualThreads::default());
    }
    let until = Instant::now() + MAX_TIME;
    within(MAX_TIME, || match Reader::new(memory, layout, classes, (max, until))? {
        Some(mut reader) => reader.read(until),
        None => Ok(VirtualThreads::default()),
    })
}

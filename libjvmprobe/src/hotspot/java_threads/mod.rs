//! Java threads with their states, and with what each of them waits for.
//!
//! Sources: hotspot/share/runtime/{javaThread,osThread,objectMonitor,lockStack,basicLock}.hpp,
//! classfile/{javaClasses,javaThreadStatus}.hpp; java.base's java/lang/{Thread,String}.java and
//! java/util/concurrent/locks/AbstractOwnableSynchronizer.java. A thread is in the list of JavaThreads, and its name and
//! status are fields of its `java.lang.Thread` object (since JDK 19, partly of a `Thread$FieldHolder`).
//!
//! The owner of a monitor is stored in several forms:
//!
//! | JDK | `ObjectMonitor::_owner` |
//! |---|---|
//! | 8 to 23 | address of a JavaThread, or of a BasicLock on the owner's stack |
//! | 21 to 23 | 1 for a monitor that another thread created while the owner held a lightweight lock: the object is in the owner's lock stack |
//! | 24 on | number of the thread (`Thread.tid`), or 1 as before. With legacy locks, 1 means that `_stack_locker` holds the address of the BasicLock |
//!
//! Collectors move objects and threads run on during the reads. Therefore each thread is read until two
//! successive reads agree. The owner of a monitor is then identified by lock stacks and stacks of other
//! threads. After these were read, the monitor is read again. The owner is reported only if the waiting
//! thread still waits for the same monitor and the monitor has not changed.
//!
//! Virtual threads are not listed here, but by `hotspot/virtual_threads`. A carrier thread is listed as
//! itself, with the number of the virtual thread that is mounted on it. Up to JDK 23, if a virtual thread
//! holds a monitor, its carrier counts as the owner. Since JDK 24, a virtual thread that is not mounted has
//! its lock stack in the heap. This module does not read that lock stack, so the owner of a monitor whose
//! `_owner` is 1 may be unknown here.

mod anchor;
mod awaited;
mod counter;
mod heap_pages;
mod held;
pub(super) mod owners;
mod pools;
pub(super) mod reader;
mod synchronizers;
#[cfg(test)]
mod tests;
mod unused;
mod words;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

pub(crate) use self::anchor::JavaFrame;
pub(super) use self::anchor::{last_java_frame, stack};
pub(crate) use self::awaited::{AwaitedReader, WaitFields};
pub use self::counter::{ThreadCounter, ThreadCounts, ThreadState};
pub(crate) use self::held::FrameState;
pub use self::held::HeldMonitor;
pub use self::pools::ConnectionPool;

use self::reader::Reader;
pub(super) use self::synchronizers::owned;
pub use self::synchronizers::{OwnedSynchronizer, OwnedSynchronizers};
pub(crate) use super::references::Form;
use crate::{
    Addr, Result,
    hotspot::resolved::Layout,
    process::{memory::Memory, reader::within},
    sys::limited,
};

/// Maximum time for all threads. Threads that could not be read by then have no name and no status.
const MAX_TIME: Duration = Duration::from_secs(2);

/// A Java thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JavaThread {
    /// Address of its JavaThread; `tid` in jstack's output.
    pub address: Addr,
    /// Its thread ID in the JVM's PID namespace; `None` if it has not started, and with the Zero VM.
    pub tid: Option<u32>,
    /// Address of its `java.lang.Thread`; `None` if it has none yet.
    pub object: Option<Addr>,
    /// Its name, with harmful characters escaped.
    pub name: Option<Arc<str>>,
    /// The number that `Thread.threadId()` returns; `#` in jstack's output.
    pub number: Option<u64>,
    /// Whether it is a daemon.
    pub is_daemon: Option<bool>,
    /// Its Java priority, from 1 to 10.
    pub priority: Option<i32>,
    /// Its status as Java code sees it.
    pub status: Option<ThreadStatus>,
    /// The object that it waits for. `None` also for a thread that was notified and enters its monitor again.
    pub blocked_on: Option<BlockedOn>,
    /// Number of the virtual thread that is mounted on it.
    pub mounted: Option<u64>,
    /// Whether no two successive reads of the thread agreed. Its data may then be inconsistent or missing.
    pub is_moving: bool,
}

/// Status of a thread as Java code sees it: `Thread.getState()`, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThreadStatus {
    /// Not started.
    New,
    /// Runs, or waits for a processor or in native code.
    Runnable,
    /// In `Thread.sleep`.
    Sleeping,
    /// In `Object.wait` without a timeout.
    Waiting,
    /// In `Object.wait` with a timeout.
    TimedWaiting,
    /// In `LockSupport.park`.
    Parked,
    /// In `LockSupport.parkNanos` or `parkUntil`.
    ParkedTimed,
    /// Waits to enter a monitor.
    Blocked,
    /// Has exited.
    Terminated,
    /// Another value of `Thread.threadStatus`.
    Unknown(u32),
}

impl ThreadStatus {
    /// Decodes `Thread.threadStatus`, whose values are combinations of JVMTI's thread state bits
    /// (`JavaThreadStatus`, javaThreadStatus.hpp).
    fn of(raw: u32) -> Self {
        match raw {
            0 => Self::New,
            0x5 => Self::Runnable,
            0xe1 => Self::Sleeping,
            0x191 => Self::Waiting,
            0x1a1 => Self::TimedWaiting,
            0x291 => Self::Parked,
            0x2a1 => Self::ParkedTimed,
            0x401 => Self::Blocked,
            0x2 => Self::Terminated,
            raw => Self::Unknown(raw),
        }
    }

    /// Returns jstack's text (`java_lang_Thread::thread_status_name`).
    pub fn text(self) -> &'static str {
        match self {
            Self::New => "NEW",
            Self::Runnable => "RUNNABLE",
            Self::Sleeping => "TIMED_WAITING (sleeping)",
            Self::Waiting => "WAITING (on object monitor)",
            Self::TimedWaiting => "TIMED_WAITING (on object monitor)",
            Self::Parked => "WAITING (parking)",
            Self::ParkedTimed => "TIMED_WAITING (parking)",
            Self::Blocked => "BLOCKED (on object monitor)",
            Self::Terminated => "TERMINATED",
            Self::Unknown(_) => "UNKNOWN",
        }
    }

    fn is_parked(self) -> bool {
        matches!(self, Self::Parked | Self::ParkedTimed)
    }
}

/// An object that a thread waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedOn {
    /// How the thread waits for it.
    pub kind: BlockKind,
    /// The object's address.
    pub object: Addr,
    /// Name of its class as in Java source.
    pub class: Arc<str>,
    /// The thread that owns it.
    pub owner: Owner,
}

impl BlockedOn {
    /// Returns the owner of the lock for which the thread waits. Returns `None` if no thread owns the lock, or if the
    /// thread is in `Object.wait`, because it then does not wait for a lock.
    pub fn lock_owner(&self) -> Option<&Owner> {
        (self.kind != BlockKind::Wait && self.owner != Owner::None).then_some(&self.owner)
    }
}

/// How a thread waits for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockKind {
    /// Waits to enter the object's monitor.
    Enter,
    /// In `Object.wait` of the object.
    Wait,
    /// Parked with the object as its blocker.
    Park,
}

/// Owner of a monitor or of a synchronizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The object has no owner, or a thread is parked on it and its class stores no owner. Only subclasses of
    /// `AbstractOwnableSynchronizer` store one.
    None,
    /// A platform thread, by the address of its JavaThread.
    Thread(Addr),
    /// A virtual thread.
    VirtualThread {
        /// The number that `Thread.threadId()` returns.
        number: u64,
        /// Its name; `None` if it has none, or if its object is not known.
        name: Option<Arc<str>>,
    },
    /// The object has an owner that could not be identified, or the owner changed meanwhile.
    Unknown,
}

/// The result of a read of the Java threads.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) threads: Vec<JavaThread>,
    /// Number of threads that are left out for lack of memory.
    left_out: u64,
    tenant: Arc<str>,
}

impl Found {
    /// Returns the threads, and counts those that are left out as lost detail.
    pub(super) fn counted(self) -> Vec<JavaThread> {
        limited::add("threads", &self.tenant, self.left_out);
        self.threads
    }
}

/// Returns the Java threads, in the order of the JVM's list. Threads that start or exit meanwhile may be missing.
///
/// # Errors
/// [`crate::Error::Layout`] naming the missing field, [`crate::Error::Memory`] if the JVM has exited.
pub(super) fn read(memory: &Memory, layout: &Layout) -> Result<Found> {
    let until = Instant::now() + MAX_TIME;
    // After `until`, the list of threads is read once more.
    within(2 * MAX_TIME, || Reader::new(memory, layout)?.threads(until))
}

/// Returns a reader of what the BPF side needs to read the objects that threads wait for.
///
/// # Errors
/// [`crate::Error::Layout`] naming the missing field, [`crate::Error::Memory`] if the JVM has exited.
pub(super) fn awaited_reader(memory: &Memory, layout: &Layout) -> Result<AwaitedReader> {
    Reader::new(memory, layout).map(AwaitedReader::new)
}

/// Returns the monitors that each thread holds. Each thread is given by the address of its JavaThread and its frames,
/// innermost first.
///
/// # Errors
/// [`crate::Error::Layout`] naming the missing field, [`crate::Error::Memory`] if the JVM has exited.
pub(super) fn held(
    memory: &Memory,
    layout: &Layout,
    stacks: &[(Addr, Vec<FrameState>)],
) -> Result<Vec<Vec<HeldMonitor>>> {
    let until = Instant::now() + MAX_TIME;
    within(MAX_TIME, || Ok(Reader::new(memory, layout)?.held(stacks, until)))
}

/// Data of a thread from one read.
#[derive(Clone, Debug, Default)]
struct Facts {
    tid: Option<u32>,
    java: Option<JavaSide>,
    block: Option<Block>,
    mounted: Option<u64>,
    /// Whether all of this data could be read.
    is_complete: bool,
}

impl Facts {
    /// Whether two reads agree.
    fn agrees(&self, other: &Self) -> bool {
        self.is_complete
            && other.is_complete
            && (self.tid, &self.java, &self.block, self.mounted)
                == (other.tid, &other.java, &other.block, other.mounted)
    }
}

/// Contents of a thread's `java.lang.Thread`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct JavaSide {
    object: Addr,
    name: Option<Arc<str>>,
    number: u64,
    state: Option<JavaState>,
    /// Whether name and state could be read.
    is_complete: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct JavaState {
    is_daemon: bool,
    priority: i32,
    status: ThreadStatus,
}

/// An object that a thread waits for, and what is stored about its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) kind: BlockKind,
    pub(super) object: Addr,
    pub(super) class: Arc<str>,
    pub(super) owner: StoredOwner,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StoredOwner {
    None,
    Monitor(MonitorWords),
    /// The owner is stored as a reference to a `java.lang.Thread`, which has these contents.
    Object {
        java_thread: Addr,
        number: u64,
        is_virtual: bool,
        name: Option<Arc<str>>,
    },
}

/// Contents of a monitor that identify its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MonitorWords {
    pub(super) monitor: Addr,
    pub(super) object: Addr,
    pub(super) owner: u64,
    /// `ObjectMonitor::_stack_locker`, 0 if there is none.
    locker: u64,
}

/// A thread that was read.
#[derive(Debug)]
struct ReadThread {
    address: Addr,
    facts: Facts,
    is_moving: bool,
}

/// Combines the data of a thread with the owner of the object that it waits for.
fn finished(thread: ReadThread, owner: Owner) -> JavaThread {
    let Facts { tid, java, block, mounted, .. } = thread.facts;
    // If the owner is the waiting thread itself, this thread has acquired the object after its wait was read.
    // It is then unknown which thread owned the object before.
    let owner = if owner == Owner::Thread(thread.address) { Owner::Unknown } else { owner };
    let state = java.as_ref().and_then(|java| java.state);
    JavaThread {
        address: thread.address,
        tid,
        object: java.as_ref().map(|java| java.object),
        number: java.as_ref().map(|java| java.number),
        name: java.and_then(|java| java.name),
        is_daemon: state.map(|state| state.is_daemon),
        priority: state.map(|state| state.priority),
        status: state.map(|state| state.status),
        blocked_on: block.map(|Block { kind, object, class, .. }| BlockedOn {
            kind,
            object,
            class,
            owner,
        }),
        mounted,
        is_moving: thread.is_moving,
    }
}

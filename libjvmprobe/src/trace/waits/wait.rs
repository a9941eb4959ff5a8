//! The records of the tracer: waits, what they were for, and the threads that ended them.

use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::{
    Pid,
    stack::Frame,
    trace::waits::{application_frame, resources::Resource},
};

/// Kind of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// To enter a monitor (`synchronized`).
    Monitor,
    /// In `Object.wait`.
    Wait,
    /// In `LockSupport.park`.
    Park,
    /// In `Thread.sleep`.
    Sleep,
    /// A virtual thread that could not be unmounted, so that it blocked its carrier.
    Pinned,
    /// For the end of a safepoint or a handshake, mostly of a garbage collection.
    Safepoint,
    /// To receive from a socket.
    SocketRead,
    /// To send to a socket.
    SocketWrite,
    /// For a connection of a client.
    Accept,
    /// For a connection to a server.
    Connect,
    /// To read a file.
    FileRead,
    /// To write a file, or until it is on disk.
    FileWrite,
    /// For several files or connections at a time: epoll, poll, select.
    Poll,
    /// For a pipe.
    Pipe,
    /// For a child process.
    Child,
    /// For memory that is read from disk or swap.
    PageFault,
    /// For a lock of the JVM or of a native library.
    NativeLock,
    /// For a processor.
    RunQueue,
    /// Because the control group had used up its CPU time.
    Throttled,
    /// Because a signal or a debugger had stopped it.
    Stopped,
    /// For something else.
    Unknown,
}

impl Kind {
    /// Returns its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Monitor => "monitor",
            Self::Wait => "wait",
            Self::Park => "park",
            Self::Sleep => "sleep",
            Self::Pinned => "pinned",
            Self::Safepoint => "safepoint",
            Self::SocketRead => "socket read",
            Self::SocketWrite => "socket write",
            Self::Accept => "accept",
            Self::Connect => "connect",
            Self::FileRead => "file read",
            Self::FileWrite => "file write",
            Self::Poll => "poll",
            Self::Pipe => "pipe",
            Self::Child => "child process",
            Self::PageFault => "page fault",
            Self::NativeLock => "native lock",
            Self::RunQueue => "run queue",
            Self::Throttled => "throttled",
            Self::Stopped => "stopped",
            Self::Unknown => "unknown",
        }
    }

    /// Returns whether a virtual thread that waits in this way is unmounted, unless it is pinned.
    pub(super) fn can_be_pinned(self) -> bool {
        matches!(self, Self::Monitor | Self::Wait | Self::Park | Self::Sleep)
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A thread: a platform thread, or the virtual thread that is mounted on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ThreadName {
    /// Its process.
    pub pid: Pid,
    /// ID of the platform thread; 0 for a virtual thread whose carrier is unknown.
    pub tid: u32,
    /// Name of the platform thread; if `tid` is 0, of the virtual thread.
    pub name: Arc<str>,
    /// Number of the virtual thread that is mounted on it.
    pub virtual_thread: Option<u64>,
}

impl ThreadName {
    /// Names a virtual thread that owns a lock, whether it is mounted or not. `tid` and the name of a carrier are unknown.
    pub(super) fn of_owner(pid: Pid, number: u64, name: Option<&Arc<str>>) -> Self {
        let name = name.cloned().unwrap_or_default();
        Self { pid, tid: 0, name, virtual_thread: Some(number) }
    }
}

/// Object, file or connection for which a thread waited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Awaited {
    /// Name of the class of the object; `None` if it is not an object, or unknown.
    pub class: Option<Arc<str>>,
    /// Address of the object, which a collector may move; 0 if it is not an object, or unknown.
    pub object: u64,
    /// Address that identifies it for some time: of the monitor, or of the object. 0 if it is not an object.
    pub address: u64,
    /// Whether a thread can own the object exclusively: a monitor or an `AbstractOwnableSynchronizer`.
    pub is_lock: bool,
    /// Peer address, path, or another name; empty for objects.
    pub name: Arc<str>,
    /// Resource of a pool or a queue.
    pub(super) resource: Option<&'static Resource>,
}

impl Awaited {
    /// Returns the resource of a pool or a queue, for example `HikariCP connection`.
    pub fn resource(&self) -> Option<&'static str> {
        self.resource.map(|resource| resource.name)
    }
}

/// How a thread was involved in the end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Relation {
    /// It held the lock and released it.
    Held,
    /// It woke the waiting thread.
    Woke,
}

/// The thread that ended a wait.
#[derive(Clone, Debug)]
pub struct Holder {
    /// The thread.
    pub thread: ThreadName,
    /// How it was involved.
    pub relation: Relation,
    /// How long it had held the lock, in nanoseconds; 0 if unknown.
    pub held_ns: u64,
    /// Whether `held_ns` is exact. If not, it is the least possible time.
    pub is_exact: bool,
    /// Its stack when it ended the wait, outermost frame first.
    pub stack: Arc<[Frame]>,
    /// Its own longest wait meanwhile.
    pub waited: Option<Box<Wait>>,
}

/// A wait.
#[derive(Clone, Debug)]
pub struct Wait {
    /// The waiting thread.
    pub thread: ThreadName,
    /// Kind of the wait.
    pub kind: Kind,
    /// Object, file or connection for which the thread waited.
    pub awaited: Awaited,
    /// Begin on `CLOCK_MONOTONIC`, in nanoseconds; the begin of the trace if the wait began before.
    pub begin_ns: u64,
    /// End on the same clock: the thread is on a processor again.
    pub end_ns: u64,
    /// Part of it in which the thread was runnable and waited for a processor, in nanoseconds.
    pub run_queue_ns: u64,
    /// Whether the control group had used up its CPU time during that part.
    pub was_throttled: bool,
    /// Whether it began before the trace, so that it was longer than shown.
    pub is_unseen: bool,
    /// Whether it has not ended. Then `end_ns` is the end of the trace.
    pub is_in_progress: bool,
    /// Whether the thread waited for work.
    pub is_idle: bool,
    /// Why the virtual thread could not be unmounted; for [`Kind::Pinned`].
    pub pinned_by: Option<&'static str>,
    /// Stack of the waiting thread, outermost frame first, without the kernel's frames.
    pub stack: Arc<[Frame]>,
    /// The kernel's frames, outermost first.
    pub kernel_stack: Arc<[Frame]>,
    /// The thread that ended it.
    pub holder: Option<Holder>,
    /// Waits of similar length that the wait represents in addition to itself.
    pub others: Others,
}

/// Number and total length of waits that were not recorded one by one, because their tenant exceeds its share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Number of waits.
    pub times: u64,
    /// Total length in nanoseconds.
    pub ns: u64,
}

impl Others {
    /// Adds other waits.
    pub(super) fn add(&mut self, more: Self) {
        self.times = self.times.saturating_add(more.times);
        self.ns = self.ns.saturating_add(more.ns);
    }
}

impl Wait {
    /// Returns its length in nanoseconds.
    pub fn length_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.begin_ns)
    }

    /// Returns the innermost frame of the application, see [`application_frame`].
    pub fn application_frame(&self) -> Option<&Frame> {
        application_frame(&self.stack)
    }
}

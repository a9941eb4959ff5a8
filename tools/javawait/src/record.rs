//! Records as JSON lines.

use libjvmprobe::{
    bpf::clock,
    hotspot::java_threads::ConnectionPool,
    stack::{Frame, StackFrame},
    trace::waits::{Holder, Kind, Relation, Wait},
};
use serde::Serialize;

use crate::wait_text::awaited;

/// An output record.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Record {
    /// A wait that has ended.
    Wait(Box<WaitRecord>),
    /// Waits with equal properties.
    Group(Box<GroupRecord>),
    /// A lock or another resource.
    Lock(Box<LockRecord>),
    /// A connection pool.
    Pool(PoolRecord),
    /// Virtual threads that waited without a carrier.
    Unmounted(Box<UnmountedRecord>),
    /// Totals of an interval or of the trace.
    Summary(Summary),
}

/// A wait.
#[derive(Clone, Debug, Serialize)]
pub struct WaitRecord {
    /// Wall-clock time at which it ended, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// The process.
    pub pid: u32,
    /// The platform thread.
    pub tid: u32,
    /// Its name.
    pub thread: String,
    /// Number of the virtual thread that waited.
    pub virtual_thread: Option<u64>,
    /// Kind of the wait.
    pub kind: Kind,
    /// Begin on `CLOCK_MONOTONIC`.
    pub begin_ns: u64,
    /// End on `CLOCK_MONOTONIC`.
    pub end_ns: u64,
    /// `end_ns - begin_ns`.
    pub length_ns: u64,
    /// Part of the length until the thread was woken.
    pub blocked_ns: u64,
    /// The remaining part, in which it waited for a processor.
    pub run_queue_ns: u64,
    /// Whether the control group had used up its CPU time when the thread was woken.
    pub throttled: bool,
    /// Whether it began before the trace.
    pub before_trace: bool,
    /// Whether it had not ended when the trace ended.
    pub in_progress: bool,
    /// Whether the thread waited for work.
    pub idle: bool,
    /// Object, address or path for which it waited.
    pub on: Option<String>,
    /// Class of the object.
    pub class: Option<String>,
    /// Why a virtual thread could not be unmounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned_by: Option<&'static str>,
    /// The thread that ended it.
    pub holder: Option<HolderRecord>,
    /// Frames, innermost first, without the kernel's.
    pub stack: Vec<StackFrame>,
    /// The kernel's frames, innermost first.
    pub kernel_stack: Vec<String>,
}

/// The thread that ended a wait.
#[derive(Clone, Debug, Serialize)]
pub struct HolderRecord {
    /// How it was involved.
    pub relation: Relation,
    /// Its process.
    pub pid: u32,
    /// The platform thread.
    pub tid: u32,
    /// Its name.
    pub thread: String,
    /// Number of the virtual thread that was mounted on it.
    pub virtual_thread: Option<u64>,
    /// How long it had held the lock.
    pub held_ns: Option<u64>,
    /// Whether `held_ns` is exact. If not, it is the least possible time.
    pub held_exactly: Option<bool>,
    /// Its frames when it ended the wait, innermost first.
    pub stack: Vec<StackFrame>,
    /// Its own longest wait meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited: Option<Box<WaitRecord>>,
}

/// Waits with equal properties: kind, object and innermost frame of the application.
#[derive(Clone, Debug, Serialize)]
pub struct GroupRecord {
    /// Wall-clock time at which the interval or the trace ended.
    pub time: String,
    /// The process.
    pub pid: u32,
    /// The thread, with `--threads`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Kind of the waits.
    pub kind: Kind,
    /// Class of the object, or the file or peer.
    pub on: Option<String>,
    /// Innermost frame of the application.
    pub at: Option<String>,
    /// Number of waits.
    pub count: u64,
    /// Sum of their lengths.
    pub total_ns: u64,
    /// Mean length.
    pub mean_ns: u64,
    /// Percentiles of the length.
    pub p50_ns: u64,
    #[allow(missing_docs, reason = "as above")]
    pub p90_ns: u64,
    #[allow(missing_docs, reason = "as above")]
    pub p99_ns: u64,
    /// Length of the longest wait.
    pub max_ns: u64,
    /// Maximum number of threads that waited at a time.
    pub threads_at_once: u64,
    /// Places at which threads ended these waits, those with the longest waits first.
    pub ended_by: Vec<EndedBy>,
}

/// Waits of a group that threads ended at a place.
#[derive(Clone, Debug, Serialize)]
pub struct EndedBy {
    /// Innermost frame of the application, or the thread's name if it has no Java frame.
    pub at: String,
    /// Number of waits.
    pub count: u64,
    /// Sum of their lengths.
    pub total_ns: u64,
    /// Mean time for which the threads had held a lock or an element of a pool.
    pub mean_held_ns: Option<u64>,
    /// The longest of these times.
    pub max_held_ns: Option<u64>,
}

/// A lock or another resource, with `--locks`.
#[derive(Clone, Debug, Serialize)]
pub struct LockRecord {
    /// Wall-clock time at which the interval or the trace ended.
    pub time: String,
    /// The process.
    pub pid: u32,
    /// The object with its address, the file or the peer.
    pub on: String,
    /// Kind of the waits.
    pub kind: Kind,
    /// Number of waits.
    pub waits: u64,
    /// Sum of their lengths.
    pub total_ns: u64,
    /// Length of the longest wait.
    pub max_ns: u64,
    /// Number of different threads that waited.
    pub threads: u64,
    /// Maximum number of threads that waited at a time.
    pub threads_at_once: u64,
    /// Number of periods in which a thread held the lock while others waited.
    pub holds: u64,
    /// Mean length of these periods. If a period began without a wait, it counts from the first wait for the lock.
    pub mean_hold_ns: u64,
    /// Longest period.
    pub max_hold_ns: u64,
    /// Places at which threads released it.
    pub ended_by: Vec<EndedBy>,
}

/// A connection pool of HikariCP, at the time when most of its connections were in use.
#[derive(Clone, Debug, Serialize)]
pub struct PoolRecord {
    /// Wall-clock time at which the interval or the trace ended.
    pub time: String,
    /// The process.
    pub pid: u32,
    /// Name of the pool.
    pub name: String,
    /// Number of connections in use.
    pub in_use: u32,
    /// Number of connections.
    pub size: u32,
    /// Configured maximum of `size`.
    pub max_size: u32,
}

impl PoolRecord {
    /// Makes the record of a pool.
    pub fn new(time: &str, pid: u32, pool: &ConnectionPool) -> Self {
        let &ConnectionPool { ref name, in_use, size, max_size } = pool;
        Self { time: time.to_owned(), pid, name: name.to_string(), in_use, size, max_size }
    }
}

/// Virtual threads with equal properties that waited without a carrier. They are counted at intervals.
#[derive(Clone, Debug, Serialize)]
pub struct UnmountedRecord {
    /// Wall-clock time at which the interval or the trace ended.
    pub time: String,
    /// The process.
    pub pid: u32,
    /// Kind of the waits; `run queue` for threads that waited for a carrier.
    pub kind: Kind,
    /// Class of the object.
    pub on: Option<String>,
    /// Innermost frame of the application.
    pub at: Option<String>,
    /// Number of times that the JVM's virtual threads were counted.
    pub readings: u64,
    /// Mean number of threads that waited.
    pub mean_threads: f64,
    /// Largest number of threads that were counted at a time.
    pub max_threads: u64,
    /// Estimated waiting time of all threads.
    pub total_ns: u64,
    /// The thread that owned the lock for most of the time.
    pub owner: Option<String>,
    /// Whether all virtual threads were counted.
    pub complete: bool,
    /// Stack of most of the threads, innermost frame first.
    pub stack: Vec<StackFrame>,
}

/// Totals.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Wall-clock time at which the interval or the trace ended.
    pub time: String,
    /// `time` on `CLOCK_MONOTONIC`.
    pub ts_ns: u64,
    /// `interval`, or `trace` for the complete trace.
    pub scope: &'static str,
    /// Length of the interval or of the trace.
    pub duration_ns: u64,
    /// Number of waits, without those for work.
    pub waits: u64,
    /// Sum of their lengths.
    pub total_ns: u64,
    /// Number of waits for work.
    pub idle_waits: u64,
    /// Sum of their lengths.
    pub idle_ns: u64,
    /// Number of events that were lost. The waits are missing from the other numbers.
    pub lost: u64,
}

impl From<&Wait> for WaitRecord {
    fn from(wait: &Wait) -> Self {
        Self {
            time: clock::rfc3339(wait.end_ns),
            pid: wait.thread.pid.0,
            tid: wait.thread.tid,
            thread: wait.thread.name.to_string(),
            virtual_thread: wait.thread.virtual_thread,
            kind: wait.kind,
            begin_ns: wait.begin_ns,
            end_ns: wait.end_ns,
            length_ns: wait.length_ns(),
            blocked_ns: wait.length_ns().saturating_sub(wait.run_queue_ns),
            run_queue_ns: wait.run_queue_ns,
            throttled: wait.was_throttled,
            before_trace: wait.is_unseen,
            in_progress: wait.is_in_progress,
            idle: wait.is_idle,
            on: awaited(&wait.awaited, true),
            class: wait.awaited.class.as_ref().map(ToString::to_string),
            pinned_by: wait.pinned_by,
            holder: wait.holder.as_ref().map(HolderRecord::from),
            stack: frames(&wait.stack),
            kernel_stack: wait.kernel_stack.iter().rev().map(|f| f.name.to_string()).collect(),
        }
    }
}

impl From<&Holder> for HolderRecord {
    fn from(holder: &Holder) -> Self {
        let held = holder.relation == Relation::Held;
        Self {
            relation: holder.relation,
            pid: holder.thread.pid.0,
            tid: holder.thread.tid,
            thread: holder.thread.name.to_string(),
            virtual_thread: holder.thread.virtual_thread,
            held_ns: held.then_some(holder.held_ns),
            held_exactly: held.then_some(holder.is_exact),
            stack: frames(&holder.stack),
            waited: holder.waited.as_deref().map(|waited| Box::new(waited.into())),
        }
    }
}

/// Returns the frames of a stack, innermost first.
pub fn frames(stack: &[Frame]) -> Vec<StackFrame> {
    stack.iter().rev().map(StackFrame::from).collect()
}

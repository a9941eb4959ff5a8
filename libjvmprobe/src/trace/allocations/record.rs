//! Records of the allocation tracer, as javaobjnew prints them in JSON.
//!
//! Names and meanings are documented in javaobjnew(8) and stable: fields may be added, none is renamed. Times
//! are in nanoseconds, sizes in bytes.

use serde::Serialize;

use crate::{jvms::Lost, stack::StackFrame};

/// One line of output.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Record {
    /// Allocations of one class in an interval or the whole trace.
    Class(Class),
    /// Allocations of one class from one stack.
    Stack(Stack),
    /// Totals of one JVM.
    Summary(Summary),
    /// A large object.
    Large(Large),
    /// Events that the kernel side could not count or send.
    Lost(Lost),
}

/// Allocations of one class.
#[derive(Clone, Debug, Serialize)]
pub struct Class {
    /// Wall-clock time at which the interval or trace ended, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// The process.
    pub pid: u32,
    /// Name of the class, as in Java source code.
    pub class: String,
    /// Thread ID, with `--threads`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// The thread's name, with `--threads`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Bytes allocated.
    pub bytes: u64,
    /// Objects allocated.
    pub objects: u64,
    /// Whether bytes and objects are estimated.
    pub estimated: bool,
    /// Bytes allocated per second.
    pub bytes_per_second: f64,
    /// Share of the bytes of all classes, 0 to 1.
    pub share: f64,
    /// Average size of an object in bytes.
    pub average_bytes: f64,
    /// Objects outside of TLABs, which are counted one by one; null with `--exact`.
    pub outside_objects: Option<u64>,
    /// Bytes of the objects outside of TLABs; null with `--exact`.
    pub outside_bytes: Option<u64>,
    /// Humongous objects, which are counted one by one.
    pub humongous_objects: u64,
    /// Bytes of the humongous objects.
    pub humongous_bytes: u64,
}

/// Allocations of one class from one stack.
#[derive(Clone, Debug, Serialize)]
pub struct Stack {
    /// Wall-clock time at which the interval or trace ended, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// The process.
    pub pid: u32,
    /// Name of the class.
    pub class: String,
    /// Thread ID, with `--threads`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// The thread's name, with `--threads`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Bytes allocated.
    pub bytes: u64,
    /// Objects allocated.
    pub objects: u64,
    /// Whether bytes and objects are estimated.
    pub estimated: bool,
    /// Share of the bytes of the class, 0 to 1.
    pub share: f64,
    /// The stack, innermost frame first.
    pub stack: Vec<StackFrame>,
}

/// Totals of one JVM.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Wall-clock time at which the interval or trace ended, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// Time at which the interval or trace ended, on `CLOCK_MONOTONIC`.
    pub ts_ns: u64,
    /// The process.
    pub pid: u32,
    /// Name and version of the JVM, if it reports them.
    pub jvm: Option<String>,
    /// `interval` or `trace`.
    pub scope: &'static str,
    /// Wall time that the totals cover.
    pub duration_ns: u64,
    /// Bytes of all classes.
    pub bytes: u64,
    /// Objects of all classes.
    pub objects: u64,
    /// Whether objects, and the shares of classes, are estimated.
    pub estimated: bool,
    /// Bytes allocated per second.
    pub bytes_per_second: f64,
    /// Number of classes; with `--threads`, number of pairs of a class and a thread.
    pub classes: u64,
    /// Bytes of classes that were not counted separately because a map or the memory for them was full.
    pub other_bytes: u64,
    /// Number of stacks, with `--stacks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacks: Option<u64>,
    /// Bytes of stacks that were not counted separately because a map or the memory for them was full, with
    /// `--stacks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_stack_bytes: Option<u64>,
    /// Bytes for which no stack was sampled, with `--stacks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsampled_bytes: Option<u64>,
    /// TLABs that were begun; in a daemon that samples them, the sampled ones. Null with `--exact`.
    pub tlabs: Option<u64>,
    /// TLABs that were read; null with `--exact`.
    pub tlabs_read: Option<u64>,
    /// Objects outside of TLABs; null with `--exact`.
    pub outside_objects: Option<u64>,
    /// Bytes of the objects outside of TLABs; null with `--exact`.
    pub outside_bytes: Option<u64>,
    /// Humongous objects.
    pub humongous_objects: u64,
    /// Bytes of the humongous objects.
    pub humongous_bytes: u64,
    /// Number of events that the kernel side could not count or send.
    pub lost: u64,
}

/// A large object, reported as soon as it is allocated.
#[derive(Clone, Debug, Serialize)]
pub struct Large {
    /// Wall-clock time, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// Time of the allocation on `CLOCK_MONOTONIC`.
    pub ts_ns: u64,
    /// The process.
    pub pid: u32,
    /// Thread ID.
    pub tid: u32,
    /// The thread's name.
    pub thread: String,
    /// Name of the class.
    pub class: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Whether the object got heap regions of its own (G1).
    pub humongous: bool,
    /// Stack that allocated it, innermost frame first, with `--stacks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<Vec<StackFrame>>,
}

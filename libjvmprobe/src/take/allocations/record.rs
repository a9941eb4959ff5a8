//! What is told, as javaobjnew's JSON output spells it.
//!
//! Names and meanings are documented in javaobjnew(8) and stable: fields may be
//! added, none is renamed. Times are in nanoseconds, sizes in bytes.

use serde::Serialize;

use crate::render::{stack::StackFrame, table::Lost};

/// One line of output.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Record {
    /// One class in an interval or the whole trace.
    Class(Class),
    /// What a class has allocated from one stack.
    Stack(Stack),
    /// Totals of one JVM.
    Summary(Summary),
    /// A large object.
    Large(Large),
    /// What the kernel side could not count or send.
    Lost(Lost),
}

/// What one class has allocated.
#[derive(Clone, Debug, Serialize)]
pub struct Class {
    /// Wall-clock time of the end, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// The process.
    pub pid: u32,
    /// The class, as Java's source would name it.
    pub class: String,
    /// The thread, with `--threads`.
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
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Of the bytes of all classes, 0 to 1.
    pub share: f64,
    /// Bytes of one object.
    pub average_bytes: f64,
    /// Objects outside of TLABs among these, counted one by one; null with `--exact`.
    pub outside_objects: Option<u64>,
    /// Their bytes.
    pub outside_bytes: Option<u64>,
    /// Humongous objects among these, counted one by one.
    pub humongous_objects: u64,
    /// Their bytes.
    pub humongous_bytes: u64,
}

/// What one class has allocated from one stack.
#[derive(Clone, Debug, Serialize)]
pub struct Stack {
    /// Wall-clock time of the end, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// The process.
    pub pid: u32,
    /// The class.
    pub class: String,
    /// The thread, with `--threads`.
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
    /// Of the bytes of the class, 0 to 1.
    pub share: f64,
    /// The stack, innermost frame first.
    pub stack: Vec<StackFrame>,
}

/// Totals of one JVM.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Wall-clock time of the end, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// The end on `CLOCK_MONOTONIC`.
    pub ts_ns: u64,
    /// The process.
    pub pid: u32,
    /// The JVM's name and version, where it tells.
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
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// How many classes were seen (times threads, with `--threads`).
    pub classes: u64,
    /// Bytes of classes that found no room to be counted apart.
    pub other_bytes: u64,
    /// How many stacks were seen, with `--stacks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacks: Option<u64>,
    /// Bytes of stacks that found no room to be counted apart, with `--stacks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_stack_bytes: Option<u64>,
    /// Bytes of which no stack was seen, with `--stacks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsampled_bytes: Option<u64>,
    /// TLABs that were begun, or of a daemon's those that stand for all; null with `--exact`.
    pub tlabs: Option<u64>,
    /// Of these, how many were read.
    pub tlabs_read: Option<u64>,
    /// Objects outside of TLABs; null with `--exact`.
    pub outside_objects: Option<u64>,
    /// Their bytes.
    pub outside_bytes: Option<u64>,
    /// Humongous objects.
    pub humongous_objects: u64,
    /// Their bytes.
    pub humongous_bytes: u64,
    /// What the kernel side could not count or send.
    pub lost: u64,
}

/// A large object, as it is allocated.
#[derive(Clone, Debug, Serialize)]
pub struct Large {
    /// Wall-clock time, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// The same on `CLOCK_MONOTONIC`.
    pub ts_ns: u64,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The thread's name.
    pub thread: String,
    /// The class.
    pub class: String,
    /// Its size.
    pub bytes: u64,
    /// Whether it got heap regions of its own (G1).
    pub humongous: bool,
    /// Where it was allocated, innermost frame first, with `--stacks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<Vec<StackFrame>>,
}

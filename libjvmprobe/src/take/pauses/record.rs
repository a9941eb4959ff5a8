//! What is told, as javagc's JSON output spells it.
//!
//! Names and meanings are documented in javagc(8) and stable: fields may be
//! added, none is renamed. Times are in nanoseconds, sizes in bytes.

use serde::Serialize;

use crate::render::{stack::StackFrame, table::Lost};

/// One line of output.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Record {
    /// A stop in which the collector ran.
    Pause(Stop),
    /// Any other stop.
    Safepoint(Stop),
    /// A concurrent cycle, beside which the application ran.
    Cycle(Cycle),
    /// Totals of one JVM over the trace or one interval.
    Summary(Box<crate::take::pauses::summary::Summary>),
    /// Events that the kernel could not hand over.
    Lost(Lost),
}

/// The application stood still.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stop {
    /// Wall-clock time of the stop's begin, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// The same on `CLOCK_MONOTONIC`.
    pub ts_ns: u64,
    /// The process.
    pub pid: u32,
    /// The collector, for example `G1`.
    pub collector: &'static str,
    /// The JVM's operation that the stop was for.
    pub op: Option<String>,
    /// Why the collector ran, in the JVM's words.
    pub cause: Option<String>,
    /// Whether one of the collections was a full one.
    pub full: bool,
    /// Collections inside this stop.
    pub collections: u64,
    /// Operations inside this stop: more than one only up to JDK 13.
    pub operations: u32,
    /// From the request to the last thread's stop.
    pub ttsp_ns: Option<u64>,
    /// The collections themselves.
    pub pause_ns: Option<u64>,
    /// The whole time that the application stood still.
    pub stopped_ns: u64,
    /// Used heap when the collection began.
    pub heap_before: Option<u64>,
    /// Used heap when the collection ended.
    pub heap_after: Option<u64>,
    /// Memory pools, with `--pools`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pools: Option<Vec<Pool>>,
    /// Who asked for it, with `--stack`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<Request>,
}

/// A thread asked for a collection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Request {
    /// When, on `CLOCK_MONOTONIC`.
    pub ts_ns: u64,
    /// The thread.
    pub tid: u64,
    /// Its name, 15 bytes at most (`comm`).
    pub thread: String,
    /// Its stack, innermost frame first.
    pub stack: Vec<StackFrame>,
}

/// A memory pool around a collection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pool {
    /// The memory manager that collected it, for example `G1 Young Generation`.
    pub manager: String,
    /// The pool, for example `G1 Eden Space`.
    pub pool: String,
    /// Used bytes before.
    pub before: u64,
    /// Used bytes after; null when the end was not seen.
    pub after: Option<u64>,
    /// Committed bytes after (before, when the end was not seen).
    pub committed: u64,
    /// The limit, null where there is none.
    pub max: Option<u64>,
}

/// A concurrent cycle.
#[derive(Clone, Debug, Serialize)]
pub struct Cycle {
    /// Wall-clock time of the begin, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// The same on `CLOCK_MONOTONIC`.
    pub ts_ns: u64,
    /// The process.
    pub pid: u32,
    /// The collector.
    pub collector: &'static str,
    /// The kind of cycle, in the JVM's words where it has any.
    pub op: String,
    /// Why the cycle ran.
    pub cause: Option<String>,
    /// Begin to end; the application ran meanwhile.
    pub duration_ns: u64,
    /// Used heap at the begin.
    pub heap_before: Option<u64>,
    /// Used heap at the end.
    pub heap_after: Option<u64>,
    /// Memory pools, with `--pools`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pools: Option<Vec<Pool>>,
}

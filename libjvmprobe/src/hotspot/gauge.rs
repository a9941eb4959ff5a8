//! Addresses of the numbers in a JVM's memory that every event carries.

use crate::{Addr, hotspot::heap::Term};

/// Addresses of the numbers in a JVM's memory that every event carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gauge {
    /// Terms of the sum that is the used heap, at most eight; empty if it cannot be determined.
    pub(crate) heap: Vec<Term>,
    /// Counters of completed collections, by collector: young, old. Of 64-bit counters
    /// the low half is read.
    pub(crate) counters: [Option<Addr>; 4],
    /// The string `sun.gc.cause`.
    pub(crate) cause: Option<Addr>,
    /// The string `sun.gc.lastCause`.
    pub(crate) last_cause: Option<Addr>,
    /// The JVM's record of its last stop.
    pub last_stop: Option<LastStop>,
    /// Address of the VM thread's pointer to its current operation.
    pub(crate) operation: Option<Addr>,
    /// Whether the collector frees memory between the beginning of an operation and the beginning of its
    /// collection, at which the log reads the heap: CMS of JDK 8, which waits for its own thread.
    pub(crate) waits: bool,
    /// Whether the number of a stop's operation suffices to recognise a collection
    /// ([`HotSpot::is_pause`](crate::hotspot::HotSpot::is_pause)), and nothing that happens within the stop
    /// is needed: ZGC's pauses free nothing, and its log reports the heap for cycles, not pauses.
    pub op_shows_collection: bool,
    /// Counters of used bytes that the collector sets at the end of a collection, by space,
    /// at most eight. Empty if the collector has none, or if the sum of `heap` at the end of
    /// the operation gives the same result.
    pub(crate) used_at_gc_end: Vec<Addr>,
}

/// Addresses of the times of the JVM's last stop, 64-bit numbers of nanoseconds on
/// `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastStop {
    /// Time at which the threads were requested to stop.
    pub(crate) begin: Addr,
    /// Time at which all had stopped.
    pub(crate) sync: Addr,
    /// Time at which all were resumed.
    pub(crate) end: Addr,
    /// Number of the operation, 32 bits.
    pub(crate) op_type: Addr,
}

//! Where a JVM keeps the numbers that belong into every event.

use crate::{Addr, hotspot::heap::Term};

/// Where a JVM keeps the numbers that belong into every event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gauge {
    /// Summands of the used heap, at most eight; none where it is unknown.
    pub(crate) heap: Vec<Term>,
    /// The numbers of collections done, by collector: young, old. Of counters
    /// with 64 bits the low half is read.
    pub(crate) counters: [Option<Addr>; 4],
    /// The string `sun.gc.cause`.
    pub(crate) cause: Option<Addr>,
    /// The string `sun.gc.lastCause`.
    pub(crate) last_cause: Option<Addr>,
    /// What the JVM keeps of its last stop.
    pub last_stop: Option<LastStop>,
    /// Where the VM thread points to the operation that it runs.
    pub(crate) operation: Option<Addr>,
    /// Whether the collector frees memory between the begin of an operation and that of its
    /// collection, when its log reads the heap: CMS of JDK 8, which waits for its own thread.
    pub(crate) waits: bool,
    /// Whether the number of a stop's operation alone tells that it was a collection
    /// ([`HotSpot::is_pause`](crate::hotspot::HotSpot::is_pause)), and nothing else is wanted of
    /// what happened within: ZGC's pauses free nothing, and its log tells the heap of cycles.
    pub op_tells: bool,
    /// What the collector counted at the end of its last collection: used bytes, by space,
    /// at most eight; none where it does not count, or where the sum of `heap` at the end of
    /// the operation says the same.
    pub(crate) settled: Vec<Addr>,
}

/// Where a JVM keeps the times of its last stop, 64-bit numbers of nanoseconds on
/// `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastStop {
    /// The threads are asked to stop.
    pub(crate) begin: Addr,
    /// All have stopped.
    pub(crate) sync: Addr,
    /// All run again.
    pub(crate) end: Addr,
    /// The operation's number, 32 bits.
    pub(crate) op_type: Addr,
}

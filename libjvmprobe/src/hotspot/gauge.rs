//! Addresses in a JVM's memory of the values that the kernel side reads at every event.

use crate::{Addr, hotspot::heap::Term};

/// Addresses in a JVM's memory of the values that the kernel side reads at every event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gauge {
    /// Terms whose sum is the used heap, at most eight. Empty if the used heap cannot be determined.
    pub(crate) heap: Vec<Term>,
    /// Counters of collections (`sun.gc.collector.N.invocations`), by N: 0 for the young collector, 1 for the
    /// old one, 2 for the pauses of G1's concurrent marking. If a JVM has no performance data, the first
    /// address may be that of HotSpot's counter of GC IDs. The kernel side reads only the low half of a
    /// 64-bit counter.
    pub(crate) counters: [Option<Addr>; 4],
    /// The string `sun.gc.cause`.
    pub(crate) cause: Option<Addr>,
    /// The string `sun.gc.lastCause`.
    pub(crate) last_cause: Option<Addr>,
    /// The JVM's record of its last stop.
    pub last_stop: Option<LastStop>,
    /// Address of the VM thread's pointer to its current operation.
    pub(crate) operation: Option<Addr>,
    /// Whether the collector may free memory between the start of an operation and the start of the
    /// operation's collection. In that case the kernel side reads the heap size again when the collection
    /// begins, because the JVM's log contains this later value. True for CMS of JDK 8, whose operations first
    /// wait for CMS's own thread.
    pub(crate) reads_heap_at_gc_begin: bool,
    /// Whether the operation type of a stop alone shows that the stop is a collection
    /// ([`HotSpot::is_pause`](crate::hotspot::HotSpot::is_pause)), so that nothing needs to be read within
    /// the stop. True for ZGC if `last_stop` is known. Not even the used heap is needed there, because ZGC's
    /// pauses free nothing and its log reports the heap for cycles, not for pauses.
    pub op_shows_collection: bool,
    /// Counters of used bytes that the collector sets at the end of a collection: one for each space, at most
    /// eight. Empty if the collector has no such counters, or if they are not needed because the sum of
    /// `heap` at the end of the operation gives the same result.
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
    /// Type of the operation, a 32-bit number.
    pub(crate) op_type: Addr,
}

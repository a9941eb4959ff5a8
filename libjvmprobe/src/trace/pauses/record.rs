//! Records of the GC tracer, as javagc prints them in JSON.
//!
//! Names and meanings are documented in javagc(8) and stable: fields may be added, none is renamed. Times are
//! in nanoseconds, sizes in bytes.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{jvms::Lost, stack::StackFrame};

/// Text shown for a stop in which no operation ran. JDK 13 and older make such stops periodically, for cleanup.
pub const NO_OPERATION: &str = "(none)";

/// One line of output.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Record {
    /// A stop in which the collector ran.
    Pause(Stop),
    /// A stop without a collection.
    Safepoint(Stop),
    /// A concurrent cycle, during which the application ran.
    Cycle(Cycle),
    /// Totals of one JVM over the trace or one interval.
    #[serde(skip_deserializing)]
    Summary(Box<crate::trace::pauses::summary::Summary>),
    /// Events that the kernel side could not send.
    Lost(Lost),
    /// Stops of one JVM that were not recorded one by one, because there were too many.
    Limited(Limited),
}

impl Record {
    /// Returns the process that the record is about.
    pub fn pid(&self) -> u32 {
        match self {
            Self::Pause(stop) | Self::Safepoint(stop) => stop.pid,
            Self::Cycle(cycle) => cycle.pid,
            Self::Summary(summary) => summary.pid,
            Self::Lost(lost) => lost.pid(),
            Self::Limited(limited) => limited.pid,
        }
    }

    /// Returns the begin of a stop or cycle, or the time of a summary, on `CLOCK_MONOTONIC`, in nanoseconds; `None` for other
    /// records.
    pub fn ts_ns(&self) -> Option<u64> {
        match self {
            Self::Pause(stop) | Self::Safepoint(stop) => Some(stop.ts_ns),
            Self::Cycle(cycle) => Some(cycle.ts_ns),
            Self::Summary(summary) => Some(summary.ts_ns),
            Self::Lost(_) | Self::Limited(_) => None,
        }
    }

    /// Returns the end of a stop or cycle on `CLOCK_MONOTONIC`, in nanoseconds; `None` for other records.
    pub fn end_ns(&self) -> Option<u64> {
        match self {
            Self::Pause(stop) | Self::Safepoint(stop) => {
                Some(stop.ts_ns.saturating_add(stop.stopped_ns))
            }
            Self::Cycle(cycle) => Some(cycle.ts_ns.saturating_add(cycle.duration_ns)),
            Self::Summary(_) | Self::Lost(_) | Self::Limited(_) => None,
        }
    }

    /// Returns the time in the record, RFC 3339 with nanoseconds, UTC; `None` for sums of stops.
    pub fn time(&self) -> Option<&str> {
        match self {
            Self::Pause(stop) | Self::Safepoint(stop) => Some(&stop.time),
            Self::Cycle(cycle) => Some(&cycle.time),
            Self::Summary(summary) => Some(&summary.time),
            Self::Lost(lost) => Some(&lost.time),
            Self::Limited(_) => None,
        }
    }
}

/// Sums of stops that were not recorded one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Limited {
    /// The process.
    pub pid: u32,
    /// Stops in which the collector ran.
    pub pauses: Sum,
    /// Stops without a collection.
    pub safepoints: Sum,
}

/// Number of stops, and the time that the application was stopped in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Sum {
    /// Number of stops.
    pub count: u64,
    /// Total time of the stops.
    pub stopped_ns: u64,
    /// Duration of the longest stop.
    pub max_ns: u64,
}

impl Sum {
    /// Adds another sum.
    pub fn add(&mut self, more: &Self) {
        self.count = self.count.saturating_add(more.count);
        self.stopped_ns = self.stopped_ns.saturating_add(more.stopped_ns);
        self.max_ns = self.max_ns.max(more.max_ns);
    }

    /// Returns the increase since an earlier reading of the same sum. `max_ns` is not limited to the period
    /// in between: it is the longest stop so far.
    fn since(&self, earlier: &Self) -> Self {
        Self {
            count: self.count.saturating_sub(earlier.count),
            stopped_ns: self.stopped_ns.saturating_sub(earlier.stopped_ns),
            max_ns: self.max_ns,
        }
    }
}

impl Limited {
    /// Returns whether no stop was counted.
    pub fn is_empty(&self) -> bool {
        self.pauses.count == 0 && self.safepoints.count == 0
    }

    /// Returns the number of stops.
    pub fn count(&self) -> u64 {
        self.pauses.count.saturating_add(self.safepoints.count)
    }

    /// Adds another record of the same JVM.
    pub fn add(&mut self, more: &Self) {
        self.pauses.add(&more.pauses);
        self.safepoints.add(&more.safepoints);
    }

    /// Returns the increase since an earlier reading.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        Self {
            pid: self.pid,
            pauses: self.pauses.since(&earlier.pauses),
            safepoints: self.safepoints.since(&earlier.safepoints),
        }
    }
}

/// A stop of the application.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Stop {
    /// Wall-clock time of the stop's begin, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// Begin of the stop on `CLOCK_MONOTONIC`.
    pub ts_ns: u64,
    /// The process.
    pub pid: u32,
    /// The collector, for example `G1`.
    pub collector: Cow<'static, str>,
    /// The VM operation that the stop was for.
    pub op: Option<String>,
    /// Cause of the collection, as the JVM names it.
    pub cause: Option<String>,
    /// Whether one of the collections was a full collection.
    pub full: bool,
    /// Number of collections inside this stop.
    pub collections: u64,
    /// Number of VM operations inside this stop: more than one only up to JDK 13.
    pub operations: u32,
    /// Time to safepoint: from the request until the last thread has stopped.
    pub ttsp_ns: Option<u64>,
    /// Time of the collections themselves; null for a stop without a collection.
    pub pause_ns: Option<u64>,
    /// Total time that the application was stopped.
    pub stopped_ns: u64,
    /// Used heap in bytes when the collection began.
    pub heap_before: Option<u64>,
    /// Used heap in bytes when the collection ended.
    pub heap_after: Option<u64>,
    /// Longest time for which the VM thread or one of the collector's threads waited for a CPU, from the begin of the first
    /// collection to the end of the stop.
    pub cpu_wait_ns: Option<u64>,
    /// Number of periods in which the control group or one of its parents used up its CPU quota, in the same part of the
    /// stop.
    pub throttled_periods: Option<u64>,
    /// Memory pools, with `--pools`. They are not deserialized.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub pools: Option<Vec<Pool>>,
    /// Threads that requested the collection, with `--stacks`. They are not deserialized.
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<Request>,
}

impl Stop {
    /// Returns the wait for a CPU if it made the stop clearly longer: at least 1 ms and a tenth of the stop.
    pub fn long_cpu_wait(&self) -> Option<u64> {
        self.cpu_wait_ns.filter(|&ns| ns >= 1_000_000 && ns >= self.stopped_ns / 10)
    }
}

/// A thread that requested a collection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Request {
    /// Time of the request on `CLOCK_MONOTONIC`.
    pub ts_ns: u64,
    /// Thread ID.
    pub tid: u64,
    /// Name of the thread: complete for a Java thread, otherwise at most 15 bytes (`comm`).
    pub thread: String,
    /// Stack of the thread, innermost frame first.
    pub stack: Vec<StackFrame>,
}

/// A memory pool before and after a collection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pool {
    /// The memory manager that collected it, for example `G1 Young Generation`.
    pub manager: String,
    /// The pool, for example `G1 Eden Space`.
    pub pool: String,
    /// Used bytes before the collection.
    pub before: u64,
    /// Used bytes after the collection; null if the end was not seen.
    pub after: Option<u64>,
    /// Committed bytes after the collection (before it, if the end was not seen).
    pub committed: u64,
    /// Maximum size in bytes; null if there is none.
    pub max: Option<u64>,
}

/// A concurrent cycle.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Cycle {
    /// Wall-clock time of the cycle's begin, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// Begin of the cycle on `CLOCK_MONOTONIC`.
    pub ts_ns: u64,
    /// The process.
    pub pid: u32,
    /// The collector.
    pub collector: Cow<'static, str>,
    /// Kind of the cycle: the name of the JVM's memory manager for cycles, or `Concurrent Cycle` if there is
    /// none.
    pub op: String,
    /// Cause of the cycle, as the JVM names it.
    pub cause: Option<String>,
    /// Time from begin to end, during which the application ran.
    pub duration_ns: u64,
    /// Used heap in bytes at the begin.
    pub heap_before: Option<u64>,
    /// Used heap in bytes at the end.
    pub heap_after: Option<u64>,
    /// Memory pools, with `--pools`. They are not deserialized.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub pools: Option<Vec<Pool>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_waits_that_are_long_in_time_and_share_are_long() {
        let long = |cpu_wait_ns, stopped_ns| {
            Stop { cpu_wait_ns, stopped_ns, ..Stop::default() }.long_cpu_wait()
        };
        assert_eq!(long(Some(1_000_000), 10_000_000), Some(1_000_000));
        assert_eq!(long(Some(999_999), 1_000_000), None);
        assert_eq!(long(Some(1_000_000), 20_000_000), None);
        assert_eq!(long(None, 20_000_000), None);
    }

    #[test]
    fn records_of_earlier_versions_have_unknown_waits() {
        let stop: Stop = serde_json::from_str(r#"{"stopped_ns":5}"#).unwrap();
        assert_eq!((stop.cpu_wait_ns, stop.throttled_periods), (None, None));
    }
}

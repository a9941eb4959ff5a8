//! Stops of applications and cycles of collectors, a row each.

use crate::{
    render::{
        columns::fit,
        units::{bytes, millis, span},
    },
    trace::pauses::record::{Cycle, NO_OPERATION, Stop},
};

/// Widths of the name columns: wide enough for collectors' operations and causes. Longer names of other safepoint
/// operations are cut; JSON output has the complete names.
pub const OPERATION: usize = 28;
const CAUSE: usize = 28;

/// A row of the table.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// Begin time, as text.
    pub time: String,
    /// The process.
    pub pid: u32,
    /// The collector.
    pub collector: &'a str,
    /// The JVM's operation.
    pub op: &'a str,
    /// Cause of the collection.
    pub cause: Option<&'a str>,
    /// Time to safepoint, duration of the collections, and duration of the stop, in nanoseconds.
    pub times: [Option<u64>; 3],
    /// Used heap in bytes, before and after.
    pub heap: [Option<u64>; 2],
}

impl<'a> Row<'a> {
    /// Makes the row of a stop; `time` is the time as it is shown.
    pub fn of_stop(stop: &'a Stop, time: String) -> Self {
        Self {
            time,
            pid: stop.pid,
            collector: &stop.collector,
            op: stop.op.as_deref().unwrap_or(NO_OPERATION),
            cause: stop.cause.as_deref(),
            times: [stop.ttsp_ns, stop.pause_ns, Some(stop.stopped_ns)],
            heap: [stop.heap_before, stop.heap_after],
        }
    }

    /// Makes the row of a concurrent cycle; `time` is the time as it is shown.
    pub fn of_cycle(cycle: &'a Cycle, time: String) -> Self {
        Self {
            time,
            pid: cycle.pid,
            collector: &cycle.collector,
            op: &cycle.op,
            cause: cycle.cause.as_deref(),
            times: [None; 3],
            heap: [cycle.heap_before, cycle.heap_after],
        }
    }

    /// Returns the formatted line.
    pub fn line(&self) -> String {
        let [ttsp, pause, stopped] = self.times.map(|t| t.map_or("-".into(), millis));
        let [before, after] = self.heap.map(size);
        format!(
            "{} {:>7} {:<10} {:<OPERATION$} {:<CAUSE$} {ttsp:>9} {pause:>10} {stopped:>11} \
             {before:>11} {after:>10}",
            self.time,
            self.pid,
            self.collector,
            fit(self.op, OPERATION),
            fit(self.cause.unwrap_or("-"), CAUSE),
        )
    }
}

/// Returns the header line for rows with a time column of this width.
pub fn head(time: usize) -> String {
    format!(
        "{:<time$} {:>7} {:<10} {:<OPERATION$} {:<CAUSE$} {:>9} {:>10} {:>11} {:>11} {:>10}",
        "TIME",
        "PID",
        "COLLECTOR",
        "OPERATION",
        "CAUSE",
        "TTSP(ms)",
        "PAUSE(ms)",
        "STOPPED(ms)",
        "HEAP-BEFORE",
        "HEAP-AFTER",
    )
}

/// Returns the text after the row of a stop: several collections, and a long wait for a CPU.
pub fn suffix(stop: &Stop) -> String {
    let mut suffix = String::new();
    if stop.collections > 1 {
        suffix += &format!("  {} collections", stop.collections);
    }
    if let Some(wait) = stop.long_cpu_wait() {
        suffix += &format!("  waited {} for a CPU", span(wait));
        if stop.throttled_periods.is_some_and(|periods| periods > 0) {
            suffix += " (CPU quota)";
        }
    }
    suffix
}

/// Formats a number of bytes, or `-` if unknown.
pub fn size(value: Option<u64>) -> String {
    value.map_or("-".into(), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffix_names_collections_long_waits_and_the_quota() {
        let stop = Stop { stopped_ns: 100_000_000, collections: 1, ..Stop::default() };
        assert_eq!(suffix(&stop), "");
        let stop = Stop { cpu_wait_ns: Some(80_200_000), throttled_periods: Some(0), ..stop };
        assert_eq!(suffix(&stop), "  waited 80.2 ms for a CPU");
        let stop = Stop { throttled_periods: Some(1), collections: 2, ..stop };
        assert_eq!(suffix(&stop), "  2 collections  waited 80.2 ms for a CPU (CPU quota)");
        let stop = Stop { cpu_wait_ns: Some(5_000_000), collections: 1, ..stop };
        assert_eq!(suffix(&stop), "");
    }
}

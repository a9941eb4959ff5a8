//! Stops of applications and cycles of collectors, a row each, and their totals.

use crate::{
    render::{
        columns::fit,
        table::{RuledTable, lost_line},
        units::{bytes, count, millis, percent, span},
    },
    trace::pauses::{
        record::{Cycle, Limited, NO_OPERATION, Stop, Sum},
        summary::{Stats, Summary},
    },
};

/// Widths of the name columns: wide enough for collectors' operations and causes. Longer names of other safepoint
/// operations are cut; JSON output has the complete names.
const OPERATION: usize = 28;
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

/// Returns the table of totals by operation; `None` if it has no rows. `limited` are stops of which only sums are
/// known: they have rows named (others), without percentiles. Stops without a collection are included if
/// `with_safepoints` is set.
pub fn operations(summary: &Summary, limited: &Limited, with_safepoints: bool) -> Option<String> {
    let shown = summary.operations.iter().filter(|op| op.gc || with_safepoints);
    let others = [(&limited.pauses, true), (&limited.safepoints, with_safepoints)];
    let others = others.into_iter().filter(|(sum, is_shown)| sum.count > 0 && *is_shown);
    let (mut shown, mut others) = (shown.peekable(), others.peekable());
    if shown.peek().is_none() && others.peek().is_none() {
        return None;
    }
    let head = ["OPERATION", "(ms)", "COUNT", "TOTAL", "MEAN", "P50", "P90", "P99", "MAX"];
    let mut table = RuledTable::new(&head, 2..head.len());
    for op in shown {
        let count = op.count.to_string();
        let name = fit(&op.op, OPERATION);
        if let Some(pause) = &op.pause {
            table.row(cells([&name, "PAUSE", &count], pause));
            table.row(cells(["", "STOPPED", ""], &op.stopped));
        } else {
            table.row(cells([&name, "STOPPED", &count], &op.stopped));
        }
    }
    others.for_each(|(sum, _)| table.row(cells_of_sum(sum)));
    Some(table.text())
}

fn cells(head: [&str; 3], stats: &Stats) -> Vec<String> {
    let times =
        [stats.total_ns, stats.mean_ns, stats.p50_ns, stats.p90_ns, stats.p99_ns, stats.max_ns];
    head.into_iter().map(str::to_owned).chain(times.map(millis)).collect()
}

fn cells_of_sum(sum: &Sum) -> Vec<String> {
    let mut row = vec!["(others)".to_owned(), "STOPPED".to_owned(), sum.count.to_string()];
    row.extend([sum.stopped_ns, sum.stopped_ns / sum.count.max(1)].map(millis));
    row.extend(["-", "-", "-"].map(str::to_owned));
    row.push(millis(sum.max_ns));
    row
}

/// Returns the lines of totals below the table of [`operations`].
pub fn totals(s: &Summary) -> Vec<String> {
    let wall = s.duration_ns as f64;
    let stopped = |times, ns: u64| {
        let share = percent(ns as f64, wall);
        format!("{} for {}: {share} of the time", count(times, "time"), span(ns))
    };
    let mut first = match s.pauses {
        0 => "GC did not stop the application".to_owned(),
        times => format!("GC stopped the application {}", stopped(times, s.stopped_ns)),
    };
    // With a concurrent collector, a collection is a cycle, so the rate is printed with the number of
    // cycles.
    let cycles_rate = match s.concurrent {
        false if s.collections == 0 => String::new(),
        false => {
            first += &format!(
                "; {}, {} full, {:.1} per minute",
                count(s.collections, "collection"),
                s.full,
                s.collections_per_minute
            );
            String::new()
        }
        true => {
            if s.full > 0 {
                first += &format!("; {} full", s.full);
            }
            format!(", {:.1} per minute", s.collections_per_minute)
        }
    };
    let mut lines = vec![first];
    if let Some(ns) = s.cpu_wait_ns.filter(|_| s.long_cpu_waits > 0) {
        let mut line = format!(
            "GC waited {} for a CPU: {} of the time in pauses",
            span(ns),
            percent(ns as f64, s.stopped_ns as f64)
        );
        if let Some(periods) = s.throttled_periods.filter(|&periods| periods > 0) {
            line += &format!("; CPU quota used up {}", count(periods, "time"));
        }
        lines.push(line);
    }
    if s.safepoints > 0 {
        lines
            .push(format!("Other safepoints stopped it {}", stopped(s.safepoints, s.safepoint_ns)));
    }
    if s.cycles > 0 {
        lines.push(format!(
            "Concurrent cycles: {}{cycles_rate}, {} in total, while the application was running",
            s.cycles,
            span(s.cycle_ns),
        ));
    }
    if let (Some(freed), Some(rate)) = (s.freed_bytes, s.allocated_bytes_per_second) {
        lines.push(format!("Freed {}; allocation rate {}/s", bytes(freed), bytes(rate as u64)));
    }
    lines.extend(lost_line(s.lost));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::pauses::summary::{JvmName, Totals};

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

    #[test]
    fn stops_known_only_as_sums_have_a_row_without_percentiles() {
        let name = JvmName { pid: 1, collector: "G1".into(), version: None };
        let summary = Totals::new(0, false).summary(1, &name, true);
        assert_eq!(operations(&summary, &Limited::default(), true), None);
        let pauses = Sum { count: 4, stopped_ns: 8_000_000, max_ns: 3_000_000 };
        let table = operations(&summary, &Limited { pauses, ..Limited::default() }, false).unwrap();
        let row = table.lines().find(|line| line.contains("(others)")).unwrap();
        let cells: Vec<_> = row.split_whitespace().collect();
        assert_eq!(cells, ["(others)", "STOPPED", "4", "8.000", "2.000", "-", "-", "-", "3.000"]);
    }
}

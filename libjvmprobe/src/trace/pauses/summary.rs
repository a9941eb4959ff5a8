//! Totals of the stops and cycles of a JVM over a trace or an interval.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::{
    bpf::clock,
    trace::pauses::{
        histogram::Log2Histogram,
        record::{NO_OPERATION, Record, Stop},
    },
};

/// Totals of one JVM, as printed in JSON; see javagc(8).
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Wall-clock time at which the interval or trace ended, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// Time at which the interval or trace ended, on `CLOCK_MONOTONIC`.
    pub ts_ns: u64,
    /// The process.
    pub pid: u32,
    /// The collector.
    pub collector: String,
    /// Name and version of the JVM, if it reports them.
    pub jvm: Option<String>,
    /// Wall time that the totals cover.
    pub duration_ns: u64,
    /// Stops in which the collector ran.
    pub pauses: u64,
    /// Number of collections inside these stops.
    pub collections: u64,
    /// Stops with a full collection.
    pub full: u64,
    /// Total time of the collections.
    pub pause_ns: u64,
    /// Total time of the stops with collections.
    pub stopped_ns: u64,
    /// Total time for which these stops waited for a CPU; see [`Stop::cpu_wait_ns`]. Stops in which it is unknown are not
    /// included; null if it is unknown in all of them.
    pub cpu_wait_ns: Option<u64>,
    /// Number of these stops that were clearly longer because of these waits.
    #[serde(skip)]
    pub long_cpu_waits: u64,
    /// Sum of [`Stop::throttled_periods`] of these stops; null if it is unknown in all of them.
    pub throttled_periods: Option<u64>,
    /// Share of wall time in stops with collections, 0 to 1.
    pub stopped_share: f64,
    /// Collections per minute; for a concurrent collector, cycles per minute.
    pub collections_per_minute: f64,
    /// Number of stops without a collection.
    pub safepoints: u64,
    /// Total time of the stops without a collection.
    pub safepoint_ns: u64,
    /// Number of concurrent cycles that ended.
    pub cycles: u64,
    /// Total time of the concurrent cycles, during which the application ran.
    pub cycle_ns: u64,
    /// Whether the collector frees memory while the application runs.
    #[serde(skip)]
    pub concurrent: bool,
    /// Bytes freed by the pauses; null for collectors that free memory concurrently, or if the heap before or
    /// after a pause is unknown.
    pub freed_bytes: Option<u64>,
    /// Bytes allocated between the pauses; null if `freed_bytes` is.
    pub allocated_bytes: Option<u64>,
    /// Bytes allocated per second between the pauses; null if `freed_bytes` is, or with fewer than two pauses.
    pub allocated_bytes_per_second: Option<f64>,
    /// Events that the kernel side could not send.
    pub lost: u64,
    /// Totals by operation. Operations with collections come before those without; each group is sorted by
    /// total stop time, longest first.
    pub operations: Vec<Operation>,
    /// With `--histogram`: power-of-two histograms of PAUSE and STOPPED in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub histograms: Option<Histograms>,
}

/// Totals of one operation.
#[derive(Clone, Debug, Serialize)]
pub struct Operation {
    /// Name of the operation in the JVM.
    pub op: String,
    /// Whether the collector ran in the operation.
    pub gc: bool,
    /// Number of stops.
    pub count: u64,
    /// Number of collections inside these stops.
    pub collections: u64,
    /// Times of the collections; null if there were none.
    pub pause: Option<Stats>,
    /// Times of the stops.
    pub stopped: Stats,
}

/// A distribution of times in nanoseconds. Percentiles are within 0.1 %.
#[derive(Clone, Debug, Serialize)]
pub struct Stats {
    /// Sum of the times.
    pub total_ns: u64,
    /// Arithmetic mean.
    pub mean_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Maximum, exact.
    pub max_ns: u64,
}

/// Power-of-two histograms, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Histograms {
    /// Histogram of PAUSE.
    #[serde(serialize_with = "slots")]
    pub pause_us: Log2Histogram,
    /// Histogram of STOPPED.
    #[serde(serialize_with = "slots")]
    pub stopped_us: Log2Histogram,
}

fn slots<S: serde::Serializer>(histogram: &Log2Histogram, s: S) -> Result<S::Ok, S::Error> {
    s.collect_seq(histogram.slots())
}

/// Distribution of times, with an exact sum and maximum.
#[derive(Debug)]
struct Times {
    total: u64,
    max: u64,
    histogram: Histogram<u32>,
}

impl Times {
    fn new() -> Self {
        // Cannot fail: 0 to 5 significant digits are allowed.
        let histogram = Histogram::new(3).unwrap_or_else(|_| unreachable!("3 digits"));
        Self { total: 0, max: 0, histogram }
    }

    fn record(&mut self, ns: u64) {
        self.total = self.total.saturating_add(ns);
        self.max = self.max.max(ns);
        // Fails only if the index of a bucket exceeds `usize`, which cannot happen if `usize` has 64 bits.
        let _ = self.histogram.record(ns);
    }

    fn stats(&self) -> Option<Stats> {
        let count = self.histogram.len();
        let quantile = |q| self.histogram.value_at_quantile(q).min(self.max);
        (count > 0).then(|| Stats {
            total_ns: self.total,
            mean_ns: self.total / count,
            p50_ns: quantile(0.5),
            p90_ns: quantile(0.9),
            p99_ns: quantile(0.99),
            max_ns: self.max,
        })
    }
}

#[derive(Debug)]
struct Tally {
    collections: u64,
    pause: Times,
    stopped: Times,
}

/// Adds up one JVM's stops and cycles.
#[derive(Debug)]
pub struct Totals {
    begin_ns: u64,
    full: u64,
    /// Sums of the stops with collections, see [`Summary`].
    cpu_wait_ns: Option<u64>,
    long_cpu_waits: u64,
    throttled_periods: Option<u64>,
    /// Totals by operation and by whether the collector ran. An operation may run with and without a
    /// collection: G1TryInitiateConcMark, for example, may find that there is nothing to do.
    tallies: BTreeMap<(String, bool), Tally>,
    cycles: Times,
    heap: HeapFlow,
    lost: u64,
    histograms: Option<Histograms>,
}

/// Bytes allocated between pauses and freed inside them.
#[derive(Debug, Default)]
struct HeapFlow {
    freed: u64,
    allocated: u64,
    /// Total time between pauses, during which `allocated` was allocated.
    between_pauses_ns: u64,
    /// End of the last pause in nanoseconds, and the used heap in bytes at that time.
    last: Option<(u64, u64)>,
    /// Whether the heap before or after some pause is unknown, so that the sums are too low.
    incomplete: bool,
}

impl Totals {
    /// Starts counting at an instant on `CLOCK_MONOTONIC`.
    pub fn new(begin_ns: u64, with_histograms: bool) -> Self {
        let histogram = || Log2Histogram::new("usecs");
        Self {
            begin_ns,
            full: 0,
            cpu_wait_ns: None,
            long_cpu_waits: 0,
            throttled_periods: None,
            tallies: BTreeMap::new(),
            cycles: Times::new(),
            heap: HeapFlow::default(),
            lost: 0,
            histograms: with_histograms
                .then(|| Histograms { pause_us: histogram(), stopped_us: histogram() }),
        }
    }

    /// Starts the next interval. The used heap after the last pause is kept, so that bytes allocated between
    /// that pause and the first pause of the next interval are counted.
    pub(crate) fn next(&self, begin_ns: u64) -> Self {
        let mut next = Self::new(begin_ns, self.histograms.is_some());
        next.heap.last = self.heap.last;
        next
    }

    /// Adds a record, except sums of stops that were not recorded one by one.
    pub fn add(&mut self, record: &Record) {
        match record {
            Record::Pause(stop) | Record::Safepoint(stop) => self.stop(stop),
            Record::Cycle(cycle) => self.cycles.record(cycle.duration_ns),
            Record::Lost(lost) => self.lost(lost.events()),
            Record::Summary(_) | Record::Limited(_) => {}
        }
    }

    /// Adds a stop, with or without collection.
    pub(crate) fn stop(&mut self, stop: &Stop) {
        let op = stop.op.clone().unwrap_or_else(|| NO_OPERATION.into());
        let gc = stop.pause_ns.is_some();
        let is_new = !self.tallies.contains_key(&(op.clone(), gc));
        let op = if is_new && self.tallies.len() >= MAX_TALLIES { OTHERS.into() } else { op };
        let tally = self.tallies.entry((op, gc)).or_insert_with(|| Tally {
            collections: 0,
            pause: Times::new(),
            stopped: Times::new(),
        });
        tally.stopped.record(stop.stopped_ns);
        let Some(pause_ns) = stop.pause_ns else {
            return;
        };
        tally.collections = tally.collections.saturating_add(stop.collections);
        tally.pause.record(pause_ns);
        self.full += u64::from(stop.full);
        self.cpu_wait_ns = sum(self.cpu_wait_ns, stop.cpu_wait_ns);
        self.long_cpu_waits += u64::from(stop.long_cpu_wait().is_some());
        self.throttled_periods = sum(self.throttled_periods, stop.throttled_periods);
        self.heap.pause(stop);
        if let Some(histograms) = &mut self.histograms {
            histograms.pause_us.record(pause_ns / 1_000);
            histograms.stopped_us.record(stop.stopped_ns / 1_000);
        }
    }

    /// Adds lost events.
    pub(crate) fn lost(&mut self, events: u64) {
        self.lost += events;
    }

    /// Returns the totals up to `end_ns`. `frees_in_pauses` is whether the collector frees memory in pauses
    /// only. Only then can freed and allocated bytes be computed from the heap sizes before and after pauses.
    pub fn summary(&self, end_ns: u64, jvm: &JvmName, frees_in_pauses: bool) -> Summary {
        let duration_ns = end_ns.saturating_sub(self.begin_ns);
        let seconds = (duration_ns as f64 / 1e9).max(1e-9);
        let of_kind =
            |gc| self.tallies.iter().filter(move |((_, is_gc), _)| *is_gc == gc).map(|(_, t)| t);
        let (gc, other): (Vec<_>, Vec<_>) = (of_kind(true).collect(), of_kind(false).collect());
        // A JVM whose own counters are read may report any numbers.
        let total = |of: &[&Tally], value: fn(&Tally) -> u64| {
            of.iter().fold(0, |sum: u64, t| sum.saturating_add(value(t)))
        };
        let collections = total(&gc, |t| t.collections);
        let stopped_ns = total(&gc, |t| t.stopped.total);
        let rated = if frees_in_pauses { collections } else { self.cycles.histogram.len() };
        let flow = Some(&self.heap).filter(|heap| frees_in_pauses && !heap.incomplete);
        let mut operations: Vec<_> = self
            .tallies
            .iter()
            .filter_map(|((op, gc), tally)| {
                Some(Operation {
                    op: op.clone(),
                    gc: *gc,
                    count: tally.stopped.histogram.len(),
                    collections: tally.collections,
                    pause: tally.pause.stats(),
                    stopped: tally.stopped.stats()?,
                })
            })
            .collect();
        operations.sort_by_key(|op| std::cmp::Reverse((op.gc, op.stopped.total_ns)));
        Summary {
            time: clock::rfc3339(end_ns),
            ts_ns: end_ns,
            pid: jvm.pid,
            collector: jvm.collector.clone(),
            jvm: jvm.version.clone(),
            duration_ns,
            pauses: gc.iter().map(|t| t.stopped.histogram.len()).sum(),
            collections,
            full: self.full,
            pause_ns: total(&gc, |t| t.pause.total),
            stopped_ns,
            cpu_wait_ns: self.cpu_wait_ns,
            long_cpu_waits: self.long_cpu_waits,
            throttled_periods: self.throttled_periods,
            stopped_share: stopped_ns as f64 / 1e9 / seconds,
            collections_per_minute: rated as f64 * 60.0 / seconds,
            safepoints: other.iter().map(|t| t.stopped.histogram.len()).sum(),
            safepoint_ns: total(&other, |t| t.stopped.total),
            cycles: self.cycles.histogram.len(),
            cycle_ns: self.cycles.total,
            concurrent: !frees_in_pauses,
            freed_bytes: flow.map(|flow| flow.freed),
            allocated_bytes: flow.map(|flow| flow.allocated),
            allocated_bytes_per_second: flow
                .filter(|flow| flow.between_pauses_ns > 0)
                .map(|flow| flow.allocated as f64 * 1e9 / flow.between_pauses_ns as f64),
            lost: self.lost,
            operations,
            histograms: self.histograms.clone(),
        }
    }
}

/// Returns the sum of the values that are known; `None` if none is.
fn sum(total: Option<u64>, value: Option<u64>) -> Option<u64> {
    value.map_or(total, |value| Some(total.unwrap_or(0).saturating_add(value)))
}

/// Maximum number of operations with totals of their own. A JVM has about a hundred operations and uses about
/// twenty of them.
const MAX_TALLIES: usize = 64;

/// Name of the sum of all other operations.
const OTHERS: &str = "(others)";

/// Process, collector and version of the JVM that a summary is about.
#[derive(Clone, Debug)]
pub struct JvmName {
    /// The process.
    pub pid: u32,
    /// The collector.
    pub collector: String,
    /// Name and version of the JVM.
    pub version: Option<String>,
}

impl HeapFlow {
    fn pause(&mut self, stop: &Stop) {
        let (Some(before), Some(after)) = (stop.heap_before, stop.heap_after) else {
            self.incomplete = true;
            self.last = None;
            return;
        };
        self.freed = self.freed.saturating_add(before.saturating_sub(after));
        if let Some((end_ns, left)) = self.last {
            self.allocated = self.allocated.saturating_add(before.saturating_sub(left));
            let between_ns = stop.ts_ns.saturating_sub(end_ns);
            self.between_pauses_ns = self.between_pauses_ns.saturating_add(between_ns);
        }
        self.last = Some((stop.ts_ns.saturating_add(stop.stopped_ns), after));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(ts_ns: u64, stopped_ns: u64, heap: (u64, u64)) -> Stop {
        Stop {
            time: String::new(),
            ts_ns,
            pid: 1,
            collector: "G1".into(),
            op: Some("G1CollectForAllocation".into()),
            cause: None,
            full: false,
            collections: 2,
            operations: 1,
            ttsp_ns: Some(1),
            pause_ns: Some(stopped_ns / 2),
            stopped_ns,
            heap_before: Some(heap.0),
            heap_after: Some(heap.1),
            ..Stop::default()
        }
    }

    fn name() -> JvmName {
        JvmName { pid: 1, collector: "G1".into(), version: None }
    }

    #[test]
    fn sums_are_exact_and_percentiles_nearly_exact() {
        let mut totals = Totals::new(0, true);
        for i in 1..=1000u64 {
            totals.stop(&pause(i * 1_000_000, i * 1_000, (0, 0)));
        }
        let summary = totals.summary(2_000_000_000, &name(), true);
        assert_eq!(summary.pauses, 1000);
        assert_eq!(summary.collections, 2000);
        assert_eq!(summary.stopped_ns, 500_500_000);
        assert!((summary.stopped_share - 0.25025).abs() < 1e-9);
        assert!((summary.collections_per_minute - 60_000.0).abs() < 1e-6);
        let stopped = &summary.operations[0].stopped;
        assert_eq!((stopped.max_ns, stopped.mean_ns), (1_000_000, 500_500));
        assert!(stopped.p99_ns.abs_diff(990_000) <= 990, "{}", stopped.p99_ns);
        let histograms = summary.histograms.unwrap();
        assert_eq!(histograms.stopped_us.slots().map(|s| s.2).sum::<u64>(), 1000);
    }

    #[test]
    fn waits_for_a_cpu_are_summed_where_they_are_known() {
        let mut totals = Totals::new(0, false);
        totals.stop(&pause(1, 50_000_000, (0, 0)));
        assert_eq!(totals.summary(9, &name(), true).cpu_wait_ns, None);
        let stop = pause(2, 50_000_000, (0, 0));
        for (ns, periods) in [(40_000_000, 1), (2_000_000, 0)] {
            let waits = (Some(ns), Some(periods));
            totals.stop(&Stop { cpu_wait_ns: waits.0, throttled_periods: waits.1, ..stop.clone() });
        }
        let summary = totals.summary(9, &name(), true);
        assert_eq!((summary.cpu_wait_ns, summary.long_cpu_waits), (Some(42_000_000), 1));
        assert_eq!(summary.throttled_periods, Some(1));
    }

    #[test]
    fn sums_of_implausible_times_saturate() {
        let mut totals = Totals::new(0, true);
        for op in ["a", "b", "b"] {
            let stop = pause(u64::MAX, u64::MAX, (0, 0));
            totals.stop(&Stop { op: Some(op.into()), collections: u64::MAX, ..stop });
        }
        let summary = totals.summary(1, &name(), true);
        assert_eq!(
            (summary.stopped_ns, summary.collections, summary.pauses),
            (u64::MAX, u64::MAX, 3)
        );
    }

    #[test]
    fn allocation_is_the_heap_growth_between_pauses() {
        let mut totals = Totals::new(0, false);
        totals.stop(&pause(1_000_000_000, 500_000_000, (100, 40)));
        totals.stop(&pause(2_500_000_000, 500_000_000, (140, 50)));
        let summary = totals.summary(4_000_000_000, &name(), true);
        assert_eq!(summary.freed_bytes, Some(150));
        assert_eq!(summary.allocated_bytes, Some(100));
        assert_eq!(summary.allocated_bytes_per_second, Some(100.0));

        let mut next = totals.next(4_000_000_000);
        next.stop(&pause(5_000_000_000, 1, (70, 60)));
        let summary = next.summary(6_000_000_000, &name(), true);
        assert_eq!(summary.allocated_bytes, Some(20));
        assert_eq!(next.summary(1, &name(), false).allocated_bytes, None);
    }

    #[test]
    fn unknown_heap_size_yields_no_heap_sums() {
        let mut totals = Totals::new(0, false);
        totals.stop(&pause(1, 1, (100, 40)));
        totals.stop(&Stop { heap_after: None, ..pause(5, 1, (100, 40)) });
        totals.stop(&pause(9, 1, (100, 40)));
        let summary = totals.summary(20, &name(), true);
        assert_eq!((summary.freed_bytes, summary.allocated_bytes), (None, None));
        assert_eq!((summary.allocated_bytes_per_second, summary.concurrent), (None, false));
        assert_eq!(totals.next(20).summary(30, &name(), true).freed_bytes, Some(0));
    }

    #[test]
    fn stops_without_collection_count_as_safepoints() {
        let mut totals = Totals::new(0, false);
        let mut other = pause(5, 70, (0, 0));
        other.op = None;
        other.pause_ns = None;
        totals.stop(&other);
        let summary = totals.summary(100, &name(), true);
        assert_eq!((summary.pauses, summary.safepoints, summary.safepoint_ns), (0, 1, 70));
        assert_eq!(summary.operations[0].op, NO_OPERATION);
        assert!(summary.operations[0].pause.is_none());
    }

    #[test]
    fn operations_beyond_the_limit_are_combined() {
        let mut totals = Totals::new(0, false);
        for i in 0..1000 {
            totals.stop(&Stop { op: Some(format!("Op{i}")), ..pause(5, 70, (0, u64::MAX)) });
            totals.stop(&Stop { op: Some("Op0".into()), ..pause(5, 70, (u64::MAX, 0)) });
        }
        let summary = totals.summary(100, &name(), true);
        assert_eq!(summary.pauses, 2000);
        assert_eq!(summary.operations.len(), MAX_TALLIES + 1);
        let count = |name| summary.operations.iter().find(|op| op.op == name).map(|op| op.count);
        assert_eq!((count("Op0"), count(OTHERS)), (Some(1001), Some(1000 - MAX_TALLIES as u64)));
    }

    #[test]
    fn operation_without_collection_is_no_pause() {
        let mut totals = Totals::new(0, false);
        let mut stop = pause(5, 70, (0, 0));
        totals.stop(&stop);
        stop.pause_ns = None;
        totals.stop(&stop);
        let summary = totals.summary(100, &name(), true);
        assert_eq!((summary.pauses, summary.safepoints), (1, 1));
        assert_eq!(summary.operations.iter().map(|op| op.gc).collect::<Vec<_>>(), [true, false]);
    }
}

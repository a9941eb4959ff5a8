//! Stops of JVMs: rows as javagc(8) prints them, and totals by operation.

use std::{collections::BTreeMap, sync::Arc};

use libjvmprobe::{
    Result,
    render::{
        columns::wrap,
        output::Output,
        stops::{Row, head, suffix},
        table::RuledTable,
        units::{count, millis, percent, span},
    },
    trace::pauses::record::{Limited, NO_OPERATION, Record, Sum},
};

use crate::{
    show::{
        selection::{Selection, time_of},
        time_arg::format_time,
    },
    window::Identity,
};

/// Output options.
#[derive(Clone, Copy, Debug)]
pub struct GcOptions {
    /// Print JSON lines.
    pub json: bool,
    /// Include stops without a collection.
    pub safepoints: bool,
    /// Print dates.
    pub dates: bool,
}

/// Prints the stops.
///
/// # Errors
/// Errors of writing.
pub fn show(selection: &Selection, output_options: GcOptions, out: &mut Output) -> Result<()> {
    let pauses = selection.pauses();
    let is_wanted =
        |record: &Record| output_options.safepoints || !matches!(record, Record::Safepoint(_));
    if output_options.json {
        for (_, record) in pauses.iter().filter(|(_, record)| is_wanted(record)) {
            out.json(record)?;
        }
        return Ok(());
    }
    out.lines(&format!("\n{}", selection.title(None)))?;
    let format = if output_options.dates { "%Y-%m-%dT%H:%M:%S%.3f%:z" } else { "%H:%M:%S%.3f" };
    let mut totals: BTreeMap<(&str, u32, u64), Totals<'_>> = BTreeMap::new();
    let mut has_head = false;
    for (identity, record) in pauses {
        let of = totals
            .entry((&identity.name, identity.pid, identity.started_ns))
            .or_insert_with(|| Totals::of(identity));
        of.add(record);
        let time = || time_of(record).map_or_else(String::new, |ns| format_time(ns, format));
        let (row, more) = match record {
            Record::Pause(stop) | Record::Safepoint(stop) if is_wanted(record) => {
                (Row::of_stop(stop, time()), suffix(stop))
            }
            Record::Cycle(cycle) => {
                let more = format!("  concurrent, {}", span(cycle.duration_ns));
                (Row::of_cycle(cycle, time()), more)
            }
            _ => continue,
        };
        if !std::mem::replace(&mut has_head, true) {
            out.line("")?;
            out.line(&head(row.time.len()))?;
        }
        out.line(&(row.line() + &more))?;
    }
    for totals in totals.values() {
        totals.show(selection.covered_ns(None), output_options, out)?;
    }
    if totals.is_empty() {
        out.line("There were no stops.")?;
    }
    Ok(())
}

/// Totals of one JVM's stops.
struct Totals<'a> {
    identity: &'a Arc<Identity>,
    /// Lengths of the stops in nanoseconds. The key is whether the stops are collections, and their
    /// operation.
    stops: BTreeMap<(bool, &'a str), Vec<u64>>,
    cycles: Vec<u64>,
    full: u64,
    lost: u64,
    /// Sums of stops that were not recorded one by one.
    limited: Limited,
}

impl<'a> Totals<'a> {
    fn of(identity: &'a Arc<Identity>) -> Self {
        Self {
            identity,
            stops: BTreeMap::new(),
            cycles: Vec::new(),
            full: 0,
            lost: 0,
            limited: Limited::default(),
        }
    }

    fn add(&mut self, record: &'a Record) {
        match record {
            Record::Limited(limited) => self.limited.add(limited),
            Record::Pause(stop) | Record::Safepoint(stop) => {
                let is_gc = matches!(record, Record::Pause(_));
                let op = stop.op.as_deref().unwrap_or(NO_OPERATION);
                self.stops.entry((is_gc, op)).or_default().push(stop.stopped_ns);
                self.full += u64::from(stop.full);
            }
            Record::Cycle(cycle) => self.cycles.push(cycle.duration_ns),
            Record::Lost(lost) => self.lost += lost.events(),
            Record::Summary(_) => {}
        }
    }

    fn show(&self, covered_ns: u64, output_options: GcOptions, out: &mut Output) -> Result<()> {
        let Identity { pid, name, attributes, .. } = &**self.identity;
        let version = attributes.get("process.runtime.description").map_or("", String::as_str);
        out.line("")?;
        out.line(&format!("PID {pid}  {name}  {version}  recorded for {}", span(covered_ns)))?;
        let head = ["OPERATION", "COUNT", "TOTAL(ms)", "MEAN", "P50", "P90", "P99", "MAX"];
        let mut table = RuledTable::new(&head, 1..head.len());
        let mut shown: Vec<_> = self
            .stops
            .iter()
            .filter(|((is_gc, _), _)| *is_gc || output_options.safepoints)
            .collect();
        shown.sort_by_key(|((is_gc, _), times)| {
            std::cmp::Reverse((*is_gc, times.iter().sum::<u64>()))
        });
        for ((_, op), times) in &shown {
            let mut row = vec![(*op).to_owned(), times.len().to_string()];
            row.extend(stats(times).map(millis));
            table.row(row);
        }
        let sums = [(true, self.limited.pauses), (false, self.limited.safepoints)];
        for (is_gc, sum) in sums {
            if sum.count > 0 && (is_gc || output_options.safepoints) {
                table.row(sum_row(&sum));
            }
        }
        if !shown.is_empty() || !self.limited.is_empty() {
            out.lines(&table.text())?;
        }
        for (is_gc, sum) in sums {
            let what = if is_gc { "GC" } else { "Other safepoints" };
            let times =
                self.stops.iter().filter(|((gc, _), _)| *gc == is_gc).flat_map(|(_, times)| times);
            let (number, sum) = times
                .fold((sum.count, sum.stopped_ns), |(n, sum), ns| (n + 1, sum.saturating_add(*ns)));
            if number > 0 {
                let share = percent(sum as f64, covered_ns as f64);
                let full = if is_gc { format!("; {} full", self.full) } else { String::new() };
                out.lines(&wrap(&format!(
                    "{what} stopped the JVM {} for {} in total: {share} of the time{full}",
                    count(number, "time"),
                    span(sum)
                )))?;
            }
        }
        if !self.cycles.is_empty() {
            let (number, sum) = (self.cycles.len(), self.cycles.iter().sum());
            out.line(&format!(
                "Concurrent cycles: {number}, {} in total, while the application was running",
                span(sum)
            ))?;
        }
        if !self.limited.is_empty() {
            out.lines(&wrap(&format!(
                "Too many stops to record each one: {} are only included in the sums of the rows \
                 (others)",
                count(self.limited.count(), "stop")
            )))?;
        }
        if self.lost > 0 {
            out.line(&format!(
                "Lost events: {}; they are missing from the numbers above",
                self.lost
            ))?;
        }
        Ok(())
    }
}

/// Returns the row for stops of which only sums are known. It has no percentiles.
fn sum_row(sum: &Sum) -> Vec<String> {
    let mean = sum.stopped_ns / sum.count.max(1);
    let mut row = vec!["(others)".to_owned(), sum.count.to_string()];
    row.extend([millis(sum.stopped_ns), millis(mean)]);
    row.extend(["-", "-", "-"].map(str::to_owned));
    row.push(millis(sum.max_ns));
    row
}

/// Returns sum, mean, median, 90th and 99th percentile and maximum.
fn stats(times: &[u64]) -> [u64; 6] {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let sum = sorted.iter().fold(0_u64, |sum, ns| sum.saturating_add(*ns));
    let number = sorted.len().max(1);
    // The smallest value that at least `q` percent of the values do not exceed.
    let quantile =
        |q: usize| sorted.get((number * q).div_ceil(100).max(1) - 1).copied().unwrap_or(0);
    [sum, sum / number as u64, quantile(50), quantile(90), quantile(99), quantile(100)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_observed_values() {
        assert_eq!(stats(&[3, 1, 2]), [6, 2, 2, 3, 3, 3]);
        let hundred: Vec<_> = (1..=100).collect();
        assert_eq!(stats(&hundred), [5050, 50, 50, 90, 99, 100]);
        assert_eq!(stats(&[7]), [7; 6]);
    }
}

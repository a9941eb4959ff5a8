//! Records as text or JSON lines.

use anyhow::Result;
use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use libjvmprobe::{
    bpf::clock,
    own::note,
    render::{
        columns::{fit, wrap},
        output::Output,
        units::{bytes, count, millis, percent, span},
    },
};

use crate::{
    args::Args,
    record::{Cycle, Record, Request, Stop},
    summary::{NO_OPERATION, Stats, Summary},
};

/// The columns of names: wide enough for what collectors call their operations and causes,
/// while other safepoints may have longer names, which are cut. JSON has all of them whole.
const OPERATION: usize = 28;
const CAUSE: usize = 28;

/// Writes records in the format that was asked for.
pub struct Report {
    out: Output,
    json: bool,
    stream: bool,
    safepoints: bool,
    timestamps: bool,
    threshold_ns: u64,
    header_due: bool,
}

impl Report {
    /// Opens the output; fails before anything is attached where it cannot be written.
    pub fn open(args: &Args) -> Result<Self> {
        let threshold = args.threshold.unwrap_or_default();
        Ok(Self {
            out: Output::open(args.output.as_deref())?,
            json: args.writes_json(),
            stream: args.streams(),
            safepoints: args.safepoints,
            timestamps: args.timestamps,
            threshold_ns: u64::try_from(threshold.as_nanos()).unwrap_or(u64::MAX),
            header_due: true,
        })
    }

    /// Writes a record if the options ask for it.
    pub fn record(&mut self, record: &Record) -> Result<()> {
        if !self.wants(record) {
            return Ok(());
        }
        if self.json {
            return Ok(self.out.json(record)?);
        }
        match record {
            Record::Pause(stop) | Record::Safepoint(stop) => self.stop(stop),
            Record::Cycle(cycle) => self.cycle(cycle),
            Record::Summary(summary) => self.summary(summary),
            Record::Lost(lost) => {
                let events = count(lost.events, "event");
                note(&format!(
                    "lost {events} of process {}: the numbers are too low by that much",
                    lost.pid
                ));
                Ok(())
            }
        }
    }

    /// Whether nobody reads the output any more.
    pub fn is_closed(&self) -> bool {
        self.out.is_closed()
    }

    fn wants(&self, record: &Record) -> bool {
        match record {
            Record::Pause(stop) => self.stream && stop.stopped_ns >= self.threshold_ns,
            Record::Safepoint(stop) => {
                self.stream && self.safepoints && stop.stopped_ns >= self.threshold_ns
            }
            // A cycle stops nobody, so no threshold on stops lets it pass.
            Record::Cycle(_) => self.stream && self.threshold_ns == 0,
            Record::Summary(_) | Record::Lost(_) => true,
        }
    }

    fn stop(&mut self, stop: &Stop) -> Result<()> {
        let columns = Columns {
            time: self.time(stop.ts_ns),
            pid: stop.pid,
            collector: stop.collector,
            op: stop.op.as_deref().unwrap_or(NO_OPERATION),
            cause: stop.cause.as_deref(),
            times: [stop.ttsp_ns, stop.pause_ns, Some(stop.stopped_ns)],
            heap: [stop.heap_before, stop.heap_after],
        };
        let mut line = columns.line();
        if stop.collections > 1 {
            line.push_str(&format!("  {} collections", stop.collections));
        }
        self.row(&line)?;
        self.requests(&stop.requests)?;
        self.pools(stop.pools.as_deref())
    }

    /// As Java prints stacks.
    fn requests(&mut self, requests: &[Request]) -> Result<()> {
        for request in requests {
            self.out.line(&format!("    {} ({}) asked for it", request.thread, request.tid))?;
            for frame in &request.stack {
                self.out.line(&format!("        at {frame}"))?;
            }
        }
        Ok(())
    }

    fn cycle(&mut self, cycle: &Cycle) -> Result<()> {
        let columns = Columns {
            time: self.time(cycle.ts_ns),
            pid: cycle.pid,
            collector: cycle.collector,
            op: &cycle.op,
            cause: cycle.cause.as_deref(),
            times: [None; 3],
            heap: [cycle.heap_before, cycle.heap_after],
        };
        self.row(&format!("{}  concurrent, {}", columns.line(), span(cycle.duration_ns)))?;
        self.pools(cycle.pools.as_deref())
    }

    fn pools(&mut self, pools: Option<&[crate::record::Pool]>) -> Result<()> {
        for pool in pools.unwrap_or_default() {
            self.out.line(&format!(
                "    {:<32} {:>10} -> {:>10}  of {:>10} committed  ({})",
                pool.pool,
                bytes(pool.before),
                size(pool.after),
                bytes(pool.committed),
                pool.manager,
            ))?;
        }
        Ok(())
    }

    fn time(&self, ts_ns: u64) -> String {
        if self.timestamps { clock::date_and_time(ts_ns) } else { clock::time_of_day(ts_ns) }
    }

    fn row(&mut self, line: &str) -> Result<()> {
        if std::mem::take(&mut self.header_due) {
            let time = if self.timestamps { 29 } else { 12 };
            self.out.line(&format!(
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
            ))?;
        }
        Ok(self.out.line(line)?)
    }

    fn summary(&mut self, summary: &Summary) -> Result<()> {
        // Rows after a table read better under a header of their own.
        self.header_due = true;
        let at = if self.timestamps {
            clock::date_and_time(summary.ts_ns) + "  "
        } else {
            String::new()
        };
        self.out.line("")?;
        self.out.line(&format!(
            "{at}PID {}  {}  {}  traced for {}",
            summary.pid,
            summary.jvm.as_deref().unwrap_or("JVM"),
            summary.collector,
            span(summary.duration_ns),
        ))?;
        self.operations(summary)?;
        for line in totals(summary) {
            self.out.lines(&wrap(&line))?;
        }
        if let Some(histograms) = summary.histograms.as_ref().filter(|_| summary.pauses > 0) {
            for (name, histogram) in
                [("PAUSE", &histograms.pause_us), ("STOPPED", &histograms.stopped_us)]
            {
                self.out.line("")?;
                self.out.line(name)?;
                self.out.lines(histogram.to_string().trim_end())?;
            }
        }
        Ok(())
    }

    fn operations(&mut self, summary: &Summary) -> Result<()> {
        let shown: Vec<_> =
            summary.operations.iter().filter(|op| op.gc || self.safepoints).collect();
        if shown.is_empty() {
            return Ok(());
        }
        let mut table = Table::new();
        table.load_style(RULED).set_header([
            "OPERATION",
            "(ms)",
            "COUNT",
            "TOTAL",
            "MEAN",
            "P50",
            "P90",
            "P99",
            "MAX",
        ]);
        for op in shown {
            let count = op.count.to_string();
            let name = fit(&op.op, OPERATION);
            if let Some(pause) = &op.pause {
                table.add_row(cells([&name, "PAUSE", &count], pause));
                table.add_row(cells(["", "STOPPED", ""], &op.stopped));
            } else {
                table.add_row(cells([&name, "STOPPED", &count], &op.stopped));
            }
        }
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        Ok(self.out.lines(&table.trim_fmt())?)
    }
}

fn cells(head: [&str; 3], stats: &Stats) -> Vec<String> {
    let times =
        [stats.total_ns, stats.mean_ns, stats.p50_ns, stats.p90_ns, stats.p99_ns, stats.max_ns];
    head.into_iter().map(str::to_owned).chain(times.map(millis)).collect()
}

fn totals(s: &Summary) -> Vec<String> {
    let wall = s.duration_ns as f64;
    let stopped = |times, ns: u64| {
        let share = percent(ns as f64, wall);
        format!("{} for {}: {share} of the time", count(times, "time"), span(ns))
    };
    let mut first = match s.pauses {
        0 => "GC did not stop the application".to_owned(),
        times => format!("GC stopped the application {}", stopped(times, s.stopped_ns)),
    };
    // A concurrent collector's collections are its cycles.
    let cycles_rate = match s.concurrent {
        false if s.collections == 0 => String::new(),
        false => {
            first += &format!(
                "; {}, {} full, {:.1} a minute",
                count(s.collections, "collection"),
                s.full,
                s.collections_per_minute
            );
            String::new()
        }
        true => format!(", {:.1} a minute", s.collections_per_minute),
    };
    let mut lines = vec![first];
    if s.safepoints > 0 {
        lines
            .push(format!("Other safepoints stopped it {}", stopped(s.safepoints, s.safepoint_ns)));
    }
    if s.cycles > 0 {
        lines.push(format!(
            "Concurrent cycles: {}{cycles_rate}, {} in all, beside the running application",
            s.cycles,
            span(s.cycle_ns),
        ));
    }
    if let (Some(freed), Some(rate)) = (s.freed_bytes, s.allocated_bytes_per_second) {
        lines.push(format!("Freed {}; allocation rate {}/s", bytes(freed), bytes(rate as u64)));
    }
    if s.lost > 0 {
        lines.push(format!("Lost events: {}; the numbers above are too low by that much", s.lost));
    }
    lines
}

/// Rules above, below and under the header, none between rows.
const RULED: TableStyle = {
    let rule = LineStyle::none().fill('─').junction('─');
    TableStyle::new().top_border(rule).header_separator(rule).bottom_border(rule)
};

/// A row of the streaming output.
struct Columns<'a> {
    time: String,
    pid: u32,
    collector: &'a str,
    op: &'a str,
    cause: Option<&'a str>,
    times: [Option<u64>; 3],
    heap: [Option<u64>; 2],
}

impl Columns<'_> {
    fn line(&self) -> String {
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

fn size(value: Option<u64>) -> String {
    value.map_or("-".into(), bytes)
}

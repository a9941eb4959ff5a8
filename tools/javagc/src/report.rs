//! Prints records as text or JSON lines.

use std::path::Path;

use libjvmprobe::{
    Result,
    bpf::clock,
    hotspot::HotSpot,
    render::{
        columns::wrap,
        formats::jfr::{self, file::RecordingFiles},
        output::Output,
        stops::{Row, head, operations, size, suffix, totals},
        table::Times,
        units::{bytes, span},
    },
    trace::{
        self,
        pauses::{
            Sink,
            record::{Cycle, Limited, Pool, Record, Request, Stop},
            summary::Summary,
        },
    },
};

use crate::args::Args;

/// Outputs of the records: standard output or files, each with its own format.
pub struct Reports {
    texts: Vec<Report>,
    /// Files in JDK Flight Recorder's format. They contain all records, whatever is printed.
    recordings: RecordingFiles,
}

impl Reports {
    /// Opens the outputs. Called before attaching, so that an unwritable output is reported early.
    pub fn open(args: &Args) -> Result<Self> {
        let to = |path: Option<&Path>| Report::open(args, path);
        let (recordings, texts): (Vec<_>, Vec<_>) =
            args.output.iter().partition(|path| jfr::is_named(path));
        let recordings = RecordingFiles::begin(recordings)?;
        // A recording cannot be read while it grows, so records are printed, too.
        let texts = match &texts[..] {
            [] => vec![to(None)?],
            paths => paths.iter().map(|path| to(Some(path))).collect::<Result<_>>()?,
        };
        Ok(Self { texts, recordings })
    }

    /// Ends the recordings.
    pub fn finish(&mut self) -> Result<()> {
        self.recordings.finish().map(drop)
    }
}

impl trace::Sink for Reports {
    fn jvm(&mut self, hotspot: &HotSpot) -> Result<()> {
        self.recordings.add_jvm(hotspot)
    }

    /// Whether all outputs were closed by their readers.
    fn is_closed(&self) -> bool {
        self.texts.iter().all(|report| report.out.is_closed())
    }
}

impl Sink for Reports {
    /// Writes a record to each output whose options select it.
    fn record(&mut self, record: &Record) -> Result<()> {
        self.texts.iter_mut().try_for_each(|report| report.record(record))?;
        if let Some(ts_ns) = record.ts_ns() {
            let begin_ns = clock::unix_ns(ts_ns);
            self.recordings.add(|to| to.pause(record, begin_ns))?;
        }
        if let (Record::Lost(lost), false) = (record, self.texts.iter().all(|report| report.json)) {
            lost.warn();
        }
        Ok(())
    }
}

/// One output with its format.
struct Report {
    out: Output,
    json: bool,
    stream: bool,
    safepoints: bool,
    times: Times,
    threshold_ns: u64,
    header_due: bool,
}

impl Report {
    fn open(args: &Args, path: Option<&Path>) -> Result<Self> {
        let threshold = args.threshold.unwrap_or_default();
        let extension = path.and_then(|path| path.extension()?.to_str());
        Ok(Self {
            out: Output::open(path)?,
            json: args.common.json || matches!(extension, Some("json" | "jsonl")),
            stream: args.streams(),
            safepoints: args.safepoints,
            times: Times { dates: args.common.timestamps },
            threshold_ns: u64::try_from(threshold.as_nanos()).unwrap_or(u64::MAX),
            header_due: true,
        })
    }

    fn record(&mut self, record: &Record) -> Result<()> {
        if !self.wants(record) {
            return Ok(());
        }
        if self.json {
            return self.out.json(record);
        }
        match record {
            Record::Pause(stop) | Record::Safepoint(stop) => self.stop(stop),
            Record::Cycle(cycle) => self.cycle(cycle),
            Record::Summary(summary) => self.summary(summary),
            // `Reports::record` prints losses once for all outputs.
            Record::Lost(_) => Ok(()),
            // Sent only if a limit is configured, and javagc configures none.
            Record::Limited(_) => Ok(()),
        }
    }

    fn wants(&self, record: &Record) -> bool {
        match record {
            Record::Pause(stop) => self.stream && stop.stopped_ns >= self.threshold_ns,
            Record::Safepoint(stop) => {
                self.stream && self.safepoints && stop.stopped_ns >= self.threshold_ns
            }
            // A concurrent cycle does not stop the application, so any threshold on stops hides it.
            Record::Cycle(_) => self.stream && self.threshold_ns == 0,
            Record::Summary(_) | Record::Lost(_) | Record::Limited(_) => true,
        }
    }

    fn stop(&mut self, stop: &Stop) -> Result<()> {
        let row = Row::of_stop(stop, self.times.show(stop.ts_ns)).line();
        self.row(&(row + &suffix(stop)))?;
        self.requests(&stop.requests)?;
        self.pools(stop.pools.as_deref())
    }

    /// Prints the threads that requested the collection, with their Java stacks.
    fn requests(&mut self, requests: &[Request]) -> Result<()> {
        for request in requests {
            self.out.line(&format!("    requested by {} ({})", request.thread, request.tid))?;
            for frame in &request.stack {
                self.out.line(&format!("        at {frame}"))?;
            }
        }
        Ok(())
    }

    fn cycle(&mut self, cycle: &Cycle) -> Result<()> {
        let row = Row::of_cycle(cycle, self.times.show(cycle.ts_ns));
        self.row(&format!("{}  concurrent, {}", row.line(), span(cycle.duration_ns)))?;
        self.pools(cycle.pools.as_deref())
    }

    fn pools(&mut self, pools: Option<&[Pool]>) -> Result<()> {
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

    fn row(&mut self, line: &str) -> Result<()> {
        if std::mem::take(&mut self.header_due) {
            let time = self.times.width();
            self.out.line(&head(time))?;
        }
        self.out.line(line)
    }

    fn summary(&mut self, summary: &Summary) -> Result<()> {
        // The header is printed again before the next row, because the summary separates that row
        // from the earlier ones.
        self.header_due = true;
        let at = self.times.before_title(summary.ts_ns, false);
        self.out.line("")?;
        self.out.line(&format!(
            "{at}PID {}  {}  {}  traced for {}",
            summary.pid,
            summary.jvm.as_deref().unwrap_or("JVM"),
            summary.collector,
            span(summary.duration_ns),
        ))?;
        if let Some(table) = operations(summary, &Limited::default(), self.safepoints) {
            self.out.lines(&table)?;
        }
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
}

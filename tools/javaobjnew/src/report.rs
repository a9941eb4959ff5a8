//! Prints records as text or JSON lines.

use libjvmprobe::{
    Result,
    bpf::stops::Stop,
    hotspot::HotSpot,
    jvms::Lost,
    render::{
        columns::wrap,
        output::Output,
        table::{RuledTable, Times, lost_line, more},
        units::{bytes, count, percent, span},
    },
    trace::{
        self,
        allocations::{
            AllocationReport, Sink,
            jvm_totals::{Row, Scope, Table},
            record::{Class, Large, Record, Stack, Summary},
            split::StackShare,
            stacks::Stacks,
        },
    },
};

use crate::{
    args::{Args, Order},
    flames::Flames,
    stack_text,
};

/// Maximum length of a name in characters. Longer names are cut in the middle, so that the end, which
/// is the most informative part, remains.
const MAX_NAME: usize = 100;

/// Prints records as text or JSON lines, and collects the profile for the output files.
pub struct Report {
    out: Output,
    json: bool,
    quiet: bool,
    times: Times,
    order: Order,
    rows: usize,
    stacks: bool,
    header_due: bool,
    writes_files: bool,
    /// Profile of the allocations of all JVMs whose trace has ended, for the output files.
    pub flames: Flames,
}

impl Report {
    /// Opens standard output.
    pub fn open(args: &Args) -> Result<Self> {
        Ok(Self {
            out: Output::open(None)?,
            json: args.common.json,
            quiet: args.common.quiet,
            times: Times { dates: args.common.timestamps },
            order: args.order(),
            rows: args.rows(),
            stacks: args.stacks,
            header_due: true,
            writes_files: !args.output.is_empty(),
            flames: Flames::new(args.max_memory, args.slot_ns()),
        })
    }

    /// Prints the allocations of a period by class, with their stacks if `--stacks` is given.
    fn show(&mut self, table: &Table, stacks: Option<&Stacks>) -> Result<()> {
        let summary = &table.summary;
        let stacks = stacks.filter(|stacks| self.stacks && stacks.can_be_named());
        let mut rows: Vec<_> = table.rows.iter().collect();
        let amount = |row: &Row| match self.order {
            Order::Bytes => (row.class.bytes, row.class.objects),
            Order::Objects => (row.class.objects, row.class.bytes),
        };
        // Classes with equal amounts are sorted by name, so that their order is stable from table to table.
        rows.sort_by(|a, b| {
            amount(b).cmp(&amount(a)).then_with(|| a.class.class.cmp(&b.class.class))
        });
        let hidden = rows.split_off(self.rows.min(rows.len()));
        if self.json {
            for row in rows {
                self.json(&Record::Class(row.class.clone()))?;
                for part in stacks.iter().flat_map(|stacks| stacks.without_spans(&row.parts)) {
                    self.json(&Record::Stack(stack(&row.class, &part, stacks)))?;
                }
            }
            return self.json(&Record::Summary(summary.clone()));
        }
        // The header is printed again before the next large object, because the table separates it from the
        // earlier ones.
        self.header_due = true;
        self.out.line("")?;
        self.out.line(&self.title(summary))?;
        if !rows.is_empty() {
            self.classes(&rows)?;
        }
        if let Some(classes) = more("class", hidden.iter().map(|row| row.class.bytes), bytes) {
            self.out.line(&format!("{classes}; --top shows more"))?;
        }
        for line in stacks.iter().flat_map(|stacks| stack_text::lines(&rows, stacks)) {
            self.out.line(&line)?;
        }
        for line in totals(summary) {
            self.out.lines(&wrap(&line))?;
        }
        Ok(())
    }

    fn json(&mut self, record: &Record) -> Result<()> {
        self.out.json(record)
    }

    fn title(&self, summary: &Summary) -> String {
        let at = self.times.before_title(summary.ts_ns, summary.scope == "interval");
        format!(
            "{at}PID {}  {}  {}: {} allocated, {}/s",
            summary.pid,
            summary.jvm.as_deref().unwrap_or("JVM"),
            match summary.scope {
                "interval" => span(summary.duration_ns),
                _ => format!("traced for {}", span(summary.duration_ns)),
            },
            bytes(summary.bytes),
            bytes(summary.bytes_per_second as u64),
        )
    }

    fn classes(&mut self, rows: &[&Row]) -> Result<()> {
        let by_thread = rows.iter().any(|row| row.class.tid.is_some());
        let mut head = vec!["BYTES/s", "SHARE", "OBJECTS", "BYTES", "AVERAGE"];
        if by_thread {
            head.extend(["TID", "THREAD"]);
        }
        head.push("CLASS");
        let mut table = RuledTable::new(&head, 0..5);
        for Row { class, .. } in rows {
            let mut row = vec![
                bytes(class.bytes_per_second as u64),
                percent(class.share, 1.0),
                if class.objects > 0 { class.objects.to_string() } else { "-".into() },
                bytes(class.bytes),
                if class.objects > 0 { bytes(class.average_bytes as u64) } else { "-".into() },
            ];
            if let Some(tid) = class.tid {
                row.extend([tid.to_string(), class.thread.clone().unwrap_or_default()]);
            }
            row.push(cut(&class.class) + &humongous(class));
            table.row(row);
        }
        self.out.lines(&table.text())
    }
}

impl trace::Sink for Report {
    fn jvm(&mut self, hotspot: &HotSpot) -> Result<()> {
        if self.writes_files {
            self.flames.add_jvm(hotspot.description());
        }
        Ok(())
    }

    /// Prints the number of lost events.
    fn lost(&mut self, lost: Lost) -> Result<()> {
        if self.json {
            return self.json(&Record::Lost(lost));
        }
        lost.warn();
        Ok(())
    }

    /// Whether the reader has closed the output.
    fn is_closed(&self) -> bool {
        self.out.is_closed()
    }
}

impl Sink for Report {
    fn table(&mut self, report: &AllocationReport<'_>) -> Result<()> {
        if self.writes_files && report.scope == Scope::Trace {
            self.flames.add(report);
        }
        self.show(report.table, report.stacks)
    }

    fn stop(&mut self, stop: Stop) {
        self.flames.add_stop(stop);
    }

    /// Prints a large object.
    fn large(&mut self, mut large: Large) -> Result<()> {
        if self.quiet {
            return Ok(());
        }
        // The record has a stack even if only the output files need stacks. The stack is printed only with
        // `--stacks`.
        large.stack = large.stack.filter(|_| self.stacks);
        if self.json {
            return self.json(&Record::Large(large));
        }
        let time = self.times.width();
        if std::mem::take(&mut self.header_due) {
            let head = ["TIME", "PID", "THREAD", "BYTES"];
            self.out.line(&format!(
                "{:<time$} {:>7} {:<16} {:>10}   CLASS",
                head[0], head[1], head[2], head[3]
            ))?;
        }
        let at = self.times.show(large.ts_ns);
        let mark = if large.humongous { "H" } else { " " };
        self.out.line(&format!(
            "{at:<time$} {:>7} {:<16} {:>10} {mark} {}",
            large.pid,
            large.thread,
            bytes(large.bytes),
            cut(&large.class),
        ))?;
        for frame in large.stack.iter().flatten() {
            self.out.line(&stack_text::at(frame))?;
        }
        Ok(())
    }
}

/// Returns the record of one of a class's stacks.
fn stack(class: &Class, part: &StackShare, stacks: Option<&Stacks>) -> Stack {
    let frames = stacks.map_or(&[][..], |stacks| stacks.frames(part.stack));
    Stack {
        time: class.time.clone(),
        pid: class.pid,
        class: class.class.clone(),
        tid: class.tid,
        thread: class.thread.clone(),
        bytes: part.bytes,
        objects: part.objects,
        estimated: class.estimated,
        share: part.bytes as f64 / class.bytes.max(1) as f64,
        stack: frames.iter().map(Into::into).collect(),
    }
}

fn humongous(class: &Class) -> String {
    match class.humongous_objects {
        0 => String::new(),
        n => format!("  ({n} humongous, {})", bytes(class.humongous_bytes)),
    }
}

fn totals(s: &Summary) -> Vec<String> {
    let mut lines = Vec::new();
    match (s.tlabs, s.tlabs_read, s.outside_objects, s.outside_bytes) {
        (Some(tlabs), Some(read), Some(outside), Some(outside_bytes)) => lines.push(format!(
            "Estimated from {}, {read} of which were read, and {} outside of TLABs ({})",
            count(tlabs, "TLAB"),
            count(outside, "object"),
            bytes(outside_bytes)
        )),
        _ => lines.push(format!("{}, counted individually", count(s.objects, "object"))),
    }
    if s.humongous_objects > 0 {
        let (objects, size) = (s.humongous_objects, bytes(s.humongous_bytes));
        lines.push(format!("Humongous objects: {objects}, {size}"));
    }
    if s.other_bytes > 0 {
        let size = bytes(s.other_bytes);
        lines.push(format!("Too many classes to show separately: (other) contains {size}"));
    }
    if let Some(other @ 1..) = s.other_stack_bytes {
        let size = bytes(other);
        lines.push(format!("Too many stacks to show separately: [other] contains {size}"));
    }
    lines.extend(lost_line(s.lost));
    lines
}

/// Cuts a name of more than `MAX_NAME` characters in the middle.
pub fn cut(name: &str) -> String {
    let length = name.chars().count();
    if length <= MAX_NAME {
        return name.into();
    }
    let part = (MAX_NAME - 3) / 2;
    let head: String = name.chars().take(part).collect();
    let tail: String = name.chars().skip(length - part).collect();
    format!("{head}...{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_in_the_middle() {
        assert_eq!(cut("java.lang.String"), "java.lang.String");
        let long = "ä".repeat(300) + "End";
        let cut = cut(&long);
        assert!(cut.starts_with("ää") && cut.ends_with("äEnd"), "{cut}");
        assert!(cut.chars().count() <= MAX_NAME);
    }
}

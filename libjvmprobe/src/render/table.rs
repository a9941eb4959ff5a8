//! Tables for people: one look for all tools, and how times stand in them.

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use serde::{Deserialize, Serialize};

use crate::{bpf::clock, own::note, render::units::count};

/// Rules above, below and under the header, none between rows.
const RULED: TableStyle = {
    let rule = LineStyle::none().fill('─').junction('─');
    TableStyle::new().top_border(rule).header_separator(rule).bottom_border(rule)
};

/// A table with these heads, of which those in `right` stand to the right.
pub struct Ruled(Table, std::ops::Range<usize>);

impl Ruled {
    /// An empty one.
    pub fn new(head: &[&str], right: std::ops::Range<usize>) -> Self {
        let mut table = Table::new();
        table.load_style(RULED).set_header(head);
        Self(table, right)
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.0.add_row(cells);
    }

    /// All lines.
    pub fn text(mut self) -> String {
        let right = self.1.clone();
        for column in self.0.column_iter_mut().skip(right.start).take(right.len()) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        self.0.trim_fmt()
    }
}

/// How times are shown: `-T` adds dates and UTC offsets.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Whether dates are wanted.
    pub dates: bool,
}

impl Times {
    /// The width of the column.
    pub fn width(self) -> usize {
        if self.dates { 29 } else { 12 }
    }

    /// An instant on `CLOCK_MONOTONIC`, in nanoseconds.
    pub fn show(self, ts_ns: u64) -> String {
        if self.dates { clock::date_and_time(ts_ns) } else { clock::time_of_day(ts_ns) }
    }

    /// What stands before a title: the time, where dates are wanted or `always`.
    pub fn before_title(self, ts_ns: u64, always: bool) -> String {
        if self.dates || always { self.show(ts_ns) + "  " } else { String::new() }
    }
}

/// Events that did not fit into the ring buffer since the last such line.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Lost {
    /// Wall-clock time of the finding, RFC 3339 with nanoseconds, UTC.
    pub(crate) time: String,
    /// The process.
    pub(crate) pid: u32,
    /// How many.
    pub(crate) events: u64,
}

impl Lost {
    /// The process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How many.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Found now.
    pub fn now(pid: u32, events: u64) -> Self {
        Self { time: clock::rfc3339(clock::monotonic_ns()), pid, events }
    }

    /// Tells a person.
    pub fn tell(&self) {
        let (events, pid) = (count(self.events, "event"), self.pid);
        note(&format!("lost {events} of process {pid}: the numbers are too low by that much"));
    }
}

/// The line of a summary about what was lost in all; none where nothing was.
pub fn lost_line(events: u64) -> Option<String> {
    let line = || format!("Lost events: {events}; the numbers above are too low by that much");
    (events > 0).then(line)
}

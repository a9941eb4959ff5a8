//! Tables for people, with the same layout in all tools, and the format of times in them.

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

use crate::{bpf::clock, render::units::count};

/// Horizontal lines above the table, below its header and below the table, but not between rows.
const RULED: TableStyle = {
    let rule = LineStyle::none().fill('─').junction('─');
    TableStyle::new().top_border(rule).header_separator(rule).bottom_border(rule)
};

/// A table with horizontal lines, and the range of its columns that are aligned to the right.
pub struct RuledTable(Table, std::ops::Range<usize>);

impl RuledTable {
    /// Makes an empty table with these headings. The columns in `right` are aligned to the right.
    pub fn new(head: &[&str], right: std::ops::Range<usize>) -> Self {
        let mut table = Table::new();
        table.load_style(RULED).set_header(head);
        Self(table, right)
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.0.add_row(cells);
    }

    /// Returns the table as text.
    pub fn text(mut self) -> String {
        let right = self.1.clone();
        for column in self.0.column_iter_mut().skip(right.start).take(right.len()) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        self.0.trim_fmt()
    }
}

/// Format of times: `-T` adds dates and UTC offsets.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Whether to show dates.
    pub dates: bool,
}

impl Times {
    /// Returns the width of the time column.
    pub fn width(self) -> usize {
        if self.dates { 29 } else { 12 }
    }

    /// Formats a time on `CLOCK_MONOTONIC`, in nanoseconds.
    pub fn show(self, ts_ns: u64) -> String {
        if self.dates { clock::date_and_time(ts_ns) } else { clock::time_of_day(ts_ns) }
    }

    /// Returns the text before a title: the time if dates are shown or `always` is set, else nothing.
    pub fn before_title(self, ts_ns: u64, always: bool) -> String {
        if self.dates || always { self.show(ts_ns) + "  " } else { String::new() }
    }
}

/// Returns the line below a table about its hidden rows, given the amount of each: `5 more rows with 10.00 s`; `None` if
/// there are none. `what` is the singular of a row's name, and `format` formats the sum of the amounts.
pub fn more(
    what: &str,
    hidden: impl Iterator<Item = u64>,
    format: impl Fn(u64) -> String,
) -> Option<String> {
    let (rows, sum) = hidden.fold((0, 0_u64), |(n, sum), one| (n + 1, sum.saturating_add(one)));
    (rows > 0).then(|| format!("{} with {}", count(rows, &format!("more {what}")), format(sum)))
}

/// Returns the line of a summary about all lost events; `None` if there are none.
pub fn lost_line(events: u64) -> Option<String> {
    let line = || format!("Lost events: {events}; they are missing from the numbers above");
    (events > 0).then(line)
}

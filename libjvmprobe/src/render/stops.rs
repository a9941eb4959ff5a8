//! Stops of applications and cycles of collectors, a row each.

use crate::render::{
    columns::fit,
    units::{bytes, millis},
};

/// The columns of names: wide enough for what collectors call their operations and causes,
/// while other safepoints may have longer names, which are cut. JSON has all of them whole.
pub const OPERATION: usize = 28;
const CAUSE: usize = 28;

/// How a stop is shown in which no operation ran (JDK 13 and older do this to
/// clean up now and then).
pub const NO_OPERATION: &str = "(none)";

/// A row.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// When it began, as it is shown.
    pub time: String,
    /// The process.
    pub pid: u32,
    /// The collector.
    pub collector: &'a str,
    /// The JVM's operation.
    pub op: &'a str,
    /// Why the collector ran.
    pub cause: Option<&'a str>,
    /// To the safepoint, the collections, and all of the stop, in nanoseconds.
    pub times: [Option<u64>; 3],
    /// Used bytes before and after.
    pub heap: [Option<u64>; 2],
}

impl Row<'_> {
    /// The line.
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

/// What stands above rows whose times are so wide.
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

/// Bytes, where they are known.
pub fn size(value: Option<u64>) -> String {
    value.map_or("-".into(), bytes)
}

//! When a JVM stopped its application, and what for, as `bpf/stops.bpf.h` tells it.

use crate::{
    Result,
    bpf::{
        probes::{Instant, Plan, resolve},
        records::{text, word},
    },
    own::remark,
    process::LibJvm,
};

/// The programs, which a tool loads where somebody wants to know.
pub(crate) const PROGRAMS: [&str; 4] = ["stop_begins", "stop_is_for", "stop_collects", "stop_ends"];

/// The map that has an entry for each JVM.
pub(crate) const MAP: &str = "stops";

/// The last instant first, so that a stop that is seen to begin is seen to end.
const INSTANTS: [Instant; 4] = [
    Instant::of_probe("hs_private", "safepoint__end", "stop_ends"),
    Instant::of_probe("hotspot", "gc__begin", "stop_collects"),
    Instant::of_probe("hotspot", "vmops__begin", "stop_is_for"),
    Instant::of_probe("hs_private", "safepoint__begin", "stop_begins"),
];

/// What to attach to, in a libjvm.so that has the probes: others do not tell, and `-v` says so.
///
/// # Errors
/// Those of reading the file.
pub(crate) fn plans(libjvm: &LibJvm) -> Result<Vec<Plan>> {
    let elf = libjvm.elf()?;
    Ok(resolve(&libjvm.seen_as, &elf, &INSTANTS).unwrap_or_else(|error| {
        remark(|| format!("stops are not shown: {error}"));
        Vec::new()
    }))
}

/// A time in which a JVM had stopped its application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The key of the JVM.
    pub target: u64,
    /// When it began, on the kernel's clock.
    pub begin: u64,
    /// When it ended.
    pub end: u64,
    /// Whether it was to collect.
    pub is_collection: bool,
    /// The VM operation, empty where that was not told.
    pub name: String,
}

impl Stop {
    /// Decodes a `struct stop_event` of bpf/stops.h; `None` for what is too short to be one.
    pub fn decode(record: &[u8]) -> Option<Self> {
        /// Behind five words, `STOP_LEN` bytes of text.
        const NAME: std::ops::Range<usize> = 5 * 8..5 * 8 + 64;
        Some(Self {
            target: word(record, 8)?,
            begin: word(record, 2 * 8)?,
            end: word(record, 3 * 8)?,
            is_collection: word(record, 4 * 8)? != 0,
            name: text(record.get(NAME)?),
        })
    }
}

/// The stops of all JVMs that are traced.
#[derive(Debug, Default)]
pub struct StopLog(Vec<Stop>);

/// So many are kept, some ten megabytes.
const MOST: usize = 100_000;

impl StopLog {
    /// Keeps one more, if there is room.
    pub fn push(&mut self, stop: Stop) {
        if self.0.len() < MOST {
            self.0.push(stop);
        }
    }

    /// All of them, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = &Stop> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_read_as_it_is_written() {
        let mut record = [5, 42, 1000, 3000, 1].map(u64::to_ne_bytes).concat();
        record.extend([0; 64]);
        record[40..42].copy_from_slice(b"G1");
        let stop =
            Stop { target: 42, begin: 1000, end: 3000, is_collection: true, name: "G1".into() };
        assert_eq!(Stop::decode(&record), Some(stop));
        assert_eq!(Stop::decode(&record[..103]), None);
    }
}

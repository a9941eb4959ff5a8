//! When and why a JVM stopped its application threads: records that `bpf/stops.bpf.h` sends.

use crate::{
    Result,
    bpf::{
        probes::{Instant, Plan, resolve},
        records::{text, word},
    },
    process::LibJvm,
};

/// Names of the programs, which a tool loads only if stops are wanted.
pub(crate) const PROGRAMS: [&str; 4] =
    ["stop_begins", "stop_operation", "stop_gc_begins", "stop_ends"];

/// The map with an entry for each JVM.
pub(crate) const MAP: &str = "stops";

/// In the order of attachment: the end of a stop first and its start last. So if the start of a stop is
/// observed, its end is observed, too.
const INSTANTS: [Instant; 4] = [
    Instant::of_probe("hs_private", "safepoint__end", "stop_ends"),
    Instant::of_probe("hotspot", "gc__begin", "stop_gc_begins"),
    Instant::of_probe("hotspot", "vmops__begin", "stop_operation"),
    Instant::of_probe("hs_private", "safepoint__begin", "stop_begins"),
];

/// Returns the attachments for a libjvm.so that has the probes. For other files it returns none, and `-v` prints why.
///
/// # Errors
/// The errors of reading the file.
pub(crate) fn plans(libjvm: &LibJvm) -> Result<Vec<Plan>> {
    let elf = libjvm.elf()?;
    Ok(resolve(&libjvm.target_path, &elf, &INSTANTS).unwrap_or_else(|error| {
        log::debug!("stops are not shown: {error}");
        Vec::new()
    }))
}

/// One stop of a JVM's application threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Key of the JVM.
    pub target: u64,
    /// Start on `CLOCK_MONOTONIC`, in nanoseconds.
    pub begin: u64,
    /// End on `CLOCK_MONOTONIC`, in nanoseconds.
    pub end: u64,
    /// Whether it was a garbage collection.
    pub is_collection: bool,
    /// Name of the VM operation, empty if it was not observed.
    pub name: String,
}

impl Stop {
    /// Decodes a `struct stop_event` of bpf/stops.h; `None` if the record is too short.
    pub fn decode(record: &[u8]) -> Option<Self> {
        /// `STOP_LEN` bytes of text after five words.
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

/// Log of the stops of all traced JVMs.
#[derive(Debug, Default)]
pub struct StopLog(Vec<Stop>);

/// Maximum number of stops kept, about ten megabytes.
const MAX_STOPS: usize = 100_000;

impl StopLog {
    /// Adds a stop; drops it if the log is full.
    pub fn push(&mut self, stop: Stop) {
        if self.0.len() < MAX_STOPS {
            self.0.push(stop);
        }
    }

    /// Iterates over the stops in order of arrival.
    pub fn iter(&self) -> impl Iterator<Item = &Stop> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_record_decodes_and_truncated_record_is_rejected() {
        let mut record = [5, 42, 1000, 3000, 1].map(u64::to_ne_bytes).concat();
        record.extend([0; 64]);
        record[40..42].copy_from_slice(b"G1");
        let stop =
            Stop { target: 42, begin: 1000, end: 3000, is_collection: true, name: "G1".into() };
        assert_eq!(Stop::decode(&record), Some(stop));
        assert_eq!(Stop::decode(&record[..103]), None);
    }
}

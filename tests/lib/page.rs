//! Parser for the timeline in a page.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::Value;

use crate::gclog;

/// Timeline of a profile in a page.
#[derive(Debug)]
pub struct Times {
    /// Start, in milliseconds since 1970.
    pub begin_ms: u64,
    /// Length of a time slot.
    pub slot_ns: u64,
    /// Counts as (slot, stack, thread, count).
    pub counts: Vec<[u64; 4]>,
    /// Bands as (begin and end in microseconds, whether it was a collection, operation).
    pub bands: Vec<(u64, u64, bool, String)>,
}

/// Decodes numbers as libjvmprobe/src/render/page/packed.rs encodes them.
fn numbers(text: &str) -> Vec<u64> {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (mut all, mut number, mut shift) = (Vec::new(), 0, 0);
    for digit in text.chars().map(|c| DIGITS.find(c).expect("a digit") as u64) {
        number |= (digit & 31) << shift;
        shift += 5;
        if digit < 32 {
            all.push(number);
            (number, shift) = (0, 0);
        }
    }
    all
}

/// Returns the timeline of a page's first profile.
///
/// # Panics
/// If the page has none.
pub fn times(page: &Path) -> Times {
    let text = fs::read_to_string(page).expect("a page");
    let (_, rest) = text.split_once("id=\"data\">").expect("data");
    let (json, _) = rest.split_once("</script>").expect("the end of data");
    let data: Value = serde_json::from_str(json).expect("JSON");
    let times = &data["events"][0]["times"];
    let mut slot = 0;
    let counts = numbers(times["counts"].as_str().expect("counts"));
    let (counts, rest) = counts.as_chunks::<4>();
    assert!(rest.is_empty());
    let counts = counts.iter().map(|&[step, stack, thread, count]| {
        slot += step;
        [slot, stack, thread, count]
    });
    let number = |value: &Value| value.as_u64().expect("a number");
    let band = |band: &Value| {
        let name = band[3].as_str().expect("a name").to_owned();
        (number(&band[0]), number(&band[1]), band[2] == "gc", name)
    };
    Times {
        begin_ms: number(&times["begin_ms"]),
        slot_ns: number(&times["slot_ns"]),
        counts: counts.collect(),
        bands: times["bands"].as_array().expect("bands").iter().map(band).collect(),
    }
}

impl Times {
    /// Returns the counts per second.
    pub fn by_second(&self) -> BTreeMap<u64, u64> {
        let mut seconds = BTreeMap::new();
        for [slot, _, _, count] in &self.counts {
            *seconds.entry(slot * self.slot_ns / 1_000_000_000).or_default() += count;
        }
        seconds
    }

    /// Returns the count between two timestamps, in milliseconds since 1970.
    pub fn between(&self, begin_ms: u64, end_ms: u64) -> u64 {
        let at = |slot: u64| self.begin_ms + slot * self.slot_ns / 1_000_000;
        let within = self.counts.iter().filter(|row| (begin_ms..end_ms).contains(&at(row[0])));
        within.map(|row| row[3]).sum()
    }

    /// Compares operation and length of each stop with a JVM's log.
    ///
    /// # Panics
    /// If they differ.
    pub fn assert_stops_match_log(&self, log: &str, what: &str) {
        let seen = &self.bands;
        let logged = gclog::parse(log).stops;
        assert!(seen.len() > 5, "{what}: {seen:?}");
        // Stops before and after the trace are in the log only.
        let at = logged
            .windows(seen.len())
            .position(|some| some.iter().zip(seen).all(|(logged, (.., name))| logged.op == *name));
        let at = at.unwrap_or_else(|| panic!("{what}: {seen:?} in {logged:?}"));
        let mut off = Vec::new();
        for ((begin, end, is_gc, name), logged) in seen.iter().zip(&logged[at..]) {
            let length = (end - begin) * 1000;
            let total = logged.total_ns;
            if length.abs_diff(total) > total / 10 + 100_000 {
                off.push(format!("{name}: {length} of {total}"));
            }
            assert_eq!(*is_gc, !logged.collections.is_empty(), "{what} {name}");
        }
        // A few bands may be too long: when the application resumes, it may preempt the VM thread
        // before that thread reaches the probe.
        assert!(off.len() * 20 < seen.len() + 20, "{what}: {off:?}");
    }
}

//! Lines of JVMs' stops, bounded: of a JVM with too many, the longest stops keep their lines and the
//! others are added up.
//!
//! Space is shared by tenant first, then by JVM: one that makes stops in a loop loses its own lines only.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    mem::size_of,
    sync::Arc,
};

use libjvmprobe::{
    own::fair_share,
    take::pauses::record::{Limited, Sum},
};
use serde::Deserialize;

/// The line of sums, as javagc's records are written.
#[derive(Deserialize, serde::Serialize)]
#[serde(tag = "type", rename = "limited")]
struct LimitedLine {
    #[serde(flatten)]
    limited: Limited,
}

/// As much of a line as its rank needs.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow, rename = "type")]
    kind: std::borrow::Cow<'a, str>,
    #[serde(default)]
    stopped_ns: Option<u64>,
    #[serde(default)]
    duration_ns: Option<u64>,
}

/// A line that is kept, in the order in which lines go: safepoints first, then the shortest.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kept {
    is_pause: bool,
    ns: u64,
    /// Position among the lines of its JVM.
    position: u64,
    line: String,
}

/// The lines of one JVM.
#[derive(Debug, Default)]
pub struct Stops {
    /// The first to go is on top.
    kept: BinaryHeap<Reverse<Kept>>,
    limited: Limited,
    added: u64,
    bytes: usize,
}

impl Stops {
    /// Adds a line of JSON as javagc(8) has it. Anything else is ignored.
    pub fn add(&mut self, line: String) {
        let Ok(head) = serde_json::from_str::<Head<'_>>(&line) else { return };
        if head.kind == "limited" {
            if let Ok(LimitedLine { limited }) = serde_json::from_str(&line) {
                self.limited.pid = limited.pid;
                self.limited.add(&limited);
            }
            return;
        }
        let ns = head.stopped_ns.or(head.duration_ns).unwrap_or(u64::MAX);
        // Cycles and losses are few.
        let is_pause = head.kind != "safepoint";
        self.added += 1;
        self.bytes += size(&line);
        self.kept.push(Reverse(Kept { is_pause, ns, position: self.added, line }));
    }

    /// Memory that its lines take, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of lines.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether there are no lines.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Drops lines until the others take no more than this, and adds them up. Returns how many.
    fn shrink(&mut self, bytes: usize) -> u64 {
        let mut dropped = 0;
        while self.bytes > bytes {
            let Some(Reverse(least)) = self.kept.pop() else { break };
            self.bytes -= size(&least.line);
            dropped += 1;
            // Only stops have a length that adds up.
            if least.ns < u64::MAX {
                let one = Sum { count: 1, stopped_ns: least.ns, max_ns: least.ns };
                let is_stop = !least.line.contains("\"type\":\"cycle\"");
                match (is_stop, least.is_pause) {
                    (false, _) => {}
                    (true, true) => self.limited.pauses.add(&one),
                    (true, false) => self.limited.safepoints.add(&one),
                }
            }
        }
        dropped
    }

    /// Returns the lines in the order in which they were added, and behind them one with the sums, if
    /// there are any.
    pub fn into_lines(self, pid: u32) -> Vec<String> {
        let mut kept: Vec<_> = self.kept.into_iter().map(|Reverse(kept)| kept).collect();
        kept.sort_unstable_by_key(|kept| kept.position);
        let mut lines: Vec<_> = kept.into_iter().map(|kept| kept.line).collect();
        if !self.limited.is_empty() {
            let line = LimitedLine { limited: Limited { pid, ..self.limited } };
            // Numbers, which always can be written.
            lines.extend(serde_json::to_string(&line).ok());
        }
        lines
    }
}

fn size(line: &str) -> usize {
    line.len() + size_of::<Kept>()
}

/// Reads the sums of a line that has them.
pub fn limited_of(line: &str) -> Option<Limited> {
    // Most lines are others.
    line.contains("\"limited\"").then_some(())?;
    serde_json::from_str::<LimitedLine>(line).ok().map(|line| line.limited)
}

/// The lines of many JVMs, within a bound of memory.
#[derive(Debug)]
pub struct AllStops<K> {
    jvms: BTreeMap<K, (Arc<str>, Stops)>,
    bytes: usize,
    max_bytes: usize,
}

impl<K: Ord + Clone> AllStops<K> {
    /// None yet, of which the lines are to take no more than this.
    pub fn new(max_bytes: usize) -> Self {
        Self { jvms: BTreeMap::new(), bytes: 0, max_bytes }
    }

    /// Adds a line of a JVM of a tenant. Returns the JVMs that lost lines for it, and how many.
    pub fn add(&mut self, key: &K, tenant: &Arc<str>, line: String) -> Vec<(K, u64)> {
        let new = || (Arc::clone(tenant), Stops::default());
        let (_, stops) = self.jvms.entry(key.clone()).or_insert_with(new);
        let before = stops.bytes();
        stops.add(line);
        self.bytes += stops.bytes() - before;
        if self.bytes > self.max_bytes { self.make_room() } else { Vec::new() }
    }

    /// Takes the lines of a JVM out.
    pub fn take(&mut self, key: &K) -> Option<Stops> {
        let (_, stops) = self.jvms.remove(key)?;
        self.bytes -= stops.bytes();
        Some(stops)
    }

    /// Has each tenant, and within it each JVM, keep within its share. A little less is kept than may be,
    /// so that this is rare.
    fn make_room(&mut self) -> Vec<(K, u64)> {
        let mut tenants: BTreeMap<Arc<str>, (usize, usize)> = BTreeMap::new();
        for (tenant, stops) in self.jvms.values() {
            let (jvms, bytes) = tenants.entry(Arc::clone(tenant)).or_default();
            *jvms += 1;
            *bytes += stops.bytes();
        }
        let target = self.max_bytes / 8 * 7;
        let share = share_of(tenants.values().map(|(_, bytes)| *bytes), target);
        let mut dropped = Vec::new();
        for (tenant, (_, bytes)) in tenants {
            if bytes <= share {
                continue;
            }
            let of = self.jvms.iter_mut().filter(|(_, (name, _))| *name == tenant);
            let mut of: Vec<_> = of.map(|(key, (_, stops))| (key, stops)).collect();
            let share = share_of(of.iter().map(|(_, stops)| stops.bytes()), share);
            for (key, stops) in &mut of {
                let before = stops.bytes();
                let lines = stops.shrink(share);
                self.bytes -= before - stops.bytes();
                if lines > 0 {
                    dropped.push(((*key).clone(), lines));
                }
            }
        }
        dropped
    }
}

/// Returns the same as [`fair_share`], in bytes.
pub fn share_of(needs: impl Iterator<Item = usize>, all: usize) -> usize {
    fair_share(needs.map(|bytes| bytes as f64), all as f64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(kind: &str, ns: u64) -> String {
        format!(r#"{{"type":"{kind}","pid":7,"stopped_ns":{ns}}}"#)
    }

    fn sums(lines: &[String]) -> (usize, Limited) {
        let limited = lines.iter().filter_map(|line| limited_of(line)).next().unwrap_or_default();
        (lines.len() - usize::from(!limited.is_empty()), limited)
    }

    #[test]
    fn a_jvm_that_makes_stops_in_a_loop_loses_its_own_lines_only() {
        let mut all = AllStops::new(100_000);
        let [a, b]: [Arc<str>; 2] = ["a".into(), "b".into()];
        for ns in 0..20 {
            assert!(all.add(&1, &a, line("pause", ns)).is_empty());
        }
        let mut lost = BTreeMap::new();
        for i in 0..20_000_u64 {
            // Two JVMs of one tenant.
            for key in [2, 3] {
                for (key, lines) in all.add(&key, &b, line("safepoint", i)) {
                    *lost.entry(key).or_insert(0) += lines;
                }
            }
            if i % 1000 == 0 {
                all.add(&2, &b, line("pause", 1));
            }
            assert!(all.bytes <= all.max_bytes);
        }
        assert_eq!(lost.keys().copied().collect::<Vec<_>>(), [2, 3]);
        let mut lines = |key| all.take(&key).unwrap().into_lines(7);
        assert_eq!(sums(&lines(1)), (20, Limited::default()));
        let (kept, limited) = sums(&lines(2));
        // Nothing is counted twice or not at all, the longest are kept, and collections before others.
        assert_eq!((kept as u64 + limited.count(), limited.pauses.count), (20_020, 0));
        assert_eq!((lost[&2], limited.pid), (limited.count(), 7));
        assert!(limited.safepoints.max_ns < 19_999 && kept > 100);
        assert_eq!(all.bytes, all.jvms[&3].1.bytes());
    }

    #[test]
    fn lines_stay_in_their_order_and_sums_add_up() {
        let mut stops = Stops::default();
        let limited = r#"{"type":"limited","pid":7,"pauses":{"count":2,"stopped_ns":9,"max_ns":5},"safepoints":{"count":0,"stopped_ns":0,"max_ns":0}}"#;
        for line in [&line("pause", 3), limited, &line("safepoint", 1), "nonsense", limited] {
            stops.add(line.to_owned());
        }
        let lines = stops.into_lines(7);
        assert_eq!(lines[..2], [line("pause", 3), line("safepoint", 1)]);
        let sum = Sum { count: 4, stopped_ns: 18, max_ns: 5 };
        assert_eq!(limited_of(&lines[2]).unwrap().pauses, sum);
        assert_eq!(lines.len(), 3);
        let mut cycle = Stops::default();
        cycle.add(r#"{"type":"cycle","pid":7,"duration_ns":9}"#.into());
        assert_eq!(cycle.shrink(0), 1);
        assert!(cycle.into_lines(7).is_empty());
    }
}

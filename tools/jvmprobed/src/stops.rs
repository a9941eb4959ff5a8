//! Bounded records of stops. A JVM with too many stops keeps the records of its longest ones, and the others
//! are added up.
//!
//! Space is divided among tenants first, and then among the JVMs of a tenant, so a JVM that stops in a loop
//! loses only its own records.

use std::{collections::BTreeMap, mem::size_of, sync::Arc};

use libjvmprobe::{
    sys::fair_share,
    trace::pauses::record::{Limited, Record, Sum},
};

/// Order in which records are dropped: safepoints first, then the shortest. The fields are: false for a
/// safepoint, length in nanoseconds, and position among the records of its JVM.
type Rank = (bool, u64, u64);

/// Records of one JVM.
#[derive(Debug, Default)]
pub struct Stops {
    ranked: BTreeMap<Rank, Box<Record>>,
    limited: Limited,
    added: u64,
    bytes: usize,
}

impl Stops {
    /// Adds a record. A record of sums is added to the sums of the JVM.
    pub fn add(&mut self, record: Box<Record>) {
        let (is_safepoint, ns) = match &*record {
            Record::Pause(stop) => (false, stop.stopped_ns),
            Record::Safepoint(stop) => (true, stop.stopped_ns),
            Record::Cycle(cycle) => (false, cycle.duration_ns),
            // Records of losses are few, and are kept longest.
            Record::Lost(_) => (false, u64::MAX),
            Record::Limited(limited) => {
                self.limited.pid = limited.pid;
                self.limited.add(limited);
                return;
            }
            // Totals of a complete trace do not belong to a window.
            Record::Summary(_) => return,
        };
        self.added += 1;
        self.bytes += size(&record);
        self.ranked.insert((!is_safepoint, ns, self.added), record);
    }

    /// Returns the memory of the records, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Drops records until the remaining ones take at most this many bytes, and adds the dropped stops to the
    /// sums. Returns the number of dropped records.
    fn shrink(&mut self, bytes: usize) -> u64 {
        let mut dropped = 0;
        while self.bytes > bytes {
            let Some((_, least)) = self.ranked.pop_first() else { break };
            self.bytes -= size(&least);
            dropped += 1;
            let one = |ns| Sum { count: 1, stopped_ns: ns, max_ns: ns };
            match *least {
                Record::Pause(stop) => self.limited.pauses.add(&one(stop.stopped_ns)),
                Record::Safepoint(stop) => self.limited.safepoints.add(&one(stop.stopped_ns)),
                // Other records are not stops.
                _ => {}
            }
        }
        dropped
    }

    /// Returns the records in the order in which they were added, followed by a record of the sums if there are any.
    pub fn into_records(self, pid: u32) -> Vec<Record> {
        let mut ranked: Vec<_> = self.ranked.into_iter().collect();
        ranked.sort_unstable_by_key(|&((.., position), _)| position);
        let mut records: Vec<_> = ranked.into_iter().map(|(_, record)| *record).collect();
        if !self.limited.is_empty() {
            records.push(Record::Limited(Limited { pid, ..self.limited }));
        }
        records
    }
}

/// Returns the memory of a record, in bytes.
fn size(record: &Record) -> usize {
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let texts = match record {
        Record::Pause(stop) | Record::Safepoint(stop) => text(&stop.op) + text(&stop.cause),
        Record::Cycle(cycle) => cycle.op.len() + text(&cycle.cause),
        _ => 0,
    };
    size_of::<(Rank, Box<Record>)>()
        + size_of::<Record>()
        + record.time().map_or(0, str::len)
        + texts
}

/// Records of many JVMs, limited in memory.
#[derive(Debug)]
pub struct AllStops<K> {
    jvms: BTreeMap<K, (Arc<str>, Stops)>,
    bytes: usize,
    max_bytes: usize,
}

impl<K: Ord + Clone> AllStops<K> {
    /// Creates an empty set, whose records take at most this many bytes.
    pub fn new(max_bytes: usize) -> Self {
        Self { jvms: BTreeMap::new(), bytes: 0, max_bytes }
    }

    /// Adds a record of a tenant's JVM. Returns the JVMs that lost records to make space, each with the
    /// number of lost records.
    pub fn add(&mut self, key: &K, tenant: &Arc<str>, record: Box<Record>) -> Vec<(K, u64)> {
        let new = || (Arc::clone(tenant), Stops::default());
        let (_, stops) = self.jvms.entry(key.clone()).or_insert_with(new);
        let before = stops.bytes();
        stops.add(record);
        self.bytes += stops.bytes() - before;
        if self.bytes > self.max_bytes { self.make_space() } else { Vec::new() }
    }

    /// Removes and returns the records of a JVM.
    pub fn take(&mut self, key: &K) -> Option<Stops> {
        let (_, stops) = self.jvms.remove(key)?;
        self.bytes -= stops.bytes();
        Some(stops)
    }

    /// Shrinks each tenant, and within it each JVM, to its share. The new size is at most seven eighths of
    /// the maximum, so that this function is called rarely.
    fn make_space(&mut self) -> Vec<(K, u64)> {
        let (mut dropped, mut freed) = (Vec::new(), 0);
        let all = self.jvms.iter_mut().map(|(key, (tenant, stops))| (tenant.clone(), (key, stops)));
        shrink_fairly(
            all,
            self.max_bytes / 8 * 7,
            |(_, stops)| stops.bytes(),
            |(key, stops), share| {
                let before = stops.bytes();
                let records = stops.shrink(share);
                freed += before - stops.bytes();
                if records > 0 {
                    dropped.push((key.clone(), records));
                }
                records
            },
        );
        self.bytes -= freed;
        dropped
    }
}

/// Number of elements that each tenant lost because it exceeded its share.
pub type Lost = BTreeMap<Arc<str>, u64>;

/// Shrinks items of tenants until all items together have at most about `max` bytes. Space is divided among tenants
/// first, and then among the items of each tenant. An item within its share stays as it is. `shrink` reduces an item
/// to the given size, and returns the number of elements that the item lost.
pub fn shrink_fairly<T>(
    items: impl Iterator<Item = (Arc<str>, T)>,
    max: usize,
    size: impl Fn(&T) -> usize,
    mut shrink: impl FnMut(T, usize) -> u64,
) -> Lost {
    let mut tenants: BTreeMap<Arc<str>, Vec<(usize, T)>> = BTreeMap::new();
    for (tenant, item) in items {
        tenants.entry(tenant).or_default().push((size(&item), item));
    }
    let sum = |items: &Vec<(usize, T)>| items.iter().map(|(size, _)| size).sum::<usize>();
    let share = share_of(tenants.values().map(sum), max);
    let mut all_lost = Lost::new();
    for (tenant, items) in tenants {
        let share = share_of(items.iter().map(|(size, _)| *size), share);
        let excessive = items.into_iter().filter(|(size, _)| *size > share);
        let lost = excessive.map(|(_, item)| shrink(item, share)).sum();
        if lost > 0 {
            all_lost.insert(tenant, lost);
        }
    }
    all_lost
}

/// Returns the maximum number of bytes that each party may have, so that all together have at most `all`
/// bytes: see [`fair_share`].
pub fn share_of(needs: impl Iterator<Item = usize>, all: usize) -> usize {
    fair_share(needs.map(|bytes| bytes as f64), all as f64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(json: &str) -> Box<Record> {
        serde_json::from_str(json).unwrap()
    }

    fn stop(kind: &str, ns: u64) -> Box<Record> {
        record(&format!(r#"{{"type":"{kind}","pid":7,"stopped_ns":{ns}}}"#))
    }

    fn json(records: &[Record]) -> Vec<String> {
        records.iter().map(|record| serde_json::to_string(record).unwrap()).collect()
    }

    /// Returns the number of stops that are recorded one by one, and the sums of the others.
    fn sums(records: &[Record]) -> (usize, Limited) {
        match records {
            [stops @ .., Record::Limited(limited)] => (stops.len(), *limited),
            stops => (stops.len(), Limited::default()),
        }
    }

    #[test]
    fn tenant_with_excessive_stops_loses_only_its_own_records() {
        let mut all = AllStops::new(100_000);
        let [a, b]: [Arc<str>; 2] = ["a".into(), "b".into()];
        for ns in 0..20 {
            assert!(all.add(&1, &a, stop("pause", ns)).is_empty());
        }
        let mut lost = BTreeMap::new();
        for i in 0..20_000_u64 {
            // Two JVMs of the same tenant.
            let mut stops = vec![(2, stop("safepoint", i)), (3, stop("safepoint", i))];
            if i % 1000 == 0 {
                stops.push((2, stop("pause", 1)));
            }
            for (key, stop) in stops {
                for (key, records) in all.add(&key, &b, stop) {
                    *lost.entry(key).or_insert(0) += records;
                }
            }
            assert!(all.bytes <= all.max_bytes);
        }
        assert_eq!(lost.keys().copied().collect::<Vec<_>>(), [2, 3]);
        let mut records = |key| all.take(&key).unwrap().into_records(7);
        assert_eq!(sums(&records(1)), (20, Limited::default()));
        let (ranked, limited) = sums(&records(2));
        // Each stop is counted exactly once. Safepoints are dropped before collections, and the longest stops
        // are kept.
        assert_eq!((ranked as u64 + limited.count(), limited.pauses.count), (20_020, 0));
        assert_eq!((lost[&2], limited.pid), (limited.count(), 7));
        assert!(limited.safepoints.max_ns < 19_999 && ranked > 100);
        assert_eq!(all.bytes, all.jvms[&3].1.bytes());
    }

    #[test]
    fn records_keep_their_order_and_sums_are_added() {
        let mut stops = Stops::default();
        let limited = r#"{"type":"limited","pid":7,"pauses":{"count":2,"stopped_ns":9,"max_ns":5},"safepoints":{"count":0,"stopped_ns":0,"max_ns":0}}"#;
        for record in [stop("pause", 3), record(limited), stop("safepoint", 1), record(limited)] {
            stops.add(record);
        }
        let records = stops.into_records(7);
        assert_eq!(json(&records[..2]), json(&[*stop("pause", 3), *stop("safepoint", 1)]));
        let sum = Sum { count: 4, stopped_ns: 18, max_ns: 5 };
        assert_eq!((sums(&records).1.pauses, records.len()), (sum, 3));
        let mut cycle = Stops::default();
        cycle.add(record(r#"{"type":"cycle","pid":7,"duration_ns":9}"#));
        assert_eq!(cycle.shrink(0), 1);
        assert!(cycle.into_records(7).is_empty());
    }
}

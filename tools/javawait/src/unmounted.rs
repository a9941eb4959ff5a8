//! Virtual threads that waited without a carrier: how many at a time, for what, and where. They are counted at intervals, so
//! their waits have no lengths. The number of waiting threads, multiplied by the time that passed, is their waiting time.

use std::collections::HashMap;

use libjvmprobe::{
    render::{
        table::{RuledTable, more},
        units::{count, span},
    },
    stack::Frame,
    trace::waits::{Kind, Unmounted, UnmountedReading, application_frame},
};

use crate::{
    groups::OTHER,
    record::{UnmountedRecord, frames},
    table,
    wait_text::{awaited, thread},
};

/// Maximum number of rows. Further threads are added to one row for all others.
const MAX_ROWS: usize = 4096;

/// Maximum number of owners that are distinguished in each row.
const MAX_OWNERS: usize = 256;

/// Properties that the threads of a row have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    pid: u32,
    kind: Kind,
    on: Option<String>,
    at: Option<String>,
}

/// Threads with equal properties.
#[derive(Clone, Debug, Default)]
struct Row {
    /// Waiting time of all threads in nanoseconds.
    total_ns: u64,
    /// Largest number of threads in one reading.
    max: u64,
    /// Waiting time by the thread that owned the lock.
    owners: HashMap<String, u64>,
    /// Stack of the largest number of threads, outermost frame first.
    stack: (u64, Vec<Frame>),
}

/// Readings of one JVM.
#[derive(Clone, Copy, Debug, Default)]
struct Readings {
    count: u64,
    /// Time that passed, in nanoseconds.
    covered_ns: u64,
    is_incomplete: bool,
}

/// The threads of an interval.
#[derive(Debug, Default)]
pub struct UnmountedThreads {
    with_idle: bool,
    rows: HashMap<Key, Row>,
    readings: HashMap<u32, Readings>,
}

impl UnmountedThreads {
    /// Makes an empty set. `with_idle`: threads that wait for work count, too.
    pub fn new(with_idle: bool) -> Self {
        Self { with_idle, ..Self::default() }
    }

    /// Adds a reading.
    pub fn add(&mut self, reading: &UnmountedReading) {
        let passed = reading.at_ns.saturating_sub(reading.since_ns);
        let readings = self.readings.entry(reading.pid).or_default();
        readings.count += u64::from(!reading.is_repeated);
        readings.covered_ns = readings.covered_ns.saturating_add(passed);
        readings.is_incomplete |= reading.is_incomplete;
        let mut now: HashMap<Key, u64> = HashMap::new();
        for group in reading.groups.iter().filter(|group| self.with_idle || !group.is_idle) {
            let mut key = key(reading.pid, group);
            if self.rows.len() >= MAX_ROWS && !self.rows.contains_key(&key) {
                key = Key { on: None, at: Some(OTHER.into()), ..key };
            }
            let time = group.threads.saturating_mul(passed);
            let row = self.rows.entry(key.clone()).or_default();
            row.total_ns = row.total_ns.saturating_add(time);
            if let Some(owner) = &group.owner {
                let mut name = thread(owner);
                if row.owners.len() >= MAX_OWNERS && !row.owners.contains_key(&name) {
                    name = OTHER.into();
                }
                let owned = row.owners.entry(name).or_default();
                *owned = owned.saturating_add(time);
            }
            if group.threads > row.stack.0 {
                row.stack = (group.threads, group.stack.to_vec());
            }
            *now.entry(key).or_default() += group.threads;
        }
        for (key, threads) in now {
            let row = self.rows.entry(key).or_default();
            row.max = row.max.max(threads);
        }
    }

    /// Returns the rows, those with the most time first.
    fn sorted(&self) -> Vec<(&Key, &Row)> {
        let mut all: Vec<_> = self.rows.iter().collect();
        all.sort_by(|a, b| b.1.total_ns.cmp(&a.1.total_ns).then_with(|| a.0.cmp(b.0)));
        all
    }

    fn readings(&self, key: &Key) -> Readings {
        self.readings.get(&key.pid).copied().unwrap_or_default()
    }

    /// Returns at most `max` records.
    pub fn records(&self, time: &str, max: usize) -> Vec<UnmountedRecord> {
        let record = |(key, row): (&Key, &Row)| {
            let readings = self.readings(key);
            UnmountedRecord {
                time: time.to_owned(),
                pid: key.pid,
                kind: key.kind,
                on: key.on.clone(),
                at: key.at.clone(),
                readings: readings.count,
                mean_threads: mean(row.total_ns, readings.covered_ns),
                max_threads: row.max,
                total_ns: row.total_ns,
                owner: row.owner().map(str::to_owned),
                complete: !readings.is_incomplete,
                stack: frames(&row.stack.1),
            }
        };
        self.sorted().into_iter().take(max).map(record).collect()
    }

    /// Returns the lines of a table with at most `rows` rows, and the stack of the first one; of all if `with_stacks`. Returns
    /// none if no thread waited.
    pub fn lines(&self, rows: usize, with_stacks: bool) -> Vec<String> {
        let mut shown = self.sorted();
        let hidden = shown.split_off(rows.min(shown.len()));
        if shown.is_empty() {
            return Vec::new();
        }
        let readings: u64 = self.readings.values().map(|readings| readings.count).sum();
        let mut lines = vec![
            String::new(),
            format!("Unmounted virtual threads that waited, counted {}:", count(readings, "time")),
        ];
        let head = ["TOTAL", "MEAN THREADS", "MAX THREADS", "KIND", "FOR", "AT", "OWNER"];
        let mut table = RuledTable::new(&head, 0..3);
        for (key, row) in &shown {
            table.row(vec![
                span(row.total_ns),
                format!("{:.1}", mean(row.total_ns, self.readings(key).covered_ns)),
                row.max.to_string(),
                key.kind.name().into(),
                key.on.clone().unwrap_or_else(|| "-".into()),
                key.at.clone().unwrap_or_else(|| "-".into()),
                row.owner().unwrap_or("-").into(),
            ]);
        }
        lines.extend(table.text().lines().map(str::to_owned));
        let more = more("row", hidden.iter().map(|(_, row)| row.total_ns), span);
        lines.extend(more.map(|rows| format!("{rows}; --top shows more")));
        if self.readings.values().any(|readings| readings.is_incomplete) {
            lines.push("Some virtual threads could not be read.".into());
        }
        for (key, row) in shown.iter().take(if with_stacks { usize::MAX } else { 1 }) {
            lines.extend(row.describe(key, with_stacks));
        }
        lines
    }
}

impl Row {
    /// Returns the thread that owned the lock for most of the time.
    fn owner(&self) -> Option<&str> {
        let longest = self.owners.iter().max_by(|a, b| a.1.cmp(b.1).then_with(|| b.0.cmp(a.0)));
        longest.map(|(name, _)| name.as_str())
    }

    fn describe(&self, key: &Key, all_frames: bool) -> Vec<String> {
        let on = key.on.as_ref().map_or_else(String::new, |on| format!(" for {on}"));
        let threads = count(self.stack.0, "thread");
        let mut lines =
            vec![String::new(), format!("At a time: {threads} in {}{on}", key.kind.name())];
        lines.extend(table::frames(&self.stack.1, all_frames));
        lines
    }
}

fn key(pid: u32, group: &Unmounted) -> Key {
    Key {
        pid,
        kind: group.kind,
        on: awaited(&group.awaited, false),
        at: application_frame(&group.stack).map(|frame| frame.name.to_string()),
    }
}

/// Returns the mean number of threads. Both times are in nanoseconds.
fn mean(total: u64, covered: u64) -> f64 {
    if covered == 0 { 0.0 } else { total as f64 / covered as f64 }
}

#[cfg(test)]
mod tests {
    use libjvmprobe::{
        Pid, stack,
        trace::waits::{Awaited, ThreadName},
    };

    use super::*;

    fn group(threads: u64, at: &'static str, owner: Option<&str>) -> Unmounted {
        let mut awaited = Awaited::default();
        awaited.class = Some("a.Lock".into());
        Unmounted {
            kind: Kind::Park,
            awaited,
            owner: owner.map(|name| ThreadName {
                pid: Pid(7),
                tid: 8,
                name: name.into(),
                virtual_thread: None,
            }),
            is_idle: at == "Idle.run",
            stack: [Frame::new(stack::Kind::Java, at)].into(),
            threads,
        }
    }

    fn reading(since_ns: u64, at_ns: u64, groups: Vec<Unmounted>) -> UnmountedReading {
        let (is_incomplete, is_repeated) = (false, false);
        UnmountedReading { pid: 7, since_ns, at_ns, groups, is_incomplete, is_repeated }
    }

    #[test]
    fn numbers_of_threads_are_weighted_by_time() {
        let mut all = UnmountedThreads::new(false);
        all.add(&reading(0, 100, vec![group(10, "Dao.find", Some("main"))]));
        let second = vec![
            group(2, "Dao.find", Some("other")),
            group(1, "Dao.find", None),
            group(50, "Idle.run", None),
        ];
        all.add(&reading(100, 400, second));
        let [record] = &all.records("now", 5)[..] else { panic!("one row") };
        assert_eq!(record.total_ns, 10 * 100 + 3 * 300);
        assert_eq!((record.max_threads, record.readings), (10, 2));
        assert!((record.mean_threads - 4.75).abs() < 1e-9);
        assert_eq!(record.owner.as_deref(), Some("\"main\""));
        assert_eq!(record.on.as_deref(), Some("a.Lock"));
        assert_eq!(record.at.as_deref(), Some("Dao.find"));
    }

    #[test]
    fn reading_without_threads_lowers_the_mean() {
        let mut all = UnmountedThreads::new(false);
        all.add(&reading(0, 100, vec![group(10, "Dao.find", None)]));
        all.add(&reading(100, 1000, Vec::new()));
        let [record] = &all.records("now", 5)[..] else { panic!("one row") };
        assert_eq!((record.total_ns, record.readings), (1000, 2));
        assert!((record.mean_threads - 1.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_is_printed_without_virtual_threads() {
        assert!(UnmountedThreads::new(false).lines(20, true).is_empty());
    }
}

//! Locks and other resources: waits for each, and how long the locks were held.

use std::collections::{HashMap, HashSet};

use libjvmprobe::{
    render::{table::RuledTable, units::span},
    trace::waits::{Awaited, Kind, Wait},
};

use crate::{
    groups::{Ended, Group},
    record::{EndedBy, LockRecord},
    wait_text::awaited,
};

/// Maximum number of locks. Waits for further locks are not shown.
const MAX_LOCKS: usize = 4096;
/// Maximum number of threads counted for each lock.
const MAX_THREADS: usize = 4096;

/// A lock or another resource.
#[derive(Debug)]
pub struct Lock {
    /// The process.
    pub pid: u32,
    /// Object, file or connection.
    pub awaited: Awaited,
    /// Kind of the waits.
    pub kind: Kind,
    /// The waits.
    pub group: Group,
    threads: HashSet<(u32, Option<u64>)>,
    /// For each period in which a thread held the lock: its end, and the longest known length, in nanoseconds.
    holds: HashMap<u64, u64>,
}

impl Lock {
    fn mean_hold(&self) -> u64 {
        let sum: u64 = self.holds.values().sum();
        sum / (self.holds.len() as u64).max(1)
    }

    fn max_hold(&self) -> u64 {
        self.holds.values().copied().max().unwrap_or(0)
    }

    fn name(&self) -> String {
        awaited(&self.awaited, true).unwrap_or_else(|| "-".into())
    }

    /// Returns its record.
    pub fn record(&self, time: &str) -> LockRecord {
        LockRecord {
            time: time.to_owned(),
            pid: self.pid,
            on: self.name(),
            kind: self.kind,
            waits: self.group.count,
            total_ns: self.group.total_ns,
            max_ns: self.group.max_ns,
            threads: self.threads.len() as u64,
            threads_at_once: self.group.at_once(),
            holds: self.holds.len() as u64,
            mean_hold_ns: self.mean_hold(),
            max_hold_ns: self.max_hold(),
            ended_by: ended_by(&self.group),
        }
    }
}

/// Returns the places at which threads ended the waits of a group.
pub fn ended_by(group: &Group) -> Vec<EndedBy> {
    let record = |(at, ended): (&str, Ended)| EndedBy {
        at: at.into(),
        count: ended.count,
        total_ns: ended.total_ns,
        mean_held_ns: (ended.holds > 0).then(|| ended.held_ns / ended.holds),
        max_held_ns: (ended.holds > 0).then_some(ended.max_held_ns),
    };
    group.ended_by().into_iter().map(record).collect()
}

/// All locks of an interval.
#[derive(Debug, Default)]
pub struct Locks(HashMap<(u32, Kind, u64, String), Lock>);

impl Locks {
    /// Adds a wait, if it was for an object, a file or a connection.
    pub fn add(&mut self, wait: &Wait) {
        let Some(name) = awaited(&wait.awaited, false) else { return };
        let pid = wait.thread.pid.0;
        let key = (pid, wait.kind, wait.awaited.address, name);
        if self.0.len() >= MAX_LOCKS && !self.0.contains_key(&key) {
            return;
        }
        let lock = self.0.entry(key).or_insert_with(|| Lock {
            pid,
            awaited: wait.awaited.clone(),
            kind: wait.kind,
            group: Group::new(),
            threads: HashSet::new(),
            holds: HashMap::new(),
        });
        lock.group.add(wait);
        if lock.threads.len() < MAX_THREADS {
            lock.threads.insert((wait.thread.tid, wait.thread.virtual_thread));
        }
        if let Some(holder) = wait.holder.as_ref().filter(|by| by.held_ns > 0) {
            // Several waits may end with the same period.
            let end = wait.end_ns.saturating_sub(wait.run_queue_ns);
            let longest = lock.holds.entry(end).or_default();
            *longest = (*longest).max(holder.held_ns);
        }
    }

    /// Returns the locks, those with the most waiting time first.
    pub fn sorted(&self) -> Vec<&Lock> {
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort_by(|(a, lock), (b, other)| {
            other.group.total_ns.cmp(&lock.group.total_ns).then_with(|| a.cmp(b))
        });
        all.into_iter().map(|(_, lock)| lock).collect()
    }
}

/// Returns the table of locks.
pub fn table(locks: &[&Lock]) -> String {
    let head = [
        "TOTAL",
        "WAITS",
        "MEAN",
        "MAX",
        "THREADS",
        "AT ONCE",
        "HOLDS",
        "MEAN HOLD",
        "MAX HOLD",
        "KIND",
        "FOR",
        "ENDED BY",
    ];
    let mut table = RuledTable::new(&head, 0..9);
    for lock in locks {
        let group = &lock.group;
        let hold = |ns: u64| if lock.holds.is_empty() { "-".into() } else { span(ns) };
        table.row(vec![
            span(group.total_ns),
            group.count.to_string(),
            span(group.total_ns / group.count.max(1)),
            span(group.max_ns),
            lock.threads.len().to_string(),
            group.at_once().to_string(),
            lock.holds.len().to_string(),
            hold(lock.mean_hold()),
            hold(lock.max_hold()),
            lock.kind.name().into(),
            lock.name(),
            crate::table::ended_by(group),
        ]);
    }
    table.text()
}

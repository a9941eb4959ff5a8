//! Waits grouped by kind, object and place.

use std::collections::HashMap;

use hdrhistogram::Histogram;
use libjvmprobe::trace::waits::{Holder, Kind, Wait, application_frame};

use crate::wait_text::{awaited, thread};

/// Maximum number of groups. Further waits are added to one group for all others.
const MAX_GROUPS: usize = 4096;
/// Maximum number of places of holders that are kept for each group.
const MAX_HOLDERS: usize = 256;
/// Place of everything beyond such a limit.
pub const OTHER: &str = "(other)";
/// Maximum number of periods that are kept for each group to find how many threads waited at once.
const MAX_PERIODS: usize = 1 << 14;

/// Maximum length in microseconds that percentiles show: one day.
const MAX_LENGTH_US: u64 = 86_400_000_000;

/// Properties that the waits of a group have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The process.
    pub pid: u32,
    /// The thread, if threads are shown separately.
    pub thread: Option<String>,
    /// Kind.
    pub kind: Kind,
    /// Class of the object, or the file or peer.
    pub on: Option<String>,
    /// Innermost frame of the application.
    pub at: Option<String>,
}

/// Waits of a group.
#[derive(Clone, Debug)]
pub struct Group {
    /// Number of waits.
    pub count: u64,
    /// Sum of their lengths in nanoseconds.
    pub total_ns: u64,
    /// Length of the longest wait.
    pub max_ns: u64,
    /// Lengths in microseconds.
    lengths: Histogram<u64>,
    /// Begins and ends.
    periods: Vec<(u64, u64)>,
    /// The longest wait.
    pub longest: Option<Wait>,
    /// Waits that threads at a place ended, by place.
    holders: HashMap<String, Ended>,
}

/// Waits of a group that threads at one place ended. Lengths are in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ended {
    /// Number of waits.
    pub count: u64,
    /// Sum of their lengths.
    pub total_ns: u64,
    /// Number of times that a thread held a lock or an element of a pool for a known time.
    pub holds: u64,
    /// Sum of these times.
    pub held_ns: u64,
    /// The longest of these times.
    pub max_held_ns: u64,
}

impl Group {
    /// Makes an empty group.
    pub fn new() -> Self {
        Self {
            count: 0,
            total_ns: 0,
            max_ns: 0,
            lengths: Histogram::new_with_bounds(1, MAX_LENGTH_US, 2).expect("the bounds are valid"),
            periods: Vec::new(),
            longest: None,
            holders: HashMap::new(),
        }
    }

    /// Adds a wait.
    pub fn add(&mut self, wait: &Wait) {
        let length = wait.length_ns();
        self.count += 1;
        self.total_ns = self.total_ns.saturating_add(length);
        self.max_ns = self.max_ns.max(length);
        self.lengths.saturating_record((length / 1000).max(1));
        if self.periods.len() < MAX_PERIODS {
            self.periods.push((wait.begin_ns, wait.end_ns));
        }
        if let Some(holder) = &wait.holder {
            let mut at = place(holder);
            if self.holders.len() >= MAX_HOLDERS && !self.holders.contains_key(&at) {
                at = OTHER.into();
            }
            let ended = self.holders.entry(at).or_default();
            ended.count += 1;
            ended.total_ns = ended.total_ns.saturating_add(length);
            if holder.held_ns > 0 {
                ended.holds += 1;
                ended.held_ns = ended.held_ns.saturating_add(holder.held_ns);
                ended.max_held_ns = ended.max_held_ns.max(holder.held_ns);
            }
        }
        if self.longest.as_ref().is_none_or(|longest| longest.length_ns() < length) {
            self.longest = Some(wait.clone());
        }
    }

    /// Returns the places at which threads ended waits of this group. The place at which locks or elements of pools were
    /// held longest comes first; if none was held, that of the longest waits.
    pub fn ended_by(&self) -> Vec<(&str, Ended)> {
        let mut all: Vec<_> = self.holders.iter().map(|(at, ended)| (&**at, *ended)).collect();
        let order = |ended: &Ended| (ended.held_ns, ended.total_ns);
        all.sort_by(|a, b| order(&b.1).cmp(&order(&a.1)).then_with(|| a.0.cmp(b.0)));
        all
    }

    /// Returns a percentile of the lengths, in nanoseconds.
    pub fn percentile(&self, percent: f64) -> u64 {
        self.lengths.value_at_percentile(percent).saturating_mul(1000).min(self.max_ns)
    }

    /// Returns the maximum number of threads that waited at a time.
    pub fn at_once(&self) -> u64 {
        let mut changes: Vec<_> =
            self.periods.iter().flat_map(|&(begin, end)| [(begin, 1_i64), (end, -1)]).collect();
        // At equal times, ends come first.
        changes.sort_unstable();
        let (mut now, mut most) = (0, 0);
        for (_, change) in changes {
            now += change;
            most = most.max(now);
        }
        u64::try_from(most).unwrap_or(0)
    }
}

/// Returns the place at which a thread ended a wait: the innermost frame of the application, or the thread's name if it
/// has no Java frame.
fn place(holder: &Holder) -> String {
    match application_frame(&holder.stack).filter(|frame| frame.is_java()) {
        Some(frame) => frame.name.to_string(),
        None => thread(&holder.thread),
    }
}

/// All groups of an interval.
#[derive(Debug)]
pub struct Groups {
    by_thread: bool,
    with_idle: bool,
    groups: HashMap<Key, Group>,
    /// Number of waits, and the sum of their lengths.
    pub all: (u64, u64),
    /// The same of waits for work.
    pub idle: (u64, u64),
}

impl Groups {
    /// Makes an empty set of groups.
    pub fn new(by_thread: bool, with_idle: bool) -> Self {
        Self { by_thread, with_idle, groups: HashMap::new(), all: (0, 0), idle: (0, 0) }
    }

    /// Adds a wait.
    pub fn add(&mut self, wait: &Wait) {
        let sum = if wait.is_idle { &mut self.idle } else { &mut self.all };
        sum.0 += 1;
        sum.1 = sum.1.saturating_add(wait.length_ns());
        if wait.is_idle && !self.with_idle {
            return;
        }
        let mut key = Key {
            pid: wait.thread.pid.0,
            thread: self.by_thread.then(|| wait.thread.name.to_string()),
            kind: wait.kind,
            on: awaited(&wait.awaited, false),
            at: wait.application_frame().map(|frame| frame.name.to_string()),
        };
        if self.groups.len() >= MAX_GROUPS && !self.groups.contains_key(&key) {
            key = Key { thread: None, on: None, at: Some(OTHER.into()), ..key };
        }
        self.groups.entry(key).or_insert_with(Group::new).add(wait);
    }

    /// Returns the groups, those with the most time first.
    pub fn sorted(&self) -> Vec<(&Key, &Group)> {
        let mut all: Vec<_> = self.groups.iter().collect();
        all.sort_by(|a, b| b.1.total_ns.cmp(&a.1.total_ns).then_with(|| a.0.cmp(b.0)));
        all
    }
}

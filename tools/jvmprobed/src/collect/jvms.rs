//! Which JVMs there are, and who they are.

use std::{
    collections::BTreeMap,
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use libjvmprobe::{
    Pid,
    follow::{Arrival, Arrivals, Slots, Who},
    hotspot::HotSpot,
    own::Pace,
    process::{Process, Target},
};

use crate::{config::Rule, identity::Identities, metrics::figures::Gauges, window::Identity};

/// What takers hand over of a JVM comes as late as this after its end.
const LINGER: Duration = Duration::from_secs(40);
/// Classes that the JVM does not count itself are counted once in so many windows.
const SELDOM: u64 = 8;
/// Maximum time to read what one JVM holds, and all of them, once a window: the main loop waits.
const GAUGES: Duration = Duration::from_millis(100);
const ALL_GAUGES: Duration = Duration::from_millis(500);

/// All JVMs that run, and those that have ended not long ago.
#[derive(Debug)]
pub struct Jvms {
    arrivals: Arrivals,
    identities: Identities,
    known: BTreeMap<u32, Known>,
    /// How many windows there were.
    windows: u64,
    /// Process number of the JVM whose gauges were read last.
    last_read: u32,
    /// JVMs whose gauges were left out of the last window for want of time.
    left_out: Vec<Arc<Identity>>,
}

#[derive(Debug)]
struct Known {
    process: Process,
    /// What it tells of itself; `None` where that cannot be read.
    hotspot: Option<HotSpot>,
    /// `None` where the rules leave it alone.
    who: Option<Arc<Identity>>,
    ended: Option<Instant>,
}

impl Jvms {
    /// Those that run now, and from here on those that come.
    pub fn open(rules: Vec<Rule>, slots: Slots) -> Self {
        let arrivals = Arrivals::open(false).at(Pace::Calm).within(slots);
        Self {
            arrivals,
            identities: Identities::new(rules),
            known: BTreeMap::new(),
            windows: 0,
            last_read: 0,
            left_out: Vec::new(),
        }
    }

    /// Other rules for those that come.
    pub fn set_rules(&mut self, rules: Vec<Rule>) {
        self.identities.set_rules(rules);
    }

    /// When to look for new ones.
    pub fn next_look(&self) -> Instant {
        self.arrivals.next_look()
    }

    /// Looks for new ones; returns those that are wanted.
    pub fn look(&mut self) -> Vec<Arc<Identity>> {
        let arrivals = self.arrivals.take();
        let come = arrivals
            .into_iter()
            .filter_map(|Arrival { target, hotspot }| self.come(target, hotspot.ok()));
        come.collect()
    }

    fn come(&mut self, target: Target, hotspot: Option<HotSpot>) -> Option<Arc<Identity>> {
        let pid = target.pid().0;
        let who = self.identities.came(pid, Who::of(&target, hotspot.as_ref()));
        // Nothing is asked of those that are left alone.
        let hotspot = hotspot.filter(|_| who.is_some());
        let known = Known { process: target.process, hotspot, who: who.clone(), ended: None };
        self.known.insert(pid, known);
        who
    }

    /// Who a piece is of; `None` where the rules leave it alone, or nobody knows it any more. The
    /// second is one that was not known before.
    pub fn who(&mut self, pid: u32) -> (Option<Arc<Identity>>, bool) {
        if let Some(known) = self.known.get(&pid) {
            return (known.who.clone(), false);
        }
        // It was found by a taker first.
        let Ok(target) = Target::open(Pid(pid)) else { return (None, false) };
        let hotspot = HotSpot::read(&target).ok();
        let who = self.come(target, hotspot);
        let is_new = who.is_some();
        (who, is_new)
    }

    /// Returns the identity of a process that was looked at and is wanted.
    pub fn known(&self, pid: u32) -> Option<Arc<Identity>> {
        self.known.get(&pid)?.who.clone()
    }

    /// How many have ended before they were looked at, for many come and go.
    pub fn left_out(&self) -> u64 {
        self.arrivals.left_out()
    }

    /// Notices who has ended; returns those that had been wanted.
    pub fn part(&mut self) -> Vec<Arc<Identity>> {
        let now = Instant::now();
        let mut ended = Vec::new();
        for (&pid, known) in &mut self.known {
            if known.ended.is_none() && known.process.has_ended() {
                known.ended = Some(now);
                known.hotspot = None;
                self.arrivals.forget(Pid(pid));
                if let Some(who) = &known.who {
                    self.identities.ended(who);
                    ended.push(Arc::clone(who));
                }
            }
        }
        self.known.retain(|_, known| known.ended.is_none_or(|at| now - at < LINGER));
        ended
    }

    /// Returns the gauges of running JVMs that the rules select, once per window. If some take long, others
    /// are [left out](Self::without_gauges), and come first in the next window.
    pub fn gauges(&mut self) -> Vec<(Arc<Identity>, Gauges)> {
        self.windows += 1;
        let until = Instant::now() + ALL_GAUGES;
        self.left_out.clear();
        let mut read = Vec::new();
        for pid in in_turn(self.known.keys().copied(), self.last_read) {
            let Some(known) = self.known.get_mut(&pid) else { continue };
            let Some(who) = known.who.clone().filter(|_| known.ended.is_none()) else { continue };
            let now = Instant::now();
            let mut is_complete = now < until;
            if is_complete {
                self.last_read = pid;
                let (gauges, has_all) = known.gauges(self.windows, until.min(now + GAUGES));
                is_complete = has_all;
                read.push((Arc::clone(&who), gauges));
            }
            if !is_complete {
                self.left_out.push(who);
            }
        }
        read
    }

    /// Returns JVMs whose gauges of the last window are missing or incomplete for want of time.
    pub fn without_gauges(&self) -> &[Arc<Identity>] {
        &self.left_out
    }

    /// How many run and are wanted.
    pub fn running(&self) -> usize {
        self.known.values().filter(|known| known.ended.is_none() && known.who.is_some()).count()
    }
}

impl Known {
    /// What it holds; what cannot be read, for it is just setting that up or ending, is left out.
    /// The second is whether there was time for all.
    fn gauges(&mut self, windows: u64, until: Instant) -> (Gauges, bool) {
        let pid = self.process.pid.0;
        let mut gauges = Gauges { threads: threads(pid), ..Gauges::default() };
        let Some(hotspot) = &mut self.hotspot else { return (gauges, true) };
        if !hotspot.is_set_up {
            hotspot.look_again();
        }
        if let Ok(fill) = hotspot.code_cache() {
            (gauges.code_cache_used, gauges.code_cache_size) = (Some(fill.used), Some(fill.size));
        }
        // Not all at once.
        if hotspot.counts_classes() || windows % SELDOM == u64::from(pid) % SELDOM {
            gauges.loaded_classes = hotspot.loaded_classes_until(Some(until)).ok();
        }
        (gauges, Instant::now() < until)
    }
}

/// Sorted process numbers, beginning behind one of them.
fn in_turn(all: impl Iterator<Item = u32>, last: u32) -> Vec<u32> {
    let mut all: Vec<_> = all.collect();
    let first = all.partition_point(|&pid| pid <= last);
    all.rotate_left(first);
    all
}

/// How many threads a process has.
fn threads(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Threads:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_left_out_come_first_in_the_next_window() {
        let turn = |last| in_turn([3, 5, 8].into_iter(), last);
        assert_eq!(turn(0), [3, 5, 8]);
        assert_eq!(turn(3), [5, 8, 3]);
        assert_eq!(turn(6), [8, 3, 5]);
        assert_eq!(turn(8), [3, 5, 8]);
    }
}

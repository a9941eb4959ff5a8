//! Stops of a JVM whose libjvm.so has neither probes nor symbols, from the JVM's own counters.
//!
//! At the very end of a stop, the VM thread adds the duration of the stop to one of these counters
//! (`RuntimeService::record_safepoint_end` of services/runtimeService.cpp). A watchpoint on that counter then
//! runs a BPF program, which reads all counters. Each stop is therefore known individually, with the
//! durations that the JVM measured for the stop and for its collections.
//!
//! If no watchpoint can be set, the counters are polled. For each kind of collection, the JVM keeps only the
//! begin and the end of the last collection. If several took place between two polls, only their number and
//! their total time are known.

use std::time::Duration;

use crate::{
    hotspot::counters::{Count, Counts},
    sys::Pace,
};

/// Returns the interval at which counters are polled.
pub(crate) const fn poll_interval(pace: Pace) -> Duration {
    Duration::from_millis(match pace {
        Pace::Prompt => 5,
        Pace::Calm => 50,
    })
}

/// The last reading of a JVM's counters, with which the next one is compared.
#[derive(Debug)]
pub(crate) struct Counted {
    last: Counts,
    /// Whether the JVM counts the time of stops without the time to safepoint.
    stop_time_excludes_sync: bool,
    /// Latest possible time on `CLOCK_MONOTONIC` at which the JVM's tick count began. The sooner a collection
    /// is seen after its end, the closer this bound is.
    start: i128,
}

/// Difference between two readings: one stop, or the collections of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Collected {
    /// Approximate begin of the stop, or of the last collection, in nanoseconds on `CLOCK_MONOTONIC`.
    pub(crate) begin_ns: u64,
    /// Number of collections of each kind: young ones, full ones (with CMS also its marking pauses), others.
    pub(crate) collections: [u64; 3],
    /// Total time of the collections.
    pub(crate) pause_ns: u64,
    /// Duration of the stop, if this is known to be a single stop.
    pub(crate) stopped_ns: Option<u64>,
    /// Time until all threads had stopped, if this is known to be a single stop.
    pub(crate) ttsp_ns: Option<u64>,
}

impl Counted {
    /// Starts with a first reading of the counters.
    pub(crate) fn begin(last: Counts, stop_time_excludes_sync: bool) -> Self {
        Self { last, stop_time_excludes_sync, start: i128::MAX }
    }

    /// Evaluates counters that were read at the end of a stop.
    pub(crate) fn stop(&mut self, counts: Counts, now_ns: u64) -> Vec<Collected> {
        match counts.stops.saturating_sub(self.last.stops) {
            // The JVM increments the number of stops at the begin of a stop. The number has not increased, so
            // this stop had begun before the first reading. The stop is not reported, because the first
            // reading may include a part of its time.
            0 => {
                self.last = counts;
                Vec::new()
            }
            1 => vec![self.one(counts, now_ns)],
            // Several stops have ended since the last reading, but only the last of them sent an event.
            _ => {
                let found = self.update(counts, now_ns);
                self.last = counts;
                found
            }
        }
    }

    /// Evaluates counters that were read at any time.
    pub(crate) fn update(&mut self, counts: Counts, now_ns: u64) -> Vec<Collected> {
        let each = (0..counts.kinds.len()).filter_map(|kind| self.kind(&counts, kind, now_ns));
        each.collect()
    }

    /// Returns the difference between the last reading and `counts` as one stop.
    fn one(&mut self, counts: Counts, now_ns: u64) -> Collected {
        let last = std::mem::replace(&mut self.last, counts);
        let sync = counts.sync.saturating_sub(last.sync);
        let counted = counts.stopped.saturating_sub(last.stopped);
        let stopped_ns =
            if self.stop_time_excludes_sync { counted.saturating_add(sync) } else { counted };
        let mut found = Collected {
            begin_ns: now_ns.saturating_sub(stopped_ns),
            stopped_ns: Some(stopped_ns),
            ttsp_ns: Some(sync),
            ..Collected::default()
        };
        let kinds = counts.kinds.iter().zip(&last.kinds);
        for ((now, last), number) in kinds.zip(&mut found.collections) {
            *number = now.collections.saturating_sub(last.collections);
            if *number > 0 {
                found.pause_ns = found.pause_ns.saturating_add(pause(last, now, *number));
            }
        }
        found
    }

    /// Returns the collections of a kind that have ended, in one stop or in several.
    fn kind(&mut self, counts: &Counts, kind: usize, now_ns: u64) -> Option<Collected> {
        let (last, now) = (*self.last.kinds.get(kind)?, counts.kinds.get(kind)?);
        let number = now.collections.saturating_sub(last.collections);
        // A collection under way is reported when it has ended.
        if number == 0 || now.exit < now.entry {
            return None;
        }
        *self.last.kinds.get_mut(kind)? = *now;
        let mut collections = [0; 3];
        *collections.get_mut(kind)? = number;
        let (begin_ns, pause_ns) = (self.time(now, now_ns), pause(&last, now, number));
        Some(Collected { begin_ns, collections, pause_ns, ..Collected::default() })
    }

    /// Returns the time at which the last finished collection began.
    fn time(&mut self, count: &Count, now_ns: u64) -> u64 {
        self.start = self.start.min(i128::from(now_ns) - i128::from(count.exit));
        let began = self.start.saturating_add(count.entry.into());
        u64::try_from(began).unwrap_or(0).min(now_ns)
    }
}

/// Returns the duration of one collection, from its timestamps, or the total duration of several collections,
/// from the increase of the JVM's total.
fn pause(last: &Count, now: &Count, collections: u64) -> u64 {
    match collections {
        1 => now.exit.saturating_sub(now.entry),
        _ => now.time.saturating_sub(last.time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(collections: u64, time: u64, entry: u64, exit: u64) -> Counts {
        let young = Count { collections, time, entry, exit };
        Counts { kinds: [young, Count::default(), Count::default()], ..Counts::default() }
    }

    fn stop(stops: u64, stopped: u64, sync: u64, counts: Counts) -> Counts {
        Counts { stops, stopped, sync, ..counts }
    }

    #[test]
    fn stop_is_reported_from_counter_increases() {
        let mut counted = Counted::begin(stop(7, 500, 50, counts(3, 300, 900, 950)), false);
        let expected = Collected {
            begin_ns: 6980,
            collections: [1, 0, 0],
            pause_ns: 40,
            stopped_ns: Some(70),
            ttsp_ns: Some(10),
        };
        let now = stop(8, 570, 60, counts(4, 340, 2000, 2040));
        assert_eq!(counted.stop(now, 7050), [expected]);
        // A stop without a collection.
        let [found] = counted.stop(stop(9, 580, 64, now), 8000)[..] else { panic!() };
        assert_eq!((found.collections, found.stopped_ns, found.pause_ns), ([0; 3], Some(10), 0));
        // The JVM may count the time to safepoint separately.
        let mut counted = Counted::begin(stop(7, 500, 50, Counts::default()), true);
        let [found] = counted.stop(stop(8, 530, 56, Counts::default()), 7000)[..] else { panic!() };
        assert_eq!((found.begin_ns, found.stopped_ns), (6964, Some(36)));
    }

    #[test]
    fn collections_of_missed_stops_are_summed_but_a_stop_in_progress_is_ignored() {
        let mut counted = Counted::begin(stop(7, 500, 50, counts(4, 300, 900, 950)), false);
        assert_eq!(counted.stop(stop(7, 550, 50, counts(4, 340, 900, 990)), 7000), []);
        let found = counted.stop(stop(9, 700, 60, counts(6, 420, 2000, 2030)), 9000);
        let [found] = found[..] else { panic!("{found:?}") };
        assert_eq!((found.collections, found.pause_ns, found.stopped_ns), ([2, 0, 0], 80, None));
        let [found] = counted.stop(stop(10, 710, 61, counts(6, 420, 2000, 2030)), 9500)[..] else {
            panic!()
        };
        assert_eq!((found.collections, found.stopped_ns), ([0; 3], Some(10)));
    }

    #[test]
    fn single_collection_uses_its_own_timestamps() {
        let mut counted = Counted::begin(counts(3, 300, 900, 950), false);
        assert_eq!(counted.update(counts(3, 300, 900, 950), 5000), []);
        // The collection is still running at the first reading, and has ended at the second.
        assert_eq!(counted.update(counts(4, 300, 2000, 950), 7050), []);
        let found = counted.update(counts(4, 340, 2000, 2040), 7070);
        let expected = Collected {
            begin_ns: 7030,
            collections: [1, 0, 0],
            pause_ns: 40,
            ..Collected::default()
        };
        assert_eq!(found, [expected]);
        // A collection that is seen sooner gives a closer bound for the JVM's start.
        let found = counted.update(counts(5, 350, 3000, 3010), 8020);
        assert_eq!((found[0].begin_ns, found[0].pause_ns), (8010, 10));
        assert_eq!(counted.update(counts(5, 350, 3000, 3010), 9000), []);
    }

    #[test]
    fn missed_collections_are_summed() {
        let mut counted = Counted::begin(counts(3, 300, 900, 950), false);
        let found = counted.update(counts(5, 380, 2000, 2030), 5000);
        let [found] = found[..] else { panic!("{found:?}") };
        assert_eq!((found.collections, found.pause_ns, found.stopped_ns), ([2, 0, 0], 80, None));
    }

    #[test]
    fn implausible_counters_do_not_panic() {
        let mut counted = Counted::begin(counts(9, 9, 9, 9), true);
        for number in [0, 1, u64::MAX] {
            for at in [0, u64::MAX] {
                let first = stop(number, at, number, counts(number, number, 0, at));
                let second = stop(at, number, at, counts(u64::MAX, 0, at, u64::MAX));
                let _ = (counted.stop(first, at), counted.update(second, number));
                let _ = (counted.update(first, at), counted.stop(second, number));
            }
        }
    }
}

//! Stops of a JVM whose libjvm.so has neither probes nor symbols, by its own counters.
//!
//! The VM thread adds each stop that is over to one of them, as the last thing of all
//! (`RuntimeService::record_safepoint_end` of services/runtimeService.cpp). A watchpoint notices,
//! and all are read in that instant: so each stop is known by itself, with its times and those of
//! its collections as the JVM has them.
//!
//! Where there can be no watchpoint, they are looked at often. The JVM stamps the begin and the end
//! of its last collection of each kind, so that of several between two looks only the number and
//! the sum are known.

use std::time::Duration;

use crate::{
    hotspot::counters::{Count, Counts},
    own::Pace,
};

/// So often to look.
pub(crate) const fn look(pace: Pace) -> Duration {
    Duration::from_millis(match pace {
        Pace::Prompt => 5,
        Pace::Calm => 50,
    })
}

/// What was counted of a JVM until the last look.
#[derive(Debug)]
pub(crate) struct Counted {
    last: Counts,
    /// Whether the time of stops is counted without that of reaching them.
    sync_apart: bool,
    /// The latest time on `CLOCK_MONOTONIC` at which the JVM's ticks can have begun: the sooner a
    /// collection is seen when it is over, the closer.
    start: i128,
}

/// What was counted between two looks: one stop, or collections of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Collected {
    /// About when it began, or the last of them, on `CLOCK_MONOTONIC`.
    pub(crate) begin_ns: u64,
    /// How many collections of each kind: the second is full ones, but of CMS.
    pub(crate) collections: [u64; 3],
    /// How long they took together.
    pub(crate) pause_ns: u64,
    /// The whole stop, where it is known to be one.
    pub(crate) stopped_ns: Option<u64>,
    /// Until all threads had stopped.
    pub(crate) ttsp_ns: Option<u64>,
}

impl Counted {
    /// From here on.
    pub(crate) fn begin(last: Counts, sync_apart: bool) -> Self {
        Self { last, sync_apart, start: i128::MAX }
    }

    /// Takes what is counted in the instant when a stop is over.
    pub(crate) fn stop(&mut self, counts: Counts, now_ns: u64) -> Vec<Collected> {
        match counts.stops.saturating_sub(self.last.stops) {
            // It had begun before, and was not seen whole.
            0 => {
                self.last = counts;
                Vec::new()
            }
            1 => vec![self.one(counts, now_ns)],
            // Of others nothing was heard.
            _ => {
                let found = self.look(counts, now_ns);
                self.last = counts;
                found
            }
        }
    }

    /// Takes what is counted at any time.
    pub(crate) fn look(&mut self, counts: Counts, now_ns: u64) -> Vec<Collected> {
        let each = (0..counts.kinds.len()).filter_map(|kind| self.kind(&counts, kind, now_ns));
        each.collect()
    }

    /// All that there was is one stop.
    fn one(&mut self, counts: Counts, now_ns: u64) -> Collected {
        let last = std::mem::replace(&mut self.last, counts);
        let sync = counts.sync.saturating_sub(last.sync);
        let counted = counts.stopped.saturating_sub(last.stopped);
        let stopped_ns = if self.sync_apart { counted.saturating_add(sync) } else { counted };
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

    /// Collections of a kind that are over, in one stop or in several.
    fn kind(&mut self, counts: &Counts, kind: usize, now_ns: u64) -> Option<Collected> {
        let (last, now) = (*self.last.kinds.get(kind)?, counts.kinds.get(kind)?);
        let number = now.collections.saturating_sub(last.collections);
        // One that has begun is told when it is over.
        if number == 0 || now.exit < now.entry {
            return None;
        }
        *self.last.kinds.get_mut(kind)? = *now;
        let mut collections = [0; 3];
        *collections.get_mut(kind)? = number;
        let (begin_ns, pause_ns) = (self.time(now, now_ns), pause(&last, now, number));
        Some(Collected { begin_ns, collections, pause_ns, ..Collected::default() })
    }

    /// When the last collection began, which was over by now.
    fn time(&mut self, count: &Count, now_ns: u64) -> u64 {
        self.start = self.start.min(i128::from(now_ns) - i128::from(count.exit));
        let began = self.start.saturating_add(count.entry.into());
        u64::try_from(began).unwrap_or(0).min(now_ns)
    }
}

/// One by its own stamps, several by their sum.
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
    fn a_stop_is_told_as_it_was_counted() {
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
        // Without collection.
        let [found] = counted.stop(stop(9, 580, 64, now), 8000)[..] else { panic!() };
        assert_eq!((found.collections, found.stopped_ns, found.pause_ns), ([0; 3], Some(10), 0));
        // The time to safepoint may be counted apart.
        let mut counted = Counted::begin(stop(7, 500, 50, Counts::default()), true);
        let [found] = counted.stop(stop(8, 530, 56, Counts::default()), 7000)[..] else { panic!() };
        assert_eq!((found.begin_ns, found.stopped_ns), (6964, Some(36)));
    }

    #[test]
    fn a_stop_that_had_begun_is_not_told_and_of_several_the_sum_is_known() {
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
    fn one_collection_is_told_by_its_own_stamps() {
        let mut counted = Counted::begin(counts(3, 300, 900, 950), false);
        assert_eq!(counted.look(counts(3, 300, 900, 950), 5000), []);
        // It runs; it is over.
        assert_eq!(counted.look(counts(4, 300, 2000, 950), 7050), []);
        let found = counted.look(counts(4, 340, 2000, 2040), 7070);
        let expected = Collected {
            begin_ns: 7030,
            collections: [1, 0, 0],
            pause_ns: 40,
            ..Collected::default()
        };
        assert_eq!(found, [expected]);
        // One that is seen sooner tells better when the JVM began.
        let found = counted.look(counts(5, 350, 3000, 3010), 8020);
        assert_eq!((found[0].begin_ns, found[0].pause_ns), (8010, 10));
        assert_eq!(counted.look(counts(5, 350, 3000, 3010), 9000), []);
    }

    #[test]
    fn of_several_the_sum_is_known() {
        let mut counted = Counted::begin(counts(3, 300, 900, 950), false);
        let found = counted.look(counts(5, 380, 2000, 2030), 5000);
        let [found] = found[..] else { panic!("{found:?}") };
        assert_eq!((found.collections, found.pause_ns, found.stopped_ns), ([2, 0, 0], 80, None));
    }

    #[test]
    fn numbers_that_make_no_sense_do_no_harm() {
        let mut counted = Counted::begin(counts(9, 9, 9, 9), true);
        for number in [0, 1, u64::MAX] {
            for at in [0, u64::MAX] {
                let first = stop(number, at, number, counts(number, number, 0, at));
                let second = stop(at, number, at, counts(u64::MAX, 0, at, u64::MAX));
                let _ = (counted.stop(first, at), counted.look(second, number));
                let _ = (counted.look(first, at), counted.stop(second, number));
            }
        }
    }
}

//! Collections of a JVM whose libjvm.so has neither probes nor symbols: its own counters are
//! looked at often.
//!
//! The JVM stamps the begin and the end of its last collection of each kind, so that one that is
//! the only one of its kind between two looks is told as exactly as the JVM itself knows it. Of
//! several, their number and their sum are known.

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
    /// The latest time on `CLOCK_MONOTONIC` at which the JVM's ticks can have begun: the sooner a
    /// collection is seen when it is over, the closer.
    start: i128,
}

/// What was counted between two looks, of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collected {
    /// About when the last one began, on `CLOCK_MONOTONIC`.
    pub(crate) begin_ns: u64,
    /// The kind: 1 is a full collection, but of CMS.
    pub(crate) kind: usize,
    /// How many.
    pub(crate) collections: u64,
    /// How long they took together.
    pub(crate) pause_ns: u64,
}

impl Counted {
    /// From here on.
    pub(crate) fn begin(counts: Counts) -> Self {
        Self { last: counts, start: i128::MAX }
    }

    /// Takes what is counted now.
    pub(crate) fn look(&mut self, counts: Counts, now_ns: u64) -> Vec<Collected> {
        let over = |last: &Count, now: &Count| {
            // One that has begun is told when it is over.
            let collections = now.collections.saturating_sub(last.collections);
            if now.exit < now.entry { 0 } else { collections }
        };
        let mut found = Vec::new();
        for (kind, now) in counts.kinds.iter().enumerate() {
            let Some(last) = self.last.kinds.get_mut(kind) else { continue };
            let collections = over(last, now);
            if collections == 0 {
                continue;
            }
            // Its end was between the two looks.
            let exit = i128::from(now.exit);
            self.start = self.start.min(i128::from(now_ns) - exit);
            let began = self.start.saturating_add(now.entry.into());
            let pause_ns = pause(*last, *now, collections);
            found.push(Collected {
                begin_ns: u64::try_from(began).unwrap_or(0).min(now_ns),
                kind,
                collections,
                pause_ns,
            });
            *last = *now;
        }
        found
    }
}

/// One by its own stamps, several by their sum.
fn pause(last: Count, now: Count, collections: u64) -> u64 {
    match collections {
        1 => now.exit - now.entry,
        _ => now.time.saturating_sub(last.time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(collections: u64, time: u64, entry: u64, exit: u64) -> Counts {
        let young = Count { collections, time, entry, exit };
        Counts { kinds: [young, Count::default(), Count::default()] }
    }

    #[test]
    fn one_collection_is_told_by_its_own_stamps() {
        let mut counted = Counted::begin(counts(3, 300, 900, 950));
        assert_eq!(counted.look(counts(3, 300, 900, 950), 5000), []);
        // It runs; it is over.
        assert_eq!(counted.look(counts(4, 300, 2000, 950), 7050), []);
        let found = counted.look(counts(4, 340, 2000, 2040), 7070);
        assert_eq!(found, [Collected { begin_ns: 7030, kind: 0, collections: 1, pause_ns: 40 }]);
        // One that is seen sooner tells better when the JVM began.
        let found = counted.look(counts(5, 350, 3000, 3010), 8020);
        assert_eq!((found[0].begin_ns, found[0].pause_ns), (8010, 10));
        assert_eq!(counted.look(counts(5, 350, 3000, 3010), 9000), []);
    }

    #[test]
    fn of_several_the_sum_is_known() {
        let mut counted = Counted::begin(counts(3, 300, 900, 950));
        let found = counted.look(counts(5, 380, 2000, 2030), 5000);
        let [found] = &found[..] else { panic!("{found:?}") };
        assert_eq!((found.collections, found.pause_ns), (2, 80));
    }

    #[test]
    fn numbers_that_make_no_sense_do_no_harm() {
        let mut counted = Counted::begin(counts(9, 9, 9, 9));
        for number in [0, 1, u64::MAX] {
            for at in [0, u64::MAX] {
                let _ = counted.look(counts(number, number, 0, at), at);
                let _ = counted.look(counts(u64::MAX, 0, at, u64::MAX), number);
            }
        }
    }
}

//! Decides which windows are merged and which are dropped. Windows beyond the maximum age are dropped, and
//! windows that reach certain ages are merged. If the store is still too large after that, windows are merged
//! before they are due. If none can be merged, the oldest is dropped.
//!
//! Ages come from a clock that does not follow a forward jump of the wall clock at once: see [`AgeClock`].

use crate::store::name::{HOUR, Level, MINUTE, Name};

/// Bounds of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum age of a window, in nanoseconds.
    pub age_ns: u64,
    /// Maximum size of all windows, in bytes.
    pub size: u64,
}

/// A window in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: Name,
    /// Size on disk, in bytes.
    pub bytes: u64,
}

/// The next step to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Merge these windows into one of this level, with time slots of this many nanoseconds.
    Merge(Vec<Name>, Level, u64),
    /// Drop this window.
    Drop(Name),
}

/// Longest forward jump that the clock follows at once, in nanoseconds. Such a jump occurs if the daemon was
/// restarted or windows were lost.
const SHORT_JUMP: u64 = 5 * MINUTE;
/// Time that must pass after a longer jump before the clock follows it, in nanoseconds.
const CONFIRM: u64 = HOUR;

/// Clock that determines the age of windows. It advances by the lengths of windows.
///
/// If the wall clock jumps forward by more than five minutes, this clock continues as before the jump. It
/// adopts the new time once windows of one hour in total have been recorded since the jump. It follows a
/// backward jump at once, because that only makes windows younger.
#[derive(Clone, Copy, Debug, Default)]
pub struct AgeClock {
    /// Time of this clock, in nanoseconds since 1970; 0 before the first window.
    believed_ns: u64,
    /// Total length of the windows since a forward jump that is not adopted yet, in nanoseconds.
    since_jump_ns: u64,
}

impl AgeClock {
    /// Starts at the end of the newest window in the store, if there is one, so that a daemon that starts
    /// with a wrong wall clock does not adopt it at once.
    pub fn start(entries: &[Entry]) -> Self {
        let newest = entries.iter().map(|entry| entry.name.end_ns()).max();
        Self { believed_ns: newest.unwrap_or(0), since_jump_ns: 0 }
    }

    /// Advances the clock by a new window. Returns the time that determines ages.
    pub fn window(&mut self, begin_ns: u64, end_ns: u64) -> u64 {
        let length = end_ns.saturating_sub(begin_ns);
        let expected = self.believed_ns.saturating_add(length);
        let is_jump = self.believed_ns > 0 && end_ns > expected.saturating_add(SHORT_JUMP);
        self.since_jump_ns = if is_jump { self.since_jump_ns.saturating_add(length) } else { 0 };
        self.believed_ns = match is_jump && self.since_jump_ns < CONFIRM {
            true => expected,
            false => end_ns,
        };
        self.believed_ns
    }
}

/// The present time.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Wall-clock time, in nanoseconds since 1970.
    pub wall_ns: u64,
    /// Time that determines ages, see [`AgeClock`].
    pub age_ns: u64,
}

/// Age at which windows of a level are merged, in nanoseconds.
fn merge_age(level: Level) -> u64 {
    match level {
        Level::Unmerged => HOUR,
        Level::Minutes => 6 * HOUR,
        Level::Hour => u64::MAX,
    }
}

/// Returns the next step for windows sorted by begin; `None` if nothing is due.
pub fn next(entries: &[Entry], bounds: Bounds, now: Now) -> Option<Step> {
    let age = |name: Name| now.age_ns.saturating_sub(name.end_ns());
    if let Some(entry) = entries.iter().find(|entry| age(entry.name) > bounds.age_ns) {
        return Some(Step::Drop(entry.name));
    }
    let due_merge = merge_of(entries, now.wall_ns, |names, level| {
        names.iter().all(|&name| age(name) >= merge_age(level))
    });
    if due_merge.is_some() {
        return due_merge;
    }
    let size: u64 = entries.iter().map(|entry| entry.bytes).sum();
    if size <= bounds.size {
        return None;
    }
    // Merged windows take less space, so merging is tried first. If no windows can be merged, one is dropped.
    let early_merge = merge_of(entries, now.wall_ns, |names, _| names.len() > 1);
    // The window whose end is farthest from now. This is the oldest one, unless a wrong clock has dated a
    // window even farther into the future.
    let distance = |entry: &&Entry| now.wall_ns.abs_diff(entry.name.end_ns());
    let farthest = entries.iter().rev().max_by_key(distance)?;
    early_merge.or(Some(Step::Drop(farthest.name)))
}

/// Returns the step that merges the first group of windows that `passes` accepts. A group consists of all
/// windows of a level that began in the period of one window of the next coarser level. This period must be
/// over.
fn merge_of(
    entries: &[Entry],
    now_ns: u64,
    passes: impl Fn(&[Name], Level) -> bool,
) -> Option<Step> {
    for level in [Level::Unmerged, Level::Minutes] {
        let (coarser, length, slot_ns) = level.coarser()?;
        let names: Vec<_> =
            entries.iter().map(|entry| entry.name).filter(|name| name.level == level).collect();
        let is_over = |names: &[Name]| {
            let first = names.first().map_or(0, |name| name.begin_ns() / length);
            now_ns / length > first
        };
        let group = names
            .chunk_by(|a, b| a.begin_ns() / length == b.begin_ns() / length)
            .find(|names| is_over(names) && passes(names, level));
        if let Some(names) = group {
            return Some(Step::Merge(names.to_vec(), coarser, slot_ns));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::name::SECOND;

    const BOUNDS: Bounds = Bounds { age_ns: 24 * HOUR, size: 1 << 30 };

    /// Takes all steps that are due, as the store does.
    fn apply_due_steps(entries: &mut Vec<Entry>, bounds: Bounds, now_ns: u64) {
        apply_due_steps_at(entries, bounds, Now { wall_ns: now_ns, age_ns: now_ns });
    }

    fn apply_due_steps_at(entries: &mut Vec<Entry>, bounds: Bounds, now: Now) {
        let mut steps = 0;
        while let Some(step) = next(entries, bounds, now) {
            steps += 1;
            assert!(steps < 10_000, "it does not end: {step:?}");
            match step {
                Step::Drop(name) => entries.retain(|entry| entry.name != name),
                Step::Merge(names, level, _) => {
                    let of: Vec<_> =
                        entries.iter().filter(|e| names.contains(&e.name)).copied().collect();
                    assert_eq!(of.len(), names.len());
                    entries.retain(|entry| !names.contains(&entry.name));
                    let begin = of.iter().map(|e| e.name.begin_ns()).min().unwrap();
                    let end = of.iter().map(|e| e.name.end_ns()).max().unwrap();
                    // Identical stacks are stored once, so a merged window is assumed to take half the size.
                    let bytes = of.iter().map(|e| e.bytes).sum::<u64>() / 2;
                    entries.push(Entry { name: Name::new(level, begin, end), bytes });
                    entries.sort_unstable_by_key(|entry| entry.name);
                }
            }
        }
    }

    #[test]
    fn forward_clock_jump_is_adopted_only_after_an_hour() {
        let begin = 1_763_781_120 * SECOND;
        let mut clock = AgeClock::start(&[]);
        let mut at = begin;
        let mut window = |step: i64| {
            let from = at.saturating_add_signed(step * HOUR.cast_signed());
            at = from + 15 * SECOND;
            clock.window(from, at)
        };
        // The first window sets the clock, and each following one advances it.
        assert_eq!(window(0), begin + 15 * SECOND);
        assert_eq!(window(0), begin + 30 * SECOND);
        // A forward jump that is undone after two minutes.
        assert_eq!(window(25), begin + 45 * SECOND);
        for number in 4..12 {
            assert_eq!(window(0), begin + number * 15 * SECOND);
        }
        assert_eq!(window(-25), begin + 12 * 15 * SECOND);
        // Backward jumps count at once, and so do short forward jumps.
        assert_eq!(window(-1), begin + 13 * 15 * SECOND - HOUR);
        // A forward jump that lasts is adopted after an hour.
        let believed: Vec<_> =
            (0..300).map(|number| window(if number == 0 { 3 } else { 0 })).collect();
        let jumps = believed.windows(2).filter(|two| two[1] - two[0] > HOUR).count();
        assert_eq!((jumps, believed[238] < begin + HOUR), (1, true));
        assert_eq!(believed[299], begin + 313 * 15 * SECOND + 2 * HOUR);
    }

    #[test]
    fn age_clock_does_not_adopt_a_wrong_clock_at_startup() {
        let begin = 1_763_781_120 * SECOND;
        let name = Name::new(Level::Unmerged, begin, begin + 15 * SECOND);
        let mut clock = AgeClock::start(&[Entry { name, bytes: 1 }]);
        let later = begin + 100 * HOUR;
        assert_eq!(clock.window(later, later + 15 * SECOND), begin + 30 * SECOND);
        // After a gap of four minutes, for example a restart, the clock follows the wall clock at once.
        let mut clock = AgeClock::start(&[Entry { name, bytes: 1 }]);
        let later = begin + 4 * MINUTE;
        assert_eq!(clock.window(later, later + 15 * SECOND), later + 15 * SECOND);
    }

    #[test]
    fn size_limit_drops_future_windows_first() {
        let begin = 1_763_781_120 * SECOND;
        let window = |at: u64| Entry { name: Name::new(Level::Hour, at, at + HOUR), bytes: 10 };
        let mut entries = vec![window(begin), window(begin + HOUR), window(begin + 9000 * HOUR)];
        let bounds = Bounds { size: 20, ..BOUNDS };
        let now = begin + 2 * HOUR;
        apply_due_steps(&mut entries, bounds, now);
        assert_eq!(entries, [window(begin), window(begin + HOUR)]);
        // While a forward jump is not adopted, the oldest window is dropped as usual.
        let wall_ns = now + 25 * HOUR;
        entries.push(window(wall_ns - HOUR));
        apply_due_steps_at(&mut entries, bounds, Now { wall_ns, age_ns: now });
        assert_eq!(entries, [window(begin + HOUR), window(wall_ns - HOUR)]);
        // A single window that is too large is dropped, too.
        let mut entries = vec![Entry { bytes: 21, ..window(begin) }];
        apply_due_steps(&mut entries, bounds, now);
        assert!(entries.is_empty());
    }

    #[test]
    fn single_old_window_becomes_an_hour_window_and_is_dropped_later() {
        let begin = 1_763_781_120 * SECOND;
        let mut entries =
            vec![Entry { name: Name::new(Level::Unmerged, begin, begin + SECOND), bytes: 1 }];
        apply_due_steps(&mut entries, BOUNDS, begin + 10 * HOUR);
        assert_eq!(entries[0].name.level, Level::Hour);
        apply_due_steps(&mut entries, BOUNDS, begin + 30 * HOUR);
        assert!(entries.is_empty());
    }
}

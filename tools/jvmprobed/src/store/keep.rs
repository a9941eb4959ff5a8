//! What is put together and what is dropped: by age first, and where there is still too much, the
//! oldest first.

use crate::store::name::{HOUR, Level, Name};

/// What may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// No longer than so many nanoseconds.
    pub age_ns: u64,
    /// No more than so many bytes.
    pub size: u64,
}

/// A window that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: Name,
    /// How many bytes it takes.
    pub bytes: u64,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// These become one of this level, with slots of so many nanoseconds.
    Merge(Vec<Name>, Level, u64),
    /// This one goes.
    Drop(Name),
}

/// How old windows of a level become, in nanoseconds, before they are put together.
fn ripe_after(level: Level) -> u64 {
    match level {
        Level::Taken => HOUR,
        Level::Minutes => 6 * HOUR,
        Level::Hour => u64::MAX,
    }
}

/// The next step, of windows in the order of their begins; `None` where all is as it should be.
pub fn next(kept: &[Entry], bounds: Bounds, now_ns: u64) -> Option<Step> {
    let age = |name: Name| now_ns.saturating_sub(name.end_ns());
    if let Some(entry) = kept.iter().find(|entry| age(entry.name) > bounds.age_ns) {
        return Some(Step::Drop(entry.name));
    }
    let ripe = merge_of(kept, now_ns, |names, level| {
        names.iter().all(|&name| age(name) >= ripe_after(level))
    });
    if ripe.is_some() {
        return ripe;
    }
    let size: u64 = kept.iter().map(|entry| entry.bytes).sum();
    if size <= bounds.size {
        return None;
    }
    // Coarser ones take less room. What cannot become coarser goes.
    let oldest = kept.first()?;
    let early = merge_of(kept, now_ns, |names, _| names.len() > 1);
    early.or(Some(Step::Drop(oldest.name)))
}

/// The first windows of a level that can become one and pass: those that began within one coarser
/// window's time, which is over.
fn merge_of(kept: &[Entry], now_ns: u64, passes: impl Fn(&[Name], Level) -> bool) -> Option<Step> {
    for level in [Level::Taken, Level::Minutes] {
        let (coarser, length, slot_ns) = level.coarser()?;
        let names: Vec<_> =
            kept.iter().map(|entry| entry.name).filter(|name| name.level == level).collect();
        let is_over = |names: &[Name]| {
            let first = names.first().map_or(0, |name| name.begin_ns() / length);
            now_ns / length > first
        };
        let together = names
            .chunk_by(|a, b| a.begin_ns() / length == b.begin_ns() / length)
            .find(|names| is_over(names) && passes(names, level));
        if let Some(names) = together {
            return Some(Step::Merge(names.to_vec(), coarser, slot_ns));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::name::{MINUTE, SECOND};

    const BOUNDS: Bounds = Bounds { age_ns: 24 * HOUR, size: 1 << 30 };

    /// All steps that are due are done, as the store does.
    fn settle(kept: &mut Vec<Entry>, bounds: Bounds, now_ns: u64) {
        let mut steps = 0;
        while let Some(step) = next(kept, bounds, now_ns) {
            steps += 1;
            assert!(steps < 10_000, "it does not end: {step:?}");
            match step {
                Step::Drop(name) => kept.retain(|entry| entry.name != name),
                Step::Merge(names, level, _) => {
                    let of: Vec<_> =
                        kept.iter().filter(|e| names.contains(&e.name)).copied().collect();
                    assert_eq!(of.len(), names.len());
                    kept.retain(|entry| !names.contains(&entry.name));
                    let begin = of.iter().map(|e| e.name.begin_ns()).min().unwrap();
                    let end = of.iter().map(|e| e.name.end_ns()).max().unwrap();
                    // Stacks that are alike are there once: half as much, say.
                    let bytes = of.iter().map(|e| e.bytes).sum::<u64>() / 2;
                    kept.push(Entry { name: Name::new(level, begin, end), bytes });
                    kept.sort_unstable_by_key(|entry| entry.name);
                }
            }
        }
    }

    /// So long a time of windows, each tidied up behind.
    fn run(hours: u64, bytes: u64, bounds: Bounds) -> Vec<Entry> {
        let begin = 1_763_781_120 * SECOND;
        let mut kept = Vec::new();
        for number in 0..hours * 240 {
            let at = begin + number * 15 * SECOND;
            kept.push(Entry { name: Name::new(Level::Taken, at, at + 15 * SECOND), bytes });
            settle(&mut kept, bounds, at + 15 * SECOND);
        }
        kept
    }

    #[test]
    fn a_day_is_kept_ever_more_coarsely() {
        let kept = run(30, 1000, BOUNDS);
        let of = |level| kept.iter().filter(|entry| entry.name.level == level).count();
        assert!((220..=262).contains(&of(Level::Taken)), "{}", of(Level::Taken));
        assert!((48..=84).contains(&of(Level::Minutes)), "{}", of(Level::Minutes));
        assert!((16..=20).contains(&of(Level::Hour)), "{}", of(Level::Hour));
        // Nothing is missing, and nothing is there twice.
        assert!(kept.windows(2).all(|two| two[0].name.end_ns() == two[1].name.begin_ns()));
        let all = kept.last().unwrap().name.end_ns() - kept[0].name.begin_ns();
        assert!((23 * HOUR..=25 * HOUR).contains(&all), "{}", all / MINUTE);
    }

    #[test]
    fn size_is_bounded_and_the_newest_stay() {
        let bounds = Bounds { size: 500_000, ..BOUNDS };
        let kept = run(30, 10_000, bounds);
        let size: u64 = kept.iter().map(|entry| entry.bytes).sum();
        assert!(size <= bounds.size, "{size}");
        let last = kept.last().unwrap().name;
        assert_eq!(last.level, Level::Taken);
        // Coarse ones are in front, so that it is a longer time than twenty windows.
        assert!(last.end_ns() - kept[0].name.begin_ns() > 10 * MINUTE);
        // One that is too large alone goes, too.
        assert!(run(1, 600_000, bounds).is_empty());
    }

    #[test]
    fn a_single_old_window_becomes_coarser_once() {
        let begin = 1_763_781_120 * SECOND;
        let mut kept =
            vec![Entry { name: Name::new(Level::Taken, begin, begin + SECOND), bytes: 1 }];
        settle(&mut kept, BOUNDS, begin + 10 * HOUR);
        assert_eq!(kept[0].name.level, Level::Hour);
        settle(&mut kept, BOUNDS, begin + 30 * HOUR);
        assert!(kept.is_empty());
    }
}

//! How much there was when: slots of time of equal length, counted from a begin that all share.

/// How much there was in each slot, by the slot's number.
pub type Times = Vec<(u32, u64)>;

/// How long slots are at first, in nanoseconds. Fifty a second: a pause of some milliseconds is
/// seen.
pub(crate) const SLOT: u64 = 20_000_000;

/// What they may become, each a multiple of the one before: so that whole seconds, minutes and
/// hours are whole slots, too.
const LENGTHS: [u64; 11] = [
    SLOT,
    5 * SLOT,
    10 * SLOT,
    SECOND,
    2 * SECOND,
    10 * SECOND,
    20 * SECOND,
    60 * SECOND,
    300 * SECOND,
    600 * SECOND,
    3600 * SECOND,
];

/// In nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// How many slots of a length become one of the next length; `None` for the longest.
pub fn next(slot_ns: u64) -> Option<u32> {
    let longer = LENGTHS.into_iter().find(|&length| length > slot_ns)?;
    // Others than these are tests'.
    let factor = if slot_ns > 0 && longer % slot_ns == 0 { longer / slot_ns } else { 2 };
    u32::try_from(factor).ok()
}

/// Puts together what is of one slot.
pub fn add_up(times: &mut Times) {
    times.sort_unstable();
    times.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        if is_same {
            kept.1 = kept.1.saturating_add(next.1);
        }
        is_same
    });
}

/// How much there was in all of them.
pub(super) fn sum(times: &[(u32, u64)]) -> u64 {
    times.iter().fold(0, |sum, &(_, count)| sum.saturating_add(count))
}

/// Makes one slot of each so many.
pub(crate) fn coarsen(times: &mut Times, factor: u32) {
    times.iter_mut().for_each(|(slot, _)| *slot /= factor.max(1));
    add_up(times);
    times.shrink_to_fit();
}

/// How many slots there would be of times in order, if each so many were one.
pub(super) fn count(times: &[(u32, u64)], factor: u32) -> usize {
    times.chunk_by(|a, b| a.0 / factor.max(1) == b.0 / factor.max(1)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_become_longer_in_steps_that_divide_each_other() {
        let (mut length, mut all) = (SLOT, vec![SLOT]);
        while let Some(factor) = next(length) {
            length *= u64::from(factor);
            all.push(length);
        }
        assert_eq!(all, LENGTHS);
    }

    #[test]
    fn nothing_is_lost_where_slots_become_one() {
        let mut times = vec![(9, 1), (0, 1), (4, 2), (4, 3), (5, 1)];
        add_up(&mut times);
        assert_eq!(times, [(0, 1), (4, 5), (5, 1), (9, 1)]);
        assert_eq!(count(&times, 5), 2);
        coarsen(&mut times, 5);
        assert_eq!(times, [(0, 6), (1, 2)]);
    }
}

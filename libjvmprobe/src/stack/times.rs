//! Counts per time slot. All slots have the same length, and are numbered from the same start time.

/// Counts as (slot number, count).
pub type Times = Vec<(u32, u64)>;

/// Initial length of a slot in nanoseconds: 20 ms, so that short pauses are visible on the time axis.
pub(crate) const SLOT: u64 = 20_000_000;

/// Possible lengths, each a multiple of the one before, so that seconds, minutes and hours consist of complete slots.
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

/// One second in nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// Returns the number of slots that form one slot of the next length; `None` for the maximum length.
pub fn factor_to_next_length(slot_ns: u64) -> Option<u32> {
    let longer = LENGTHS.into_iter().find(|&length| length > slot_ns)?;
    // Only tests use lengths that are not in the list.
    let factor = if slot_ns > 0 && longer % slot_ns == 0 { longer / slot_ns } else { 2 };
    u32::try_from(factor).ok()
}

/// Sorts the counts and adds up those of the same slot.
pub fn merge_slots(times: &mut Times) {
    times.sort_unstable();
    times.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        if is_same {
            kept.1 = kept.1.saturating_add(next.1);
        }
        is_same
    });
}

/// Returns the sum of all counts.
pub(super) fn sum(times: &[(u32, u64)]) -> u64 {
    times.iter().fold(0, |sum, &(_, count)| sum.saturating_add(count))
}

/// Merges every `factor` slots into one.
pub(crate) fn coarsen(times: &mut Times, factor: u32) {
    times.iter_mut().for_each(|(slot, _)| *slot /= factor.max(1));
    merge_slots(times);
    times.shrink_to_fit();
}

/// Returns the number of slots that sorted counts would have after merging every `factor` slots into one.
pub(super) fn count(times: &[(u32, u64)], factor: u32) -> usize {
    times.chunk_by(|a, b| a.0 / factor.max(1) == b.0 / factor.max(1)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_length_divides_the_next_one() {
        let (mut length, mut all) = (SLOT, vec![SLOT]);
        while let Some(factor) = factor_to_next_length(length) {
            length *= u64::from(factor);
            all.push(length);
        }
        assert_eq!(all, LENGTHS);
    }

    #[test]
    fn coarsening_slots_preserves_the_total() {
        let mut times = vec![(9, 1), (0, 1), (4, 2), (4, 3), (5, 1)];
        merge_slots(&mut times);
        assert_eq!(times, [(0, 1), (4, 5), (5, 1), (9, 1)]);
        assert_eq!(count(&times, 5), 2);
        coarsen(&mut times, 5);
        assert_eq!(times, [(0, 6), (1, 2)]);
    }
}

//! Time slots of allocations.
//!
//! The bytes that a class has allocated from a stack are an estimate, which is known only at the end. The
//! hits that it is based on have a time. For an object outside of TLABs, this is the time of its allocation.
//! For an object that begins a TLAB, it is the end of the period in which its thread allocated the bytes that
//! the object represents. The estimate is therefore divided among the time slots in proportion to the bytes
//! counted in each slot, and the parts sum up to it exactly.

use std::{
    cell::OnceCell,
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use crate::{
    stack::times::{self, Times},
    trace::allocations::{
        event::slot_bytes,
        split::{StackShare, apportion},
        stacks::StackId,
        tally::Key,
    },
};

/// Approximate memory of one slot of one class and stack, in bytes.
const SLOT_SIZE: usize = 2 * size_of::<(u32, u64)>();

/// Time slots of one class and stack.
#[derive(Debug, Default)]
struct SlotTimes {
    inside: Times,
    outside: Times,
}

impl SlotTimes {
    fn add(&mut self, slot: u32, counted: slot_bytes) {
        for (times, bytes) in
            [(&mut self.inside, counted.bytes), (&mut self.outside, counted.outside_bytes)]
        {
            if bytes == 0 {
                continue;
            }
            times.push((slot, bytes));
            // Entries with the same slot are merged when the number of entries reaches a power of two.
            // Entries arrive in slot order, except late ones.
            if times.len().is_power_of_two() {
                times::merge_slots(times);
            }
        }
    }

    fn coarsen(&mut self, factor: u32) {
        times::coarsen(&mut self.inside, factor);
        times::coarsen(&mut self.outside, factor);
    }

    /// Slots of objects that began TLABs; if there are none, slots of objects outside of TLABs.
    fn representative_times(&self) -> &Times {
        if self.inside.is_empty() { &self.outside } else { &self.inside }
    }

    /// Merges entries with the same slot, and returns the number of entries inside and outside of TLABs
    /// together.
    fn count(&mut self) -> usize {
        times::merge_slots(&mut self.inside);
        times::merge_slots(&mut self.outside);
        self.inside.len() + self.outside.len()
    }
}

/// Time slots of one JVM.
#[derive(Debug)]
pub(crate) struct TimeSlots {
    slot_ns: u64,
    /// Number of the kernel side's slots that one slot spans.
    factor: u32,
    by: HashMap<(Key, StackId), SlotTimes>,
    all: SlotTimes,
    /// Representative times of `all` with entries of the same slot merged, once they are needed.
    merged: OnceCell<Times>,
    /// Upper bound of the number of entries: their exact number at the last count, plus those added since.
    added: usize,
}

impl TimeSlots {
    /// Creates empty time slots with this initial length in nanoseconds, which is that of the kernel side's
    /// slots.
    pub(crate) fn new(slot_ns: u64) -> Self {
        let (by, all, merged) = (HashMap::new(), SlotTimes::default(), OnceCell::new());
        Self { slot_ns, factor: 1, by, all, merged, added: 0 }
    }

    /// Returns the index of the kernel side's slot `elapsed_ns` after the begin.
    pub(crate) fn slot_at(&self, elapsed_ns: u64) -> u64 {
        let length = self.slot_ns / u64::from(self.factor);
        elapsed_ns.checked_div(length).unwrap_or(0)
    }

    /// Current length of a slot in nanoseconds.
    pub(crate) fn slot_ns(&self) -> u64 {
        self.slot_ns
    }

    /// Adds bytes of a class and a stack that were counted in one of the kernel side's slots.
    pub(crate) fn add(&mut self, row: &Key, stack: StackId, slot: u32, counted: slot_bytes) {
        // At most two entries are added for the class and stack, and two in `all`.
        self.added += 4;
        let slot = slot / self.factor;
        self.by.entry((row.clone(), stack)).or_default().add(slot, counted);
        self.all.add(slot, counted);
        self.merged.take();
    }

    /// For each second in which something was counted, chooses one slot and returns it with all bytes of that
    /// second. The choice is pseudo-random: the probability of a slot is proportional to its bytes. Each call
    /// makes the same choice for a class. Many classes together are thus distributed like all allocations,
    /// while each class needs little memory.
    fn sample_each_second(&self, row: &Key) -> Times {
        const SECOND: u64 = 1_000_000_000;
        let mut hasher = DefaultHasher::new();
        (&row.class, row.tid).hash(&mut hasher);
        let all = self.merged.get_or_init(|| {
            let mut all = self.all.representative_times().clone();
            times::merge_slots(&mut all);
            all
        });
        let second = |slot: u32| u64::from(slot).saturating_mul(self.slot_ns) / SECOND;
        let seconds = all.chunk_by(|a, b| second(a.0) == second(b.0));
        let chosen = seconds.filter_map(|slots| {
            let sum = slots.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
            second(slots.first()?.0).hash(&mut hasher);
            let mut at = hasher.finish().checked_rem(sum)?;
            let (slot, _) = slots.iter().find(|(_, bytes)| {
                let is_it = at < *bytes;
                at = at.saturating_sub(*bytes);
                is_it
            })?;
            Some((*slot, sum))
        });
        chosen.collect()
    }

    /// Lengthens the slots until they take about `max` bytes or cannot become longer.
    pub(crate) fn shrink(&mut self, max: usize) {
        if self.added.saturating_mul(SLOT_SIZE) <= max {
            return;
        }
        self.count();
        while self.added.saturating_mul(SLOT_SIZE) > max && self.coarsen() {}
    }

    /// Lengthens the slots by one step; returns `false` if they have their maximum length.
    fn coarsen(&mut self) -> bool {
        let Some(factor) = times::factor_to_next_length(self.slot_ns) else { return false };
        self.slot_ns = self.slot_ns.saturating_mul(factor.into());
        self.factor = self.factor.saturating_mul(factor);
        self.by
            .values_mut()
            .chain([&mut self.all])
            .for_each(|slot_times| slot_times.coarsen(factor));
        self.merged.take();
        self.count();
        true
    }

    /// Merges entries with the same slot, and counts all entries.
    fn count(&mut self) {
        let all = self.by.values_mut().chain([&mut self.all]);
        self.added = all.map(SlotTimes::count).sum();
    }

    /// Returns how the bytes of a part of a class are divided among slots. A part that was only found by
    /// reading TLABs was never counted and has no times of its own, so it is distributed like all
    /// allocations. If nothing was counted at all, the part goes to the slot in which the trace ended:
    /// `last`, an index of the kernel side's slots.
    pub(crate) fn share(&self, row: &Key, part: &StackShare, last: u32) -> Times {
        let sum =
            |times: &Times| times.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
        let mut times = match self.by.get(&(row.clone(), part.stack)) {
            Some(slot_times) => {
                // Objects outside of TLABs are counted, not estimated.
                let outside = sum(&slot_times.outside).min(part.bytes);
                let mut times = shared(outside, &slot_times.outside);
                times.extend(shared(part.bytes - outside, slot_times.representative_times()));
                times
            }
            // Each object belongs to one slot. So the objects are distributed over the slots first, and the
            // bytes are then distributed over the slots that have objects. Few objects thus occupy few slots.
            None => shared(part.bytes, &shared(part.objects.max(1), &self.sample_each_second(row))),
        };
        if times.is_empty() {
            times.push((last / self.factor, part.bytes));
        }
        times::merge_slots(&mut times);
        times
    }
}

/// Divides a sum in proportion to the bytes of each slot; empty if nothing was counted.
fn shared(bytes: u64, times: &Times) -> Times {
    let mut times = times.clone();
    times::merge_slots(&mut times);
    let weights: Vec<_> = times.iter().map(|(_, bytes)| *bytes as f64).collect();
    let slots = times.iter().map(|(slot, _)| *slot);
    slots.zip(apportion(bytes, &weights)).filter(|(_, bytes)| *bytes > 0).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(class: &str) -> Key {
        Key { class: class.into(), tid: 0 }
    }

    fn part(stack: StackId, bytes: u64) -> StackShare {
        StackShare { stack, bytes, objects: 1 }
    }

    fn slot_bytes(bytes: u64, outside_bytes: u64) -> slot_bytes {
        slot_bytes { bytes, outside_bytes }
    }

    #[test]
    fn bytes_are_distributed_over_slots_like_counted_hits() {
        let mut slots = TimeSlots::new(times::SLOT);
        slots.add(&key("A"), 5, 3, slot_bytes(300, 0));
        slots.add(&key("A"), 5, 9, slot_bytes(100, 0));
        slots.add(&key("A"), 5, 9, slot_bytes(0, 50));
        slots.add(&key("B"), 6, 1, slot_bytes(0, 70));
        // 50 bytes are outside of TLABs and stay in their slot; 800 are divided three to one.
        assert_eq!(slots.share(&key("A"), &part(5, 850), 99), [(3, 600), (9, 250)]);
        assert_eq!(slots.share(&key("B"), &part(6, 70), 99), [(1, 70)]);
        // A class that was never counted is distributed like all allocations.
        slots.add(&key("A"), 5, 59, slot_bytes(1200, 0));
        let all = StackShare { stack: 2, bytes: 6400, objects: 4 };
        let share = slots.share(&key("C"), &all, 99);
        assert!([3, 9].contains(&share[0].0), "{share:?}");
        assert_eq!((share[0].1, share[1]), (1600, (59, 4800)));
        assert_eq!(slots.share(&key("C"), &part(2, 6400), 99), [(59, 6400)]);
        // Each choice is pseudo-random, but the sum is like all allocations: of a thousand classes in one
        // second, three in four go to the slot with three quarters of the bytes.
        let first = (0..1000).filter(|i| slots.share(&key(&i.to_string()), &all, 99)[0].0 == 3);
        assert!((700..800).contains(&first.count()));
        // Bytes that are counted later are included.
        slots.add(&key("A"), 5, 110, slot_bytes(1600, 0));
        assert_eq!(
            slots.share(&key("C"), &part(2, 3200), 99).iter().map(|slot| slot.1).sum::<u64>(),
            3200
        );
        let none = TimeSlots::new(times::SLOT);
        assert_eq!(none.share(&key("C"), &part(2, 52), 99), [(99, 52)]);
    }

    #[test]
    fn coarsening_slots_preserves_their_bytes() {
        let mut slots = TimeSlots::new(times::SLOT);
        for slot in 0..100 {
            slots.add(&key("A"), 5, slot, slot_bytes(10, 0));
        }
        assert!(slots.coarsen());
        assert_eq!(slots.slot_ns(), 5 * times::SLOT);
        slots.add(&key("A"), 5, 99, slot_bytes(1000, 0));
        let shared = slots.share(&key("A"), &part(5, 2000), 0);
        assert_eq!((shared.len(), shared[0], shared[19]), (20, (0, 50), (19, 1050)));
        // Within the limit, slots keep their length; repeated hits in one slot take no more memory.
        for _ in 0..1000 {
            slots.add(&key("A"), 5, 99, slot_bytes(1, 0));
        }
        slots.shrink(40 * SLOT_SIZE);
        assert_eq!(slots.slot_ns(), 5 * times::SLOT);
        slots.shrink(39 * SLOT_SIZE);
        assert_eq!(slots.slot_ns(), 10 * times::SLOT);
    }

    proptest! {
        #[test]
        fn shared_slots_sum_to_the_part(
            bytes in 0_u64..1 << 50,
            hits in prop::collection::vec((0_u32..60, 0_u64..1 << 40, 0_u64..1 << 20), 0..200),
        ) {
            let mut slots = TimeSlots::new(times::SLOT);
            for (slot, inside, outside) in hits {
                slots.add(&key("A"), 5, slot, slot_bytes(inside, outside));
            }
            for part in [part(5, bytes), part(7, bytes)] {
                let times = slots.share(&key("A"), &part, 70);
                prop_assert_eq!(times.iter().map(|(_, bytes)| bytes).sum::<u64>(), bytes);
                prop_assert!(times.is_sorted_by(|a, b| a.0 < b.0));
            }
        }
    }
}

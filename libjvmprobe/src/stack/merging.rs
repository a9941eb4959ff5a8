//! Merging profiles of successive periods into one, and restricting a profile to a period.

use crate::stack::{
    profile::{Measure, Profile},
    times,
};

/// Merges profiles of one measure. The time slots of the result are as long as the longest slots of any
/// profile, and at least `min_slot_ns`. Samples of a profile without time slots count at its beginning.
/// Durations, losses and folded samples are added up; if periods of the profiles overlap, the caller must
/// correct the duration.
///
/// If CPU time was sampled at different rates, samples are scaled to the highest rate. Rounding changes the
/// sum of each profile, and the count of each stack, by at most one sample.
pub fn join(profiles: Vec<Profile>, min_slot_ns: u64) -> Profile {
    let begin = profiles.iter().map(|profile| profile.begin_unix_ns).min().unwrap_or(0);
    let slot_ns = profiles.iter().map(|p| p.slot_ns).max().unwrap_or(0).max(min_slot_ns).max(1);
    let is_time = |profile: &Profile| profile.measure == Measure::Time;
    let rates = profiles.iter().filter(|profile| is_time(profile)).map(|p| p.hertz.max(1));
    let hertz = rates.max().unwrap_or(0);
    let mut joined = Profile::default();
    (joined.begin_unix_ns, joined.slot_ns, joined.hertz) = (begin, slot_ns, hertz);
    for (number, profile) in profiles.into_iter().enumerate() {
        if number == 0 {
            joined.measure = profile.measure.clone();
        }
        let mut scale = Scale::new(hertz.max(1), profile.hertz.max(1));
        let slot = |slot: u32| {
            let at = u64::from(slot).saturating_mul(profile.slot_ns);
            let since = profile.begin_unix_ns.saturating_add(at) - begin;
            u32::try_from(since / slot_ns).unwrap_or(u32::MAX)
        };
        let ids: Vec<_> =
            profile.frames().iter().map(|frame| joined.intern(frame.clone())).collect();
        joined.duration_ns = joined.duration_ns.saturating_add(profile.duration_ns);
        joined.lost = joined.lost.saturating_add(profile.lost);
        joined.folded = joined.folded.saturating_add(profile.folded);
        joined.without_span = joined.without_span.saturating_add(profile.without_span);
        for sample in &profile.samples {
            let mut sample = sample.clone();
            sample.stack.iter_mut().for_each(|id| *id = ids[*id as usize]);
            match profile.slot_ns {
                0 => sample.times = vec![(slot(0), sample.count)],
                _ => sample.times.iter_mut().for_each(|(at, _)| *at = slot(*at)),
            }
            if is_time(&profile) && !scale.is_one() {
                let has_complete_times = times::sum(&sample.times) == sample.count;
                sample.times.iter_mut().for_each(|(_, count)| *count = scale.apply(*count));
                sample.count = match has_complete_times {
                    true => times::sum(&sample.times),
                    false => scale.apply(sample.count),
                };
            }
            times::merge_slots(&mut sample.times);
            joined.samples.push(sample);
        }
    }
    joined
}

/// Scales counts by a ratio. The rounding error of one count is carried over to the next one, so that sums are right.
struct Scale {
    to: u64,
    from: u64,
    /// Remainder that is carried over, less than `from`.
    remainder: u128,
}

impl Scale {
    fn new(to: u64, from: u64) -> Self {
        // The first count is rounded to the nearest integer.
        Self { to, from: from.max(1), remainder: u128::from(from.max(1) / 2) }
    }

    fn is_one(&self) -> bool {
        self.to == self.from
    }

    fn apply(&mut self, count: u64) -> u64 {
        let scaled = u128::from(count) * u128::from(self.to) + self.remainder;
        let from = u128::from(self.from);
        self.remainder = scaled % from;
        u64::try_from(scaled / from).unwrap_or(u64::MAX)
    }
}

impl Profile {
    /// Restricts the profile to samples from `from_ns` until `until_ns`, in nanoseconds since 1970, with the
    /// precision of its time slots: a slot is kept if its middle is inside. If part of a sample's count is
    /// cut off, its `count` and `occurrences` are reduced proportionally, which is an estimate.
    pub fn restrict_to(&mut self, from_ns: u64, until_ns: u64) {
        if self.slot_ns == 0 {
            return;
        }
        let (begin, slot_ns) = (self.begin_unix_ns, self.slot_ns);
        let is_inside = |slot: u32| {
            let at = u64::from(slot).saturating_mul(slot_ns).saturating_add(slot_ns / 2);
            (from_ns..until_ns).contains(&begin.saturating_add(at))
        };
        self.samples.retain_mut(|sample| {
            let all = times::sum(&sample.times);
            sample.times.retain(|&(slot, _)| is_inside(slot));
            let kept = times::sum(&sample.times);
            if kept < all {
                let part = |count| Scale { to: kept, from: all, remainder: 0 }.apply(count);
                (sample.count, sample.occurrences) = (part(sample.count), part(sample.occurrences));
            }
            kept > 0
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::stack::{Frame, Kind, profile::Sample};

    const SECOND: u64 = 1_000_000_000;

    fn profile(begin_s: u64, hertz: u64, slot_ns: u64, samples: &[(u8, u64, u32)]) -> Profile {
        let mut profile = Profile::default();
        (profile.hertz, profile.duration_ns) = (hertz, 15 * SECOND);
        (profile.begin_unix_ns, profile.slot_ns) = (begin_s * SECOND, slot_ns);
        for &(frame, count, slot) in samples {
            let stack = vec![profile.intern(Frame::new(Kind::Java, format!("m{frame}")))];
            profile.samples.push(Sample {
                count,
                times: if slot_ns == 0 { Vec::new() } else { vec![(slot, count)] },
                ..Sample::of(1, "main".into(), 1, stack)
            });
        }
        profile
    }

    #[test]
    fn samples_of_a_lower_rate_weigh_more() {
        // The samples represent 2/19 s and 3/7 s of CPU time.
        let joined =
            join(vec![profile(0, 19, 0, &[(0, 2, 0)]), profile(15, 7, 0, &[(0, 3, 0)])], 0);
        assert_eq!((joined.hertz, joined.total()), (19, 2 + 8));
        // A thousand samples represent 1000/9 s. The counts in the slots have the same sum.
        let many: Vec<_> = (0..1000).map(|slot| (0, 1, slot / 10)).collect();
        let low = profile(0, 9, SECOND, &many);
        let joined = join(vec![low, profile(100, 19, SECOND, &[(1, 1, 0)])], 0);
        assert_eq!((joined.hertz, joined.total()), (19, 2111 + 1));
        assert!(joined.samples.iter().all(|sample| (1..=3).contains(&sample.count)));
        let in_slots: u64 = joined.samples.iter().flat_map(|s| &s.times).map(|t| t.1).sum();
        assert_eq!(in_slots, joined.total());
    }

    #[test]
    fn join_and_restriction_preserve_sample_times() {
        let first = profile(100, 19, SECOND, &[(0, 5, 3)]);
        let second = profile(115, 19, 0, &[(1, 7, 0)]);
        let mut joined = join(vec![first, second], 0);
        assert_eq!((joined.begin_unix_ns, joined.slot_ns), (100 * SECOND, SECOND));
        assert_eq!(joined.duration_ns, 30 * SECOND);
        let times = |joined: &Profile| -> Vec<_> {
            joined.samples.iter().map(|sample| sample.times.clone()).collect()
        };
        assert_eq!(times(&joined), [[(3, 5)], [(15, 7)]]);
        joined.restrict_to(110 * SECOND, 120 * SECOND);
        assert_eq!(times(&joined), [[(15, 7)]]);
        joined.restrict_to(116 * SECOND, 120 * SECOND);
        assert!(joined.samples.is_empty());
    }

    proptest! {
        #[test]
        fn join_and_merge_preserve_sums(
            all in vec((0..10_000_u64, 0..3_u64, vec((0..4_u8, 0..1000_u64, 0..750_u32), 0..9)), 1..9),
            least in 0..30_u64,
        ) {
            let of = |profiles: &[Profile]| {
                let mut sums = std::collections::BTreeMap::new();
                for profile in profiles {
                    for sample in &profile.samples {
                        let name = profile.frame(sample.stack[0]).name.to_string();
                        *sums.entry(name).or_insert(0) += sample.count;
                    }
                }
                sums
            };
            let all = all.iter().map(|(begin, slot, samples)| {
                profile(*begin, 19, slot * times::SLOT, samples)
            });
            let all: Vec<_> = all.collect();
            let (sums, number) = (of(&all), all.len() as u64);
            let mut joined = join(all, least * SECOND);
            prop_assert_eq!(&of(std::slice::from_ref(&joined)), &sums);
            joined.merge(false);
            prop_assert_eq!(&of(std::slice::from_ref(&joined)), &sums);
            prop_assert_eq!(joined.duration_ns, number * 15 * SECOND);
            let in_slots = joined.samples.iter().flat_map(|s| &s.times).map(|t| t.1).sum::<u64>();
            prop_assert_eq!(in_slots, joined.total());
            joined.restrict_to(0, u64::MAX);
            prop_assert_eq!(in_slots, joined.total());
        }
    }
}

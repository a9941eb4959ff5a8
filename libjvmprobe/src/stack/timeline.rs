//! The time axis of a profile in a file: the length of its slots, and stops of the application.

use std::sync::Arc;

use crate::{
    bpf::stops::Stop,
    stack::{profile::Profile, times},
};

/// Maximum number of counts, which take about six megabytes of an HTML page.
const MAX_COUNTS: usize = 1 << 20;

/// A period in which the application was stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Band {
    /// Begin, in nanoseconds after the profile's begin.
    pub begin_ns: u64,
    /// End, in nanoseconds after the profile's begin.
    pub end_ns: u64,
    /// Kind of stop.
    pub kind: BandKind,
    /// Name: `G1 Evacuation Pause`, `ICBufferFull`.
    pub label: Arc<str>,
}

/// Kind of a stop of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BandKind {
    /// A pause of the garbage collector.
    Collection,
    /// A safepoint for another operation.
    Safepoint,
}

impl Band {
    /// Makes the band of a stop, for a profile that began at `begin` on the kernel's clock.
    pub fn of(stop: &Stop, begin: u64) -> Self {
        Self {
            begin_ns: stop.begin.saturating_sub(begin),
            end_ns: stop.end.saturating_sub(begin),
            kind: if stop.is_collection { BandKind::Collection } else { BandKind::Safepoint },
            label: stop.name.as_str().into(),
        }
    }
}

/// Returns the number of a profile's time slots that are written as one slot, so that there are at most `MAX_COUNTS`
/// counts.
pub fn slots_per_written_slot(profile: &Profile) -> u32 {
    let (mut slot_ns, mut factor) = (profile.slot_ns, 1_u32);
    let counts = |factor| -> usize {
        profile.samples.iter().map(|sample| times::count(&sample.times, factor)).sum()
    };
    while counts(factor) > MAX_COUNTS
        && let Some(more) = times::factor_to_next_length(slot_ns)
    {
        slot_ns = slot_ns.saturating_mul(more.into());
        factor = factor.saturating_mul(more);
    }
    factor
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::profile::Sample;

    #[test]
    fn many_counts_are_written_in_longer_slots() {
        let mut profile = Profile::default();
        profile.slot_ns = times::SLOT;
        let times = (0..=MAX_COUNTS as u32).map(|slot| (slot, 1)).collect();
        profile.samples.push(Sample { times, ..Sample::of(1, "main".into(), 1, Vec::new()) });
        assert_eq!(slots_per_written_slot(&profile), 5);
        profile.samples[0].times.pop();
        assert_eq!(slots_per_written_slot(&profile), 1);
    }
}

//! Times of a profile's samples, and of stops of the application.
//!
//! Time is divided into slots of equal length. For each slot there is one count per thread and stack; slots without
//! samples take no memory.

use std::{collections::HashMap, sync::Arc};

use crate::{
    bpf::stops::Stop,
    stack::{
        profile::{FrameId, Profile, Sample},
        times,
    },
};

/// Maximum number of counts, which take about six megabytes of an HTML page. If there are more, slots are
/// made longer.
const MAX_COUNTS: usize = 1 << 20;

/// Times of one profile. Frame numbers refer to that profile.
#[derive(Debug, Default)]
pub struct Timeline {
    /// Begin of the first slot, in nanoseconds since 1970.
    pub begin_unix_ns: u64,
    /// Length of a slot in nanoseconds.
    pub slot_ns: u64,
    /// Stops of the application.
    pub bands: Vec<Band>,
    stacks: Vec<ThreadStack>,
    known: HashMap<ThreadStack, u32>,
    counts: HashMap<(u32, u32), u64>,
}

/// A thread with one of its stacks, as in [`Sample`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ThreadStack {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The thread's name.
    pub thread: Arc<str>,
    /// Frames, outermost first.
    pub stack: Vec<FrameId>,
}

impl ThreadStack {
    /// Returns the thread and stack of a sample.
    pub fn of(sample: &Sample) -> Self {
        let (thread, stack) = (Arc::clone(&sample.thread), sample.stack.clone());
        Self { pid: sample.pid, tid: sample.tid, thread, stack }
    }
}

/// A period in which the application was stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Band {
    /// Begin, in nanoseconds after the timeline's begin.
    pub begin_ns: u64,
    /// End, in nanoseconds after the timeline's begin.
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

impl Timeline {
    /// Makes a timeline without samples.
    pub fn new(begin_unix_ns: u64, slot_ns: u64) -> Self {
        Self { begin_unix_ns, slot_ns, ..Self::default() }
    }

    /// Makes the timeline of a profile; `None` if the times of its samples are unknown. If there are more than
    /// `MAX_COUNTS` counts, slots are longer than the profile's.
    pub fn of(profile: &Profile) -> Option<Self> {
        if profile.slot_ns == 0 {
            return None;
        }
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
        let mut timeline = Self::new(profile.begin_unix_ns, slot_ns);
        for sample in &profile.samples {
            for &(slot, count) in &sample.times {
                timeline.add(slot / factor, ThreadStack::of(sample), count);
            }
        }
        Some(timeline)
    }

    /// Adds a count of a thread with a stack in a slot.
    pub fn add(&mut self, slot: u32, stack: ThreadStack, count: u64) {
        let next = u32::try_from(self.stacks.len()).unwrap_or(u32::MAX);
        let number = *self.known.entry(stack).or_insert_with_key(|stack| {
            self.stacks.push(stack.clone());
            next
        });
        let sum = self.counts.entry((slot, number)).or_default();
        *sum = sum.saturating_add(count);
    }

    /// Returns the threads with their stacks; counts refer to their indices.
    pub fn stacks(&self) -> &[ThreadStack] {
        &self.stacks
    }

    /// Returns counts as (slot, index of a stack, count), in order of time.
    pub fn counts(&self) -> Vec<(u32, u32, u64)> {
        let all = self.counts.iter();
        let mut counts: Vec<_> = all.map(|(&(slot, stack), &count)| (slot, stack, count)).collect();
        counts.sort_unstable();
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_in_one_slot_are_merged() {
        let stack = |tid| ThreadStack { pid: 1, tid, thread: "main".into(), stack: vec![0, 1] };
        let mut timeline = Timeline::new(0, 20_000_000);
        for (slot, tid, count) in [(7, 1, 2), (0, 2, 1), (7, 1, 3), (7, 2, 1)] {
            timeline.add(slot, stack(tid), count);
        }
        assert_eq!(timeline.counts(), [(0, 1, 1), (7, 0, 5), (7, 1, 1)]);
        assert_eq!(timeline.stacks().len(), 2);
    }
}

//! Samples that have not been named yet, by process.

use std::collections::HashMap;

use super::Samples;
use crate::trace::samples::{
    process::Traced,
    session::{Count, SampleKey, has_number},
};

/// Samples that have not been named yet.
#[derive(Default)]
pub(crate) struct Sampled {
    /// Samples of the profiled processes, by PID.
    pub(crate) by_pid: HashMap<u32, Samples>,
    /// Retired processes with their samples, to be named later.
    retired: Vec<(Traced, Samples)>,
    /// Samples whose stacks have not been received yet.
    early: Vec<(SampleKey, Count)>,
    /// Total number of samples.
    total_samples: u64,
}

impl Sampled {
    /// Adds samples of a process.
    pub(crate) fn add(&mut self, key: SampleKey, count: Count) {
        self.total_samples += count.samples;
        *self.by_pid.entry(key.pid).or_default().entry(key).or_default() += count;
    }

    /// Returns the total number of samples so far.
    pub(crate) fn total_samples(&self) -> u64 {
        self.total_samples
    }

    /// Returns the number of entries, including those of retired processes.
    pub(crate) fn len(&self) -> usize {
        let retired = self.retired.iter().map(|(_, samples)| samples);
        self.by_pid.values().chain(retired).map(Samples::len).sum()
    }

    /// Takes the samples of a process.
    pub(crate) fn take(&mut self, pid: u32) -> Samples {
        self.by_pid.remove(&pid).unwrap_or_default()
    }

    /// Takes the samples of all profiled processes, including those of `counted`. A sample of `counted` whose stack
    /// has not been received yet is kept for [`take_early`](Self::take_early).
    pub(crate) fn take_all(
        &mut self,
        counted: Vec<(SampleKey, Count)>,
        is_received: impl Fn(u64) -> bool,
    ) -> HashMap<u32, Samples> {
        for (key, count) in counted {
            if !has_number(key.user) || is_received(key.user) {
                self.add(key, count);
            } else {
                self.early.push((key, count));
            }
        }
        std::mem::take(&mut self.by_pid)
    }

    /// Takes the samples that were counted before their stacks were received.
    pub(crate) fn take_early(&mut self) -> Vec<(SampleKey, Count)> {
        std::mem::take(&mut self.early)
    }

    /// Retires a process with its samples, because the PID may belong to another process from now on.
    pub(crate) fn retire(&mut self, traced: Traced) {
        let samples = self.take(traced.pid().0);
        self.retired.push((traced, samples));
    }

    /// Takes the retired processes.
    pub(crate) fn take_retired(&mut self) -> Vec<(Traced, Samples)> {
        std::mem::take(&mut self.retired)
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    use crate::{Pid, process::Process, stack::native::Files, trace::samples::session::OVER_SHARE};

    fn key(pid: u32, user: u64) -> SampleKey {
        SampleKey { user, ..SampleKey::of(pid) }
    }

    fn times(samples: u64) -> Count {
        Count { samples, value: 0 }
    }

    #[test]
    fn equal_samples_merge_into_one_entry() {
        let mut sampled = Sampled::default();
        for (pid, user, samples) in [(7, 1, 2), (7, 1, 3), (7, 3, 4), (8, 1, 5)] {
            sampled.add(key(pid, user), times(samples));
        }
        assert_eq!((sampled.total_samples(), sampled.len()), (14, 3));
        assert_eq!(sampled.take(7)[&key(7, 1)], times(5));
        assert_eq!((sampled.take(7).len(), sampled.take(8).len()), (0, 1));
        // Samples that were taken out still count in the total.
        assert_eq!(sampled.total_samples(), 14);
    }

    #[test]
    fn sample_without_its_stack_is_deferred() {
        let mut sampled = Sampled::default();
        sampled.add(key(7, 1), times(1));
        // In this order: stack received, no stack, stack not received yet, stack not walked.
        let counted = vec![
            (key(7, 1), times(2)),
            (key(7, 0), times(4)),
            (key(7, 9), times(8)),
            (key(7, OVER_SHARE), times(16)),
        ];
        let all = sampled.take_all(counted, |id| id == 1);
        let expected = [(1, 3), (0, 4), (OVER_SHARE, 16)].map(|(id, n)| (key(7, id), times(n)));
        assert_eq!(all[&7], Samples::from(expected));
        // A sample counts once in the total, when it is added.
        assert_eq!((sampled.total_samples(), sampled.len()), (23, 0));
        assert_eq!(sampled.take_early(), [(key(7, 9), times(8))]);
        assert!(sampled.take_early().is_empty());
    }

    #[test]
    fn samples_of_a_reused_pid_stay_separate() {
        let pid = std::process::id();
        let mut files = Files::default();
        let traced = Traced::other(Process::open(Pid(pid)).unwrap(), &mut files);
        let mut sampled = Sampled::default();
        sampled.add(key(pid, 1), times(2));
        sampled.retire(traced);
        sampled.add(key(pid, 1), times(3));
        assert_eq!(sampled.len(), 2);
        let retired = sampled.take_retired();
        assert_eq!(retired[0].1, Samples::from([(key(pid, 1), times(2))]));
        assert_eq!(sampled.take(pid), Samples::from([(key(pid, 1), times(3))]));
        assert!(sampled.take_retired().is_empty());
    }
}

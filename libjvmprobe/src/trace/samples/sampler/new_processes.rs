//! Samples of new processes that are not known to be JVMs. If every JVM is profiled, all new processes are
//! sampled. A process that becomes a JVM within two seconds keeps its samples from the first one on. The
//! samples of any other process are dropped, and the process is ignored.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use super::Samples;
use crate::trace::samples::{
    event::Label,
    session::{Count, SampleKey},
};

/// Time within which a sampled process must become a JVM. After that, it is ignored.
const JVM_START_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of labels that are kept; each takes at most a few kilobytes.
const MAX_LABELS: usize = 4096;

/// Maximum number of processes that the kernel side can ignore: `MAX_IGNORED` of bpf/javaprof.h.
const MAX_IGNORED: usize = 16_384;

/// New processes, by PID.
#[derive(Default)]
pub(crate) struct NewProcesses {
    sampled: HashMap<u32, NewProcess>,
    /// Texts of the labels of their samples, by PID. The kernel side sends each text only once.
    labels: Vec<(u32, Label)>,
    /// Processes that did not become JVMs, and that the kernel side ignores.
    ignored: HashSet<u32>,
}

struct NewProcess {
    since: Instant,
    samples: Samples,
}

/// A process that has not become a JVM in time.
pub(crate) struct OverdueProcess {
    /// Its PID.
    pub(crate) pid: u32,
    /// Its samples.
    pub(crate) samples: Samples,
    /// Whether the kernel side has to ignore it from now on.
    pub(crate) is_ignored: bool,
}

impl NewProcesses {
    /// Adds samples of a new process.
    pub(crate) fn add(&mut self, key: SampleKey, count: Count, now: Instant) {
        let process = self
            .sampled
            .entry(key.pid)
            .or_insert_with(|| NewProcess { since: now, samples: Samples::new() });
        *process.samples.entry(key).or_default() += count;
    }

    /// Keeps the text of a label, if fewer than `MAX_LABELS` are kept.
    pub(crate) fn add_label(&mut self, pid: u32, label: Label) {
        if self.labels.len() < MAX_LABELS {
            self.labels.push((pid, label));
        }
    }

    /// Takes the samples and labels of a process that has become a JVM.
    pub(crate) fn take(&mut self, pid: u32) -> (Samples, Vec<Label>) {
        let samples = self.sampled.remove(&pid).map(|process| process.samples);
        let labels = self.labels.extract_if(.., |(of, _)| *of == pid).map(|(_, label)| label);
        (samples.unwrap_or_default(), labels.collect())
    }

    /// Takes the processes that have not become JVMs in time.
    pub(crate) fn take_overdue(&mut self, now: Instant) -> Vec<OverdueProcess> {
        let late = self.sampled.extract_if(|_, process| now - process.since >= JVM_START_TIMEOUT);
        let overdue = late.map(|(pid, NewProcess { samples, .. })| {
            self.labels.retain(|(of, _)| *of != pid);
            let is_ignored = self.ignored.len() < MAX_IGNORED && self.ignored.insert(pid);
            OverdueProcess { pid, samples, is_ignored }
        });
        overdue.collect()
    }

    /// Takes the PIDs of ignored processes that have ended, because the kernel may give these PIDs to other
    /// processes.
    pub(crate) fn take_ended(&mut self, lives: impl Fn(u32) -> bool) -> Vec<u32> {
        self.ignored.extract_if(|&pid| !lives(pid)).collect()
    }

    /// Returns the keys of all samples.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &SampleKey> {
        self.sampled.values().flat_map(|process| process.samples.keys())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(pid: u32, user: u64) -> SampleKey {
        SampleKey { user, ..SampleKey::of(pid) }
    }

    const ONCE: Count = Count { samples: 1, value: 0 };

    fn label(pid: u32, label: u64) -> Label {
        Label { target: pid.into(), label, text: Vec::new() }
    }

    #[test]
    fn process_becoming_a_jvm_gets_its_first_samples() {
        let mut processes = NewProcesses::default();
        let now = Instant::now();
        for key in [key(7, 1), key(7, 1), key(7, 3), key(8, 1)] {
            processes.add(key, ONCE, now);
        }
        for (pid, number) in [(7, 1), (8, 2), (7, 3)] {
            processes.add_label(pid, label(pid, number));
        }
        assert_eq!(processes.keys().count(), 3);
        let (samples, labels) = processes.take(7);
        let twice = Count { samples: 2, value: 0 };
        assert_eq!(samples, Samples::from([(key(7, 1), twice), (key(7, 3), ONCE)]));
        assert_eq!(labels, [label(7, 1), label(7, 3)]);
        assert_eq!(processes.keys().count(), 1);
        // Process 7 was taken, so only 8 is left.
        let overdue = processes.take_overdue(now + JVM_START_TIMEOUT);
        assert_eq!(overdue.iter().map(|overdue| overdue.pid).collect::<Vec<_>>(), [8]);
    }

    #[test]
    fn process_not_becoming_a_jvm_is_eventually_ignored() {
        let mut processes = NewProcesses::default();
        let now = Instant::now();
        processes.add(key(7, 1), ONCE, now);
        processes.add_label(7, label(7, 1));
        let later = now + JVM_START_TIMEOUT / 2;
        // The time counts from the first sample.
        processes.add(key(7, 3), ONCE, later);
        processes.add(key(8, 1), ONCE, later);
        assert!(processes.take_overdue(later).is_empty());
        let overdue = processes.take_overdue(now + JVM_START_TIMEOUT);
        let [OverdueProcess { pid: 7, samples, is_ignored: true }] = &overdue[..] else {
            panic!("{}", overdue.len())
        };
        assert_eq!(samples.len(), 2);
        assert_eq!(processes.take(7).1, []);
        // A sample that the kernel side had counted before it ignored the process.
        processes.add(key(7, 1), ONCE, now);
        assert!(
            processes
                .take_overdue(now + JVM_START_TIMEOUT)
                .iter()
                .all(|overdue| !overdue.is_ignored)
        );
    }

    #[test]
    fn pids_of_ended_processes_are_no_longer_ignored() {
        let mut processes = NewProcesses::default();
        let now = Instant::now();
        for pid in [7, 8] {
            processes.add(key(pid, 1), ONCE, now);
        }
        processes.take_overdue(now + JVM_START_TIMEOUT);
        assert_eq!(processes.take_ended(|pid| pid == 8), [7]);
        assert!(processes.take_ended(|pid| pid == 8).is_empty());
        // The PID may be ignored again.
        processes.add(key(7, 1), ONCE, now);
        assert!(processes.take_overdue(now + JVM_START_TIMEOUT)[0].is_ignored);
    }

    #[test]
    fn number_of_labels_and_ignored_pids_is_limited() {
        let mut processes = NewProcesses::default();
        let now = Instant::now();
        for pid in 0..MAX_IGNORED as u32 + 10 {
            processes.add_label(pid, label(pid, 1));
            processes.add(key(pid, 1), ONCE, now);
        }
        assert_eq!(processes.labels.len(), MAX_LABELS);
        let overdue = processes.take_overdue(now + JVM_START_TIMEOUT);
        assert_eq!(overdue.iter().filter(|overdue| overdue.is_ignored).count(), MAX_IGNORED);
    }
}

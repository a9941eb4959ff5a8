//! Taking what the kernel side has counted, with its stacks.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    time::{Duration, Instant},
};

use super::{Samples, Sink, Stacks, Taker, kept::size_of_stack, thinned};
use crate::{
    Addr, Pid, Result,
    bpf::clock,
    follow::Watch,
    process::Process,
    stack::{Stack, java_frames, raw::RawStack},
    take::samples::{
        Whom,
        session::{self, Count, MANY_STACKS, OVER_SHARE, SampleKey},
        traced::Traced,
    },
};

impl<S: Sink> Taker<S> {
    /// Counts waits that go on.
    pub(super) fn finish_waits(&mut self, end: u64) {
        let Some(waits) = &mut self.waits else { return };
        let pids = self.processes.keys().copied();
        for (key, count) in waits.finish(&self.session, end, pids, &self.sampled.by_pid) {
            // Of a thread whose process was left alone in the meantime, nothing is wanted.
            if self.processes.contains_key(&key.pid) {
                self.sampled.add(key, count);
            }
        }
    }

    /// Gives samples of wall-clock time their times.
    pub(super) fn settle(&self, samples: &mut Samples) {
        if let Some(waits) = &self.waits {
            waits.settle(samples, self.options.hertz());
        }
    }

    /// Takes what was thinned and counted with no other event, of a process or of all. It was
    /// where those were that were walked, as far as anybody knows.
    pub(super) fn collect_thinned(&mut self, pid: Option<u32>) {
        let mut rest: HashMap<u32, Vec<(SampleKey, Count)>> = HashMap::new();
        for (key, count) in session::collect_thinned(&self.session, pid) {
            // Newcomers that were none of those wanted.
            if self.processes.contains_key(&key.pid) {
                rest.entry(key.pid).or_default().push((key, count));
            }
        }
        for (pid, rest) in rest {
            thinned::spread(self.sampled.by_pid.entry(pid).or_default(), rest);
        }
    }

    /// Takes a stack that is new.
    pub(super) fn keep_stack(&mut self, id: u64, raw: RawStack) {
        self.take_stack(id, &raw);
        if self.waits.is_some() {
            self.raws.insert(id, raw);
        }
    }

    /// Takes a stack, and names its Java frames.
    pub(super) fn take_stack(&mut self, id: u64, raw: &RawStack) {
        let pid = u32::try_from(raw.target).unwrap_or(0);
        let stack = match self.processes.get_mut(&pid) {
            Some(traced) => {
                let stack = traced.resolve(raw);
                traced.look_for(&stack, &mut self.files, &mut self.session);
                stack
            }
            None => java_frames::plain(raw),
        };
        self.stacks_size += size_of_stack(&stack);
        self.stacks.insert(id, stack);
    }

    /// What the kernel side has counted since the last time.
    pub(super) fn counted(&mut self) -> Vec<(SampleKey, Count)> {
        let mut counted = session::collect(&self.session);
        for (key, count) in counted.iter().filter(|(key, _)| key.user == OVER_SHARE) {
            self.tenants.leave_out_walks(key.pid, count.samples);
        }
        if let Some(waits) = &mut self.waits {
            counted.iter_mut().for_each(|(key, count)| waits.rest(key, count));
            counted = counted.into_iter().map(|(key, count)| (waits.place(key), count)).collect();
        }
        counted
    }

    /// Takes what was counted. Of processes that are new, the code is known from here on.
    pub(super) fn collect(&mut self) -> Result<()> {
        if self.stacks_sent > MANY_STACKS {
            self.stacks_sent = 0;
            session::forget_stacks(&self.session);
        }
        let mut batch = self.sampled.take_early();
        batch.extend(self.counted());
        if let Some(waits) = &mut self.waits {
            batch.extend(waits.collect(&self.session, clock::monotonic_ns()));
        }
        // Behind the samples, so that their stacks are among them.
        self.take_events(Duration::ZERO)?;
        for (key, count) in batch {
            let pid = key.pid;
            if !self.processes.contains_key(&pid) {
                if self.options.whom != Whom::EveryProcess {
                    self.newcomers.add(key, count, Instant::now());
                    continue;
                }
                if let Ok(process) = Process::open(Pid(pid)) {
                    self.processes.insert(pid, Traced::other(process, &mut self.files));
                    self.welcome(pid);
                }
            }
            if let Some(traced) = self.processes.get_mut(&pid) {
                traced.learn_thread(&key);
                if let Some(stack) = self.stacks.get(&key.user) {
                    traced.look_for(stack, &mut self.files, &mut self.session);
                }
            }
            self.sampled.add(key, count);
        }
        self.part_with_newcomers();
        Ok(())
    }
}

/// Gets to know the Java frames of new stacks, process by process. `learned` is called after each process.
pub(super) fn learn<'a>(
    processes: &mut BTreeMap<u32, Traced>,
    stacks: impl Iterator<Item = &'a RawStack>,
    mut learned: impl FnMut(u32),
) {
    let mut by_pid: BTreeMap<u32, Vec<&RawStack>> = BTreeMap::new();
    for raw in stacks {
        by_pid.entry(u32::try_from(raw.target).unwrap_or(0)).or_default().push(raw);
    }
    for (pid, stacks) in by_pid {
        if let Some(traced) = processes.get_mut(&pid) {
            traced.learn(stacks);
            learned(pid);
        }
    }
}

/// The addresses without a name yet that were sampled, as they are looked up, sorted.
pub(super) fn addresses(samples: &Samples, stacks: &Stacks) -> Vec<Addr> {
    let sampled: HashSet<_> = samples.keys().map(|key| key.user).collect();
    let sampled = sampled.iter().filter_map(|id| stacks.get(id));
    let addrs: BTreeSet<_> = sampled.flat_map(Stack::addresses).collect();
    addrs.into_iter().collect()
}

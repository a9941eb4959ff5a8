//! Collects the kernel side's samples, with their stacks.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    time::{Duration, Instant},
};

use super::{Sampler, Samples, Sink, Stacks, thinned, unnamed::size_of_stack};
use crate::{
    Addr, Pid, Result,
    bpf::clock,
    jvms::Watch,
    process::Process,
    stack::{Stack, java_frames, raw::RawStack},
    trace::{
        asleep::{self, SleepingThread},
        samples::{
            Targets,
            process::Traced,
            session::{self, Count, MANY_STACKS, OVER_SHARE, SampleKey},
        },
    },
};

impl<S: Sink> Sampler<S> {
    /// Finds the threads that sleep, if waits are recorded.
    pub(super) fn find_sleepers(&mut self) -> Result<Vec<SleepingThread>> {
        if self.waits.is_none() {
            return Ok(Vec::new());
        }
        let jvms = self.processes.iter();
        let jvms: Vec<_> =
            jvms.filter_map(|(&pid, traced)| Some((pid, pid.into(), traced.layout()?))).collect();
        asleep::find(&mut self.session, &jvms)
    }

    /// Counts the waits that are in progress when the trace ends. `asleep` are the threads that slept then.
    pub(super) fn finish_waits(&mut self, end: u64, asleep: Vec<SleepingThread>) {
        let Some(waits) = &mut self.waits else { return };
        let pids = self.processes.keys().copied();
        let counted = waits.finish(&self.session, end, pids, &self.sampled.by_pid, &asleep);
        for SleepingThread { user, stack, .. } in asleep {
            self.take_stack(user, &stack);
        }
        for (key, count) in counted {
            // A process that was retired meanwhile gets no more samples.
            if self.processes.contains_key(&key.pid) {
                self.sampled.add(key, count);
            }
        }
    }

    /// Calculates how much time each sample of wall-clock time represents, and stores it in the sample's
    /// count.
    pub(super) fn distribute_running_time(&self, samples: &mut Samples) {
        if let Some(waits) = &self.waits {
            waits.distribute_running_time(samples, self.options.hertz());
        }
    }

    /// Takes the quantities of thinned events that are not part of a sample yet, of process `pid` or of all
    /// processes. Distributes them over the samples whose stacks were walked: this is the best estimate of
    /// where the events occurred.
    pub(super) fn collect_thinned(&mut self, pid: Option<u32>) {
        let mut rest: HashMap<u32, Vec<(SampleKey, Count)>> = HashMap::new();
        for (key, count) in session::collect_thinned(&self.session, pid) {
            // Other processes are new ones that are not profiled.
            if self.processes.contains_key(&key.pid) {
                rest.entry(key.pid).or_default().push((key, count));
            }
        }
        for (pid, rest) in rest {
            thinned::distribute(self.sampled.by_pid.entry(pid).or_default(), rest);
        }
    }

    /// Keeps a stack, with its Java frames named.
    pub(super) fn take_stack(&mut self, id: u64, raw: &RawStack) {
        let pid = u32::try_from(raw.target).unwrap_or(0);
        let stack = match self.processes.get_mut(&pid) {
            Some(traced) => {
                let stack = traced.resolve(raw);
                traced.refresh_maps_for(&stack, &mut self.files, &mut self.session);
                stack
            }
            None => java_frames::without_names(raw),
        };
        self.stacks_size += size_of_stack(&stack);
        self.stacks.insert(id, stack);
    }

    /// Takes the samples that the kernel side has counted since the last call.
    pub(super) fn counted(&mut self) -> Vec<(SampleKey, Count)> {
        let mut counted = session::collect(&self.session);
        for (key, count) in counted.iter().filter(|(key, _)| key.user == OVER_SHARE) {
            self.tenants.leave_out_walks(key.pid, count.samples);
        }
        if let Some(waits) = &mut self.waits {
            counted.iter_mut().for_each(|(key, count)| waits.subtract_seen(key, count));
        }
        counted
    }

    /// Collects the samples. If every process is sampled, adds the new processes, and reads their mappings from then
    /// on.
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
        // Events are read after the samples, so that the stacks of these samples are among them.
        self.take_events(Duration::ZERO)?;
        for (key, count) in batch {
            let pid = key.pid;
            if !self.processes.contains_key(&pid) {
                if self.options.targets != Targets::EveryProcess {
                    self.new_processes.add(key, count, Instant::now());
                    continue;
                }
                if let Ok(process) = Process::open(Pid(pid)) {
                    self.processes.insert(pid, Traced::other(process, &mut self.files));
                    self.adopt_early_samples(pid);
                }
            }
            if let Some(traced) = self.processes.get_mut(&pid) {
                traced.look_up_thread_name(&key);
                if let Some(stack) = self.stacks.get(&key.user) {
                    traced.refresh_maps_for(stack, &mut self.files, &mut self.session);
                }
            }
            self.sampled.add(key, count);
        }
        self.drop_overdue_processes();
        Ok(())
    }
}

/// Reads what is needed to name the Java frames of new stacks, process by process. Calls `after_process` after each
/// process.
pub(super) fn prefetch_java_frames<'a>(
    processes: &mut BTreeMap<u32, Traced>,
    stacks: impl Iterator<Item = &'a RawStack>,
    mut after_process: impl FnMut(u32),
) {
    let mut by_pid: BTreeMap<u32, Vec<&RawStack>> = BTreeMap::new();
    for raw in stacks {
        by_pid.entry(u32::try_from(raw.target).unwrap_or(0)).or_default().push(raw);
    }
    for (pid, stacks) in by_pid {
        if let Some(traced) = processes.get_mut(&pid) {
            traced.prefetch_java_frames(stacks);
            after_process(pid);
        }
    }
}

/// Returns the sampled addresses whose frames have no names yet, sorted. In place of a return address, the
/// result has an address inside the call, by which the frame is looked up.
pub(super) fn addresses(samples: &Samples, stacks: &Stacks) -> Vec<Addr> {
    let sampled: HashSet<_> = samples.keys().map(|key| key.user).collect();
    let sampled = sampled.iter().filter_map(|id| stacks.get(id));
    let addrs: BTreeSet<_> = sampled.flat_map(Stack::addresses).collect();
    addrs.into_iter().collect()
}

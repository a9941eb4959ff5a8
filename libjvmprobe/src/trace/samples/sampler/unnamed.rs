//! Samples and stacks that are kept until they are named, within a memory limit.

use std::time::{Duration, Instant};

use super::{Sampler, Samples, Sink, Stacks, new_processes::OverdueProcess};
use crate::{
    Pid, Result,
    jvms::Watch,
    process,
    stack::{Stack, code_log::CodeLog},
    sys::limited,
    trace::{
        samples::{
            Targets,
            process::Traced,
            session::{self, Count, SampleKey, Session},
        },
        tenants::{Limited, Work},
    },
};

/// Maximum time for which samples are named before the stacks that were walked meanwhile are taken. Naming the samples of
/// a minute can take seconds, in which a JVM may free the code of these stacks, or end.
const MAX_NAMING: Duration = Duration::from_millis(20);

impl<S: Sink> Sampler<S> {
    /// Returns the approximate size, in bytes, of samples, stacks and compiled code kept for naming.
    pub(super) fn size(&self) -> usize {
        /// Bytes of a sample in a hash table, with the name of its thread.
        const SAMPLE: usize = 2 * (size_of::<SampleKey>() + size_of::<Count>() + 16);
        let samples = self.sampled.len() + self.new_processes.keys().count();
        let code = self.processes.values().map(Traced::size).sum::<usize>();
        samples * SAMPLE + self.stacks_size + code
    }

    /// Collects samples, and enforces the memory limit: one half is for samples that are not named yet, the other for
    /// named profiles. Also releases files that no process has used for a while.
    pub(super) fn collect_within_limits(&mut self) -> Result<()> {
        self.collect()?;
        if self.size() > self.options.max_memory / 2 {
            self.name_all()?;
        }
        self.shrink_named();
        self.files.release_unused(self.session.walker());
        Ok(())
    }

    /// Drops stacks from the named profiles if these exceed their half of the memory limit.
    pub(super) fn shrink_named(&mut self) {
        let max = self.options.max_memory / 2;
        if self.naming.size() > max {
            self.naming.shrink(max);
        }
    }

    /// Passes the changed limits to the kernel side.
    pub(super) fn apply_limits(&mut self) {
        for (pid, limit) in self.tenants.take_changes() {
            let left_out = session::set_limits(
                &self.session,
                pid.into(),
                limit.unwalked,
                limit.leaves_out_metadata,
            );
            self.tenants.leave_out_metadata(pid, left_out);
            if let Some(traced) = self.processes.get_mut(&pid).filter(|_| limit.leaves_out_metadata)
            {
                // Once an unload is missing, the log would give the name of the unloaded code to other code.
                traced.code = CodeLog::default();
            }
        }
    }

    /// Ends an interval of the tenants' shares: reports the tenants that lost detail, and applies the new limits.
    pub(super) fn start_share_interval(&mut self) {
        let processes = &self.processes;
        for &pid in processes.keys() {
            if self.tenants.leaves_out_metadata(pid) {
                self.tenants.leave_out_metadata(pid, session::left_out(&self.session, pid.into()));
            }
        }
        let limited = self.tenants.next_interval(|pid| processes.contains_key(&pid));
        for Limited { tenant, walks, metadata } in limited {
            limited::add("walks", &tenant, walks);
            limited::add("naming", &tenant, metadata);
        }
        self.apply_limits();
    }

    /// Names all samples so far. Returns the time up to which they were counted, because sampling continues
    /// while they are named.
    pub(super) fn name_all(&mut self) -> Result<Instant> {
        self.name_retired();
        // From here on, the kernel side sends every stack again, and frames are named anew.
        let processes = self.processes.iter_mut();
        let java_names: Vec<_> =
            processes.map(|(&pid, traced)| (pid, traced.take_java_names())).collect();
        let mut stacks = std::mem::take(&mut self.stacks);
        self.stacks_size = 0;
        session::forget_stacks(&self.session);
        self.stacks_sent = 0;
        // Takes the samples counted up to here whose stacks have been received. A sample whose stack has not
        // been received yet is kept, and the next call of `collect` adds it.
        let counted = self.counted();
        let until = Instant::now();
        let counted = self.without_new_processes(counted);
        let mut samples = self.sampled.take_all(counted, |id| stacks.contains_key(&id));
        self.take_events(Duration::ZERO)?;
        // The kernel stack of a sample may have been received only now, after the samples were taken. It is
        // used all the same, because kernel stacks have the same names in both periods.
        for (id, stack) in &self.stacks {
            stacks.entry(*id).or_insert_with(|| stack.clone());
        }
        self.tenants.begin_work();
        // Processes are named one at a time, because the compiled code of hundreds takes much memory.
        for (pid, java_names) in java_names {
            let Some(traced) = self.processes.get_mut(&pid) else { continue };
            let Some(mut samples) = samples.remove(&pid) else {
                traced.drop_ended_code(&mut self.code_names);
                continue;
            };
            samples.keys().for_each(|key| traced.look_up_thread_name(key));
            let named = traced.take_named(java_names, &mut self.code_names);
            self.distribute_running_time(&mut samples);
            let mut namer = self.naming.namer(Some(named), &samples);
            let mut last_taken = Instant::now();
            for (key, count) in &samples {
                self.naming.add_sample(&mut namer, key, count, &stacks);
                if last_taken.elapsed() > MAX_NAMING {
                    self.tenants.charge(pid, Work::Stacks);
                    self.take_events(Duration::ZERO)?;
                    last_taken = Instant::now();
                }
            }
            self.tenants.charge(pid, Work::Stacks);
        }
        for mut samples in samples.into_values() {
            self.distribute_running_time(&mut samples);
            self.naming.add(None, &samples, &stacks);
        }
        self.code_names.drop_unused();
        // Samples of processes that may still become JVMs are not named yet, so their stacks are kept.
        for key in self.new_processes.keys() {
            for id in [key.user, key.kernel] {
                if let Some(stack) = stacks.remove(&id) {
                    self.stacks.entry(id).or_insert(stack);
                }
            }
        }
        self.stacks_size = self.stacks.values().map(size_of_stack).sum();
        Ok(until)
    }

    /// Returns the samples of profiled processes. Keeps those of processes that may still become JVMs.
    fn without_new_processes(
        &mut self,
        counted: Vec<(SampleKey, Count)>,
    ) -> Vec<(SampleKey, Count)> {
        if self.options.targets == Targets::EveryProcess {
            return counted;
        }
        let is_profiled = |(key, _): &(SampleKey, Count)| self.processes.contains_key(&key.pid);
        let (profiled, new): (Vec<_>, Vec<_>) = counted.into_iter().partition(is_profiled);
        let now = Instant::now();
        new.into_iter().for_each(|(key, count)| self.new_processes.add(key, count, now));
        profiled
    }

    /// Stops sampling processes that have not become JVMs in time. Stops ignoring the PIDs of ignored
    /// processes that have ended.
    pub(super) fn drop_overdue_processes(&mut self) {
        for OverdueProcess { pid, samples, is_ignored } in
            self.new_processes.take_overdue(Instant::now())
        {
            let gone = forget_stacks(&samples, &mut self.stacks, &self.session);
            self.stacks_size = self.stacks_size.saturating_sub(gone);
            // Events that were thinned are dropped, too.
            session::collect_thinned(&self.session, Some(pid));
            if is_ignored {
                session::ignore(&self.session, pid.into());
            }
        }
        for pid in self.new_processes.take_ended(|pid| process::exists(Pid(pid))) {
            session::unignore(&self.session, pid.into());
        }
    }

    /// Names the samples of retired processes, and releases these processes. The first call reads the
    /// kernel's symbols, which takes longer than some JVMs live. Therefore `tick` does not call this method
    /// in a command's first second.
    pub(super) fn name_retired(&mut self) {
        self.tenants.begin_work();
        for (traced, mut samples) in self.sampled.take_retired() {
            let pid = traced.pid().0;
            self.distribute_running_time(&mut samples);
            self.naming.add(Some(traced.into_named()), &samples, &self.stacks);
            self.tenants.charge(pid, Work::Stacks);
            let gone = forget_stacks(&samples, &mut self.stacks, &self.session);
            self.stacks_size = self.stacks_size.saturating_sub(gone);
        }
    }
}

/// Forgets the user stacks of samples that are named or dropped. Returns their size in bytes.
pub(super) fn forget_stacks(samples: &Samples, stacks: &mut Stacks, session: &Session) -> usize {
    session::forget_stacks_of(session, samples.keys().map(|key| key.user));
    let gone = samples.keys().filter_map(|key| stacks.remove(&key.user));
    gone.map(|stack| size_of_stack(&stack)).sum()
}

/// Returns the approximate size, in bytes, of a stack in a hash table.
pub(super) fn size_of_stack(stack: &Stack) -> usize {
    2 * (size_of::<Stack>() + 8) + size_of_val(&*stack.frames)
}

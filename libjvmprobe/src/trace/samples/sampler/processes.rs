//! Profiled processes: adds new ones, notices when they become JVMs, and retires those that have ended.

use std::sync::Arc;

use super::{Sampler, Sink};
use crate::{
    Pid, Result,
    bpf::session::Attach,
    jvms::{Arrival, Arrivals},
    process::{Fate, Process},
    sys::{Pace, warn_once},
    trace::samples::{StackWalk, SymbolSource, events::attach, process::Traced, session},
};

impl<S: Sink> Sampler<S> {
    pub(super) fn add(&mut self, mut traced: Traced) -> Result<()> {
        let pid = traced.pid();
        if !self.processes.contains_key(&pid.0) {
            session::add_target(&self.session, pid.0.into())?;
            if let Some(costs) = self.session.costs() {
                costs.add(pid.0.into());
            }
            if self.options.pace == Pace::Calm {
                self.tenants.add(pid.0);
                self.apply_limits();
            }
            if let Some(waits) = &mut self.waits {
                waits.add(pid.0);
            }
        }
        // The process may have ended already; `update_processes` notices that later.
        traced.try_refresh_maps(&mut self.files, &mut self.session);
        self.follow(&mut traced);
        let attached = self.attach_events(&mut traced);
        if let Some(span_sources) = &mut self.span_sources {
            traced.find_span_source(span_sources);
        }
        self.processes.insert(pid.0, traced);
        attached?;
        self.adopt_early_samples(pid.0);
        Ok(())
    }

    /// Adds the early samples and labels of a process, which were recorded before it was in `processes`, to its
    /// profile.
    pub(super) fn adopt_early_samples(&mut self, pid: u32) {
        let (samples, labels) = self.new_processes.take(pid);
        if let Some(traced) = self.processes.get_mut(&pid) {
            labels.iter().for_each(|label| traced.labels.take(label.label, &label.text));
        }
        samples.into_iter().for_each(|(key, count)| self.sampled.add(key, count));
    }

    pub(super) fn follow(&mut self, traced: &mut Traced) {
        if self.options.symbols != SymbolSource::None
            && let Err(error) =
                traced.follow(&mut self.session, self.shared.as_mut(), self.options.slot_ns > 0)
        {
            let pid = traced.pid();
            let line = format!("not recording the code that process {pid} compiles from now on");
            warn_once(&line, &error.to_string());
        }
    }

    /// Attaches to the events in a process's files. A missing event is an error if the user has named the process and
    /// `skip_missing` is not set; otherwise, it causes a warning. While the process may still become a JVM, missing
    /// events are ignored.
    fn attach_events(&mut self, traced: &mut Traced) -> Result<()> {
        let shared = self.shared.as_mut();
        let missing = traced.attach_events(&self.options.events, &mut self.session, shared);
        let pid = traced.pid();
        for (number, error) in missing {
            // The JVM that the process becomes may have the event.
            if traced.may_become_jvm() {
                continue;
            }
            if self.options.named_by_user && !self.options.skip_missing {
                return Err(error);
            }
            log::warn!("process {pid}: {}", attach::missing(&self.options.events[number], &error));
        }
        Ok(())
    }

    /// Searches again for missing events, in the processes whose mappings have changed since the last search.
    pub(super) fn find_missing_events(&mut self) {
        for traced in self.processes.values_mut() {
            let shared = self.shared.as_mut();
            traced.attach_events(&self.options.events, &mut self.session, shared);
        }
    }

    /// Searches for the thread-local variables by which processes publish trace contexts, in the processes whose mappings
    /// have changed since the last search.
    pub(super) fn find_span_sources(&mut self) {
        let Some(span_sources) = &mut self.span_sources else { return };
        for traced in self.processes.values_mut() {
            traced.find_span_source(span_sources);
        }
    }

    pub(super) fn configure_walker(&mut self) -> Result<()> {
        // If every JVM is sampled, one that cannot be read does not end the trace.
        let may_fail = self.options.walk == StackWalk::Auto || self.options.finds_jvms();
        for traced in self.processes.values_mut() {
            // Read early, because the JVM may end before the trace does.
            if self.options.keeps_whole_trace {
                self.about.jvms.extend(traced.describe());
            }
            match traced.configure_walker(&self.options, &mut self.files, &mut self.session) {
                Ok(()) => {}
                Err(_) if traced.fate() != Fate::Alive => {}
                Err(error) if may_fail => {
                    let pid = traced.pid();
                    log::warn!(
                        "falling back to frame pointers for stacks of process {pid}: {error}"
                    );
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(super) fn read_code_maps(&mut self) -> Result<()> {
        let may_fail = self.options.symbols == SymbolSource::Auto || self.options.finds_jvms();
        for traced in self.processes.values_mut() {
            match traced.read_code_map(&self.options, &self.session, &mut self.code_names) {
                Ok(_) => {}
                Err(_) if traced.fate() != Fate::Alive => {}
                Err(error) if may_fail => {
                    let pid = traced.pid();
                    log::warn!(
                        "process {pid}: methods compiled before the profile have no names: {error}"
                    );
                    self.about.unnamed.push(pid);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Re-reads the mappings of all processes.
    pub(super) fn refresh_maps(&mut self) {
        for traced in self.processes.values_mut() {
            traced.try_refresh_maps(&mut self.files, &mut self.session);
        }
    }

    /// Retires a process that has ended or runs another program. The caller must have collected its samples before.
    /// They are stored together with the state of the process, because the PID may belong to another process from
    /// now on.
    pub(super) fn retire(&mut self, pid: u32) {
        self.collect_thinned(Some(pid));
        if let Some(traced) = self.processes.remove(&pid) {
            // The queue may still hold arrivals that the registry published before the process ended.
            if let (Some(arrivals), Some(target)) = (&mut self.arrivals, traced.target()) {
                arrivals.refuse(target);
            }
            self.about.lost_code += self.session.lost(pid.into());
            self.sampled.retire(traced);
        }
        if let Some(cost) = self.session.costs().and_then(|costs| costs.take_last(pid.into())) {
            self.tenants.charge_walks(pid, cost.ns);
            self.sink.cost(cost);
        }
        if self.tenants.leaves_out_metadata(pid) {
            self.tenants.leave_out_metadata(pid, session::left_out(&self.session, pid.into()));
        }
        self.session.forget(pid.into());
        if let Some(waits) = &mut self.waits {
            waits.forget(&self.session, pid);
        }
    }

    /// Notices processes that have ended, run another program or have become JVMs. Processes that run another program
    /// are noticed only if `closely` is true, because that check takes more system calls.
    pub(super) fn update_processes(&mut self, closely: bool) -> Result<()> {
        let fate = |traced: &Traced| traced.fate_if(closely);
        let fates: Vec<_> = self.processes.iter().map(|(pid, p)| (*pid, fate(p))).collect();
        if fates.iter().any(|(_, fate)| *fate != Fate::Alive) {
            self.collect()?;
        }
        for (pid, fate) in fates {
            let is_named = self.processes.get(&pid).is_some_and(Traced::is_named);
            match fate {
                Fate::Alive => {}
                Fate::Ended => {
                    if is_named {
                        self.options.pace.log_progress(&format!("process {pid} has ended"));
                    }
                    self.retire(pid);
                }
                // For a command that we have started, this is normal: the child that we forked executes the
                // command, and a script may then execute `java`. So the process may still become a JVM.
                Fate::Execed => {
                    if let Ok(process) = Process::open(Pid(pid)) {
                        if is_named {
                            let line = format!("process {pid} runs another program now");
                            self.options.pace.log_progress(&line);
                        }
                        self.retire(pid);
                        let future = Traced::future_jvm(process, &mut self.files);
                        self.add(future)?;
                    }
                }
            }
        }
        // If the registry finds every JVM, it also reports processes that have become JVMs.
        if !self.options.finds_jvms() {
            let found = self.processes.values().filter_map(Traced::find_jvm);
            for arrival in found.collect::<Vec<_>>() {
                self.become_jvm(arrival.clone())?;
                Arrivals::read_again(&mut self.arrivals, arrival, &mut self.session)?;
            }
        }
        Ok(())
    }

    /// Replaces the state of a process that has become a JVM, and attaches to its probes and events.
    fn become_jvm(&mut self, arrival: Arrival) -> Result<()> {
        let pid = arrival.target.pid().0;
        let Some(mut traced) = self.processes.remove(&pid) else { return Ok(()) };
        traced.become_jvm(arrival, &mut self.files);
        self.follow(&mut traced);
        let attached = self.attach_events(&mut traced);
        self.processes.insert(pid, traced);
        attached
    }

    /// Processes the arrivals of the registry: adds JVMs that are new, and updates those that were read again. Returns
    /// whether there was any arrival.
    pub(super) fn take_arrivals(&mut self) -> Result<bool> {
        let arrivals = self.arrivals.as_mut().map(Arrivals::take).unwrap_or_default();
        let is_any = !arrivals.is_empty();
        for arrival in arrivals {
            let pid = arrival.target.pid();
            if let Some(traced) = self.processes.get_mut(&pid.0) {
                if traced.update(&arrival) {
                    continue;
                }
                if traced.may_become_jvm() {
                    self.become_jvm(arrival)?;
                    continue;
                }
                // The previous process of this PID has ended, or runs another program.
                self.update_processes(true)?;
            }
            let target = Arc::clone(&arrival.target);
            let traced = Traced::jvm(arrival, &mut self.files);
            if let Err(error) = self.add(traced) {
                log::warn!("not profiling process {pid}: {error}");
                self.arrivals.iter_mut().for_each(|arrivals| arrivals.refuse(&target));
            }
        }
        Ok(is_any)
    }
}

//! The processes that are profiled, as they come, become JVMs, and end.

use std::sync::Arc;

use super::{Sink, Taker};
use crate::{
    Pid, Result,
    bpf::session::Attach,
    follow::{Arrival, Arrivals},
    own::{Pace, note, note_once},
    process::{Fate, Process},
    take::samples::{
        StackWalk, SymbolSource,
        asleep::{self, Found},
        events::attach,
        session,
        traced::Traced,
    },
};

impl<S: Sink> Taker<S> {
    pub(super) fn add(&mut self, mut traced: Traced) -> Result<()> {
        let pid = traced.pid();
        if !self.processes.contains_key(&pid.0) {
            session::add_target(&self.session, pid.0.into())?;
            if let Some(costs) = self.session.costs() {
                costs.add(pid.0.into());
            }
            if self.options.pace == Pace::Calm {
                self.tenants.add(pid.0);
                self.limit();
            }
            if let Some(waits) = &mut self.waits {
                waits.add(pid.0);
            }
        }
        // It may have ended already: then this is said when its fate is seen.
        traced.try_refresh_maps(&mut self.files, &mut self.session);
        self.follow(&mut traced);
        let attached = self.attach_events(&mut traced);
        self.processes.insert(pid.0, traced);
        attached?;
        self.welcome(pid.0);
        Ok(())
    }

    /// What was sampled of a process before it was known is a part of its profile.
    pub(super) fn welcome(&mut self, pid: u32) {
        let (samples, labels) = self.newcomers.take(pid);
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
            let line = format!("what process {pid} compiles meanwhile is not followed");
            note_once(&line, &error.to_string());
        }
    }

    /// Attaches to the events in a process's files. One that a named process does not have is an
    /// error, unless that may be; of all others a line says so.
    fn attach_events(&mut self, traced: &mut Traced) -> Result<()> {
        let shared = self.shared.is_some().then_some(&mut self.shared_events);
        let missing = traced.attach_events(&self.options.events, &mut self.session, shared);
        let pid = traced.pid();
        for (number, error) in missing {
            // What is to come may have it.
            if traced.may_become_jvm() {
                continue;
            }
            if self.options.may_ask && !self.options.skip_missing {
                return Err(error);
            }
            note(&format!(
                "process {pid}: {}",
                attach::missing(&self.options.events[number], &error)
            ));
        }
        Ok(())
    }

    /// Looks for events that were not found, in files that were mapped since.
    pub(super) fn look_for_events(&mut self) {
        let mut shared = self.shared.is_some().then_some(&mut self.shared_events);
        for traced in self.processes.values_mut() {
            traced.attach_events(&self.options.events, &mut self.session, shared.as_deref_mut());
        }
    }

    pub(super) fn tell_walker(&mut self) -> Result<()> {
        // Beside other JVMs, one that cannot be read is no reason to stop.
        let may_fail = self.options.walk == StackWalk::Auto || self.options.finds_jvms();
        for traced in self.processes.values_mut() {
            match traced.tell_walker(&self.options, &mut self.files, &mut self.session) {
                Ok(()) => {}
                Err(_) if traced.fate() != Fate::Alive => {}
                Err(error) if may_fail => {
                    let pid = traced.pid();
                    note(&format!("stacks of process {pid} are walked by frame pointers: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        self.find_sleepers()
    }

    /// Finds out where threads sleep that were not seen to go, of JVMs that are new to the walker.
    pub(super) fn find_sleepers(&mut self) -> Result<()> {
        if self.waits.is_none() {
            return Ok(());
        }
        let jvms = self.processes.iter_mut();
        let jvms: Vec<_> =
            jvms.filter_map(|(&pid, traced)| Some((pid, traced.first_layout()?))).collect();
        if jvms.is_empty() {
            return Ok(());
        }
        for Found { thread, place, stack } in asleep::find(&mut self.session, &jvms)? {
            if let Some(waits) = &mut self.waits {
                waits.found(thread, place);
            }
            self.keep_stack(place.user, stack);
        }
        Ok(())
    }

    pub(super) fn get_maps(&mut self) -> Result<()> {
        let may_fail = self.options.symbols == SymbolSource::Auto || self.options.finds_jvms();
        for traced in self.processes.values_mut() {
            match traced.get_map(&self.options, &self.session, &mut self.code_names) {
                Ok(_) => {}
                Err(_) if traced.fate() != Fate::Alive => {}
                Err(error) if may_fail => {
                    let pid = traced.pid();
                    note(&format!(
                        "process {pid}: methods compiled before the profile have no names: {error}"
                    ));
                    self.about.unnamed.push(pid);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Looks at the mappings of all processes.
    pub(super) fn refresh_maps(&mut self) {
        for traced in self.processes.values_mut() {
            traced.try_refresh_maps(&mut self.files, &mut self.session);
        }
    }

    /// Puts aside a process that is no more what it was, with all of its samples: what comes
    /// under its number from now on is another one's. Its samples have been collected.
    pub(super) fn retire(&mut self, pid: u32) {
        self.collect_thinned(Some(pid));
        if let Some(traced) = self.processes.remove(&pid) {
            // The queue may still hold what the registry published before the process ended.
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
        if self.tenants.leaves_out_code(pid) {
            self.tenants.leave_out_code(pid, session::left_out(&self.session, pid.into()));
        }
        self.session.forget(pid.into());
        if let Some(waits) = &mut self.waits {
            waits.forget(&self.session, pid);
        }
    }

    /// Notices processes that ended, run another program or became JVMs.
    /// Of those that run another program only if it is to look `closely`.
    pub(super) fn follow_changes(&mut self, closely: bool) -> Result<()> {
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
                        self.options.pace.tell(&format!("process {pid} has ended"));
                    }
                    self.retire(pid);
                }
                // As the command that was started does when it becomes a JVM.
                Fate::Execed => {
                    if let Ok(process) = Process::open(Pid(pid)) {
                        if is_named {
                            let line = format!("process {pid} runs another program now");
                            self.options.pace.tell(&line);
                        }
                        self.retire(pid);
                        let future = Traced::future_jvm(process, &mut self.files);
                        self.add(future)?;
                    }
                }
            }
        }
        // Where all JVMs are found, these are, too.
        if !self.options.finds_jvms() {
            let found = self.processes.values().filter_map(Traced::find_jvm);
            for arrival in found.collect::<Vec<_>>() {
                self.become_jvm(arrival.clone())?;
                Arrivals::read_again(&mut self.arrivals, arrival, &mut self.session)?;
            }
        }
        Ok(())
    }

    /// A process that is profiled has become a JVM.
    fn become_jvm(&mut self, arrival: Arrival) -> Result<()> {
        let pid = arrival.target.pid().0;
        let Some(mut traced) = self.processes.remove(&pid) else { return Ok(()) };
        traced.become_jvm(arrival, &mut self.files);
        self.follow(&mut traced);
        let attached = self.attach_events(&mut traced);
        self.processes.insert(pid, traced);
        attached
    }

    /// Adds JVMs that are new, and takes what the others tell by now. Returns whether there was anything.
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
                // It has ended, or runs another program.
                self.follow_changes(true)?;
            }
            let target = Arc::clone(&arrival.target);
            let traced = Traced::jvm(arrival, &mut self.files);
            if let Err(error) = self.add(traced) {
                note(&format!("process {pid} is not profiled: {error}"));
                self.arrivals.iter_mut().for_each(|arrivals| arrivals.refuse(&target));
            }
        }
        Ok(is_any)
    }
}

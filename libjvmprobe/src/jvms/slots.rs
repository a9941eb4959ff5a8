//! JVM slots: limits the number of JVMs followed at once, and shares it fairly among tenants.
//!
//! Each followed JVM takes descriptors, entries of BPF maps and memory. If all slots are taken, a JVM of a tenant that has
//! few gets the slot of a JVM of the tenant that has the most ([`FairSlots`]). The JVM that loses its slot then counts as
//! ended ([`Process::abandon`]), so all tracers detach from it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use crate::{
    Pid,
    process::{Process, cgroup},
    sys::fair_slots::{Admission, FairSlots},
};

/// Maximum number of refused JVMs remembered until [`Slots::take_refused`] counts them.
const MAX_REFUSED: usize = 10_000;

/// JVM slots of this process, shared by all registries.
#[derive(Clone, Debug)]
pub struct Slots(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    slots: FairSlots<Pid>,
    /// Process of each holder.
    processes: HashMap<Pid, Weak<Process>>,
    /// Start time and tenant of each process that was refused or lost its slot since the last count.
    refused: HashMap<Pid, (u64, Arc<str>)>,
}

impl Slots {
    /// Makes slots for at most `max` JVMs.
    pub fn new(max: usize) -> Self {
        let slots = FairSlots::new(max);
        Self(Arc::new(Mutex::new(State {
            slots,
            processes: HashMap::new(),
            refused: HashMap::new(),
        })))
    }

    /// Gives a process a slot. Returns whether it has one, from this call or an earlier one.
    pub(crate) fn admit(&self, process: &Arc<Process>) -> bool {
        let tenant = cgroup::tenant_of(process.pid);
        self.lock().admit(process, &tenant)
    }

    /// Frees the slot of a process, if it holds one.
    pub(crate) fn release(&self, pid: Pid) {
        self.lock().release(pid);
    }

    /// Returns the number of JVMs of each tenant that were refused or lost their slots since the last call, each counted
    /// once.
    pub fn take_refused(&self) -> BTreeMap<Arc<str>, u64> {
        let mut counts = BTreeMap::new();
        for (_, tenant) in std::mem::take(&mut self.lock().refused).into_values() {
            *counts.entry(tenant).or_default() += 1;
        }
        counts
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn admit(&mut self, process: &Arc<Process>, tenant: &Arc<str>) -> bool {
        let pid = process.pid;
        let holder = self.processes.get(&pid).and_then(Weak::upgrade);
        if holder.is_some_and(|holder| holder.start_ticks == process.start_ticks) {
            return true;
        }
        self.release(pid);
        match self.slots.admit(pid, tenant) {
            Admission::Granted => {}
            Admission::Replaced(other) => self.abandon(other),
            Admission::Refused => {
                self.refuse(process, Arc::clone(tenant));
                return false;
            }
        }
        self.processes.insert(pid, Arc::downgrade(process));
        true
    }

    /// Ends the tracing of a process that has lost its slot.
    fn abandon(&mut self, pid: Pid) {
        if let Some(process) = self.processes.remove(&pid).and_then(|process| process.upgrade()) {
            process.abandon();
            let tenant = cgroup::tenant_of(pid);
            self.refuse(&process, tenant);
        }
    }

    fn refuse(&mut self, process: &Process, tenant: Arc<str>) {
        if self.refused.len() < MAX_REFUSED {
            self.refused.insert(process.pid, (process.start_ticks, tenant));
        }
    }

    fn release(&mut self, pid: Pid) {
        self.slots.release(&pid);
        self.processes.remove(&pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Fate;

    fn own() -> Arc<Process> {
        Arc::new(Process::open(Pid(std::process::id())).unwrap())
    }

    #[test]
    fn repeated_admission_of_a_process_uses_one_slot() {
        let (slots, own) = (Slots::new(1), own());
        assert!(slots.admit(&own) && slots.clone().admit(&own));
        assert!(slots.take_refused().is_empty());
        slots.release(own.pid);
        assert!(slots.lock().processes.is_empty() && !slots.lock().slots.is_full());
    }

    #[test]
    fn jvm_that_loses_its_slot_counts_as_ended_and_is_counted() {
        let (slots, own) = (Slots::new(2), own());
        let child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let open = || Arc::new(Process::open(Pid(child.id())).unwrap());
        let (first, mut child) = (open(), child);
        let [noisy, quiet]: [Arc<str>; 2] = ["noisy".into(), "quiet".into()];
        // Another holder of the same tenant, which came first.
        slots.lock().slots.admit(Pid(0), &noisy);
        assert!(slots.lock().admit(&first, &noisy));
        assert!(slots.lock().admit(&own, &quiet));
        assert_eq!((first.fate(), own.fate()), (Fate::Ended, Fate::Alive));
        assert_eq!(slots.take_refused().values().sum::<u64>(), 1);
        // It is found again, and is refused.
        let again = Arc::new(Process::open(first.pid).unwrap());
        assert!(!slots.lock().admit(&again, &noisy));
        assert_eq!(again.fate(), Fate::Alive);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

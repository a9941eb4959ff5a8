//! JVM slots: limits the number of JVMs followed at once, and shares it fairly among control groups.
//!
//! Each followed JVM takes descriptors, entries of BPF maps and memory. A tenant (a pod, a container or a
//! systemd unit) may hold at most half of the slots that the other tenants leave free, rounded up. So a
//! tenant that starts thousands of JVMs leaves slots for other tenants, and no followed JVM is dropped in
//! favour of another one.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    Pid,
    process::{Process, cgroup},
};

/// Maximum number of refused JVMs remembered until [`Slots::take_refused`] counts them.
const MAX_REFUSED: usize = 10_000;

/// JVM slots of this process, shared by all registries.
#[derive(Clone, Debug)]
pub struct Slots {
    max: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Start time (in ticks since boot) and tenant of each process that holds a slot.
    holders: HashMap<Pid, (u64, Arc<str>)>,
    /// Number of slots that each tenant holds; tenants without slots have no entry.
    held: BTreeMap<Arc<str>, usize>,
    /// Start time and tenant of each process that was refused since the last count.
    refused: HashMap<Pid, (u64, Arc<str>)>,
}

impl Slots {
    /// Makes slots for at most `max` JVMs.
    pub fn new(max: usize) -> Self {
        Self { max, state: Arc::default() }
    }

    /// Gives a process a slot. Returns whether it has one, from this call or an earlier one.
    pub(crate) fn admit(&self, process: &Process) -> bool {
        let mut state = self.lock();
        if state.holders.get(&process.pid).is_some_and(|(start, _)| *start == process.start_ticks) {
            return true;
        }
        let tenant = cgroup::tenant_of(process.pid);
        state.release(process.pid);
        state.admit(self.max, process.pid, process.start_ticks, tenant)
    }

    /// Frees the slot of a process, if it holds one.
    pub(crate) fn release(&self, pid: Pid) {
        self.lock().release(pid);
    }

    /// Returns the number of JVMs of each tenant that were refused since the last call, each counted once.
    pub fn take_refused(&self) -> BTreeMap<Arc<str>, u64> {
        let mut counts = BTreeMap::new();
        for (_, tenant) in std::mem::take(&mut self.lock().refused).into_values() {
            *counts.entry(tenant).or_default() += 1;
        }
        counts
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn admit(&mut self, max: usize, pid: Pid, start: u64, tenant: Arc<str>) -> bool {
        let own = self.held.get(&tenant).copied().unwrap_or(0);
        let others = self.holders.len() - own;
        // Half of the slots is rounded up, so that a tenant without a slot can get the last one.
        if own >= max.saturating_sub(others).div_ceil(2) {
            if self.refused.len() < MAX_REFUSED {
                self.refused.insert(pid, (start, tenant));
            }
            return false;
        }
        *self.held.entry(Arc::clone(&tenant)).or_default() += 1;
        self.holders.insert(pid, (start, tenant));
        true
    }

    fn release(&mut self, pid: Pid) {
        let Some((_, tenant)) = self.holders.remove(&pid) else { return };
        if let Some(held) = self.held.get_mut(&tenant) {
            *held -= 1;
        }
        self.held.retain(|_, held| *held > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(state: &mut State, pid: u32, tenant: &str) -> bool {
        state.admit(16, Pid(pid), 1, tenant.into())
    }

    #[test]
    fn tenant_holds_at_most_half_the_remaining_slots() {
        let mut state = State::default();
        let noisy = (1..=100).filter(|pid| admit(&mut state, *pid, "noisy")).count();
        assert_eq!((noisy, state.refused.len()), (8, 92));
        // A tenant that starts later gets its share, too.
        let late = (200..300).filter(|pid| admit(&mut state, *pid, "late")).count();
        assert_eq!(late, 4);
        for (pid, tenant) in [(300, "c"), (301, "d"), (302, "e")] {
            assert!(admit(&mut state, pid, tenant), "{tenant}");
        }
        assert!(!admit(&mut state, 101, "noisy"));
    }

    #[test]
    fn slots_of_ended_processes_are_released() {
        let mut state = State::default();
        assert!((1..=8).all(|pid| admit(&mut state, pid, "a")) && !admit(&mut state, 9, "a"));
        state.release(Pid(3));
        state.release(Pid(3));
        assert!(admit(&mut state, 9, "a") && !admit(&mut state, 10, "a"));
        (1..=10).for_each(|pid| state.release(Pid(pid)));
        assert!(state.held.is_empty() && state.holders.is_empty());
    }

    #[test]
    fn repeated_admission_of_a_process_uses_one_slot() {
        let slots = Slots::new(2);
        let own = Process::open(Pid(std::process::id())).unwrap();
        assert!(slots.admit(&own) && slots.clone().admit(&own));
        assert_eq!(slots.lock().holders.len(), 1);
        assert!(slots.take_refused().is_empty());
    }
}

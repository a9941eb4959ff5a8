//! Limits on the waits that are recorded one by one, for each JVM, and shares of tenants in the CPU time for that.
//!
//! The kernel side enforces the limits, and adds up the waits that it leaves out (bpf/wait_limits.bpf.h). Recorded waits
//! carry these sums as [`Others`](super::Others).

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use libbpf_rs::{MapCore, MapFlags};

use crate::{
    bpf::{
        cost::Cost,
        records::{bytes, copy},
    },
    sys::limited,
    trace::{
        tenants::{Limited, Tenants, Work},
        waits::{
            event::{left_out, wait_limits},
            session::Session,
        },
    },
};

/// Assumed length of the first interval.
const FIRST_INTERVAL: Duration = Duration::from_secs(15);

/// Limits of all JVMs. Without a budget, there are none.
#[derive(Debug)]
pub(super) struct Limits {
    tenants: Tenants,
    has_budget: bool,
    /// The traced JVMs by PID.
    jvms: HashMap<u32, Member>,
    /// The JVM whose work is in progress.
    current: u32,
}

/// A JVM: its key, and the numbers of waits and of lists of threads that were left out so far.
#[derive(Debug)]
struct Member {
    key: u64,
    waits: u64,
    lists: u64,
}

impl Default for Limits {
    fn default() -> Self {
        let tenants = Tenants::new(FIRST_INTERVAL);
        Self { tenants, has_budget: false, jvms: HashMap::new(), current: 0 }
    }
}

impl Limits {
    /// Sets the CPU time for recording waits, for all tenants together, in millionths of a processor.
    pub(super) fn set_budget(&mut self, ppm: Arc<AtomicU64>) {
        self.tenants.set_budget(ppm);
        self.has_budget = true;
    }

    /// Adds a JVM.
    pub(super) fn add(&mut self, session: &Session, key: u64, pid: u32) {
        if !self.has_budget {
            return;
        }
        // If a map is full, the JVM has no limits.
        let maps = &session.skel.maps;
        let _ =
            maps.left_out_of.update(&key.to_ne_bytes(), bytes(&left_out::default()), MapFlags::ANY);
        set_limit(session, key, 0);
        self.jvms.insert(pid, Member { key, waits: 0, lists: 0 });
        self.tenants.add(pid);
        self.apply(session);
    }

    /// Counts the last waits of a JVM that were left out. The JVM is no longer traced.
    pub(super) fn remove(&mut self, session: &Session, pid: u32) {
        self.count_left_out(session, pid);
        self.jvms.remove(&pid);
    }

    /// Begins a section of work for JVMs.
    pub(super) fn begin_work(&mut self) {
        self.current = 0;
        self.tenants.begin_work();
    }

    /// Work for the waits of this JVM follows. Charges the work before it to its JVM, which is cheaper than a charge after
    /// each wait.
    pub(super) fn switch_to(&mut self, pid: u32) {
        if self.current != pid {
            self.tenants.charge(self.current, Work::Stacks);
            self.current = pid;
        }
    }

    /// Charges the work since the last charge to a JVM, as reading of its list of threads.
    pub(super) fn charge_list(&mut self, pid: u32) {
        self.tenants.charge(pid, Work::Metadata);
    }

    /// Returns whether a JVM's list of threads must not be read now. If so, counts the list.
    pub(super) fn leaves_out_list(&mut self, pid: u32) -> bool {
        let leaves_out = self.tenants.leaves_out_metadata(pid);
        if let Some(jvm) = self.jvms.get_mut(&pid).filter(|_| leaves_out) {
            jvm.lists += 1;
            self.tenants.leave_out_metadata(pid, jvm.lists);
        }
        leaves_out
    }

    /// Charges CPU time that recording waits took from a JVM.
    pub(super) fn charge_cost(&mut self, cost: &Cost) {
        self.tenants.charge_walks(cost.pid, cost.run_ns);
    }

    /// Passes the changed limits to the kernel side.
    pub(super) fn apply(&mut self, session: &Session) {
        for (pid, limit) in self.tenants.take_changes() {
            if let Some(jvm) = self.jvms.get(&pid) {
                set_limit(session, jvm.key, limit.unwalked);
            }
        }
    }

    /// Ends an interval: counts what tenants lost, and shares the budget anew.
    pub(super) fn next_interval(&mut self, session: &Session) {
        let pids: Vec<_> = self.jvms.keys().copied().collect();
        pids.into_iter().for_each(|pid| self.count_left_out(session, pid));
        let jvms = &self.jvms;
        let limited = self.tenants.next_interval(|pid| jvms.contains_key(&pid));
        for Limited { tenant, walks, metadata } in limited {
            limited::add("waits", &tenant, walks);
            limited::add("thread-lists", &tenant, metadata);
        }
        self.apply(session);
    }

    fn count_left_out(&mut self, session: &Session, pid: u32) {
        let Some(jvm) = self.jvms.get_mut(&pid) else { return };
        let entry = session.skel.maps.left_out_of.lookup(&jvm.key.to_ne_bytes(), MapFlags::ANY);
        let entry = entry.ok().flatten().and_then(|bytes| copy::<left_out>(&bytes));
        let Some(left_out { waits, .. }) = entry else { return };
        let new = waits.saturating_sub(std::mem::replace(&mut jvm.waits, waits));
        self.tenants.leave_out_walks(pid, new);
    }
}

fn set_limit(session: &Session, key: u64, unrecorded: u32) {
    let limits = wait_limits { unrecorded, ..Default::default() };
    // If the map is full, the JVM has no limit.
    let _ = session.skel.maps.limits_of.update(&key.to_ne_bytes(), bytes(&limits), MapFlags::ANY);
}

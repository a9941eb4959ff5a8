//! Finds processes that have mapped libjvm.so, on the whole host or among the descendants of one command.
//!
//! The kernel reports each mapping of libjvm.so ([`super::mappings`]). Every 30 seconds, and whenever events
//! were lost, a scan of all processes finds the mappings that were not reported. If this process cannot
//! receive the kernel's reports, the scan runs every 200 ms instead.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    Pid,
    jvms::{mappings::Mappings, slots::Slots},
    process::{Candidate, Process, cgroup, pid, scan::Scanner},
    sys::Pace,
};

/// Interval of scans of all processes if the kernel's reports of mappings cannot be received.
const SCAN_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of scans of all processes if the kernel's reports of mappings are received.
const RARE_SCAN_INTERVAL: Duration = Duration::from_secs(30);
/// Time after which a JVM that got no slot is examined again and may get one.
const RETRY: Duration = Duration::from_secs(30);

/// Period over which new processes are counted per tenant. The count stops at `MAX_STARTS_COUNTED`.
const START_RATE_PERIOD: Duration = Duration::from_secs(10);
const MAX_STARTS_COUNTED: usize = 300;

/// PIDs of processes that have mapped libjvm.so, and the number of mapping events lost.
#[derive(Debug)]
pub(super) struct Mapped {
    pids: Vec<Pid>,
    missed: u64,
}

/// Finds processes that have mapped libjvm.so, and returns each one once.
#[derive(Debug)]
pub(super) struct Finder {
    scanner: Scanner,
    mappings: Option<Mappings>,
    start_rates: StartRates,
    /// Processes to examine later, and the time at which each one is due: new processes of a tenant that
    /// starts many, and JVMs that got no slot.
    waiting: BTreeMap<Pid, Instant>,
    /// Number of processes that exited while they waited to be examined.
    exited_unexamined: u64,
    next_scan: Instant,
    /// Determines the minimum age at which a new process is examined.
    pace: Pace,
    /// Restricts the search to this process and its descendants.
    root: Option<Pid>,
    /// Slots, one for each followed JVM; `None` if their number is unlimited.
    slots: Option<Slots>,
}

impl Finder {
    /// Starts to search for existing and new processes. If `root` is given, only that process and its
    /// descendants are searched.
    pub(super) fn open(pace: Pace, root: Option<Pid>, slots: Option<Slots>) -> Self {
        let mappings = Mappings::open();
        match &mappings {
            Ok(_) => log::debug!("detecting new JVMs when they map libjvm.so"),
            Err(error) => log::debug!(
                "detecting new JVMs by scanning all processes every {} ms: {error}",
                SCAN_INTERVAL.as_millis()
            ),
        }
        Self {
            scanner: Scanner::new(),
            mappings: mappings.ok(),
            start_rates: StartRates::default(),
            waiting: BTreeMap::new(),
            exited_unexamined: 0,
            next_scan: Instant::now(),
            pace,
            root,
            slots,
        }
    }

    /// Returns the mappings that the kernel has reported since the last call.
    pub(super) fn mapped(&mut self) -> Mapped {
        let (pids, missed) = self.mappings.as_mut().map(Mappings::take).unwrap_or_default();
        Mapped { pids, missed }
    }

    /// Returns the processes in `mapped` that were examined before with a final result. They have mapped
    /// libjvm.so again.
    pub(super) fn already_found(&self, mapped: &Mapped) -> impl Iterator<Item = Pid> {
        mapped.pids.iter().copied().filter(|&pid| self.scanner.is_decided(pid))
    }

    /// Returns processes that have mapped libjvm.so and were not returned before. Scans all processes if events were
    /// lost or a scan is due.
    pub(super) fn find(&mut self, mapped: Mapped, now: Instant) -> Vec<Candidate> {
        let Mapped { pids, missed } = mapped;
        let mut found = Vec::new();
        for pid in self.queue_and_take_due(pids, now) {
            found.extend(self.scanner.examine(pid));
            if self.waiting.remove(&pid).is_some() && Process::open(pid).is_err() {
                self.exited_unexamined += 1;
            }
        }
        if missed > 0 {
            log::debug!("missed {missed} mappings: scanning all processes");
        }
        if missed > 0 || now >= self.next_scan {
            let waiting = &self.waiting;
            found.extend(self.scanner.scan_where(|pid| !waiting.contains_key(&pid)));
            let pause = if self.mappings.is_some() { RARE_SCAN_INTERVAL } else { SCAN_INTERVAL };
            self.next_scan = Instant::now() + pause;
        }
        for (pid, error) in self.scanner.take_refused() {
            log::debug!("ignoring process {pid}: {error}");
        }
        found.retain(|candidate| self.is_wanted(&candidate.process, now));
        found
    }

    /// Returns whether a process is within the search and gets a slot. A process that gets no slot is
    /// examined again after [`RETRY`].
    fn is_wanted(&mut self, process: &Arc<Process>, now: Instant) -> bool {
        let pid = process.pid;
        if self.root.is_some_and(|root| !descends(pid, root)) {
            return false;
        }
        let is_admitted = self.slots.as_ref().is_none_or(|slots| slots.admit(process));
        if !is_admitted {
            self.scanner.forget(pid);
            self.waiting.insert(pid, now + RETRY);
        }
        is_admitted
    }

    /// Queues new processes and returns those that are due. If few processes are starting, all are due at once.
    fn queue_and_take_due(&mut self, pids: Vec<Pid>, now: Instant) -> Vec<Pid> {
        self.start_rates.forget_before(now);
        let mut due = Vec::new();
        // A process that maps the library again is not new.
        for pid in pids.into_iter().filter(|&pid| !self.scanner.is_decided(pid)) {
            if self.waiting.contains_key(&pid) {
                continue;
            }
            match self.pace.min_age(self.start_rates.add(cgroup::tenant_of(pid), now)) {
                Duration::ZERO => due.push(pid),
                wait => drop(self.waiting.insert(pid, now + wait)),
            }
        }
        due.extend(self.waiting.iter().filter(|&(_, &until)| now >= until).map(|(&pid, _)| pid));
        due
    }

    /// Returns the number of processes that exited while they waited to be examined.
    pub(super) fn exited_unexamined(&self) -> u64 {
        self.exited_unexamined
    }

    /// Forgets a process that has ended or now runs another program, and releases its slot. The next process
    /// that maps libjvm.so under this PID counts as new.
    pub(super) fn forget(&mut self, pid: Pid) {
        self.scanner.forget(pid);
        if let Some(slots) = &self.slots {
            slots.release(pid);
        }
    }
}

/// Start times of each tenant's latest new processes. They are recorded per tenant, so that a tenant that
/// starts many processes delays only its own processes.
#[derive(Debug, Default)]
struct StartRates(HashMap<Arc<str>, VecDeque<Instant>>);

impl StartRates {
    /// Adds a process. Returns the number of processes that its tenant has started within
    /// [`START_RATE_PERIOD`], at most [`MAX_STARTS_COUNTED`].
    fn add(&mut self, tenant: Arc<str>, now: Instant) -> usize {
        let start_times = self.0.entry(tenant).or_default();
        start_times.push_back(now);
        if start_times.len() > MAX_STARTS_COUNTED {
            start_times.pop_front();
        }
        start_times.len()
    }

    /// Removes processes that were added more than [`START_RATE_PERIOD`] ago, and tenants that have none
    /// left.
    fn forget_before(&mut self, now: Instant) {
        self.0.retain(|_, start_times| {
            while start_times.front().is_some_and(|&at| now - at > START_RATE_PERIOD) {
                start_times.pop_front();
            }
            !start_times.is_empty()
        });
    }
}

/// Returns whether `pid` is `from` or one of its descendants.
fn descends(pid: Pid, from: Pid) -> bool {
    /// Maximum number of ancestors checked; process trees are not deeper in practice.
    const DEPTH: usize = 64;
    let mut next = Some(pid);
    for _ in 0..DEPTH {
        match next {
            None => return false,
            Some(pid) if pid == from => return true,
            Some(pid) => next = pid::parent(pid),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_processes_are_counted_per_tenant() {
        let (mut start_rates, now) = (StartRates::default(), Instant::now());
        for number in 1..=2 * MAX_STARTS_COUNTED {
            assert_eq!(start_rates.add("pod/many".into(), now), number.min(MAX_STARTS_COUNTED));
        }
        assert_eq!(start_rates.add("pod/other".into(), now), 1);
        start_rates.forget_before(now + START_RATE_PERIOD);
        assert_eq!(start_rates.add("pod/other".into(), now + START_RATE_PERIOD), 2);
        start_rates.forget_before(now + START_RATE_PERIOD + Duration::from_millis(1));
        assert_eq!(start_rates.0.len(), 1);
        assert_eq!(start_rates.add("pod/many".into(), now + START_RATE_PERIOD), 1);
    }

    #[test]
    fn child_descends_from_parent_but_not_vice_versa() {
        let own = Pid(std::process::id());
        let parent = pid::parent(own).unwrap();
        assert!(descends(own, own) && descends(own, parent));
        assert!(!descends(parent, own) && !descends(Pid(u32::MAX), own));
    }
}

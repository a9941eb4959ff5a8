//! Finds processes that have mapped libjvm.so, on the whole host or among the descendants of one command.
//!
//! The kernel reports each mapping of libjvm.so ([`super::mappings`]). Every 30 seconds, and soon after events
//! were lost, a scan of processes finds the mappings that were not reported. If this process cannot receive the
//! kernel's reports, the scan runs every 200 ms instead.
//!
//! A process that maps code in a loop makes the kernel lose events all the time, and a tenant may have thousands of
//! processes. In a daemon, the CPU time of scans is therefore limited and shared fairly among tenants
//! ([`Scanner::scan_where`]).

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    Error, Pid,
    jvms::{mappings::Mappings, slots::Slots},
    process::{Candidate, Process, cgroup, pid, scan::Scanner},
    sys::{Pace, limited},
};

/// Interval of scans of all processes if the kernel's reports of mappings cannot be received.
const SCAN_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of scans of all processes if the kernel's reports of mappings are received.
const RARE_SCAN_INTERVAL: Duration = Duration::from_secs(30);
/// Part of one processor's time that scans may take in a daemon, and minimum CPU time of one scan.
const SCAN_SHARE: f64 = 0.005;
const MIN_SCAN_TIME: Duration = Duration::from_millis(5);
/// Maximum number of processes that wait to be examined. Scans find the others.
const MAX_WAITING: usize = 10_000;
/// Maximum time that a process waits because other processes of its tenant wait.
const MAX_WAIT: Duration = Duration::from_secs(600);
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
    waiting: BTreeMap<Pid, Waiting>,
    min_age: MinAge,
    /// Number of processes that exited while they waited to be examined.
    exited_unexamined: u64,
    /// Begin of the last scan; `None` before the first one.
    last_scan: Option<Instant>,
    has_lost: bool,
    /// Determines the minimum age at which a new process is examined.
    pace: Pace,
    /// Restricts the search to this process and its descendants.
    root: Option<Pid>,
    /// Slots, one for each followed JVM; `None` if their number is unlimited.
    slots: Option<Slots>,
}

/// A process that is examined later.
#[derive(Debug)]
struct Waiting {
    due: Instant,
    tenant: Arc<str>,
}

/// Age below which new JVMs are not followed, in milliseconds; 0 normally. It applies to tenants that have started
/// several JVMs in the last seconds and, from `MIN_AGE_FOR_ALL` on, to all tenants. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct MinAge(Arc<AtomicU64>);

/// Number of starts within [`START_RATE_PERIOD`] from which on a [`MinAge`] applies to a tenant.
const SEVERAL_STARTS: usize = 2;
/// Minimum age that applies to all tenants, however few JVMs they start.
const MIN_AGE_FOR_ALL: Duration = Duration::from_secs(20);

impl MinAge {
    /// Sets the minimum age from now on.
    pub fn set(&self, age: Duration) {
        self.0.store(u64::try_from(age.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn for_starts(&self, started_recently: usize) -> Duration {
        let age = Duration::from_millis(self.0.load(Ordering::Relaxed));
        let applies = started_recently >= SEVERAL_STARTS || age >= MIN_AGE_FOR_ALL;
        if applies { age } else { Duration::ZERO }
    }
}

impl Finder {
    /// Starts to search for existing and new processes. If `root` is given, only that process and its
    /// descendants are searched.
    pub(super) fn open(
        pace: Pace,
        root: Option<Pid>,
        slots: Option<Slots>,
        min_age: MinAge,
    ) -> Self {
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
            min_age,
            exited_unexamined: 0,
            last_scan: None,
            has_lost: false,
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

    /// Returns processes that have mapped libjvm.so and were not returned before. Scans processes if a scan is due.
    pub(super) fn find(&mut self, mapped: Mapped, now: Instant) -> Vec<Candidate> {
        let Mapped { pids, missed } = mapped;
        let mut found = Vec::new();
        for pid in self.queue_and_take_due(pids, now) {
            found.extend(self.scanner.examine(pid));
            if let Some(Waiting { tenant, .. }) = self.waiting.remove(&pid)
                && Process::open(pid)
                    .is_err_and(|error| !matches!(error, Error::FirstThreadEnded { .. }))
            {
                self.exited_unexamined += 1;
                limited::add("short-lived", &tenant, 1);
            }
        }
        if missed > 0 {
            log::debug!("missed {missed} mappings");
        }
        if missed > 0 || self.mappings.is_none() {
            self.scanner.note_loss();
            self.has_lost = true;
        }
        if let Some(limit) = self.due_scan(now) {
            let waiting = &self.waiting;
            found.extend(self.scanner.scan_where(limit, |pid| !waiting.contains_key(&pid)));
            (self.last_scan, self.has_lost) = (Some(now), false);
        }
        for (pid, error) in self.scanner.take_refused() {
            log::debug!("ignoring process {pid}: {error}");
        }
        found.retain(|candidate| self.is_wanted(&candidate.process, now));
        found
    }

    /// Returns the limit on the CPU time of a scan, if a scan is due. The first scan is not limited.
    fn due_scan(&self, now: Instant) -> Option<Option<Duration>> {
        let Some(last) = self.last_scan else { return Some(None) };
        let interval = match (&self.mappings, self.has_lost) {
            (None, _) => SCAN_INTERVAL,
            (Some(_), true) => self.pace.scan_interval_after_loss(),
            (Some(_), false) => RARE_SCAN_INTERVAL,
        };
        let elapsed = now.saturating_duration_since(last);
        let limit = elapsed.mul_f64(SCAN_SHARE).max(MIN_SCAN_TIME);
        (elapsed >= interval).then_some((self.pace == Pace::Calm).then_some(limit))
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
            self.wait_until(now + RETRY, pid, cgroup::tenant_of(pid));
        }
        is_admitted
    }

    /// Queues new processes and returns those that are due. If few processes are starting, all are due at once.
    fn queue_and_take_due(&mut self, pids: Vec<Pid>, now: Instant) -> Vec<Pid> {
        self.start_rates.forget_before(now);
        let mut due = Vec::new();
        // A process that maps the library again is not new.
        for pid in pids {
            if self.scanner.is_decided(pid) || self.waiting.contains_key(&pid) {
                continue;
            }
            let tenant = cgroup::tenant_of(pid);
            let started = self.start_rates.add(Arc::clone(&tenant), now);
            let min_age = self.min_age.for_starts(started);
            let wait = self.pace.min_age(started).max(min_age).max(self.scanner.backoff(pid));
            if wait.is_zero() {
                due.push(pid);
            } else if min_age.is_zero() {
                self.wait_until(now + wait, pid, tenant);
            } else {
                let at = self.start_rates.space(Arc::clone(&tenant), wait, min_age / 2, now);
                self.wait_until(at, pid, tenant);
            }
        }
        due.extend(self.waiting.iter().filter(|(_, one)| now >= one.due).map(|(&pid, _)| pid));
        due
    }

    fn wait_until(&mut self, due: Instant, pid: Pid, tenant: Arc<str>) {
        if self.waiting.len() < MAX_WAITING || self.waiting.contains_key(&pid) {
            self.waiting.insert(pid, Waiting { due, tenant });
        }
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
struct StartRates {
    start_times: HashMap<Arc<str>, VecDeque<Instant>>,
    /// Time at which the last waiting process of each tenant is due.
    last_due: HashMap<Arc<str>, Instant>,
}

impl StartRates {
    /// Adds a process. Returns the number of processes that its tenant has started within
    /// [`START_RATE_PERIOD`], at most [`MAX_STARTS_COUNTED`].
    fn add(&mut self, tenant: Arc<str>, now: Instant) -> usize {
        let start_times = self.start_times.entry(tenant).or_default();
        start_times.push_back(now);
        if start_times.len() > MAX_STARTS_COUNTED {
            start_times.pop_front();
        }
        start_times.len()
    }

    /// Returns the time at which a process is due that must wait. The processes of a tenant are due one after another, at
    /// this interval: attaching to JVMs that live longer would otherwise cost as much as attaching to all.
    fn space(
        &mut self,
        tenant: Arc<str>,
        wait: Duration,
        interval: Duration,
        now: Instant,
    ) -> Instant {
        let last = self.last_due.get(&tenant).copied();
        let after_last = last.map_or(now, |last| (last + interval).min(now + MAX_WAIT));
        let due = after_last.max(now + wait);
        self.last_due.insert(tenant, due);
        due
    }

    /// Removes processes that were added more than [`START_RATE_PERIOD`] ago, and tenants that have none
    /// left.
    fn forget_before(&mut self, now: Instant) {
        self.last_due.retain(|_, due| *due > now);
        self.start_times.retain(|_, start_times| {
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
        assert_eq!(start_rates.start_times.len(), 1);
        assert_eq!(start_rates.add("pod/many".into(), now + START_RATE_PERIOD), 1);
    }

    #[test]
    fn waiting_processes_of_a_tenant_are_due_one_after_another() {
        let (mut start_rates, now) = (StartRates::default(), Instant::now());
        let wait = Duration::from_secs(8);
        let mut due = |tenant: &str, now| start_rates.space(tenant.into(), wait, wait / 2, now);
        assert_eq!([(); 3].map(|()| due("many", now)), [8, 12, 16].map(|s| now + wait / 8 * s));
        assert_eq!(due("few", now), now + wait);
        assert_eq!(due("many", now + 2 * wait), now + 3 * wait);
    }

    #[test]
    fn minimum_age_applies_to_tenants_that_start_several_jvms_and_finally_to_all() {
        let min_age = MinAge::default();
        let seconds = Duration::from_secs;
        assert_eq!(min_age.for_starts(100), Duration::ZERO);
        min_age.clone().set(seconds(4));
        assert_eq!([1, 2].map(|started| min_age.for_starts(started)), [seconds(0), seconds(4)]);
        min_age.set(seconds(30));
        assert_eq!(min_age.for_starts(1), seconds(30));
    }

    #[test]
    fn scans_after_lost_events_are_rare_and_limited() {
        let mut finder = Finder::open(Pace::Calm, None, None, MinAge::default());
        let now = Instant::now();
        if finder.mappings.is_none() {
            return;
        }
        assert_eq!(finder.due_scan(now), Some(None));
        finder.last_scan = Some(now);
        let after = |finder: &Finder, ms| finder.due_scan(now + Duration::from_millis(ms));
        assert_eq!(after(&finder, 29_999), None);
        finder.has_lost = true;
        assert_eq!(after(&finder, 4_999), None);
        assert_eq!(after(&finder, 5_000), Some(Some(Duration::from_millis(25))));
    }

    #[test]
    fn child_descends_from_parent_but_not_vice_versa() {
        let own = Pid(std::process::id());
        let parent = pid::parent(own).unwrap();
        assert!(descends(own, own) && descends(own, parent));
        assert!(!descends(parent, own) && !descends(Pid(u32::MAX), own));
    }
}

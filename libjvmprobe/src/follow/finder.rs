//! Processes that have mapped libjvm.so: those of this machine or of a command, and those that come later.
//!
//! The kernel tells of libjvm.so when it is mapped ([`super::mappings`]). What it does not
//! tell, or told and nobody had the time to read, is found by looking at all processes now
//! and then; where it does not tell at all, often.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::{Duration, Instant},
};

use crate::{
    Pid,
    follow::{mappings::Mappings, slots::Slots},
    own::{Pace, note},
    process::{Process, Target, cgroup, pid, scan::Scanner},
};

/// How often to look at all processes where the kernel tells nothing.
const SCAN: Duration = Duration::from_millis(200);
/// How often where it tells.
const RARE_SCAN: Duration = Duration::from_secs(30);
/// How long to wait before a JVM that got no slot is tried again.
const RETRY: Duration = Duration::from_secs(30);

/// It is a crowd if many come within this time; and no larger one is told apart.
const CROWD: Duration = Duration::from_secs(10);
const LARGEST_CROWD: usize = 300;

/// Processes that have mapped libjvm.so, and how many more there may be.
#[derive(Debug)]
pub(super) struct Mapped {
    pids: Vec<Pid>,
    missed: u64,
}

/// Finds processes that have mapped libjvm.so, each once.
#[derive(Debug)]
pub(super) struct Finder {
    scanner: Scanner,
    mappings: Option<Mappings>,
    crowds: Crowds,
    /// Those that are not looked at yet, for many come; and until when.
    waiting: BTreeMap<Pid, Instant>,
    /// How many ended before they were looked at.
    left_out: u64,
    next_scan: Instant,
    verbose: bool,
    /// How often to read what the kernel has told.
    pace: Pace,
    /// Finds this process and its descendants alone.
    of: Option<Pid>,
    /// Slots that each needs to be followed; `None` for any number.
    slots: Option<Slots>,
}

impl Finder {
    /// Finds those that there are at once, and from here on those that come: all, or those that a process and its
    /// descendants become. `verbose` says what is ignored, and how new ones are found.
    pub(super) fn open(pace: Pace, of: Option<Pid>, slots: Option<Slots>, verbose: bool) -> Self {
        let mappings = Mappings::open();
        if verbose {
            note(&match &mappings {
                Ok(_) => "new JVMs are found as they map libjvm.so".to_owned(),
                Err(error) => format!(
                    "new JVMs are found by looking at all processes every {} ms: {error}",
                    SCAN.as_millis()
                ),
            });
        }
        Self {
            scanner: Scanner::new(),
            mappings: mappings.ok(),
            crowds: Crowds::default(),
            waiting: BTreeMap::new(),
            left_out: 0,
            next_scan: Instant::now(),
            verbose,
            pace,
            of,
            slots,
        }
    }

    /// Returns the mappings that the kernel has reported since the last call.
    pub(super) fn mapped(&mut self) -> Mapped {
        let (pids, missed) = self.mappings.as_mut().map(Mappings::take).unwrap_or_default();
        Mapped { pids, missed }
    }

    /// Processes that have mapped libjvm.so again.
    pub(super) fn seen_of(&self, mapped: &Mapped) -> impl Iterator<Item = Pid> {
        mapped.pids.iter().copied().filter(|&pid| self.scanner.has_seen(pid))
    }

    /// Processes that have mapped libjvm.so, by what the kernel has told, and were not returned before.
    pub(super) fn find(&mut self, mapped: Mapped, now: Instant) -> Vec<Target> {
        let Mapped { pids, missed } = mapped;
        let mut found = Vec::new();
        for pid in self.let_wait(pids, now) {
            found.extend(self.scanner.look(pid));
            if self.waiting.remove(&pid).is_some() && Process::open(pid).is_err() {
                self.left_out += 1;
            }
        }
        if missed > 0 && self.verbose {
            note(&format!("{missed} mappings were missed: looking at all processes"));
        }
        if missed > 0 || now >= self.next_scan {
            let waiting = &self.waiting;
            found.extend(self.scanner.scan_those(|pid| !waiting.contains_key(&pid)));
            let pause = if self.mappings.is_some() { RARE_SCAN } else { SCAN };
            self.next_scan = Instant::now() + pause;
        }
        // Taken in any case, so that it does not grow.
        for (pid, error) in self.scanner.take_refused() {
            if self.verbose {
                note(&format!("process {pid} is ignored: {error}"));
            }
        }
        found.retain(|target| self.is_wanted(target, now));
        found
    }

    /// Whether a process is one of those that are looked for, and gets a slot.
    fn is_wanted(&mut self, target: &Target, now: Instant) -> bool {
        let pid = target.pid();
        if self.of.is_some_and(|of| !descends(pid, of)) {
            return false;
        }
        let is_admitted = self.slots.as_ref().is_none_or(|slots| slots.admit(&target.process));
        if !is_admitted {
            self.scanner.forget(pid);
            self.waiting.insert(pid, now + RETRY);
        }
        is_admitted
    }

    /// Those of which it is time to look at: where few come, all that have come.
    fn let_wait(&mut self, pids: Vec<Pid>, now: Instant) -> Vec<Pid> {
        self.crowds.forget_before(now);
        let mut due = Vec::new();
        // What one maps again is no news.
        for pid in pids.into_iter().filter(|&pid| !self.scanner.has_seen(pid)) {
            if self.waiting.contains_key(&pid) {
                continue;
            }
            match self.pace.wait_for_new(self.crowds.add(cgroup::tenant_of(pid), now)) {
                Duration::ZERO => due.push(pid),
                wait => drop(self.waiting.insert(pid, now + wait)),
            }
        }
        due.extend(self.waiting.iter().filter(|&(_, &until)| now >= until).map(|(&pid, _)| pid));
        due
    }

    /// How many ended before they were looked at, for many came and went.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Forgets a process that has ended or changed, so that a successor is found.
    pub(super) fn forget(&mut self, pid: Pid) {
        self.scanner.forget(pid);
        if let Some(slots) = &self.slots {
            slots.release(pid);
        }
    }
}

/// Times at which the last new processes of each tenant came, so that a tenant that starts many delays its own alone.
#[derive(Debug, Default)]
struct Crowds(HashMap<String, VecDeque<Instant>>);

impl Crowds {
    /// Adds a process, and returns how many its tenant has started within [`CROWD`].
    fn add(&mut self, tenant: String, now: Instant) -> usize {
        let came = self.0.entry(tenant).or_default();
        came.push_back(now);
        if came.len() > LARGEST_CROWD {
            came.pop_front();
        }
        came.len()
    }

    /// Forgets processes that came more than [`CROWD`] ago, and tenants without others.
    fn forget_before(&mut self, now: Instant) {
        self.0.retain(|_, came| {
            while came.front().is_some_and(|&at| now - at > CROWD) {
                came.pop_front();
            }
            !came.is_empty()
        });
    }
}

/// Whether a process is another one, or was started by it, or by one that was.
fn descends(pid: Pid, from: Pid) -> bool {
    /// Nobody starts more of them within each other.
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
    fn a_tenant_that_starts_many_processes_is_a_crowd_alone() {
        let (mut crowds, now) = (Crowds::default(), Instant::now());
        for number in 1..=2 * LARGEST_CROWD {
            assert_eq!(crowds.add("pod/many".into(), now), number.min(LARGEST_CROWD));
        }
        assert_eq!(crowds.add("pod/other".into(), now), 1);
        crowds.forget_before(now + CROWD);
        assert_eq!(crowds.add("pod/other".into(), now + CROWD), 2);
        crowds.forget_before(now + CROWD + Duration::from_millis(1));
        assert_eq!(crowds.0.len(), 1);
        assert_eq!(crowds.add("pod/many".into(), now + CROWD), 1);
    }

    #[test]
    fn we_descend_from_our_parent_and_it_does_not_from_us() {
        let own = Pid(std::process::id());
        let parent = pid::parent(own).unwrap();
        assert!(descends(own, own) && descends(own, parent));
        assert!(!descends(parent, own) && !descends(Pid(u32::MAX), own));
    }
}

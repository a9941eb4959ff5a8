//! JVMs that are new: those of this machine or of a command, and those that come later.
//!
//! The kernel tells of libjvm.so when it is mapped ([`super::mappings`]). What it does not
//! tell, or told and nobody had the time to read, is found by looking at all processes now
//! and then; where it does not tell at all, often.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::{Duration, Instant},
};

use crate::{
    Pid, Result,
    follow::{mappings::Mappings, slots::Slots},
    hotspot::HotSpot,
    own::{Hurry, Pace, note},
    process::{Fate, Process, Target, cgroup, pid, scan::Scanner},
};

/// How often to look at JVMs that are being made.
const LOOK: Duration = Duration::from_millis(20);
/// How often to look at all processes where the kernel tells nothing.
const SCAN: Duration = Duration::from_millis(200);
/// How often where it tells.
const RARE_SCAN: Duration = Duration::from_secs(30);
/// How long to wait before a JVM that got no slot is tried again.
const RETRY: Duration = Duration::from_secs(30);
/// A process that makes no JVM within this time is looked at less often, ...
const PATIENCE: Duration = Duration::from_secs(3);
/// ... and is said not to be one.
const LATER: Duration = Duration::from_secs(1);

/// It is a crowd if many come within this time; and no larger one is told apart.
const CROWD: Duration = Duration::from_secs(10);
const LARGEST_CROWD: usize = 300;

/// A JVM that is new.
#[derive(Debug)]
pub struct Arrival {
    /// The JVM.
    pub target: Target,
    /// What it tells, which may be little yet, or why that cannot be read.
    pub hotspot: Result<HotSpot>,
}

/// A process that has mapped libjvm.so and has no JVM yet.
#[derive(Debug)]
struct Coming {
    target: Target,
    hotspot: Option<HotSpot>,
    since: Instant,
    next_look: Instant,
    /// Whether it was said that it is none.
    is_told: bool,
}

/// Finds JVMs, each once.
#[derive(Debug)]
pub struct Arrivals {
    scanner: Scanner,
    mappings: Option<Mappings>,
    coming: Vec<Coming>,
    crowds: Crowds,
    /// Those that are not looked at yet, for many come; and until when.
    waiting: BTreeMap<Pid, Instant>,
    /// How many ended before.
    left_out: u64,
    next_look: Instant,
    next_scan: Instant,
    verbose: bool,
    /// How often to read what the kernel has told.
    pace: Pace,
    /// Those of this process and its descendants alone.
    of: Option<Process>,
    /// Slots that each needs to be followed; `None` for any number.
    slots: Option<Slots>,
    /// A JVM that lives for a second is to be known within a tenth of it, on a busy machine,
    /// too; what it takes is little.
    _hurry: Hurry,
}

impl Arrivals {
    /// Finds those that there are at once, and from here on those that come. `verbose` says
    /// what is ignored, and how new ones are found.
    pub fn open(verbose: bool) -> Self {
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
        let now = Instant::now();
        Self {
            scanner: Scanner::new(),
            mappings: mappings.ok(),
            coming: Vec::new(),
            crowds: Crowds::default(),
            waiting: BTreeMap::new(),
            left_out: 0,
            next_look: now,
            next_scan: now,
            verbose,
            pace: Pace::Prompt,
            of: None,
            slots: None,
            _hurry: Hurry::begin(),
        }
    }

    /// Finds those that a process and its descendants become.
    ///
    /// # Errors
    /// What [`Process::open`] says.
    pub fn of_command(pid: Pid, verbose: bool) -> Result<Self> {
        Ok(Self { of: Some(Process::open(pid)?), ..Self::open(verbose) })
    }

    /// The same, noticed at this pace.
    #[must_use]
    pub fn at(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }

    /// Finds only as many as there are slots. One that is refused is tried again later.
    #[must_use]
    pub fn within(self, slots: Slots) -> Self {
        Self { slots: Some(slots), ..self }
    }

    /// Whether these are those of a command.
    pub(crate) fn is_of_command(&self) -> bool {
        self.of.is_some()
    }

    /// Whether no more can come.
    pub(crate) fn is_over(&self) -> bool {
        self.of.as_ref().is_some_and(|process| process.fate() == Fate::Ended)
    }

    /// When to look again.
    pub fn next_look(&self) -> Instant {
        self.next_look
    }

    /// Those that have come since the last time, if it is time to look. Each has begun to
    /// set itself up, or does not tell.
    pub fn take(&mut self) -> Vec<Arrival> {
        let now = Instant::now();
        if now < self.next_look {
            return Vec::new();
        }
        let mut found = self.find(now);
        if let Some(process) = &self.of {
            found.retain(|target| descends(target.pid(), process.pid));
        }
        if let Some(slots) = &self.slots {
            let (scanner, waiting) = (&mut self.scanner, &mut self.waiting);
            found.retain(|target| {
                let is_admitted = slots.admit(&target.process);
                if !is_admitted {
                    scanner.forget(target.pid());
                    waiting.insert(target.pid(), now + RETRY);
                }
                is_admitted
            });
        }
        self.coming.extend(found.into_iter().map(|target| Coming {
            target,
            hotspot: None,
            since: now,
            next_look: now,
            is_told: false,
        }));
        let mut arrived = Vec::new();
        for mut coming in std::mem::take(&mut self.coming) {
            if now < coming.next_look {
                self.coming.push(coming);
                continue;
            }
            let hotspot = match coming.hotspot.take() {
                Some(mut hotspot) => {
                    hotspot.look_again();
                    Ok(hotspot)
                }
                None => HotSpot::read(&coming.target),
            };
            let is_patient = now - coming.since < PATIENCE;
            let has_come = match &hotspot {
                Ok(hotspot) => hotspot.has_begun,
                Err(_) => !is_patient,
            };
            if has_come {
                arrived.push(Arrival { target: coming.target, hotspot });
                continue;
            }
            // Why it cannot be read is of interest only when it stays so.
            coming.hotspot = hotspot.ok();
            let still = self.look_later(coming, now, is_patient);
            self.coming.extend(still);
        }
        // Looking may take longer than the time between.
        let pause = if self.coming.is_empty() { self.pace.look() } else { LOOK };
        self.next_look = Instant::now() + pause;
        arrived
    }

    /// Keeps a process that has made no JVM yet, unless it is no more what it was.
    fn look_later(&mut self, coming: Coming, now: Instant, is_patient: bool) -> Option<Coming> {
        let pid = coming.target.pid();
        if coming.target.process.fate() != Fate::Alive {
            self.forget(pid);
            return None;
        }
        if self.verbose && !is_patient && !coming.is_told {
            note(&format!("process {pid} has libjvm.so mapped and has made no JVM with it"));
        }
        let next_look = now + if is_patient { LOOK } else { LATER };
        Some(Coming { next_look, is_told: !is_patient, ..coming })
    }

    /// Processes that are known to have mapped libjvm.so and were not returned before.
    fn find(&mut self, now: Instant) -> Vec<Target> {
        let told = self.mappings.as_mut().map(Mappings::take);
        let (pids, missed) = told.unwrap_or_default();
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
        found
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
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Forgets a process that has ended or changed, so that a successor is found.
    pub fn forget(&mut self, pid: Pid) {
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

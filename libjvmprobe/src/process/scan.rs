//! Scans /proc for JVMs, existing and new.

use std::{collections::HashMap, fs, io, time::Duration};

use crate::{
    Error, Pid,
    process::{Candidate, Target, libjvm::JVM_NAMES, maps, reader},
};

/// A new process is examined in each of its first 40 scans, because a launcher maps libjvm.so only some
/// milliseconds after its start.
const EAGER_SCANS: u32 = 40;
/// Afterwards, a process is examined in every 40th scan only, for programs that load a JVM late.
const LATE_SCAN_INTERVAL: u32 = 40;

/// Maximum time that opening one process may take.
const MAX_OPENING: Duration = Duration::from_secs(2);

/// Finds JVMs, and returns each one once.
#[derive(Debug, Default)]
pub(crate) struct Scanner {
    /// Number of scans of each process; [`DECIDED`] once its result is final.
    scan_counts: HashMap<Pid, u32>,
    /// Processes that look like JVMs but cannot be traced, with the reason.
    refused: Vec<(Pid, Error)>,
}

const DECIDED: u32 = u32::MAX;

impl Scanner {
    /// Makes a scanner that has not seen any process.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Opens and returns the JVMs that no earlier call has returned. A JVM that cannot be opened is
    /// [refused](Self::take_refused) if [`is_final`] is true for the error; else the next call tries it
    /// again.
    pub(crate) fn scan(&mut self) -> Vec<Target> {
        self.open_where(|_| true)
    }

    /// Like [`scan`](Self::scan), but only examines processes that `is_wanted` selects.
    pub(crate) fn open_where(&mut self, is_wanted: impl Fn(Pid) -> bool) -> Vec<Target> {
        let mut targets = Vec::new();
        for candidate in self.scan_where(is_wanted) {
            match reader::within(MAX_OPENING, || candidate.open()) {
                Ok(target) => targets.push(target),
                Err(error) if is_final(&error) => self.refused.push((candidate.process.pid, error)),
                Err(_) => self.forget(candidate.process.pid),
            }
        }
        targets
    }

    /// Returns the JVMs that no earlier call has returned, among processes that `is_wanted` selects.
    pub(crate) fn scan_where(&mut self, is_wanted: impl Fn(Pid) -> bool) -> Vec<Candidate> {
        let present = processes();
        self.scan_counts.retain(|pid, _| present.binary_search(pid).is_ok());
        let mut found = Vec::new();
        for pid in present {
            let scans = self.scan_counts.entry(pid).or_insert(0);
            if *scans == DECIDED {
                continue;
            }
            *scans = (*scans + 1).min(DECIDED - 1);
            if !is_wanted(pid) {
                continue;
            }
            let is_due = *scans <= EAGER_SCANS || scans.is_multiple_of(LATE_SCAN_INTERVAL);
            // Each process is examined in its first scan, even if it maps no JVM's library, to detect native
            // images. In later scans, only a process that maps a JVM's library can have become a JVM.
            if is_due && (*scans == 1 || maps_jvm(pid)) {
                found.extend(self.examine(pid));
            }
        }
        found
    }

    /// Examines one process that is likely to be a JVM. Returns it if it is a JVM that no earlier call has
    /// returned.
    pub(crate) fn examine(&mut self, pid: Pid) -> Option<Candidate> {
        let scans = self.scan_counts.entry(pid).or_insert(0);
        if *scans == DECIDED {
            return None;
        }
        match reader::within(MAX_OPENING, || Candidate::find(pid)) {
            Ok(candidate) => {
                *scans = DECIDED;
                Some(candidate)
            }
            Err(error) => {
                if is_final(&error) {
                    *scans = DECIDED;
                    self.refused.push((pid, error));
                }
                None
            }
        }
    }

    /// Returns whether the result for a process is final.
    pub(crate) fn is_decided(&self, pid: Pid) -> bool {
        self.scan_counts.get(&pid) == Some(&DECIDED)
    }

    /// Forgets the result for a PID, so that later scans examine the process with this PID as if it were new.
    pub(crate) fn forget(&mut self, pid: Pid) {
        self.scan_counts.remove(&pid);
    }

    /// Returns the processes that were found since the last call and cannot be traced.
    pub(crate) fn take_refused(&mut self) -> Vec<(Pid, Error)> {
        std::mem::take(&mut self.refused)
    }
}

/// Returns whether an error means that a process is a JVM that cannot be traced. After any other error, a
/// later attempt may succeed.
pub(crate) fn is_final(error: &Error) -> bool {
    match error {
        // A kernel thread, another program, or a process that has ended meanwhile.
        Error::NotAJvm { .. }
        | Error::NoSuchProcess { .. }
        | Error::Zombie { .. }
        | Error::ThreadId { .. } => false,
        // Its memory or files answer too slowly.
        Error::Io { source, .. } => source.kind() != io::ErrorKind::TimedOut,
        _ => true,
    }
}

/// Returns whether a process may have mapped a JVM's library. This is cheaper than [`Candidate::find`].
fn maps_jvm(pid: Pid) -> bool {
    maps::any_line_contains(pid, &JVM_NAMES).unwrap_or_default()
}

/// Returns all PIDs in /proc, sorted.
fn processes() -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut pids: Vec<_> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid))
        .collect();
    pids.sort_unstable();
    pids
}

//! Scans /proc for JVMs, existing and new.

use std::{collections::HashMap, fs, io, time::Duration};

use crate::{
    Error, Pid,
    process::{Target, libjvm::JVM_NAMES, maps, reader},
};

/// Number of scans in which a new process is examined each time, because a launcher maps libjvm.so only some
/// milliseconds after its start.
const YOUNG_SCANS: u32 = 40;
/// Afterwards, a process is examined in every 40th scan only, for programs that load a JVM late.
const OLD_EVERY: u32 = 40;

/// Maximum time that opening one process may take.
const MAX_OPENING: Duration = Duration::from_secs(2);

/// Finds JVMs, and returns each one once.
#[derive(Debug, Default)]
pub(crate) struct Scanner {
    /// Number of scans of each process; [`SEEN`] once its result is final.
    looked_at: HashMap<Pid, u32>,
    /// Processes that look like JVMs and cannot be traced, with the reason.
    refused: Vec<(Pid, Error)>,
}

const SEEN: u32 = u32::MAX;

impl Scanner {
    /// Makes a scanner that has not seen any process.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Returns the JVMs that no earlier call has returned.
    pub(crate) fn scan(&mut self) -> Vec<Target> {
        self.scan_those(|_| true)
    }

    /// Returns the JVMs that no earlier call has returned, among processes that `is_wanted` selects.
    pub(crate) fn scan_those(&mut self, is_wanted: impl Fn(Pid) -> bool) -> Vec<Target> {
        let present = processes();
        self.looked_at.retain(|pid, _| present.binary_search(pid).is_ok());
        let mut found = Vec::new();
        for pid in present {
            let looked = self.looked_at.entry(pid).or_insert(0);
            if *looked == SEEN {
                continue;
            }
            *looked = (*looked + 1).min(SEEN - 1);
            if !is_wanted(pid) {
                continue;
            }
            let is_due = *looked <= YOUNG_SCANS || looked.is_multiple_of(OLD_EVERY);
            // The process was not a JVM before, which can only change if it maps a JVM's library.
            if is_due && (*looked == 1 || maps_jvm(pid)) {
                found.extend(self.look(pid));
            }
        }
        found
    }

    /// Examines one process that is likely to be a JVM. Returns it if no earlier call has.
    pub(crate) fn look(&mut self, pid: Pid) -> Option<Target> {
        let looked = self.looked_at.entry(pid).or_insert(0);
        if *looked == SEEN {
            return None;
        }
        match reader::within(MAX_OPENING, || Target::open(pid)) {
            Ok(target) => {
                *looked = SEEN;
                Some(target)
            }
            // A kernel thread, another program, or a process that has ended meanwhile.
            Err(
                Error::NotAJvm { .. }
                | Error::NoSuchProcess { .. }
                | Error::Zombie { .. }
                | Error::ThreadId { .. },
            ) => None,
            // Its memory or files answer too slowly; a later call tries again.
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::TimedOut => None,
            Err(error) => {
                *looked = SEEN;
                self.refused.push((pid, error));
                None
            }
        }
    }

    /// Returns whether the result for a process is final.
    pub(crate) fn has_seen(&self, pid: Pid) -> bool {
        self.looked_at.get(&pid) == Some(&SEEN)
    }

    /// Forgets a process that has ended or changed, so that a new one with its PID is found.
    pub(crate) fn forget(&mut self, pid: Pid) {
        self.looked_at.remove(&pid);
    }

    /// Returns the processes that were found since the last call and cannot be traced.
    pub(crate) fn take_refused(&mut self) -> Vec<(Pid, Error)> {
        std::mem::take(&mut self.refused)
    }
}

/// Returns whether a process may have a JVM's library mapped: a cheap check.
fn maps_jvm(pid: Pid) -> bool {
    maps::mention(pid, &JVM_NAMES).unwrap_or_default()
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

//! All JVMs of this machine, and those that come later.

use std::{collections::HashMap, fs, io, time::Duration};

use crate::{
    Error, Pid,
    process::{Target, libjvm::JVM_NAMES, maps, reader},
};

/// Processes that are no JVM yet are looked at again in this many scans, for a
/// launcher maps its libjvm.so some milliseconds after its start ...
const YOUNG_SCANS: u32 = 40;
/// ... and then only every so often, for programs that embed a JVM late.
const OLD_EVERY: u32 = 40;

/// Maximum time that opening one process may take.
const MAX_OPENING: Duration = Duration::from_secs(2);

/// Finds JVMs, each once.
#[derive(Debug, Default)]
pub(crate) struct Scanner {
    /// How often a process was looked at; [`SEEN`] for those that are done with.
    looked_at: HashMap<Pid, u32>,
    /// Processes that look like JVMs and cannot be traced, with the reason.
    refused: Vec<(Pid, Error)>,
}

const SEEN: u32 = u32::MAX;

impl Scanner {
    /// A scanner that has seen nothing yet.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// JVMs that were not returned by an earlier call.
    pub(crate) fn scan(&mut self) -> Vec<Target> {
        self.scan_those(|_| true)
    }

    /// The same of processes that are wanted.
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
            // It was found to be no JVM, and only another library can change that.
            if is_due && (*looked == 1 || maps_jvm(pid)) {
                found.extend(self.look(pid));
            }
        }
        found
    }

    /// Looks at one process, of which something is known: a JVM that was not returned by
    /// an earlier call.
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
            // A kernel thread, another program, or gone in the meantime.
            Err(
                Error::NotAJvm { .. }
                | Error::NoSuchProcess { .. }
                | Error::Zombie { .. }
                | Error::ThreadId { .. },
            ) => None,
            // Its memory or files answer too slowly: it is looked at again.
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::TimedOut => None,
            Err(error) => {
                *looked = SEEN;
                self.refused.push((pid, error));
                None
            }
        }
    }

    /// Whether nothing is to be found out of a process any more.
    pub(crate) fn has_seen(&self, pid: Pid) -> bool {
        self.looked_at.get(&pid) == Some(&SEEN)
    }

    /// Forgets a process that has ended or changed, so that a successor is found.
    pub(crate) fn forget(&mut self, pid: Pid) {
        self.looked_at.remove(&pid);
    }

    /// Processes that cannot be traced, since the last call.
    pub(crate) fn take_refused(&mut self) -> Vec<(Pid, Error)> {
        std::mem::take(&mut self.refused)
    }
}

/// Whether a process may have a JVM's library mapped: a first look, which costs little.
fn maps_jvm(pid: Pid) -> bool {
    maps::mention(pid, &JVM_NAMES).unwrap_or_default()
}

/// The numbers in /proc, sorted.
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

//! Record of lost events.

use serde::{Deserialize, Serialize};

use crate::bpf::clock;

/// Number of events of a JVM that the kernel side could not count or send since the last record of this kind.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Lost {
    /// Wall-clock time at which the loss was detected, RFC 3339 with nanoseconds, UTC.
    pub(crate) time: String,
    /// The process.
    pub(crate) pid: u32,
    /// Number of lost events.
    pub(crate) events: u64,
}

impl Lost {
    /// Returns the process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the number of lost events.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Makes a record of a loss that was detected now.
    pub fn now(pid: u32, events: u64) -> Self {
        Self { time: clock::rfc3339(clock::monotonic_ns()), pid, events }
    }

    /// Prints a warning.
    pub fn warn(&self) {
        let Self { pid, events, .. } = self;
        log::warn!("lost {events} events of process {pid}; they are missing from the totals");
    }
}

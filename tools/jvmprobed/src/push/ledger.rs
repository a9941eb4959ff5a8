//! Delivery counts of a push target.
//!
//! From the time when a sample is queued, it is always in exactly one of three states: waiting, delivered, or
//! dropped for a reason.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::clock::unix_ns;

/// Reasons for dropping samples. There are no others, so their number is bounded.
pub mod reason {
    /// The queue was full, and the oldest entry was dropped.
    pub const FULL: &str = "queue-full";
    /// The entry could not be written to disk, and the space in memory was used up as well.
    pub const DISK: &str = "not-stored";
    /// The target will never accept the entry.
    pub const REFUSED: &str = "refused";
    /// The target rejected some profiles of a request without saying which, so the number of their samples is
    /// estimated.
    pub const PARTLY_REFUSED: &str = "partly-refused";
    /// The entry's file was damaged or could not be read.
    pub const DAMAGED: &str = "damaged";
    /// The entry was only in memory when the daemon ended.
    pub const ENDED: &str = "ended";

    /// All reasons.
    pub const ALL: [&str; 6] = [FULL, DISK, REFUSED, PARTLY_REFUSED, DAMAGED, ENDED];
}

/// Counts of a target.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Number of samples that were queued, or were found in the queue at the start.
    pub accepted_samples: u64,
    /// Number of samples that the target has accepted.
    pub delivered_samples: u64,
    /// Number of dropped samples, by reason.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Number of requests, by outcome.
    pub requests: BTreeMap<&'static str, u64>,
    /// Number of samples in the queue.
    pub waiting_samples: u64,
    /// Number of bytes in the queue.
    pub waiting_bytes: u64,
    /// Time of the oldest entry in the queue, in nanoseconds since 1970.
    pub oldest_ns: Option<u64>,
}

/// Shared counts of a target. Queue and sender write them, and the metrics read them.
#[derive(Debug)]
pub struct Ledger {
    name: Arc<str>,
    counts: Mutex<Counts>,
}

impl Ledger {
    /// Returns empty counts of a target of this name.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), counts: Mutex::default() }
    }

    /// Returns the name of the target.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns a copy of all counts.
    pub fn read(&self) -> Counts {
        self.lock().clone()
    }

    /// Returns the time since the oldest waiting entry was recorded.
    pub fn delay(&self) -> Duration {
        self.lock()
            .oldest_ns
            .map_or(Duration::ZERO, |oldest| Duration::from_nanos(unix_ns().saturating_sub(oldest)))
    }

    pub(super) fn add_accepted(&self, samples: u64) {
        self.lock().accepted_samples += samples;
    }

    pub(super) fn add_delivered(&self, samples: u64) {
        self.lock().delivered_samples += samples;
    }

    pub(super) fn add_dropped(&self, reason: &'static str, samples: u64) {
        *self.lock().dropped.entry(reason).or_default() += samples;
    }

    pub(super) fn add_request(&self, outcome: &'static str) {
        *self.lock().requests.entry(outcome).or_default() += 1;
    }

    pub(super) fn set_waiting(&self, samples: u64, bytes: u64, oldest_ns: Option<u64>) {
        let mut counts = self.lock();
        (counts.waiting_samples, counts.waiting_bytes) = (samples, bytes);
        counts.oldest_ns = oldest_ns;
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

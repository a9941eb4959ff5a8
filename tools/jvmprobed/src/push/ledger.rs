//! What became of what was pushed to a target.
//!
//! Each sample that was accepted is, at any time, in exactly one of three: delivered, dropped for
//! a reason, or waiting.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::clock::unix_ns;

/// Why something was dropped. There are no other reasons, so that their number is bounded.
pub mod reason {
    /// The queue had no room: the oldest went first.
    pub const FULL: &str = "queue-full";
    /// It could not be kept on disk, and memory's share was used up as well.
    pub const DISK: &str = "not-stored";
    /// The target said that it will never take it.
    pub const REFUSED: &str = "refused";
    /// The target took a part of a request. Which, it does not say: its share is counted.
    pub const PARTLY: &str = "partly-refused";
    /// What was read from the queue was not what had been written.
    pub const DAMAGED: &str = "damaged";
    /// It was in memory only when the daemon ended.
    pub const ENDED: &str = "ended";

    /// All of them.
    pub const ALL: [&str; 6] = [FULL, DISK, REFUSED, PARTLY, DAMAGED, ENDED];
}

/// The counts of a target.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Samples that were handed in, or were found in the queue at the start.
    pub accepted_samples: u64,
    /// Samples that the target has taken.
    pub delivered_samples: u64,
    /// What was dropped, by reason.
    pub dropped: BTreeMap<&'static str, Dropped>,
    /// Requests by outcome.
    pub requests: BTreeMap<&'static str, u64>,
    /// Bytes sent, of requests that were taken.
    pub sent_bytes: u64,
    /// Samples in the queue.
    pub waiting_samples: u64,
    /// Bytes in the queue.
    pub waiting_bytes: u64,
    /// When what waits longest was taken, in nanoseconds since 1970.
    pub oldest_ns: Option<u64>,
}

/// What was dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Requests.
    pub entries: u64,
    /// Samples in them.
    pub samples: u64,
}

/// The counts of a target, which the queue writes and the metrics read.
#[derive(Debug)]
pub struct Ledger {
    name: Arc<str>,
    counts: Mutex<Counts>,
}

impl Ledger {
    /// An empty one for a target of this name.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), counts: Mutex::default() }
    }

    /// What the target is called.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// All counts, as of now.
    pub fn read(&self) -> Counts {
        self.lock().clone()
    }

    /// How long what waits longest has been waiting.
    pub fn delay(&self) -> Duration {
        self.lock()
            .oldest_ns
            .map_or(Duration::ZERO, |oldest| Duration::from_nanos(unix_ns().saturating_sub(oldest)))
    }

    pub(super) fn accept(&self, samples: u64) {
        self.lock().accepted_samples += samples;
    }

    pub(super) fn deliver(&self, samples: u64, bytes: u64) {
        let mut counts = self.lock();
        counts.delivered_samples += samples;
        counts.sent_bytes += bytes;
    }

    pub(super) fn give_up(&self, reason: &'static str, entries: u64, samples: u64) {
        let mut counts = self.lock();
        let dropped = counts.dropped.entry(reason).or_default();
        dropped.entries += entries;
        dropped.samples += samples;
    }

    pub(super) fn request(&self, outcome: &'static str) {
        *self.lock().requests.entry(outcome).or_default() += 1;
    }

    pub(super) fn waiting(&self, samples: u64, bytes: u64, oldest_ns: Option<u64>) {
        let mut counts = self.lock();
        (counts.waiting_samples, counts.waiting_bytes) = (samples, bytes);
        counts.oldest_ns = oldest_ns;
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

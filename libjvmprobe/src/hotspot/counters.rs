//! Collections as the JVM itself counts and stamps them for `jstat`, in its performance data: how
//! many there were, and when the last one began and ended.
//!
//! Source: HotSpot's gc/shared/collectorCounters.cpp (JDK 8: gc_implementation/shared).
//! Times are ticks since the JVM's start, of nanoseconds on Linux.

use crate::{
    Addr, Error, Result,
    hotspot::{Collector, HotSpot, perfdata::PerfData},
    process::memory::Memory,
};

/// Kinds of collections that are counted apart: young ones, full ones, and others.
const KINDS: usize = 3;
/// Ticks a second.
const NANOSECONDS: u64 = 1_000_000_000;

/// Where a kind of collections is counted.
#[derive(Clone, Copy, Debug)]
struct Place {
    count: Addr,
    time: Addr,
    entry: Addr,
    exit: Addr,
}

/// Where the counters are.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    kinds: [Option<Place>; KINDS],
    frequency: Option<Addr>,
    last_cause: Option<Addr>,
}

/// What is counted of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// How many began.
    pub(crate) collections: u64,
    /// All of their time together.
    pub(crate) time: u64,
    /// When the last one began.
    pub(crate) entry: u64,
    /// When the last one that is over was over.
    pub(crate) exit: u64,
}

/// What is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) kinds: [Count; KINDS],
}

impl Counters {
    pub(super) fn find(base: Addr, data: &PerfData) -> Self {
        let at = |name: &str| base.checked_add(data.offset(name)? as u64);
        let place = |kind: usize| {
            let at = |name: &str| at(&format!("sun.gc.collector.{kind}.{name}"));
            Some(Place {
                count: at("invocations")?,
                time: at("time")?,
                entry: at("lastEntryTime")?,
                exit: at("lastExitTime")?,
            })
        };
        Self {
            kinds: std::array::from_fn(place),
            frequency: at("sun.os.hrt.frequency"),
            last_cause: at("sun.gc.lastCause"),
        }
    }

    fn read(&self, memory: &Memory) -> Result<Counts> {
        let mut counts = Counts::default();
        for (count, place) in counts.kinds.iter_mut().zip(&self.kinds) {
            if let Some(place) = place {
                *count = Count {
                    collections: memory.u64(place.count)?,
                    time: memory.u64(place.time)?,
                    entry: memory.u64(place.entry)?,
                    exit: memory.u64(place.exit)?,
                };
            }
        }
        Ok(counts)
    }
}

impl HotSpot {
    /// Whether its collections can be told by its counters alone: where all of a collection is a
    /// pause.
    pub(crate) fn counts_pauses(&self) -> bool {
        let is_known = matches!(
            self.collector,
            Collector::Serial | Collector::Parallel | Collector::G1 | Collector::Cms
        );
        let is_in_nanoseconds = |counters: &Counters| {
            let frequency = counters.frequency.and_then(|at| self.memory.u64(at).ok());
            frequency == Some(NANOSECONDS) && counters.kinds[0].is_some()
        };
        is_known && self.counters.as_ref().is_some_and(is_in_nanoseconds)
    }

    /// What it has counted by now.
    ///
    /// # Errors
    /// [`Error::PerfData`] where it keeps no counters, [`Error::Memory`] when it is gone.
    pub(crate) fn counts(&self) -> Result<Counts> {
        let missing = || Error::PerfData { what: "there are none".into() };
        self.counters.as_ref().ok_or_else(missing)?.read(&self.memory)
    }

    /// Why it has collected last.
    pub(crate) fn last_cause(&self) -> Option<String> {
        const MAX_CAUSE: usize = 64;
        let at = self.counters.as_ref()?.last_cause?;
        let cause = self.memory.c_string(at, MAX_CAUSE).ok()?;
        (!cause.is_empty() && cause != "No GC").then_some(cause)
    }
}

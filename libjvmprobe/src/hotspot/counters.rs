//! Safepoints and collections as the JVM itself counts and times them for `jstat` in its performance
//! data: their number, their total time, and the times at which the last collection began and ended.
//!
//! Source: HotSpot's services/runtimeService.cpp and gc/shared/collectorCounters.cpp (JDK 8:
//! gc_implementation/shared). Times are ticks since the JVM's start; on Linux a tick is a nanosecond.

use crate::{
    Addr, Error, Result,
    hotspot::{Collector, HotSpot, perfdata::PerfData},
    process::memory::Memory,
};

/// Number of kinds of collections that are counted separately: young, full, and others.
const KINDS: usize = 3;
/// Counters of stops.
const OF_STOPS: [&str; 3] =
    ["sun.rt.safepoints", "sun.rt.safepointTime", "sun.rt.safepointSyncTime"];
/// Counters of each kind of collection.
const OF_KIND: [&str; 4] = ["invocations", "time", "lastEntryTime", "lastExitTime"];
/// Total number of counters: `COUNTED_NUMBERS` of bpf/javagc.h.
pub(crate) const NUMBERS: usize = OF_STOPS.len() + KINDS * OF_KIND.len();
/// Ticks per second.
const NANOSECONDS: u64 = 1_000_000_000;

/// Addresses of the counters.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    addresses: [Option<Addr>; NUMBERS],
    frequency: Option<Addr>,
    last_cause: Option<Addr>,
    /// Address of `sun.gc.policy.fullFollowsScavenge`. This counter exists only in JVMs where a full
    /// collection of Parallel may have a cause other than its operation's; see [`HotSpot::has_ergonomics`].
    full_follows: Option<Addr>,
}

/// Counters of one kind of collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// Number of collections that began.
    pub(crate) collections: u64,
    /// Their total time in ticks.
    pub(crate) time: u64,
    /// Time at which the last collection began.
    pub(crate) entry: u64,
    /// Time at which the last finished collection ended.
    pub(crate) exit: u64,
}

/// Values of all counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Number of stops that began.
    pub(crate) stops: u64,
    /// Total time of the finished stops in ticks. [`HotSpot::stop_time_excludes_sync`] returns whether it
    /// excludes the time until the last thread had stopped.
    pub(crate) stopped: u64,
    /// Total time in ticks from the request to stop until the last thread had stopped.
    pub(crate) sync: u64,
    pub(crate) kinds: [Count; KINDS],
}

impl Counts {
    /// Creates the counts from numbers in the order of [`HotSpot::counter_addresses`].
    pub(crate) fn of(numbers: &[u64; NUMBERS]) -> Self {
        let [stops, stopped, sync, kinds @ ..] = *numbers;
        let mut counts = Self { stops, stopped, sync, ..Self::default() };
        let (each, _) = kinds.as_chunks();
        for (count, &[collections, time, entry, exit]) in counts.kinds.iter_mut().zip(each) {
            *count = Count { collections, time, entry, exit };
        }
        counts
    }
}

impl Counters {
    pub(super) fn find(base: Addr, data: &PerfData) -> Self {
        let at = |name: &str| base.checked_add(data.offset(name)? as u64);
        let mut addresses = [None; NUMBERS];
        let of_kinds =
            (0..KINDS).flat_map(|k| OF_KIND.map(|name| format!("sun.gc.collector.{k}.{name}")));
        let names = OF_STOPS.into_iter().map(str::to_owned).chain(of_kinds);
        for (address, name) in addresses.iter_mut().zip(names) {
            *address = at(&name);
        }
        Self {
            addresses,
            frequency: at("sun.os.hrt.frequency"),
            last_cause: at("sun.gc.lastCause"),
            full_follows: at("sun.gc.policy.fullFollowsScavenge"),
        }
    }

    fn read(&self, memory: &Memory) -> Result<[u64; NUMBERS]> {
        // One request, so that the counters belong together unless a pause begins or ends in between.
        let known: Vec<_> = self.addresses.iter().flatten().copied().collect();
        let mut words = memory.words(&known)?.into_iter();
        let mut numbers = [0; NUMBERS];
        for (number, address) in numbers.iter_mut().zip(self.addresses) {
            if let Some(address) = address {
                let word = words.next().flatten();
                *number = word.ok_or_else(|| Error::not_mapped(address, size_of::<u64>()))?;
            }
        }
        Ok(numbers)
    }

    /// Whether all counters of young collections exist.
    fn has_young(&self) -> bool {
        self.addresses.iter().skip(OF_STOPS.len()).take(OF_KIND.len()).all(Option::is_some)
    }
}

impl HotSpot {
    /// Whether the JVM's collections can be derived from its counters alone. There are three conditions: the
    /// collector's counters count only pauses, all counters of young collections exist, and a tick is a
    /// nanosecond.
    pub(crate) fn counts_pauses(&self) -> bool {
        let is_known = matches!(
            self.collector,
            Collector::Serial | Collector::Parallel | Collector::G1 | Collector::Cms
        );
        let is_in_nanoseconds = |counters: &Counters| {
            let frequency = counters.frequency.and_then(|at| self.memory.u64(at).ok());
            frequency == Some(NANOSECONDS) && counters.has_young()
        };
        is_known && self.counters.as_ref().is_some_and(is_in_nanoseconds)
    }

    /// Reads the counters.
    ///
    /// # Errors
    /// [`Error::PerfData`] if the JVM has no counters, [`Error::Memory`] if it has exited.
    pub(crate) fn counts(&self) -> Result<Counts> {
        let missing = || Error::PerfData { what: "the JVM has none".into() };
        let numbers = self.counters.as_ref().ok_or_else(missing)?.read(&self.memory)?;
        Ok(Counts::of(&numbers))
    }

    /// Whether the counted time of a stop begins when the last thread has stopped (`SafepointTracing::end()`,
    /// runtime/safepoint.cpp). Before JDK 14 it begins when the stop is requested (timer of
    /// `RuntimeService`).
    pub(crate) fn stop_time_excludes_sync(&self) -> bool {
        self.major >= 14
    }

    /// Returns the addresses of the JVM's counters; 0 for each counter that does not exist.
    pub(crate) fn counter_addresses(&self) -> Option<[u64; NUMBERS]> {
        Some(self.counters.as_ref()?.addresses.map(|address| address.map_or(0, |at| at.0)))
    }

    /// Returns the address of the counter of stopped time; `None` if a counter of stops is missing. Of the
    /// counters of stops, the VM thread updates this one last, at the end of the stop.
    pub(crate) fn stop_counter(&self) -> Option<Addr> {
        let [stops, time, sync, ..] = self.counters.as_ref()?.addresses;
        time.filter(|_| stops.is_some() && sync.is_some())
    }

    /// Whether a full collection that Parallel makes in place of a young one has the cause "Ergonomics",
    /// whatever the cause of its operation (`PSScavenge::invoke()`, gc/parallel/psScavenge.cpp). A release
    /// between JDK 21 and 25 removed this behaviour together with the counter `fullFollowsScavenge`, so the
    /// counter exists only in JVMs with this behaviour.
    pub(crate) fn has_ergonomics(&self) -> bool {
        let counters = self.counters.as_ref();
        self.collector == Collector::Parallel && counters.is_some_and(|c| c.full_follows.is_some())
    }

    /// Returns the cause of its last collection.
    pub(crate) fn last_cause(&self) -> Option<String> {
        const MAX_CAUSE: usize = 64;
        let at = self.counters.as_ref()?.last_cause?;
        let cause = self.memory.c_string(at, MAX_CAUSE).ok()?;
        (!cause.is_empty() && cause != "No GC").then_some(cause)
    }
}

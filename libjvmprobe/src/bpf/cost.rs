//! Cost of the probes to each JVM. The kernel side counts hits and measures some runs of its programs
//! (bpf/cost.bpf.h). For each hit, user space adds the cost of the trap or interrupt, which it has
//! [measured](super::trap_cost) on this machine.

use std::collections::HashMap;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::{
    Result,
    bpf::{
        records::{entries, word},
        trap_cost::trap_costs,
    },
};

/// Name of the map.
pub(super) const MAP: &str = "costs";
/// Key under which hits of processes without an entry are counted.
const OTHERS: u64 = 0;
/// If an interval has at least this many measured runs, their average is used. If it has fewer, the average
/// since the start is used.
const ENOUGH_RUNS: u64 = 8;
/// One in this many runs is measured: `begin_run()`.
const TIMED_ONE_IN: u64 = 4;

/// Cost of the probes to a process since its costs were last returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The process. The number 0 represents all processes whose costs are not counted separately.
    pub pid: u32,
    /// Number of probe hits and samples.
    pub hits: u64,
    /// CPU time lost to these hits and samples, and to programs that run at context switches, in nanoseconds.
    pub ns: u64,
    /// Estimated run time of the programs, or of those parts of them, whose run time is measured separately, in
    /// nanoseconds.
    pub run_ns: u64,
}

/// Event that interrupts a thread to run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// A probe.
    Probe,
    /// The interrupt of a sampling event.
    Interrupt,
}

/// An entry of the map. Its counters never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Runs {
    /// Number of hits.
    pub(crate) hits: u64,
    /// Number of measured runs.
    pub(crate) timed: u64,
    /// Total run time of the measured runs, in nanoseconds.
    pub(crate) timed_ns: u64,
    /// Estimated run time of programs that no trap or interrupt calls, in nanoseconds.
    pub(crate) untrapped_ns: u64,
}

impl Runs {
    fn decode(value: &[u8]) -> Option<Self> {
        Some(Self {
            hits: word(value, 0)?,
            timed: word(value, 8)?,
            timed_ns: word(value, 16)?,
            untrapped_ns: word(value, 24)?,
        })
    }

    /// Reads the entry of a JVM.
    pub(crate) fn of(map: &impl MapCore, target: u64) -> Option<Self> {
        Self::decode(&map.lookup(&target.to_ne_bytes(), MapFlags::ANY).ok()??)
    }

    /// Returns the difference to an earlier reading.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            hits: self.hits.saturating_sub(before.hits),
            timed: self.timed.saturating_sub(before.timed),
            timed_ns: self.timed_ns.saturating_sub(before.timed_ns),
            untrapped_ns: self.untrapped_ns.saturating_sub(before.untrapped_ns),
        }
    }

    /// Average run time, if runs were measured.
    pub(crate) fn average_ns(&self) -> Option<f64> {
        (self.timed > 0).then(|| self.timed_ns as f64 / self.timed as f64)
    }
}

/// Costs of all JVMs of a tracer.
pub(crate) struct Costs {
    map: MapHandle,
    trigger: Trigger,
    seen: HashMap<u64, Runs>,
    /// Number of hits that the kernel side did not count, by JVM.
    missed_hits: HashMap<u64, f64>,
    all: Runs,
}

impl Costs {
    /// Creates an instance without costs. From here on, hits are counted in the map.
    pub(super) fn new(map: MapHandle, trigger: Trigger) -> Self {
        let costs = Self {
            map,
            trigger,
            seen: HashMap::new(),
            missed_hits: HashMap::new(),
            all: Runs::default(),
        };
        costs.add(OTHERS);
        costs
    }

    /// Counts the hits of a JVM separately from now on.
    pub(crate) fn add(&self, target: u64) {
        // If the map is full, this JVM's hits are counted among those of processes without an entry.
        let _ = self.map.update(&target.to_ne_bytes(), &[0; size_of::<Runs>()], MapFlags::NO_EXIST);
    }

    /// Adds hits that cost only the trap, because no program was attached any more.
    pub(crate) fn add_missed_hits(&mut self, target: u64, hits: f64) {
        *self.missed_hits.entry(target).or_default() += hits;
    }

    /// Returns the costs since the last call, by JVM.
    ///
    /// # Errors
    /// [`Error::Bpf`](crate::Error::Bpf).
    pub(crate) fn take(&mut self) -> Result<Vec<Cost>> {
        let all = entries(&self.map)?;
        let decode =
            |(key, value): &(Vec<u8>, Vec<u8>)| Some((word(key, 0)?, Runs::decode(value)?));
        let all: Vec<_> = all.iter().filter_map(decode).collect();
        let costs = all.into_iter().filter_map(|(target, runs)| self.cost(target, runs));
        Ok(costs.collect())
    }

    /// For a JVM that has ended, returns the costs since they were last returned, and removes the JVM's data.
    pub(crate) fn take_last(&mut self, target: u64) -> Option<Cost> {
        let last = Runs::of(&self.map, target).and_then(|runs| self.cost(target, runs));
        self.forget(target);
        last
    }

    /// Removes the data of a JVM.
    pub(super) fn forget(&mut self, target: u64) {
        // Failure is ignored, because an absent entry is the goal.
        let _ = self.map.delete(&target.to_ne_bytes());
        self.seen.remove(&target);
        self.missed_hits.remove(&target);
    }

    fn cost(&mut self, target: u64, runs: Runs) -> Option<Cost> {
        let trap_costs = trap_costs();
        let price = match self.trigger {
            Trigger::Probe => trap_costs.probe_ns,
            Trigger::Interrupt => trap_costs.interrupt_ns,
        };
        let new = runs.since(&self.seen.insert(target, runs).unwrap_or_default());
        self.all.timed += new.timed;
        self.all.timed_ns += new.timed_ns;
        let missed_hits = self.missed_hits.remove(&target).unwrap_or(0.0);
        let average = if new.timed >= ENOUGH_RUNS { new } else { runs };
        let run_ns = average.average_ns().or(self.all.average_ns()).unwrap_or(0.0);
        let ns = new.hits as f64 * (price + run_ns) + missed_hits * trap_costs.probe_ns;
        let ns = (ns as u64).saturating_add(new.untrapped_ns);
        let hits = new.hits.saturating_add(missed_hits as u64);
        let pid = (target & u64::from(u32::MAX)) as u32;
        let run_ns = new.timed_ns.saturating_mul(TIMED_ONE_IN);
        (hits > 0 || ns > 0).then_some(Cost { pid, hits, ns, run_ns })
    }
}

//! Cost of the probes to each JVM. The kernel side counts hits and measures some runs of its programs
//! (bpf/cost.bpf.h). For each hit, user space adds the cost of the trap or interrupt, which it has
//! [measured](super::trap_cost) on this machine.

use std::collections::HashMap;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::{
    Pid, Result,
    bpf::{
        records::{entries, word},
        sees_initial_pids,
        trap_cost::{TrapCosts, trap_costs},
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
    /// Part of that time that hits of probes took, without that of sampling interrupts, in nanoseconds.
    pub probes_ns: u64,
    /// If `pid` is 0, the process that hit a probe last, if it is known.
    pub last_pid: Option<Pid>,
    /// Estimated run time of the programs, or of those parts of them, whose run time is measured separately, in
    /// nanoseconds.
    pub run_ns: u64,
}

/// An entry of the map. Its counters never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Runs {
    /// Number of hits of probes.
    pub(crate) hits: u64,
    /// Number of measured runs.
    pub(crate) timed: u64,
    /// Total run time of the measured runs, in nanoseconds.
    pub(crate) timed_ns: u64,
    /// Estimated run time of programs that no trap or interrupt calls, in nanoseconds.
    pub(crate) untrapped_ns: u64,
    /// Number of sampling interrupts.
    pub(crate) interrupts: u64,
    /// In the entry of [`OTHERS`], the process that hit a probe last.
    last_tgid: u64,
}

impl Runs {
    fn decode(value: &[u8]) -> Option<Self> {
        Some(Self {
            hits: word(value, 0)?,
            timed: word(value, 8)?,
            timed_ns: word(value, 16)?,
            untrapped_ns: word(value, 24)?,
            interrupts: word(value, 32)?,
            last_tgid: word(value, 40)?,
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
            interrupts: self.interrupts.saturating_sub(before.interrupts),
            last_tgid: self.last_tgid,
        }
    }

    /// Average run time, if runs were measured.
    pub(crate) fn average_ns(&self) -> Option<f64> {
        (self.timed > 0).then(|| self.timed_ns as f64 / self.timed as f64)
    }

    /// Returns the cost of these runs. `run_ns` is the average run time, and `missed_hits` are hits without a run.
    fn cost(&self, target: u64, run_ns: f64, missed_hits: f64, trap_costs: TrapCosts) -> Cost {
        let TrapCosts { probe_ns, interrupt_ns } = trap_costs;
        let probes_ns = self.hits as f64 * (probe_ns + run_ns) + missed_hits * probe_ns;
        let ns = probes_ns + self.interrupts as f64 * (interrupt_ns + run_ns);
        let hits = self.hits.saturating_add(self.interrupts).saturating_add(missed_hits as u64);
        let last_pid = Some(Pid(self.last_tgid as u32));
        Cost {
            pid: (target & u64::from(u32::MAX)) as u32,
            hits,
            ns: (ns as u64).saturating_add(self.untrapped_ns),
            probes_ns: probes_ns as u64,
            last_pid: last_pid.filter(|pid| pid.0 > 0 && target == OTHERS && sees_initial_pids()),
            run_ns: self.timed_ns.saturating_mul(TIMED_ONE_IN),
        }
    }
}

/// Costs of all JVMs of a tracer.
pub(crate) struct Costs {
    map: MapHandle,
    seen: HashMap<u64, Runs>,
    /// Number of hits that the kernel side did not count, by JVM.
    missed_hits: HashMap<u64, f64>,
    all: Runs,
}

impl Costs {
    /// Creates an instance without costs. From here on, hits are counted in the map.
    pub(super) fn new(map: MapHandle) -> Self {
        let (seen, missed_hits) = (HashMap::new(), HashMap::new());
        let costs = Self { map, seen, missed_hits, all: Runs::default() };
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
        let new = runs.since(&self.seen.insert(target, runs).unwrap_or_default());
        self.all.timed += new.timed;
        self.all.timed_ns += new.timed_ns;
        let missed_hits = self.missed_hits.remove(&target).unwrap_or(0.0);
        let average = if new.timed >= ENOUGH_RUNS { new } else { runs };
        let run_ns = average.average_ns().or(self.all.average_ns()).unwrap_or(0.0);
        let cost = new.cost(target, run_ns, missed_hits, trap_costs());
        (cost.hits > 0 || cost.ns > 0).then_some(cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_hits_and_sampling_interrupts_are_told_apart() {
        let prices = TrapCosts { probe_ns: 1000.0, interrupt_ns: 5000.0 };
        let runs = Runs { hits: 10, interrupts: 3, untrapped_ns: 7, ..Runs::default() };
        let cost = runs.cost(42, 500.0, 2.0, prices);
        assert_eq!((cost.pid, cost.hits), (42, 15));
        assert_eq!((cost.probes_ns, cost.ns), (17_000, 17_000 + 16_500 + 7));
        assert_eq!(cost.last_pid, None);
    }
}

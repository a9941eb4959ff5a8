//! The set of collected measures, and the reductions by which the daemon collects less.

use crate::collect::{costs::Costs, waits::WAIT};

/// The set of measures that are collected. Pauses are always collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measures {
    /// CPU samples per second; 0 for none.
    pub hertz: u64,
    /// Whether the sampler also records off-CPU time.
    pub off_cpu: bool,
    /// Whether waits are collected.
    pub waits: bool,
    /// Whether allocation is collected.
    pub allocation: bool,
}

impl Measures {
    /// Returns each measure by name, and whether it is collected.
    pub fn kinds(self) -> [(&'static str, bool); 4] {
        [
            ("cpu", self.hertz > 0),
            ("off-cpu", self.off_cpu),
            (WAIT, self.waits),
            ("alloc", self.allocation),
        ]
    }
}

/// One step down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reduction {
    Waits,
    OffCpu,
    Allocation,
    /// Halves the sampling rate.
    Rate,
    Samples,
}

impl Reduction {
    fn apply(self, to: Measures) -> Measures {
        match self {
            Self::Waits => Measures { waits: false, ..to },
            Self::OffCpu => Measures { off_cpu: false, ..to },
            Self::Allocation => Measures { allocation: false, ..to },
            Self::Rate => Measures { hertz: (to.hertz / 2).max(1), ..to },
            Self::Samples => Measures { hertz: 0, ..to },
        }
    }

    /// Returns the CPU time that the reduction saves at most of these costs, in nanoseconds.
    fn saves_ns(self, costs: Costs) -> u64 {
        match self {
            Self::Waits => costs.waits_ns,
            Self::OffCpu => costs.samples_ns,
            Self::Allocation => costs.allocation_ns,
            // Sampling is switched off only if halving the rate was worth it, too.
            Self::Rate | Self::Samples => costs.samples_ns / 2,
        }
    }
}

/// The reductions, in the order of preference, and those that are in force.
#[derive(Debug)]
pub struct Ladder {
    configured: Measures,
    /// Each reduction, and whether it is in force.
    reductions: Vec<(Reduction, bool)>,
    /// Indexes of the reductions in force, the latest last.
    in_force: Vec<usize>,
}

impl Ladder {
    /// Starts with all configured measures. First, waits are dropped, because a single JVM with many waits could otherwise
    /// cause steps that affect the CPU samples of all JVMs. Then the sampling rate is halved twice, then off-CPU time is
    /// dropped, then allocation. Then the rate is halved down to one sample per second, and finally sampling stops.
    pub fn new(configured: Measures) -> Self {
        use Reduction::{Allocation, OffCpu, Rate, Samples, Waits};
        let mut at = configured;
        let mut reductions = Vec::new();
        let halvings = std::iter::repeat_n(Rate, u64::BITS as usize);
        let all =
            [Waits, Rate, Rate, OffCpu, Allocation].into_iter().chain(halvings).chain([Samples]);
        for reduction in all {
            let next = reduction.apply(at);
            if next != at {
                reductions.push((reduction, false));
            }
            at = next;
        }
        Self { configured, reductions, in_force: Vec::new() }
    }

    /// Returns the configured measures.
    pub fn configured(&self) -> Measures {
        self.configured
    }

    /// Returns the measures that are collected now.
    pub fn current(&self) -> Measures {
        let in_force = self.reductions.iter().filter(|(_, is_in_force)| *is_in_force);
        in_force.fold(self.configured, |measures, (reduction, _)| reduction.apply(measures))
    }

    /// Returns the number of reductions in force.
    pub fn step(&self) -> usize {
        self.in_force.len()
    }

    /// Returns the number of all reductions.
    pub fn steps(&self) -> usize {
        self.reductions.len()
    }

    /// Applies the first reduction that saves at least `min_ns` of these costs. Returns whether there is one.
    pub fn step_down(&mut self, costs: Costs, min_ns: u64) -> bool {
        let is_worth = |&(reduction, is_in_force): &(Reduction, bool)| {
            !is_in_force && reduction.saves_ns(costs) >= min_ns
        };
        let Some(index) = self.reductions.iter().position(is_worth) else { return false };
        self.reductions[index].1 = true;
        self.in_force.push(index);
        true
    }

    /// Withdraws the latest reduction.
    pub fn step_up(&mut self) {
        if let Some(index) = self.in_force.pop() {
            self.reductions[index].1 = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIGURED: Measures =
        Measures { hertz: 19, off_cpu: false, waits: false, allocation: true };

    fn all_steps(configured: Measures) -> Vec<Measures> {
        let mut ladder = Ladder::new(configured);
        let mut steps = vec![ladder.current()];
        while ladder.step_down(Costs::default(), 0) {
            steps.push(ladder.current());
        }
        assert_eq!(ladder.step(), ladder.steps());
        for expected in steps.iter().rev() {
            assert_eq!(ladder.current(), *expected);
            ladder.step_up();
        }
        steps
    }

    #[test]
    fn waits_drop_first_then_the_sampling_rate_then_other_kinds_of_data() {
        let steps = all_steps(Measures { off_cpu: true, waits: true, ..CONFIGURED });
        let actual: Vec<_> =
            steps.iter().map(|t| (t.hertz, t.off_cpu, t.waits, t.allocation)).collect();
        let expected = [
            (19, true, true, true),
            (19, true, false, true),
            (9, true, false, true),
            (4, true, false, true),
            (4, false, false, true),
            (4, false, false, false),
            (2, false, false, false),
            (1, false, false, false),
            (0, false, false, false),
        ];
        assert_eq!(actual, expected);
        let one = all_steps(Measures { hertz: 1, allocation: false, ..CONFIGURED });
        assert_eq!(one.iter().map(|t| t.hertz).collect::<Vec<_>>(), [1, 0]);
    }

    #[test]
    fn measures_that_cost_little_are_kept() {
        let mut ladder = Ladder::new(Measures { waits: true, ..CONFIGURED });
        let costs = Costs { samples_ns: 10, waits_ns: 4, allocation_ns: 90, fixed_ns: 1000 };
        assert!(ladder.step_down(costs, 20));
        assert_eq!(ladder.current(), Measures { waits: true, allocation: false, ..CONFIGURED });
        let after = Costs { allocation_ns: 0, ..costs };
        assert!(!ladder.step_down(after, 20));
        assert!(ladder.step_down(after, 5));
        assert_eq!((ladder.current().hertz, ladder.current().waits), (9, true));
        ladder.step_up();
        ladder.step_up();
        assert_eq!((ladder.step(), ladder.current().allocation), (0, true));
    }
}

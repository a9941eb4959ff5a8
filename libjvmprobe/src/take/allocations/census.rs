//! Reads full TLABs: what is in them, object by object.
//!
//! The objects that begin TLABs are a sample of one in many thousands, and a lopsided one:
//! those that do not fit into a rest of a TLAB begin the next one, and a program that does
//! the same over and over may always begin it with the same class. What lies in a TLAB is
//! what was allocated. So of all full TLABs some, chosen at random by the kernel side, are
//! read while they are fresh. As many as a small share of one processor allows: the
//! chance adapts.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The chance to begin with: no flood, whatever the rate.
const FIRST_SHARE: f64 = 0.2;
/// Below this the estimate rests on too little.
const LEAST_SHARE: f64 = 1e-4;
/// The chance doubles at most at each step.
const STEP: f64 = 2.0;

/// How likely a full TLAB is read, so that all reading stays within its budget.
#[derive(Debug)]
pub(crate) struct Budget {
    /// The share of one processor's time that reading may take.
    allowed: f64,
    share: f64,
    spent: Duration,
}

impl Budget {
    /// Nothing spent yet of this share of one processor's time.
    pub(crate) fn new(allowed: f64) -> Self {
        Self { allowed, share: FIRST_SHARE, spent: Duration::ZERO }
    }

    /// The chance of a full TLAB to be read.
    pub(crate) fn share(&self) -> f64 {
        self.share
    }

    /// Runs something on the budget.
    pub(crate) fn spend<T>(&mut self, read: impl FnOnce() -> T) -> T {
        let begin = processor_time();
        let result = read();
        self.spent += processor_time().saturating_sub(begin);
        result
    }

    /// Adapts the chance to what was spent in a time, and returns it.
    pub(crate) fn adapt(&mut self, elapsed: Duration) -> f64 {
        let allowed = elapsed.as_secs_f64() * self.allowed;
        let spent = self.spent.as_secs_f64();
        let factor = if spent > 0.0 { allowed / spent } else { STEP };
        self.share = (self.share * factor.clamp(1.0 / STEP, STEP)).clamp(LEAST_SHARE, 1.0);
        self.spent = Duration::ZERO;
        self.share
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chance_follows_the_budget() {
        let second = Duration::from_secs(1);
        let mut budget = Budget::new(0.01);
        // Nothing to read: read all of it.
        for _ in 0..10 {
            budget.adapt(second);
        }
        assert_eq!(budget.share(), 1.0);
        // Four times too much: half, then half again.
        budget.spent = Duration::from_millis(40);
        assert_eq!(budget.adapt(second), 0.5);
        budget.spent = Duration::from_millis(20);
        assert_eq!(budget.adapt(second), 0.25);
        budget.spent = Duration::from_millis(10);
        assert_eq!(budget.adapt(second), 0.25);
        for _ in 0..100 {
            budget.spent = second;
            budget.adapt(second);
        }
        assert_eq!(budget.share(), LEAST_SHARE);
    }
}

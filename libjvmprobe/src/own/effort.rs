//! How much of something is done, so that it takes a small part of a processor only: of what is a
//! sample anyway, more or less can be taken.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The share to begin with: no flood, whatever the rate.
const FIRST_SHARE: f64 = 0.2;
/// Below this the estimate rests on too little.
const LEAST_SHARE: f64 = 1e-4;
/// The share doubles at most at each step.
const STEP: f64 = 2.0;

/// Which share of something is done, so that all of it stays within what it may take.
#[derive(Debug)]
pub(crate) struct Effort {
    /// The share of one processor's time that it may take.
    allowed: f64,
    /// How long there may be nothing to do before it does more.
    patience: Duration,
    share: f64,
    spent: Duration,
    elapsed: Duration,
}

impl Effort {
    /// Nothing spent yet of this share of one processor's time. Where there was nothing to do, it
    /// does more, at once.
    pub(crate) fn new(allowed: f64) -> Self {
        let (spent, elapsed) = (Duration::ZERO, Duration::ZERO);
        Self { allowed, patience: Duration::ZERO, share: FIRST_SHARE, spent, elapsed }
    }

    /// ... not before there was nothing to do for so long: what is to be done may come all at once.
    pub(crate) fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The share to do, of 1.
    pub(crate) fn share(&self) -> f64 {
        self.share
    }

    /// Does something that counts.
    pub(crate) fn spend<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let begin = processor_time();
        let result = work();
        self.spent += processor_time().saturating_sub(begin);
        result
    }

    /// Adapts the share to what was spent in a time, and returns it.
    pub(crate) fn adapt(&mut self, elapsed: Duration) -> f64 {
        self.elapsed += elapsed;
        if self.spent.is_zero() && self.elapsed < self.patience {
            return self.share;
        }
        let allowed = std::mem::take(&mut self.elapsed).as_secs_f64() * self.allowed;
        let spent = self.spent.as_secs_f64();
        let factor = if spent > 0.0 { allowed / spent } else { STEP };
        self.share = (self.share * factor.clamp(1.0 / STEP, STEP)).clamp(LEAST_SHARE, 1.0);
        self.spent = Duration::ZERO;
        self.share
    }
}

/// Returns the CPU time of this thread.
pub(crate) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_follows_what_is_spent() {
        let second = Duration::from_secs(1);
        let mut effort = Effort::new(0.01);
        // Nothing to do: do all of it.
        for _ in 0..10 {
            effort.adapt(second);
        }
        assert_eq!(effort.share(), 1.0);
        // Four times too much: half, then half again.
        effort.spent = Duration::from_millis(40);
        assert_eq!(effort.adapt(second), 0.5);
        effort.spent = Duration::from_millis(20);
        assert_eq!(effort.adapt(second), 0.25);
        effort.spent = Duration::from_millis(10);
        assert_eq!(effort.adapt(second), 0.25);
        // What comes all at once is measured by the time since the last.
        let mut effort = Effort::new(0.01).with_patience(10 * second);
        for _ in 0..20 {
            for _ in 0..4 {
                let before = effort.share();
                assert_eq!(effort.adapt(second), before);
            }
            effort.spent = Duration::from_millis(50);
            assert_eq!(effort.adapt(second), FIRST_SHARE);
        }
        for _ in 0..10 {
            effort.adapt(second);
        }
        assert_eq!(effort.share(), 2.0 * FIRST_SHARE);
        for _ in 0..100 {
            effort.spent = second;
            effort.adapt(second);
        }
        assert_eq!(effort.share(), LEAST_SHARE);
    }
}

//! Limits the CPU time of sampling work: only a share of the work is done, and this share is adapted so that
//! the CPU time stays within a limit.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Initial share, small enough for any rate of work.
const FIRST_SHARE: f64 = 0.2;
/// Minimum share. With a smaller one, the estimates would be based on too few samples.
const MIN_SHARE: f64 = 1e-4;
/// Maximum factor by which one step changes the share.
const STEP: f64 = 2.0;

/// Share of some work that is done, adapted so that the CPU time of the work stays within a limit.
#[derive(Debug)]
pub(crate) struct Effort {
    /// Maximum CPU time per elapsed time, as a share of one processor.
    allowed: f64,
    /// Time without work after which the share is raised.
    raise_delay: Duration,
    share: f64,
    spent: Duration,
    elapsed: Duration,
}

impl Effort {
    /// Creates an [`Effort`] for work that may use `allowed`, a share of one processor's time. While there is
    /// no work, each call of [`adapt`](Self::adapt) raises the share of the work that is done.
    pub(crate) fn new(allowed: f64) -> Self {
        let (spent, elapsed) = (Duration::ZERO, Duration::ZERO);
        Self { allowed, raise_delay: Duration::ZERO, share: FIRST_SHARE, spent, elapsed }
    }

    /// Returns an [`Effort`] that raises its share only after this time without work. This is for work that
    /// arrives in batches.
    pub(crate) fn with_raise_delay(self, raise_delay: Duration) -> Self {
        Self { raise_delay, ..self }
    }

    /// Returns the share of the work to do, between 0 and 1.
    pub(crate) fn share(&self) -> f64 {
        self.share
    }

    /// Runs work and adds its CPU time to the time spent.
    pub(crate) fn spend<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let begin = thread_cpu_time();
        let result = work();
        self.spent += thread_cpu_time().saturating_sub(begin);
        result
    }

    /// Adapts the share to the CPU time spent during `elapsed`, and returns the new share.
    pub(crate) fn adapt(&mut self, elapsed: Duration) -> f64 {
        self.elapsed += elapsed;
        if self.spent.is_zero() && self.elapsed < self.raise_delay {
            return self.share;
        }
        let allowed = std::mem::take(&mut self.elapsed).as_secs_f64() * self.allowed;
        let spent = self.spent.as_secs_f64();
        let factor = if spent > 0.0 { allowed / spent } else { STEP };
        self.share = (self.share * factor.clamp(1.0 / STEP, STEP)).clamp(MIN_SHARE, 1.0);
        self.spent = Duration::ZERO;
        self.share
    }
}

/// Returns the CPU time of this thread.
pub(crate) fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_adapts_to_the_cpu_time_spent() {
        let second = Duration::from_secs(1);
        let mut effort = Effort::new(0.01);
        // Without work, the share rises to 1.
        for _ in 0..10 {
            effort.adapt(second);
        }
        assert_eq!(effort.share(), 1.0);
        // CPU time is four times the limit: the share is halved twice.
        effort.spent = Duration::from_millis(40);
        assert_eq!(effort.adapt(second), 0.5);
        effort.spent = Duration::from_millis(20);
        assert_eq!(effort.adapt(second), 0.25);
        effort.spent = Duration::from_millis(10);
        assert_eq!(effort.adapt(second), 0.25);
        // CPU time of a batch is compared with the time since the last batch.
        let mut effort = Effort::new(0.01).with_raise_delay(10 * second);
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
        assert_eq!(effort.share(), MIN_SHARE);
    }
}

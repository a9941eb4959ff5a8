//! Clocks of this process: the wall clock, which can be set, and the time since boot, which cannot.
//!
//! Source: clock_gettime(2). `CLOCK_REALTIME` and `CLOCK_BOOTTIME` run at the same rate. Their difference
//! changes only if a person, an NTP client or a hypervisor sets the wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Maximum difference between the length of an interval on the wall clock and its length in time since boot,
/// in nanoseconds. A larger difference means that the wall clock was set. In intervals shorter than two
/// seconds, the maximum is half of the interval.
const STEP: u64 = 1_000_000_000;

/// An instant on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Wall clock, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// Time since boot including suspend, in nanoseconds.
    pub boot_ns: u64,
}

impl Now {
    /// Reads both clocks.
    pub fn read() -> Self {
        let boot = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(boot.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000);
        let boot_ns = seconds.saturating_add(u64::try_from(boot.tv_nsec).unwrap_or(0));
        Self { unix_ns: unix_ns(), boot_ns }
    }

    /// Returns the instant this many nanoseconds earlier.
    pub fn before(self, ns: u64) -> Self {
        let Self { unix_ns, boot_ns } = self;
        Self { unix_ns: unix_ns.saturating_sub(ns), boot_ns: boot_ns.saturating_sub(ns) }
    }
}

/// Reads the wall clock, in nanoseconds since 1970.
pub fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Successive intervals of wall-clock time. Their lengths come from the time since boot, so that setting the
/// wall clock makes no interval shorter or longer.
#[derive(Clone, Copy, Debug)]
pub struct Intervals {
    begin: Now,
}

impl Intervals {
    /// Begins the first interval.
    pub fn start(now: Now) -> Self {
        Self { begin: now }
    }

    /// Ends an interval and begins the next one. Returns begin and end in nanoseconds since 1970.
    ///
    /// An interval begins where the one before it ended. If the wall clock was set during the interval, the
    /// interval ends at the new wall-clock time, and its begin is that time minus its length.
    pub fn next(&mut self, now: Now) -> (u64, u64) {
        let length = now.boot_ns.saturating_sub(self.begin.boot_ns);
        let step = self.begin.unix_ns.saturating_add(length).abs_diff(now.unix_ns);
        let begin_ns = match step > STEP.min(length / 2) {
            true => now.unix_ns.saturating_sub(length),
            false => self.begin.unix_ns,
        };
        self.begin = now;
        (begin_ns, now.unix_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const HOUR: i64 = 3600;

    /// Returns one interval of 15 seconds for each step. The wall clock is set at the begin of each interval:
    /// forward by the step, in seconds, or backward if the step is negative.
    fn intervals(steps: &[i64]) -> Vec<(u64, u64)> {
        let mut now = Now { unix_ns: 1_800_000_000 * SECOND, boot_ns: 77 };
        let mut intervals = Intervals::start(now);
        let next = |&step: &i64| {
            let step = step.saturating_mul(SECOND.cast_signed());
            now.unix_ns = now.unix_ns.saturating_add_signed(step) + 15 * SECOND;
            now.boot_ns += 15 * SECOND;
            intervals.next(now)
        };
        steps.iter().map(next).collect()
    }

    #[test]
    fn intervals_are_contiguous_without_clock_steps() {
        let all = intervals(&[0, 0, 0]);
        assert!(all.windows(2).all(|two| two[0].1 == two[1].0));
        assert!(all.iter().all(|(begin, end)| end - begin == 15 * SECOND));
    }

    #[test]
    fn clock_step_changes_no_interval_length() {
        let steps = [0, -HOUR, 0, 25 * HOUR, 0, -25 * HOUR, 0, -10, 2];
        let all = intervals(&steps);
        assert!(all.iter().all(|(begin, end)| end - begin == 15 * SECOND), "{all:?}");
        // An interval begins at the wall-clock time at which the previous interval ended, plus the step by
        // which the clock was set in between.
        for (two, &step) in all.windows(2).zip(&steps[1..]) {
            assert_eq!(two[0].1.saturating_add_signed(step * 1_000_000_000), two[1].0);
        }
    }

    #[test]
    fn small_clock_drift_leaves_no_gap() {
        let start = Now { unix_ns: 100 * SECOND, boot_ns: 0 };
        let mut intervals = Intervals::start(start);
        let next = Now { unix_ns: 115 * SECOND + 900, boot_ns: 15 * SECOND };
        assert_eq!(intervals.next(next), (start.unix_ns, next.unix_ns));
        // During a very short last interval, drift may move the wall clock backward, but the interval is not
        // empty.
        let last = Now { unix_ns: 115 * SECOND, boot_ns: 15 * SECOND + 1000 };
        assert_eq!(intervals.next(last), (115 * SECOND - 1000, 115 * SECOND));
    }

    #[test]
    fn wall_and_boot_clocks_advance() {
        let first = Now::read();
        let second = Now::read();
        assert!(first.unix_ns > 1_600_000_000 * SECOND && first.boot_ns > 0);
        assert!(second.boot_ns >= first.boot_ns);
    }
}

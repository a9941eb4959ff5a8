//! Times of a trace: ticks, reports and the end.

use std::time::{Duration, Instant};

/// Added to timeouts, because poll() waits only for whole milliseconds. Otherwise, the loop would spin during
/// the last fraction of a millisecond.
const ROUND_UP: Duration = Duration::from_micros(999);

/// Next times of a trace's ticks, reports and end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    tick: Duration,
    next_tick: Instant,
    deadline: Option<Instant>,
    interval: Option<Duration>,
    next_report: Option<Instant>,
    reports_left: u64,
}

/// Actions that are due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Due {
    /// A periodic check.
    pub(crate) tick: bool,
    /// A report.
    pub(crate) report: bool,
    /// The end: the duration has elapsed, or this is the last report.
    pub(crate) end: bool,
}

impl Schedule {
    /// Starts a schedule at `now`, with ticks at intervals of `tick`. If `interval` is given, reports are due
    /// at intervals of this length. The schedule ends after `count` reports or after `duration`; `None` sets
    /// no limit.
    pub(crate) fn new(
        now: Instant,
        tick: Duration,
        duration: Option<Duration>,
        interval: Option<Duration>,
        count: Option<u64>,
    ) -> Self {
        Self {
            tick,
            next_tick: now + tick,
            deadline: duration.map(|duration| now + duration),
            interval,
            next_report: interval.map(|interval| now + interval),
            reports_left: count.unwrap_or(u64::MAX),
        }
    }

    /// Returns the time until the next action, or until `other` if that is earlier.
    pub(crate) fn timeout(&self, now: Instant, other: Option<Instant>) -> Duration {
        let others = [self.next_report, self.deadline, other].into_iter().flatten();
        others.fold(self.next_tick, Instant::min).saturating_duration_since(now) + ROUND_UP
    }

    /// Returns the actions that are due now, and schedules the next ones.
    pub(crate) fn due(&mut self, now: Instant) -> Due {
        let mut due = Due { end: self.deadline.is_some_and(|at| now >= at), ..Due::default() };
        if let (Some(at), Some(interval)) = (self.next_report, self.interval)
            && now >= at
            && !due.end
        {
            // Based on the planned time, so that late wake-ups do not accumulate.
            self.next_report = Some(at + interval);
            self.reports_left -= 1;
            due.report = true;
            due.end = self.reports_left == 0;
        }
        if now >= self.next_tick {
            self.next_tick = now + self.tick;
            due.tick = true;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn due(tick: bool, report: bool, end: bool) -> Due {
        Due { tick, report, end }
    }

    #[test]
    fn schedule_ends_with_the_last_periodic_report() {
        let begin = Instant::now();
        let mut schedule = Schedule::new(begin, SECOND * 10, None, Some(SECOND), Some(3));
        assert_eq!(schedule.timeout(begin, None), SECOND + ROUND_UP);
        assert_eq!(schedule.due(begin), due(false, false, false));
        assert_eq!(schedule.due(begin + SECOND * 3 / 2), due(false, true, false));
        // The first report was late, but the second one is on time.
        assert_eq!(schedule.due(begin + SECOND * 2), due(false, true, false));
        assert_eq!(schedule.due(begin + SECOND * 2), due(false, false, false));
        assert_eq!(schedule.due(begin + SECOND * 3), due(false, true, true));
    }

    #[test]
    fn duration_ends_the_schedule_without_a_report() {
        let begin = Instant::now();
        let mut schedule =
            Schedule::new(begin, SECOND, Some(SECOND * 5 / 2), Some(SECOND * 5 / 2), None);
        assert_eq!(schedule.due(begin + SECOND), due(true, false, false));
        assert_eq!(schedule.timeout(begin + SECOND, Some(begin)), ROUND_UP);
        assert_eq!(schedule.due(begin + SECOND * 5 / 2), due(true, false, true));
    }
}

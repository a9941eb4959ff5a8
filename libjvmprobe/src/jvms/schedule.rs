//! Times of a trace: ticks, reports and the end.

use std::time::{Duration, Instant};

use crate::jvms::Times;

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
    /// Starts a schedule at `now`, with ticks at intervals of `times.pace.tick()`.
    pub(crate) fn new(now: Instant, times: Times) -> Self {
        let Times { duration, interval, aligned_to, count, pace } = times;
        Self {
            tick: pace.tick(),
            next_tick: now + pace.tick(),
            deadline: duration.map(|duration| now + duration),
            interval,
            next_report: interval.map(|interval| next(aligned_to.unwrap_or(now), interval, now)),
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
            // Based on the planned time of this report, so that the delays of late wake-ups do not add up. Reports that
            // were missed, for example because this process was stopped, are not made up for.
            self.next_report = Some(next(at, interval, now));
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

/// Returns the first time after `now` that is a whole number of intervals after `begin`.
pub fn next(begin: Instant, interval: Duration, now: Instant) -> Instant {
    let elapsed = now.saturating_duration_since(begin).as_nanos();
    let into_interval = elapsed.checked_rem(interval.as_nanos()).unwrap_or_default();
    let into_interval = Duration::from_nanos(u64::try_from(into_interval).unwrap_or_default());
    begin.max(now) - into_interval + interval
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn due(tick: bool, report: bool, end: bool) -> Due {
        Due { tick, report, end }
    }

    fn schedule(
        begin: Instant,
        tick: Duration,
        duration: Option<Duration>,
        interval: Duration,
        count: Option<u64>,
    ) -> Schedule {
        let times = Times { duration, interval: Some(interval), count, ..Times::default() };
        Schedule { tick, next_tick: begin + tick, ..Schedule::new(begin, times) }
    }

    #[test]
    fn aligned_reports_come_at_multiples_of_the_interval() {
        let begin = Instant::now();
        let at = |now| next(begin, SECOND * 15, now);
        assert_eq!(at(begin), begin + SECOND * 15);
        assert_eq!(at(begin + SECOND * 44), begin + SECOND * 45);
        assert_eq!(at(begin + SECOND * 45), begin + SECOND * 60);
    }

    #[test]
    fn schedule_ends_with_the_last_periodic_report() {
        let begin = Instant::now();
        let mut schedule = schedule(begin, SECOND * 10, None, SECOND, Some(3));
        assert_eq!(schedule.timeout(begin, None), SECOND + ROUND_UP);
        assert_eq!(schedule.due(begin), due(false, false, false));
        assert_eq!(schedule.due(begin + SECOND * 3 / 2), due(false, true, false));
        // The first report was late, but the second one is on time.
        assert_eq!(schedule.due(begin + SECOND * 2), due(false, true, false));
        assert_eq!(schedule.due(begin + SECOND * 2), due(false, false, false));
        assert_eq!(schedule.due(begin + SECOND * 3), due(false, true, true));
    }

    #[test]
    fn missed_reports_are_not_made_up_for() {
        let begin = Instant::now();
        let mut schedule = schedule(begin, SECOND * 100, None, SECOND, Some(2));
        assert_eq!(schedule.due(begin + SECOND * 21 / 2), due(false, true, false));
        assert_eq!(schedule.due(begin + SECOND * 21 / 2), due(false, false, false));
        assert_eq!(schedule.due(begin + SECOND * 11), due(false, true, true));
    }

    #[test]
    fn duration_ends_the_schedule_without_a_report() {
        let begin = Instant::now();
        let mut schedule = schedule(begin, SECOND, Some(SECOND * 5 / 2), SECOND * 5 / 2, None);
        assert_eq!(schedule.due(begin + SECOND), due(true, false, false));
        assert_eq!(schedule.timeout(begin + SECOND, Some(begin)), ROUND_UP);
        assert_eq!(schedule.due(begin + SECOND * 5 / 2), due(true, false, true));
    }
}

//! When a trace looks around, when it reports, and when it ends.

use std::time::{Duration, Instant};

/// poll() counts whole milliseconds: without this, the last one would be spent spinning.
const ROUND_UP: Duration = Duration::from_micros(999);

/// The times of a trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    tick: Duration,
    next_tick: Instant,
    deadline: Option<Instant>,
    interval: Option<Duration>,
    next_report: Option<Instant>,
    reports_left: u64,
}

/// What is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Due {
    /// To look around.
    pub(crate) tick: bool,
    /// To report.
    pub(crate) report: bool,
    /// To end: the time is up, or this is the last report.
    pub(crate) end: bool,
}

impl Schedule {
    /// From now on: looks around each `tick`; reports each `interval`, `count` times; ends
    /// after `duration`. What is not given is not limited.
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

    /// How long nothing is due, not what is due at another time either.
    pub(crate) fn timeout(&self, now: Instant, other: Option<Instant>) -> Duration {
        let others = [self.next_report, self.deadline, other].into_iter().flatten();
        others.fold(self.next_tick, Instant::min).saturating_duration_since(now) + ROUND_UP
    }

    /// What is due now, once.
    pub(crate) fn due(&mut self, now: Instant) -> Due {
        let mut due = Due { end: self.deadline.is_some_and(|at| now >= at), ..Due::default() };
        if let (Some(at), Some(interval)) = (self.next_report, self.interval)
            && now >= at
            && !due.end
        {
            // Late wake-ups do not add up.
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
    fn reports_come_at_their_times_and_the_last_one_ends_it() {
        let begin = Instant::now();
        let mut schedule = Schedule::new(begin, SECOND * 10, None, Some(SECOND), Some(3));
        assert_eq!(schedule.timeout(begin, None), SECOND + ROUND_UP);
        assert_eq!(schedule.due(begin), due(false, false, false));
        assert_eq!(schedule.due(begin + SECOND * 3 / 2), due(false, true, false));
        // The first came late, the second does not.
        assert_eq!(schedule.due(begin + SECOND * 2), due(false, true, false));
        assert_eq!(schedule.due(begin + SECOND * 2), due(false, false, false));
        assert_eq!(schedule.due(begin + SECOND * 3), due(false, true, true));
    }

    #[test]
    fn a_duration_ends_it_without_a_report() {
        let begin = Instant::now();
        let mut schedule =
            Schedule::new(begin, SECOND, Some(SECOND * 5 / 2), Some(SECOND * 5 / 2), None);
        assert_eq!(schedule.due(begin + SECOND), due(true, false, false));
        assert_eq!(schedule.timeout(begin + SECOND, Some(begin)), ROUND_UP);
        assert_eq!(schedule.due(begin + SECOND * 5 / 2), due(true, false, true));
    }
}

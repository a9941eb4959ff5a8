//! The loop that every tool runs: events, new processes, a look around now and then, reports at
//! their times, the end.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use crate::{
    Result,
    follow::{Due, Schedule},
    own::Pace,
};

/// When a trace reports, and when it ends; what is not given is not limited.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// How long it takes.
    pub duration: Option<Duration>,
    /// How often it reports.
    pub interval: Option<Duration>,
    /// How many times.
    pub count: Option<u64>,
    /// How often it looks around.
    pub pace: Pace,
}

/// Why a trace has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its time is over, it was asked to end, or nobody reads what it writes.
    Time,
    /// It has made its last report.
    Reported,
    /// Nothing is left to trace.
    NobodyLeft,
}

/// What is followed.
pub trait Watch {
    /// Waits for events, up to `timeout`, and takes them.
    ///
    /// # Errors
    /// Where the trace cannot go on; so below.
    fn take_events(&mut self, timeout: Duration) -> Result<()>;

    /// When to [look](Watch::look) before the next tick, if nothing ends the wait for events before.
    fn next_look(&self) -> Option<Instant> {
        None
    }

    /// Adds what is new.
    ///
    /// # Errors
    /// As above.
    fn look(&mut self) -> Result<()>;

    /// Notices what has ended or changed. `collect` is true about once a second, or
    /// once in some: then what was counted is taken.
    ///
    /// # Errors
    /// As above.
    fn tick(&mut self, collect: bool) -> Result<()>;

    /// Reports an interval.
    ///
    /// # Errors
    /// As above.
    fn report(&mut self) -> Result<()>;

    /// Reports the last interval. Where that is done when nothing more can come, not here.
    ///
    /// # Errors
    /// As above.
    fn report_last(&mut self) -> Result<()> {
        self.report()
    }

    /// Whether nothing is left that could be followed.
    fn is_over(&self) -> bool;

    /// Whether nobody reads what is written.
    fn is_closed(&self) -> bool {
        false
    }
}

/// Follows until it is time to end.
///
/// # Errors
/// What the methods of `watch` say.
pub fn run<W: Watch>(watch: &mut W, times: Times, stop: &AtomicBool) -> Result<End> {
    let Times { duration, interval, count, pace } = times;
    let mut schedule = Schedule::new(Instant::now(), pace.tick(), duration, interval, count);
    let mut ticks = 0_u32;
    loop {
        watch.take_events(schedule.timeout(Instant::now(), watch.next_look()))?;
        watch.look()?;
        let Due { tick, report, end } = schedule.due(Instant::now());
        if stop.load(Ordering::Relaxed) || watch.is_closed() {
            return Ok(End::Time);
        }
        match (report, end) {
            (true, false) => watch.report()?,
            (true, true) => {
                watch.report_last()?;
                return Ok(End::Reported);
            }
            (false, true) => return Ok(End::Time),
            (false, false) => {}
        }
        if tick {
            ticks = ticks.wrapping_add(1);
            watch.tick(ticks.is_multiple_of(pace.ticks_to_collect()))?;
            if watch.is_over() {
                return Ok(End::NobodyLeft);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts what it is told to do; is over after some ticks.
    #[derive(Default)]
    struct Counts {
        reports: u32,
        ticks: u32,
        collections: u32,
        over_after: u32,
    }

    impl Watch for Counts {
        fn take_events(&mut self, timeout: Duration) -> Result<()> {
            std::thread::sleep(timeout);
            Ok(())
        }

        fn look(&mut self) -> Result<()> {
            Ok(())
        }

        fn tick(&mut self, collect: bool) -> Result<()> {
            self.ticks += 1;
            self.collections += u32::from(collect);
            Ok(())
        }

        fn report(&mut self) -> Result<()> {
            self.reports += 1;
            Ok(())
        }

        fn is_over(&self) -> bool {
            self.ticks == self.over_after
        }
    }

    fn follow(times: Times, over_after: u32, stop: bool) -> (End, Counts) {
        let mut counts = Counts { over_after, ..Default::default() };
        let end = run(&mut counts, times, &AtomicBool::new(stop)).unwrap();
        (end, counts)
    }

    #[test]
    fn the_last_report_ends_it() {
        let interval = Some(Duration::from_millis(2));
        let (end, counts) =
            follow(Times { interval, count: Some(3), ..Times::default() }, 99, false);
        assert_eq!((end, counts.reports), (End::Reported, 3));
    }

    #[test]
    fn it_ends_when_nobody_is_left_or_the_time_is_over() {
        let (end, counts) = follow(Times::default(), 6, false);
        assert_eq!((end, counts.ticks, counts.collections), (End::NobodyLeft, 6, 1));
        let duration = Some(Duration::from_millis(1));
        assert_eq!(follow(Times { duration, ..Default::default() }, 9, false).0, End::Time);
        assert_eq!(follow(Times::default(), 9, true).0, End::Time);
    }
}

//! Main loop of every tool: handles events and new processes, runs periodic checks, reports on schedule, and ends.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use crate::{
    Result,
    jvms::{Due, Schedule},
    sys::Pace,
};

/// Times at which a trace reports and ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// Duration of the trace; `None` if it is not limited.
    pub duration: Option<Duration>,
    /// Interval between reports; `None` for no periodic reports.
    pub interval: Option<Duration>,
    /// Time that the reports are aligned to: each report comes a whole number of intervals after this time.
    /// `None` aligns the reports to the start of the trace.
    pub aligned_to: Option<Instant>,
    /// Number of reports after which the trace ends; `None` if it is not limited.
    pub count: Option<u64>,
    /// Determines the intervals of periodic work.
    pub pace: Pace,
}

/// Reason why a trace has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The duration has elapsed, `stop` was set, or the reader of the output has gone.
    Time,
    /// The last report was made.
    Reported,
    /// Nothing is left to trace.
    NothingLeft,
}

/// Work of a tick beyond the checks that every tick makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tick {
    /// Counters are read: about once per second, or every 16 seconds with a calm pace, unless a report has read them
    /// since.
    pub collect: bool,
    /// Checks that take some system calls per JVM are made: for lost events and for processes that run another program
    /// (exec). With a calm pace, this is true as often as counters are read.
    pub closely: bool,
}

/// Callbacks of the main loop.
pub trait Watch {
    /// Waits at most `timeout` for events and processes them.
    ///
    /// # Errors
    /// Returns an error if the trace cannot continue.
    fn take_events(&mut self, timeout: Duration) -> Result<()>;

    /// Returns the time by which [`poll`](Watch::poll) must be called, or `None` if a call at the next tick
    /// is early enough. Events can cause earlier calls.
    fn next_poll(&self) -> Option<Instant> {
        None
    }

    /// Adds new processes.
    ///
    /// # Errors
    /// Returns an error if the trace cannot continue.
    fn poll(&mut self) -> Result<()>;

    /// Handles processes that have ended or now run another program.
    ///
    /// # Errors
    /// Returns an error if the trace cannot continue.
    fn tick(&mut self, tick: Tick) -> Result<()>;

    /// Reports an interval.
    ///
    /// # Errors
    /// Returns an error if the trace cannot continue.
    fn report(&mut self) -> Result<()>;

    /// Reports the last interval. An implementation that makes its last report later, when no more events can come,
    /// does nothing here.
    ///
    /// # Errors
    /// Returns an error if the trace cannot continue.
    fn report_last(&mut self) -> Result<()> {
        self.report()
    }

    /// Returns whether nothing is left to follow.
    fn is_over(&self) -> bool;

    /// Returns whether the reader of the output has gone.
    fn is_closed(&self) -> bool {
        false
    }
}

/// Runs the loop until `times`, `stop` or `watch` ends it.
///
/// # Errors
/// Returns the first error of a method of `watch`.
pub fn run<W: Watch>(watch: &mut W, times: Times, stop: &AtomicBool) -> Result<End> {
    let mut schedule = Schedule::new(Instant::now(), times);
    let (mut ticks, mut has_reported) = (0, false);
    loop {
        watch.take_events(schedule.timeout(Instant::now(), watch.next_poll()))?;
        watch.poll()?;
        let Due { tick, report, end } = schedule.due(Instant::now());
        if stop.load(Ordering::Relaxed) || watch.is_closed() {
            return Ok(End::Time);
        }
        match (report, end) {
            (true, false) => {
                watch.report()?;
                (ticks, has_reported) = (0, true);
            }
            (true, true) => {
                watch.report_last()?;
                return Ok(End::Reported);
            }
            (false, true) => return Ok(End::Time),
            (false, false) => {}
        }
        if tick {
            ticks += 1;
            let collect = ticks == times.pace.ticks_to_collect();
            if collect {
                ticks = 0;
            }
            let closely = times.pace.checks_closely(collect || has_reported);
            has_reported = false;
            watch.tick(Tick { collect, closely })?;
            if watch.is_over() {
                return Ok(End::NothingLeft);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the calls of each method. It is over after `over_after` ticks.
    #[derive(Default)]
    struct CountingWatch {
        reports: u32,
        ticks: u32,
        collections: u32,
        over_after: u32,
    }

    impl Watch for CountingWatch {
        fn take_events(&mut self, timeout: Duration) -> Result<()> {
            std::thread::sleep(timeout);
            Ok(())
        }

        fn poll(&mut self) -> Result<()> {
            Ok(())
        }

        fn tick(&mut self, tick: Tick) -> Result<()> {
            self.ticks += 1;
            self.collections += u32::from(tick.collect);
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

    fn follow(times: Times, over_after: u32, stop: bool) -> (End, CountingWatch) {
        let mut counts = CountingWatch { over_after, ..Default::default() };
        let end = run(&mut counts, times, &AtomicBool::new(stop)).unwrap();
        (end, counts)
    }

    #[test]
    fn run_ends_after_the_last_report() {
        let interval = Some(Duration::from_millis(2));
        let (end, counts) =
            follow(Times { interval, count: Some(3), ..Times::default() }, 99, false);
        assert_eq!((end, counts.reports), (End::Reported, 3));
    }

    #[test]
    fn run_ends_when_processes_or_time_run_out() {
        let (end, counts) = follow(Times::default(), 6, false);
        assert_eq!((end, counts.ticks, counts.collections), (End::NothingLeft, 6, 1));
        let duration = Some(Duration::from_millis(1));
        assert_eq!(follow(Times { duration, ..Default::default() }, 9, false).0, End::Time);
        assert_eq!(follow(Times::default(), 9, true).0, End::Time);
    }
}

//! Watches whether the tracers report at the end of each window.
//!
//! A tracer that is busy or stuck, for example with the files of one JVM, must not hold up what the others have
//! collected. So a tracer is overdue if it has not reported for three windows; windows are then completed without it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::clock::unix_ns;

/// Number of windows without a report after which a tracer is overdue.
const MAX_WINDOWS: u32 = 3;

/// Last reports of the running tracers.
#[derive(Debug)]
pub struct Watchdog {
    max_silence: Duration,
    tracers: BTreeMap<&'static str, Report>,
}

/// Last report of a tracer, or its start.
#[derive(Clone, Copy, Debug)]
struct Report {
    received: Instant,
    unix_ns: u64,
    /// End of the reported interval, on `CLOCK_MONOTONIC` in nanoseconds; 0 if there was no report.
    end_ns: u64,
    is_overdue: bool,
}

impl Report {
    fn now(end_ns: u64) -> Self {
        Self { received: Instant::now(), unix_ns: unix_ns(), end_ns, is_overdue: false }
    }
}

impl Watchdog {
    /// Watches no tracer at first.
    pub fn new(window: Duration) -> Self {
        Self { max_silence: MAX_WINDOWS * window, tracers: BTreeMap::new() }
    }

    /// Notes that a tracer has delivered all data until `end_ns` on `CLOCK_MONOTONIC`.
    pub fn reported(&mut self, tracer: &'static str, end_ns: u64) {
        let before = self.tracers.insert(tracer, Report::now(end_ns));
        if before.is_some_and(|report| report.is_overdue) {
            log::info!("the tracer of {tracer} reports again");
        }
    }

    /// Watches these tracers, and forgets all others. Logs which of them have become overdue.
    pub fn watch(&mut self, running: impl Iterator<Item = &'static str>, now: Instant) {
        let mut before = std::mem::take(&mut self.tracers);
        for tracer in running {
            let mut report = before.remove(tracer).unwrap_or_else(|| Report::now(0));
            let silence = now.saturating_duration_since(report.received);
            if silence >= self.max_silence && !report.is_overdue {
                report.is_overdue = true;
                log::warn!(
                    "the tracer of {tracer} has not reported for {} s: windows are completed without its data, which is \
                     added to a later window when it reports again",
                    silence.as_secs()
                );
            }
            self.tracers.insert(tracer, report);
        }
    }

    /// Returns whether all watched tracers that are not overdue have delivered their data until `end_ns`.
    pub fn have_delivered(&self, end_ns: u64) -> bool {
        self.tracers.values().all(|report| report.is_overdue || report.end_ns >= end_ns)
    }

    /// Returns the time of each tracer's last report, or of its start, in nanoseconds since 1970.
    pub fn times(&self) -> Vec<(&'static str, u64)> {
        self.tracers.iter().map(|(&tracer, report)| (tracer, report.unix_ns)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_not_held_up_by_a_tracer_that_has_not_reported_for_three_windows() {
        let window = Duration::from_secs(15);
        let mut watchdog = Watchdog::new(window);
        let begin = Instant::now();
        let both = || ["pauses", "samples"].into_iter();
        watchdog.watch(both(), begin);
        watchdog.reported("pauses", 100);
        assert!(!watchdog.have_delivered(100));
        watchdog.watch(both(), begin + 2 * window);
        assert!(!watchdog.have_delivered(100));
        watchdog.tracers.get_mut("pauses").unwrap().received = begin + 3 * window;
        watchdog.watch(both(), begin + 3 * window + Duration::from_secs(1));
        assert!(watchdog.have_delivered(100) && !watchdog.have_delivered(101));
        // The late tracer is waited for again from its next report on.
        watchdog.reported("samples", 100);
        watchdog.reported("pauses", 200);
        assert!(watchdog.have_delivered(100) && !watchdog.have_delivered(200));
        let names: Vec<_> = watchdog.times().into_iter().map(|(tracer, _)| tracer).collect();
        assert_eq!(names, ["pauses", "samples"]);
        // A tracer that was stopped is not waited for.
        watchdog.watch(["pauses"].into_iter(), begin);
        assert!(watchdog.have_delivered(200));
    }
}

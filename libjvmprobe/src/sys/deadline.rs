//! Deadlines of waits for other processes.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::sys::signals;

/// One deadline for all steps of a request. A signal that asks this process to end makes the deadline expire
/// early.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    total: Duration,
    /// [`signals::count`] at the start. A deadline that starts after the signal does not expire early, so
    /// that final requests are still possible.
    signals: u32,
}

impl Deadline {
    /// Makes a deadline that expires after `total`.
    pub(crate) fn within(total: Duration) -> Self {
        Self { at: Instant::now() + total, total, signals: signals::count() }
    }

    /// Returns a deadline that expires after `part` from now, or at the time of this one if that is earlier.
    #[must_use]
    pub(crate) fn capped(self, part: Duration) -> Self {
        let at = self.at.min(Instant::now() + part);
        Self { at, total: part.min(self.total), ..self }
    }

    /// Returns the remaining time.
    ///
    /// # Errors
    /// A clause with the reason if none remains: `within 10 s; is it hung?`, or `before the tool was
    /// interrupted`.
    pub(crate) fn remaining(&self) -> Result<Duration, String> {
        if self.is_interrupted() {
            return Err("before the tool was interrupted".into());
        }
        match self.at.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(format!("within {} s; is it hung?", self.total.as_secs_f64())),
            remaining => Ok(remaining),
        }
    }

    /// Returns whether a signal has made it expire.
    pub(crate) fn is_interrupted(&self) -> bool {
        signals::count() > self.signals
    }

    /// Sleeps for `pause`, or until the deadline if that is earlier.
    ///
    /// # Errors
    /// Returns the error of [`Deadline::remaining`].
    pub(crate) fn sleep(&self, pause: Duration) -> Result<(), String> {
        thread::sleep(self.remaining()?.min(pause));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expired_deadline_reports_its_duration() {
        let long = Deadline::within(Duration::from_secs(1000));
        assert!(long.remaining().is_ok());
        let short = long.capped(Duration::from_millis(10));
        assert_eq!(short.sleep(Duration::from_secs(1000)), Ok(()));
        assert_eq!(short.remaining(), Err("within 0.01 s; is it hung?".into()));
        assert!(short.sleep(Duration::ZERO).is_err());
    }
}

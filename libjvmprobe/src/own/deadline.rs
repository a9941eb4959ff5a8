//! Until when something outside of us is waited for.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::own::signals;

/// One deadline for all that is needed to get an answer. It is over early when a signal comes
/// that asks us to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    whole: Duration,
    /// How many signals had come when it began: who was asked to end already may still wait
    /// for the last things.
    signals: u32,
}

impl Deadline {
    /// From now on.
    pub(crate) fn within(whole: Duration) -> Self {
        Self { at: Instant::now() + whole, whole, signals: signals::count() }
    }

    /// One that is over earlier, after `part` from now.
    #[must_use]
    pub(crate) fn sooner(self, part: Duration) -> Self {
        let at = self.at.min(Instant::now() + part);
        Self { at, whole: part.min(self.whole), ..self }
    }

    /// How long there is left.
    ///
    /// # Errors
    /// A clause why there is nothing left: `within 10 s`, or `before it was interrupted`.
    pub(crate) fn left(&self) -> Result<Duration, String> {
        if self.is_interrupted() {
            return Err("before it was interrupted".into());
        }
        match self.at.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(format!("within {} s", self.whole.as_secs_f64())),
            left => Ok(left),
        }
    }

    /// Whether a signal has ended it.
    pub(crate) fn is_interrupted(&self) -> bool {
        signals::count() > self.signals
    }

    /// Sleeps so long, but no longer than to its end.
    ///
    /// # Errors
    /// As [`Deadline::left`].
    pub(crate) fn sleep(&self, pause: Duration) -> Result<(), String> {
        thread::sleep(self.left()?.min(pause));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_how_long_was_waited() {
        let long = Deadline::within(Duration::from_secs(1000));
        assert!(long.left().is_ok());
        let short = long.sooner(Duration::from_millis(10));
        assert_eq!(short.sleep(Duration::from_secs(1000)), Ok(()));
        assert_eq!(short.left(), Err("within 0.01 s".into()));
        assert!(short.sleep(Duration::ZERO).is_err());
    }
}

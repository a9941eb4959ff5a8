//! A progress line on standard error, shown on a terminal only.

use std::{
    io::{IsTerminal, Write, stderr},
    time::Duration,
};

/// The progress line.
pub struct Progress {
    is_shown: bool,
    shown_seconds: u64,
}

impl Progress {
    /// Creates a progress line. It shows nothing if `quiet`, if standard error is not a terminal,
    /// or if `NO_COLOR` is set.
    pub fn new(quiet: bool) -> Self {
        let is_shown = !quiet && stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { is_shown, shown_seconds: 0 }
    }

    /// Shows the elapsed seconds and the number of samples, at most once per second.
    pub fn show(&mut self, elapsed: Duration, samples: u64) {
        let seconds = elapsed.as_secs();
        if self.is_shown && seconds > self.shown_seconds {
            self.shown_seconds = seconds;
            let _ = write!(stderr(), "\r{seconds} s, {samples} samples ");
        }
    }

    /// Erases the line, if it was shown.
    pub fn clear(&self) {
        if self.is_shown && self.shown_seconds > 0 {
            let _ = write!(stderr(), "\r{:40}\r", "");
        }
    }
}

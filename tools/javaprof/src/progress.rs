//! A line that says that something happens, on a terminal only.

use std::{
    io::{IsTerminal, Write, stderr},
    time::Duration,
};

/// The line.
pub struct Progress {
    on: bool,
    shown_seconds: u64,
}

impl Progress {
    /// Shows nothing where `quiet`, or where nobody watches.
    pub fn new(quiet: bool) -> Self {
        let on = !quiet && stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { on, shown_seconds: 0 }
    }

    /// Shows how far it is, once a second.
    pub fn show(&mut self, elapsed: Duration, samples: u64) {
        let seconds = elapsed.as_secs();
        if self.on && seconds > self.shown_seconds {
            self.shown_seconds = seconds;
            let _ = write!(stderr(), "\r{seconds} s, {samples} samples ");
        }
    }

    /// Removes it.
    pub fn clear(&self) {
        if self.on && self.shown_seconds > 0 {
            let _ = write!(stderr(), "\r{:40}\r", "");
        }
    }
}

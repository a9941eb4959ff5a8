//! Detects that a process was stopped (SIGSTOP) for a complete reporting interval, which explains empty figures to the
//! user.

use crate::{Pid, process::Process};

/// Observations of one process since its figures were last reported.
#[derive(Debug)]
pub struct Stops {
    pid: Pid,
    /// Whether the process was seen running since the last report.
    ran: bool,
    /// Whether the process was stopped at the last check.
    stopped: bool,
}

impl Stops {
    /// Starts observing. Prints a message if the process is stopped already.
    pub fn new(process: &Process) -> Self {
        let stopped = process.is_stopped();
        if stopped {
            let pid = process.pid;
            log::warn!(
                "process {pid} is stopped (SIGSTOP) and produces no events; continue it with `kill \
                 -CONT {pid}`"
            );
        }
        Self { pid: process.pid, ran: !stopped, stopped }
    }

    /// Checks the process. Called periodically.
    pub fn look(&mut self, process: &Process) {
        // Once it was seen running, this interval's result is known; only a stopped process is checked again.
        if !self.ran || self.stopped {
            self.stopped = process.is_stopped();
            self.ran |= !self.stopped;
        }
    }

    /// Called when figures are reported. Prints a message if the process was stopped for the complete interval, then
    /// starts the next interval.
    pub fn tell(&mut self, process: &Process) {
        self.look(process);
        if !self.ran {
            log::warn!("process {} was stopped (SIGSTOP) the whole time", self.pid);
        }
        self.stopped = process.is_stopped();
        self.ran = !self.stopped;
    }
}

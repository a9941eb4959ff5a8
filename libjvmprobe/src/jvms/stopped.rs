//! Detects that a process was stopped (SIGSTOP) for a complete reporting interval. A message then explains to
//! the user why the figures are empty.

use crate::{Pid, process::Process};

/// Observations of one process since its figures were last reported.
#[derive(Debug)]
pub struct Stops {
    pid: Pid,
    /// Whether the process was seen running since the last report.
    was_running: bool,
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
        Self { pid: process.pid, was_running: !stopped, stopped }
    }

    /// Checks the process. Called periodically.
    pub fn poll(&mut self, process: &Process) {
        // A process that was seen running in this interval is not checked again, because the result of the
        // interval is known.
        if !self.was_running || self.stopped {
            self.stopped = process.is_stopped();
            self.was_running |= !self.stopped;
        }
    }

    /// Called when figures are reported. Prints a message if the process was stopped for the complete interval, then
    /// starts the next interval.
    pub fn report(&mut self, process: &Process) {
        self.poll(process);
        if !self.was_running {
            log::warn!("process {} was stopped (SIGSTOP) the whole time", self.pid);
        }
        self.stopped = process.is_stopped();
        self.was_running = !self.stopped;
    }
}

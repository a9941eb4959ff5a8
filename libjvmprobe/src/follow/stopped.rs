//! Whether a process was stopped (SIGSTOP) all the time that figures are of: then they are
//! empty, and that wants to be said.

use crate::{Pid, own::note, process::Process};

/// How one process was seen since its figures were last told.
#[derive(Debug)]
pub struct Stops {
    pid: Pid,
    /// Whether it was seen running since.
    ran: bool,
    /// Whether it is stopped now.
    stopped: bool,
}

impl Stops {
    /// From now on; says so if it is stopped already.
    pub fn new(process: &Process) -> Self {
        let stopped = process.is_stopped();
        if stopped {
            let pid = process.pid;
            note(&format!(
                "process {pid} is stopped (SIGSTOP): nothing happens in it until `kill -CONT {pid}`"
            ));
        }
        Self { pid: process.pid, ran: !stopped, stopped }
    }

    /// Looks at it, every now and then.
    pub fn look(&mut self, process: &Process) {
        // Once it was seen running, only the next figures want to know more.
        if !self.ran || self.stopped {
            self.stopped = process.is_stopped();
            self.ran |= !self.stopped;
        }
    }

    /// Figures are told: says so if they are empty because it was stopped through all of
    /// their time. Begins anew.
    pub fn tell(&mut self, process: &Process) {
        self.look(process);
        if !self.ran {
            note(&format!("process {} was stopped (SIGSTOP) all the time", self.pid));
        }
        self.stopped = process.is_stopped();
        self.ran = !self.stopped;
    }
}

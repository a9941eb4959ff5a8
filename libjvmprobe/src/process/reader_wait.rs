//! How long the answer of a reader process is awaited: only time that the reader spends in its system call counts.
//!
//! On an overloaded host, a reader may wait seconds for a CPU. Such a reader is not blocked, and its target is healthy.
//! So time that the reader waited for a CPU is subtracted, up to [`MAX_WAIT`].
//!
//! A reader that was stopped by a signal counts as blocked, because it does not answer until somebody continues it.
//!
//! Sources: proc(5), state in `/proc/PID/stat`; Documentation/scheduler/sched-stats.rst, `/proc/PID/schedstat`. The time in
//! schedstat includes only waits that have ended. A wait that has not ended shows in the state.

use std::{
    fs::File,
    os::{fd::AsFd, unix::fs::FileExt},
    time::{Duration, Instant},
};

use rustix::io::Errno;

use crate::{Pid, sys::channel};

/// Maximum time that a reader may spend in a system call.
pub(crate) const LIMIT: Duration = Duration::from_secs(1);
/// Maximum time until an answer arrives, even if the reader waits for a CPU meanwhile.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(10);
/// Interval of checks of a reader that waits for a CPU.
const INTERVAL: Duration = Duration::from_millis(100);

/// The result of waiting for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// An answer has arrived, or the reader has ended.
    Ready,
    /// The reader's system call does not return.
    Blocked,
    /// The reader has hardly had a CPU.
    Overloaded,
}

/// The scheduling of a reader process.
#[derive(Debug)]
pub(super) struct Scheduling {
    pid: Pid,
    /// `/proc/PID/schedstat`. Missing in kernels without CONFIG_SCHED_INFO; then only the state counts.
    file: Option<File>,
}

/// CPU time of a process, and the time that it waited for a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    ran: Duration,
    waited: Duration,
}

/// The beginning of a wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begin {
    at: Instant,
    times: Times,
}

impl Scheduling {
    /// Opens the data about a reader.
    pub(super) fn of(pid: Pid) -> Self {
        Self { pid, file: File::open(format!("/proc/{pid}/schedstat")).ok() }
    }

    /// Returns the PID of the reader.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Begins a wait. Called before the reader gets its request.
    pub(super) fn begin(&self) -> Begin {
        Begin { at: Instant::now(), times: self.times() }
    }

    /// Waits until a message of the reader is available, or the reader has used up its time.
    ///
    /// # Errors
    /// The errors of poll(2).
    pub(super) fn wait(&self, socket: impl AsFd, begin: Begin) -> Result<Outcome, Errno> {
        let mut until = begin.at + LIMIT;
        loop {
            if channel::wait(&socket, until)? {
                return Ok(Outcome::Ready);
            }
            let now = self.times();
            let times = Times {
                ran: now.ran.saturating_sub(begin.times.ran),
                waited: now.waited.saturating_sub(begin.times.waited),
            };
            match judge(begin.at.elapsed(), times, self.is_runnable()) {
                Ok(more) => until = Instant::now() + more,
                // This process may have been delayed as well, and the answer may have arrived meanwhile.
                Err(_) if channel::is_ready(&socket) => return Ok(Outcome::Ready),
                Err(outcome) => return Ok(outcome),
            }
        }
    }

    fn times(&self) -> Times {
        let mut text = [0; 96];
        let len = self.file.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let text = std::str::from_utf8(&text[..len.unwrap_or(0)]).unwrap_or_default();
        let mut numbers = text.split_ascii_whitespace().map(|number| number.parse().unwrap_or(0));
        let mut time = || Duration::from_nanos(numbers.next().unwrap_or(0));
        Times { ran: time(), waited: time() }
    }

    /// Returns whether it runs or waits for a CPU.
    fn is_runnable(&self) -> bool {
        let stat = std::fs::read(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let name_end = stat.iter().rposition(|&byte| byte == b')').unwrap_or(0);
        stat.get(name_end + 2) == Some(&b'R')
    }
}

/// Decides after `elapsed` whether to wait longer, and how long. `times` are those since the beginning.
fn judge(elapsed: Duration, times: Times, is_runnable: bool) -> Result<Duration, Outcome> {
    // For a runnable reader, the wait for a CPU that has not ended yet is unknown, but its CPU time is exact.
    let in_call = if is_runnable { times.ran } else { elapsed.saturating_sub(times.waited) };
    if in_call >= LIMIT {
        return Err(Outcome::Blocked);
    }
    if elapsed >= MAX_WAIT {
        return Err(Outcome::Overloaded);
    }
    let rest = if is_runnable { INTERVAL } else { LIMIT.saturating_sub(in_call) };
    // A rest below a tick would only cause useless checks.
    Ok(rest.clamp(INTERVAL / 10, LIMIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(ran: u64, waited: u64) -> Times {
        Times { ran: Duration::from_millis(ran), waited: Duration::from_millis(waited) }
    }

    #[test]
    fn only_time_in_the_call_counts() {
        let at = |elapsed, times, runnable| judge(Duration::from_millis(elapsed), times, runnable);
        assert_eq!(at(1000, times(0, 0), false), Err(Outcome::Blocked));
        assert_eq!(at(1000, times(0, 0), true), Ok(INTERVAL));
        // It waited for a CPU for 0.4 s before it was blocked.
        assert_eq!(at(1000, times(0, 400), false), Ok(Duration::from_millis(400)));
        assert_eq!(at(1400, times(0, 400), false), Err(Outcome::Blocked));
        // It runs in the kernel all the time.
        assert_eq!(at(1000, times(1000, 0), true), Err(Outcome::Blocked));
        assert_eq!(at(9900, times(20, 9000), true), Ok(INTERVAL));
        assert_eq!(at(10_000, times(20, 9000), true), Err(Outcome::Overloaded));
        assert_eq!(at(10_000, times(20, 9500), false), Err(Outcome::Overloaded));
    }
}

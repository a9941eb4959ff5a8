//! Stopping a process for a short time, so that everything that is read of it is of one instant.
//!
//! The process is stopped by SIGSTOP. Before that, a child process is started, the guard. It waits for the end of this
//! process and then sends SIGCONT, so the process is continued even if this process is killed. The guard is this program,
//! executed again with a special argument zero. In its own process group, it does not receive the terminal's Ctrl-C.
//!
//! Sources: signal(7), pidfd_send_signal(2).

use std::{
    env,
    io::{self, Read, Write, stdin, stdout},
    os::{fd::AsFd, unix::process::CommandExt},
    process::{Child, Command, Stdio, exit},
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::{Signal, pidfd_send_signal};

use crate::process::Process;

/// Argument zero of the guard.
const NAME: &str = "jvmprobe-guard";
/// Maximum time until a process has stopped.
const MAX_STOPPING: Duration = Duration::from_secs(2);

/// Runs the guard if this program was started as one. Does not return in that case.
pub(crate) fn enter() {
    if env::args_os().next().is_some_and(|name| name == NAME) {
        // Its standard input ends with the process that has started it. A byte means that there is nothing left to do.
        if !matches!(stdin().read(&mut [0]), Ok(1..)) {
            let _ = pidfd_send_signal(stdout().as_fd(), Signal::CONT);
        }
        exit(0);
    }
}

/// A stopped process. Dropping it continues the process.
#[derive(Debug)]
pub struct Frozen<'a> {
    process: &'a Process,
    /// `None` if the process was stopped already, so that it stays stopped.
    guard: Option<Child>,
}

impl<'a> Frozen<'a> {
    /// Stops a process and waits until it has stopped. A process that is stopped already stays so.
    ///
    /// # Errors
    /// Returns the errors of execve(2) and pidfd_send_signal(2), and an error if the process does not stop within two
    /// seconds.
    pub fn new(process: &'a Process) -> io::Result<Self> {
        if process.is_stopped() {
            return Ok(Self { process, guard: None });
        }
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).env_clear().current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(process.pidfd()?).stderr(Stdio::null());
        let frozen = Self { process, guard: Some(command.spawn()?) };
        process.signal(Signal::STOP)?;
        let end = Instant::now() + MAX_STOPPING;
        while !process.is_stopped() {
            if Instant::now() >= end {
                return Err(io::Error::other("the process did not stop within two seconds"));
            }
            sleep(Duration::from_millis(1));
        }
        Ok(frozen)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let Some(guard) = &mut self.guard else { return };
        // If this fails, the guard tries again at its end.
        if self.process.signal(Signal::CONT).is_ok()
            && let Some(input) = &mut guard.stdin
        {
            let _ = input.write_all(b"1");
        }
        guard.stdin = None;
        let _ = guard.wait();
    }
}

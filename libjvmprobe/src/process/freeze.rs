//! Stops a process for a short time, so that all data that is read from the process is of one instant.
//!
//! This program sends SIGSTOP to the process. Before that, it starts a child process, which is called the
//! guard. When this program ends without having continued the stopped process, the guard sends SIGCONT to the
//! stopped process. So the process continues even if this program is killed. The guard is the same program,
//! executed with a special argument zero. It has a process group of its own, so that Ctrl-C in the terminal
//! does not end it.
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

/// Runs the guard if this program was started as the guard. Does not return in that case.
pub(crate) fn enter() {
    if env::args_os().next().is_some_and(|name| name == NAME) {
        // The standard input ends when the process that has started the guard ends or closes it. A byte there
        // means that the stopped process was already continued. The standard output is the pidfd of the
        // stopped process.
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
    /// `None` if the process was stopped already. The drop then leaves it stopped.
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
                return Err(io::Error::other(
                    "the process did not stop within two seconds; omit --freeze",
                ));
            }
            sleep(Duration::from_millis(1));
        }
        Ok(frozen)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let Some(guard) = &mut self.guard else { return };
        // If this signal cannot be sent, the guard receives no byte, and sends the signal itself before it
        // ends.
        if self.process.signal(Signal::CONT).is_ok()
            && let Some(input) = &mut guard.stdin
        {
            let _ = input.write_all(b"1");
        }
        guard.stdin = None;
        let _ = guard.wait();
    }
}

//! A command that is traced from its first instruction.
//!
//! The child waits between fork and exec until tracing has begun. `Command::spawn`
//! returns only after the exec, so it runs in a thread of its own.

use std::{
    ffi::{CString, OsString},
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt, process::CommandExt},
    },
    path::Path,
    process::{Child, Command},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{close, read, write},
    pipe::{PipeFlags, pipe_with},
    process::{Pid as RawPid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
    thread::set_name,
    time::Timespec,
};

use crate::{
    Error, Pid, Result,
    jvms::user::User,
    sys::{
        descriptors,
        undo::{self, Undo},
    },
};

const START: &str = "start the command";

/// A forked child that waits before exec until [`go`](Self::go) is called.
pub struct HeldCommand {
    /// PID of the child.
    pub pid: Pid,
    program: OsString,
    go: std::fs::File,
    spawned: JoinHandle<io::Result<Child>>,
}

impl HeldCommand {
    /// Forks. The child switches to `user`, writes its PID to a pipe and waits.
    ///
    /// # Errors
    /// [`Error::Io`] if no command is given, or if the child cannot be forked or cannot switch to `user`.
    pub fn fork(command: &[OsString], user: Option<User>) -> Result<Self> {
        let Some((program, arguments)) = command.split_first() else {
            let nothing = io::Error::other("no command given; specify it after --");
            return Err(Error::io(START, nothing));
        };
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|e| Error::io(START, e.into()));
        let ((pid_reader, pid_writer), (go_reader, go_writer)) = (pipe()?, pipe()?);
        let mut command = Command::new(program);
        let program = program.clone();
        command.args(arguments);
        if let Some(user) = &user {
            user.prepare(&mut command);
        }
        let parents_end = go_writer.as_raw_fd();
        let name = name_of(&program);
        let wait_for_parent = move || {
            // Gives the child the program's name before the exec, so that samples of the child at this stage
            // are attributed to the program and not to the tool.
            set_name(&name)?;
            // SAFETY: closes the child's copy of the descriptor, which nothing in the child uses. With that copy open,
            // the child's read would not return when the parent closes its end or exits.
            unsafe { close(parents_end) };
            descriptors::restore_limit()?;
            if let Some(user) = &user {
                user.switch_to()?;
            }
            write_pid_and_wait(&pid_writer, &go_reader)
        };
        // SAFETY: the closure runs between fork and exec. It allocates nothing and makes only system calls.
        unsafe { command.pre_exec(wait_for_parent) };
        let spawned = thread::spawn(move || command.spawn());
        let mut number = [0; 4];
        // The pipe closes without data if the fork failed, or if the child failed before it wrote its PID.
        if let Err(error) = std::fs::File::from(pid_reader).read_exact(&mut number) {
            // The child's own error is more specific than the end of file seen here.
            drop(go_writer);
            let why = spawned.join().ok().and_then(Result::err).unwrap_or(error);
            return Err(Error::io(START, why));
        }
        let pid = Pid(u32::from_ne_bytes(number));
        Ok(Self { pid, program, go: go_writer.into(), spawned })
    }

    /// Lets the child exec its program.
    ///
    /// # Errors
    /// [`Error::Io`] if the program cannot be run.
    pub fn go(mut self) -> Result<Running> {
        self.go.write_all(b"!").map_err(|e| Error::io(START, e))?;
        let lost = |_| Error::io(START, io::Error::other("a thread has panicked"));
        let child = self.spawned.join().map_err(lost)?;
        let child = child.map_err(|e| Error::io(format!("run {}", self.program.display()), e))?;
        Running::new(child).map_err(|e| Error::io("watch the command", e))
    }
}

/// Returns the name that the kernel gives to a process at exec (`begin_new_exec()` in fs/exec.c): the last
/// component of the program's path. The kernel truncates it to 15 bytes.
fn name_of(program: &OsString) -> CString {
    let name = Path::new(program).file_name().unwrap_or(program);
    CString::new(name.as_bytes()).unwrap_or_default()
}

fn write_pid_and_wait(pid_writer: &OwnedFd, go_reader: &OwnedFd) -> io::Result<()> {
    write(pid_writer, &std::process::id().to_ne_bytes())?;
    let mut byte = [0_u8];
    match read(go_reader, &mut byte)? {
        1 => Ok(()),
        // End of file: the tool has closed its end, or has exited, without starting the command.
        _ => Err(io::Error::other("not started")),
    }
}

/// Maximum time to wait for the command to exit after SIGTERM, and again after SIGKILL.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// The running command. [`end`](Self::end) ends it. If a signal ends the tool before that, the command is
/// killed.
pub struct Running {
    child: Child,
    pidfd: OwnedFd,
    _undo: Undo,
}

impl Running {
    fn new(child: Child) -> io::Result<Self> {
        let pid = i32::try_from(child.id()).ok().and_then(RawPid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("it has no PID"))?;
        let open = || pidfd_open(pid, PidfdFlags::empty());
        let kill = |pidfd: &OwnedFd| -> undo::Step {
            let pidfd = pidfd.try_clone();
            Box::new(move || {
                if let Ok(pidfd) = pidfd {
                    let _ = pidfd_send_signal(&pidfd, Signal::KILL);
                }
            })
        };
        let (pidfd, undo) = undo::run_undoable(open, kill)?;
        Ok(Self { child, pidfd, _undo: undo })
    }

    /// Ends the command if it still runs: sends SIGTERM, and SIGKILL if it has not exited after five seconds.
    pub fn end(mut self) {
        if self.has_ended_within(Duration::ZERO) {
            return;
        }
        // A JVM runs its shutdown hooks on SIGTERM.
        let _ = pidfd_send_signal(&self.pidfd, Signal::TERM);
        if !self.has_ended_within(EXIT_TIMEOUT) {
            let seconds = EXIT_TIMEOUT.as_secs();
            log::warn!(
                "killing the command, because it did not exit within {seconds} s after SIGTERM"
            );
            let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
            // A process in uninterruptible sleep may take some time to exit even after SIGKILL.
            self.has_ended_within(EXIT_TIMEOUT);
        }
    }

    fn has_ended_within(&mut self, time: Duration) -> bool {
        let begin = Instant::now();
        loop {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return true;
            }
            let left = time.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return false;
            }
            let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
            let _ = poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&left));
        }
    }
}

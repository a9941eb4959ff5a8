//! One process in /proc: its identity, and whether it still exists.
//!
//! Sources: proc(5), pid_namespaces(7), pidfd_open(2).

use std::{
    fs::File,
    io::{self, Read},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use procfs::{
    FromRead, ProcError,
    process::{Process as Proc, Status},
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid as RawPid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
    time::{ClockId, Timespec, clock_gettime},
};

use crate::{
    Error, NsPid, Pid, Result,
    names::clean,
    process::{reader::ProcFile, root},
};

/// `PF_KTHREAD`, include/linux/sched.h.
const PF_KTHREAD: u32 = 0x0020_0000;
/// Maximum number of bytes read of a command line; class paths are long.
const MAX_ARGUMENTS: u64 = 1 << 20;

/// Returns whether there is a process with this PID in our PID namespace.
pub(crate) fn exists(pid: Pid) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// A live process, distinguished from any later one with the same PID.
#[derive(Debug)]
pub struct Process {
    /// PID in our PID namespace.
    pub pid: Pid,
    /// PID in its innermost PID namespace. The process itself sees this PID, and the names of its files in
    /// /tmp contain it.
    pub(crate) ns_pid: NsPid,
    /// Effective user ID, in our user namespace.
    pub uid: u32,
    /// Effective group ID, in our user namespace.
    pub(crate) gid: u32,
    /// Command name, at most 15 bytes (`comm`), with harmful characters replaced.
    pub comm: String,
    /// Start time in clock ticks since boot: unique together with `pid`.
    pub(crate) start_ticks: u64,
    /// Stack address that the kernel chose at the last exec. Each exec changes it.
    start_stack: u64,
    pidfd: OwnedFd,
    /// See [`abandon`](Self::abandon).
    is_abandoned: AtomicBool,
}

/// Present state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Still runs the program that was found.
    Alive,
    /// Ended, by itself or killed.
    Ended,
    /// Runs another program after exec, so everything that was read before is invalid.
    Execed,
}

/// CPU time of a process, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// In user mode.
    pub user_ns: u64,
    /// In the kernel.
    pub system_ns: u64,
}

impl CpuTime {
    /// Returns the sum of both.
    pub fn total_ns(self) -> u64 {
        self.user_ns.saturating_add(self.system_ns)
    }

    /// Returns the increase since an earlier reading.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
        }
    }
}

impl Process {
    /// Looks up a process.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`], [`Error::ThreadId`], [`Error::Zombie`], [`Error::FirstThreadEnded`], or
    /// [`Error::Permission`] if /proc is hidden (`hidepid`).
    pub fn open(pid: Pid) -> Result<Self> {
        let raw = i32::try_from(pid.0)
            .ok()
            .and_then(RawPid::from_raw)
            .ok_or(Error::NoSuchProcess { pid })?;
        // This is the first step. If the process ends and a new one gets its PID during the next steps, the pidfd
        // shows that the process has ended.
        let pidfd = pidfd_open(raw, PidfdFlags::empty());
        let proc = Proc::new(raw.as_raw_nonzero().get()).map_err(|e| proc_error(pid, e))?;
        let status = status_of(pid)?;
        let tgid = Pid(u32::try_from(status.tgid).unwrap_or(0));
        if tgid != pid {
            return Err(Error::ThreadId { pid, tgid });
        }
        let stat = proc.stat().map_err(|e| proc_error(pid, e))?;
        if matches!(stat.state, 'Z' | 'X' | 'x') {
            let running = (stat.num_threads > 1).then(|| running_thread(&proc, pid)).flatten();
            return Err(match running {
                Some(running) => Error::FirstThreadEnded { pid, running },
                None => Error::Zombie { pid },
            });
        }
        if stat.flags & PF_KTHREAD != 0 {
            // A kernel thread has neither memory nor files to read.
            return Err(Error::NotAJvm { pid, comm: clean::name(&stat.comm).into_owned() });
        }
        let pidfd = pidfd.map_err(|e| match e {
            rustix::io::Errno::SRCH => Error::NoSuchProcess { pid },
            e => Error::io(format!("open a pidfd for process {pid}"), e.into()),
        })?;
        let innermost = status.nstgid.as_ref().and_then(|ids| ids.last().copied());
        Ok(Self {
            pid,
            ns_pid: NsPid(innermost.and_then(|id| u32::try_from(id).ok()).unwrap_or(pid.0)),
            uid: status.euid,
            gid: status.egid,
            comm: clean::name(&stat.comm).into_owned(),
            start_ticks: stat.starttime,
            start_stack: stat.startstack,
            pidfd,
            is_abandoned: AtomicBool::new(false),
        })
    }

    /// Returns its start time in clock ticks since boot.
    pub(super) fn start_ticks(&self) -> u64 {
        self.start_ticks
    }

    /// Returns its arguments, starting with the program's name. The process can change them at any time.
    ///
    /// # Errors
    /// Returns the errors of open(2) and read(2).
    pub fn arguments(&self) -> io::Result<Vec<String>> {
        let mut bytes = Vec::new();
        let file = ProcFile::open(self.pid, "cmdline")?;
        file.take(MAX_ARGUMENTS).read_to_end(&mut bytes)?;
        let bytes = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
        let argument = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(bytes.split(|&byte| byte == 0).map(argument).collect())
    }

    /// Returns its working directory, as the process itself sees the path.
    ///
    /// # Errors
    /// Returns the errors of readlink(2).
    pub fn working_path(&self) -> io::Result<PathBuf> {
        root::working_path(self)
    }

    /// Sends a signal to exactly this process, never to a later one with its PID.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.pidfd, signal)?)
    }

    /// Returns whether it is stopped: by SIGSTOP, by Ctrl-Z, or by a debugger.
    pub(crate) fn is_stopped(&self) -> bool {
        let stat = i32::try_from(self.pid.0).ok().map(|pid| Proc::new(pid).and_then(|p| p.stat()));
        matches!(stat, Some(Ok(stat)) if matches!(stat.state, 'T' | 't'))
    }

    /// Returns the time since it started.
    pub(crate) fn age(&self) -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        let now = Duration::new(now.tv_sec.max(0).cast_unsigned(), now.tv_nsec as u32);
        let ticks = procfs::ticks_per_second().max(1);
        now.saturating_sub(Duration::from_millis(self.start_ticks.saturating_mul(1000) / ticks))
    }

    /// Returns the CPU time of all its threads since its start, as the kernel accounts it; `None` if it has ended.
    ///
    /// Source: proc(5), `utime` and `stime` in /proc/PID/stat.
    pub fn cpu_time(&self) -> Option<CpuTime> {
        let stat = Proc::new(i32::try_from(self.pid.0).ok()?).and_then(|proc| proc.stat()).ok()?;
        if stat.starttime != self.start_ticks {
            return None;
        }
        let tick_ns = 1_000_000_000 / procfs::ticks_per_second().max(1);
        let [user_ns, system_ns] =
            [stat.utime, stat.stime].map(|ticks| ticks.saturating_mul(tick_ns));
        Some(CpuTime { user_ns, system_ns })
    }

    /// Makes the process count as ended for all that share this value, although it runs on.
    pub(crate) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }

    /// Returns whether it has ended or was abandoned (`abandon`); never blocks.
    pub fn has_ended(&self) -> bool {
        if self.is_abandoned.load(Ordering::Relaxed) {
            return true;
        }
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Returns its [fate](Self::fate). Unless `closely` is set, uses one system call only, and returns
    /// [`Fate::Alive`] even if the process runs another program now.
    pub(crate) fn fate_if(&self, closely: bool) -> Fate {
        match closely {
            true => self.fate(),
            false if self.has_ended() => Fate::Ended,
            false => Fate::Alive,
        }
    }

    /// Returns whether it still runs the program that it ran when it was opened, runs another one, or has
    /// ended. Never blocks.
    pub fn fate(&self) -> Fate {
        if self.has_ended() {
            return Fate::Ended;
        }
        let pid = i32::try_from(self.pid.0).unwrap_or(0);
        match Proc::new(pid).and_then(|proc| proc.stat()) {
            Ok(stat) if stat.starttime != self.start_ticks => Fate::Ended,
            // It has freed its memory already and is exiting.
            Ok(stat) if stat.vsize == 0 && self.start_stack != 0 => Fate::Ended,
            // Its address space is new and has no stack yet: it is in the middle of exec.
            Ok(stat) if stat.startstack == 0 && self.start_stack != 0 => Fate::Alive,
            Ok(stat) if stat.startstack != self.start_stack => Fate::Execed,
            Ok(_) => Fate::Alive,
            Err(_) => Fate::Ended,
        }
    }
}

/// Returns a thread of a process other than the first one that is not exiting, if one is among the first hundred.
fn running_thread(proc: &Proc, pid: Pid) -> Option<Pid> {
    /// Maximum number of threads that are examined.
    const MAX_THREADS: usize = 100;
    /// `PF_EXITING`, include/linux/sched.h.
    const EXITING: u32 = 4;
    let mut threads = proc.tasks().ok()?.take(MAX_THREADS).flatten();
    let running = threads.find(|thread| {
        thread.tid.cast_unsigned() != pid.0
            && thread.stat().is_ok_and(|stat| {
                !matches!(stat.state, 'Z' | 'X' | 'x') && stat.flags & EXITING == 0
            })
    });
    running.map(|thread| Pid(thread.tid.cast_unsigned()))
}

/// Returns the parent of a process: the one that started it or has adopted it.
pub(crate) fn parent(pid: Pid) -> Option<Pid> {
    let stat = Proc::new(i32::try_from(pid.0).ok()?).ok()?.stat().ok()?;
    u32::try_from(stat.ppid).ok().filter(|&parent| parent > 0).map(Pid)
}

/// Returns the name of a process's thread (`comm`), with harmful characters replaced.
///
/// # Errors
/// Returns the errors of [`text_of`].
pub(crate) fn thread_name(pid: Pid, tid: u32) -> Result<String> {
    let comm = text_of(pid, &format!("task/{tid}/comm"))?;
    Ok(clean::name(comm.strip_suffix('\n').unwrap_or(&comm)).into_owned())
}

/// Returns the thread with the lowest ID among a process's threads with this name (`comm`).
pub(crate) fn thread_named(pid: Pid, name: &str) -> Option<Pid> {
    let tasks = Proc::new(i32::try_from(pid.0).ok()?).ok()?.tasks().ok()?;
    let named = |tid: &u32| thread_name(pid, *tid).is_ok_and(|comm| comm == name);
    let tids = tasks.flatten().filter_map(|task| u32::try_from(task.tid).ok());
    tids.filter(named).min().map(Pid)
}

/// Maximum number of bytes read of a file in /proc/PID.
const MAX_TEXT: u64 = 1 << 20;

/// Returns the text of a file in /proc/PID, such as `status`. Command and file names may contain any bytes; invalid
/// UTF-8, which procfs would reject, is replaced.
pub(super) fn text_of(pid: Pid, name: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{name}");
    let mut bytes = Vec::new();
    File::open(&path)
        .and_then(|file| file.take(MAX_TEXT).read_to_end(&mut bytes))
        .map_err(|e| read_error(pid, &path, e))?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into()))
}

/// Converts an error that occurred while reading a file in /proc/PID.
pub(super) fn read_error(pid: Pid, path: &str, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => Error::NoSuchProcess { pid },
        // ESRCH: the process ended while the file was read.
        _ if error.raw_os_error() == Some(3) => Error::NoSuchProcess { pid },
        io::ErrorKind::PermissionDenied => {
            proc_error(pid, ProcError::PermissionDenied(Some(path.into())))
        }
        _ => Error::io(format!("read {path}"), error),
    }
}

/// Reads `/proc/PID/status`.
pub(crate) fn status_of(pid: Pid) -> Result<Status> {
    Status::from_read(text_of(pid, "status")?.as_bytes()).map_err(|e| proc_error(pid, e))
}

/// Converts an error of procfs.
pub(super) fn proc_error(pid: Pid, error: ProcError) -> Error {
    match error {
        ProcError::NotFound(_) => Error::NoSuchProcess { pid },
        ProcError::PermissionDenied(_) => Error::Permission {
            what: format!("inspect process {pid}"),
            missing: "CAP_SYS_PTRACE is missing".into(),
        },
        // ESRCH: the process ended while it was read.
        ProcError::Io(e, _) if e.raw_os_error() == Some(3) => Error::NoSuchProcess { pid },
        ProcError::Io(e, path) => {
            Error::io(format!("read {}", path.unwrap_or_default().display()), e)
        }
        other => Error::io(format!("read /proc/{pid}"), io::Error::other(other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        ffi::OsStr,
        os::unix::ffi::OsStrExt,
        process::{Command, Stdio},
        thread,
    };

    use super::*;

    #[test]
    fn process_name_of_arbitrary_bytes_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(OsStr::from_bytes(b"\xff\xfe)( \\\n"));
        std::fs::copy("/bin/sleep", &program).unwrap();
        let mut child = Command::new(&program).arg("60").stdout(Stdio::null()).spawn().unwrap();
        let pid = Pid(child.id());
        // Waits until the child has replaced our program with its own.
        let mut process = Process::open(pid);
        for _ in 0..100 {
            if matches!(&process, Ok(process) if process.comm.contains(")(")) {
                break;
            }
            thread::sleep(Duration::from_millis(20));
            process = Process::open(pid);
        }
        let maps = crate::process::maps::of(pid, |_| true);
        child.kill().unwrap();
        child.wait().unwrap();
        // The name is read completely, and harmful characters are replaced.
        assert_eq!(process.unwrap().comm, "\u{fffd}\u{fffd})( \\\\x0a");
        assert!(maps.unwrap().len() > 3);
    }

    #[test]
    fn execed_process_has_not_ended() {
        // Execs itself again and again.
        let again = "exec sh -c \"$0\" \"$0\"";
        let mut child = Command::new("sh").args(["-c", again, again]).spawn().unwrap();
        let begin = std::time::Instant::now();
        let mut process = Process::open(Pid(child.id())).unwrap();
        while process.start_stack == 0 && begin.elapsed() < Duration::from_secs(10) {
            process = Process::open(process.pid).unwrap();
        }
        let begin = std::time::Instant::now();
        let (mut checks, mut execed, mut ended) = (0, 0, 0);
        while begin.elapsed() < Duration::from_secs(1) {
            checks += 1;
            match process.fate() {
                Fate::Alive => {}
                Fate::Execed => execed += 1,
                Fate::Ended => ended += 1,
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(execed > 0 && ended == 0, "{ended} of {checks}, {execed}");
        assert_eq!(process.fate(), Fate::Ended);
    }
}

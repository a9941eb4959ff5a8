//! A child process without privileges, for work on bytes that a target controls.
//!
//! The child is this program, executed again with a special argument zero. It has no capability, cannot gain
//! one (`no_new_privs`), and a seccomp filter lets it read from the descriptors that it was sent, allocate
//! memory and answer; any other system call kills it. It can open no file, start no process, send no signal
//! and make no memory executable. Its address space has a limit. It keeps its user ID, because the parent
//! could otherwise kill it only with `CAP_KILL`. With this user ID it can at most read metadata of files, because
//! the filter rejects all other system calls whose permissions depend on the user.
//!
//! Parent and child exchange one message in each direction at a time over a `channel`. Descriptors travel only from
//! parent to child. The child exits when the socket is closed, and the kernel kills it when the thread that started it
//! ends. So this thread must exist for as long as the child is needed. The simplest way to ensure that is to send all
//! requests from it.
//!
//! Sources: seccomp(2), capabilities(7), unix(7), prctl(2), getrlimit(2).
//!
//! Soundness: the unsafe calls only close descriptors by number, before any of them has an owner in Rust, and
//! set signals to be ignored.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{self, IoSlice, IoSliceMut},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Command, ExitStatus, Stdio, exit},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    process::{
        DumpableBehavior, Resource, Rlimit, Signal, set_dumpable_behavior,
        set_parent_process_death_signal, setrlimit,
    },
    thread::{CapabilitySet, capabilities},
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

use crate::sys::{
    channel::{self, MAX_MESSAGE},
    privileges,
};

/// Argument zero of the child. No tool has this name, so no command line starts a child by accident.
const NAME: &str = "jvmprobe-confined";
/// First message of a child, sent after it has dropped its privileges.
const READY: &[u8] = b"ready";
/// Maximum time until that message arrives.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of the child's address space. The largest debug information that is read takes about 400 MB.
const MAX_ADDRESS_SPACE: u64 = 1 << 30;
/// Limit of the child's descriptors.
const MAX_OPEN: u64 = 128;
/// Maximum number of children that have not been reaped. A killed child that is stuck in a read in the kernel
/// counts, too. At this number, no further child is started.
const MAX_UNREAPED: usize = 4;

/// Whether this program has called [`enter`]. Otherwise, no child can be started.
static HAS_ENTRY: AtomicBool = AtomicBool::new(false);
static CHILDREN: Mutex<Children> = Mutex::new(Children { started: Vec::new() });

/// Children that have not been reaped.
struct Children {
    started: Vec<std::process::Child>,
}

impl Children {
    /// Reaps the children that have ended. Returns the exit status of child `pid` if it is one of them.
    fn reap(&mut self, pid: u32) -> Option<ExitStatus> {
        let mut status = None;
        for i in (0..self.started.len()).rev() {
            let Ok(Some(ended)) = self.started[i].try_wait() else { continue };
            if self.started.swap_remove(i).id() == pid {
                status = Some(ended);
            }
        }
        status
    }
}

fn children() -> std::sync::MutexGuard<'static, Children> {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reason why a request has no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The child has ended, with this status if known.
    Ended(Option<ExitStatus>),
    /// No answer arrived in time.
    TimedOut,
    /// The request could not be sent; the child's state is unchanged.
    Unsent(io::Error),
}

/// Handler of requests: receives the bytes and the descriptors, and returns the answer.
pub(crate) type Serve = Box<dyn FnMut(&[u8], Vec<OwnedFd>) -> Vec<u8>>;

/// A running child. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Confined {
    pid: u32,
    socket: OwnedFd,
}

impl Confined {
    /// Starts a child. The calling thread must outlive it.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] if this program does not call [`enter`]; another error if
    /// [`MAX_UNREAPED`] children still exist, or the child cannot be started.
    pub(crate) fn start() -> io::Result<Self> {
        if !HAS_ENTRY.load(Ordering::Relaxed) {
            let why = "this program cannot start confined child processes";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let mut children = children();
        children.reap(0);
        if children.started.len() >= MAX_UNREAPED {
            return Err(io::Error::other("too many child processes have not ended yet"));
        }
        let (socket, theirs) = channel::pair()?;
        // The link leads to the running program, even if its file was replaced. In its own process group, the child
        // does not receive the terminal's Ctrl-C.
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).env_clear().current_dir("/").process_group(0);
        command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn()?;
        let pid = child.id();
        children.started.push(child);
        drop(children);
        let mut new = Self { pid, socket };
        match new.answer(Instant::now() + START_TIMEOUT) {
            Ok(ready) if ready == READY => Ok(new),
            _ => Err(io::Error::other("the child process failed to drop its privileges")),
        }
    }

    /// Returns whether the child waits for a request.
    pub(crate) fn is_idle(&self) -> bool {
        !channel::is_ready(&self.socket)
    }

    /// Sends a request with descriptors, and returns the answer of at most [`MAX_MESSAGE`] bytes. The answer is as
    /// untrusted as the files that the child reads.
    ///
    /// # Errors
    /// [`Failure`]. After any failure except [`Failure::Unsent`], the child cannot be used any more.
    pub(crate) fn ask(
        &mut self,
        request: &[u8],
        files: &[BorrowedFd<'_>],
        deadline: Duration,
    ) -> Result<Vec<u8>, Failure> {
        let end = Instant::now() + deadline;
        match channel::send(&self.socket, &[IoSlice::new(request)], files) {
            Ok(()) => self.answer(end),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(self.ended()),
            Err(error) => Err(Failure::Unsent(error.into())),
        }
    }

    /// Waits for an answer until `end`.
    fn answer(&mut self, end: Instant) -> Result<Vec<u8>, Failure> {
        match channel::wait(&self.socket, end) {
            Ok(true) => {}
            Ok(false) => return Err(Failure::TimedOut),
            Err(error) => return Err(Failure::Unsent(error.into())),
        }
        let mut answer = vec![0; MAX_MESSAGE];
        // If the child has sent descriptors with the answer, they are not accepted.
        match channel::receive(&self.socket, &mut [IoSliceMut::new(&mut answer)]) {
            Ok(bytes) => {
                answer.truncate(bytes);
                Ok(answer)
            }
            Err(_) => Err(self.ended()),
        }
    }

    /// Returns the failure of a request to a child that is ending.
    fn ended(&self) -> Failure {
        Failure::Ended(self.wait_for_end())
    }

    /// Waits at most 100 ms for the child's end, and returns its exit status.
    fn wait_for_end(&self) -> Option<ExitStatus> {
        for _ in 0..20 {
            let mut children = children();
            let status = children.reap(self.pid);
            let is_reaped = children.started.iter().all(|child| child.id() != self.pid);
            drop(children);
            if is_reaped {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        // Its PID is not reused until it is reaped.
        if let Some(child) = children().started.iter_mut().find(|child| child.id() == self.pid) {
            let _ = child.kill();
        }
        // If it is stuck in a read in the kernel, a later start reaps it.
        self.wait_for_end();
    }
}

/// In a process started by [`Confined::start`], runs `serve` and exits. In other processes, allows this program to
/// start children. Must be called at the start of main(), before there are threads.
pub(crate) fn enter(serve: impl FnOnce() -> Serve) {
    if env::args_os().next().is_none_or(|name| name != NAME) {
        HAS_ENTRY.store(true, Ordering::Relaxed);
        return;
    }
    let socket = io::stdin();
    let served = confine().map(|()| {
        // If the parent has ended, the first receive notices.
        let _ = channel::send(&socket, &[IoSlice::new(READY)], &[]);
        answer_all(socket.as_fd(), serve());
    });
    exit(i32::from(served.is_err()));
}

/// Answers requests until the parent closes the socket.
fn answer_all(socket: BorrowedFd<'_>, mut serve: Serve) {
    let mut request = vec![0; MAX_MESSAGE];
    loop {
        let parts = &mut [IoSliceMut::new(&mut request)];
        let Ok((bytes, files)) = channel::receive_files(socket, parts) else { return };
        let mut answer = serve(&request[..bytes], files.into_iter().flatten().collect());
        answer.truncate(MAX_MESSAGE);
        if channel::send(socket, &[IoSlice::new(&answer)], &[]).is_err() {
            return;
        }
    }
}

/// Irrevocably drops all privileges that the child does not need.
fn confine() -> io::Result<()> {
    close_inherited()?;
    // The parent ends the child. A service manager that signals all processes must not end it, because names are
    // needed until the end of the trace.
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: ignoring a signal runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // Makes it the OOM killer's first choice. An error is ignored, because the child works without this.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    let limits = [
        (Resource::As, MAX_ADDRESS_SPACE),
        (Resource::Nofile, MAX_OPEN),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Nproc, 0),
    ];
    for (resource, limit) in limits {
        setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })?;
    }
    privileges::keep_only(CapabilitySet::empty());
    if !capabilities(None)?.permitted.is_empty() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    set_parent_process_death_signal(Some(Signal::KILL))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let program = filter().map_err(io::Error::other)?;
    apply_filter(&program).map_err(io::Error::other)
}

/// Closes descriptors that the parent has inherited from the process that started it, and has passed on to
/// this child.
fn close_inherited() -> io::Result<()> {
    let numbers: Vec<i32> = fs::read_dir("/proc/self/fd")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&number| number > 2)
        .collect();
    for number in numbers {
        // SAFETY: no object in this process owns a descriptor above 2 yet. The directory's own descriptor is already
        // closed.
        unsafe { libc::close(number) };
    }
    Ok(())
}

/// Returns the seccomp filter, which allows the listed system calls and kills the process at any other one.
fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    const ALLOWED: [i64; 25] = [
        libc::SYS_brk,
        libc::SYS_clock_gettime,
        libc::SYS_close,
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_fstat,
        libc::SYS_futex,
        libc::SYS_getpid,
        libc::SYS_getrandom,
        libc::SYS_gettid,
        libc::SYS_lseek,
        libc::SYS_madvise,
        libc::SYS_mremap,
        libc::SYS_munmap,
        // fstat() of C libraries and of Rust uses one of these, with an empty path. With another path, they reveal
        // metadata only.
        libc::SYS_newfstatat,
        libc::SYS_statx,
        libc::SYS_pread64,
        libc::SYS_read,
        libc::SYS_recvmsg,
        libc::SYS_restart_syscall,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_sendmsg,
        libc::SYS_sigaltstack,
    ];
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().map(|&call| (call, Vec::new())).collect();
    // mmap() and mprotect() are allowed only for memory that is not executable.
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        let executable = SeccompCmpOp::MaskedEq(u64::from(libc::PROT_EXEC.unsigned_abs()));
        let condition = SeccompCondition::new(2, SeccompCmpArgLen::Dword, executable, 0)?;
        rules.insert(call, vec![SeccompRule::new(vec![condition])?]);
    }
    // Other fcntl() commands could cause signals to be sent.
    let commands = [libc::F_DUPFD_CLOEXEC, libc::F_GETFD].map(|command| {
        let value = u64::from(command.unsigned_abs());
        SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
            .and_then(|condition| SeccompRule::new(vec![condition]))
    });
    rules.insert(libc::SYS_fcntl, commands.into_iter().collect::<Result<_, _>>()?);
    let (other, listed) = (SeccompAction::KillProcess, SeccompAction::Allow);
    SeccompFilter::new(rules, other, listed, env::consts::ARCH.try_into()?)?.try_into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a thread that runs `peer` in place of a child process, to test messages without confinement.
    fn child_in_thread(peer: impl FnOnce(OwnedFd) + Send + 'static) -> Confined {
        let (socket, theirs) = channel::pair().unwrap();
        std::thread::spawn(move || peer(theirs));
        Confined { pid: 0, socket }
    }

    #[test]
    fn requests_and_descriptors_reach_the_child_and_answers_return() {
        let mut child = child_in_thread(|socket| {
            let serve = |request: &[u8], files: Vec<OwnedFd>| {
                let mut bytes = [0; 4];
                rustix::io::pread(&files[0], &mut bytes, 0).unwrap();
                [request, &bytes[..]].concat()
            };
            answer_all(socket.as_fd(), Box::new(serve));
        });
        assert!(child.is_idle());
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_at(&file, b"content", 0).unwrap();
        let answer = child.ask(b"what: ", &[file.as_fd()], Duration::from_secs(60)).unwrap();
        assert_eq!(answer, b"what: cont");
    }

    #[test]
    fn a_child_that_ends_or_stalls_fails_the_request() {
        let mut gone = child_in_thread(drop);
        let failure = gone.ask(b"x", &[], Duration::from_secs(60)).unwrap_err();
        assert!(matches!(failure, Failure::Ended(None)), "{failure:?}");
        assert!(!gone.is_idle());
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let mut stalled = child_in_thread(move |socket| {
            let _ = ended.recv();
            drop(socket);
        });
        let failure = stalled.ask(b"x", &[], Duration::from_millis(20)).unwrap_err();
        assert!(matches!(failure, Failure::TimedOut), "{failure:?}");
        drop(end);
    }

    #[test]
    fn program_without_child_entry_point_starts_no_child() {
        let error = Confined::start().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn seccomp_filter_compiles() {
        assert!(!filter().unwrap().is_empty());
    }
}

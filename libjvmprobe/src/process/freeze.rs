//! Stops all threads of a process for a short time, so that all data that is read from the process is of one instant.
//!
//! A thread of this program, the tracer, attaches to each thread of the process and interrupts it (`PTRACE_SEIZE`,
//! `PTRACE_INTERRUPT`). The kernel continues the threads when the tracer ends, even if this program and all other
//! processes of its control group are killed. No signal is sent: a process that was stopped by SIGSTOP before stays
//! stopped afterwards, and signals that arrive meanwhile are delivered when the process continues. System calls that
//! the stop interrupts go on as after SIGSTOP and SIGCONT.
//!
//! A thread that waits in the kernel and cannot be interrupted (state D) counts as stopped, because it stops before it
//! executes further instructions of the process.
//!
//! Sources: ptrace(2), signal(7), waitid(2); kernel/ptrace.c and kernel/signal.c.

use std::{
    collections::HashSet,
    io, mem, ptr,
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread::{self, JoinHandle, sleep},
    time::{Duration, Instant},
};

use procfs::{FromRead, process::Stat};

use crate::{
    Pid,
    process::{
        Process,
        os_threads::tids,
        pid::{status_of, text_of},
    },
};

/// Maximum time until all threads have stopped.
const MAX_STOPPING: Duration = Duration::from_secs(2);
/// Time for which attaching is repeated if another process traces the thread. A process that is being killed may still
/// trace it for a short time.
const MAX_TRACED: Duration = Duration::from_millis(200);
/// Time after which threads that have not stopped are checked for state D.
const CHECK_STATE_AFTER: Duration = Duration::from_millis(20);
/// Interval between two checks of the threads that have not stopped.
const POLL: Duration = Duration::from_millis(1);
/// `PTRACE_SEIZE`, `PTRACE_INTERRUPT` and `PTRACE_DETACH` of include/uapi/linux/ptrace.h.
const SEIZE: libc::c_long = 0x4206;
const INTERRUPT: libc::c_long = 0x4207;
const DETACH: libc::c_long = 17;

/// A stopped process. Dropping it continues the process.
#[derive(Debug)]
pub struct Frozen {
    /// Closed to continue the process.
    release: Option<Sender<()>>,
    /// The thread that traces the process.
    tracer: Option<JoinHandle<()>>,
}

impl Frozen {
    /// Stops all threads of a process, and waits until they have stopped. Needs `CAP_SYS_PTRACE` for a process of
    /// another user.
    ///
    /// # Errors
    /// An error that says why the process cannot be stopped, for example because another process traces it, or because
    /// it does not stop within two seconds. The process then runs on.
    pub fn new(process: &Process) -> io::Result<Self> {
        let end = Instant::now() + MAX_STOPPING;
        let (release, released) = channel::<()>();
        let (send, stopped) = channel();
        let pid = process.pid;
        let trace = move || {
            let mut traced = Traced::default();
            let begin = Instant::now();
            let outcome = traced.stop_all(pid, end);
            let (many, ms) = (traced.0.len(), begin.elapsed().as_millis());
            log::debug!("process {pid}: attached to {many} threads in {ms} ms");
            // The process stays stopped until `release` is closed. If the caller has stopped waiting, this was done.
            if send.send(outcome).is_ok() {
                let _ = released.recv();
            }
            traced.detach();
        };
        let tracer = thread::Builder::new().name("freeze".into()).spawn(trace)?;
        // PTRACE_SEIZE itself may block, for example while the process executes a program on a file system that does
        // not answer.
        let outcome = stopped.recv_timeout(MAX_STOPPING + MAX_TRACED);
        let mut frozen = Self { release: Some(release), tracer: Some(tracer) };
        match outcome {
            // The process may have ended before the first thread was seized, and a new one may have its PID.
            Ok(Ok(())) if !process.has_ended() => Ok(frozen),
            Ok(Ok(())) => Err(io::Error::other("the process has ended")),
            Ok(Err(error)) => Err(error),
            Err(RecvTimeoutError::Timeout) => {
                // The thread ends when its system call returns.
                frozen.tracer = None;
                Err(not_stopped())
            }
            Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the tracer has ended")),
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.release = None;
        if let Some(tracer) = self.tracer.take() {
            let _ = tracer.join();
        }
    }
}

fn not_stopped() -> io::Error {
    io::Error::other("not all threads stopped within two seconds; omit --freeze")
}

/// State of a thread that this thread traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has not stopped yet.
    Runs,
    /// It has stopped before it handles this signal; 0 for none.
    Stopped(libc::c_int),
    /// It has exited.
    Exited,
}

/// The threads that this thread traces. The kernel detaches from them when this thread ends.
#[derive(Debug, Default)]
struct Traced(HashSet<u32>);

impl Traced {
    /// Attaches to all threads of a process, and waits until they have stopped.
    fn stop_all(&mut self, pid: Pid, end: Instant) -> io::Result<()> {
        // Threads may start and exit while the threads are listed, so two lists must have no further one. Only a thread
        // that has not stopped can start another one.
        let mut complete_lists = 0;
        while complete_lists < 2 {
            let mut interrupted = Vec::new();
            for tid in tids(pid) {
                if !self.0.contains(&tid) && attach(pid, tid)? {
                    self.0.insert(tid);
                    interrupted.push(tid);
                }
            }
            complete_lists = if interrupted.is_empty() { complete_lists + 1 } else { 0 };
            wait_until_stopped(pid, interrupted, end)?;
        }
        if self.0.is_empty() {
            return Err(io::Error::other("the process has ended"));
        }
        Ok(())
    }

    /// Continues the threads. A thread that waits in the kernel is continued by the end of this thread.
    fn detach(self) {
        for tid in self.0 {
            if let State::Stopped(signal) = state(tid) {
                let _ = ptrace(DETACH, tid, signal.into());
            }
        }
    }
}

/// Attaches to a thread and interrupts it. Returns `false` if it has exited.
fn attach(pid: Pid, tid: u32) -> io::Result<bool> {
    let begin = Instant::now();
    while let Err(error) = ptrace(SEIZE, tid, 0) {
        if error.raw_os_error() == Some(libc::ESRCH) {
            return Ok(false);
        }
        // The kernel returns EPERM also for a thread that is exiting, and for one that is traced.
        if matches!(thread_state(pid, tid), None | Some('Z' | 'X')) {
            return Ok(false);
        }
        match tracer_of(tid) {
            None => return Ok(false),
            Some(0) => return Err(refused(&error)),
            Some(_) if begin.elapsed() < MAX_TRACED => sleep(POLL),
            Some(tracer) => {
                return Err(io::Error::other(format!(
                    "process {tracer}, such as a debugger or strace, traces it already; end that process, or omit \
                     --freeze"
                )));
            }
        }
    }
    // This fails only if the thread has exited meanwhile.
    Ok(ptrace(INTERRUPT, tid, 0).is_ok() || state(tid) != State::Exited)
}

fn refused(error: &io::Error) -> io::Error {
    io::Error::other(format!(
        "the kernel refuses to trace it ({error}): CAP_SYS_PTRACE is missing, or Yama (sysctl \
         kernel.yama.ptrace_scope = 3) or a seccomp filter forbids it; omit --freeze"
    ))
}

/// Waits until each of these threads has stopped, has exited, or waits in the kernel and cannot be interrupted.
fn wait_until_stopped(pid: Pid, mut threads: Vec<u32>, end: Instant) -> io::Result<()> {
    let begin = Instant::now();
    loop {
        let checks_state = begin.elapsed() >= CHECK_STATE_AFTER;
        threads.retain(|&tid| {
            state(tid) == State::Runs
                && !(checks_state && matches!(thread_state(pid, tid), None | Some('D')))
        });
        if threads.is_empty() {
            return Ok(());
        }
        if Instant::now() >= end {
            return Err(not_stopped());
        }
        sleep(POLL);
    }
}

/// Returns the state of a thread that this thread traces.
fn state(tid: u32) -> State {
    // The stop is left in place (WNOWAIT), because the kernel then delivers the signal, if there is one, even if this
    // thread ends without detaching.
    let options = libc::WSTOPPED
        | libc::WEXITED
        | libc::WNOHANG
        | libc::WNOWAIT
        | libc::__WALL
        | libc::__WNOTHREAD;
    // SAFETY: siginfo_t consists of integers and pointers, for which zero is valid.
    let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
    // SAFETY: `info` is a valid siginfo_t, which the kernel fills.
    if unsafe { libc::waitid(libc::P_PID, tid, &raw mut info, options) } != 0 {
        return State::Exited;
    }
    // SAFETY: waitid() sets these fields, or leaves them zero if the thread runs.
    let (found, status) = unsafe { (info.si_pid(), info.si_status()) };
    match info.si_code {
        _ if found == 0 => State::Runs,
        // In the second byte, the status has the kind of a stop that is not for a signal.
        libc::CLD_TRAPPED | libc::CLD_STOPPED if status >> 8 == 0 => State::Stopped(status),
        libc::CLD_TRAPPED | libc::CLD_STOPPED => State::Stopped(0),
        _ => State::Exited,
    }
}

/// Calls ptrace(2). `data` is the last argument.
fn ptrace(request: libc::c_long, tid: u32, data: libc::c_long) -> io::Result<()> {
    let address: *const libc::c_void = ptr::null();
    // SAFETY: the requests used here access no memory of this process.
    match unsafe {
        libc::syscall(libc::SYS_ptrace, request, libc::c_long::from(tid), address, data)
    } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Returns the state of a thread in /proc; `None` if it has exited.
fn thread_state(pid: Pid, tid: u32) -> Option<char> {
    let stat = text_of(pid, &format!("task/{tid}/stat")).ok()?;
    Some(Stat::from_read(stat.as_bytes()).ok()?.state)
}

/// Returns the thread that traces a thread, or 0; `None` if the traced thread has exited.
fn tracer_of(tid: u32) -> Option<i32> {
    status_of(Pid(tid)).ok().map(|status| status.tracerpid)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        process::{Child, Command, Stdio},
    };

    use rustix::process::Signal;

    use super::*;

    fn process(child: &Child) -> Process {
        Process::open(Pid(child.id())).unwrap()
    }

    /// Waits until the process has this state.
    fn wait_for_state(process: &Process, state: char) {
        let begin = Instant::now();
        while thread_state(process.pid, process.pid.0) != Some(state) {
            assert!(begin.elapsed() < Duration::from_secs(10), "not in state {state}");
            sleep(POLL);
        }
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn frozen_process_goes_on_with_its_system_call() {
        let mut child = Command::new("sleep").arg("0.5").spawn().unwrap();
        let process = process(&child);
        for _ in 0..20 {
            let frozen = Frozen::new(&process).unwrap();
            assert_eq!(thread_state(process.pid, process.pid.0), Some('t'));
            drop(frozen);
            assert_ne!(thread_state(process.pid, process.pid.0), Some('t'));
        }
        assert!(child.wait().unwrap().success());
        assert!(Frozen::new(&process).is_err());
    }

    #[test]
    fn signal_that_arrives_meanwhile_is_delivered_afterwards() {
        let script = "trap 'echo caught; exit 0' USR1; echo ready; while :; do sleep 0.01; done";
        let mut child =
            Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let process = process(&child);
        let frozen = Frozen::new(&process).unwrap();
        process.signal(Signal::USR1).unwrap();
        sleep(Duration::from_millis(50));
        assert_eq!(thread_state(process.pid, process.pid.0), Some('t'));
        drop(frozen);
        assert_eq!(lines.next().unwrap().unwrap(), "caught");
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn stopped_process_stays_stopped() {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = process(&child);
        process.signal(Signal::STOP).unwrap();
        wait_for_state(&process, 'T');
        drop(Frozen::new(&process).unwrap());
        wait_for_state(&process, 'T');
        process.signal(Signal::CONT).unwrap();
        wait_for_state(&process, 'S');
        end(child);
    }

    #[test]
    fn error_names_the_process_that_traces_already() {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = process(&child);
        let frozen = Frozen::new(&process).unwrap();
        let error = Frozen::new(&process).unwrap_err().to_string();
        assert!(error.contains("traces it already"), "{error}");
        // The failed attempt has not continued the process.
        assert_eq!(thread_state(process.pid, process.pid.0), Some('t'));
        drop(frozen);
        wait_for_state(&process, 'S');
        end(child);
    }
}

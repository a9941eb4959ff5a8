//! A thread that is stopped, inspected and single-stepped with ptrace(2).
//!
//! Only threads of JVMs that the recorder has started are traced. All calls come from one thread,
//! as ptrace requires.

use std::{io, ptr};

use libc::{c_int, c_void, pid_t};

use crate::arch::{self, Regs};

/// A seized thread, which is detached when this is dropped.
pub struct Tracee {
    tid: pid_t,
    is_stopped: bool,
    /// Signal that is delivered when the thread continues.
    signal: c_int,
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The thread has executed one instruction, or has reached the address that it was run to.
    Stepped,
    /// A signal has arrived. It is delivered when the thread continues.
    Signal(c_int),
    /// The thread has not stopped for about 0.3 seconds (for example, because it waits in the
    /// kernel), has ended, or has stopped 50 times without reaching the address that it was run to.
    Away,
}

/// Makes a ptrace request.
pub fn ptrace(request: libc::c_uint, tid: pid_t, addr: usize, data: usize) -> io::Result<()> {
    // SAFETY: the requests used here take numbers, or a pointer in `data` to memory of ours that is
    // large enough.
    let result = unsafe { libc::ptrace(request, tid, addr as *mut c_void, data as *mut c_void) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

extern "C" fn ignore_signal(_signal: c_int) {}

/// Starts a timer whose SIGALRM interrupts waiting system calls of this process ten times a second.
pub fn tick() {
    let tenth = libc::timeval { tv_sec: 0, tv_usec: 100_000 };
    let timer = libc::itimerval { it_interval: tenth, it_value: tenth };
    // SAFETY: a handler that does nothing, without SA_RESTART, and a timer of our own process.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore_signal as *const () as usize;
        libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut());
        libc::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut());
    }
}

impl Tracee {
    /// Seizes and stops a thread.
    pub fn stop(tid: pid_t) -> io::Result<Self> {
        ptrace(libc::PTRACE_SEIZE, tid, 0, 0)?;
        let mut tracee = Self { tid, is_stopped: false, signal: 0 };
        ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0)?;
        let status = tracee.wait().ok_or_else(|| io::Error::other("the thread does not stop"))?;
        tracee.keep_signal(status);
        Ok(tracee)
    }

    /// Keeps the signal of a stop for delivery, unless the stop is a group stop or a trap.
    fn keep_signal(&mut self, status: c_int) -> Stop {
        let signal = libc::WSTOPSIG(status);
        if status >> 16 != 0 || signal == libc::SIGTRAP {
            return Stop::Stepped;
        }
        self.signal = signal;
        Stop::Signal(signal)
    }

    /// Waits until it stops. Returns `None` if that takes longer than about 0.3 seconds, or if the
    /// thread has ended.
    fn wait(&mut self) -> Option<c_int> {
        let mut status = 0;
        let mut ticks = 0;
        // The timer of `tick` interrupts waitpid.
        while ticks < 3 {
            // SAFETY: waitpid fills an int of ours.
            let got = unsafe { libc::waitpid(self.tid, &raw mut status, libc::__WALL) };
            if got == self.tid && libc::WIFSTOPPED(status) {
                self.is_stopped = true;
                return Some(status);
            }
            if got != -1 || io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                return None;
            }
            ticks += 1;
        }
        None
    }

    /// Returns its registers.
    pub fn registers(&self) -> io::Result<Regs> {
        Regs::of(self.tid)
    }

    /// Runs the thread until it is at this address with its stack pointer at `sp` or above.
    pub fn run_to(&mut self, ip: u64, sp: u64) -> io::Result<Stop> {
        let mut stop = Stop::Away;
        for _ in 0..50 {
            if !arch::CONTINUES_AT_BREAKPOINT && self.registers()?.start().ip == ip {
                arch::set_breakpoint(self.tid, None)?;
                if self.step()? == Stop::Away {
                    return Ok(Stop::Away);
                }
            }
            arch::set_breakpoint(self.tid, Some(ip))?;
            let signal = std::mem::take(&mut self.signal);
            ptrace(libc::PTRACE_CONT, self.tid, 0, signal as usize)?;
            self.is_stopped = false;
            let Some(status) = self.wait() else { return Ok(Stop::Away) };
            self.keep_signal(status);
            let regs = self.registers()?.start();
            if regs.ip == ip && regs.sp >= sp {
                stop = Stop::Stepped;
                break;
            }
        }
        arch::set_breakpoint(self.tid, None)?;
        Ok(stop)
    }

    /// Executes one instruction.
    pub fn step(&mut self) -> io::Result<Stop> {
        let signal = std::mem::take(&mut self.signal);
        ptrace(libc::PTRACE_SINGLESTEP, self.tid, 0, signal as usize)?;
        self.is_stopped = false;
        let Some(status) = self.wait() else { return Ok(Stop::Away) };
        Ok(self.keep_signal(status))
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if !self.is_stopped && ptrace(libc::PTRACE_INTERRUPT, self.tid, 0, 0).is_ok() {
            while self.wait().is_none() {
                // SAFETY: signal 0 only checks whether the thread exists.
                if unsafe { libc::syscall(libc::SYS_tkill, self.tid, 0) } != 0 {
                    return;
                }
            }
        }
        // A breakpoint that is hit without a tracer would kill the process.
        let _ = arch::set_breakpoint(self.tid, None);
        // This fails if the thread has ended. Otherwise the thread continues.
        let _ = ptrace(libc::PTRACE_DETACH, self.tid, 0, self.signal as usize);
    }
}

//! Child processes that are forked from this process without executing a program.
//!
//! # Why this is sound
//! A child of fork(2) in a process with threads may only make system calls and touch memory that no lock of
//! other threads protects. Such a child runs one function that never returns, allocates nothing and takes no lock. It
//! runs no signal handler, because signals are blocked before the fork and stay blocked.

use std::{
    ffi::CStr,
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::{
    io::Errno,
    process::{getpriority_process, setpriority_process},
};

/// Nice value of the children. On an overloaded host, this process would wait for them.
const NICE: i32 = -5;

/// Forks a child that serves a socket. All other descriptors are closed in the child. Returns its PID.
///
/// # Errors
/// The errors of fork(2).
pub(crate) fn fork(
    name: &'static CStr,
    socket: OwnedFd,
    serve: fn(OwnedFd) -> !,
) -> Result<u32, Errno> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are local variables; the first is filled before it is used. The child only calls `serve`.
    let child = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
        let child = libc::fork();
        if child == 0 {
            keep_only(&socket);
            libc::prctl(libc::PR_SET_NAME, name.as_ptr());
            // Without CAP_SYS_NICE, the child keeps the priority of this process.
            if getpriority_process(None).is_ok_and(|nice| nice > NICE) {
                let _ = setpriority_process(None, NICE);
            }
            serve(socket);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        child
    };
    u32::try_from(child)
        .map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Ends the child.
pub(crate) fn exit() -> ! {
    // SAFETY: ends this process without running exit handlers inherited from the parent.
    unsafe { libc::_exit(0) }
}

/// Closes all descriptors but one, so that a stuck child holds no file, probe or pipe of its parent.
fn keep_only(socket: &OwnedFd) {
    let socket = socket.as_raw_fd().cast_unsigned();
    for (first, last) in [(0, socket.wrapping_sub(1)), (socket + 1, u32::MAX)] {
        if first > last || last == u32::MAX && first == 0 {
            continue;
        }
        // SAFETY: nothing in this process uses these descriptors any more.
        let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        if result != 0 {
            // Linux before 5.9 has no close_range(2), so each possible number is closed.
            for fd in first..=last.min(1 << 16) {
                // SAFETY: nothing in this process uses this descriptor any more.
                unsafe { libc::close(fd.cast_signed()) };
            }
        }
    }
}

//! Acting as a target's user.
//!
//! Files for the target are created by a thread that has switched to the target's effective user and group.
//! So these files have the right owner from the beginning. A file system mounted in a user namespace even
//! requires this: creating a file as a user that is not mapped in that namespace, such as root, fails with
//! EOVERFLOW (user_namespaces(7)).

use std::{io, thread};

use rustix::{
    fs::{Gid, Uid},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

use crate::process::Process;

/// The user that creates a file.
#[derive(Clone, Copy, Debug)]
pub enum Owner<'a> {
    /// Our own user.
    Us,
    /// The target's effective user and group.
    Target(&'a Process),
}

impl Owner<'_> {
    /// Runs `work` as that user.
    ///
    /// # Errors
    /// The error of `work`; [`io::ErrorKind::PermissionDenied`] if this process cannot switch to that user.
    pub(crate) fn act<T: Send>(self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        match self {
            Self::Us => work(),
            Self::Target(process) => as_target(process, work)
                .map_err(|why| io::Error::new(io::ErrorKind::PermissionDenied, why))?,
        }
    }
}

/// Runs `work` as the target's user, in a separate thread, because the kernel keeps user and group IDs per thread.
///
/// `work` should not depend on files of the target in /proc. If the JVM runs in another user namespace or has
/// capabilities, root can read these files, but the JVM's own user cannot.
///
/// # Errors
/// A sentence with the reason why the thread cannot act as that user.
pub(crate) fn as_target<T: Send>(
    process: &Process,
    work: impl FnOnce() -> T + Send,
) -> Result<T, String> {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            take_identity(process)?;
            Ok(work())
        });
        worker.join().unwrap_or_else(|_| Err("the thread that acts as its user panicked".into()))
    })
}

fn take_identity(process: &Process) -> Result<(), String> {
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if own == (process.uid, process.gid) {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(process.uid), Gid::from_raw(process.gid));
    // The real and saved IDs stay unchanged. Otherwise, the kernel would clear the thread's permitted
    // capabilities (capabilities(7)).
    set_thread_groups(&[gid])
        .and_then(|()| set_thread_res_gid(None, gid, None))
        .and_then(|()| set_thread_res_uid(None, uid, None))
        .map_err(|e| format!("cannot act as its user {} ({e}); run as root", process.uid))
}

//! Acting as a target's user.
//!
//! Files for the target are created by a thread that has taken its effective user and
//! group: they have the right owner from the beginning, and a file system that was mounted
//! in a user namespace takes no others (EOVERFLOW for an id that is not mapped there, be it
//! root's; user_namespaces(7)).

use std::{io, thread};

use rustix::{
    fs::{Gid, Uid},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

use crate::process::Process;

/// As whom a file is created.
#[derive(Clone, Copy, Debug)]
pub enum Owner<'a> {
    /// Our own user.
    Us,
    /// The target's effective user and group.
    Target(&'a Process),
}

impl Owner<'_> {
    /// Does something as that user.
    ///
    /// # Errors
    /// Those of `work`; [`io::ErrorKind::PermissionDenied`] where we may not act as that user.
    pub(crate) fn act<T: Send>(self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        match self {
            Self::Us => work(),
            Self::Target(process) => as_target(process, work)
                .map_err(|why| io::Error::new(io::ErrorKind::PermissionDenied, why))?,
        }
    }
}

/// Does something as the target's user. In a thread of its own, for identity belongs
/// to a thread, as far as the kernel is concerned.
///
/// Little may be asked about the target there: of a JVM in another user namespace, or one
/// with capabilities, /proc hides from its own user what it tells root.
///
/// # Errors
/// A sentence saying why it cannot be done as that user.
pub(crate) fn as_target<T: Send>(
    process: &Process,
    work: impl FnOnce() -> T + Send,
) -> Result<T, String> {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            take_identity(process)?;
            Ok(work())
        });
        worker.join().unwrap_or_else(|_| Err("the thread that acts as its user failed".into()))
    })
}

fn take_identity(process: &Process) -> Result<(), String> {
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if own == (process.uid, process.gid) {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(process.uid), Gid::from_raw(process.gid));
    // The real and saved ids stay, so that the process keeps its right to trace.
    set_thread_groups(&[gid])
        .and_then(|()| set_thread_res_gid(None, gid, None))
        .and_then(|()| set_thread_res_uid(None, uid, None))
        .map_err(|e| format!("cannot act as its user {} ({e}); run as root", process.uid))
}

//! How many files may be open at once.
//!
//! Each JVM takes some, each library that is mapped, each processor and each place that is
//! attached to. The soft limit is usually 1,024, for programs that use select(2); the hard one is
//! what the system grants. Source: getrlimit(2).

use std::{
    io,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{Error, own::note};

/// The limit as we were started with it.
static FOUND: OnceLock<Rlimit> = OnceLock::new();

/// Raises the limit to the hard one.
pub(crate) fn raise_limit() {
    let found = FOUND.get_or_init(|| getrlimit(Resource::Nofile));
    // It may always be raised so far; and if not, it is as it was.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: found.maximum, ..*found });
}

/// Sets the limit as it was, for a command that we start. Between fork and exec: system calls
/// only.
///
/// # Errors
/// The kernel's.
pub(crate) fn restore_limit() -> io::Result<()> {
    match FOUND.get() {
        Some(found) => Ok(setrlimit(Resource::Nofile, *found)?),
        None => Ok(()),
    }
}

/// Whether something failed only because no more files can be opened. Says so, once: what is
/// missing then may not be noticed otherwise.
pub(crate) fn ran_out(error: &Error) -> bool {
    let code = match error {
        Error::Io { source, .. } | Error::Memory { source, .. } => source.raw_os_error(),
        _ => None,
    };
    let ran_out = code.is_some_and(is_exhaustion);
    static TOLD: AtomicBool = AtomicBool::new(false);
    if ran_out && !TOLD.swap(true, Ordering::Relaxed) {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
        note(&format!(
            "too many open files (the limit is {limit}: ulimit -Hn): names and frames of some \
             libraries will be missing"
        ));
    }
    ran_out
}

fn is_exhaustion(code: i32) -> bool {
    [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE].iter().any(|e| e.raw_os_error() == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exhaustion_is_exhaustion() {
        let error = |code| Error::io("open /x", io::Error::from_raw_os_error(code));
        assert!(ran_out(&error(24)));
        assert!(ran_out(&error(23)));
        assert!(!ran_out(&error(2)));
    }

    #[test]
    fn the_limit_is_raised_and_restored() {
        raise_limit();
        let raised = getrlimit(Resource::Nofile);
        assert_eq!(raised.current, raised.maximum);
        restore_limit().unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current, FOUND.get().unwrap().current);
    }
}

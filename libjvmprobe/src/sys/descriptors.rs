//! Limit on open files.
//!
//! Descriptors are needed per JVM, per mapped library, per processor and per attached location. The soft limit is
//! usually 1,024, for the sake of programs that use select(2); the hard limit is what the system grants. Source:
//! getrlimit(2).

use std::{
    io,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Error;

/// The limit that this process was started with.
static ORIGINAL_LIMIT: OnceLock<Rlimit> = OnceLock::new();

/// Raises the soft limit to the hard limit.
pub(crate) fn raise_limit() {
    let found = ORIGINAL_LIMIT.get_or_init(|| getrlimit(Resource::Nofile));
    // This is always permitted; if it fails all the same, the limit stays as it was.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: found.maximum, ..*found });
}

/// Returns the maximum number of descriptors that this process may have.
pub(crate) fn limit() -> usize {
    let limit = getrlimit(Resource::Nofile).maximum;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Restores the original limit for a command that we start. Runs between fork and exec, so it makes only system calls.
///
/// # Errors
/// Returns the error of setrlimit(2).
pub(crate) fn restore_limit() -> io::Result<()> {
    match ORIGINAL_LIMIT.get() {
        Some(found) => Ok(setrlimit(Resource::Nofile, *found)?),
        None => Ok(()),
    }
}

/// Returns whether an operation failed because too many files are open. Prints a message the first time.
/// Without it, the user might not notice that data is missing.
pub(crate) fn ran_out(error: &Error) -> bool {
    let code = match error {
        Error::Io { source, .. } | Error::Memory { source, .. } => source.raw_os_error(),
        _ => None,
    };
    let ran_out = code.is_some_and(is_exhaustion);
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if ran_out && !IS_REPORTED.swap(true, Ordering::Relaxed) {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
        log::warn!(
            "too many open files: names and frames of some libraries will be missing; raise the \
             limit of {limit} (ulimit -Hn)"
        );
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
    fn only_emfile_and_enfile_count_as_exhaustion() {
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
        assert_eq!(getrlimit(Resource::Nofile).current, ORIGINAL_LIMIT.get().unwrap().current);
    }
}

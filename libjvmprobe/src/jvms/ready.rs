//! Detection of a JVM within a process that has mapped libjvm.so.
//!
//! A launcher maps the library some milliseconds before it creates a JVM, and other programs map it without
//! ever creating one. A JVM first parses its arguments (`Arguments::parse`,
//! hotspot/share/runtime/arguments.cpp) and chooses a collector. From then on, its memory shows that it is a
//! JVM.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    Error, Result,
    hotspot::HotSpot,
    process::{Fate, Target},
};

/// Process age after which a JVM is expected to exist if the process creates one at all.
const MAX_AGE_WITHOUT_VM: Duration = Duration::from_secs(3);
/// Minimum waiting time, because a process of any age may have mapped the library just now.
const MIN_WAIT: Duration = Duration::from_secs(1);
/// Interval between reads.
const READ_INTERVAL: Duration = Duration::from_millis(20);

/// Reads a JVM that the user has named, waiting briefly for one that is about to be created. If its state
/// cannot be read, the inner result holds the reason.
///
/// # Errors
/// [`Error::NoVm`] if the process has no JVM, [`Error::NoSuchProcess`] if it has ended.
pub(crate) fn wait_for_any_vm(target: &Target) -> Result<Result<HotSpot>> {
    match wait_for_vm(target) {
        Err(error @ (Error::NoVm { .. } | Error::NoSuchProcess { .. })) => Err(error),
        other => Ok(other),
    }
}

/// Reads a JVM that the user has named, waiting briefly for one that is about to be created.
///
/// # Errors
/// [`Error::NoVm`] if the process has no JVM, [`Error::NoSuchProcess`] if it has ended; the error of
/// [`HotSpot::read`] if its state cannot be determined.
pub(crate) fn wait_for_vm(target: &Target) -> Result<HotSpot> {
    let patience = MAX_AGE_WITHOUT_VM.saturating_sub(target.process.age()).max(MIN_WAIT);
    let end = Instant::now() + patience;
    let mut read = HotSpot::read(target);
    while !read.as_ref().is_ok_and(|hotspot| hotspot.has_vm) {
        if target.process.fate() == Fate::Ended {
            return Err(Error::NoSuchProcess { pid: target.pid() });
        }
        if Instant::now() >= end {
            let pid = target.pid();
            let no_vm = || Error::NoVm { pid, comm: target.process.comm.clone() };
            return read.and_then(|_| Err(no_vm()));
        }
        sleep(READ_INTERVAL);
        match &mut read {
            Ok(hotspot) => hotspot.refresh(),
            Err(_) => read = HotSpot::read(target),
        }
    }
    read
}

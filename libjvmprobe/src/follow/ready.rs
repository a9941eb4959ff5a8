//! Whether there is a JVM in a process that has libjvm.so mapped.
//!
//! A launcher maps the library some milliseconds before it makes a JVM, and other programs
//! map it and never make one. The first that a JVM does is to look at its arguments
//! (`Arguments::parse`, hotspot/share/runtime/arguments.cpp), which choose a collector:
//! from then on it is told apart.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    Error, Result,
    hotspot::HotSpot,
    process::{Fate, Target},
};

/// After this age, a process that has libjvm.so mapped has made a JVM, or is in no hurry.
const AGE: Duration = Duration::from_secs(3);
/// The library may have been mapped just now, though, by a process of any age.
const LEAST: Duration = Duration::from_secs(1);
/// How often to look.
const PAUSE: Duration = Duration::from_millis(20);

/// What a JVM tells that was named by the user, or why that cannot be read; waits a moment for one
/// that is about to be made.
///
/// # Errors
/// [`Error::NoVm`], [`Error::NoSuchProcess`].
pub(crate) fn wait_for_any_vm(target: &Target) -> Result<Result<HotSpot>> {
    match wait_for_vm(target) {
        Err(error @ (Error::NoVm { .. } | Error::NoSuchProcess { .. })) => Err(error),
        other => Ok(other),
    }
}

/// What a JVM tells that was named by the user; waits a moment for one that is about to be
/// made.
///
/// # Errors
/// [`Error::NoVm`] where there is none, [`Error::NoSuchProcess`] where it has ended; what
/// [`HotSpot::read`] says where it cannot be found out.
pub(crate) fn wait_for_vm(target: &Target) -> Result<HotSpot> {
    let patience = AGE.saturating_sub(target.process.age()).max(LEAST);
    let end = Instant::now() + patience;
    let mut read = HotSpot::read(target);
    while !read.as_ref().is_ok_and(|hotspot| hotspot.has_begun) {
        if target.process.fate() == Fate::Ended {
            return Err(Error::NoSuchProcess { pid: target.pid() });
        }
        if Instant::now() >= end {
            let pid = target.pid();
            let no_vm = || Error::NoVm { pid, comm: target.process.comm.clone() };
            return read.and_then(|_| Err(no_vm()));
        }
        sleep(PAUSE);
        match &mut read {
            Ok(hotspot) => hotspot.look_again(),
            Err(_) => read = HotSpot::read(target),
        }
    }
    read
}

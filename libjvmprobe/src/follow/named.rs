//! JVMs that the user has named, and those that run now.

use crate::{
    Error, Pid, Result,
    follow::ready,
    hotspot::HotSpot,
    process::{Target, scan::Scanner},
};

/// A JVM that was named by the user, and what it tells.
pub type Named = (Target, Result<HotSpot>);

/// Finds the JVMs that the user has named, and waits for those that are just being made.
///
/// # Errors
/// [`NoVm`](crate::Error::NoVm), [`NoSuchProcess`](crate::Error::NoSuchProcess) and those of [`Target::open`].
pub fn find(pids: &[Pid]) -> Result<Vec<Named>> {
    let targets = pids.iter().map(|&pid| Target::open(pid)).collect::<Result<Vec<_>>>()?;
    let hotspots = targets.iter().map(ready::wait_for_any_vm).collect::<Result<Vec<_>>>()?;
    Ok(targets.into_iter().zip(hotspots).collect())
}

/// The JVMs that run now, for a tool that looks once, and the processes that cannot be looked at,
/// with the reason.
pub fn now() -> (Vec<Named>, Vec<(Pid, Error)>) {
    let with_hotspot = |target: Target| {
        let hotspot = HotSpot::read(&target);
        (target, hotspot)
    };
    let mut scanner = Scanner::new();
    let found = scanner.scan().into_iter().map(with_hotspot).collect();
    (found, scanner.take_refused())
}

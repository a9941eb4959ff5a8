//! JVMs that the user has named, and the list of all JVMs that run now.

use crate::{
    Error, Pid, Result,
    hotspot::HotSpot,
    jvms::ready,
    process::{Target, scan::Scanner},
};

/// A JVM that the user has named, and the result of reading it.
pub type Named = (Target, Result<HotSpot>);

/// Opens the processes that the user has named, and waits until those that are starting up have created their JVM.
///
/// # Errors
/// [`NoVm`](crate::Error::NoVm), [`NoSuchProcess`](crate::Error::NoSuchProcess) and those of [`Target::open`].
pub fn find(pids: &[Pid]) -> Result<Vec<Named>> {
    let targets = pids.iter().map(|&pid| Target::open(pid)).collect::<Result<Vec<_>>>()?;
    let hotspots = targets.iter().map(ready::wait_for_any_vm).collect::<Result<Vec<_>>>()?;
    Ok(targets.into_iter().zip(hotspots).collect())
}

/// Returns two lists for a tool that takes a single snapshot: the JVMs that run now, and the processes that
/// look like JVMs but cannot be examined, each with the reason.
pub fn now() -> (Vec<Named>, Vec<(Pid, Error)>) {
    let with_hotspot = |target: Target| {
        let hotspot = HotSpot::read(&target);
        (target, hotspot)
    };
    let mut scanner = Scanner::new();
    let found = scanner.scan().into_iter().map(with_hotspot).collect();
    (found, scanner.take_refused())
}

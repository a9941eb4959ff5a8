//! A program on a function's entry that is attached and detached repeatedly.
//!
//! The links of [`probes`](super::probes) stay attached until they are dropped; then a background thread
//! detaches them. Here, in contrast, detaching is synchronous, so that the caller knows when the probe is
//! detached. The `keeper` holds the probe.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
    sync::Arc,
    thread,
    time::Duration,
};

use rustix::thread::sched_getcpu;

use crate::{
    Error, FileOffset, Pid, Result,
    bpf::{
        detach,
        keeper::{self, Location, Probe},
        perf::EventScope,
    },
};

/// File with the type number of the PMU, for `perf_event_attr::type_`.
const PMU_TYPE_PATH: &str = "/sys/bus/event_source/devices/uprobe/type";

/// A location in a file, and the program for it.
#[derive(Debug)]
pub(crate) struct Uprobe {
    kind: u32,
    file: Arc<File>,
    offset: FileOffset,
    program: OwnedFd,
    /// The probe, while it is attached.
    probe: Option<Probe>,
}

impl Uprobe {
    /// Creates a probe that is not attached yet.
    ///
    /// # Errors
    /// [`Error::Io`] if the type of the PMU cannot be read.
    pub(crate) fn new(file: Arc<File>, offset: FileOffset, program: OwnedFd) -> Result<Self> {
        let failed = |e| Error::io(format!("read {PMU_TYPE_PATH}"), e);
        let kind = fs::read_to_string(PMU_TYPE_PATH).map_err(failed)?;
        let kind = kind.trim().parse().map_err(|e| failed(io::Error::other(e)))?;
        Ok(Self { kind, file, offset, program, probe: None })
    }

    /// Attaches the probe in every process that maps the file, now or later.
    ///
    /// # Errors
    /// [`Error::Permission`] or [`Error::Io`].
    pub(crate) fn attach(&mut self) -> Result<()> {
        self.attach_to(None)
    }

    /// Attaches the probe in one process with all its threads, or in every process that maps the file.
    ///
    /// # Errors
    /// [`Error::Permission`] or [`Error::Io`].
    pub(crate) fn attach_to(&mut self, process: Option<Pid>) -> Result<()> {
        if self.probe.is_some() {
            return Ok(());
        }
        let scope = match process {
            Some(process) => EventScope::Thread(process),
            // An event that is opened on one processor suffices: the program then runs for hits on every
            // processor. The current one is online.
            None => EventScope::Processor(u32::try_from(sched_getcpu()).unwrap_or(0)),
        };
        // As for the probes of `probes`, the kernel does not read the code itself.
        self.file
            .read_at(&mut [0], self.offset.0)
            .map_err(|e| Error::io("read the code of a function", e))?;
        let (kind, file, offset) = (self.kind, self.file.as_fd(), self.offset.0);
        let location = Location { kind, file, offset, scope };
        let guard = detach::lock_attaching();
        let probe = keeper::attach(&location, self.program.as_fd());
        drop(guard);
        let what = "attach to a function";
        self.probe = Some(probe.map_err(|error| {
            match error.kind() {
                io::ErrorKind::PermissionDenied => Error::Permission {
                    what: what.into(),
                    missing:
                        "possible causes are a missing CAP_SYS_ADMIN, a user namespace, seccomp or \
                         lockdown"
                            .into(),
                },
                _ => Error::io(what, error),
            }
        })?);
        Ok(())
    }
}

impl Drop for Uprobe {
    fn drop(&mut self) {
        detach([self]);
    }
}

/// Detaches probes in parallel, which takes the kernel about 70 ms, whatever their number.
pub(crate) fn detach<'a>(uprobes: impl IntoIterator<Item = &'a mut Uprobe>) {
    let probes: Vec<_> = uprobes.into_iter().filter_map(|uprobe| uprobe.probe.take()).collect();
    if probes.is_empty() {
        return;
    }
    let guard = detach::lock_attaching();
    keeper::detach(probes);
    drop(guard);
    // Lets another thread that waits to attach have the lock.
    thread::sleep(Duration::from_millis(1));
}

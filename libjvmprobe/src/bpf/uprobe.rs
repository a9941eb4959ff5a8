//! A program on a function's entry that is attached and detached repeatedly.
//!
//! The links of [`probes`](super::probes) stay attached until they are dropped; then a background thread
//! detaches them. Here, in contrast, detaching is synchronous, so that the caller knows when the probe is
//! detached. The `keeper` holds the probe.

use std::{
    collections::HashSet,
    fs::{self, File},
    io,
    mem::take,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
    sync::Arc,
};

use rustix::thread::sched_getcpu;

use crate::{
    Error, FileOffset, Pid, Result,
    bpf::{
        detach,
        inodes::CountedFile,
        keeper::{self, Location, Probe},
        perf::EventScope,
        probes::Scope,
    },
    process,
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
    /// The file, once it was examined.
    counted: Option<CountedFile>,
    /// The probes, while it is attached: one, or one for each process.
    probes: Vec<(Option<Pid>, Probe)>,
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
        Ok(Self { kind, file, offset, program, counted: None, probes: Vec::new() })
    }

    /// Attaches the probe in every process that maps the file, now or later. If the location has too many mappings, attaches
    /// it only in the given processes, and detaches it from all others. Does nothing if the probe is attached in every process.
    ///
    /// # Errors
    /// [`Error::Permission`], [`Error::Io`] or [`Error::MappedTooOften`].
    pub(crate) fn attach(&mut self, processes: &[Pid]) -> Result<()> {
        if self.probes.iter().any(|(process, _)| process.is_none()) {
            return Ok(());
        }
        let wanted: HashSet<_> = processes.iter().copied().collect();
        let is_gone = |process: &mut Option<Pid>| process.is_some_and(|pid| !wanted.contains(&pid));
        release(self.probes.extract_if(.., |(process, _)| is_gone(process)).collect());
        if self.probes.is_empty() {
            match self.attach_to(None) {
                Err(Error::Crowded) => {}
                done => return done,
            }
        }
        let mut attached = Ok(());
        let before: HashSet<_> = self.probes.iter().filter_map(|(process, _)| *process).collect();
        for process in wanted.into_iter().filter(|process| !before.contains(process)) {
            if let Err(error) = self.attach_to(Some(process))
                && process::exists(process)
            {
                attached = Err(error);
            }
        }
        attached
    }

    /// Attaches the probe in one process with all its threads, or in every process that maps the file.
    ///
    /// # Errors
    /// [`Error::Permission`], [`Error::Io`], or an error of [`CountedFile::check`].
    pub(crate) fn attach_to(&mut self, process: Option<Pid>) -> Result<()> {
        let counted = match self.counted.take() {
            Some(counted) => counted,
            None => CountedFile::new(&self.file)?,
        };
        let counted = self.counted.insert(counted);
        counted.check(self.offset, process.map_or(Scope::AllProcesses, Scope::Process))?;
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
        let guard = detach::begin_attaching();
        let probe = keeper::attach(&location, self.program.as_fd());
        drop(guard);
        let what = "attach to a function";
        let probe = probe.map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => Error::Permission {
                what: what.into(),
                missing: "possible causes are a missing CAP_SYS_ADMIN, a user namespace, seccomp \
                          or lockdown"
                    .into(),
            },
            _ => Error::io(what, error),
        })?;
        self.probes.push((process, probe));
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
    release(uprobes.into_iter().flat_map(|uprobe| take(&mut uprobe.probes)).collect());
}

fn release(probes: Vec<(Option<Pid>, Probe)>) {
    if probes.is_empty() {
        return;
    }
    let guard = detach::begin_attaching();
    keeper::detach(probes.into_iter().map(|(_, probe)| probe).collect());
    drop(guard);
}

//! A program on a function's entry that is attached and detached repeatedly.
//!
//! The links of [`probes`](super::probes) stay attached until they are dropped; then a background thread
//! detaches them. Here, in contrast, detaching is synchronous, so that the caller knows when the probe is
//! detached. Source: perf_event_open(2), the `uprobe` PMU.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
    thread,
    time::Duration,
};

use libbpf_sys::perf_event_attr;
use rustix::thread::sched_getcpu;

use crate::{
    Error, FileOffset, Pid, Result,
    bpf::{
        detach,
        perf::{EventScope, open_event},
    },
};

/// File with the type number of the PMU, for `perf_event_attr::type_`.
const PMU_TYPE_PATH: &str = "/sys/bus/event_source/devices/uprobe/type";
/// `PERF_EVENT_IOC_SET_BPF` and `_ENABLE`, include/uapi/linux/perf_event.h.
const SET_PROGRAM: libc::Ioctl = 0x4004_2408;
const ENABLE: libc::Ioctl = 0x2400;

/// A location in a file, and the program for it.
#[derive(Debug)]
pub(crate) struct Uprobe {
    kind: u32,
    file: Arc<File>,
    offset: FileOffset,
    program: OwnedFd,
    /// The perf event, while the probe is attached.
    event: Option<OwnedFd>,
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
        Ok(Self { kind, file, offset, program, event: None })
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
        if self.event.is_some() {
            return Ok(());
        }
        let scope = match process {
            Some(process) => EventScope::Thread(process),
            // An event that is opened on one processor suffices: the program then runs for hits on every
            // processor. The current one is online.
            None => EventScope::Processor(u32::try_from(sched_getcpu()).unwrap_or(0)),
        };
        let mut attr = perf_event_attr { type_: self.kind, ..Default::default() };
        let path = format!("/proc/self/fd/{}\0", self.file.as_raw_fd());
        attr.__bindgen_anon_3.uprobe_path = path.as_ptr() as u64;
        attr.__bindgen_anon_4.probe_offset = self.offset.0;
        // Before this process exits, it waits for this lock, so that the exit does not interrupt the
        // attaching.
        let guard = detach::lock_attaching();
        let event = open_event(&mut attr, scope).and_then(|event| {
            control(&event, SET_PROGRAM, self.program.as_raw_fd())?;
            control(&event, ENABLE, 0)?;
            Ok(event)
        });
        drop(guard);
        let what = "attach to a function";
        self.event = Some(event.map_err(|error| {
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
    let mut events: Vec<_> = uprobes.into_iter().filter_map(|uprobe| uprobe.event.take()).collect();
    let Some(last) = events.pop() else { return };
    let guard = detach::lock_attaching();
    thread::scope(|all| {
        for event in events {
            // If no thread can be started, the event is closed here.
            drop(thread::Builder::new().spawn_scoped(all, || drop(event)));
        }
        drop(last);
    });
    drop(guard);
    // Lets another thread that waits to attach have the lock.
    thread::sleep(Duration::from_millis(1));
}

fn control(event: &OwnedFd, request: libc::Ioctl, value: i32) -> io::Result<()> {
    // SAFETY: the argument of these requests is a number.
    match unsafe { libc::ioctl(event.as_raw_fd(), request, value) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

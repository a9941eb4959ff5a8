//! Looks up the kernel's tracepoints by name.
//!
//! Their ids are in tracefs. If tracefs is not mounted, it is mounted for this process alone, without a mount
//! point (fsmount(2)): no other process sees it, and it is released with the descriptor.
//! Source: Documentation/trace/events.rst, `events/CATEGORY/NAME/id`.

use std::{io::Read, os::fd::OwnedFd};

use rustix::{
    fs::{CWD, Dir, Mode, OFlags, openat},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
};

use crate::{Error, Result, bpf::perf::Event, names::near};

/// `PERF_TYPE_TRACEPOINT`.
const TRACEPOINT: u32 = 2;

const MOUNT_POINTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Maximum number of bytes read from a file; files named `id` are shorter.
const MAX_BYTES: u64 = 4096;

/// The directory `events` of tracefs.
#[derive(Debug)]
pub(crate) struct Tracepoints(OwnedFd);

impl Tracepoints {
    /// Opens the directory.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the directory does not exist or cannot be opened.
    pub fn open() -> Result<Self> {
        let folder = |root: &OwnedFd| open_folder(root, "events");
        for path in MOUNT_POINTS {
            let root = openat(CWD, path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
            if let Ok(events) = root.and_then(|root| folder(&root)) {
                return Ok(Self(events));
            }
        }
        let mounted = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC).and_then(|context| {
            fsconfig_create(&context)?;
            fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)
        });
        mounted.and_then(|root| folder(&root)).map(Self).map_err(|error| Error::Kernel {
            what: format!("look up tracepoints: {error}"),
            hint: "mount tracefs with `mount -t tracefs nodev /sys/kernel/tracing`".into(),
        })
    }

    /// Returns a tracepoint as an event that can be sampled.
    ///
    /// # Errors
    /// [`Error::Unknown`], with similar names that exist.
    pub fn find(&self, category: &str, name: &str) -> Result<Event> {
        let read = || {
            if !is_name(category) || !is_name(name) {
                return Err(rustix::io::Errno::INVAL.into());
            }
            let folder = open_folder(&open_folder(&self.0, category)?, name)?;
            let file = openat(folder, "id", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            let mut text = String::new();
            std::fs::File::from(file).take(MAX_BYTES).read_to_string(&mut text)?;
            text.trim().parse().map_err(std::io::Error::other)
        };
        match read() {
            Ok(config) => Ok(Event { kind: TRACEPOINT, config }),
            _ => {
                let wanted = format!("{category}:{name}");
                let near = near(&wanted, self.all());
                Err(Error::Unknown { what: format!("tracepoint {wanted}"), near })
            }
        }
    }

    /// Returns the names of all tracepoints, as `CATEGORY:NAME`.
    fn all(&self) -> Vec<String> {
        let mut all = Vec::new();
        for category in folders(&self.0) {
            if let Ok(folder) = open_folder(&self.0, &category) {
                all.extend(folders(&folder).into_iter().map(|name| format!("{category}:{name}")));
            }
        }
        all
    }
}

/// Returns whether a text may be the name of a directory here; such names cannot lead out of tracefs.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
}

fn open_folder(parent: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    openat(parent, name, OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
}

fn folders(folder: &OwnedFd) -> Vec<String> {
    let entries = Dir::read_from(folder).into_iter().flatten().flatten();
    let is_folder = |entry: &rustix::fs::DirEntry| entry.file_type().is_dir();
    let name = |entry: rustix::fs::DirEntry| entry.file_name().to_str().ok().map(str::to_owned);
    entries.filter(is_folder).filter_map(name).filter(|name| is_name(name)).collect()
}

//! The kernel's tracepoints, by name.
//!
//! Their numbers are told by tracefs. Where that is not mounted, it is mounted for ourselves alone,
//! at no place (fsmount(2)): nobody sees it, and it goes with the descriptor.
//! Source: Documentation/trace/events.rst, `events/CATEGORY/NAME/id`.

use std::{io::Read, os::fd::OwnedFd};

use rustix::{
    fs::{CWD, Dir, Mode, OFlags, openat},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
};

use crate::{Error, Result, bpf::perf::Event, names::near};

/// `PERF_TYPE_TRACEPOINT`.
const TRACEPOINT: u32 = 2;

const USUAL: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// No file of it that is read here is longer.
const MAX_BYTES: u64 = 4096;

/// The folder `events`.
#[derive(Debug)]
pub(crate) struct Tracepoints(OwnedFd);

impl Tracepoints {
    /// Opens it.
    ///
    /// # Errors
    /// [`Error::Kernel`] where there is none, or none for us.
    pub fn open() -> Result<Self> {
        let folder = |root: &OwnedFd| open_folder(root, "events");
        for path in USUAL {
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
            hint: "mount tracefs: mount -t tracefs nodev /sys/kernel/tracing".into(),
        })
    }

    /// A tracepoint, as an event that can be sampled.
    ///
    /// # Errors
    /// [`Error::Unknown`], with those whose names are like it.
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

    /// All of them, `CATEGORY:NAME`.
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

/// Names of folders: no way leads out.
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

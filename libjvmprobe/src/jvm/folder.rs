//! Folders of a target, what we create in them, and as whom.
//!
//! Every path into a target's file system is put together here. A folder is opened once,
//! with our own rights; files are named relative to it from then on, so that it stays the
//! same folder whatever becomes of its path, and also after the target's end.
//!
//! Files for the target are created by a thread that has taken its effective user and
//! group: they have the right owner from the beginning, and a file system that was mounted
//! in a user namespace takes no others (EOVERFLOW for an id that is not mapped there, be it
//! root's; user_namespaces(7)).

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::PathBuf,
    thread,
};

use rustix::{
    fs::{Gid, Mode, OFlags, Uid},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

use super::Process;

/// An open folder of a target.
#[derive(Debug)]
pub struct Folder {
    handle: File,
    /// Where we come to it by way of the target.
    path: PathBuf,
}

impl Folder {
    /// A folder by its path in the target, `/tmp` for example.
    ///
    /// # Errors
    /// A sentence with the path.
    pub fn open(process: &Process, path: &str) -> Result<Self, String> {
        Self::at(format!("/proc/{}/root{path}", process.pid))
    }

    /// The target's working folder.
    ///
    /// # Errors
    /// A sentence with the path.
    pub fn working(process: &Process) -> Result<Self, String> {
        Self::at(format!("/proc/{}/cwd", process.pid))
    }

    fn at(path: String) -> Result<Self, String> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(handle) => Ok(Self { handle: handle.into(), path: path.into() }),
            Err(e) => Err(format!("{path}: {e}")),
        }
    }

    /// A path to a file in this very folder, whatever we may see of the folder's path.
    /// Valid in this process while the folder is held.
    pub fn file(&self, name: &str) -> PathBuf {
        // Not /proc/self: that is the process; descriptors are shared by its threads.
        PathBuf::from(format!("/proc/thread-self/fd/{}/{name}", self.handle.as_raw_fd()))
    }

    /// The path to a file as a person would look for it.
    pub fn shown(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Creates a file, which must not be there yet, for reading and writing.
    ///
    /// # Errors
    /// Those of open(2); [`io::ErrorKind::PermissionDenied`] where we may not act as the
    /// target's user.
    pub fn create(&self, owner: Owner<'_>, name: &str, mode: u32) -> io::Result<NewFile<'_>> {
        let create = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(mode);
            options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(self.file(name))
        };
        let file = owner.act(create)?;
        Ok(NewFile { folder: self, name: Some(name.to_owned()), file })
    }

    /// What has a name by the target's own way to this folder; a link is not followed.
    ///
    /// # Errors
    /// Those of lstat(2).
    pub fn look_as_target(&self, name: &str) -> io::Result<fs::Metadata> {
        fs::symlink_metadata(self.shown(name))
    }

    /// Whether this is the folder of that path in our own file system.
    pub fn is_ours(&self, path: &str) -> bool {
        let id = |meta: fs::Metadata| (meta.dev(), meta.ino());
        let ours = fs::metadata(path).map(id).ok();
        ours.is_some() && ours == self.handle.metadata().map(id).ok()
    }
}

/// As whom a file is created.
#[derive(Clone, Copy, Debug)]
pub enum Owner<'a> {
    /// Our own user.
    Us,
    /// The target's effective user and group.
    Target(&'a Process),
}

impl Owner<'_> {
    fn act<T: Send>(self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        match self {
            Self::Us => work(),
            Self::Target(process) => as_target(process, work)
                .map_err(|why| io::Error::new(io::ErrorKind::PermissionDenied, why))?,
        }
    }
}

/// A file that we have created in a target's folder; removed when it goes out of scope, also
/// after the target's end, for the folder is held.
#[derive(Debug)]
pub struct NewFile<'a> {
    folder: &'a Folder,
    /// None once it is no more ours to remove.
    name: Option<String>,
    file: File,
}

impl NewFile<'_> {
    /// The file itself: what is at its name by now may be another one.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives it a new name in its folder, replacing what has that name, and keeps it.
    ///
    /// # Errors
    /// Those of rename(2).
    pub fn rename(mut self, owner: Owner<'_>, name: &str) -> io::Result<()> {
        let from = self.name.as_deref().map(|old| self.folder.file(old)).unwrap_or_default();
        owner.act(|| fs::rename(from, self.folder.file(name)))?;
        self.name = None;
        Ok(())
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // Gone only where somebody else removed it.
            let _ = fs::remove_file(self.folder.file(name));
        }
    }
}

/// Does something as the target's user. In a thread of its own, for identity belongs
/// to a thread, as far as the kernel is concerned.
///
/// Little may be asked about the target there: of a JVM in another user namespace, or one
/// with capabilities, /proc hides from its own user what it tells root.
///
/// # Errors
/// A sentence saying why it cannot be done as that user.
pub fn as_target<T: Send>(process: &Process, work: impl FnOnce() -> T + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            take_identity(process)?;
            Ok(work())
        });
        worker.join().unwrap_or_else(|_| Err("the thread that acts as its user failed".into()))
    })
}

fn take_identity(process: &Process) -> Result<(), String> {
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if own == (process.uid, process.gid) {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(process.uid), Gid::from_raw(process.gid));
    // The real and saved ids stay, so that the process keeps its right to trace.
    set_thread_groups(&[gid])
        .and_then(|()| set_thread_res_gid(None, gid, None))
        .and_then(|()| set_thread_res_uid(None, uid, None))
        .map_err(|e| format!("cannot act as its user {} ({e}); run as root", process.uid))
}

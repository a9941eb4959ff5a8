//! The only access to a target's file system.
//!
//! The owner of a target controls the links in its file system, and a link may name a file of the host. So
//! the target's root is kept open as a descriptor. The kernel resolves paths below it as for the target
//! itself (openat2(2)): `RESOLVE_IN_ROOT` keeps absolute links and `..` inside the root, and
//! `RESOLVE_NO_MAGICLINKS` rejects the magic links of /proc, which can lead out of the root. Files in an open
//! folder are named relative to its descriptor, without following links. A file that we created is written
//! and read through the descriptor that created it. An existing file is read only if it is a regular file of
//! the right owner and within size limits. A reader process resolves paths and opens files, because the
//! target's file system may never answer: see `crate::process::reader`. For the same reason, files and folders on FUSE
//! are rejected.
//!
//! No other source file may join a path to `/proc/PID/root`; `tests/houserules.rs` checks this.

use std::{
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::{
        AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, ResolveFlags, Stat, StatxFlags,
        flock, makedev, openat, openat2, renameat, statx, unlinkat,
    },
    io::Errno,
};

use crate::{
    Pid,
    process::{Fate, Process, file_system::check_not_fuse, identity::Owner, reader},
    sys::{Deadline, undo},
};

/// Root folder of a target, kept open.
#[derive(Debug)]
pub struct Root {
    pid: Pid,
    handle: OwnedFd,
    /// Path of this root for messages: `/proc/PID/root`.
    shown: PathBuf,
}

impl Root {
    /// Opens the root of a process, and checks that the process has not ended.
    ///
    /// # Errors
    /// A sentence with the reason.
    pub fn open(process: &Process) -> Result<Self, String> {
        let shown = PathBuf::from(format!("/proc/{}/root", process.pid));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(&shown, flags, Mode::empty())
            .map_err(|e| format!("{}: {e}", shown.display()))?;
        match process.fate() {
            Fate::Ended => Err("it has ended".into()),
            Fate::Alive | Fate::Execed => Ok(Self { pid: process.pid, handle, shown }),
        }
    }

    /// Returns device and inode.
    ///
    /// # Errors
    /// Returns the errors of statx(2).
    pub(crate) fn id(&self) -> io::Result<(u64, u64)> {
        // fstat(2) would ask the server of a FUSE file system.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = statx(&self.handle, c"", flags, StatxFlags::INO)?;
        Ok((makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino))
    }

    /// Resolves a path as the target would.
    fn resolve(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        reader::open_below(self.pid, &self.handle, path, flags)
    }

    /// Opens a regular file of the target for reading.
    ///
    /// # Errors
    /// The errors of open(2), and an error if it is not a regular file. Other kinds of files are never
    /// opened.
    pub fn file(&self, path: &Path) -> io::Result<File> {
        reader::open_file(self.pid, &self.resolve(path, OFlags::PATH)?)
    }

    /// Returns the entries of a folder of the target, at most `max`.
    ///
    /// # Errors
    /// The errors of open(2) and getdents(2), and an error if there are more entries.
    pub fn entries(&self, path: &Path, max: u64) -> io::Result<Vec<Entry>> {
        let folder = self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        check_not_fuse(self.pid, &folder)?;
        let mut entries = Vec::new();
        for entry in Dir::new(folder)? {
            let entry = entry?;
            // A name that is not UTF-8 belongs neither to a Java class nor to a jar.
            let Ok(name) = entry.file_name().to_str() else { continue };
            if matches!(name, "." | "..") {
                continue;
            }
            if entries.len() as u64 >= max {
                return Err(io::Error::other("it has too many entries"));
            }
            let is_folder = match entry.file_type() {
                FileType::Symlink | FileType::Unknown => self.is_folder(&path.join(name)),
                kind => kind == FileType::Directory,
            };
            entries.push(Entry { name: name.to_owned(), is_folder });
        }
        Ok(entries)
    }

    /// Returns whether a path leads to a folder, perhaps through a link.
    fn is_folder(&self, path: &Path) -> bool {
        self.resolve(path, OFlags::PATH | OFlags::DIRECTORY).is_ok()
    }

    /// Returns a path of the target in a form that the user can open.
    pub(crate) fn shown(&self, path: &Path) -> String {
        let below = path.strip_prefix("/").unwrap_or(path);
        self.shown.join(below).display().to_string()
    }

    /// Opens a folder of the target.
    ///
    /// # Errors
    /// A sentence with the path and the reason.
    pub fn folder(&self, path: &str) -> Result<Folder<'_>, String> {
        let handle = self.open_folder(path).map_err(|e| format!("{path}: {e}"))?;
        Ok(Folder { handle, path: FolderPath::Below(self, path.to_owned()) })
    }

    fn open_folder(&self, path: &str) -> io::Result<OwnedFd> {
        let folder = self.resolve(Path::new(path), OFlags::PATH | OFlags::DIRECTORY)?;
        check_not_fuse(self.pid, &folder)?;
        Ok(folder)
    }
}

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Whether it is a folder or a link to one.
    pub is_folder: bool,
}

/// The target's own path to a folder.
#[derive(Debug)]
enum FolderPath<'a> {
    Below(&'a Root, String),
    /// The working directory of the process.
    Working(&'a Process),
}

/// An open folder of a target. It stays the same folder if its path changes, and after the target has ended.
#[derive(Debug)]
pub struct Folder<'a> {
    handle: OwnedFd,
    path: FolderPath<'a>,
}

impl<'a> Folder<'a> {
    /// Opens the working directory of a process.
    ///
    /// # Errors
    /// A sentence with the reason.
    pub(crate) fn working(process: &'a Process) -> Result<Self, String> {
        let handle =
            open_working(process).map_err(|e| format!("cannot open its working directory: {e}"))?;
        Ok(Self { handle, path: FolderPath::Working(process) })
    }

    /// Returns the path of a file in this folder in a form that the user can open.
    pub fn shown(&self, name: &str) -> PathBuf {
        match &self.path {
            FolderPath::Below(root, path) => PathBuf::from(root.shown(&Path::new(path).join(name))),
            FolderPath::Working(process) => {
                PathBuf::from(format!("/proc/{}/cwd/{name}", process.pid))
            }
        }
    }

    /// Creates a file for reading and writing. It must not exist yet.
    ///
    /// # Errors
    /// The errors of open(2); [`io::ErrorKind::PermissionDenied`] if this process cannot switch to the target's user.
    pub fn create(&self, owner: Owner<'_>, name: &str, mode: u32) -> io::Result<NewFile<'_>> {
        check_name(name)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let create = || {
            let mode = Mode::from_raw_mode(mode);
            Ok(openat(&self.handle, name, flags | OFlags::CLOEXEC, mode)?)
        };
        let (folder, gone) = (self.handle.try_clone()?, name.to_owned());
        let remove = |file: &OwnedFd| -> undo::Step {
            let file = file.try_clone();
            Box::new(move || {
                if let Ok(file) = file {
                    remove_ours(&folder, &gone, &file);
                }
            })
        };
        let (file, undo) = undo::run_undoable(|| owner.act(create), remove)?;
        Ok(NewFile { folder: self, name: name.to_owned(), file: file.into(), undo: Some(undo) })
    }

    /// Returns the metadata of an entry, without following links.
    ///
    /// # Errors
    /// Returns the errors of openat2(2) and fstat(2).
    pub(crate) fn metadata(&self, name: &str) -> io::Result<FileStatus> {
        status_in(&self.handle, name)
    }

    /// Resolves the target's path to this folder again, and returns the metadata of an entry of the folder to
    /// which the path leads now. If the entry is a link, it is not followed.
    ///
    /// # Errors
    /// Returns the errors of opening the folder, and of [`metadata`](Self::metadata).
    pub(crate) fn metadata_as_target(&self, name: &str) -> io::Result<FileStatus> {
        let again = match &self.path {
            FolderPath::Below(root, path) => root.open_folder(path)?,
            FolderPath::Working(process) => open_working(process)?,
        };
        status_in(&again, name)
    }

    /// Opens a socket in this folder. The socket must belong to `owner`.
    ///
    /// # Errors
    /// The errors of open(2), and an error if it is not a socket or has another owner.
    pub(crate) fn socket(&self, name: &str, owner: u32) -> io::Result<Socket> {
        let handle = open_in(&self.handle, name, OFlags::PATH)?;
        let seen = FileStatus(rustix::fs::fstat(&handle)?);
        match seen.is(FileType::Socket) && seen.0.st_uid == owner {
            true => Ok(Socket(handle)),
            false => Err(io::Error::other("it is not a socket of the JVM's own user")),
        }
    }

    /// Returns the text of an existing file that belongs to one of `owners` and has at most `max` bytes.
    ///
    /// # Errors
    /// The errors of open(2), and an error if it is not a regular file, has another owner or is too large.
    pub(crate) fn text(&self, name: &str, owners: &[u32], max: u64) -> io::Result<String> {
        text(&check_owner(open_in(&self.handle, name, TO_READ)?, owners)?, max)
    }

    /// Renames a file, replacing an existing file of the new name.
    ///
    /// # Errors
    /// Returns the errors of rename(2).
    pub(crate) fn rename(&self, owner: Owner<'_>, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        owner.act(|| Ok(renameat(&self.handle, from, &self.handle, to)?))
    }

    /// Removes a file, regardless of its creator.
    ///
    /// # Errors
    /// Returns the errors of unlink(2).
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        Ok(unlinkat(&self.handle, name, AtFlags::empty())?)
    }

    /// Locks the folder against other callers of this function until the result is dropped. It is an flock(2) lock on
    /// the folder itself, which leaves no file behind. Returns `None` if the lock is not available before the deadline.
    pub(crate) fn lock(&self, deadline: Deadline) -> Option<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder: File = openat(&self.handle, ".", flags, Mode::empty()).ok()?.into();
        while let Err(error) = flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            if error != Errno::WOULDBLOCK || deadline.sleep(Duration::from_millis(20)).is_err() {
                return None;
            }
        }
        Some(folder)
    }

    /// Returns whether `path` in our own file system is this same folder.
    pub fn is_ours(&self, path: &str) -> bool {
        let ours = std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
        let this = rustix::fs::fstat(&self.handle).map(|stat| FileStatus(stat).id()).ok();
        ours.is_some() && ours == this
    }
}

/// Flags to open a path that may be any kind of file.
const TO_READ: OFlags =
    OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Opens a file in our own file system that another user may have put there. It must be a regular file of one of
/// `owners`, and not a link.
///
/// # Errors
/// The errors of open(2), and an error if it is not a regular file or has another owner.
pub(crate) fn open_own(path: &Path, owners: &[u32]) -> io::Result<File> {
    check_owner(rustix::fs::open(path, TO_READ, Mode::empty())?, owners)
}

/// Returns the opened file if it is a regular file of one of `owners`.
fn check_owner(opened: OwnedFd, owners: &[u32]) -> io::Result<File> {
    let stat = rustix::fs::fstat(&opened)?;
    regular(&stat)?;
    match owners.contains(&stat.st_uid) {
        true => Ok(opened.into()),
        false => Err(io::Error::other(wrong_owner(stat.st_uid))),
    }
}

/// Returns the path of a process's working directory, as the process itself sees it.
pub(super) fn working_path(process: &Process) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/{}/cwd", process.pid))
}

fn open_working(process: &Process) -> io::Result<OwnedFd> {
    let path = format!("/proc/{}/cwd", process.pid);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let handle = rustix::fs::open(path, flags, Mode::empty())?;
    check_not_fuse(process.pid, &handle)?;
    match process.fate() {
        Fate::Ended => Err(io::Error::other("it has ended")),
        Fate::Alive | Fate::Execed => Ok(handle),
    }
}

/// Removes a file that we created, unless its name refers to another file by now.
fn remove_ours(folder: &OwnedFd, name: &str, file: &impl AsFd) {
    let there = status_in(folder, name).map(|seen| seen.id());
    let ours = rustix::fs::fstat(file).map(|stat| FileStatus(stat).id());
    if there.ok().is_some_and(|there| ours == Ok(there)) {
        let _ = unlinkat(folder, name, AtFlags::empty());
    }
}

/// Opens an entry of an open folder. Neither follows links nor enters a file system that is mounted there, because it
/// may be on FUSE even if the folder is not.
fn open_in(folder: &OwnedFd, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
    check_name(name)?;
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat2(folder, name, flags, Mode::empty(), ResolveFlags::NO_XDEV)?)
}

/// Returns the metadata of an entry of an open folder, without following links.
fn status_in(folder: &OwnedFd, name: &str) -> io::Result<FileStatus> {
    Ok(FileStatus(rustix::fs::fstat(open_in(folder, name, OFlags::PATH)?)?))
}

/// Checks that a name is a single path component.
fn check_name(name: &str) -> io::Result<()> {
    match name.is_empty() || name.contains('/') || name == "." || name == ".." {
        true => Err(io::ErrorKind::InvalidInput.into()),
        false => Ok(()),
    }
}

fn regular(stat: &Stat) -> io::Result<()> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        _ => Err(io::Error::other("it is not a regular file")),
    }
}

/// Returns a path that opens the file of a descriptor. Does not use /proc/self, which belongs to the whole process and
/// is hidden from a thread that acts as another user.
fn path_of(handle: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/thread-self/fd/{}", handle.as_raw_fd()))
}

/// Returns the reason why a file is not trusted.
pub(crate) fn wrong_owner(owner: u32) -> String {
    format!("it is not a file of the JVM's own user (but of user {owner})")
}

/// Reads a complete file as text, at most `max` bytes.
///
/// # Errors
/// An error if it cannot be read or is larger.
pub fn text(file: &File, max: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(io::Error::other(format!("it is larger than {max} bytes")));
    }
    Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into()))
}

/// Metadata of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileStatus(Stat);

impl FileStatus {
    fn is(&self, kind: FileType) -> bool {
        FileType::from_raw_mode(self.0.st_mode) == kind
    }

    /// Returns whether it is a regular file that belongs to `user`.
    pub(crate) fn is_file_of(&self, user: u32) -> bool {
        self.is(FileType::RegularFile) && self.0.st_uid == user
    }

    /// Returns whether it is a socket.
    pub(crate) fn is_socket(&self) -> bool {
        self.is(FileType::Socket)
    }

    /// Returns the user ID of its owner.
    pub(crate) fn owner(&self) -> u32 {
        self.0.st_uid
    }

    /// Returns device and inode.
    pub(crate) fn id(&self) -> (u64, u64) {
        (self.0.st_dev, self.0.st_ino)
    }
}

/// A socket in a folder, kept open.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

impl Socket {
    /// Returns a path to connect to it, valid while `self` lives.
    pub(crate) fn path(&self) -> PathBuf {
        path_of(&self.0)
    }
}

/// A file that we created in a target's folder. It is removed when this is dropped, even after the target has ended,
/// because the folder is kept open.
#[derive(Debug)]
pub struct NewFile<'a> {
    folder: &'a Folder<'a>,
    name: String,
    file: File,
    /// `None` once the file must not be removed any more.
    undo: Option<undo::Undo>,
}

impl NewFile<'_> {
    /// Returns the file itself. Its name may refer to another file by now.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns its metadata.
    ///
    /// # Errors
    /// Returns the errors of fstat(2).
    pub(crate) fn metadata(&self) -> io::Result<FileStatus> {
        Ok(FileStatus(rustix::fs::fstat(self.file.as_fd())?))
    }

    /// Renames the file within its folder, replacing an existing file of the new name. The renamed file is
    /// not removed at the end.
    ///
    /// # Errors
    /// Returns the errors of rename(2).
    pub fn rename(mut self, owner: Owner<'_>, name: &str) -> io::Result<()> {
        self.folder.rename(owner, &self.name, name)?;
        self.undo = None;
        Ok(())
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if self.undo.is_some() {
            remove_ours(&self.folder.handle, &self.name, &self.file);
        }
        // The undo step is dropped last, so that it still removes the file if the process ends before this
        // point.
        self.undo = None;
    }
}

//! The one door into a target's file system.
//!
//! Whoever owns a target owns what its paths lead to: a link in a container may name a file
//! of the host's. So the target's root is held as a descriptor, paths are resolved below it by
//! the kernel as the target itself would (openat2(2), `RESOLVE_IN_ROOT`: an absolute link, and
//! `..`, stay inside; `RESOLVE_NO_MAGICLINKS`: none of /proc's links, which lead anywhere), and
//! from then on files are named relative to an open folder, without following links. What we
//! have created is written and read through the descriptor that created it; what was there
//! is read only if it is a regular file of the right owner, within bounds. Paths are resolved and
//! files opened by a reader process, because the target's file system may never answer: see
//! `crate::process::reader`.
//!
//! No other source joins a path to `/proc/PID/root`: `tests/houserules.rs` looks.

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
        AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat, flock, openat, renameat,
        statat, unlinkat,
    },
    io::Errno,
};

use crate::{
    Pid,
    own::{Deadline, undo},
    process::{Fate, Process, identity::Owner, reader},
};

/// A target's root, held.
#[derive(Debug)]
pub struct Root {
    pid: Pid,
    handle: OwnedFd,
    /// Where a person finds it.
    shown: PathBuf,
}

impl Root {
    /// The root of a process, which still is the one that was found.
    ///
    /// # Errors
    /// A sentence.
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

    /// Device and inode.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub(crate) fn id(&self) -> io::Result<(u64, u64)> {
        Ok(Seen(rustix::fs::fstat(&self.handle)?).id())
    }

    /// Resolves a path as the target would.
    fn resolve(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        reader::open_below(self.pid, &self.handle, path, flags)
    }

    /// A regular file of the target's, for reading.
    ///
    /// # Errors
    /// Those of open(2), and where it is something else: nothing else is opened.
    pub fn file(&self, path: &Path) -> io::Result<File> {
        reader::open_file(self.pid, &self.resolve(path, OFlags::PATH)?)
    }

    /// What is in a folder of the target's, `most` of it.
    ///
    /// # Errors
    /// Those of open(2) and getdents(2); where there is more.
    pub fn entries(&self, path: &Path, most: u64) -> io::Result<Vec<Entry>> {
        let folder = self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut entries = Vec::new();
        for entry in Dir::new(folder)? {
            let entry = entry?;
            // What is no UTF-8 is no Java class's, nor is it anybody's jar.
            let Ok(name) = entry.file_name().to_str() else { continue };
            if matches!(name, "." | "..") {
                continue;
            }
            if entries.len() as u64 >= most {
                return Err(io::Error::other("too much is in it"));
            }
            let is_folder = match entry.file_type() {
                FileType::Symlink | FileType::Unknown => self.is_folder(&path.join(name)),
                kind => kind == FileType::Directory,
            };
            entries.push(Entry { name: name.to_owned(), is_folder });
        }
        Ok(entries)
    }

    /// Whether a path, perhaps a link's, leads to a folder.
    fn is_folder(&self, path: &Path) -> bool {
        self.resolve(path, OFlags::PATH | OFlags::DIRECTORY).is_ok()
    }

    /// A path of the target's as a person would look for it.
    pub(crate) fn shown(&self, path: &Path) -> String {
        let below = path.strip_prefix("/").unwrap_or(path);
        self.shown.join(below).display().to_string()
    }

    /// A folder of the target's.
    ///
    /// # Errors
    /// A sentence with the path.
    pub fn folder(&self, path: &str) -> Result<Folder<'_>, String> {
        let handle = self.open_folder(path).map_err(|e| format!("{path}: {e}"))?;
        Ok(Folder { handle, way: Way::Below(self, path.to_owned()) })
    }

    fn open_folder(&self, path: &str) -> io::Result<OwnedFd> {
        self.resolve(Path::new(path), OFlags::PATH | OFlags::DIRECTORY)
    }
}

/// Something in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Whether it is a folder, or a link to one.
    pub is_folder: bool,
}

/// How the target comes to a folder.
#[derive(Debug)]
enum Way<'a> {
    Below(&'a Root, String),
    /// It is where the process works.
    Working(&'a Process),
}

/// An open folder of a target: the same folder whatever becomes of its path, and also after
/// the target's end.
#[derive(Debug)]
pub struct Folder<'a> {
    handle: OwnedFd,
    way: Way<'a>,
}

impl<'a> Folder<'a> {
    /// The folder that a process works in.
    ///
    /// # Errors
    /// A sentence with the path.
    pub(crate) fn working(process: &'a Process) -> Result<Self, String> {
        let handle = open_working(process).map_err(|e| format!("its working folder: {e}"))?;
        Ok(Self { handle, way: Way::Working(process) })
    }

    /// The path to a file as a person would look for it.
    pub fn shown(&self, name: &str) -> PathBuf {
        match &self.way {
            Way::Below(root, path) => PathBuf::from(root.shown(&Path::new(path).join(name))),
            Way::Working(process) => PathBuf::from(format!("/proc/{}/cwd/{name}", process.pid)),
        }
    }

    /// Creates a file, which must not be there yet, for reading and writing.
    ///
    /// # Errors
    /// Those of open(2); [`io::ErrorKind::PermissionDenied`] where we may not act as the
    /// target's user.
    pub fn create(&self, owner: Owner<'_>, name: &str, mode: u32) -> io::Result<NewFile<'_>> {
        check(name)?;
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
        let (file, undo) = undo::doing(|| owner.act(create), remove)?;
        Ok(NewFile { folder: self, name: name.to_owned(), file: file.into(), undo: Some(undo) })
    }

    /// What has a name here; a link is not followed.
    ///
    /// # Errors
    /// Those of fstatat(2).
    pub(crate) fn look(&self, name: &str) -> io::Result<Seen> {
        check(name)?;
        Ok(Seen(statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    /// What has a name by the target's own way to this folder; a link is not followed.
    ///
    /// # Errors
    /// Those of opening the folder, and of fstatat(2).
    pub(crate) fn look_as_target(&self, name: &str) -> io::Result<Seen> {
        let again = match &self.way {
            Way::Below(root, path) => root.open_folder(path)?,
            Way::Working(process) => open_working(process)?,
        };
        check(name)?;
        Ok(Seen(statat(&again, name, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    /// A socket that a process listens on, whose owner is given.
    ///
    /// # Errors
    /// Those of open(2), and where it is something else or somebody else's.
    pub(crate) fn socket(&self, name: &str, owner: u32) -> io::Result<Socket> {
        check(name)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = openat(&self.handle, name, flags, Mode::empty())?;
        let seen = Seen(rustix::fs::fstat(&handle)?);
        match seen.is(FileType::Socket) && seen.0.st_uid == owner {
            true => Ok(Socket(handle)),
            false => Err(io::Error::other("it is not a socket of the JVM's own user")),
        }
    }

    /// Text of a file that was there: of one of these owners, within bounds.
    ///
    /// # Errors
    /// Those of open(2), and where it is something else, somebody else's, or too large.
    pub(crate) fn text(&self, name: &str, owners: &[u32], max: u64) -> io::Result<String> {
        check(name)?;
        text(&own(openat(&self.handle, name, TO_READ, Mode::empty())?, owners)?, max)
    }

    /// Renames a file, replacing what has that name.
    ///
    /// # Errors
    /// Those of rename(2).
    pub(crate) fn rename(&self, owner: Owner<'_>, from: &str, to: &str) -> io::Result<()> {
        check(from)?;
        check(to)?;
        owner.act(|| Ok(renameat(&self.handle, from, &self.handle, to)?))
    }

    /// Removes a file, whoever created it.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        check(name)?;
        Ok(unlinkat(&self.handle, name, AtFlags::empty())?)
    }

    /// Has the folder to itself among those who ask for that, until what is returned goes out
    /// of scope. It is a lock on the folder, which leaves nothing behind. `None` where it
    /// cannot be had in time.
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

    /// Whether this is the folder of that path in our own file system.
    pub fn is_ours(&self, path: &str) -> bool {
        let ours = std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
        let this = rustix::fs::fstat(&self.handle).map(|stat| Seen(stat).id()).ok();
        ours.is_some() && ours == this
    }
}

/// How a file is opened that may turn out to be anything.
const TO_READ: OFlags =
    OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Opens a file in our own file system that somebody else may have put there: a regular one,
/// not through a link, of one of these owners.
///
/// # Errors
/// Those of open(2), and where it is something else or somebody else's.
pub(crate) fn open_own(path: &Path, owners: &[u32]) -> io::Result<File> {
    own(rustix::fs::open(path, TO_READ, Mode::empty())?, owners)
}

/// What was opened, if it is a regular file of one of these owners.
fn own(opened: OwnedFd, owners: &[u32]) -> io::Result<File> {
    let stat = rustix::fs::fstat(&opened)?;
    regular(&stat)?;
    match owners.contains(&stat.st_uid) {
        true => Ok(opened.into()),
        false => Err(io::Error::other(not_its_own(stat.st_uid))),
    }
}

/// The path of the folder that a process works in, as the process would name it.
pub(super) fn working_path(process: &Process) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/{}/cwd", process.pid))
}

fn open_working(process: &Process) -> io::Result<OwnedFd> {
    let path = format!("/proc/{}/cwd", process.pid);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let handle = rustix::fs::open(path, flags, Mode::empty())?;
    match process.fate() {
        Fate::Ended => Err(io::Error::other("it has ended")),
        Fate::Alive | Fate::Execed => Ok(handle),
    }
}

/// Removes a file that we have created, if it still is at its name.
fn remove_ours(folder: &OwnedFd, name: &str, file: &impl AsFd) {
    let there = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| Seen(stat).id());
    let ours = rustix::fs::fstat(file).map(|stat| Seen(stat).id());
    if there.is_ok() && there == ours {
        let _ = unlinkat(folder, name, AtFlags::empty());
    }
}

/// A name is one step, never a path.
fn check(name: &str) -> io::Result<()> {
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

/// A path to what a descriptor of ours is open on. Not /proc/self: in a thread that acts as
/// another user, that is the whole process's, and hidden from it.
fn path_of(handle: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/thread-self/fd/{}", handle.as_raw_fd()))
}

/// Why a file is not trusted.
pub(crate) fn not_its_own(owner: u32) -> String {
    format!("it is not a file of the JVM's own user (but of user {owner})")
}

/// All of a file as text, within bounds.
///
/// # Errors
/// Where it cannot be read or is too large.
pub fn text(file: &File, max: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(io::Error::other(format!("it is larger than {} MiB", max >> 20)));
    }
    Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into()))
}

/// What was seen under a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen(Stat);

impl Seen {
    fn is(&self, kind: FileType) -> bool {
        FileType::from_raw_mode(self.0.st_mode) == kind
    }

    /// Whether it is a regular file of a user's.
    pub(crate) fn is_file_of(&self, user: u32) -> bool {
        self.is(FileType::RegularFile) && self.0.st_uid == user
    }

    /// Whether it is a socket.
    pub(crate) fn is_socket(&self) -> bool {
        self.is(FileType::Socket)
    }

    /// Whose it is.
    pub(crate) fn owner(&self) -> u32 {
        self.0.st_uid
    }

    /// Device and inode.
    pub(crate) fn id(&self) -> (u64, u64) {
        (self.0.st_dev, self.0.st_ino)
    }
}

/// A socket in a folder, held.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

impl Socket {
    /// A path that connects to it, while it is held.
    pub(crate) fn path(&self) -> PathBuf {
        path_of(&self.0)
    }
}

/// A file that we have created in a target's folder; removed when it goes out of scope, also
/// after the target's end, for the folder is held.
#[derive(Debug)]
pub struct NewFile<'a> {
    folder: &'a Folder<'a>,
    name: String,
    file: File,
    /// None once it is no more ours to remove.
    undo: Option<undo::Undo>,
}

impl NewFile<'_> {
    /// The file itself: what is at its name by now may be another one.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// What it is.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub(crate) fn look(&self) -> io::Result<Seen> {
        Ok(Seen(rustix::fs::fstat(self.file.as_fd())?))
    }

    /// Gives it a new name in its folder, replacing what has that name, and keeps it.
    ///
    /// # Errors
    /// Those of rename(2).
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
        // Only now: an end in between removes it.
        self.undo = None;
    }
}

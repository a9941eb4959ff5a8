//! The directory of the store.
//!
//! Everything in it is opened relative to the directory's descriptor, and symbolic links are not followed. An
//! entry is complete or absent, even after a crash of the machine or of the daemon. Other users can read the
//! directory only if the configuration allows it.

use std::{
    fs::File,
    io::{self, BufWriter, Read, Write},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use libjvmprobe::render::units::count;
use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat, fchmod,
        flock, fstat, fsync, mkdirat, openat, renameat_with, unlinkat,
    },
    io::Errno,
    process::geteuid,
};

use crate::{store::name::Name, suspects};

/// Version of the files in a directory. A change of the format must increase this number if older and newer
/// versions of this program then cannot read each other's files. Since version 2, profiles are in the
/// encoding of [`crate::store::profiles`]; before, they were in pprof's format. Since version 3, this encoding contains the
/// trace contexts of samples.
pub const VERSION: u32 = 3;

/// Name of the file that contains the version.
const VERSION_FILE: &str = "version";
/// Maximum time to wait for the lock. If a process that holds it was killed, the kernel needs some time to
/// end the process.
const LOCK_WAIT: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Name of the lock file, which the writing process locks.
const LOCK: &str = "lock";
/// Prefix of entries that are not complete yet.
const NEW_PREFIX: &str = ".new-";
/// Prefix of entries that are being removed.
const OLD_PREFIX: &str = ".old-";

/// Default mode of the directory. It denies access to others because the directory contains profiles of all users.
pub const DEFAULT_MODE: u32 = 0o700;

/// Names that may be in a directory that is not used for anything else: files of jvmprobed, its directory of
/// queues, and the directory that mkfs creates in a new file system.
const OWN_NAMES: [&str; 6] =
    [VERSION_FILE, LOCK, "push", "lost+found", suspects::MARKS, suspects::SUSPECTS];

/// Maximum number of entries that are listed; more than a store ever has.
const MAX_ENTRIES: usize = 100_000;

/// A directory with windows.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    fd: OwnedFd,
    /// Mode of the directory and of the entries in it.
    mode: u32,
    /// Lock file, locked while it is open; `None` for a reader.
    _lock: Option<OwnedFd>,
}

/// Function that writes the content of a file.
pub type Content<'a> = &'a dyn Fn(&mut dyn Write) -> io::Result<()>;

impl Folder {
    /// Opens the directory for writing, and creates it if it is missing. A lock keeps other daemons out. The
    /// directory gets this mode even if it exists, because kubelet, for example, creates it readable for all
    /// users.
    ///
    /// # Errors
    /// A sentence that says what is wrong with the directory.
    pub fn open_to_write(path: &Path, mode: u32) -> Result<Self> {
        let shown = path.display();
        match mkdirat(CWD, path, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            // An existing directory on a read-only file system can still be opened.
            Err(Errno::ROFS) if path.is_dir() => {}
            Err(e) => return Err(io::Error::from(e)).context(format!("cannot create {shown}")),
        }
        let fd = open_dir(path)?;
        let stat = fstat(&fd).with_context(|| format!("cannot inspect {shown}"))?;
        check_owner(path, &stat)?;
        let lock = lock(path, &fd)?;
        let folder = Self { path: path.into(), fd, mode, _lock: Some(lock) };
        let version = folder.version()?;
        folder.set_mode(stat.st_mode & 0o7777, version.is_none())?;
        if version.is_some_and(|version| version < VERSION) {
            folder.remove_old_windows().with_context(|| format!("cannot write to {shown}"))?;
        }
        if version != Some(VERSION) {
            let version = |to: &mut dyn Write| writeln!(to, "{VERSION}");
            folder
                .put_file(VERSION_FILE, &version)
                .with_context(|| format!("cannot write to {shown}"))?;
        }
        folder.remove_leftovers();
        Ok(folder)
    }

    /// Removes the windows of an older version, which cannot be read, and then the version file.
    fn remove_old_windows(&self) -> io::Result<()> {
        let names = self.names()?;
        let windows: Vec<_> = names.iter().filter(|name| Name::parse(name).is_some()).collect();
        for name in &windows {
            self.remove(name)?;
        }
        unlinkat(&self.fd, VERSION_FILE, AtFlags::empty())?;
        if !windows.is_empty() {
            log::warn!(
                "{}: removed {} of an older jvmprobed, which this one cannot read",
                self.path.display(),
                count(windows.len() as u64, "window")
            );
        }
        Ok(())
    }

    /// Sets the mode of the directory. A directory that contains files of other programs, but no version
    /// file, is refused, because the users of these files might lose access.
    fn set_mode(&self, found: u32, is_new: bool) -> Result<()> {
        if found == self.mode {
            return Ok(());
        }
        let shown = self.path.display();
        let names = self.names().with_context(|| format!("cannot read {shown}"))?;
        let is_other =
            |name: &&String| !OWN_NAMES.contains(&&***name) && !name.starts_with(NEW_PREFIX);
        if let Some(other) = names.iter().find(is_other).filter(|_| is_new) {
            bail!(
                "{shown} has mode {found:04o} and contains {other:?}, which is not from jvmprobed: use another \
                 --dir, or chmod {:04o} {shown}",
                self.mode
            );
        }
        fchmod(&self.fd, Mode::from_raw_mode(self.mode))
            .with_context(|| format!("cannot set the mode of {shown}"))?;
        // The mode of a new or empty directory is not worth a message.
        if !names.is_empty() && !is_new {
            log::warn!(
                "changed the mode of {shown} from {found:04o} to {:04o}; see mode in [store]",
                self.mode
            );
        }
        Ok(())
    }

    /// Opens the directory for reading.
    ///
    /// # Errors
    /// A sentence that says what is wrong with the directory.
    pub fn open_to_read(path: &Path) -> Result<Self> {
        let fd = open_dir(path)?;
        let folder = Self { path: path.into(), fd, mode: 0, _lock: None };
        let shown = path.display();
        match folder.version()? {
            Some(VERSION) => Ok(folder),
            Some(version) => bail!(
                "{shown} has version {version} of an older jvmprobed, but this one reads version \
                 {VERSION}: start the daemon, which replaces the old data"
            ),
            None => bail!("{shown} contains no windows of jvmprobed: check --dir"),
        }
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the version of the files in the directory, which is at most [`VERSION`]; `None` for a new directory.
    fn version(&self) -> Result<Option<u32>> {
        let shown = self.path.display();
        let mut text = String::new();
        match self.file(None, VERSION_FILE) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).context(format!("cannot read {shown}/{VERSION_FILE}")),
            // Text that is not UTF-8 leaves the string empty, and so fails to parse below.
            Ok(file) => _ = file.take(64).read_to_string(&mut text),
        }
        match text.trim().parse() {
            Ok(version) if version <= VERSION => Ok(Some(version)),
            Ok(version) => bail!(
                "{shown} has version {version} of a newer jvmprobed, but this one reads version \
                 {VERSION}: use the newer jvmprobed, or another --dir"
            ),
            Err(_) => bail!("{shown}/{VERSION_FILE} does not contain a number: use another --dir"),
        }
    }

    /// Returns the names of the entries in the directory.
    ///
    /// # Errors
    /// Errors of readdir(3).
    pub fn names(&self) -> io::Result<Vec<String>> {
        names_in(&self.fd)
    }

    /// Opens a file in the directory, or in its subdirectory `dir`.
    ///
    /// # Errors
    /// Errors of open(2); [`io::ErrorKind::InvalidData`] if it is not a regular file.
    pub fn file(&self, dir: Option<&str>, name: &str) -> io::Result<File> {
        let inner = dir.map(|dir| open_inner(&self.fd, dir)).transpose()?;
        let at = inner.as_ref().unwrap_or(&self.fd).as_fd();
        // NONBLOCK, because opening a FIFO would wait for its writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = openat(at, name, flags, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&fd)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file"));
        }
        Ok(fd.into())
    }

    /// Returns whether there is a subdirectory of this name.
    pub fn has_dir(&self, name: &str) -> bool {
        open_inner(&self.fd, name).is_ok()
    }

    /// Returns the approximate disk space of a subdirectory with its files, in bytes.
    pub fn size(&self, dir: &str) -> u64 {
        /// Size of a directory, and the unit in which files take space.
        const BLOCK: u64 = 4096;
        let of = |inner: &OwnedFd| {
            let names = names_in(inner).unwrap_or_default();
            let sizes = names.iter().filter_map(|name| {
                let stat = rustix::fs::statat(inner, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
                Some(u64::try_from(stat.st_size).unwrap_or(0).next_multiple_of(BLOCK))
            });
            sizes.sum::<u64>()
        };
        BLOCK + open_inner(&self.fd, dir).as_ref().map_or(0, of)
    }

    /// Creates a subdirectory with these files. The subdirectory gets its name when all files are complete.
    ///
    /// # Errors
    /// Errors of the system calls; [`Errno::EXIST`] if the name is in use. Files that were already written
    /// are removed, unless the last step, fsync(2) of the directory, failed.
    pub fn put(&self, name: &str, files: &[(&str, Content<'_>)]) -> io::Result<()> {
        let new = format!("{NEW_PREFIX}{name}");
        let written = self.write_files(&new, files).and_then(|()| {
            Ok(renameat_with(&self.fd, &new, &self.fd, name, RenameFlags::NOREPLACE)?)
        });
        if written.is_err() {
            self.clear(&new);
            return written;
        }
        Ok(fsync(&self.fd)?)
    }

    fn write_files(&self, new: &str, files: &[(&str, Content<'_>)]) -> io::Result<()> {
        mkdirat(&self.fd, new, Mode::from_raw_mode(0o700))?;
        let inner = open_inner(&self.fd, new)?;
        for (name, content) in files {
            write_new(&inner, name, self.mode, content)?;
        }
        fchmod(&inner, Mode::from_raw_mode(self.mode))?;
        Ok(fsync(&inner)?)
    }

    fn put_file(&self, name: &str, content: Content<'_>) -> io::Result<()> {
        let new = format!("{NEW_PREFIX}{name}");
        let written = write_new(&self.fd, &new, self.mode, content).and_then(|()| {
            Ok(renameat_with(&self.fd, &new, &self.fd, name, RenameFlags::NOREPLACE)?)
        });
        if written.is_err() {
            self.clear(&new);
            return written;
        }
        Ok(fsync(&self.fd)?)
    }

    /// Removes a subdirectory. For readers it disappears at once, because it is renamed first.
    ///
    /// # Errors
    /// Errors of rename(2). The subdirectory is unchanged then.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let old = format!("{OLD_PREFIX}{name}");
        self.clear(&old);
        renameat_with(&self.fd, name, &self.fd, &old, RenameFlags::NOREPLACE)?;
        self.clear(&old);
        Ok(())
    }

    /// Removes entries that an earlier process has not completed, or not completely removed.
    fn remove_leftovers(&self) {
        for name in self.names().unwrap_or_default() {
            if name.starts_with(NEW_PREFIX) || name.starts_with(OLD_PREFIX) {
                self.clear(&name);
            }
        }
    }

    /// Removes a subdirectory with its files, or a file. Entries that cannot be removed are left to the next
    /// process that opens the directory for writing.
    fn clear(&self, name: &str) {
        if let Ok(inner) = open_inner(&self.fd, name) {
            for file in names_in(&inner).unwrap_or_default() {
                let _ = unlinkat(&inner, file, AtFlags::empty());
            }
            let _ = unlinkat(&self.fd, name, AtFlags::REMOVEDIR);
        } else {
            let _ = unlinkat(&self.fd, name, AtFlags::empty());
        }
    }
}

/// Parses the mode of the directory. The owner has all rights, and others may have read access at most.
///
/// # Errors
/// A sentence for the user.
pub fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok();
    let is_allowed = |&mode: &u32| mode & !0o055 == 0o700;
    mode.filter(is_allowed)
        .ok_or_else(|| "expected a mode from 0700 to 0755, for example \"0750\"".into())
}

fn open_dir(path: &Path) -> Result<OwnedFd> {
    let shown = path.display();
    // The administrator chooses the path and may use links in it. Its last component must not be a link,
    // which another user may have made.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(CWD, path, flags, Mode::empty()) {
        Ok(fd) => Ok(fd),
        Err(Errno::NOTDIR | Errno::LOOP) => {
            bail!("{shown} is not a directory, but a file or a symbolic link: use another --dir")
        }
        Err(e) => Err(io::Error::from(e)).context(format!("cannot open {shown}")),
    }
}

/// Refuses a directory that another user owns or can write to, because its content cannot be trusted and
/// root's files do not belong there.
fn check_owner(path: &Path, stat: &Stat) -> Result<()> {
    let (shown, own) = (path.display(), geteuid().as_raw());
    if stat.st_uid != own {
        bail!(
            "{shown} belongs to user {}, but jvmprobed runs as user {own}: use another --dir",
            stat.st_uid
        );
    }
    if stat.st_mode & 0o022 != 0 {
        bail!("{shown} is writable by other users: run `chmod go-w {shown}`, or use another --dir");
    }
    Ok(())
}

fn lock(path: &Path, fd: &OwnedFd) -> Result<OwnedFd> {
    let shown = path.display();
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(fd, LOCK, flags, Mode::from_raw_mode(0o600))
        .map_err(io::Error::from)
        .with_context(|| format!("cannot write to {shown}"))?;
    let until = Instant::now() + LOCK_WAIT;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if Instant::now() < until => thread::sleep(LOCK_PAUSE),
            Err(Errno::WOULDBLOCK) => {
                bail!("another jvmprobed writes to {shown}: stop it, or use another --dir")
            }
            Err(e) => {
                return Err(io::Error::from(e)).context(format!("cannot lock {shown}/{LOCK}"));
            }
        }
    }
}

fn open_inner(fd: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(fd, name, flags, Mode::empty())?)
}

fn names_in(fd: &OwnedFd) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(fd)?.take(MAX_ENTRIES) {
        let name = entry?.file_name().to_str().map(str::to_owned);
        // Names that are not UTF-8 are not from jvmprobed.
        names.extend(name.ok().filter(|name| name != "." && name != ".."));
    }
    Ok(names)
}

/// Creates a file with this content. The file is synchronized to disk when this returns.
fn write_new(at: &OwnedFd, name: &str, mode: u32, content: Content<'_>) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(openat(at, name, flags, Mode::from_raw_mode(0o600))?);
    let mut to = BufWriter::new(&file);
    content(&mut to)?;
    to.flush()?;
    drop(to);
    fchmod(&file, Mode::from_raw_mode(mode & 0o666))?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_that_let_others_write_are_rejected() {
        for (text, mode) in [("0700", 0o700), ("700", 0o700), ("0750", 0o750), ("0755", 0o755)] {
            assert_eq!(parse_mode(text), Ok(mode));
        }
        for bad in ["", "0770", "0777", "0600", "1700", "rwx", "0o750", "-700", "99999999999"] {
            assert!(parse_mode(bad).is_err(), "{bad}");
        }
    }
}

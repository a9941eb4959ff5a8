//! The directory: everything in it is reached by a descriptor of it, and no symbolic link is
//! followed. What is put there is whole or absent, whenever the machine or we stop. It is readable for
//! others only if the configuration says so.

use std::{
    fs::File,
    io::{self, BufWriter, Read, Write},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use libjvmprobe::{own::note, render::units::count};
use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat, fchmod,
        flock, fstat, fsync, mkdirat, openat, renameat_with, unlinkat,
    },
    io::Errno,
    process::geteuid,
};

use crate::store::name::Name;

/// Version of the files in a directory: another number if other versions of this program cannot read them.
/// Since version 2, profiles are in the encoding of [`crate::store::profiles`]; before, they were in pprof's format.
pub const VERSION: u32 = 2;

/// The file that tells the version.
const VERSION_FILE: &str = "version";
/// How long to wait for the lock: the kernel needs a moment to end a process that was killed.
const LOCK_WAIT: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// The file that is locked by who writes.
const LOCK: &str = "lock";
/// What is not whole yet ...
const NEW: &str = ".new-";
/// ... and what is whole no more.
const OLD: &str = ".old-";

/// Mode of the directory unless the configuration has another one: profiles of all users are in it.
pub const MODE: u32 = 0o700;

/// Names that do not show that a directory is in use for something else: files of ours, the folder of
/// queues, and what mkfs puts into a new file system.
const OWN: [&str; 4] = [VERSION_FILE, LOCK, "push", "lost+found"];

/// More entries than a directory of ours has.
const MAX_ENTRIES: usize = 100_000;

/// A directory with windows.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    fd: OwnedFd,
    /// Mode of the directory and of those in it.
    mode: u32,
    /// Locked as long as it is open; `None` where it is only read.
    _lock: Option<OwnedFd>,
}

/// What is written to a file.
pub type Content<'a> = &'a dyn Fn(&mut dyn Write) -> io::Result<()>;

impl Folder {
    /// Opens it to write, and makes it where it is missing. A lock keeps other daemons out. The directory gets
    /// this mode: kubelet, for example, creates it readable for all.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it.
    pub fn open_to_write(path: &Path, mode: u32) -> Result<Self> {
        let shown = path.display();
        match mkdirat(CWD, path, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            // What is there is opened all the same.
            Err(Errno::ROFS) if path.is_dir() => {}
            Err(e) => return Err(io::Error::from(e)).context(format!("cannot make {shown}")),
        }
        let fd = open_dir(path)?;
        let stat = fstat(&fd).with_context(|| format!("cannot look at {shown}"))?;
        check_owner(path, &stat)?;
        let lock = lock(path, &fd)?;
        let folder = Self { path: path.into(), fd, mode, _lock: Some(lock) };
        let version = folder.version()?;
        folder.set_mode(stat.st_mode & 0o7777, version.is_none())?;
        if version.is_some_and(|version| version < VERSION) {
            folder.start_anew().with_context(|| format!("cannot write to {shown}"))?;
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

    /// Removes the windows of an older version, which cannot be read, and then the file that tells the version.
    fn start_anew(&self) -> io::Result<()> {
        let names = self.names()?;
        let windows: Vec<_> = names.iter().filter(|name| Name::parse(name).is_some()).collect();
        for name in &windows {
            self.remove(name)?;
        }
        unlinkat(&self.fd, VERSION_FILE, AtFlags::empty())?;
        note(&format!(
            "{}: removed {} of an older jvmprobed, which this one cannot read",
            self.path.display(),
            count(windows.len() as u64, "window")
        ));
        Ok(())
    }

    /// Gives the directory its mode. One that is in use for something else is refused: users of that may
    /// not be able to go on.
    fn set_mode(&self, found: u32, is_new: bool) -> Result<()> {
        if found == self.mode {
            return Ok(());
        }
        let shown = self.path.display();
        let names = self.names().with_context(|| format!("cannot read {shown}"))?;
        let is_other = |name: &&String| !OWN.contains(&&***name) && !name.starts_with(NEW);
        if let Some(other) = names.iter().find(is_other).filter(|_| is_new) {
            bail!(
                "{shown} has mode {found:04o} and contains {other:?}, which is not from jvmprobed: use another \
                 --dir, or chmod {:04o} {shown}",
                self.mode
            );
        }
        fchmod(&self.fd, Mode::from_raw_mode(self.mode))
            .with_context(|| format!("cannot set the mode of {shown}"))?;
        // A new directory has no mode that anybody has asked for.
        if !names.is_empty() && !is_new {
            note(&format!(
                "{shown} had mode {found:04o}, has {:04o} now: see mode in [store]",
                self.mode
            ));
        }
        Ok(())
    }

    /// Opens it to read.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it.
    pub fn open_to_read(path: &Path) -> Result<Self> {
        let fd = open_dir(path)?;
        let folder = Self { path: path.into(), fd, mode: 0, _lock: None };
        let shown = path.display();
        match folder.version()? {
            Some(VERSION) => Ok(folder),
            Some(version) => bail!(
                "{shown} was written by an older jvmprobed, as version {version}: this one reads version \
                 {VERSION}, and starts anew there as a daemon"
            ),
            None => bail!("{shown} has no windows of jvmprobed: is it the directory of --dir?"),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the version of what is in it, which is this one or an older one; `None` for a new directory.
    fn version(&self) -> Result<Option<u32>> {
        let shown = self.path.display();
        let mut text = String::new();
        match self.file(None, VERSION_FILE) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).context(format!("cannot read {shown}/{VERSION_FILE}")),
            // What is no text is no number either.
            Ok(file) => _ = file.take(64).read_to_string(&mut text),
        }
        match text.trim().parse() {
            Ok(version) if version <= VERSION => Ok(Some(version)),
            Ok(version) => bail!(
                "{shown} was written by a newer jvmprobed, as version {version}: this one knows version \
                 {VERSION}; use the newer one, or another --dir"
            ),
            Err(_) => bail!("{shown}/{VERSION_FILE} is no number: use another --dir"),
        }
    }

    /// The names in it.
    ///
    /// # Errors
    /// Those of readdir(3).
    pub fn names(&self) -> io::Result<Vec<String>> {
        names_in(&self.fd)
    }

    /// A file, in a directory within it or in itself.
    ///
    /// # Errors
    /// Those of open(2); [`io::ErrorKind::InvalidData`] for what is no regular file.
    pub fn file(&self, dir: Option<&str>, name: &str) -> io::Result<File> {
        let inner = dir.map(|dir| open_inner(&self.fd, dir)).transpose()?;
        let at = inner.as_ref().unwrap_or(&self.fd).as_fd();
        // A pipe would wait for its writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = openat(at, name, flags, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&fd)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no regular file"));
        }
        Ok(fd.into())
    }

    /// How much the files in a directory within it take on the disk, about.
    pub fn size(&self, dir: &str) -> u64 {
        /// A directory, and what a file takes beyond its bytes.
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

    /// Puts a directory with these files there. A name that is taken is [`Errno::EXIST`]'s error.
    ///
    /// # Errors
    /// Those of the system; nothing is there then.
    pub fn put(&self, name: &str, files: &[(&str, Content<'_>)]) -> io::Result<()> {
        let new = format!("{NEW}{name}");
        let written = self.fill(&new, files).and_then(|()| {
            Ok(renameat_with(&self.fd, &new, &self.fd, name, RenameFlags::NOREPLACE)?)
        });
        if written.is_err() {
            self.clear(&new);
            return written;
        }
        Ok(fsync(&self.fd)?)
    }

    fn fill(&self, new: &str, files: &[(&str, Content<'_>)]) -> io::Result<()> {
        mkdirat(&self.fd, new, Mode::from_raw_mode(0o700))?;
        let inner = open_inner(&self.fd, new)?;
        for (name, content) in files {
            write_new(&inner, name, self.mode, content)?;
        }
        fchmod(&inner, Mode::from_raw_mode(self.mode))?;
        Ok(fsync(&inner)?)
    }

    fn put_file(&self, name: &str, content: Content<'_>) -> io::Result<()> {
        let new = format!("{NEW}{name}");
        let written = write_new(&self.fd, &new, self.mode, content).and_then(|()| {
            Ok(renameat_with(&self.fd, &new, &self.fd, name, RenameFlags::NOREPLACE)?)
        });
        if written.is_err() {
            self.clear(&new);
            return written;
        }
        Ok(fsync(&self.fd)?)
    }

    /// Removes a directory within it: at once, as far as readers see.
    ///
    /// # Errors
    /// Those of rename(2): it is there as before then.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let old = format!("{OLD}{name}");
        self.clear(&old);
        renameat_with(&self.fd, name, &self.fd, &old, RenameFlags::NOREPLACE)?;
        self.clear(&old);
        Ok(())
    }

    /// Removes what was not whole yet, or not any more, when somebody stopped.
    fn remove_leftovers(&self) {
        for name in self.names().unwrap_or_default() {
            if name.starts_with(NEW) || name.starts_with(OLD) {
                self.clear(&name);
            }
        }
    }

    /// Removes a directory of ours with its files, or a file. What cannot be removed is tried again
    /// by the next one who opens it.
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

/// Reads the mode of the directory from text. The owner has all rights, and others may at most read.
///
/// # Errors
/// A sentence for the user.
pub fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok();
    let is_sound = |&mode: &u32| mode & !0o055 == 0o700;
    mode.filter(is_sound)
        .ok_or_else(|| "a mode from 0700 to 0755 is expected, for example \"0750\"".into())
}

fn open_dir(path: &Path) -> Result<OwnedFd> {
    let shown = path.display();
    // The path itself is the administrator's; what it ends in must not be someone's link.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(CWD, path, flags, Mode::empty()) {
        Ok(fd) => Ok(fd),
        Err(Errno::NOTDIR | Errno::LOOP) => {
            bail!("{shown} is no directory, but a file or a symbolic link: use another --dir")
        }
        Err(e) => Err(io::Error::from(e)).context(format!("cannot open {shown}")),
    }
}

/// What others could change is nothing to believe in, and root's files are nothing to put there.
fn check_owner(path: &Path, stat: &Stat) -> Result<()> {
    let (shown, own) = (path.display(), geteuid().as_raw());
    if stat.st_uid != own {
        bail!(
            "{shown} belongs to user {}, not to user {own}, who runs this: use another --dir",
            stat.st_uid
        );
    }
    if stat.st_mode & 0o022 != 0 {
        bail!("{shown} can be written by others: chmod go-w {shown}, or use another --dir");
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
                bail!("another jvmprobed writes to {shown}: end it, or use another --dir")
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
        // Others are none of ours.
        names.extend(name.ok().filter(|name| name != "." && name != ".."));
    }
    Ok(names)
}

/// Writes a file that is on the disk when this returns.
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
    fn modes_let_others_read_at_most() {
        for (text, mode) in [("0700", 0o700), ("700", 0o700), ("0750", 0o750), ("0755", 0o755)] {
            assert_eq!(parse_mode(text), Ok(mode));
        }
        for bad in ["", "0770", "0777", "0600", "1700", "rwx", "0o750", "-700", "99999999999"] {
            assert!(parse_mode(bad).is_err(), "{bad}");
        }
    }
}

//! The map that a JVM writes of its code cache when it is asked: `Compiler.perfmap`,
//! since JDK 17 (hotspot/share/code/codeCache.cpp, `CodeCache::write_perf_map`).
//!
//! It writes `/tmp/perf-N.map` in its own file system, N being its number in its own
//! PID namespace, and would follow a symbolic link there. So we look first, and read
//! only what is a regular file of the JVM's own user.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, OFlags, flock},
    io::Errno,
};

use crate::{
    Error, Result,
    hotspot::HotSpot,
    jvm::{Process, attach},
};

/// The first JDK that has the command.
pub const FIRST_JDK: u32 = 17;

/// A line is some 100 bytes long and there are at most a million.
const MAX_BYTES: u64 = 1 << 30;

/// How long to wait for other tools that ask the same JVM.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks a JVM for its map and returns its text. The file is removed again unless it
/// was there before.
///
/// # Errors
/// [`Error::Attach`] where the JVM cannot be asked, [`Error::Io`] where the file
/// cannot be trusted or read.
pub fn request(process: &Process, hotspot: &HotSpot) -> Result<String> {
    let path = path_of(process);
    let _turn = Turn::wait(process);
    let was_there = is_ours(&path, process)?;
    attach::command(process, hotspot, "jcmd", &["Compiler.perfmap"])?;
    let text = read(&path, process);
    if !was_there {
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &path, e));
            }
            _ => {}
        }
    }
    text
}

/// One of several tools that ask the same JVM: each would take the file of another
/// for one that was there before, or remove it before it is read.
struct Turn {
    _locked: Option<File>,
}

impl Turn {
    /// Waits for the others: by a lock on the program's file, which all can open.
    /// Others may hold that for ever, and some file systems have none: so not for
    /// longer than an answer takes, and then without.
    fn wait(process: &Process) -> Self {
        let Ok(file) = File::open(format!("/proc/{}/exe", process.pid)) else {
            return Self { _locked: None };
        };
        let deadline = Instant::now() + TURN_TIMEOUT;
        while let Err(Errno::WOULDBLOCK) = flock(&file, FlockOperation::NonBlockingLockExclusive)
            && Instant::now() < deadline
        {
            thread::sleep(Duration::from_millis(10));
        }
        Self { _locked: Some(file) }
    }
}

/// Where a JVM's map is, as we can open it.
pub fn path_of(process: &Process) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root/tmp/perf-{}.map", process.pid, process.ns_pid))
}

/// Reads a map of a process's own, never through a link, never another user's.
///
/// # Errors
/// [`Error::Io`].
pub fn read(path: &Path, process: &Process) -> Result<String> {
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
        .open(path)
        .map_err(|e| failed("read", path, e))?;
    let meta = file.metadata().map_err(|e| failed("read", path, e))?;
    let owner = meta.uid();
    if !meta.is_file() || !(owner == process.uid || owner == 0) {
        return Err(failed("trust", path, not_its_own(owner)));
    }
    text(file).map_err(|e| failed("read", path, e))
}

/// All of a file as text, within bounds.
///
/// # Errors
/// Where it cannot be read or is too large.
pub fn text(file: File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::other("it is larger than 1 GiB"));
    }
    Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into()))
}

/// Whether the file is there; an error where the JVM must not be asked to write it.
fn is_ours(path: &Path, process: &Process) -> Result<bool> {
    match path.symlink_metadata() {
        Ok(meta) if meta.is_file() && meta.uid() == process.uid => Ok(true),
        Ok(meta) => Err(failed("let the JVM write", path, not_its_own(meta.uid()))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(failed("look at", path, e)),
    }
}

fn not_its_own(owner: u32) -> io::Error {
    io::Error::other(format!("it is not a file of the JVM's own user (but of user {owner})"))
}

fn failed(verb: &str, path: &Path, source: io::Error) -> Error {
    Error::io(format!("{verb} {}", path.display()), source)
}

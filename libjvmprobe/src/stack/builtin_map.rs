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

/// How long to wait for another tool that has the same JVM write its map.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// Asks a JVM for its map and returns its text. The file is removed again unless the
/// JVM's user had one there before; one of root's, which the JVM could not write, is put
/// aside meanwhile.
///
/// # Errors
/// [`Error::Attach`] where the JVM cannot be asked, [`Error::Io`] where the file
/// cannot be trusted or read.
pub fn request(process: &Process, hotspot: &HotSpot) -> Result<String> {
    let path = path_of(process);
    let _turn = wait_for_turn(&path);
    let before = look(&path, process)?;
    let aside = path.with_extension("map.aside");
    if before == Before::Roots {
        fs::rename(&path, &aside).map_err(|e| failed("put aside", &path, e))?;
    }
    let text = attach::command(process, hotspot, "jcmd", &["Compiler.perfmap"])
        .and_then(|_| read(&path, process));
    match before {
        Before::Nothing if text.is_ok() => match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &path, e));
            }
            _ => {}
        },
        Before::Roots => fs::rename(&aside, &path).map_err(|e| failed("put back", &path, e))?,
        Before::Nothing | Before::TheJvms => {}
    }
    // The JVM does not say when it could not write all of it.
    match text {
        Ok(text) if !text.ends_with('\n') => {
            let cut = io::Error::other("it is cut off: is the JVM's /tmp full?");
            Err(failed("use", &path, cut))
        }
        other => other,
    }
}

/// Two tools at once would read and remove each other's maps. So one waits for the
/// other, by a lock on the folder, which leaves nothing behind. Who cannot get it in
/// time goes on without.
fn wait_for_turn(path: &Path) -> Option<File> {
    let folder = File::open(path.parent()?).ok()?;
    let deadline = Instant::now() + TURN_TIMEOUT;
    while let Err(error) = flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        if error != Errno::WOULDBLOCK || Instant::now() > deadline {
            return None;
        }
        thread::sleep(Duration::from_millis(20));
    }
    Some(folder)
}

/// Where a JVM's map is, as we can open it.
pub fn path_of(process: &Process) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root/tmp/{}", process.pid, name_of(process)))
}

/// What a JVM's map is called in its /tmp.
pub fn name_of(process: &Process) -> String {
    format!("perf-{}.map", process.ns_pid)
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

/// What is there before the JVM writes its map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    /// A file of the JVM's user.
    TheJvms,
    /// A file of root's, who is not the JVM's user.
    Roots,
}

/// Looks; an error where the JVM must not be asked to write there.
fn look(path: &Path, process: &Process) -> Result<Before> {
    match path.symlink_metadata() {
        Ok(meta) if meta.is_file() && meta.uid() == process.uid => Ok(Before::TheJvms),
        Ok(meta) if meta.is_file() && meta.uid() == 0 => Ok(Before::Roots),
        Ok(meta) => Err(failed("let the JVM write", path, not_its_own(meta.uid()))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Before::Nothing),
        Err(e) => Err(failed("look at", path, e)),
    }
}

fn not_its_own(owner: u32) -> io::Error {
    io::Error::other(format!("it is not a file of the JVM's own user (but of user {owner})"))
}

fn failed(verb: &str, path: &Path, source: io::Error) -> Error {
    Error::io(format!("{verb} {}", path.display()), source)
}

//! The map that a JVM writes of its own code cache on request: the command `Compiler.perfmap`, since JDK 17
//! (hotspot/share/code/codeCache.cpp, `CodeCache::write_perf_map`).
//!
//! The JVM writes `/tmp/perf-N.map` in its own file system, where N is its PID in its own PID namespace. It
//! would follow a symbolic link there. So a file that exists at this path is checked before the JVM writes.
//! Afterwards, the map is read only if it is a regular file of the JVM's own user or of root.

use std::{io, path::Path, time::Duration};

use crate::{
    Error, Result,
    attach::jcmd,
    hotspot::HotSpot,
    process::{
        Process,
        identity::Owner,
        root::{self, Folder, Root, wrong_owner},
    },
    sys::Deadline,
};

/// First JDK that has the command.
pub(crate) const FIRST_JDK: u32 = 17;

/// Maximum size of a map. A line has about 100 bytes, and there are at most a million lines.
pub const MAX_BYTES: u64 = 256 << 20;

/// Maximum time to wait for another tool that is requesting a map from the same JVM.
const TURN_TIMEOUT: Duration = Duration::from_secs(4);

/// Makes a JVM write its map, and returns the text. Afterwards the file is removed, unless the JVM's user had one there
/// before. A file of root, which the JVM could not overwrite, is renamed temporarily.
///
/// # Errors
/// [`Error::Attach`] if the JVM does not answer, [`Error::Io`] if the file cannot be trusted or read.
pub fn request(process: &Process, hotspot: &HotSpot) -> Result<String> {
    let deadline = Deadline::within(jcmd::TIMEOUT);
    let refuse = |why| Error::Attach { pid: process.pid, why };
    let root = Root::open(process).map_err(refuse)?;
    let tmp = root.folder("/tmp").map_err(refuse)?;
    let name = name_of(process);
    let failed = |verb: &str, error| failed(verb, &tmp.shown(&name), error);
    // Two tools at once would read and remove each other's maps. After the timeout, the request continues without the
    // lock.
    let _turn = tmp.lock(deadline.capped(TURN_TIMEOUT));
    let before = check_existing(&tmp, &name, process)?;
    let aside = format!("{name}.aside");
    if before == Before::OwnedByRoot {
        tmp.rename(Owner::Us, &name, &aside).map_err(|e| failed("move aside", e))?;
    }
    let text = jcmd::command(process, hotspot, "jcmd", &["Compiler.perfmap"], deadline)
        .and_then(|_| read_in(&tmp, &name, process));
    match before {
        Before::Nothing if text.is_ok() => match tmp.remove(&name) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed("remove", e)),
            _ => {}
        },
        Before::OwnedByRoot => {
            tmp.rename(Owner::Us, &aside, &name).map_err(|e| failed("move back", e))?;
        }
        Before::Nothing | Before::OwnedByJvmUser => {}
    }
    // The JVM does not report an incomplete write.
    match text {
        Ok(text) if !text.ends_with('\n') => {
            Err(failed("use", io::Error::other("it is truncated; is the JVM's /tmp full?")))
        }
        other => other,
    }
}

/// Returns the name of a JVM's map in its /tmp.
pub fn name_of(process: &Process) -> String {
    format!("perf-{}.map", process.ns_pid)
}

/// Reads the map in a process's /tmp. The file must belong to the JVM's user or to root, and must not be a
/// link.
///
/// # Errors
/// [`Error::Attach`] if its /tmp cannot be opened, [`Error::Io`] if the file cannot be trusted or read.
pub(crate) fn read_in_target(process: &Process) -> Result<String> {
    let refuse = |why| Error::Attach { pid: process.pid, why };
    let root = Root::open(process).map_err(refuse)?;
    let tmp = root.folder("/tmp").map_err(refuse)?;
    read_in(&tmp, &name_of(process), process)
}

fn read_in(tmp: &Folder<'_>, name: &str, process: &Process) -> Result<String> {
    let text = tmp.text(name, &[process.uid, 0], MAX_BYTES);
    text.map_err(|e| failed("read", &tmp.shown(name), e))
}

/// Reads the map of a process from a file in our own file system that the user has named. The file must
/// belong to the JVM's user or to root, and must not be a link.
///
/// # Errors
/// [`Error::Io`] if the file cannot be trusted or read.
pub fn read(path: &Path, process: &Process) -> Result<String> {
    let text =
        root::open_own(path, &[process.uid, 0]).and_then(|file| root::text(&file, MAX_BYTES));
    text.map_err(|e| failed("trust", path, e))
}

/// The file that exists before the JVM writes its map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    /// A file of the JVM's user.
    OwnedByJvmUser,
    /// A file of root, who is not the JVM's user.
    OwnedByRoot,
}

/// Checks for an existing file. Returns an error if the JVM must not be asked to write there.
fn check_existing(tmp: &Folder<'_>, name: &str, process: &Process) -> Result<Before> {
    let failed = |verb: &str, error| failed(verb, &tmp.shown(name), error);
    match tmp.metadata(name) {
        Ok(seen) if seen.is_file_of(process.uid) => Ok(Before::OwnedByJvmUser),
        Ok(seen) if seen.is_file_of(0) => Ok(Before::OwnedByRoot),
        Ok(seen) => Err(failed("let the JVM write", io::Error::other(wrong_owner(seen.owner())))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Before::Nothing),
        Err(e) => Err(failed("inspect", e)),
    }
}

fn failed(verb: &str, path: &Path, source: io::Error) -> Error {
    Error::io(format!("{verb} {}", path.display()), source)
}

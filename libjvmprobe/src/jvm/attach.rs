//! HotSpot's attach protocol: commands to a running JVM, as `jcmd` sends them.
//!
//! Source: hotspot/os/linux/attachListener_linux.cpp (os/posix since JDK 17) and
//! jdk.attach's VirtualMachineImpl.c. The JVM listens on `/tmp/.java_pidN`, N being
//! its number in its own PID namespace. If it does not yet, a file `.attach_pidN` in
//! its working folder or in /tmp and then SIGQUIT make it. A command is five
//! NUL-terminated strings: `1`, the command, three arguments. The answer is a
//! number, a newline, then text to the end.
//!
//! SIGQUIT kills a process that does not expect it, and a JVM that does not find the file,
//! or whose attach mechanism is switched off, prints its threads on its stdout instead. So
//! all of that is checked before: the handler, the switch, and that the file is there by the
//! target's own way to it, with an owner that the JVM accepts. From then on the file stays
//! until the JVM listens, has ended, or has not listened for long.
//!
//! What needs the target's user, as JVMs up to 11.0.1 want it for a connection, is done by
//! [`as_target`]; all questions about the target are asked with our own rights.

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::UnixStream,
    },
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use super::{
    Fate, Process,
    folder::{Folder, NewFile, Owner, as_target},
    process::status_of,
};
use crate::{Error, Result, hotspot::HotSpot};

/// How long a JVM may take to begin to listen.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(6);
/// How long it may take to answer; a command waits for a safepoint.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// More than any answer that we ask for.
const MAX_ANSWER: u64 = 16 << 20;

/// How long somebody else's request is given before it is taken for forgotten.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(1);

const SIGQUIT: u32 = 3;

/// Sends a command with up to three arguments and returns its answer.
///
/// # Errors
/// [`Error::Attach`] saying why the JVM does not answer or what it answered.
pub fn command(
    process: &Process,
    hotspot: &HotSpot,
    name: &str,
    arguments: &[&str],
) -> Result<String> {
    let refuse = |why: String| Error::Attach { pid: process.pid, why };
    let mut request = b"1\0".to_vec();
    let rest = arguments.iter().copied().chain(["", "", ""]).take(3);
    for part in [name].into_iter().chain(rest) {
        if part.contains('\0') || part.len() > 1024 {
            return Err(refuse("a command's argument is too long".into()));
        }
        request.extend_from_slice(part.as_bytes());
        request.push(0);
    }
    if hotspot.attach_disabled {
        return Err(refuse("it was started with -XX:+DisableAttachMechanism".into()));
    }
    let answer = ask(process, &request).map_err(refuse)?;
    text_of(name, &answer).map_err(refuse)
}

/// The text of an answer to a command, or why it is none.
pub(crate) fn text_of(name: &str, answer: &[u8]) -> Result<String, String> {
    let answer = String::from_utf8_lossy(answer);
    let (code, text) = answer.split_once('\n').unwrap_or((&answer, ""));
    match code.trim().parse::<i32>() {
        Ok(0) => Ok(text.to_owned()),
        Ok(code) => Err(format!("it refused {name} ({code}): {}", first_line(text))),
        Err(_) => Err(format!("it answered nonsense to {name}: {}", first_line(&answer))),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or("no reason given").chars().take(200).collect()
}

/// Has the JVM listen, if it does not yet, and sends it a request.
fn ask(process: &Process, request: &[u8]) -> Result<Vec<u8>, String> {
    check_alive(process)?;
    let tmp = Folder::open(process, "/tmp")?;
    let socket = tmp.file(&format!(".java_pid{}", process.ns_pid));
    if !is_socket(&socket) {
        check_ids(process)?;
        wake_listener(process, &tmp, &socket)?;
    }
    as_target(process, || {
        let refused = |e| format!("its attach socket refuses ({e})");
        exchange(UnixStream::connect(&socket).map_err(refused)?, request)
    })?
}

/// Whether the process can answer at all, and will survive being asked.
fn check_alive(process: &Process) -> Result<(), String> {
    let status = status_of(process.pid).map_err(|e| e.to_string())?;
    if status.state.starts_with(['T', 't']) {
        return Err("it is stopped; continue it with `kill -CONT`".into());
    }
    if status.sigcgt & 1 << (SIGQUIT - 1) == 0 {
        return Err(
            "it does not handle SIGQUIT (-Xrs, or not ready yet), which would end it".into()
        );
    }
    Ok(())
}

/// Whether the JVM can make a socket of its own: one whose user or group has no number in its
/// user namespace fails to, and would only print its threads or fall silent.
fn check_ids(process: &Process) -> Result<(), String> {
    for (map, what, id) in [("uid_map", "user", process.uid), ("gid_map", "group", process.gid)] {
        // Where that cannot be read, it shows later.
        let map = fs::read_to_string(format!("/proc/{}/{map}", process.pid));
        if map.is_ok_and(|map| !is_mapped(&map, id)) {
            return Err(format!(
                "its {what} {id} is not mapped in its user namespace, so that it cannot listen"
            ));
        }
    }
    Ok(())
}

/// Whether a map of ids has one of ours: lines of the first id there, the first one here, and
/// how many (user_namespaces(7)).
pub(crate) fn is_mapped(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1).map(str::parse::<u32>);
        match (fields.next(), fields.next()) {
            (Some(Ok(first)), Some(Ok(count))) => id.checked_sub(first).is_some_and(|n| n < count),
            _ => false,
        }
    })
}

fn is_socket(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket())
}

/// The file that makes SIGQUIT a request to listen.
enum Sentinel<'a> {
    /// Ours, held here to be removed.
    Ours { _file: NewFile<'a> },
    /// Another tool's, which is asking as well or has died over it.
    Others,
}

fn wake_listener(process: &Process, tmp: &Folder, socket: &Path) -> Result<(), String> {
    let working = Folder::working(process).ok();
    let folders: Vec<_> = working.iter().chain([tmp]).collect();
    let mut sentinel = sentinel(process, &folders)?;
    if matches!(sentinel, Sentinel::Others) {
        if is_listening(process, socket, OTHERS_TIMEOUT)? {
            return Ok(());
        }
        // By now they may have given up, and have removed it.
        sentinel = self::sentinel(process, &folders)?;
    }
    process.signal(Signal::QUIT).map_err(|e| format!("cannot signal it ({e})"))?;
    let is_listening = is_listening(process, socket, LISTEN_TIMEOUT)?;
    drop(sentinel);
    match is_listening {
        true => Ok(()),
        false => Err(format!(
            "it did not begin to listen within {} s: is it hung?",
            LISTEN_TIMEOUT.as_secs()
        )),
    }
}

/// Waits until it listens.
fn is_listening(process: &Process, socket: &Path, timeout: Duration) -> Result<bool, String> {
    let deadline = Instant::now() + timeout;
    let mut pause = Duration::from_millis(20);
    while Instant::now() < deadline {
        if is_socket(socket) {
            return Ok(true);
        }
        match process.fate() {
            Fate::Alive => {}
            Fate::Ended => return Err("it has ended".into()),
            Fate::Execed => return Err("it runs another program now".into()),
        }
        thread::sleep(pause);
        pause = (pause * 3 / 2).min(Duration::from_millis(200));
    }
    Ok(false)
}

/// The file in the first of some folders that takes it.
fn sentinel<'a>(process: &Process, folders: &[&'a Folder]) -> Result<Sentinel<'a>, String> {
    let name = format!(".attach_pid{}", process.ns_pid);
    let mut reasons = Vec::new();
    for folder in folders {
        match sentinel_in(folder, process, &name) {
            Ok(sentinel) => return Ok(sentinel),
            Err(e) => reasons.push(format!("{}: {e}", folder.shown(&name).display())),
        }
        // The JVM looks no further than at the first that is there.
        if folder.look_as_target(&name).is_ok() {
            break;
        }
    }
    Err(format!("cannot create the file that asks it to listen ({})", reasons.join("; ")))
}

/// Creates the file, and makes sure that the JVM will find and accept it
/// (`AttachListener::is_init_trigger`): there it is by the JVM's own way to the folder, a
/// regular file of its own user's.
fn sentinel_in<'a>(folder: &'a Folder, process: &Process, name: &str) -> io::Result<Sentinel<'a>> {
    let created = folder.create(Owner::Target(process), name, 0o600);
    let seen = folder.look_as_target(name);
    let is_right = |meta: &fs::Metadata| meta.is_file() && meta.uid() == process.uid;
    match created {
        Ok(ours) => {
            let (ours_meta, seen) = (ours.file().metadata()?, seen?);
            let id = |meta: &fs::Metadata| (meta.dev(), meta.ino());
            if id(&ours_meta) != id(&seen) {
                return Err(io::Error::other("the JVM would see another file"));
            }
            if !is_right(&seen) {
                // A file system that changes owners.
                return Err(io::Error::other("the file would belong to another user"));
            }
            Ok(Sentinel::Ours { _file: ours })
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => match seen {
            Ok(seen) if is_right(&seen) => Ok(Sentinel::Others),
            _ => Err(io::Error::other("there is one that is not its own user's: remove it")),
        },
        Err(e) => Err(e),
    }
}

fn exchange(mut socket: UnixStream, request: &[u8]) -> Result<Vec<u8>, String> {
    let silent = |e: io::Error| match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("it did not answer within {} s: is it hung?", ANSWER_TIMEOUT.as_secs())
        }
        _ => format!("the connection broke ({e})"),
    };
    socket
        .set_read_timeout(Some(ANSWER_TIMEOUT))
        .and_then(|()| socket.set_write_timeout(Some(ANSWER_TIMEOUT)))
        .and_then(|()| socket.write_all(request))
        .map_err(silent)?;
    let mut answer = Vec::new();
    (&mut socket).take(MAX_ANSWER).read_to_end(&mut answer).map_err(silent)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_looked_for_in_the_ranges_of_a_map() {
        let everything = "         0          0 4294967295\n";
        assert!(is_mapped(everything, 0) && is_mapped(everything, 65_534));
        let two = "0 1000 1\n1 100000 65536\n";
        for (id, is) in [(0, false), (1000, true), (1001, false), (100_000, true), (165_535, true)]
        {
            assert_eq!(is_mapped(two, id), is, "{id}");
        }
        assert!(!is_mapped(two, 165_536));
        for nothing in ["", "\n", "0 1000\n", "a b c\n", "0 -1 9999999999999\n"] {
            assert!(!is_mapped(nothing, 1000), "{nothing:?}");
        }
    }
}

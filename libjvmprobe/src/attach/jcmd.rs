//! HotSpot's attach protocol: commands to a running JVM, as `jcmd` sends them.
//!
//! Source: hotspot/os/linux/attachListener_linux.cpp (os/posix since JDK 17) and jdk.attach's
//! VirtualMachineImpl.c. The JVM listens on `/tmp/.java_pidN`, where N is its PID in its own PID namespace.
//! To make a JVM listen, a tool creates a file `.attach_pidN` in the JVM's working directory or in /tmp, and
//! then sends SIGQUIT. A command consists of five NUL-terminated strings: `1`, the command and three
//! arguments. The answer consists of a number, a newline, and text until the end of the stream.
//!
//! SIGQUIT kills a process that does not handle it. A JVM that does not find the file, or whose attach
//! mechanism is disabled, prints its threads on its stdout instead. So these conditions are checked before
//! SIGQUIT is sent:
//! - The JVM is not stopped and handles SIGQUIT.
//! - Its attach mechanism is enabled, and its user and group allow it to create a socket.
//! - It can reach the file by its own path, and will accept the file's owner.
//!
//! The file stays until the JVM listens, has ended or runs another program, or until the timeout has expired.
//!
//! JVMs up to 11.0.1 accept connections only from their own user, so [`as_target`] connects as that user. All
//! data about the target is read with our own privileges.

use std::{fs, io, os::fd::OwnedFd, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with},
    process::Signal,
    time::Timespec,
};

use crate::{
    Error, Result,
    hotspot::HotSpot,
    process::{
        Fate, Process,
        identity::{Owner, as_target},
        pid::status_of,
        root::{Folder, NewFile, Root},
    },
    sys::Deadline,
};

/// Maximum time for a complete request.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(9);
/// Maximum part of [`TIMEOUT`] that the JVM may take to start listening.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(6);
/// Maximum size of an answer; no answer to our commands is larger.
const MAX_ANSWER: usize = 16 << 20;

/// Time after which another tool's request file is considered abandoned.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(1);

const SIGQUIT: u32 = 3;

/// Sends a command with up to three arguments, and returns its answer or fails at the deadline.
///
/// # Errors
/// [`Error::Attach`] with the reason why the JVM does not answer, or with its error.
pub(crate) fn command(
    process: &Process,
    hotspot: &HotSpot,
    name: &str,
    arguments: &[&str],
    deadline: Deadline,
) -> Result<String> {
    let refuse = |why: String| Error::Attach { pid: process.pid, why };
    let mut request = b"1\0".to_vec();
    let rest = arguments.iter().copied().chain(["", "", ""]).take(3);
    for part in [name].into_iter().chain(rest) {
        if part.contains('\0') || part.len() > 1024 {
            return Err(refuse("a command argument is too long or contains a NUL byte".into()));
        }
        request.extend_from_slice(part.as_bytes());
        request.push(0);
    }
    if hotspot.attach_disabled {
        return Err(refuse("it was started with -XX:+DisableAttachMechanism".into()));
    }
    let answer = ask(process, &request, deadline).map_err(refuse)?;
    text_of(name, &answer).map_err(refuse)
}

/// Returns the text of a command's answer, or the reason why the command failed.
pub(crate) fn text_of(name: &str, answer: &[u8]) -> Result<String, String> {
    let answer = String::from_utf8_lossy(answer);
    let (code, text) = answer.split_once('\n').unwrap_or((&answer, ""));
    match code.trim().parse::<i32>() {
        Ok(0) => Ok(text.to_owned()),
        Ok(code) => Err(format!("it rejected {name} ({code}): {}", first_line(text))),
        Err(_) => Err(format!("it sent an invalid answer to {name}: {}", first_line(&answer))),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or("no reason given").chars().take(200).collect()
}

/// Makes the JVM listen if it does not yet, sends it a request and returns the answer.
fn ask(process: &Process, request: &[u8], deadline: Deadline) -> Result<Vec<u8>, String> {
    check_alive(process)?;
    let root = Root::open(process)?;
    let tmp = root.folder("/tmp")?;
    let name = format!(".java_pid{}", process.ns_pid);
    if !is_socket(&tmp, &name) {
        check_ids(process)?;
        wake_listener(process, &tmp, &name, deadline)?;
    }
    let refused = |e| format!("cannot connect to its attach socket ({e})");
    let socket = tmp.socket(&name, process.uid).map_err(refused)?;
    let address = SocketAddrUnix::new(socket.path()).map_err(|e| refused(e.into()))?;
    as_target(process, || Connection::open(&address, deadline)?.exchange(request))?
}

/// Checks that the process is not stopped and that SIGQUIT would not kill it.
fn check_alive(process: &Process) -> Result<(), String> {
    let status = status_of(process.pid).map_err(|e| e.to_string())?;
    if status.state.starts_with(['T', 't']) {
        return Err("it is stopped; continue it with `kill -CONT`".into());
    }
    if status.sigcgt & 1 << (SIGQUIT - 1) == 0 {
        return Err(
            "it does not handle SIGQUIT (started with -Xrs, or not ready yet), so attaching would \
             kill it"
                .into(),
        );
    }
    Ok(())
}

/// Checks that the JVM can create a socket. It cannot do so if its user or group is not mapped in its user
/// namespace; after SIGQUIT, it would then only print its threads or not react at all.
fn check_ids(process: &Process) -> Result<(), String> {
    for (map, what, id) in [("uid_map", "user", process.uid), ("gid_map", "group", process.gid)] {
        // If the file cannot be read, this check is skipped. A later step then fails if the ID is not mapped.
        let map = fs::read_to_string(format!("/proc/{}/{map}", process.pid));
        if map.is_ok_and(|map| !is_mapped(&map, id)) {
            return Err(format!(
                "its {what} {id} is not mapped in its user namespace, so it cannot accept attach \
                 requests"
            ));
        }
    }
    Ok(())
}

/// Returns whether an ID map contains `id`, an ID in our user namespace. Each line has the first ID inside,
/// the first ID outside, and the number of IDs (user_namespaces(7)).
pub(crate) fn is_mapped(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1).map(str::parse::<u32>);
        match (fields.next(), fields.next()) {
            (Some(Ok(first)), Some(Ok(count))) => id.checked_sub(first).is_some_and(|n| n < count),
            _ => false,
        }
    })
}

fn is_socket(folder: &Folder<'_>, name: &str) -> bool {
    folder.metadata(name).is_ok_and(|seen| seen.is_socket())
}

/// The file that turns SIGQUIT into a request to listen.
enum Sentinel<'a> {
    /// Our own file, removed when this is dropped.
    Ours { _file: NewFile<'a> },
    /// The file of another tool, which is currently attaching or has crashed while doing so.
    Others,
}

fn wake_listener(
    process: &Process,
    tmp: &Folder<'_>,
    socket: &str,
    deadline: Deadline,
) -> Result<(), String> {
    let working = Folder::working(process).ok();
    let folders: Vec<_> = working.iter().chain([tmp]).collect();
    let is_listening = || is_socket(tmp, socket);
    let mut sentinel = sentinel(process, &folders)?;
    if matches!(sentinel, Sentinel::Others) {
        if wait(process, is_listening, deadline.capped(OTHERS_TIMEOUT)).is_ok() {
            return Ok(());
        }
        // Meanwhile the other tool may have given up and removed its file.
        sentinel = self::sentinel(process, &folders)?;
    }
    process.signal(Signal::QUIT).map_err(|e| format!("cannot signal it ({e})"))?;
    let listens = wait(process, is_listening, deadline.capped(LISTEN_TIMEOUT));
    drop(sentinel);
    listens.map_err(|why| format!("it did not open its attach socket: {why}"))
}

/// Waits until `is_listening` returns true.
fn wait(
    process: &Process,
    is_listening: impl Fn() -> bool,
    deadline: Deadline,
) -> Result<(), String> {
    let mut pause = Duration::from_millis(20);
    while !is_listening() {
        match process.fate() {
            Fate::Alive => {}
            Fate::Ended => return Err("it has ended".into()),
            Fate::Execed => return Err("it runs another program now".into()),
        }
        deadline.sleep(pause).map_err(|when| format!("no answer {when}"))?;
        pause = (pause * 3 / 2).min(Duration::from_millis(200));
    }
    Ok(())
}

/// Creates the file in the first folder in which that is possible.
fn sentinel<'a>(process: &Process, folders: &[&'a Folder<'a>]) -> Result<Sentinel<'a>, String> {
    let name = format!(".attach_pid{}", process.ns_pid);
    let mut reasons = Vec::new();
    for folder in folders {
        match sentinel_in(folder, process, &name) {
            Ok(sentinel) => return Ok(sentinel),
            Err(e) => reasons.push(format!("{}: {e}", folder.shown(&name).display())),
        }
        // The JVM checks only the first folder that has such a file.
        if folder.metadata_as_target(&name).is_ok() {
            break;
        }
    }
    Err(format!("cannot create the file that requests its attach socket ({})", reasons.join("; ")))
}

/// Creates the file, and makes sure that the JVM will find and accept it (`AttachListener::is_init_trigger`).
/// At the path that the JVM itself uses, it must be a regular file that belongs to the JVM's user.
fn sentinel_in<'a>(
    folder: &'a Folder<'a>,
    process: &Process,
    name: &str,
) -> io::Result<Sentinel<'a>> {
    let created = folder.create(Owner::Target(process), name, 0o600);
    let seen = folder.metadata_as_target(name);
    match created {
        Ok(ours) => {
            let (ours_seen, seen) = (ours.metadata()?, seen?);
            if ours_seen.id() != seen.id() {
                return Err(io::Error::other("the JVM sees a different file there"));
            }
            if !seen.is_file_of(process.uid) {
                // The file system has given the new file another owner.
                return Err(io::Error::other("the file would belong to another user"));
            }
            Ok(Sentinel::Ours { _file: ours })
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => match seen {
            Ok(seen) if seen.is_file_of(process.uid) => Ok(Sentinel::Others),
            _ => Err(io::Error::other(
                "something exists there that is not a regular file of the JVM's user; remove it",
            )),
        },
        Err(e) => Err(e),
    }
}

/// A connection to a JVM that may not answer.
struct Connection {
    socket: OwnedFd,
    deadline: Deadline,
}

impl Connection {
    /// Connects. If a JVM hangs and its backlog is full, a non-blocking connect fails with `EAGAIN`; it is repeated
    /// until the deadline.
    fn open(address: &SocketAddrUnix, deadline: Deadline) -> Result<Self, String> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let refused = |e: Errno| format!("cannot connect to its attach socket ({e})");
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(refused)?;
        while let Err(error) = connect(&socket, address) {
            if error != Errno::AGAIN {
                return Err(refused(error));
            }
            deadline.sleep(Duration::from_millis(20)).map_err(|when| {
                format!("its queue of connections is full, and it did not accept this one {when}")
            })?;
        }
        Ok(Self { socket, deadline })
    }

    /// Sends a request, and reads the answer until the end of the stream.
    fn exchange(&self, request: &[u8]) -> Result<Vec<u8>, String> {
        let mut sent = 0;
        while let Some(rest) = request.get(sent..).filter(|rest| !rest.is_empty()) {
            sent += self.attempt(PollFlags::OUT, || rustix::io::write(&self.socket, rest))?;
        }
        let mut answer = Vec::new();
        let mut part = vec![0; 64 << 10];
        while answer.len() < MAX_ANSWER {
            match self.attempt(PollFlags::IN, || rustix::io::read(&self.socket, &mut part[..]))? {
                0 => break,
                len => answer.extend_from_slice(part.get(..len).unwrap_or_default()),
            }
        }
        Ok(answer)
    }

    /// Calls `work` until it succeeds or fails with an error other than `EAGAIN` and `EINTR`. Waits until the
    /// socket is ready before each repetition.
    fn attempt(
        &self,
        ready: PollFlags,
        mut work: impl FnMut() -> rustix::io::Result<usize>,
    ) -> Result<usize, String> {
        /// Maximum delay until a signal is noticed.
        const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(100);
        loop {
            match work() {
                Err(Errno::AGAIN | Errno::INTR) => {}
                done => return done.map_err(|e| format!("the connection failed ({e})")),
            }
            let silent = |when| format!("it did not answer {when}");
            let remaining = self.deadline.remaining().map_err(silent)?.min(SIGNAL_CHECK_INTERVAL);
            let remaining =
                Timespec::try_from(remaining).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
            // If poll() fails, the loop repeats `work` without waiting, until the deadline.
            let _ = poll(&mut [PollFd::new(&self.socket, ready)], Some(&remaining));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_within_the_map_ranges_are_mapped() {
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

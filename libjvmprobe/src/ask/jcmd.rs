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
    own::Deadline,
    process::{
        Fate, Process,
        identity::{Owner, as_target},
        pid::status_of,
        root::{Folder, NewFile, Root},
    },
};

/// How long it may take until a question is answered, from beginning to end.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(9);
/// How much of that a JVM may take to begin to listen.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(6);
/// More than any answer that we ask for.
const MAX_ANSWER: usize = 16 << 20;

/// How long somebody else's request is given before it is taken for forgotten.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(1);

const SIGQUIT: u32 = 3;

/// Sends a command with up to three arguments and returns its answer, which comes in time or
/// not at all.
///
/// # Errors
/// [`Error::Attach`] saying why the JVM does not answer or what it answered.
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
            return Err(refuse("a command's argument is too long".into()));
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
fn ask(process: &Process, request: &[u8], deadline: Deadline) -> Result<Vec<u8>, String> {
    check_alive(process)?;
    let root = Root::open(process)?;
    let tmp = root.folder("/tmp")?;
    let name = format!(".java_pid{}", process.ns_pid);
    if !is_socket(&tmp, &name) {
        check_ids(process)?;
        wake_listener(process, &tmp, &name, deadline)?;
    }
    let refused = |e| format!("its attach socket refuses ({e})");
    let socket = tmp.socket(&name, process.uid).map_err(refused)?;
    let address = SocketAddrUnix::new(socket.path()).map_err(|e| refused(e.into()))?;
    as_target(process, || Connection::open(&address, deadline)?.exchange(request))?
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

fn is_socket(folder: &Folder<'_>, name: &str) -> bool {
    folder.look(name).is_ok_and(|seen| seen.is_socket())
}

/// The file that makes SIGQUIT a request to listen.
enum Sentinel<'a> {
    /// Ours, held here to be removed.
    Ours { _file: NewFile<'a> },
    /// Another tool's, which is asking as well or has died over it.
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
    let is_there = || is_socket(tmp, socket);
    let mut sentinel = sentinel(process, &folders)?;
    if matches!(sentinel, Sentinel::Others) {
        if wait(process, is_there, deadline.sooner(OTHERS_TIMEOUT)).is_ok() {
            return Ok(());
        }
        // By now they may have given up, and have removed it.
        sentinel = self::sentinel(process, &folders)?;
    }
    process.signal(Signal::QUIT).map_err(|e| format!("cannot signal it ({e})"))?;
    let listens = wait(process, is_there, deadline.sooner(LISTEN_TIMEOUT));
    drop(sentinel);
    listens.map_err(|why| format!("it did not begin to listen: {why}"))
}

/// Waits until something is there.
fn wait(process: &Process, is_there: impl Fn() -> bool, deadline: Deadline) -> Result<(), String> {
    let mut pause = Duration::from_millis(20);
    while !is_there() {
        match process.fate() {
            Fate::Alive => {}
            Fate::Ended => return Err("it has ended".into()),
            Fate::Execed => return Err("it runs another program now".into()),
        }
        deadline.sleep(pause).map_err(|when| format!("not {when}; is it hung?"))?;
        pause = (pause * 3 / 2).min(Duration::from_millis(200));
    }
    Ok(())
}

/// The file in the first of some folders that takes it.
fn sentinel<'a>(process: &Process, folders: &[&'a Folder<'a>]) -> Result<Sentinel<'a>, String> {
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
fn sentinel_in<'a>(
    folder: &'a Folder<'a>,
    process: &Process,
    name: &str,
) -> io::Result<Sentinel<'a>> {
    let created = folder.create(Owner::Target(process), name, 0o600);
    let seen = folder.look_as_target(name);
    match created {
        Ok(ours) => {
            let (ours_seen, seen) = (ours.look()?, seen?);
            if ours_seen.id() != seen.id() {
                return Err(io::Error::other("the JVM would see another file"));
            }
            if !seen.is_file_of(process.uid) {
                // A file system that changes owners.
                return Err(io::Error::other("the file would belong to another user"));
            }
            Ok(Sentinel::Ours { _file: ours })
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => match seen {
            Ok(seen) if seen.is_file_of(process.uid) => Ok(Sentinel::Others),
            _ => Err(io::Error::other("there is one that is not its own user's: remove it")),
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
    /// Connects. A JVM that hangs takes nobody in: when as many wait as it lets wait, the kernel
    /// says so at once (`EAGAIN`) to who does not want to be kept.
    fn open(address: &SocketAddrUnix, deadline: Deadline) -> Result<Self, String> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let refused = |e: Errno| format!("its attach socket refuses ({e})");
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(refused)?;
        while let Err(error) = connect(&socket, address) {
            if error != Errno::AGAIN {
                return Err(refused(error));
            }
            deadline.sleep(Duration::from_millis(20)).map_err(|when| {
                format!("it did not accept a connection {when}, others wait: is it hung?")
            })?;
        }
        Ok(Self { socket, deadline })
    }

    /// Sends a request and reads the answer to its end.
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

    /// Does something as soon as the socket is ready for it.
    fn attempt(
        &self,
        ready: PollFlags,
        mut work: impl FnMut() -> rustix::io::Result<usize>,
    ) -> Result<usize, String> {
        /// So soon a signal is noticed.
        const LOOK: Duration = Duration::from_millis(100);
        loop {
            match work() {
                Err(Errno::AGAIN | Errno::INTR) => {}
                done => return done.map_err(|e| format!("the connection broke ({e})")),
            }
            let silent = |when| format!("it did not answer {when}: is it hung?");
            let left = self.deadline.left().map_err(silent)?.min(LOOK);
            let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
            // What it fails with, the next attempt does, too.
            let _ = poll(&mut [PollFd::new(&self.socket, ready)], Some(&left));
        }
    }
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

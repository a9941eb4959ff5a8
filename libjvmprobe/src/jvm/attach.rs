//! HotSpot's attach protocol: commands to a running JVM, as `jcmd` sends them.
//!
//! Source: hotspot/os/linux/attachListener_linux.cpp (os/posix since JDK 17) and
//! jdk.attach's VirtualMachineImpl.c. The JVM listens on `/tmp/.java_pidN`, N being
//! its number in its own PID namespace. If it does not yet, a file `.attach_pidN` in
//! its working folder or in /tmp and then SIGQUIT make it. A command is five
//! NUL-terminated strings: `1`, the command, three arguments. The answer is a
//! number, a newline, then text to the end.
//!
//! SIGQUIT kills a process that does not expect it, and a JVM whose attach
//! mechanism is switched off prints its threads instead: both are checked first.
//! Folders are opened with our rights, through the target's root; all else is done
//! by a thread that has taken the target's effective user and group, as JVMs up to
//! 11.0.1 want it and as files in foreign user namespaces need it.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::AsRawFd,
        unix::{
            fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
            net::UnixStream,
        },
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use procfs::process::Process as Proc;
use rustix::{
    fs::{Gid, Mode, OFlags, Uid},
    process::Signal,
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

use super::Process;
use crate::{Error, NsPid, Result, hotspot::HotSpot};

/// How long a JVM may take to begin to listen.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(6);
/// How long it may take to answer; a command waits for a safepoint.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// More than any answer that we ask for.
const MAX_ANSWER: u64 = 16 << 20;

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
    check_alive(process).map_err(refuse)?;
    let folders = Folders::open(process).map_err(refuse)?;
    let answer = as_target(process, || {
        let socket = connect(process, &folders)?;
        exchange(socket, &request)
    })
    .map_err(refuse)?;
    let (code, text) = answer.split_once('\n').unwrap_or((&answer, ""));
    match code.trim().parse::<i32>() {
        Ok(0) => Ok(text.to_owned()),
        Ok(code) => Err(refuse(format!("it refused {name} ({code}): {}", first_line(text)))),
        Err(_) => Err(refuse(format!("it answered nonsense to {name}: {}", first_line(&answer)))),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or("no reason given").chars().take(200).collect()
}

/// Whether the process can answer at all, and will survive being asked.
fn check_alive(process: &Process) -> Result<(), String> {
    let raw = i32::try_from(process.pid.0).unwrap_or(0);
    let status = Proc::new(raw).and_then(|proc| proc.status()).map_err(|e| e.to_string())?;
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

/// The folders of the target where its socket and the sentinel may be.
struct Folders {
    tmp: File,
    cwd: Option<File>,
}

impl Folders {
    fn open(process: &Process) -> Result<Self, String> {
        let pid = process.pid;
        Ok(Self {
            tmp: open_folder(&format!("/proc/{pid}/root/tmp"))?,
            cwd: open_folder(&format!("/proc/{pid}/cwd")).ok(),
        })
    }

    fn socket(&self, ns_pid: NsPid) -> PathBuf {
        inside(&self.tmp, &format!(".java_pid{ns_pid}"))
    }
}

/// Opens a folder with our own rights, as a place to name files in.
pub(super) fn open_folder(path: &str) -> Result<File, String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty());
    folder.map(File::from).map_err(|e| format!("{path}: {e}"))
}

/// A path to a file in an open folder, whatever we may see of its path.
pub(super) fn inside(folder: &File, name: &str) -> PathBuf {
    // Not /proc/self: that is the process; descriptors are shared by its threads.
    PathBuf::from(format!("/proc/thread-self/fd/{}/{name}", folder.as_raw_fd()))
}

/// Does something as the target's user. In a thread of its own, for identity belongs
/// to a thread, as far as the kernel is concerned.
pub(super) fn as_target<T: Send>(
    process: &Process,
    work: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            take_identity(process)?;
            work()
        });
        worker.join().unwrap_or_else(|_| Err("the attaching thread failed".into()))
    })
}

fn take_identity(process: &Process) -> Result<(), String> {
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if own == (process.uid, process.gid) {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(process.uid), Gid::from_raw(process.gid));
    // The real and saved ids stay, so that the process keeps its right to trace.
    set_thread_groups(&[gid])
        .and_then(|()| set_thread_res_gid(None, gid, None))
        .and_then(|()| set_thread_res_uid(None, uid, None))
        .map_err(|e| format!("cannot act as its user {} ({e}); run as root", process.uid))
}

fn connect(process: &Process, folders: &Folders) -> Result<UnixStream, String> {
    let socket = folders.socket(process.ns_pid);
    if !is_socket(&socket) {
        wake_listener(process, folders, &socket)?;
    }
    UnixStream::connect(&socket).map_err(|e| format!("its attach socket refuses ({e})"))
}

fn is_socket(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket())
}

/// A file that is removed when it goes out of scope.
struct Sentinel(PathBuf);

impl Drop for Sentinel {
    fn drop(&mut self) {
        // The JVM may have removed it already.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn wake_listener(process: &Process, folders: &Folders, socket: &Path) -> Result<(), String> {
    let name = format!(".attach_pid{}", process.ns_pid);
    let places = folders.cwd.iter().chain([&folders.tmp]).map(|folder| inside(folder, &name));
    let mut failure = None;
    let mut sentinel = None;
    for place in places {
        match create_sentinel(&place, process.uid) {
            Ok(created) => {
                sentinel = Some(created);
                break;
            }
            Err(e) => failure = Some(e),
        }
    }
    let Some(_sentinel) = sentinel else {
        let why = failure.map_or_else(String::new, |e| e.to_string());
        return Err(format!("cannot create {name} in its working folder or its /tmp ({why})"));
    };
    process.signal(Signal::QUIT).map_err(|e| format!("cannot signal it ({e})"))?;
    let deadline = Instant::now() + LISTEN_TIMEOUT;
    let mut pause = Duration::from_millis(20);
    while Instant::now() < deadline {
        if is_socket(socket) {
            return Ok(());
        }
        if process.fate() != super::Fate::Alive {
            return Err("it has ended".into());
        }
        thread::sleep(pause);
        pause = (pause * 3 / 2).min(Duration::from_millis(200));
    }
    Err(format!("it did not begin to listen within {} s: is it hung?", LISTEN_TIMEOUT.as_secs()))
}

fn create_sentinel(path: &Path, uid: u32) -> io::Result<Sentinel> {
    let no_follow = OFlags::NOFOLLOW.bits() as i32;
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(no_follow)
        .open(path)?;
    let sentinel = Sentinel(path.to_owned());
    if file.metadata()?.uid() == uid {
        Ok(sentinel)
    } else {
        // The JVM would not accept it (a file system that changes owners).
        Err(io::Error::other("the file would belong to another user"))
    }
}

fn exchange(mut socket: UnixStream, request: &[u8]) -> Result<String, String> {
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
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

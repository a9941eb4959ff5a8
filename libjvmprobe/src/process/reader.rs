//! Reader processes: child processes that touch a target's memory and files in our place.
//!
//! A page or a file of a target may be backed by a server that never answers: FUSE, which any tenant may run,
//! a dead NFS server, userfaultfd(2). The kernel then waits inside the system call, in the case of FUSE
//! beyond SIGKILL (fs/fuse/dev.c, `request_wait_answer`), and a process with one such thread can
//! neither end nor be replaced. No check beforehand helps, because the target can change its mappings
//! between the check and the read. So a reader makes these calls, and the caller waits for its answer for at most
//! [`LIMIT`]. A reader that is late is left to itself: while it is stuck, everything else about
//! its target is refused at once; when its call returns it ends, and the target is read again.
//!
//! Memory is read by process_vm_readv(2). Unlike a read of `/proc/PID/mem`, it does not hold the target's
//! mmap_lock while a page is fetched, which would stop the target's own mmap(2).
//!
//! One reader, the template, is forked from this process, as early as possible so that it shares little memory
//! with it; the others are forked from that one on request. Readers end with this process: their sockets
//! are closed then, and the template's end kills the others (`PR_SET_PDEATHSIG`).
//!
//! # Why this is sound
//! A child of fork(2) in a process with threads may only make system calls and touch memory that no lock of other
//! threads protects. A reader never returns from [`serve`], allocates nothing, takes no lock and
//! has no signal handler run: signals are blocked before the fork and stay so.

use std::{
    ffi::CStr,
    fs::File,
    io::{self, IoSlice, IoSliceMut, Read},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::FileExt},
    },
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{
        AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags, fstat, fstatfs, openat2, statx,
    },
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
        sockopt::{Timeout, set_socket_timeout},
    },
    time::Timespec,
};

use crate::{Addr, Pid, own::note, process::cgroup};

/// Maximum time that a reader may take for one answer.
pub(crate) const LIMIT: Duration = Duration::from_secs(1);
/// Maximum number of bytes in one answer.
const MAX_ANSWER: usize = 64 << 10;
/// Maximum number of stuck readers. With more, nothing is read until one of them returns.
const MAX_STUCK: usize = 64;
/// Maximum number of stuck readers of one tenant. With more, nothing else of that tenant is read.
const MAX_STUCK_OF_TENANT: usize = 4;
/// Maximum number of idle readers that are kept: as many threads read at a time.
const MAX_IDLE: usize = 4;
/// The kernel gives up on a path that changes while it is resolved (openat2(2), EAGAIN).
const TRIES: usize = 8;
/// `FUSE_SUPER_MAGIC`, fs/fuse/inode.c; also virtiofs.
const FUSE: u64 = 0x6573_5546;
/// Size of a request: `Call`, process number, address, length or flags, and a path.
const HEAD: usize = 24;
/// PATH_MAX.
const MAX_PATH: usize = 4096;
/// Maximum size of the list of mounts that is read.
const MAX_MOUNTS: u64 = 4 << 20;

/// Request to a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Call {
    /// Forks another reader, which serves the socket that comes with the request.
    Fork,
    /// Reads memory of the process whose `/proc/PID/mem` comes with the request.
    Memory,
    /// Reads on in the open file that comes with the request.
    Stream,
    /// Opens a path below the folder that comes with the request, as a process with that root would.
    Below,
    /// Opens a path of ours, one of /proc's links.
    Linked,
    /// Opens the regular file that the descriptor that comes with the request refers to, for reading.
    File,
}

/// Sockets of all readers.
#[derive(Debug)]
struct Pool {
    template: Option<OwnedFd>,
    idle: Vec<OwnedFd>,
    stuck: Vec<Stuck>,
}

/// A reader whose call has not returned within the limit.
#[derive(Debug)]
struct Stuck {
    pid: Pid,
    tenant: String,
    socket: OwnedFd,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { template: None, idle: Vec::new(), stuck: Vec::new() });

/// Starts the template, before this process has much memory. Without it, the first read does so.
///
/// # Errors
/// The errors of socketpair(2) and fork(2).
pub fn start_readers() -> io::Result<()> {
    pool().start()
}

fn pool() -> std::sync::MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    fn start(&mut self) -> io::Result<()> {
        if self.template.is_none() {
            let (ours, theirs) = pair()?;
            fork_reader(theirs)?;
            self.template = Some(ours);
        }
        Ok(())
    }

    /// Returns a reader for a request about a process.
    fn take(&mut self, pid: Pid) -> io::Result<OwnedFd> {
        if !self.stuck.is_empty() {
            self.stuck.retain(|stuck| !is_ready(&stuck.socket));
        }
        if self.refuses(pid, || cgroup::tenant_of(pid)) {
            return Err(late());
        }
        match self.idle.pop() {
            Some(reader) => Ok(reader),
            None => self.fork().or_else(|_| {
                // The template has ended: killed for want of memory, or by hand.
                self.template = None;
                self.fork()
            }),
        }
    }

    /// Returns whether a process is not read now, because it or its tenant holds too many readers.
    fn refuses(&self, pid: Pid, tenant: impl FnOnce() -> String) -> bool {
        if self.stuck.len() >= MAX_STUCK || self.stuck.iter().any(|stuck| stuck.pid == pid) {
            return true;
        }
        // The tenant is read from a file.
        if self.stuck.len() < MAX_STUCK_OF_TENANT {
            return false;
        }
        let tenant = tenant();
        let of_tenant = self.stuck.iter().filter(|stuck| stuck.tenant == tenant);
        of_tenant.count() >= MAX_STUCK_OF_TENANT
    }

    fn fork(&mut self) -> io::Result<OwnedFd> {
        self.start()?;
        let template = self.template.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        let (ours, theirs) = pair()?;
        send(template, Call::Fork, Pid(0), 0, 0, b"", Some(theirs.as_fd()))?;
        receive(template, &mut [])?;
        Ok(ours)
    }
}

/// Whether an answer of a reader has come, or the reader has ended.
fn is_ready(socket: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}

fn late() -> io::Error {
    let why = "no answer within 1 s: perhaps it is on a file system whose server does not answer";
    io::Error::new(io::ErrorKind::TimedOut, why)
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    set_socket_timeout(&ours, Timeout::Recv, Some(LIMIT))?;
    Ok((ours, theirs))
}

/// Has a reader make a call about a process. Returns the length of the answer, which is in `to`, and the
/// descriptor that came with it.
fn ask(
    call: Call,
    pid: Pid,
    (number, len): (u64, usize),
    path: &[u8],
    with: Option<BorrowedFd<'_>>,
    to: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let reader = pool().take(pid)?;
    let sent = send(&reader, call, pid, number, len, path, with);
    let answer = match sent {
        Ok(()) => receive(&reader, to),
        Err(e) => return Err(e),
    };
    match &answer {
        Err(e) if e.kind() == io::ErrorKind::TimedOut && e.raw_os_error().is_none() => {
            note(&format!("process {pid} is not read until its memory or file answers: {e}"));
            let tenant = cgroup::tenant_of(pid);
            pool().stuck.push(Stuck { pid, tenant, socket: reader });
        }
        // It has ended.
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {}
        _ => {
            let mut pool = pool();
            if pool.idle.len() < MAX_IDLE {
                pool.idle.push(reader);
            }
        }
    }
    answer
}

fn send(
    to: &OwnedFd,
    call: Call,
    pid: Pid,
    number: u64,
    len: usize,
    path: &[u8],
    with: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    if path.len() >= MAX_PATH || path.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&(call as u32).to_ne_bytes());
    head[4..8].copy_from_slice(&pid.0.to_ne_bytes());
    head[8..16].copy_from_slice(&number.to_ne_bytes());
    head[16..].copy_from_slice(&(len as u64).to_ne_bytes());
    Ok(message(to, &head, path, with)?)
}

/// Sends a message of two parts, with a descriptor if there is one. Allocates nothing.
fn message(
    to: impl AsFd,
    head: &[u8],
    body: &[u8],
    with: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds;
    if let Some(fd) = with {
        fds = [fd];
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let parts = [IoSlice::new(head), IoSlice::new(body)];
    sendmsg(to, &parts, &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// Receives a message in two parts. Allocates nothing.
fn received(
    from: impl AsFd,
    head: &mut [u8],
    body: &mut [u8],
) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(head), IoSliceMut::new(body)];
    let got = recvmsg(from, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok((got.bytes, fd))
}

fn receive(from: &OwnedFd, to: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut head = [0; 4];
    let answer = loop {
        match received(from, &mut head, to) {
            Err(Errno::INTR) => {}
            other => break other,
        }
    };
    let (len, fd) = match answer {
        Err(Errno::AGAIN) => return Err(late()),
        other => other?,
    };
    let len = len.checked_sub(head.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
    match i32::from_ne_bytes(head) {
        0 => Ok((len, fd)),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Fills `to` from the memory of a process, whose open `/proc/PID/mem` makes sure that it is the one
/// that was found.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] where the memory does not answer; EFAULT and EIO where it is not there;
/// [`io::ErrorKind::UnexpectedEof`] where the process has ended or runs another program.
pub(super) fn read_memory(pid: Pid, file: &File, addr: Addr, to: &mut [u8]) -> io::Result<()> {
    let mut at = addr.0;
    for part in to.chunks_mut(MAX_ANSWER) {
        let len = part.len();
        let (got, _) = ask(Call::Memory, pid, (at, len), b"", Some(file.as_fd()), part)?;
        if got < len {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        at = at.checked_add(len as u64).ok_or(io::ErrorKind::InvalidInput)?;
    }
    Ok(())
}

/// A file of /proc/PID that is read by a reader: the kernel takes the text of some out of the memory
/// of the process, or waits for the lock of its mappings.
#[derive(Debug)]
pub(crate) struct ProcFile {
    pid: Pid,
    file: File,
}

impl ProcFile {
    /// Opens `/proc/PID/NAME`.
    ///
    /// # Errors
    /// The errors of open(2).
    pub(crate) fn open(pid: Pid, name: &str) -> io::Result<Self> {
        Ok(Self { pid, file: File::open(format!("/proc/{pid}/{name}"))? })
    }
}

impl Read for ProcFile {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let len = to.len().min(MAX_ANSWER);
        let part = &mut to[..len];
        let with = Some(self.file.as_fd());
        ask(Call::Stream, self.pid, (0, len), b"", with, part).map(|(got, _)| got)
    }
}

/// Opens a path below a root as a process with that root would: absolute links and `..` stay inside, and
/// none of /proc's own links is followed.
///
/// # Errors
/// The errors of openat2(2); [`io::ErrorKind::TimedOut`] where the file system does not answer.
pub(super) fn open_below(
    pid: Pid,
    root: &OwnedFd,
    path: &Path,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    let path = path.as_os_str().as_bytes();
    let number = u64::from(flags.bits());
    opened(ask(Call::Below, pid, (number, 0), path, Some(root.as_fd()), &mut [])?)
}

/// Opens one of /proc's links to a file of a process, if it is a regular file.
///
/// # Errors
/// As for [`open_file`].
pub(super) fn open_linked(pid: Pid, link: &Path) -> io::Result<File> {
    let path = link.as_os_str().as_bytes();
    open_file(pid, &opened(ask(Call::Linked, pid, (0, 0), path, None, &mut [])?)?)
}

/// Opens the very file that a descriptor of a path refers to, for reading, if it is a regular file, and
/// not on FUSE: others read from it directly, which may then wait for ever.
///
/// # Errors
/// The errors of open(2); an error for anything but a regular file; [`io::ErrorKind::TimedOut`] where the file
/// system does not answer.
pub(super) fn open_file(pid: Pid, found: &OwnedFd) -> io::Result<File> {
    let open = |allow_fuse: bool| {
        let (number, with) = (u64::from(allow_fuse), Some(found.as_fd()));
        ask(Call::File, pid, (number, 0), b"", with, &mut []).and_then(opened)
    };
    let mut result = open(false);
    let is_fuse = |e: &io::Error| e.raw_os_error() == Some(libc::EREMOTE);
    if result.as_ref().is_err_and(is_fuse) && is_virtiofs(pid, found).unwrap_or_default() {
        result = open(true);
    }
    result.map(File::from).map_err(|e| match e.raw_os_error() {
        Some(libc::EMEDIUMTYPE) => io::Error::other("it is not a regular file"),
        Some(libc::EREMOTE) => io::Error::other(
            "it is on a FUSE file system, whose server could stop us for ever, and is not read",
        ),
        _ => e,
    })
}

/// Whether a file is on virtiofs: the protocol is that of FUSE, but the server is the virtual machine's host.
/// Source: proc(5), `/proc/PID/mountinfo`.
fn is_virtiofs(pid: Pid, found: &OwnedFd) -> io::Result<bool> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(found, c"", flags, StatxFlags::empty())?;
    let device = format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor);
    let mut text = String::new();
    ProcFile::open(pid, "mountinfo")?.take(MAX_MOUNTS).read_to_string(&mut text)?;
    Ok(text.lines().any(|line| {
        let kind = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next());
        line.split(' ').nth(2) == Some(&device) && kind == Some("virtiofs")
    }))
}

fn opened((_, fd): (usize, Option<OwnedFd>)) -> io::Result<OwnedFd> {
    fd.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Forks a reader that serves a socket. Returns in the parent only.
fn fork_reader(socket: OwnedFd) -> Result<(), Errno> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets live here; the first is filled before it is used. The child only calls `serve`.
    let child = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
        let child = libc::fork();
        if child == 0 {
            serve(socket);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        child
    };
    if child < 0 {
        Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    } else {
        Ok(())
    }
}

/// Answers requests until the other end of the socket is closed.
fn serve(socket: OwnedFd) -> ! {
    keep_only(&socket);
    // SAFETY: constants and a string that lives for ever; children of the template are reaped by the kernel.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"jvmprobe-reader".as_ptr());
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
    }
    let mut head = [0; HEAD];
    let mut path = [0; MAX_PATH + 1];
    let mut body = [0; MAX_ANSWER];
    loop {
        path.fill(0);
        let request = received(&socket, &mut head, &mut path[..MAX_PATH]);
        let Ok((HEAD.., with)) = request else { exit() };
        let answer = make(&head, &path, with, &mut body);
        let (error, len, fd) = match answer {
            Ok((len, fd)) => (0, len, fd),
            Err(e) => (e.raw_os_error(), 0, None),
        };
        let fd = fd.as_ref().map(AsFd::as_fd);
        if message(&socket, &error.to_ne_bytes(), &body[..len], fd).is_err() {
            exit();
        }
    }
}

fn exit() -> ! {
    // SAFETY: ends this process without running anything of the one that it was forked from.
    unsafe { libc::_exit(0) }
}

/// Closes all descriptors but one, so that a stuck reader holds no file, probe or pipe of ours.
fn keep_only(socket: &OwnedFd) {
    let socket = socket.as_raw_fd().cast_unsigned();
    for (first, last) in [(0, socket.wrapping_sub(1)), (socket + 1, u32::MAX)] {
        if first > last || last == u32::MAX && first == 0 {
            continue;
        }
        // SAFETY: nothing in this process uses these descriptors any more.
        let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        if result != 0 {
            // Before Linux 5.9: as many as one may have.
            for fd in first..=last.min(1 << 16) {
                // SAFETY: nothing in this process uses this descriptor any more.
                unsafe { libc::close(fd.cast_signed()) };
            }
        }
    }
}

fn make(
    head: &[u8; HEAD],
    path: &[u8],
    with: Option<OwnedFd>,
    body: &mut [u8; MAX_ANSWER],
) -> Result<(usize, Option<OwnedFd>), Errno> {
    let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let (call, pid, number) = (word(0), word(4), long(8));
    let len = usize::try_from(long(16)).map_or(0, |len| len.min(MAX_ANSWER));
    let path = CStr::from_bytes_until_nul(path).map_err(|_| Errno::NAMETOOLONG)?;
    if call == Call::Linked as u32 {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        return Ok((0, Some(rustix::fs::open(path, flags, Mode::empty())?)));
    }
    let with = with.ok_or(Errno::BADF)?;
    if call == Call::Fork as u32 {
        return fork_another(with).map(|()| (0, None));
    }
    if call == Call::Memory as u32 {
        return memory(pid, with, number, &mut body[..len]).map(|len| (len, None));
    }
    if call == Call::Stream as u32 {
        let mut got = 0;
        while got < len {
            match rustix::io::read(&with, &mut body[got..len])? {
                0 => break,
                some => got += some,
            }
        }
        return Ok((got, None));
    }
    if call == Call::Below as u32 {
        let flags = OFlags::from_bits_retain(number as u32) | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let open = || openat2(&with, path, flags, Mode::empty(), resolve);
        let mut opened = open();
        for _ in 1..TRIES {
            match opened {
                Err(Errno::AGAIN) => opened = open(),
                _ => break,
            }
        }
        return opened.map(|fd| (0, Some(fd)));
    }
    reopen(&with, number == 1).map(|fd| (0, Some(fd)))
}

/// Forks a reader from the template.
fn fork_another(socket: OwnedFd) -> Result<(), Errno> {
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: constants.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            serve(socket)
        }
        child if child < 0 => Err(Errno::AGAIN),
        _ => Ok(()),
    }
}

/// Reads memory of a process, and makes sure that it still has the memory that was opened.
fn memory(pid: u32, of: OwnedFd, addr: u64, to: &mut [u8]) -> Result<usize, Errno> {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: to.len() };
    // SAFETY: the kernel writes at most `to.len()` bytes into `to`, and checks the other address itself.
    let got = unsafe { libc::process_vm_readv(pid.cast_signed(), &local, 1, &remote, 1, 0) };
    let error = io::Error::last_os_error();
    // Nothing is mapped at 0 (vm.mmap_min_addr), so this fails; but of memory that was given back, it reads 0
    // bytes (fs/proc/base.c, mem_rw): then the process has ended, or runs another program.
    if matches!(File::from(of).read_at(&mut [0], 0), Ok(0)) {
        return Err(Errno::SRCH);
    }
    usize::try_from(got).map_err(|_| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Opens the file of a descriptor of a path for reading.
fn reopen(found: &OwnedFd, allow_fuse: bool) -> Result<OwnedFd, Errno> {
    if !allow_fuse && fstatfs(found)?.f_type as u64 == FUSE {
        return Err(Errno::REMOTE);
    }
    if FileType::from_raw_mode(fstat(found)?.st_mode) != FileType::RegularFile {
        return Err(Errno::MEDIUMTYPE);
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    // Linux keeps to the file by this name, whatever has become of its path.
    let mut name = [0; 32];
    let name = link_of(found, &mut name).ok_or(Errno::NAMETOOLONG)?;
    rustix::fs::open(name, flags, Mode::empty())
}

/// Writes `/proc/self/fd/N`. Allocates nothing.
fn link_of<'a>(fd: &OwnedFd, to: &'a mut [u8; 32]) -> Option<&'a CStr> {
    use io::Write;
    let mut rest = &mut to[..];
    write!(rest, "/proc/self/fd/{}\0", fd.as_raw_fd()).ok()?;
    CStr::from_bytes_until_nul(to).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_parts_and_errors_are_kept() {
        let own = Pid(std::process::id());
        let file = File::open("/proc/self/mem").unwrap();
        let bytes: Vec<u8> = (0..3 * MAX_ANSWER + 5).map(|i| i as u8).collect();
        let at = Addr(bytes.as_ptr() as u64);
        let mut read = vec![0; bytes.len()];
        read_memory(own, &file, at, &mut read).unwrap();
        assert_eq!(read, bytes);
        let nowhere = read_memory(own, &file, Addr(8), &mut [0; 8]).unwrap_err();
        assert_eq!(nowhere.raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    fn memory_of_a_process_that_has_ended_or_execed_is_refused() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read line; exec sleep 60"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = Pid(child.id());
        let maps = || crate::process::maps::of(pid, |line| line.ends_with(b"[stack]\n")).unwrap();
        while maps().is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        // sh has its final stack by then.
        std::thread::sleep(Duration::from_millis(100));
        let file = File::open(format!("/proc/{pid}/mem")).unwrap();
        let stack = |maps: Vec<procfs::process::MemoryMap>| Addr(maps[0].address.1 - 16);
        read_memory(pid, &file, stack(maps()), &mut [0; 8]).unwrap();
        drop(child.stdin.take());
        // A process in the middle of exec has no stack.
        let mut after = Ok(());
        for _ in 0..400 {
            if after.is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
            after = maps().first().map_or(Ok(()), |map| {
                read_memory(pid, &file, Addr(map.address.1 - 16), &mut [0; 8])
            });
        }
        assert_eq!(after.unwrap_err().raw_os_error(), Some(libc::ESRCH));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_tenant_with_many_stuck_readers_is_refused_and_others_are_not() {
        let mut pool = Pool { template: None, idle: Vec::new(), stuck: Vec::new() };
        for pid in 1..=MAX_STUCK_OF_TENANT as u32 {
            assert!(!pool.refuses(Pid(99), || "pod/noisy".into()));
            let (socket, _) = pair().unwrap();
            pool.stuck.push(Stuck { pid: Pid(pid), tenant: "pod/noisy".into(), socket });
            assert!(pool.refuses(Pid(pid), || unreachable!()));
        }
        assert!(pool.refuses(Pid(99), || "pod/noisy".into()));
        assert!(!pool.refuses(Pid(99), || "pod/quiet".into()));
    }

    #[test]
    fn files_are_opened_if_they_are_regular() {
        let own = Pid(std::process::id());
        let link = Path::new("/proc/self/exe");
        assert!(open_linked(own, link).unwrap().metadata().unwrap().len() > 4096);
        let device = open_linked(own, Path::new("/dev/null")).unwrap_err();
        assert!(device.to_string().contains("regular"), "{device}");
        assert_eq!(open_linked(own, Path::new("/nothing")).unwrap_err().raw_os_error(), Some(2));
    }
}

//! Reader processes: child processes that access a target's memory and files on behalf of this process.
//!
//! A page or a file of a target may be backed by a server that never answers: a FUSE server (any tenant may
//! run one), a dead NFS server, or a handler of userfaultfd(2). The kernel then waits inside the system call.
//! In the case of FUSE, even SIGKILL does not end the wait (fs/fuse/dev.c, `request_wait_answer`). A process
//! with one such thread cannot exit, so it cannot be restarted either. No check beforehand helps, because the
//! target can change its mappings between the check and the read. So a reader makes these calls, and the
//! caller waits for the reader's answer until the reader has spent a second in the call (`reader_wait`). A reader that
//! takes longer is abandoned: while that reader is stuck, all other reads of its target are rejected immediately. When its
//! call returns, the reader ends, and the target can be read again.
//!
//! Memory is read by process_vm_readv(2). Unlike a read of `/proc/PID/mem`, this call does not hold the
//! target's mmap_lock while a page is fetched. Holding that lock would block the target's own mmap(2).
//!
//! One reader, the template, is forked from this process. This is done as early as possible, while this
//! process has little memory that the template would share. The other readers are forked from the template on
//! request. When this process ends, all readers end: their sockets are closed, and the end of the template
//! kills the others (`PR_SET_PDEATHSIG`).
//! See `sys::forked` for soundness.

use std::{
    cell::Cell,
    ffi::CStr,
    fs::File,
    io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags, fstat, fstatfs, openat2},
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

use crate::{
    Addr, Pid,
    process::{
        cgroup,
        file_system::{self, Access},
        populated,
        reader_wait::{Begin, MAX_WAIT, Outcome, Scheduling},
    },
    sys::{
        budget::Budget,
        channel::{self, MAX_MESSAGE},
        forked::{self, exit},
    },
};

/// Maximum number of blocks in a memory request, and maximum total size of these blocks in bytes. A large
/// answer consists of several messages.
pub(crate) const MAX_BLOCKS: usize = 256;
pub(crate) const MAX_BYTES: usize = 1 << 20;
/// Maximum number of stuck readers. At this number, nothing is read until one of them returns.
const MAX_STUCK: usize = 64;
/// Maximum number of stuck readers of one tenant. At this number, no process of that tenant is read.
const MAX_STUCK_OF_TENANT: usize = 4;
/// Maximum number of idle readers kept, which is about the number of threads that read simultaneously.
const MAX_IDLE: usize = 4;
/// Number of attempts to resolve a path; the kernel fails with EAGAIN if the path changes meanwhile (openat2(2)).
const TRIES: usize = 8;
/// Size of a request's head: `Call`, PID, flags or number of blocks, length of a block or of an answer. A path or the
/// addresses of blocks follow.
const REQUEST_HEAD: usize = 24;
/// Size of the head of an answer: an error number, the number of page faults, and one bit per block, which is set if the block
/// cannot be read.
const ANSWER_HEAD: usize = 8 + MAX_BLOCKS / 8;
/// PATH_MAX.
const MAX_PATH: usize = 4096;

/// Request to a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Call {
    /// Forks another reader, which serves the socket that comes with the request.
    Fork,
    /// Reads blocks of memory of a process. The descriptor of its `/proc/PID/mem` comes with this request or
    /// came with an earlier one.
    Memory,
    /// Continues reading the open file that comes with the request.
    Stream,
    /// Opens a path below the folder that comes with the request, as a process whose root is that folder
    /// would.
    Below,
    /// Opens a path in our own file system. It must be a link in /proc.
    Linked,
    /// Opens, for reading, the regular file that the O_PATH descriptor in the request refers to.
    File,
    /// Returns the kind of the file system of the descriptor in the request.
    FileSystem,
    /// Opens a file like `File`, keeps it open, maps its first page, and returns the address.
    Map,
    /// Unmaps the file of `Map` and closes it, or returns it if the request says so.
    Unmap,
}

/// Sockets of all readers.
#[derive(Debug)]
struct Pool {
    template: Option<Reader>,
    idle: Vec<Reader>,
    stuck: Vec<Stuck>,
}

/// A reader process.
#[derive(Debug)]
struct Reader {
    socket: OwnedFd,
    scheduling: Scheduling,
    /// Number of the [`MemoryFile`] whose descriptor the reader holds.
    memory: Option<u64>,
}

/// A reader whose call has not returned within the limit.
#[derive(Debug)]
struct Stuck {
    pid: Pid,
    /// `None` if the host is overloaded, so that the tenant is not to blame.
    tenant: Option<Arc<str>>,
    socket: OwnedFd,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { template: None, idle: Vec::new(), stuck: Vec::new() });

/// Starts the template reader. Should be called before this process uses much memory. If it is not called,
/// the first read starts the template.
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
            let (ours, theirs) = channel::pair()?;
            let template = forked::fork(c"jvmprobe-reader", theirs, serve)?;
            let scheduling = Scheduling::of(Pid(template));
            self.template = Some(Reader { socket: ours, scheduling, memory: None });
        }
        Ok(())
    }

    /// Returns a reader for a request about a process, preferably one that holds the descriptor of `memory`.
    fn take(&mut self, pid: Pid, memory: Option<u64>) -> io::Result<Reader> {
        if !self.stuck.is_empty() {
            self.stuck.retain(|stuck| !channel::is_ready(&stuck.socket));
        }
        if self.refuses(pid, || cgroup::tenant_of(pid)) {
            return Err(blocked());
        }
        let last = self.idle.len().checked_sub(1);
        let fitting = self.idle.iter().position(|reader| reader.memory == memory).or(last);
        if let Some(reader) = fitting {
            return Ok(self.idle.swap_remove(reader));
        }
        self.fork().or_else(|_| {
            // The template has ended, for example killed by the OOM killer or by a user.
            self.template = None;
            self.fork()
        })
    }

    /// Returns whether reads of a process are rejected. They are rejected while a reader of that process is
    /// stuck, and while too many readers of its tenant or of all processes are stuck.
    fn refuses(&self, pid: Pid, tenant: impl FnOnce() -> Arc<str>) -> bool {
        if self.stuck.len() >= MAX_STUCK || self.stuck.iter().any(|stuck| stuck.pid == pid) {
            return true;
        }
        // Determining the tenant requires reading a file, so it is skipped if the result cannot matter.
        if self.stuck.len() < MAX_STUCK_OF_TENANT {
            return false;
        }
        let tenant = tenant();
        let of_tenant = self.stuck.iter().filter(|stuck| stuck.tenant.as_ref() == Some(&tenant));
        of_tenant.count() >= MAX_STUCK_OF_TENANT
    }

    fn fork(&mut self) -> io::Result<Reader> {
        self.start()?;
        let template = self.template.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        let (socket, theirs) = channel::pair()?;
        let mut pid = [0; 4];
        let begin = template.scheduling.begin();
        send(&template.socket, Call::Fork, Pid(0), (0, 0), b"", Some(theirs.as_fd()))?;
        receive(template, begin, &mut pid, &mut Report::default())?;
        let scheduling = Scheduling::of(Pid(u32::from_ne_bytes(pid)));
        Ok(Reader { socket, scheduling, memory: None })
    }
}

thread_local! {
    /// Time after which this thread's reads fail; see [`within`].
    static UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Limits the total time of all reads within a function: reads that begin after `limit` fail with
/// [`io::ErrorKind::TimedOut`]. Without it, each of a thousand reads could take almost a second.
pub(crate) fn within<T>(limit: Duration, read: impl FnOnce() -> T) -> T {
    let (before, until) = (UNTIL.get(), Instant::now() + limit);
    // An inner limit does not extend the outer one.
    UNTIL.set(Some(before.map_or(until, |before| before.min(until))));
    let read = read();
    UNTIL.set(before);
    read
}

fn blocked() -> io::Error {
    let why = "no answer within 1 s; perhaps the server of a file system that the process uses does \
               not answer, or its threads keep its mmap_lock (mmap, munmap, mprotect in a loop)";
    io::Error::new(io::ErrorKind::TimedOut, why)
}

fn overloaded() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, Overloaded)
}

/// The reason of an error that says nothing about the process, unlike [`blocked`].
#[derive(Debug, thiserror::Error)]
#[error("no answer within {} s, because the host is overloaded", MAX_WAIT.as_secs())]
struct Overloaded;

/// Report of a reader about the blocks that it has read, beside their content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Report {
    /// Bitmap of blocks that cannot be read.
    unread: [u8; MAX_BLOCKS / 8],
    /// Number of page faults so far: pages of the process that were not present.
    faults: u32,
}

impl Report {
    fn set_unread(&mut self, block: usize) {
        if let Some(byte) = self.unread.get_mut(block / 8) {
            *byte |= 1 << (block % 8);
        }
    }

    fn is_unread(&self, block: usize) -> bool {
        self.unread.get(block / 8).is_some_and(|byte| byte >> (block % 8) & 1 != 0)
    }
}

/// Runs `talk` with a reader for requests about a process. Each message may take at most a second.
fn with_reader<T>(
    pid: Pid,
    memory: Option<u64>,
    talk: impl FnOnce(&mut Reader) -> io::Result<T>,
) -> io::Result<T> {
    if UNTIL.get().is_some_and(|until| Instant::now() > until) {
        let why = "reading its memory or files takes too long";
        return Err(io::Error::new(io::ErrorKind::TimedOut, why));
    }
    let mut reader = pool().take(pid, memory)?;
    let answer = talk(&mut reader);
    match &answer {
        Err(e) if e.kind() == io::ErrorKind::TimedOut && e.raw_os_error().is_none() => {
            let is_overloaded = e.get_ref().is_some_and(|why| why.is::<Overloaded>());
            let tenant = (!is_overloaded).then(|| cgroup::tenant_of(pid));
            log::warn!(
                "process {pid} is not read until a read of its memory or files returns: {e}"
            );
            pool().stuck.push(Stuck { pid, tenant, socket: reader.socket });
        }
        // The reader has ended, or did not get the request.
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

/// Sends a request about a process to a reader, and receives the answer into `to`. Returns the length of the
/// answer and the descriptor that came with it.
fn ask(
    call: Call,
    pid: Pid,
    (argument, len): (u64, usize),
    path: &[u8],
    with: Option<BorrowedFd<'_>>,
    to: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    if path.len() >= MAX_PATH || path.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    with_reader(pid, None, |reader| reader.ask(call, pid, (argument, len), path, with, to))
}

impl Reader {
    /// Sends a request, and receives its answer of one message.
    fn ask(
        &self,
        call: Call,
        pid: Pid,
        lengths: (u64, usize),
        path: &[u8],
        with: Option<BorrowedFd<'_>>,
        to: &mut [u8],
    ) -> io::Result<(usize, Option<OwnedFd>)> {
        let begin = self.scheduling.begin();
        send(&self.socket, call, pid, lengths, path, with)?;
        receive(self, begin, to, &mut Report::default())
    }
}

/// Sends a request. If that fails, returns [`io::ErrorKind::UnexpectedEof`], as if the reader had ended.
fn send(
    to: &OwnedFd,
    call: Call,
    pid: Pid,
    (argument, len): (u64, usize),
    body: &[u8],
    with: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut head = [0; REQUEST_HEAD];
    head[..4].copy_from_slice(&(call as u32).to_ne_bytes());
    head[4..8].copy_from_slice(&pid.0.to_ne_bytes());
    head[8..16].copy_from_slice(&argument.to_ne_bytes());
    head[16..].copy_from_slice(&(len as u64).to_ne_bytes());
    let parts = [IoSlice::new(&head), IoSlice::new(body)];
    channel::send(to, &parts, with.as_slice()).map_err(|_| io::ErrorKind::UnexpectedEof.into())
}

/// Receives one message of an answer. Returns its length without the head, and the descriptor that came with it.
/// Adds what the message reports to `report`.
fn receive(
    from: &Reader,
    begin: Begin,
    to: &mut [u8],
    report: &mut Report,
) -> io::Result<(usize, Option<OwnedFd>)> {
    match from.scheduling.wait(&from.socket, begin)? {
        Outcome::Ready => {}
        Outcome::Blocked => return Err(blocked()),
        Outcome::Overloaded => return Err(overloaded()),
    }
    let mut head = [0; ANSWER_HEAD];
    let mut parts = [IoSliceMut::new(&mut head), IoSliceMut::new(to)];
    let (len, files) = channel::receive_files(&from.socket, &mut parts).map_err(|e| match e {
        Errno::PIPE | Errno::CONNRESET => io::ErrorKind::UnexpectedEof.into(),
        other => io::Error::from(other),
    })?;
    let len = len.checked_sub(head.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
    let (error, rest) = head.split_first_chunk().ok_or(io::ErrorKind::UnexpectedEof)?;
    let (faults, blocks) = rest.split_first_chunk().ok_or(io::ErrorKind::UnexpectedEof)?;
    report.unread.iter_mut().zip(blocks).for_each(|(all, new)| *all |= new);
    report.faults = report.faults.max(u32::from_ne_bytes(*faults));
    match i32::from_ne_bytes(*error) {
        0 => Ok((len, files.into_iter().flatten().next())),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Memory of a process. A reader uses the open `/proc/PID/mem` to check that the process still exists and
/// runs the same program.
#[derive(Debug)]
pub(super) struct MemoryFile {
    pid: Pid,
    file: File,
    /// Unique number of this object.
    number: u64,
}

impl MemoryFile {
    /// Opens the memory of a process.
    ///
    /// # Errors
    /// The errors of open(2).
    pub(super) fn open(pid: Pid) -> io::Result<Self> {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let file = File::open(format!("/proc/{pid}/mem"))?;
        Ok(Self { pid, file, number: OPENED.fetch_add(1, Ordering::Relaxed) })
    }

    /// Returns the process.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Reads blocks of equal size consecutively into `to`. Returns for each block whether it could be read.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if the memory does not answer; ESRCH if the process has ended or runs
    /// another program; [`io::ErrorKind::InvalidInput`] for blocks that are larger than [`MAX_BYTES`].
    pub(super) fn read_blocks(
        &self,
        blocks: &[Addr],
        size: usize,
        to: &mut [u8],
    ) -> io::Result<Vec<bool>> {
        if size == 0 || size > MAX_BYTES || to.len() != blocks.len().saturating_mul(size) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut read = Vec::with_capacity(blocks.len());
        let at_once = (MAX_BYTES / size).min(MAX_BLOCKS);
        for (blocks, to) in blocks.chunks(at_once).zip(to.chunks_mut(at_once * size)) {
            let report = self.request(blocks, size, to)?;
            read.extend((0..blocks.len()).map(|block| !report.is_unread(block)));
        }
        Ok(read)
    }

    fn request(&self, blocks: &[Addr], size: usize, to: &mut [u8]) -> io::Result<Report> {
        if populated::is_full(self.pid) {
            let why = "reading it takes too much of the kernel's memory, because its pages are not present";
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, why));
        }
        let mut body = [0; 8 * MAX_BLOCKS];
        for (bytes, addr) in body.as_chunks_mut::<8>().0.iter_mut().zip(blocks) {
            *bytes = addr.0.to_ne_bytes();
        }
        let body = &body[..8 * blocks.len()];
        with_reader(self.pid, Some(self.number), |reader| {
            let has_file = reader.memory == Some(self.number);
            let with = (!has_file).then(|| self.file.as_fd());
            let lengths = (blocks.len() as u64, size);
            let mut begin = reader.scheduling.begin();
            send(&reader.socket, Call::Memory, self.pid, lengths, body, with)?;
            reader.memory = Some(self.number);
            let mut report = Report::default();
            for part in to.chunks_mut(MAX_MESSAGE) {
                let (len, _) = receive(reader, begin, part, &mut report)?;
                begin = reader.scheduling.begin();
                if len < part.len() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            if report.faults > 0 {
                let share = || Budget::of_process().share(&cgroup::tenant_of(self.pid));
                populated::add(self.pid, blocks, size, share);
            }
            Ok(report)
        })
    }
}

/// A file in /proc/PID that is read by a reader process, because for some of these files the kernel reads the
/// target's memory or waits for the lock of its mappings.
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

    /// Opens `/proc/PID/NAME` for reading from an offset on.
    ///
    /// # Errors
    /// The errors of open(2) and lseek(2).
    pub(super) fn open_at(pid: Pid, name: &str, offset: u64) -> io::Result<Self> {
        let mut opened = Self::open(pid, name)?;
        opened.file.seek(SeekFrom::Start(offset))?;
        Ok(opened)
    }
}

impl Read for ProcFile {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let len = to.len().min(MAX_MESSAGE);
        let part = &mut to[..len];
        let with = Some(self.file.as_fd());
        ask(Call::Stream, self.pid, (0, len), b"", with, part).map(|(got, _)| got)
    }
}

/// Opens a path below a root as a process with that root would: absolute links and `..` stay inside. Magic links of
/// /proc are not followed.
///
/// # Errors
/// The errors of openat2(2); [`io::ErrorKind::TimedOut`] if the file system does not answer.
pub(super) fn open_below(
    pid: Pid,
    root: &OwnedFd,
    path: &Path,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    let path = path.as_os_str().as_bytes();
    let argument = u64::from(flags.bits());
    opened(ask(Call::Below, pid, (argument, 0), path, Some(root.as_fd()), &mut [])?)
}

/// Opens the file to which a link in /proc leads, if it is a regular file.
///
/// # Errors
/// Returns the errors of [`open_file`].
pub(super) fn open_linked(pid: Pid, link: &Path) -> io::Result<File> {
    let path = link.as_os_str().as_bytes();
    open_file(pid, &opened(ask(Call::Linked, pid, (0, 0), path, None, &mut [])?)?)
}

/// Opens exactly the file that an O_PATH descriptor refers to, for reading. It must be a regular file, and reading it must
/// not block: see `file_system`.
///
/// # Errors
/// The errors of open(2); an error for anything but a regular file; [`io::ErrorKind::TimedOut`] if the file
/// system does not answer.
pub(super) fn open_file(pid: Pid, found: &OwnedFd) -> io::Result<File> {
    let result = match file_system::access(pid, found, file_system(pid, found)?)? {
        Access::Direct => ask(Call::File, pid, (0, 0), b"", Some(found.as_fd()), &mut []),
        Access::Overlay => open_on_overlay(pid, found),
    };
    result.and_then(opened).map(File::from).map_err(|e| match e.raw_os_error() {
        Some(libc::EMEDIUMTYPE) => io::Error::other("it is not a regular file"),
        _ => e,
    })
}

/// Opens a file on an overlay if the file system below cannot block. Until that is known, only the reader has the file
/// open: to close a file on FUSE waits for the server, too.
fn open_on_overlay(pid: Pid, found: &OwnedFd) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut checked = Ok(());
    let answer = with_reader(pid, None, |reader| {
        let mut at = [0; 8];
        reader.ask(Call::Map, pid, (0, 0), b"", Some(found.as_fd()), &mut at)?;
        checked = file_system::check_below(reader.scheduling.pid(), Addr(u64::from_ne_bytes(at)));
        let keep = u64::from(checked.is_ok());
        reader.ask(Call::Unmap, pid, (keep, 0), b"", None, &mut [])
    })?;
    checked.map(|()| answer)
}

/// Returns the kind of the file system of a file or folder, by the number of statfs(2).
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] if the file system does not answer.
pub(super) fn file_system(pid: Pid, found: &OwnedFd) -> io::Result<u64> {
    let mut magic = [0; 8];
    ask(Call::FileSystem, pid, (0, 0), b"", Some(found.as_fd()), &mut magic)?;
    Ok(u64::from_ne_bytes(magic))
}

fn opened((_, fd): (usize, Option<OwnedFd>)) -> io::Result<OwnedFd> {
    fd.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Answers requests until the other end of the socket is closed.
fn serve(socket: OwnedFd) -> ! {
    // `SIG_IGN` makes the kernel reap the children of the template.
    // SAFETY: the arguments are constants.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let (mut memory, mut mapped) = (None, None);
    let mut head = [0; REQUEST_HEAD];
    let mut body = [0; MAX_PATH + 1];
    let mut answer = [0; MAX_MESSAGE];
    loop {
        body.fill(0);
        let mut parts = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut body[..MAX_PATH])];
        let received = channel::receive_files(&socket, &mut parts);
        let Ok((REQUEST_HEAD.., [with, ..])) = received else { exit() };
        let request = Request::new(&head, &body);
        let mut report = Report::default();
        let result = if request.call == Call::Memory as u32 {
            memory = with.or(memory);
            let of = memory.as_ref();
            of.map_or(Err(Errno::BADF), |of| {
                read_memory(&socket, &request, of, &mut answer, &mut report)
            })
            .map(|len| (len, None))
        } else if request.call == Call::Map as u32 {
            map_file(with).map(|(file, at)| {
                answer[..8].copy_from_slice(&(at as u64).to_ne_bytes());
                mapped = Some((file, at));
                (8, None)
            })
        } else if request.call == Call::Unmap as u32 {
            let file = mapped.take().map(|(file, at)| {
                // SAFETY: nothing refers to the mapping.
                let _ = unsafe { munmap(at, 1) };
                file
            });
            // A file that is not returned is closed here, before the answer, so that a wait shows.
            Ok((0, file.filter(|_| request.argument != 0)))
        } else {
            handle_request(&request, with, &mut answer)
        };
        let (error, len, fd) = match result {
            Ok((len, fd)) => (0, len, fd),
            Err(e) => (e.raw_os_error(), 0, None),
        };
        reply(&socket, error, &report, &answer[..len], fd.as_ref().map(AsFd::as_fd));
    }
}

/// Sends one message of an answer.
fn reply(to: &OwnedFd, error: i32, report: &Report, answer: &[u8], with: Option<BorrowedFd<'_>>) {
    let (error, faults) = (error.to_ne_bytes(), report.faults.to_ne_bytes());
    let head = [&error[..], &faults, &report.unread].map(IoSlice::new);
    let parts = [head[0], head[1], head[2], IoSlice::new(answer)];
    if channel::send(to, &parts, with.as_slice()).is_err() {
        exit();
    }
}

/// A parsed request.
struct Request<'a> {
    call: u32,
    pid: u32,
    argument: u64,
    len: usize,
    /// Path or addresses, followed by zeros.
    body: &'a [u8; MAX_PATH + 1],
}

impl<'a> Request<'a> {
    fn new(head: &[u8; REQUEST_HEAD], body: &'a [u8; MAX_PATH + 1]) -> Self {
        let word =
            |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let len = usize::try_from(long(16)).unwrap_or(usize::MAX);
        Self { call: word(0), pid: word(4), argument: long(8), len, body }
    }
}

fn handle_request(
    request: &Request<'_>,
    with: Option<OwnedFd>,
    answer: &mut [u8; MAX_MESSAGE],
) -> Result<(usize, Option<OwnedFd>), Errno> {
    let &Request { call, argument, len, body, .. } = request;
    let path = CStr::from_bytes_until_nul(body).map_err(|_| Errno::NAMETOOLONG)?;
    if call == Call::Linked as u32 {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        return Ok((0, Some(rustix::fs::open(path, flags, Mode::empty())?)));
    }
    let with = with.ok_or(Errno::BADF)?;
    if call == Call::Fork as u32 {
        let pid = fork_another(with)?.0.to_ne_bytes();
        answer[..pid.len()].copy_from_slice(&pid);
        return Ok((pid.len(), None));
    }
    if call == Call::Stream as u32 {
        let len = len.min(MAX_MESSAGE);
        let mut got = 0;
        while got < len {
            match rustix::io::read(&with, &mut answer[got..len])? {
                0 => break,
                some => got += some,
            }
        }
        return Ok((got, None));
    }
    if call == Call::Below as u32 {
        let flags = OFlags::from_bits_retain(argument as u32) | OFlags::CLOEXEC;
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
    if call == Call::FileSystem as u32 {
        let magic = (fstatfs(&with)?.f_type as u64).to_ne_bytes();
        answer[..magic.len()].copy_from_slice(&magic);
        return Ok((magic.len(), None));
    }
    reopen(&with).map(|fd| (0, Some(fd)))
}

/// Forks a reader from the template.
fn fork_another(socket: OwnedFd) -> Result<Pid, Errno> {
    // SAFETY: this process has only one thread.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: the arguments are constants.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            serve(socket)
        }
        child => u32::try_from(child).map(Pid).map_err(|_| Errno::AGAIN),
    }
}

/// Reads blocks of memory, and checks that the process still has the address space that was opened. Sends all
/// messages of the answer except the last one, whose length it returns.
fn read_memory(
    socket: &OwnedFd,
    request: &Request<'_>,
    of: &OwnedFd,
    answer: &mut [u8; MAX_MESSAGE],
    report: &mut Report,
) -> Result<usize, Errno> {
    let (size, count) = (request.len, request.argument as usize);
    if size == 0 || count > MAX_BLOCKS || size.checked_mul(count).is_none_or(|n| n > MAX_BYTES) {
        return Err(Errno::INVAL);
    }
    let mut blocks = [0; MAX_BLOCKS];
    for (block, bytes) in blocks.iter_mut().zip(request.body.as_chunks::<8>().0) {
        *block = u64::from_ne_bytes(*bytes);
    }
    let blocks = &blocks[..count];
    let (mut at, end) = (0, size * count);
    let faults_before = page_faults();
    loop {
        let len = MAX_MESSAGE.min(end - at);
        read_part(request.pid, blocks, size, at, &mut answer[..len], report)?;
        report.faults = page_faults().wrapping_sub(faults_before) as u32;
        at += len;
        if at == end {
            // A read at address 0, where nothing is mapped (vm.mmap_min_addr), normally fails. If the address space was
            // freed, it returns 0 bytes (fs/proc/base.c, mem_rw): the process has ended or runs another program.
            return match rustix::io::pread(of, &mut [0], 0) {
                Ok(0) => Err(Errno::SRCH),
                _ => Ok(len),
            };
        }
        reply(socket, 0, report, &answer[..len], None);
    }
}

/// Returns the number of page faults of this process, which includes those that its reads of other processes cause
/// (mm_account_fault() of mm/memory.c).
fn page_faults() -> libc::c_long {
    // SAFETY: all bytes zero are a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes to `usage` only.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    usage.ru_minflt.wrapping_add(usage.ru_majflt)
}

/// Fills `to` with a part of the blocks. `begin` is the offset of that part in the concatenation of all
/// blocks.
fn read_part(
    pid: u32,
    blocks: &[u64],
    size: usize,
    begin: usize,
    to: &mut [u8],
    report: &mut Report,
) -> Result<(), Errno> {
    let end = begin + to.len();
    let mut at = begin;
    while at < end {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut remote = [none; MAX_BLOCKS];
        let (mut parts, mut next) = (0, at);
        while next < end {
            let (block, offset) = (next / size, next % size);
            let iov_len = (size - offset).min(end - next);
            let addr = blocks[block].wrapping_add(offset as u64);
            remote[parts] = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len };
            (parts, next) = (parts + 1, next + iov_len);
        }
        let rest = &mut to[at - begin..];
        let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        let (local, remote, flags) = (&raw const local, remote.as_ptr(), 0);
        let many = parts as libc::c_ulong;
        // SAFETY: the kernel writes at most `rest.len()` bytes into `rest`, and checks the other addresses itself.
        let got =
            unsafe { libc::process_vm_readv(pid.cast_signed(), local, 1, remote, many, flags) };
        let error = io::Error::last_os_error().raw_os_error();
        let got = match usize::try_from(got) {
            Ok(got) => got,
            Err(_) if error == Some(libc::EFAULT) => 0,
            Err(_) => return Err(Errno::from_raw_os_error(error.unwrap_or(libc::EIO))),
        };
        at += got;
        if at < end {
            // The kernel has stopped at this block, because it cannot be read.
            report.set_unread(at / size);
            at = (at - at % size + size).min(end);
        }
    }
    Ok(())
}

/// Opens the file of an O_PATH descriptor for reading.
fn reopen(found: &OwnedFd) -> Result<OwnedFd, Errno> {
    if FileType::from_raw_mode(fstat(found)?.st_mode) != FileType::RegularFile {
        return Err(Errno::MEDIUMTYPE);
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    // This link leads to the same file, even if its path has changed meanwhile.
    let mut name = [0; 32];
    let name = link_of(found, &mut name).ok_or(Errno::NAMETOOLONG)?;
    rustix::fs::open(name, flags, Mode::empty())
}

/// Opens the file of an O_PATH descriptor, and maps its first page. The page is never accessed.
fn map_file(found: Option<OwnedFd>) -> Result<(OwnedFd, *mut libc::c_void), Errno> {
    let file = reopen(&found.ok_or(Errno::BADF)?)?;
    // SAFETY: a new mapping, which is never accessed.
    let at = unsafe { mmap(std::ptr::null_mut(), 1, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) };
    Ok((file, at?))
}

/// Writes `/proc/self/fd/N` to a buffer, without allocating.
fn link_of<'a>(fd: &OwnedFd, to: &'a mut [u8; 32]) -> Option<&'a CStr> {
    use io::Write;
    let mut rest = &mut to[..];
    write!(rest, "/proc/self/fd/{}\0", fd.as_raw_fd()).ok()?;
    CStr::from_bytes_until_nul(to).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_memory() -> MemoryFile {
        MemoryFile::open(Pid(std::process::id())).unwrap()
    }

    #[test]
    fn blocks_of_any_size_are_read() {
        let bytes: Vec<u8> = (0..2 * MAX_BYTES).map(|i| (i / 7) as u8).collect();
        let at = |offset: usize| Addr(bytes.as_ptr() as u64 + offset as u64);
        for (size, many) in [
            (1, 2 * MAX_BLOCKS + 3),
            (8, MAX_BLOCKS),
            (4096, MAX_BLOCKS),
            (5000, 77),
            (MAX_MESSAGE + 5, 9),
            (MAX_BYTES, 2),
        ] {
            // In descending order of addresses.
            let offsets: Vec<_> = (0..many).map(|i| (many - 1 - i) * size).collect();
            let blocks: Vec<_> = offsets.iter().map(|&offset| at(offset)).collect();
            let mut read = vec![0; size * many];
            let is_read = own_memory().read_blocks(&blocks, size, &mut read).unwrap();
            assert_eq!(is_read, vec![true; many]);
            for (block, offset) in read.chunks(size).zip(offsets) {
                assert!(block == &bytes[offset..offset + size], "{size} {offset}");
            }
        }
        for (size, many) in [(0, 1), (MAX_BYTES + 1, 1), (8, 2)] {
            let error = own_memory().read_blocks(&[at(0)], size, &mut vec![0; size * many]);
            assert_eq!(error.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn other_blocks_are_read_if_some_are_unmapped() {
        let bytes: Vec<u8> = (0..MAX_BYTES).map(|i| (i / 7) as u8).collect();
        for size in [8, 4096, MAX_MESSAGE + 5] {
            let many = (MAX_BYTES / size).min(MAX_BLOCKS);
            let is_there = |i: usize| !matches!(i % 5, 1 | 2) && i > 0;
            let here = bytes.as_ptr() as u64;
            let addr = |i: usize| if is_there(i) { here + (i * size) as u64 } else { 16 };
            let blocks: Vec<_> = (0..many).map(|i| Addr(addr(i))).collect();
            let mut read = vec![0; size * many];
            let is_read = own_memory().read_blocks(&blocks, size, &mut read).unwrap();
            for (i, (block, is_read)) in read.chunks(size).zip(is_read).enumerate() {
                assert_eq!(is_read, is_there(i), "{size} {i}");
                assert!(!is_read || block == &bytes[i * size..(i + 1) * size], "{size} {i}");
            }
        }
    }

    #[test]
    fn reads_alternate_between_processes_and_fail_after_exit() {
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let theirs = MemoryFile::open(Pid(other.id())).unwrap();
        let ours = own_memory();
        let word = 0x1234_5678_9abc_def0_u64;
        let here = [Addr(&raw const word as u64)];
        for _ in 0..3 {
            let mut read = [0; 8];
            assert_eq!(ours.read_blocks(&here, 8, &mut read).unwrap(), [true]);
            assert_eq!(u64::from_ne_bytes(read), word);
            assert_eq!(theirs.read_blocks(&[Addr(16)], 8, &mut read).unwrap(), [false]);
        }
        other.kill().unwrap();
        other.wait().unwrap();
        let gone = theirs.read_blocks(&here, 8, &mut [0; 8]).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ESRCH));
        assert_eq!(ours.read_blocks(&here, 8, &mut [0; 8]).unwrap(), [true]);
    }

    #[test]
    fn reads_fail_after_the_process_has_execed() {
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
        // Waits until sh has its final stack address.
        std::thread::sleep(Duration::from_millis(100));
        let memory = MemoryFile::open(pid).unwrap();
        let read = |addr| memory.read_blocks(&[addr], 8, &mut [0; 8]).map(drop);
        let stack = |maps: Vec<procfs::process::MemoryMap>| Addr(maps[0].address.1 - 16);
        read(stack(maps())).unwrap();
        drop(child.stdin.take());
        // A process in the middle of exec has no stack yet.
        let mut after = Ok(());
        for _ in 0..400 {
            if after.is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
            after = maps().first().map_or(Ok(()), |map| read(Addr(map.address.1 - 16)));
        }
        assert_eq!(after.unwrap_err().raw_os_error(), Some(libc::ESRCH));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn only_tenant_with_excess_stuck_readers_is_rejected() {
        let mut pool = Pool { template: None, idle: Vec::new(), stuck: Vec::new() };
        for pid in 1..=MAX_STUCK_OF_TENANT as u32 {
            assert!(!pool.refuses(Pid(99), || "pod/noisy".into()));
            let (socket, _) = channel::pair().unwrap();
            pool.stuck.push(Stuck { pid: Pid(pid), tenant: Some("pod/noisy".into()), socket });
            assert!(pool.refuses(Pid(pid), || unreachable!()));
        }
        assert!(pool.refuses(Pid(99), || "pod/noisy".into()));
        assert!(!pool.refuses(Pid(99), || "pod/quiet".into()));
    }

    #[test]
    fn stopped_reader_is_abandoned_until_it_answers() {
        let reader = pool().fork().unwrap();
        let signal = |signal| {
            let pid = rustix::process::Pid::from_raw(reader.scheduling.pid().0 as i32).unwrap();
            rustix::process::kill_process(pid, signal).unwrap();
        };
        let ask = || {
            let with = File::open("/proc/self/stat").unwrap();
            let mut to = [0; 64];
            let lengths = (0, to.len());
            reader.ask(Call::Stream, Pid(1), lengths, b"", Some(with.as_fd()), &mut to)
        };
        assert!(ask().unwrap().0 > 0);
        signal(rustix::process::Signal::STOP);
        assert_eq!(ask().unwrap_err().kind(), io::ErrorKind::TimedOut);
        signal(rustix::process::Signal::CONT);
        receive(&reader, reader.scheduling.begin(), &mut [0; 64], &mut Report::default()).unwrap();
    }

    #[test]
    fn only_regular_files_are_opened() {
        let own = Pid(std::process::id());
        let link = Path::new("/proc/self/exe");
        assert!(open_linked(own, link).unwrap().metadata().unwrap().len() > 4096);
        let device = open_linked(own, Path::new("/dev/null")).unwrap_err();
        assert!(device.to_string().contains("regular"), "{device}");
        assert_eq!(open_linked(own, Path::new("/nothing")).unwrap_err().raw_os_error(), Some(2));
    }
}

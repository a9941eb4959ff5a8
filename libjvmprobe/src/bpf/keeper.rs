//! The keeper: a child process that makes and releases probes, so that the death of this process cannot interrupt it.
//!
//! To detach a uprobe, the kernel writes to the memory of each process that runs the probed file. For a thread that is
//! being killed, it does not write, and the breakpoint stays ("failed to unregister, leaking uprobe", uprobe_unregister() of
//! kernel/events/uprobes.c). So if SIGKILL or the OOM killer ended this process while a thread attached or detached, JVMs
//! would keep breakpoints. If no thread does so, the kernel detaches everything at the end of the process.
//!
//! Therefore no thread of this process releases a probe. Before descriptors of probes are closed here, the keeper gets
//! copies of them. So it has the last reference, and detaches when it closes the copies. Probes that are attached and detached
//! repeatedly are opened by the keeper in the first place. When this process ends, however that happens, the socket is closed;
//! the keeper then closes all and exits. Messages that it has not received then are released with its end of the socket, so
//! they are closed by the keeper, too.
//!
//! The keeper blocks all signals, is in a session of its own, and the OOM killer spares it if it may say so
//! (CAP_SYS_RESOURCE), even if it kills the control group (memory.oom.group). It does not survive SIGKILL of the control group.
//!
//! Closing a probe takes the kernel about 50 ms, so the keeper closes in several processes at a time. They share its table
//! of descriptors (`CLONE_FILES`).
//!
//! Sources: perf_event_open(2), the `uprobe` PMU; clone(2); proc(5), `oom_score_adj`. See `sys::forked` for soundness.

use std::{
    ffi::CStr,
    io::{self, IoSlice, IoSliceMut, Write},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use libbpf_sys::perf_event_attr;
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

use crate::{
    bpf::perf::{EventScope, open_event},
    sys::{
        channel::{self, MAX_FILES},
        forked,
    },
};

/// `PERF_EVENT_IOC_SET_BPF` and `_ENABLE`, include/uapi/linux/perf_event.h.
const SET_PROGRAM: libc::Ioctl = 0x4004_2408;
const ENABLE: libc::Ioctl = 0x2400;
/// Maximum time for an answer. A target can delay detaching, because the kernel needs the lock of its mappings.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The same at the end of this process. The keeper finishes afterwards.
const EXIT_TIMEOUT: Duration = Duration::from_millis(1000);
/// Maximum number of processes that close descriptors at the same time.
const PARALLEL: usize = 16;
/// Limit of the keeper's descriptor numbers.
const MAX_DESCRIPTORS: usize = 1 << 16;
/// Size of a request: `Request`, the number of a probe, type of the PMU, kind and number of the scope, and an offset.
const REQUEST_SIZE: usize = 28;

/// Request to the keeper. It answers each one by an error number and the number of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Request {
    /// Keeps copies of the descriptors that come with the request.
    Copy,
    /// Closes all copies.
    CloseCopies,
    /// Attaches a program to a location in a file, which both come with the request.
    Attach,
    /// Closes a probe of `Attach`.
    Detach,
    /// Closes everything.
    CloseAll,
}

/// A location in a file, and the process or processor of the probe.
#[derive(Debug)]
pub(super) struct Location<'a> {
    /// Type number of the `uprobe` PMU.
    pub(super) kind: u32,
    pub(super) file: BorrowedFd<'a>,
    pub(super) offset: u64,
    pub(super) scope: EventScope,
}

/// A probe that the keeper holds.
#[derive(Debug)]
pub(super) struct Probe {
    /// PID of the keeper.
    keeper: u32,
    /// The keeper's descriptor.
    number: u32,
}

/// The running keeper.
struct Keeper {
    pid: u32,
    socket: Arc<OwnedFd>,
}

/// Whether this process is about to end.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// The keeper; locked during a request.
static KEEPER: Mutex<Option<Keeper>> = Mutex::new(None);

/// Its socket, for [`hand_over`].
static SOCKET: Mutex<Option<Arc<OwnedFd>>> = Mutex::new(None);

fn keeper() -> MutexGuard<'static, Option<Keeper>> {
    KEEPER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the keeper, unless it runs. Should be called before this process uses much memory, which both would share.
///
/// # Errors
/// The errors of socketpair(2) and fork(2).
pub fn start_keeper() -> io::Result<()> {
    keeper_or_new(&mut keeper()).map(drop)
}

fn keeper_or_new(keeper: &mut Option<Keeper>) -> io::Result<&Keeper> {
    if keeper.is_none() {
        let (socket, theirs) = channel::pair()?;
        let pid = forked::fork(c"jvmprobe-keeper", theirs, serve)?;
        let socket = Arc::new(socket);
        set_socket(Some(Arc::clone(&socket)));
        *keeper = Some(Keeper { pid, socket });
    }
    keeper.as_ref().ok_or_else(|| io::ErrorKind::BrokenPipe.into())
}

fn set_socket(socket: Option<Arc<OwnedFd>>) {
    *SOCKET.lock().unwrap_or_else(PoisonError::into_inner) = socket;
}

/// Returns a request as the keeper reads it.
fn encode(request: Request, words: [u32; 4], offset: u64) -> [u8; REQUEST_SIZE] {
    let mut bytes = [0; REQUEST_SIZE];
    let all = [request as u32].into_iter().chain(words);
    for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(all) {
        *to = word.to_ne_bytes();
    }
    bytes[20..].copy_from_slice(&offset.to_ne_bytes());
    bytes
}

/// Sends a request, and returns the number in the answer and the keeper's PID.
fn ask(
    request: Request,
    words: [u32; 4],
    offset: u64,
    files: &[BorrowedFd<'_>],
) -> io::Result<(u32, u32)> {
    let bytes = encode(request, words, offset);
    let mut running = keeper();
    let Keeper { pid, socket } = keeper_or_new(&mut running)?;
    let pid = *pid;
    let talk = || -> io::Result<[u8; 8]> {
        channel::send(socket, &[IoSlice::new(&bytes)], files)?;
        let timeout = if IS_ENDING.load(Ordering::Relaxed) { EXIT_TIMEOUT } else { TIMEOUT };
        if !channel::wait(socket, Instant::now() + timeout)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut answer = [0; 8];
        channel::receive(socket, &mut [IoSliceMut::new(&mut answer)])?;
        Ok(answer)
    };
    let Ok(answer) = talk() else {
        // The keeper was killed, or a target delays it. It closes everything as soon as it can, because its socket is closed
        // here, at the latest when this process ends. The next request starts another one.
        *running = None;
        if !IS_ENDING.load(Ordering::Relaxed) {
            set_socket(None);
        }
        return Err(io::Error::other("the process that holds the probes does not answer"));
    };
    drop(running);
    let [error, number] = [&answer[..4], &answer[4..]]
        .map(|half| half.first_chunk().map_or(0, |word| u32::from_ne_bytes(*word)));
    match error {
        0 => Ok((number, pid)),
        error => Err(io::Error::from_raw_os_error(error.cast_signed())),
    }
}

/// Gives copies of descriptors to the keeper, so that closing them here detaches nothing.
///
/// # Errors
/// If the keeper does not answer or cannot be started.
pub(super) fn copy(files: &[BorrowedFd<'_>]) -> io::Result<()> {
    files.chunks(MAX_FILES).try_for_each(|files| ask(Request::Copy, [0; 4], 0, files).map(drop))
}

/// Gives copies of descriptors to the keeper without waiting for it, because this process is about to end and a target delays
/// the keeper. The keeper closes them after it has answered the request in progress.
pub(super) fn hand_over(files: &[BorrowedFd<'_>]) {
    let socket = SOCKET.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(socket) = &*socket else { return };
    for files in files.chunks(MAX_FILES) {
        if let Err(error) =
            channel::send(socket, &[IoSlice::new(&encode(Request::Copy, [0; 4], 0))], files)
        {
            return log::debug!("some probes are detached without the keeper: {error}");
        }
    }
}

/// Closes all copies. When this returns, what was closed here has been detached.
pub(super) fn close_copies() {
    if let Err(error) = ask(Request::CloseCopies, [0; 4], 0, &[]) {
        log::debug!("cannot wait until probes are detached: {error}");
    }
}

/// Shortens all waits for the keeper from now on, because this process is about to end.
pub(super) fn shorten_waits() {
    IS_ENDING.store(true, Ordering::Relaxed);
}

/// Closes all copies and probes. Called at the end of the process.
pub(super) fn close_all() {
    // Without a keeper, there is nothing to close.
    if keeper().is_some() {
        let _ = ask(Request::CloseAll, [0; 4], 0, &[]);
    }
}

/// Attaches a program.
///
/// # Errors
/// The errors of perf_event_open(2) and ioctl(2).
pub(super) fn attach(location: &Location<'_>, program: BorrowedFd<'_>) -> io::Result<Probe> {
    let scope = match location.scope {
        EventScope::Thread(pid) => [0, pid.0],
        EventScope::Processor(cpu) => [1, cpu],
    };
    let words = [0, location.kind, scope[0], scope[1]];
    let (number, keeper) = ask(Request::Attach, words, location.offset, &[location.file, program])?;
    Ok(Probe { keeper, number })
}

/// Detaches probes. When this returns, they are detached.
pub(super) fn detach(probes: Vec<Probe>) {
    let is_last = |i: usize| i + 1 == probes.len();
    for (i, probe) in probes.iter().enumerate() {
        // An earlier keeper has closed its probes.
        if keeper().as_ref().is_some_and(|keeper| keeper.pid == probe.keeper) {
            let _ = ask(Request::Detach, [probe.number, u32::from(is_last(i)), 0, 0], 0, &[]);
        }
    }
}

/// A set of the keeper's descriptors.
struct Set([u8; MAX_DESCRIPTORS / 8]);

impl Set {
    fn insert(&mut self, fd: OwnedFd) -> u32 {
        let number = fd.into_raw_fd().cast_unsigned();
        match self.0.get_mut(number as usize / 8) {
            Some(byte) => *byte |= 1 << (number % 8),
            None => close(number),
        }
        number
    }

    fn remove(&mut self, number: u32) -> bool {
        let Some(byte) = self.0.get_mut(number as usize / 8) else { return false };
        let bit = 1 << (number % 8);
        let was_there = *byte & bit != 0;
        *byte &= !bit;
        was_there
    }

    fn numbers(&self) -> impl Iterator<Item = u32> {
        let bits = |byte: u8| (0..8).filter(move |bit| byte >> bit & 1 != 0);
        let bytes = self.0.iter().enumerate();
        bytes.flat_map(move |(i, &byte)| bits(byte).map(move |bit| i as u32 * 8 + bit))
    }

    /// Closes all descriptors, in parallel, and returns when the kernel has released them.
    fn close(&mut self) {
        let count = self.numbers().count().min(PARALLEL);
        let mut started = 0;
        while started + 1 < count {
            let flags = libc::CLONE_FILES | libc::SIGCHLD;
            // SAFETY: without a stack and CLONE_VM, this is fork(2). The child only closes descriptors and exits.
            match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
                0 => {
                    self.numbers().skip(started).step_by(count).for_each(close);
                    forked::exit();
                }
                child if child < 0 => break,
                _ => started += 1,
            }
        }
        // This process closes the rest, which is everything if it has no child.
        for (i, number) in self.numbers().enumerate() {
            if i % count.max(1) >= started {
                close(number);
            }
        }
        // SAFETY: no status is requested.
        while unsafe { libc::waitpid(-1, std::ptr::null_mut(), 0) } > 0 {}
        self.0.fill(0);
    }
}

fn close(number: u32) {
    // SAFETY: the keeper's sets own their descriptors.
    unsafe { libc::close(number.cast_signed()) };
}

/// Answers requests until the other end of the socket is closed.
fn serve(socket: OwnedFd) -> ! {
    prepare();
    let mut copies = Set([0; MAX_DESCRIPTORS / 8]);
    let mut probes = Set([0; MAX_DESCRIPTORS / 8]);
    let mut detached = Set([0; MAX_DESCRIPTORS / 8]);
    loop {
        let mut bytes = [0; REQUEST_SIZE];
        let received = channel::receive_files(&socket, &mut [IoSliceMut::new(&mut bytes)]);
        let Ok((REQUEST_SIZE, files)) = received else { break };
        let word =
            |i: usize| bytes.as_chunks().0.get(i).map_or(0, |&word| u32::from_ne_bytes(word));
        let request = word(0);
        let result = if request == Request::Copy as u32 {
            files.into_iter().flatten().for_each(|file| _ = copies.insert(file));
            Ok(0)
        } else if request == Request::CloseCopies as u32 {
            copies.close();
            Ok(0)
        } else if request == Request::Attach as u32 {
            let offset = u64::from(word(5)) | u64::from(word(6)) << 32;
            open_probe(files, word(2), [word(3), word(4)], offset).map(|probe| probes.insert(probe))
        } else if request == Request::Detach as u32 {
            if probes.remove(word(1)) {
                // SAFETY: the number was in the set, so it is open and has no other owner.
                detached.insert(unsafe { OwnedFd::from_raw_fd(word(1).cast_signed()) });
            }
            if word(2) != 0 {
                detached.close();
            }
            Ok(0)
        } else {
            [&mut copies, &mut detached, &mut probes].into_iter().for_each(Set::close);
            Ok(0)
        };
        let (error, number) = match result {
            Ok(number) => (0, number),
            Err(error) => (error.raw_os_error(), 0),
        };
        let (error, number) = (error.to_ne_bytes(), number.to_ne_bytes());
        if channel::send(&socket, &[IoSlice::new(&error), IoSlice::new(&number)], &[]).is_err() {
            break;
        }
    }
    [&mut copies, &mut detached, &mut probes].into_iter().for_each(Set::close);
    forked::exit();
}

/// Prepares the keeper for surviving its parent.
fn prepare() {
    // SAFETY: the arguments are constants.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::setsid();
    }
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open(c"/proc/self/oom_score_adj", flags, Mode::empty()) {
        let _ = rustix::io::write(&file, b"-1000");
    }
}

/// Opens a perf event for a location in a file, and attaches a program to it. Allocates nothing.
fn open_probe(
    files: channel::Files,
    kind: u32,
    [is_processor, number]: [u32; 2],
    offset: u64,
) -> Result<OwnedFd, Errno> {
    let mut files = files.into_iter().flatten();
    let (file, program) = files.next().zip(files.next()).ok_or(Errno::BADF)?;
    let mut name = [0; 32];
    let mut rest = &mut name[..];
    write!(rest, "/proc/self/fd/{}\0", file.as_raw_fd()).map_err(|_| Errno::NAMETOOLONG)?;
    let path = CStr::from_bytes_until_nul(&name).map_err(|_| Errno::NAMETOOLONG)?;
    let mut attr = perf_event_attr { type_: kind, ..Default::default() };
    attr.__bindgen_anon_3.uprobe_path = path.as_ptr() as u64;
    attr.__bindgen_anon_4.probe_offset = offset;
    let scope = match is_processor {
        0 => EventScope::Thread(crate::Pid(number)),
        _ => EventScope::Processor(number),
    };
    let failed = |e: io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
    let event = open_event(&mut attr, scope).map_err(failed)?;
    control(&event, SET_PROGRAM, program.as_raw_fd()).map_err(failed)?;
    control(&event, ENABLE, 0).map_err(failed)?;
    Ok(event)
}

fn control(event: &OwnedFd, request: libc::Ioctl, value: RawFd) -> io::Result<()> {
    // SAFETY: the argument of these requests is a number.
    match unsafe { libc::ioctl(event.as_raw_fd(), request, value) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// Returns whether the other end of a pipe is closed everywhere.
    fn is_closed(pipe: &OwnedFd) -> bool {
        channel::is_ready(pipe)
    }

    fn pipes() -> (Vec<OwnedFd>, Vec<OwnedFd>) {
        (0..40).map(|_| rustix::pipe::pipe().unwrap()).unzip()
    }

    #[test]
    fn copies_stay_open_until_they_are_closed() {
        let (read, write) = pipes();
        copy(&write.iter().map(AsFd::as_fd).collect::<Vec<_>>()).unwrap();
        drop(write);
        assert!(read.iter().all(|pipe| !is_closed(pipe)));
        close_copies();
        assert!(read.iter().all(is_closed));

        // A stopped keeper stands for one that a target delays.
        let pid = keeper().as_ref().unwrap().pid.cast_signed();
        // SAFETY: only signals a child process of this test.
        let signal = |signal| assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
        let (read, write) = pipes();
        signal(libc::SIGSTOP);
        hand_over(&write.iter().map(AsFd::as_fd).collect::<Vec<_>>());
        drop(write);
        assert!(read.iter().all(|pipe| !is_closed(pipe)));
        (*keeper(), *SOCKET.lock().unwrap()) = (None, None);
        assert!(read.iter().all(|pipe| !is_closed(pipe)));
        signal(libc::SIGCONT);
        let until = Instant::now() + TIMEOUT;
        assert!(read.iter().all(|pipe| channel::wait(pipe, until).unwrap()));
    }

    #[test]
    fn keeper_closes_everything_when_its_parent_ends() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let (ours, theirs) = channel::pair().unwrap();
        forked::fork(c"jvmprobe-keeper", theirs, serve).unwrap();
        let request = [&(Request::Copy as u32).to_ne_bytes()[..], &[0; REQUEST_SIZE - 4]].concat();
        channel::send(&ours, &[IoSlice::new(&request)], &[write.as_fd()]).unwrap();
        drop(write);
        assert!(channel::wait(&ours, Instant::now() + TIMEOUT).unwrap());
        assert!(!is_closed(&read));
        drop(ours);
        assert!(channel::wait(&read, Instant::now() + TIMEOUT).unwrap());
    }
}

//! Detaches probes in a background thread.
//!
//! To release an attachment, the kernel waits until no processor can be in its program any more, which takes
//! about 50 ms for each attachment. If the thread that reads events waited for this, events would pile up. So
//! a background thread releases the attachments, through the `keeper`.
//!
//! Before the process exits, it waits until no thread is making or releasing an attachment, and then releases the remaining
//! ones, so that other processes do not see them after the exit.

use std::{
    fs,
    os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd},
    path::Path,
    sync::{
        Arc, MutexGuard, Once, OnceLock, PoisonError, RwLock, RwLockReadGuard, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use libbpf_rs::Link;

use crate::{
    bpf::keeper,
    sys::{Worker, privileges::Rights, undo},
};

/// Held while attaching or detaching; exclusively, and for good, at the end of the process.
static ATTACHING: RwLock<()> = RwLock::new(());

/// Whether the process is about to end, so that no attachment may be made or released any more.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Maximum time for which the process, before it exits, waits for an attachment to be made or released. This
/// usually takes about 50 ms.
const EXIT_TIMEOUT: Duration = Duration::from_millis(800);

/// Begins to attach or detach; the end of the process waits until the guard is dropped. Blocks if the process is ending. The
/// first call registers the release of all attachments at the end of the process.
pub(super) fn begin_attaching() -> RwLockReadGuard<'static, ()> {
    static REGISTRATION: Once = Once::new();
    // Exit actions run in reverse order of registration, so this one runs after those that are registered
    // later.
    REGISTRATION.call_once(|| undo::on_exit(Box::new(end_attaching)));
    loop {
        // A panic aborts the process (except in tests), so it cannot leave inconsistent data behind the lock.
        let guard = ATTACHING.read().unwrap_or_else(PoisonError::into_inner);
        if !IS_ENDING.load(Ordering::SeqCst) {
            return guard;
        }
        drop(guard);
        thread::park();
    }
}

/// Ends attaching and detaching for good, and releases all attachments. Called at the end of the process. If a target delays
/// that, the keeper does the rest after the end of the process.
fn end_attaching() {
    keeper::shorten_waits();
    IS_ENDING.store(true, Ordering::SeqCst);
    let begin = Instant::now();
    let mut is_exclusive = false;
    while !is_exclusive && begin.elapsed() < EXIT_TIMEOUT {
        match ATTACHING.try_write() {
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
            guard => {
                // The lock is never released again.
                std::mem::forget(guard);
                is_exclusive = true;
            }
        }
    }
    let open: Vec<_> = descriptors().filter(|fd| is_attachment(*fd)).collect();
    // SAFETY: open descriptors of this process. Their owners do not close them later, because an owner that is still alive now
    // is never dropped. If an attachment is being made or released, the number may become that of another file; then the
    // keeper has a copy of that file until it ends.
    let borrowed: Vec<_> = open.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) }).collect();
    if is_exclusive && keeper::copy(&borrowed).is_ok() {
        // SAFETY: see `borrowed`. Threads that still run after a second Ctrl-C end with the process.
        open.into_iter().for_each(|fd| drop(unsafe { OwnedFd::from_raw_fd(fd) }));
        keeper::close_all();
    } else {
        keeper::hand_over(&borrowed);
    }
}

/// Returns the open descriptors of this process.
pub(super) fn descriptors() -> impl Iterator<Item = RawFd> {
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    open.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns whether a descriptor is a part of an attachment. An attachment has two: the link, and the perf event to which the
/// link attaches the program.
fn is_attachment(fd: RawFd) -> bool {
    fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|file| {
        ["anon_inode:bpf_link", "anon_inode:[perf_event]"].map(Path::new).contains(&&*file)
    })
}

/// A loaded BPF object whose programs can be attached.
pub(crate) trait Object: Send + Sync {
    /// Locks the object's data on USDT probes, which libbpf keeps in it and changes with each attachment.
    fn lock(&self) -> MutexGuard<'_, ()>;
}

/// Attachments to be released, the descriptors that were opened for them, and the BPF objects that they need, each once.
pub(super) type Released = (Vec<Link>, Vec<RawFd>, Vec<Arc<dyn Object>>);

/// Detaches in the background thread, then drops the BPF objects.
pub(super) fn detach(released: Released) {
    static WORKER: OnceLock<Option<Worker<Released>>> = OnceLock::new();
    if released.0.is_empty() {
        return;
    }
    // Detaching needs no capability.
    match WORKER.get_or_init(|| Worker::start("detach", Rights::empty(), || release).ok()) {
        Some(worker) => drop(worker.send(released)),
        // Without a worker, this thread detaches.
        None => release(released),
    }
}

fn release((links, opened, objects): Released) {
    let guard = begin_attaching();
    let opened = opened.into_iter().filter(|fd| is_attachment(*fd));
    // SAFETY: the links own these descriptors and are dropped below. If another thread closes one of the others now, its
    // number is invalid, or the number of another file, of which the keeper may have a copy for a moment.
    let opened: Vec<_> = opened.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) }).collect();
    if let Err(error) = keeper::copy(&opened) {
        log::debug!("probes are detached without the keeper: {error}");
    }
    // The objects stay locked only for the part that does not wait for the kernel.
    let locked: Vec<_> = objects.iter().map(|object| object.lock()).collect();
    drop(links);
    drop(locked);
    keeper::close_copies();
    drop(guard);
    drop(objects);
}

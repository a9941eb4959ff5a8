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
    os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, Once, OnceLock, TryLockError},
    thread,
    time::{Duration, Instant},
};

use libbpf_rs::Link;

use crate::{
    bpf::keeper,
    sys::{Worker, privileges::Rights, undo},
};

/// Held while attaching or detaching, because libbpf's USDT data of each object is not thread-safe.
static ATTACH_LOCK: Mutex<()> = Mutex::new(());

/// Maximum time for which the process, before it exits, waits for an attachment to be made or released. This
/// usually takes about 50 ms.
const EXIT_TIMEOUT: Duration = Duration::from_millis(800);

/// Locks attaching and detaching. The first call registers the release of all attachments at the end of the process.
pub(super) fn lock_attaching() -> MutexGuard<'static, ()> {
    static REGISTRATION: Once = Once::new();
    // Exit actions run in reverse order of registration, so this one runs after those that are registered
    // later.
    REGISTRATION.call_once(|| undo::on_exit(Box::new(end_attaching)));
    // A panic aborts the process (except in tests), so it cannot leave inconsistent data behind the lock.
    ATTACH_LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Ends attaching and detaching for good, and releases all attachments. Called at the end of the process.
fn end_attaching() {
    keeper::shorten_waits();
    let begin = Instant::now();
    while begin.elapsed() < EXIT_TIMEOUT {
        match ATTACH_LOCK.try_lock() {
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
            guard => {
                // The lock is never released again.
                std::mem::forget(guard);
                return release_all();
            }
        }
    }
}

/// Releases all attachments.
fn release_all() {
    let open = descriptors().filter(|fd| is_attachment(*fd)).collect::<Vec<_>>();
    // SAFETY: open descriptors of this process. Their owners do not close them later, because an owner that is still
    // alive now is never dropped. After a second Ctrl-C, other threads may still be running, but they end with the process.
    let open = open.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let open: Vec<_> = open.collect();
    keeper::copy(&open.iter().map(AsFd::as_fd).collect::<Vec<_>>());
    drop(open);
    keeper::close_all();
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

/// Attachments to be released, the descriptors that were opened for them, and the owners of the BPF objects that they need.
pub(super) type Released = (Vec<Link>, Vec<RawFd>, Vec<Arc<dyn Send + Sync>>);

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
    let guard = lock_attaching();
    let opened = opened.into_iter().filter(|fd| is_attachment(*fd));
    // SAFETY: the links own these descriptors and are dropped below. If another thread closes one of the others now, its
    // number is invalid, or the number of another file, of which the keeper may have a copy for a moment.
    let opened: Vec<_> = opened.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) }).collect();
    keeper::copy(&opened);
    drop(links);
    keeper::close_copies();
    drop(guard);
    drop(objects);
    // Lets a thread that waits to attach have the lock, so that a JVM that has just started is traced soon.
    thread::sleep(Duration::from_millis(1));
}

//! Detaches probes in a background thread.
//!
//! To release an attachment, the kernel waits until no processor can be in its program any more, which takes
//! about 50 ms for each attachment. If the thread that reads events waited for this, events would pile up. So
//! a background thread releases the attachments.
//!
//! When this process ends, the kernel detaches what is still attached, before other processes see the exit.
//! But an attachment that a thread is just making or releasing would stay, because the kernel does not write
//! to the target's memory for a thread that is being killed (it logs "failed to unregister, leaking uprobe";
//! see uprobe_unregister_nosync() in Linux's kernel/events/uprobes.c). So before the process exits, it waits
//! until no thread is making or releasing an attachment, and then releases the remaining ones, all at once.

use std::{
    fs,
    os::fd::{FromRawFd, OwnedFd, RawFd},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, Once, OnceLock, TryLockError},
    thread,
    time::{Duration, Instant},
};

use libbpf_rs::Link;

use crate::sys::{Worker, privileges::Rights, undo};

/// Held while attaching or detaching, because libbpf's USDT data of each object is not thread-safe.
static ATTACH_LOCK: Mutex<()> = Mutex::new(());

/// Maximum time for which the process, before it exits, waits for an attachment to be made or released. This
/// usually takes about 50 ms.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

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

/// Releases all attachments, each in a thread of its own, so that the threads wait for the kernel in
/// parallel. If the process simply exited, the kernel would release one attachment after the other.
fn release_all() {
    // An attachment has two descriptors: the link, and the perf event to which the link attaches the program.
    for kind in ["anon_inode:bpf_link", "anon_inode:[perf_event]"] {
        let open = attachments(kind);
        thread::scope(|all| {
            for fd in open {
                // SAFETY: an open descriptor of this process. Its owner does not close it later, because an
                // owner that is still alive now is never dropped. After a second Ctrl-C, other threads may
                // still be running, but they end with the process.
                let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                // If no thread can be started, the descriptor is closed here.
                drop(thread::Builder::new().spawn_scoped(all, || drop(fd)));
            }
        });
    }
}

/// Returns the open descriptors of this process whose link in /proc is `kind`.
fn attachments(kind: &str) -> Vec<RawFd> {
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    open.filter(|entry| fs::read_link(entry.path()).is_ok_and(|file| file == Path::new(kind)))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Attachments to be released, and the owners of the BPF objects that they need.
type Released = (Vec<Link>, Vec<Arc<dyn Send + Sync>>);

/// Detaches in the background thread, then drops `objects`.
pub(super) fn detach(links: Vec<Link>, objects: Vec<Arc<dyn Send + Sync>>) {
    static WORKER: OnceLock<Option<Worker<Released>>> = OnceLock::new();
    if links.is_empty() {
        return;
    }
    // Detaching needs no capability.
    let release = |(links, objects): Released| {
        links.into_iter().for_each(drop_one);
        drop(objects);
    };
    match WORKER.get_or_init(|| Worker::start("detach", Rights::empty(), move || release).ok()) {
        Some(worker) => drop(worker.send((links, objects))),
        // Without a worker, this thread detaches.
        None => release((links, objects)),
    }
}

fn drop_one(link: Link) {
    let guard = lock_attaching();
    drop(link);
    drop(guard);
    // Lets a thread that waits to attach have the lock, so that a JVM that has just started is traced soon.
    thread::sleep(Duration::from_millis(1));
}

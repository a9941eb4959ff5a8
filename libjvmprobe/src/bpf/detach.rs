//! Detaching, without waiting for it.
//!
//! The kernel lets go of an attachment when all processors have passed a point where none of
//! them can be in its program any more: some 50 ms each, during which events would pile up. So a
//! thread does it. What is still attached when the tool ends is detached by the kernel, before
//! anybody sees that it has ended; but what a thread is about to detach (or to attach) in the
//! moment when the process ends would stay: the kernel gives up writing to the target's memory
//! for a thread that is to die ("failed to unregister, leaking uprobe" is in its log; see
//! uprobe_unregister_nosync() of Linux' kernel/events/uprobes.c). So the end waits for it, and
//! lets go of the others itself, all at once.

use std::{
    fs,
    os::fd::{FromRawFd, OwnedFd, RawFd},
    path::Path,
    sync::{
        Mutex, MutexGuard, Once, OnceLock, TryLockError,
        mpsc::{Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use libbpf_rs::Link;

use crate::own::{
    privileges::{self, Rights},
    undo,
};

/// libbpf keeps books on USDT probes, with each object, which are not made for several threads.
static BOOKS: Mutex<()> = Mutex::new(());

/// How long the end of the process waits for one attachment to be made or let go: some 50 ms
/// are usual.
const AT_THE_END: Duration = Duration::from_secs(2);

/// Whoever attaches or detaches holds this.
pub(super) fn books() -> MutexGuard<'static, ()> {
    static LAST: Once = Once::new();
    // Of the steps before the end the one that was said first is the last.
    LAST.call_once(|| undo::at_the_end(Box::new(close_books)));
    // With panic=abort nobody leaves them in disorder.
    BOOKS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The end: nobody attaches or detaches any more, and what is attached is let go.
fn close_books() {
    let begin = Instant::now();
    while begin.elapsed() < AT_THE_END {
        match BOOKS.try_lock() {
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
            guard => {
                // Nobody gets them from here on.
                std::mem::forget(guard);
                return let_go_at_once();
            }
        }
    }
}

/// Lets all attachments go, each by a thread of its own: together they wait for the kernel as
/// long as one, while a process that ends closes one after the other.
fn let_go_at_once() {
    // Both ends of an attachment: the link, and the perf event that it links a program to.
    for kind in ["anon_inode:bpf_link", "anon_inode:[perf_event]"] {
        let open = attachments(kind);
        thread::scope(|all| {
            for fd in open {
                // SAFETY: one of ours that is open. Who owns it does not close it again, for
                // all that is dropped was dropped before; or, after a second Ctrl-C, what it
                // would do in this moment ends with the process.
                let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                // Where there are no threads to be had, it is closed here.
                drop(thread::Builder::new().spawn_scoped(all, || drop(fd)));
            }
        });
    }
}

/// Our own open files of a kind.
fn attachments(kind: &str) -> Vec<RawFd> {
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    open.filter(|entry| fs::read_link(entry.path()).is_ok_and(|file| file == Path::new(kind)))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Detaches, soon.
pub(super) fn detach(links: Vec<Link>) {
    static THREAD: OnceLock<Option<Sender<Vec<Link>>>> = OnceLock::new();
    if links.is_empty() {
        return;
    }
    match THREAD.get_or_init(start) {
        // It never ends; and if it did, what is sent back is dropped: detached here.
        Some(thread) => drop(thread.send(links)),
        None => drop(links),
    }
}

fn start() -> Option<Sender<Vec<Link>>> {
    let (links, todo) = channel::<Vec<Link>>();
    let work = move || {
        // To let go wants no right.
        privileges::keep(Rights::empty());
        todo.into_iter().flatten().for_each(drop_one);
    };
    thread::Builder::new().name("detach".into()).spawn(work).ok().map(|_| links)
}

fn drop_one(link: Link) {
    let books = books();
    drop(link);
    drop(books);
    // Whoever wants to attach comes first: a JVM that has just started does not wait.
    thread::sleep(Duration::from_millis(1));
}

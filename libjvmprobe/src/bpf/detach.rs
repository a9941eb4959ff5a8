//! Detaching, without waiting for it.
//!
//! The kernel lets go of an attachment when all processors have passed a point where none of
//! them can be in its program any more: some 50 ms each, during which events would pile up. So a
//! thread does it. What is still attached when the tool ends is detached by the kernel, before
//! anybody sees that it has ended; but what a thread is about to detach (or to attach) in the
//! moment when the process ends would stay: the kernel gives up writing to the target's memory
//! for a thread that is to die ("failed to unregister, leaking uprobe" is in its log; see
//! uprobe_unregister_nosync() of Linux' kernel/events/uprobes.c). So the end waits for it.

use std::{
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

/// From here on nothing is attached or detached but by the kernel.
fn close_books() {
    let begin = Instant::now();
    while begin.elapsed() < AT_THE_END {
        match BOOKS.try_lock() {
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
            // Nobody gets them any more.
            guard => return std::mem::forget(guard),
        }
    }
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

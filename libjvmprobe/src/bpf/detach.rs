//! Detaching, without waiting for it.
//!
//! The kernel lets go of an attachment when all processors have passed a point where none of
//! them can be in its program any more: some 50 ms each, during which events would pile up. So a
//! thread does it. What is still attached when the tool ends is detached by the kernel, before
//! anybody sees that it has ended.

use std::{
    sync::{
        Mutex, MutexGuard, OnceLock,
        mpsc::{Sender, channel},
    },
    thread,
    time::Duration,
};

use libbpf_rs::Link;

use crate::own::privileges::{self, Rights};

/// libbpf keeps books on USDT probes, with each object, which are not made for several threads.
static BOOKS: Mutex<()> = Mutex::new(());

/// Whoever attaches or detaches holds this.
pub(super) fn books() -> MutexGuard<'static, ()> {
    // With panic=abort nobody leaves them in disorder.
    BOOKS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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

//! Owners of locks for which threads wait, and what these owners do.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::{
    Addr,
    hotspot::java_threads::{BlockKind, BlockedOn, Owner, ThreadStatus},
    render::{
        threads::{
            report::{frame_text, object},
            virtual_threads::innermost,
        },
        units::count,
    },
    trace::threads::{Activity, Dump, Thread, VirtualThread, carried},
};

/// Maximum number of owners in the line about a lock. Each of them waits for a lock of the next one.
const MAX_OWNERS: usize = 8;

/// The threads of a dump: platform threads by the addresses of their JavaThreads, virtual threads by their numbers.
#[derive(Debug)]
pub struct Owners<'a> {
    threads: HashMap<Addr, &'a Thread>,
    found: HashMap<u64, &'a VirtualThread>,
}

/// A thread of either kind.
#[derive(Clone, Copy)]
enum Holder<'a> {
    Platform(&'a Thread),
    Virtual(&'a VirtualThread),
}

impl<'a> Owners<'a> {
    /// Indexes the threads of a dump.
    pub fn of(threads: &'a [Thread], found: &'a [VirtualThread]) -> Self {
        let java = |thread: &'a Thread| Some((thread.java.as_ref()?.address, thread));
        Self {
            threads: threads.iter().filter_map(java).collect(),
            found: found.iter().map(|thread| (thread.java.number, thread)).collect(),
        }
    }

    /// Returns the thread that owns a lock. If the JVM names a platform thread on which a virtual thread is
    /// mounted (a carrier), the owner is this virtual thread.
    fn find(&self, owner: &Owner) -> Option<Holder<'a>> {
        let number = match owner {
            Owner::VirtualThread { number, .. } => *number,
            Owner::Thread(address) => {
                let thread = *self.threads.get(address)?;
                match carried(thread) {
                    Some(number) => number,
                    None => return Some(Holder::Platform(thread)),
                }
            }
            Owner::None | Owner::Unknown => return None,
        };
        self.found.get(&number).copied().map(Holder::Virtual)
    }

    /// Describes the owner of a lock.
    pub fn text(&self, owner: &Owner) -> String {
        match owner {
            Owner::None => "none".into(),
            Owner::Unknown => "an unknown thread".into(),
            Owner::VirtualThread { number, name: Some(name) } => {
                format!("virtual thread #{number} \"{name}\"")
            }
            Owner::VirtualThread { number, name: None } => format!("virtual thread #{number}"),
            Owner::Thread(address) => self.threads.get(address).map_or_else(
                || "an exited thread".into(),
                |thread| format!("\"{}\"", thread.name()),
            ),
        }
    }

    /// Describes a lock, its owner and what the owner does. If the owner waits for another lock, the text
    /// goes on with that lock and its owner, and so on.
    fn holder(&self, mut on: &'a BlockedOn) -> String {
        let mut text = String::new();
        let mut seen = HashSet::new();
        loop {
            text += &format!("{}, held by {}", object(on.object, &on.class), self.text(&on.owner));
            let Some(holder) = self.find(&on.owner) else { return text };
            let (identity, next) = match holder {
                Holder::Platform(thread) => {
                    let address = thread.java.as_ref().map(|java| java.address);
                    ((address, None), lock_awaited_by(thread))
                }
                Holder::Virtual(thread) => {
                    ((None, Some(thread.java.number)), owned(thread.java.blocked_on.as_ref()))
                }
            };
            if !seen.insert(identity) || seen.len() == MAX_OWNERS {
                return text + ", and so on";
            }
            match (next, holder) {
                (Some(next), _) => {
                    text += ", which waits for ";
                    on = next;
                }
                (None, Holder::Platform(thread)) => return text + &doing(thread),
                (None, Holder::Virtual(thread)) => return text + &innermost(thread),
            }
        }
    }
}

/// Returns the lock for which a thread waits; `None` if no thread owns this lock. A thread in `Object.wait`
/// does not wait for a lock.
fn lock_awaited_by(thread: &Thread) -> Option<&BlockedOn> {
    owned(thread.java.as_ref()?.blocked_on.as_ref())
}

fn owned(on: Option<&BlockedOn>) -> Option<&BlockedOn> {
    on.filter(|on| on.kind != BlockKind::Wait && on.owner != Owner::None)
}

/// Describes what a thread that waits for no lock is doing. The text is the end of a sentence; it is empty if
/// nothing is known about the thread.
fn doing(thread: &Thread) -> String {
    if let Some(call) = &thread.call {
        return format!(", which {call}");
    }
    let java = thread.java.as_ref();
    let on = java.and_then(|java| java.blocked_on.as_ref());
    let awaited = on.map(|on| object(on.object, &on.class));
    match (java.and_then(|java| java.status), awaited) {
        (Some(ThreadStatus::Sleeping), _) => ", which sleeps".into(),
        (Some(ThreadStatus::Waiting | ThreadStatus::TimedWaiting), Some(object)) => {
            format!(", which waits for a notification of {object}")
        }
        (Some(ThreadStatus::Parked | ThreadStatus::ParkedTimed), Some(object)) => {
            format!(", which is parked and waits for {object}")
        }
        (Some(ThreadStatus::Parked | ThreadStatus::ParkedTimed), None) => {
            ", which is parked".into()
        }
        _ if thread.activity == Activity::Moving => ", which runs".into(),
        _ => {
            let innermost = thread.frames.iter().find(|frame| frame.is_java());
            innermost
                .map_or_else(String::new, |frame| format!(", which is in {}", frame_text(frame)))
        }
    }
}

/// Returns the ownable synchronizers of a dump with the names of their classes, by the address of the JavaThread that
/// holds them. If the search of the heap may have missed some, those for which threads wait are added.
pub fn held_synchronizers(dump: &Dump) -> HashMap<Addr, BTreeMap<Addr, &str>> {
    let mut held: HashMap<_, BTreeMap<_, _>> = HashMap::new();
    let is_complete = dump.synchronizers.as_ref().is_some_and(|found| found.incomplete.is_none());
    let awaited = dump.threads.iter().filter_map(lock_awaited_by);
    for on in awaited.filter(|on| on.kind == BlockKind::Park && !is_complete) {
        if let Owner::Thread(owner) = on.owner {
            held.entry(owner).or_default().insert(on.object, &*on.class);
        }
    }
    for found in dump.synchronizers.iter().flat_map(|found| &found.found) {
        held.entry(found.owner).or_default().insert(found.object, &*found.class);
    }
    held
}

/// Returns a line for each lock that one thread holds while others wait for it. The line contains the number
/// of waiting threads, the lock, its owner, and what the owner does. The lock with the most waiting threads
/// is the first.
pub fn lines(threads: &[Thread], found: &[VirtualThread]) -> Vec<String> {
    let owners = Owners::of(threads, found);
    let mut locks: BTreeMap<Addr, (&BlockedOn, u64)> = BTreeMap::new();
    let found = found.iter().filter_map(|thread| owned(thread.java.blocked_on.as_ref()));
    for on in threads.iter().filter_map(lock_awaited_by).chain(found) {
        locks.entry(on.object).or_insert((on, 0)).1 += 1;
    }
    let mut locks: Vec<_> = locks.into_values().collect();
    locks.sort_by_key(|&(_, waiting)| std::cmp::Reverse(waiting));
    let line = |(on, waiting): (&BlockedOn, u64)| {
        let verb = if waiting == 1 { "waits" } else { "wait" };
        format!("{} {verb} for {}", count(waiting, "thread"), owners.holder(on))
    };
    locks.into_iter().map(line).collect()
}

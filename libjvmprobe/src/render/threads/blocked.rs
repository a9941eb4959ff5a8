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
    trace::threads::{Activity, Dump, Thread, ThreadId, VirtualThread},
};

/// Maximum number of owners in the line about a lock. Each of them waits for a lock of the next one.
const MAX_OWNERS: usize = 8;

/// The Java threads of a dump.
#[derive(Debug)]
pub struct Owners<'a> {
    threads: HashMap<ThreadId, Holder<'a>>,
    /// Whether the dump is complete, except for threads that started or exited meanwhile.
    has_all: bool,
}

/// A Java thread.
#[derive(Clone, Copy, Debug)]
pub enum Holder<'a> {
    /// A platform thread.
    Platform(&'a Thread),
    /// A virtual thread.
    Virtual(&'a VirtualThread),
}

impl<'a> Holder<'a> {
    /// Returns its name.
    pub fn name(self) -> &'a str {
        match self {
            Self::Platform(thread) => thread.name(),
            Self::Virtual(thread) => &thread.java.name,
        }
    }

    /// Returns the object that it waits for.
    pub fn blocked_on(self) -> Option<&'a BlockedOn> {
        match self {
            Self::Platform(thread) => thread.blocked_on(),
            Self::Virtual(thread) => thread.java.blocked_on.as_ref(),
        }
    }
}

impl<'a> Owners<'a> {
    /// Indexes the threads of a dump.
    pub fn of(dump: &'a Dump) -> Self {
        let platform = dump.threads.iter().filter_map(|thread| {
            let id = ThreadId::Platform(thread.java.as_ref()?.address);
            Some((id, Holder::Platform(thread)))
        });
        let found = dump.virtual_threads.iter();
        let found =
            found.map(|thread| (ThreadId::Virtual(thread.java.number), Holder::Virtual(thread)));
        Self { threads: platform.chain(found).collect(), has_all: dump.left_out.all() == 0 }
    }

    /// Returns a thread.
    pub fn get(&self, id: ThreadId) -> Option<Holder<'a>> {
        self.threads.get(&id).copied()
    }

    fn platform(&self, address: Addr) -> Option<&'a Thread> {
        match self.get(ThreadId::Platform(address)) {
            Some(Holder::Platform(thread)) => Some(thread),
            _ => None,
        }
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
            // The list of the JVM's threads is read after that of the operating system, so a new thread can be only
            // in the first.
            Owner::Thread(address) => self.platform(*address).map_or_else(
                || match self.has_all {
                    true => "a thread that started or exited during the dump".into(),
                    false => "a thread that is not in the dump".into(),
                },
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
            let mounted = |address| self.platform(address).and_then(Thread::carried);
            let Some(id) = ThreadId::of_owner(&on.owner, mounted) else { return text };
            let Some(holder) = self.get(id) else { return text };
            if !seen.insert(id) || seen.len() == MAX_OWNERS {
                return text + ", and so on";
            }
            let next = holder.blocked_on().filter(|on| on.lock_owner().is_some());
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

/// Describes what a thread that waits for no lock is doing. The text is the end of a sentence; it is empty if
/// nothing is known about the thread.
fn doing(thread: &Thread) -> String {
    if let Some(call) = &thread.call {
        return format!(", which {call}");
    }
    let awaited = thread.blocked_on().map(|on| object(on.object, &on.class));
    match (thread.java.as_ref().and_then(|java| java.status), awaited) {
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

/// The ownable synchronizers that the threads of a dump hold.
#[derive(Debug)]
pub struct Synchronizers<'a> {
    /// The synchronizers with the names of their classes, by the address of the JavaThread that holds them.
    held: HashMap<Addr, BTreeMap<Addr, &'a str>>,
    /// Why synchronizers for which no thread waits may be missing; `None` if none is.
    pub incomplete: Option<&'a str>,
}

impl<'a> Synchronizers<'a> {
    /// Returns the synchronizers of a dump; `None` if the heap was not searched. If the search may have missed some, those
    /// for which threads wait are added.
    pub fn of(dump: &'a Dump) -> Option<Self> {
        let searched = dump.synchronizers.as_ref()?;
        let incomplete = searched.incomplete.as_deref();
        let mut held: HashMap<_, BTreeMap<_, _>> = HashMap::new();
        let parked = dump.threads.iter().filter_map(Thread::blocked_on);
        for on in parked.filter(|on| on.kind == BlockKind::Park && incomplete.is_some()) {
            if let Some(&Owner::Thread(owner)) = on.lock_owner() {
                held.entry(owner).or_default().insert(on.object, &*on.class);
            }
        }
        for found in &searched.found {
            held.entry(found.owner).or_default().insert(found.object, &*found.class);
        }
        Some(Self { held, incomplete })
    }

    /// Returns the synchronizers that a thread holds, each with the name of its class; `None` if nothing is known about
    /// the thread.
    pub fn of_thread(&self, thread: Addr) -> Option<impl Iterator<Item = (Addr, &'a str)>> {
        let held = self.held.get(&thread);
        let is_known = held.is_some() || self.incomplete.is_none();
        is_known.then(|| held.into_iter().flatten().map(|(&object, &class)| (object, class)))
    }
}

/// Returns a line for each lock that one thread holds while others wait for it. The line contains the number
/// of waiting threads, the lock, its owner, and what the owner does. The lock with the most waiting threads
/// is the first.
pub fn lines(dump: &Dump, owners: &Owners<'_>) -> Vec<String> {
    let mut locks: BTreeMap<Addr, (&BlockedOn, u64)> = BTreeMap::new();
    let found = dump.virtual_threads.iter().filter_map(|thread| thread.java.blocked_on.as_ref());
    let all = dump.threads.iter().filter_map(Thread::blocked_on).chain(found);
    for on in all.filter(|on| on.lock_owner().is_some()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_without_thread_may_have_been_left_out() {
        let text =
            |has_all| Owners { threads: HashMap::new(), has_all }.text(&Owner::Thread(Addr(1)));
        assert_eq!(text(true), "a thread that started or exited during the dump");
        assert_eq!(text(false), "a thread that is not in the dump");
    }
}

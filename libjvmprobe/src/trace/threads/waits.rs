//! Threads that wait for locks of other threads. Reading them without their stacks is much cheaper than a dump.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use crate::{
    Addr, Result,
    hotspot::{
        HotSpot,
        java_threads::{BlockKind, BlockedOn, JavaThread, Owner},
        virtual_threads::VirtualThreads,
    },
    trace::threads::deadlocks::cycles,
};

/// A thread of a JVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ThreadId {
    /// A platform thread: the address of its JavaThread.
    Platform(Addr),
    /// A virtual thread: its number.
    Virtual(u64),
}

impl ThreadId {
    /// Returns the owner of a lock; `None` if it is not known. A carrier owns locks for the virtual thread that is
    /// mounted on it. `mounted` returns the number of this virtual thread.
    pub fn of_owner(owner: &Owner, mounted: impl Fn(Addr) -> Option<u64>) -> Option<Self> {
        match *owner {
            Owner::Thread(address) => {
                Some(mounted(address).map_or(Self::Platform(address), Self::Virtual))
            }
            Owner::VirtualThread { number, .. } => Some(Self::Virtual(number)),
            Owner::None | Owner::Unknown => None,
        }
    }
}

/// A thread that waits for a monitor or an ownable synchronizer of another thread. The address of the lock is not
/// included, because a collector may move the lock while the thread waits for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wait {
    /// The waiting thread.
    pub thread: ThreadId,
    /// The thread that owns the lock.
    pub owner: ThreadId,
    /// How the thread waits.
    pub kind: BlockKind,
    /// Name of the lock's class.
    pub class: Arc<str>,
    /// Address of the carrier's JavaThread if the waiting thread is a virtual thread that is mounted.
    pub carrier: Option<Addr>,
}

/// The threads of a JVM that wait for locks of others. They are read one after another, so they may not have waited at
/// the same time.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    waits: BTreeMap<ThreadId, Wait>,
    cycles: Vec<Vec<ThreadId>>,
}

/// End of a chain of threads that wait for each other's locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Root {
    /// A cycle of threads that wait for each other, given by its lowest thread.
    Cycle(ThreadId),
    /// A thread that waits for no lock.
    Thread(ThreadId),
}

impl Waits {
    /// Reads the waiting threads of a JVM: all platform threads, and at most `max_virtual_threads` virtual threads.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming the missing field, [`crate::Error::Memory`] if the JVM has exited.
    pub fn read(hotspot: &HotSpot, max_virtual_threads: usize) -> Result<Self> {
        let threads = hotspot.java_threads()?;
        let found = hotspot.virtual_threads(max_virtual_threads).unwrap_or_else(|error| {
            log::debug!("cannot read the virtual threads that wait for locks: {error}");
            VirtualThreads::default()
        });
        Ok(Self::among(threads.iter().map(|thread| (thread, true)), &found))
    }

    /// Finds the waiting threads among all threads of a JVM. Each platform thread is given with a flag. If the flag is
    /// false, neither the thread nor a virtual thread that is mounted on it counts as waiting.
    pub(super) fn among<'a>(
        platform: impl Iterator<Item = (&'a JavaThread, bool)>,
        found: &VirtualThreads,
    ) -> Self {
        let mut mounted = HashMap::new();
        let mut still = HashMap::new();
        for (thread, is_still) in platform {
            mounted.extend(thread.mounted.map(|number| (thread.address, number)));
            if is_still && !thread.is_moving {
                still.insert(thread.address, thread);
            }
        }
        let wait = |thread: ThreadId, carrier: Option<Addr>, on: &BlockedOn| {
            // The read of the platform threads does not find an owner that is a virtual thread without a carrier.
            let owner = match on.lock_owner()? {
                Owner::Unknown if on.kind == BlockKind::Enter => found.holders.get(&on.object)?,
                owner => owner,
            };
            let owner = ThreadId::of_owner(owner, |address| mounted.get(&address).copied());
            // An owner that waits for its own lock has acquired it after its wait was read.
            let owner = owner.filter(|&owner| owner != thread)?;
            Some(Wait { thread, owner, kind: on.kind, class: Arc::clone(&on.class), carrier })
        };
        let platform = still.values().filter(|thread| thread.mounted.is_none()).filter_map(
            |JavaThread { address, blocked_on, .. }| {
                wait(ThreadId::Platform(*address), None, blocked_on.as_ref()?)
            },
        );
        let found = found.threads.iter().filter(|thread| !thread.is_moving).filter_map(|thread| {
            let own = thread.blocked_on.as_ref();
            let on = match thread.carrier {
                None => own,
                Some(carrier) => {
                    let carrier = still.get(&carrier);
                    let carrier = carrier.filter(|java| java.mounted == Some(thread.number))?;
                    // The JavaThread of the carrier contains the monitor that the virtual thread waits for.
                    own.or(carrier.blocked_on.as_ref())
                }
            };
            wait(ThreadId::Virtual(thread.number), thread.carrier, on?)
        });
        Self::of(platform.chain(found))
    }

    /// Indexes waiting threads.
    pub fn of(waits: impl IntoIterator<Item = Wait>) -> Self {
        let waits: BTreeMap<_, _> = waits.into_iter().map(|wait| (wait.thread, wait)).collect();
        let owners = waits.iter().map(|(thread, wait)| (*thread, wait.owner)).collect();
        Self { cycles: cycles(&owners), waits }
    }

    /// Returns the waiting threads.
    pub fn iter(&self) -> impl Iterator<Item = &Wait> {
        self.waits.values()
    }

    /// Returns what a thread waits for.
    pub(super) fn get(&self, thread: ThreadId) -> Option<&Wait> {
        self.waits.get(&thread)
    }

    /// Returns the cycles of waiting threads. Each thread waits for the next one, and the last one for the first, which
    /// is the lowest one. Only a dump can show whether a cycle is a deadlock.
    pub fn cycles(&self) -> &[Vec<ThreadId>] {
        &self.cycles
    }

    /// Returns the threads that a thread waits for: the owner of its lock, the owner of the lock that this
    /// owner waits for, and so on. Also returns the end of this chain.
    pub fn chain(&self, wait: &Wait) -> (Vec<ThreadId>, Root) {
        let (mut owners, mut seen) = (vec![wait.owner], HashSet::from([wait.owner]));
        let mut last = wait.owner;
        while let Some(next) = self.waits.get(&last) {
            last = next.owner;
            if !seen.insert(last) {
                let lowest = self.cycles.iter().filter_map(|cycle| cycle.first());
                let lowest = lowest.copied().find(|lowest| seen.contains(lowest));
                return (owners, Root::Cycle(lowest.unwrap_or(last)));
            }
            owners.push(last);
        }
        (owners, Root::Thread(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::virtual_threads::{VirtualState, VirtualThread};

    fn id(number: u64) -> ThreadId {
        ThreadId::Platform(Addr(number))
    }

    #[test]
    fn chains_end_at_a_cycle_or_at_a_thread_that_does_not_wait() {
        let wait = |&(thread, owner): &(u64, u64)| Wait {
            thread: id(thread),
            owner: id(owner),
            kind: BlockKind::Enter,
            class: "A".into(),
            carrier: None,
        };
        let waits = Waits::of([(1, 2), (2, 3), (5, 6), (6, 7), (7, 6)].iter().map(wait));
        let ids = |all: &[u64]| all.iter().copied().map(id).collect::<Vec<_>>();
        let chain = |thread, owner| waits.chain(&wait(&(thread, owner)));
        assert_eq!(chain(1, 2), (ids(&[2, 3]), Root::Thread(id(3))));
        assert_eq!(chain(5, 6), (ids(&[6, 7]), Root::Cycle(id(6))));
        assert_eq!(chain(7, 6), (ids(&[6, 7]), Root::Cycle(id(6))));
        assert_eq!(waits.cycles(), [ids(&[6, 7])]);
    }

    fn java(address: u64, mounted: Option<u64>, blocked_on: Option<BlockedOn>) -> JavaThread {
        JavaThread {
            address: Addr(address),
            tid: None,
            object: None,
            number: None,
            name: None,
            is_daemon: None,
            priority: None,
            status: None,
            blocked_on,
            mounted,
            is_moving: false,
        }
    }

    fn found(number: u64, carrier: Option<Addr>, blocked_on: Option<BlockedOn>) -> VirtualThread {
        VirtualThread {
            object: Addr(number),
            number,
            name: "".into(),
            state: VirtualState::Parked,
            carrier,
            container: 0,
            blocked_on,
            frames: Arc::default(),
            is_moving: false,
        }
    }

    fn on(kind: BlockKind, object: u64, owner: Owner) -> Option<BlockedOn> {
        Some(BlockedOn { kind, object: Addr(object), class: "A".into(), owner })
    }

    /// The platform thread 1 waits for the virtual thread 50. That one is mounted on the carrier 2 and waits for the virtual
    /// thread 51, which is not mounted and waits for the thread 1.
    #[test]
    fn carriers_wait_and_own_for_their_virtual_threads() {
        let owner = |number| Owner::VirtualThread { number, name: None };
        let platform = [
            java(1, None, on(BlockKind::Enter, 100, Owner::Thread(Addr(2)))),
            java(2, Some(50), on(BlockKind::Enter, 101, Owner::Unknown)),
            java(3, None, on(BlockKind::Wait, 102, Owner::Thread(Addr(1)))),
        ];
        let mut all = VirtualThreads {
            threads: vec![
                found(50, Some(Addr(2)), None),
                found(51, None, on(BlockKind::Park, 103, Owner::Thread(Addr(1)))),
                found(52, None, on(BlockKind::Park, 104, owner(52))),
            ],
            holders: [(Addr(101), owner(51))].into(),
            ..VirtualThreads::default()
        };
        let waits = |all: &VirtualThreads, still: &dyn Fn(u64) -> bool| {
            Waits::among(platform.iter().map(|thread| (thread, still(thread.address.0))), all)
        };
        let cycle = vec![id(1), ThreadId::Virtual(50), ThreadId::Virtual(51)];
        let all_still = waits(&all, &|_| true);
        assert_eq!(all_still.cycles(), [cycle]);
        assert_eq!(all_still.iter().count(), 3);
        assert!(waits(&all, &|thread| thread != 2).cycles().is_empty());
        all.threads[1].is_moving = true;
        assert!(waits(&all, &|_| true).cycles().is_empty());
    }
}

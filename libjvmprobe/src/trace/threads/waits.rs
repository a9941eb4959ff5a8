//! Threads that wait for locks of other threads, read without their stacks. This is much cheaper than a dump.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use crate::{
    Addr, Result,
    hotspot::{
        HotSpot,
        java_threads::{BlockKind, JavaThread},
    },
    trace::threads::{deadlocks::cycles, dump::awaited_owner},
};

/// A thread that waits for a monitor or an ownable synchronizer of another thread. The address of the lock is not
/// included, because a collector may move the lock while the thread waits for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wait {
    /// Address of the waiting JavaThread.
    pub thread: Addr,
    /// Address of the JavaThread that owns the lock.
    pub owner: Addr,
    /// How the thread waits.
    pub kind: BlockKind,
    /// Name of the lock's class.
    pub class: Arc<str>,
}

/// The threads of a JVM that wait for locks of others. They are read one after another, so they may not have waited at
/// the same time.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// By the address of the waiting JavaThread.
    waits: BTreeMap<Addr, Wait>,
    /// The thread with the lowest address in each cycle of waiting threads.
    cycles: Vec<Addr>,
}

/// End of a chain of threads that wait for each other's locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Root {
    /// A cycle of threads that wait for each other, given by its thread with the lowest address.
    Cycle(Addr),
    /// A thread that waits for no lock.
    Thread(Addr),
}

impl Waits {
    /// Reads the waiting threads of a JVM.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming the missing field, [`crate::Error::Memory`] if the JVM has exited.
    pub fn read(hotspot: &HotSpot) -> Result<Self> {
        let threads = hotspot.java_threads()?;
        let wait = |thread: &JavaThread| {
            let (owner, on) = (awaited_owner(thread)?, thread.blocked_on.as_ref()?);
            let (kind, class) = (on.kind, Arc::clone(&on.class));
            Some(Wait { thread: thread.address, owner, kind, class })
        };
        Ok(Self::of(threads.iter().filter_map(wait)))
    }

    /// Indexes waiting threads.
    pub fn of(waits: impl IntoIterator<Item = Wait>) -> Self {
        let waits: BTreeMap<_, _> = waits.into_iter().map(|wait| (wait.thread, wait)).collect();
        let owners = waits.iter().map(|(thread, wait)| (*thread, wait.owner)).collect();
        let lowest = |cycle: Vec<Addr>| cycle.first().copied();
        let cycles = cycles(&owners).into_iter().filter_map(lowest).collect();
        Self { waits, cycles }
    }

    /// Returns the waiting threads.
    pub fn iter(&self) -> impl Iterator<Item = &Wait> {
        self.waits.values()
    }

    /// Returns the cycles of waiting threads. Only a dump can show whether they are deadlocks.
    pub fn cycles(&self) -> impl Iterator<Item = Root> {
        self.cycles.iter().copied().map(Root::Cycle)
    }

    /// Returns the threads that a thread waits for: the owner of its lock, the owner of the lock that this
    /// owner waits for, and so on. Also returns the end of this chain.
    pub fn chain(&self, wait: &Wait) -> (Vec<Addr>, Root) {
        let (mut owners, mut seen) = (vec![wait.owner], HashSet::from([wait.owner]));
        let mut last = wait.owner;
        while let Some(next) = self.waits.get(&last) {
            last = next.owner;
            if !seen.insert(last) {
                let cycle = self.cycles.iter().find(|lowest| seen.contains(lowest));
                return (owners, Root::Cycle(cycle.copied().unwrap_or(last)));
            }
            owners.push(last);
        }
        (owners, Root::Thread(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_end_at_a_cycle_or_at_a_thread_that_does_not_wait() {
        let wait = |&(thread, owner): &(u64, u64)| Wait {
            thread: Addr(thread),
            owner: Addr(owner),
            kind: BlockKind::Enter,
            class: "A".into(),
        };
        let waits = Waits::of([(1, 2), (2, 3), (5, 6), (6, 7), (7, 6)].iter().map(wait));
        let addresses = |all: &[u64]| all.iter().copied().map(Addr).collect::<Vec<_>>();
        let chain = |thread, owner| waits.chain(&wait(&(thread, owner)));
        assert_eq!(chain(1, 2), (addresses(&[2, 3]), Root::Thread(Addr(3))));
        assert_eq!(chain(5, 6), (addresses(&[6, 7]), Root::Cycle(Addr(6))));
        assert_eq!(chain(7, 6), (addresses(&[6, 7]), Root::Cycle(Addr(6))));
        assert_eq!(waits.cycles().collect::<Vec<_>>(), [Root::Cycle(Addr(6))]);
    }
}

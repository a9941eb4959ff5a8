//! Limits of a dump: its platform threads, and the memory that they take.
//!
//! If not all threads fit, the dump contains the most important ones: first the members of deadlocks, then the owners of
//! locks for which threads wait, then the threads that wait for locks of others, then the other Java threads. Threads
//! with equal stacks share their frames.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use crate::{
    Addr, Result,
    hotspot::java_threads::{JavaThread, Owner},
    stack::{Frame, raw::RawStack},
    sys::budget::Reservation,
    trace::threads::{Thread, deadlocks::cycles},
};

/// Maximum number of platform threads of a dump. A process cannot have more.
pub const MAX_THREADS: usize = 1 << 17;
/// Approximate number of bytes that a thread takes in addition to its stack, including its entries in tables.
const THREAD_BYTES: usize = size_of::<Thread>() + 1024;
/// Approximate number of bytes that a frame takes before it is named, with its registers.
const RAW_FRAME_BYTES: usize = 48;

/// Importance of a thread; the lowest is the most important one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// Member of a cycle of threads that wait for each other.
    Deadlock,
    /// Owner of a lock for which another thread waits.
    Owner,
    /// Waits for a lock of another thread, or carries a virtual thread.
    Waiting,
    /// Another Java thread.
    Java,
    /// Not a Java thread.
    Other,
}

/// Ranks of Java threads, by the addresses of their JavaThreads.
#[derive(Debug, Default)]
pub(super) struct Ranks(HashMap<Addr, Rank>);

impl Ranks {
    /// Ranks the Java threads of a JVM.
    pub(super) fn of<'a>(threads: impl Iterator<Item = &'a JavaThread> + Clone) -> Self {
        let waits = threads.clone().filter_map(|thread| {
            let owner = awaited_owner(thread)?;
            Some((thread.address, owner))
        });
        let waits: BTreeMap<_, _> = waits.collect();
        let carriers = threads.filter(|thread| thread.mounted.is_some());
        let mut ranks: HashMap<_, _> =
            carriers.map(|thread| (thread.address, Rank::Waiting)).collect();
        ranks.extend(waits.keys().map(|&waiting| (waiting, Rank::Waiting)));
        ranks.extend(waits.values().map(|&owner| (owner, Rank::Owner)));
        let members = cycles(&waits).into_iter().flatten();
        ranks.extend(members.map(|member| (member, Rank::Deadlock)));
        Self(ranks)
    }

    /// Returns the rank of a thread, given by the address of its JavaThread if it is a Java thread.
    pub(super) fn get(&self, java: Option<Addr>) -> Rank {
        let rank = |java| self.0.get(&java).copied().unwrap_or(Rank::Java);
        java.map_or(Rank::Other, rank)
    }
}

/// Returns the JavaThread that owns the lock for which a thread waits: a monitor or an ownable synchronizer. Returns
/// `None` if no listed thread owns it, or if the owner is not certain.
pub(super) fn awaited_owner(thread: &JavaThread) -> Option<Addr> {
    match thread.blocked_on.as_ref()?.lock_owner()? {
        Owner::Thread(owner) if !thread.is_moving => Some(*owner),
        _ => None,
    }
}

/// Numbers of the platform threads that are not in a dump, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Threads above the maximum number.
    pub above_max: u64,
    /// Threads that would take too much memory.
    pub memory: u64,
}

impl LeftOut {
    /// Returns the number of these threads.
    pub fn all(self) -> u64 {
        self.above_max + self.memory
    }
}

/// Shortens a list of threads to the `max` most important ones, or to those for which memory can be reserved. Returns the
/// numbers of threads that were left out. `rank` is called only if some were.
///
/// # Errors
/// The errors of `rank`.
pub(super) fn select<T, R: Fn(&T) -> Rank>(
    threads: &mut Vec<T>,
    max: usize,
    memory: &mut Reservation,
    rank: impl FnOnce() -> Result<R>,
) -> Result<LeftOut> {
    let all = threads.len();
    if all <= max && memory.reserve(all * THREAD_BYTES) {
        return Ok(LeftOut::default());
    }
    threads.sort_by_key(rank()?);
    let mut kept = 0;
    while kept < all.min(max) && memory.reserve(THREAD_BYTES) {
        kept += 1;
    }
    threads.truncate(kept);
    Ok(LeftOut { above_max: all.saturating_sub(max) as u64, memory: (all.min(max) - kept) as u64 })
}

/// Reserves memory for a stack before it is named.
pub(super) fn reserve_raw(memory: &mut Reservation, stack: &RawStack) -> bool {
    memory.reserve(stack.frames.len() * RAW_FRAME_BYTES)
}

/// A stack with names.
#[derive(Clone, Debug, Default)]
pub(super) struct Named {
    /// Frames, innermost first: those of the kernel, then the others.
    pub(super) frames: Arc<[Frame]>,
    /// For each frame of the raw stack, its position in `frames`.
    pub(super) begins: Arc<[usize]>,
}

/// The named stacks of a dump, by the ID of the kernel stack and the raw stack.
pub(super) type Stacks = HashMap<(u64, RawStack), Named>;

/// Returns the stored copy of a stack, or names it and stores the result. If no memory can be reserved for it, returns
/// `None`.
pub(super) fn named(
    stacks: &mut Stacks,
    memory: &mut Reservation,
    key: (u64, RawStack),
    name: impl FnOnce(&RawStack) -> Named,
) -> Option<Named> {
    if let Some(named) = stacks.get(&key) {
        return Some(named.clone());
    }
    let named = name(&key.1);
    let bytes = size_of_val(&*named.frames) + size_of_val(&*named.begins);
    if !memory.reserve(bytes + key.1.size()) {
        return None;
    }
    stacks.insert(key, named.clone());
    Some(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        hotspot::java_threads::{BlockKind, BlockedOn},
        stack::Kind,
        sys::budget::Budget,
    };

    /// Makes a thread that waits for a lock of another one, both given by the addresses of their JavaThreads.
    fn java(address: u64, owner: Option<u64>) -> JavaThread {
        JavaThread {
            address: Addr(address),
            tid: None,
            object: None,
            number: None,
            name: None,
            is_daemon: None,
            priority: None,
            status: None,
            blocked_on: owner.map(|owner| BlockedOn {
                kind: BlockKind::Enter,
                object: Addr(1),
                class: "A".into(),
                owner: Owner::Thread(Addr(owner)),
            }),
            mounted: None,
            is_moving: false,
        }
    }

    fn memory(bytes: usize) -> Reservation {
        // One tenant gets half of the budget.
        Reservation::within(&Budget::of(2 * bytes).share(&"a".into()))
    }

    #[test]
    fn deadlocks_owners_and_waiting_threads_are_selected_first() {
        // The threads 8 and 9 wait for each other, and the threads 3 and 4 for the thread 7.
        let all = [
            java(1, None),
            java(3, Some(7)),
            java(4, Some(7)),
            java(7, None),
            java(8, Some(9)),
            java(9, Some(8)),
        ];
        let selected = |max, bytes| {
            let mut threads = vec![0];
            threads.extend(all.iter().map(|java| java.address.0));
            let rank = || {
                let ranks = Ranks::of(all.iter());
                Ok(move |&id: &u64| ranks.get((id > 0).then_some(Addr(id))))
            };
            let left_out = select(&mut threads, max, &mut memory(bytes), rank).unwrap();
            assert_eq!(left_out.above_max, 7 - max as u64);
            assert_eq!(left_out.all() + threads.len() as u64, 7);
            threads
        };
        assert_eq!(selected(7, 1 << 20), [0, 1, 3, 4, 7, 8, 9]);
        assert_eq!(selected(6, 1 << 20), [8, 9, 7, 3, 4, 1]);
        assert_eq!(selected(3, 1 << 20), [8, 9, 7]);
        assert_eq!(selected(7, 4 * THREAD_BYTES), [8, 9, 7, 3]);
        assert!(selected(7, 0).is_empty());
    }

    #[test]
    fn equal_stacks_share_their_frames_and_new_ones_need_memory() {
        let mut stacks = Stacks::new();
        let mut memory = memory(2000);
        let name = |_: &RawStack| Named {
            frames: vec![Frame::new(Kind::Java, "a"); 10].into(),
            begins: [0].into(),
        };
        let key = |kernel| (kernel, RawStack::default());
        let first = named(&mut stacks, &mut memory, key(1), name).unwrap();
        let again = named(&mut stacks, &mut memory, key(1), |_| unreachable!()).unwrap();
        assert!(Arc::ptr_eq(&first.frames, &again.frames));
        let found = (2..10).map_while(|kernel| named(&mut stacks, &mut memory, key(kernel), name));
        assert!(found.count() < 3);
    }
}

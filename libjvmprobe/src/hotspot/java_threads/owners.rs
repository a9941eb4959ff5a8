//! Identifies the owners of monitors and synchronizers.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    hash::Hash,
    ops::Range,
    sync::Arc,
    time::Instant,
};

use super::{
    BlockKind, MonitorWords, Owner, ReadThread, StoredOwner,
    reader::{AT_ONCE, Reader},
};
use crate::{
    Addr, Result,
    hotspot::{loaded::at, pages::Pages},
};

/// `ObjectMonitor::ANONYMOUS_OWNER`: the owner of the monitor is the thread that has the monitor's object in its lock
/// stack.
pub(in crate::hotspot) const ANONYMOUS: u64 = 1;
/// `ObjectMonitor::DEFLATER_MARKER` of JDK 24 and later, the largest owner that is not the number of a thread.
pub(in crate::hotspot) const DEFLATER: u64 = 2;
/// Maximum number of objects in a lock stack (`LockStack::CAPACITY`).
pub(in crate::hotspot) const MAX_LOCKS: u64 = 8;
/// Maximum size of a thread's stack in bytes, for plausibility.
const MAX_STACK: u64 = 1 << 40;

/// Data by which a thread is recognized as the owner of a monitor.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    pub(super) thread: Addr,
    pub(super) stack: Range<u64>,
    /// Objects in its lock stack.
    pub(super) locks: Vec<Addr>,
    /// The number by which it owns monitors: that of the mounted virtual thread, if there is one.
    pub(super) owner_id: Option<u64>,
}

/// Threads that may own monitors, by their stacks and lock stacks.
#[derive(Debug, Default)]
struct Holders {
    /// Sorted by the lowest address of their stacks.
    all: Vec<Holder>,
    /// Index of the thread that has an object in its lock stack; `None` if several threads have it.
    by_object: HashMap<Addr, Option<usize>>,
    by_owner_id: HashMap<u64, Option<usize>>,
}

impl Holders {
    fn new(mut all: Vec<Holder>) -> Self {
        all.sort_by_key(|holder| holder.stack.start);
        let (mut by_object, mut by_owner_id) = (HashMap::new(), HashMap::new());
        for (index, holder) in all.iter().enumerate() {
            for &object in &holder.locks {
                insert(&mut by_object, object, index);
            }
            if let Some(id) = holder.owner_id {
                insert(&mut by_owner_id, id, index);
            }
        }
        Self { all, by_object, by_owner_id }
    }

    /// Returns the thread that has an object in its lock stack.
    fn of_object(&self, object: Addr) -> Option<&Holder> {
        self.all.get((*self.by_object.get(&object)?)?)
    }

    /// Returns the thread that owns monitors by a number.
    fn of_owner_id(&self, id: u64) -> Option<&Holder> {
        self.all.get((*self.by_owner_id.get(&id)?)?)
    }

    /// Returns the thread that has an address on its stack.
    fn of_stack(&self, address: u64) -> Option<&Holder> {
        let after = self.all.partition_point(|holder| holder.stack.start <= address);
        let holder = self.all.get(after.checked_sub(1)?)?;
        holder.stack.contains(&address).then_some(holder)
    }
}

/// Inserts a value for a key. If the key already has a different value, `None` replaces it.
fn insert<K: Hash + Eq, V: PartialEq>(map: &mut HashMap<K, Option<V>>, key: K, value: V) {
    match map.entry(key) {
        Entry::Vacant(entry) => {
            entry.insert(Some(value));
        }
        Entry::Occupied(mut entry) => {
            if entry.get().as_ref() != Some(&value) {
                entry.insert(None);
            }
        }
    }
}

impl Reader {
    /// Identifies the owners of the objects that threads wait for. `has_new` means that the JVM has threads
    /// that are not in `read`, because they started later.
    pub(super) fn owners(
        &mut self,
        pages: &mut Pages<'_>,
        read: &[ReadThread],
        has_new: bool,
        until: Instant,
    ) -> Vec<Owner> {
        let known = KnownThreads::new(read, has_new, self.has_owner_numbers);
        let monitors = read.iter().map(|thread| match thread.facts.block.as_ref()?.owner {
            StoredOwner::Monitor(words) => Some((thread, words)),
            StoredOwner::None | StoredOwner::Object { .. } => None,
        });
        let monitors: Vec<_> = monitors.flatten().collect();
        let is_open = |words: &MonitorWords| known.direct(words).is_none();
        let holders = if monitors.iter().any(|(_, words)| is_open(words)) {
            pages.clear();
            self.holders(pages, read, until)
        } else {
            Holders::default()
        };
        // The monitors are read again after the lock stacks and the bounds of stacks. So a monitor that has
        // changed meanwhile is detected.
        pages.clear();
        let are_still = pages.read_batched(&monitors, |pages, (thread, words)| {
            Instant::now() < until && self.is_still(pages, thread, words)
        });
        let mut of_monitors = HashMap::new();
        for ((thread, words), is_still) in monitors.into_iter().zip(are_still) {
            let owner = match is_still {
                true => known.owner(&words, &holders),
                false => Owner::Unknown,
            };
            of_monitors.insert(thread.address, self.named(pages, owner, &holders));
        }
        let owner = |thread: &ReadThread| match thread.facts.block.as_ref().map(|b| &b.owner) {
            Some(StoredOwner::Monitor(_)) => {
                of_monitors.remove(&thread.address).unwrap_or(Owner::Unknown)
            }
            Some(StoredOwner::Object { .. }) if thread.is_moving => Owner::Unknown,
            Some(StoredOwner::Object { java_thread, number, is_virtual, name }) => {
                known.of_object(*java_thread, *number, *is_virtual, name.clone())
            }
            Some(StoredOwner::None) | None => Owner::None,
        };
        read.iter().map(owner).collect()
    }

    /// Whether a thread still waits for a monitor that has not changed.
    fn is_still(&self, pages: &mut Pages<'_>, thread: &ReadThread, words: &MonitorWords) -> bool {
        let field = match thread.facts.block.as_ref().map(|block| block.kind) {
            Some(BlockKind::Wait) => self.offsets.waiting,
            _ => self.offsets.pending,
        };
        let monitor = at(thread.address, field).and_then(|field| pages.pointer(field));
        let now = self.monitor_words(pages, words.monitor);
        monitor.is_ok_and(|monitor| monitor == words.monitor)
            && now.is_ok_and(|now| now == Some(*words))
    }

    /// Reads the lock stacks of all threads, and the address ranges of their stacks.
    fn holders(&self, pages: &mut Pages<'_>, read: &[ReadThread], until: Instant) -> Holders {
        let mut holders = Vec::with_capacity(read.len());
        for some in read.chunks(AT_ONCE) {
            let found = pages.read_batched(some, |pages, thread| {
                (Instant::now() < until).then(|| self.holder(pages, thread.address).ok())?
            });
            holders.extend(found.into_iter().flatten());
        }
        Holders::new(holders)
    }

    pub(super) fn holder(&self, pages: &mut Pages<'_>, thread: Addr) -> Result<Holder> {
        let offsets = &self.offsets;
        let end = pages.u64(at(thread, offsets.stack_base)?)?;
        let size = pages.u64(at(thread, offsets.stack_size)?)?;
        let begin = end.checked_sub(size).filter(|_| size <= MAX_STACK).unwrap_or(end);
        let locks = self.locks(pages, thread)?;
        let owner_id = match offsets.owner_id {
            Some(field) => Some(pages.u64(at(thread, field)?)?),
            None => None,
        };
        Ok(Holder { thread, stack: begin..end, locks, owner_id })
    }

    /// Returns the objects in the lock stack of a thread. If a virtual thread is mounted, the virtual thread has locked
    /// them.
    pub(in crate::hotspot) fn locks(
        &self,
        pages: &mut Pages<'_>,
        thread: Addr,
    ) -> Result<Vec<Addr>> {
        let mut locks = Vec::new();
        if let Some((first, top)) = self.offsets.locks {
            let end = u64::from(pages.u32(at(thread, top)?)?);
            let count = end.saturating_sub(first) / 8;
            for index in 0..count.min(MAX_LOCKS) {
                let object = pages.pointer(at(thread, first.saturating_add(index * 8))?)?;
                locks.extend(self.references.lock_candidates(pages, object)?);
            }
        }
        Ok(locks)
    }

    /// Adds the owner's name if the owner is a virtual thread that is mounted.
    fn named(&mut self, pages: &mut Pages<'_>, owner: Owner, holders: &Holders) -> Owner {
        let Owner::VirtualThread { number, name: None } = owner else { return owner };
        let carrier = holders.of_owner_id(number);
        let name = carrier
            .and_then(|carrier| self.mounted_name(pages, carrier.thread, number).ok().flatten());
        Owner::VirtualThread { number, name }
    }

    /// Returns the name of the virtual thread that is mounted on a carrier, if the virtual thread has this
    /// number.
    fn mounted_name(
        &mut self,
        pages: &mut Pages<'_>,
        carrier: Addr,
        number: u64,
    ) -> Result<Option<Arc<str>>> {
        match self.mounted(pages, carrier)? {
            Some((object, fields)) if pages.u64(at(object, fields.number)?)? == number => {
                self.name(pages, object, &fields)
            }
            _ => Ok(None),
        }
    }
}

/// Threads that may own monitors, by their addresses and numbers.
#[derive(Debug)]
struct KnownThreads {
    addresses: HashSet<Addr>,
    /// The thread of each number; `None` if several threads have it.
    numbers: HashMap<u64, Option<Addr>>,
    /// Whether the numbers of all threads are known.
    has_all: bool,
    has_owner_numbers: bool,
}

impl KnownThreads {
    fn new(read: &[ReadThread], has_new: bool, has_owner_numbers: bool) -> Self {
        let mut numbers = HashMap::new();
        let mut has_all = !has_new;
        for thread in read {
            let java = thread.facts.java.as_ref().filter(|_| !thread.is_moving);
            match java {
                Some(java) => insert(&mut numbers, java.number, thread.address),
                None => has_all = false,
            }
        }
        let addresses = read.iter().map(|thread| thread.address).collect();
        Self { addresses, numbers, has_all, has_owner_numbers }
    }

    /// Returns the owner of a monitor if the monitor alone identifies it.
    fn direct(&self, words: &MonitorWords) -> Option<Owner> {
        match words.owner {
            0 => Some(Owner::None),
            number if self.has_owner_numbers => {
                let thread = self.numbers.get(&number).copied().flatten();
                thread.filter(|_| number > DEFLATER).map(Owner::Thread)
            }
            address => {
                let thread = Addr(address);
                self.addresses.contains(&thread).then_some(Owner::Thread(thread))
            }
        }
    }

    /// Returns the owner of a monitor.
    fn owner(&self, words: &MonitorWords, holders: &Holders) -> Owner {
        if let Some(owner) = self.direct(words) {
            return owner;
        }
        let holder = match (words.owner, words.locker) {
            (ANONYMOUS, 0) => holders.of_object(words.object),
            (ANONYMOUS, locker) => holders.of_stack(locker),
            (number, _) if self.has_owner_numbers => return self.of_number(number),
            (address, _) => holders.of_stack(address),
        };
        match holder {
            None => Owner::Unknown,
            Some(Holder { owner_id: Some(number), .. }) => self.of_number(*number),
            Some(holder) => Owner::Thread(holder.thread),
        }
    }

    /// Returns the thread that has a number. If the numbers of all platform threads are known, any other
    /// number is that of a virtual thread.
    fn of_number(&self, number: u64) -> Owner {
        match self.numbers.get(&number) {
            _ if number <= DEFLATER => Owner::Unknown,
            Some(Some(thread)) => Owner::Thread(*thread),
            None if self.has_all => Owner::VirtualThread { number, name: None },
            None | Some(None) => Owner::Unknown,
        }
    }

    /// Returns the thread of a `java.lang.Thread` object.
    fn of_object(
        &self,
        java_thread: Addr,
        number: u64,
        is_virtual: bool,
        name: Option<Arc<str>>,
    ) -> Owner {
        let listed = self.numbers.get(&number).copied().flatten();
        if java_thread != Addr(0) && listed == Some(java_thread) {
            Owner::Thread(java_thread)
        } else if java_thread == Addr(0) && is_virtual {
            Owner::VirtualThread { number, name: name.filter(|name| !name.is_empty()) }
        } else {
            Owner::Unknown
        }
    }
}

//! The ownable synchronizers that platform threads own, such as the `ReentrantLock`s that they hold.
//!
//! Sources: java.base's java/util/concurrent/locks/AbstractOwnableSynchronizer.java; hotspot/share/oops/markWord.hpp. The
//! JVM has no list of synchronizers, so the heap is searched for references to the `java.lang.Thread`s. If such a
//! reference is the field `exclusiveOwnerThread` of a synchronizer, its thread owns the synchronizer.
//!
//! The search must not find former copies of objects that a collector has moved, because such a copy shows the owner that
//! the object had then. Collectors overwrite the header of the former copy by the object's new address, except for full
//! collections of Parallel. Memory with a former copy may be in use again, but not completely: a new object may have
//! overwritten the first word of the header only. In both cases the former copy is in unused memory, which the module
//! `unused` finds.
//!
//! ZGC stores new addresses elsewhere, and CMS does not mark unused memory. So their heaps are not searched.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    heap_pages::{LATE, visit},
    held::{BIASED, BIASED_BITS, INFLATED, LOCK_BITS, UNLOCKED},
    reader::Reader,
    unused::{remove_in_fillers, unused_parts},
    words::Words,
};
use crate::{
    Addr, Result,
    hotspot::{
        Collector, flags::Flags, heap, layout::Item, loaded::at, pages::Pages, resolved::Layout,
        threads,
    },
    process::{memory::Memory, reader::within},
};

/// Maximum time of the search. Reads fail after twice this time.
const MAX_TIME: Duration = Duration::from_secs(10);
/// Maximum number of searches. A search is repeated if the collector ran during it.
const MAX_TRIES: usize = 3;
/// Maximum number of references to threads that are examined.
const MAX_CANDIDATES: usize = 1 << 18;
/// Number of objects that are read together.
const AT_ONCE: usize = 512;
/// Bits of a header from this one on are 0 in an object that is not locked (`markWord::hash_bits` and `hash_shift`), unless
/// the header is compact.
const HASH_END: u32 = 42;

/// The ownable synchronizers that platform threads own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedSynchronizers {
    /// The synchronizers, by address.
    pub found: Vec<OwnedSynchronizer>,
    /// Why some may be missing; `None` if none is.
    pub incomplete: Option<String>,
}

/// A synchronizer with its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedSynchronizer {
    /// Address of the JavaThread that owns it.
    pub owner: Addr,
    /// The object's address.
    pub object: Addr,
    /// Name of its class as in Java source.
    pub class: Arc<str>,
}

/// Searches the heap for the ownable synchronizers that platform threads own.
///
/// # Errors
/// [`crate::Error::Unsupported`] for ZGC and CMS, [`crate::Error::Layout`] naming the missing field,
/// [`crate::Error::Memory`] if the JVM has exited.
pub(in crate::hotspot) fn owned(memory: &Memory, layout: &Layout) -> Result<OwnedSynchronizers> {
    let flags = Flags::read(memory, layout)?;
    let collector = Collector::from_flags(memory, &flags, layout.major);
    let until = Instant::now() + MAX_TIME;
    within(MAX_TIME * 2, || {
        let mut reader = Reader::new(memory, layout)?;
        for _ in 0..MAX_TRIES {
            let before = Heap::read(&reader, collector)?;
            let mut owned = Search { reader: &mut reader, heap: &before, until }.run()?;
            let after = Heap::read(&reader, collector)?;
            if before.is_still(&after) {
                let threads: HashSet<_> = after.owners.values().collect();
                owned.found.retain(|found| threads.contains(&found.owner));
                return Ok(owned);
            }
            if Instant::now() >= until {
                break;
            }
        }
        // The objects that were found may be former copies.
        let incomplete = Some("collections took place during the search".into());
        Ok(OwnedSynchronizers { incomplete, found: Vec::new() })
    })
}

/// State of the heap before or after a search.
struct Heap {
    collector: Collector,
    /// The parts that contain objects.
    ranges: Vec<Range<Addr>>,
    /// Number of collections so far.
    collections: u32,
    /// The JavaThreads, by the addresses of their `java.lang.Thread`s.
    owners: HashMap<Addr, Addr>,
}

impl Heap {
    fn read(reader: &Reader, collector: Collector) -> Result<Self> {
        let Reader { memory, layout, .. } = reader;
        let threads = threads::addresses(memory, layout)?;
        let pages = &mut Pages::scattered(memory);
        let objects = pages.read_batched(&threads, |pages, &thread| {
            reader.root(pages, at(thread, reader.offsets.object).ok()?).ok().flatten()
        });
        let owners = objects.into_iter().zip(threads);
        let heap = memory.pointer(layout.address(Item::CollectedHeap)?)?;
        Ok(Self {
            collector,
            ranges: heap::ranges(memory, layout, collector)?,
            collections: memory.u32(at(heap, layout.get(Item::TotalCollections)?)?)?,
            owners: owners.filter_map(|(object, thread)| Some((object?, thread))).collect(),
        })
    }

    /// Returns whether no object was moved until a later state. Threads may have started or exited meanwhile.
    fn is_still(&self, later: &Self) -> bool {
        let objects: HashMap<_, _> =
            later.owners.iter().map(|(object, thread)| (thread, object)).collect();
        self.collections == later.collections
            && self
                .owners
                .iter()
                .all(|(object, thread)| objects.get(thread).is_none_or(|now| *now == object))
    }
}

/// One search.
struct Search<'a> {
    reader: &'a mut Reader,
    heap: &'a Heap,
    until: Instant,
}

impl Search<'_> {
    fn run(mut self) -> Result<OwnedSynchronizers> {
        let Heap { collector, ranges, owners, .. } = self.heap;
        let memory = self.reader.memory.clone();
        // The owner is the only field of `AbstractOwnableSynchronizer`, and so the first one of its subclasses.
        let field = self.reader.references.first_reference();
        let end_of_field = field + self.reader.references.width() as u64;
        let (candidates, mut incomplete) = self.candidates(field)?;
        let pages = &mut Pages::scattered(&memory);
        let mut found: Vec<OwnedSynchronizer> = Vec::new();
        for some in candidates.chunks(AT_ONCE) {
            pages.clear();
            let confirmed = pages.read_batched(some, |pages, &object| {
                self.owned(pages, object, field).ok().flatten()
            });
            found.extend(confirmed.into_iter().flatten());
            if Instant::now() >= self.until {
                incomplete = Some(LATE);
                break;
            }
        }
        found.sort_by_key(|found| found.object);
        let threads: Vec<_> = owners.values().copied().collect();
        let unused = unused_parts(self.reader, *collector, ranges, &threads);
        found.retain(|found| {
            let end = Addr(found.object.0.saturating_add(end_of_field));
            !unused.iter().any(|part| part.start < end && found.object < part.end)
        });
        if *collector == Collector::Parallel {
            let why = remove_in_fillers(self.reader, ranges, &unused, self.until, &mut found)?;
            incomplete = incomplete.or(why);
        }
        Ok(OwnedSynchronizers { found, incomplete: incomplete.map(Into::into) })
    }

    /// Returns the addresses at which a synchronizer would lie if a reference to a thread were its field for the owner.
    /// Also returns why addresses may be missing.
    fn candidates(&self, field: u64) -> Result<(Vec<Addr>, Option<&'static str>)> {
        let Heap { ranges, owners, .. } = self.heap;
        let references = &self.reader.references;
        let encoded = |&object: &Addr| references.encoded(object);
        let words = Words::new(references.width(), owners.keys().filter_map(encoded));
        let mut candidates = Vec::new();
        let incomplete = visit(&self.reader.memory, ranges, self.until, |start, bytes| {
            words.find(bytes, |offset| {
                let object = start.checked_add(offset as u64);
                candidates.extend(object.and_then(|at| at.0.checked_sub(field)).map(Addr));
            });
            candidates.len() <= MAX_CANDIDATES
        })?;
        candidates.truncate(MAX_CANDIDATES);
        // The pages that were read may begin before a range and end after it.
        candidates.retain(|object| {
            let is_in = |range: &Range<Addr>| range.contains(object);
            object.0.is_multiple_of(8) && ranges.iter().any(is_in)
        });
        Ok((candidates, incomplete))
    }

    /// Returns a synchronizer if there is one at an address and a thread owns it.
    fn owned(
        &mut self,
        pages: &mut Pages<'_>,
        object: Addr,
        field: u64,
    ) -> Result<Option<OwnedSynchronizer>> {
        let owner = self.reader.references.read_reference(pages, object, field)?;
        let owner = owner.and_then(|owner| self.heap.owners.get(&owner)).copied();
        let Some(owner) = owner else { return Ok(None) };
        let klass = self.reader.references.class_of(pages, object)?;
        let class = self.reader.class(pages, klass)?;
        let Some(synchronizer) = class.synchronizer else { return Ok(None) };
        let is_owner = self.reader.owner_field(pages, synchronizer)? == field;
        let is_owner = is_owner && self.has_header(pages, object)?;
        Ok(is_owner.then_some(OwnedSynchronizer { owner, object, class: class.name }))
    }

    /// Returns whether the first word of a supposed object is that of an object that was not moved. A thread may have
    /// locked the object's monitor, too.
    fn has_header(&mut self, pages: &mut Pages<'_>, object: Addr) -> Result<bool> {
        let word = pages.u64(object)?;
        let header = self.reader.references.array_header();
        // The word may also be the second one of the header of an array, or contain the array's length.
        let before = Addr(object.0.saturating_sub(8));
        if header.is_unlocked(pages.u64(before)?) {
            let klass = self.reader.references.class_of(pages, before)?;
            if self.reader.is_filler(pages, klass) {
                return Ok(false);
            }
        }
        if header.is_compact() {
            return Ok(matches!(word & LOCK_BITS, UNLOCKED | INFLATED));
        }
        Ok(match word & LOCK_BITS {
            UNLOCKED => word & BIASED_BITS == BIASED || word >> HASH_END == 0,
            INFLATED => {
                let words = self.reader.monitor_words(pages, Addr(word & !LOCK_BITS));
                words.ok().flatten().is_some_and(|words| words.object == object)
            }
            _ => false,
        })
    }
}

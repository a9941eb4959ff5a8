//! Recipe for computing the used bytes of the Java heap from a JVM's own structures.
//!
//! The result is not a number but a recipe: a sum of a few words of memory that a BPF program can read in the
//! target's context while a probe is hit. The C++ objects that describe a heap do not move, so this module
//! follows all pointers to them once. The BPF program follows only the pointers to spaces and regions.
//! Sources: HotSpot's gc/*/*.hpp, with the fields that vmStructs_*.hpp exports, JDK 8 to 28.
//!
//! The head of `layout` lists what changed from JDK to JDK.

use std::ops::Range;

use crate::{
    Addr, Error, Result,
    hotspot::{Collector, layout::Item, perfdata::PerfData, resolved::Layout},
    process::memory::Memory,
};

/// One term of the sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Term {
    /// The word at an address.
    Direct {
        /// The address.
        addr: Addr,
    },
    /// The difference of two addresses in the object that describes a space: the distance from the space's
    /// bottom to its top or end.
    Span {
        /// Address of the pointer to the object. Young collections swap the survivor spaces by swapping such
        /// pointers.
        holder: Addr,
        /// Offset in the object of the word with the end address.
        end_offset: u64,
        /// Offset in the object of the word with the start address.
        start_offset: u64,
        /// Address of the dummy object to which the pointer refers if there is no space; `None` if the JVM
        /// has no dummy object.
        none: Option<Addr>,
    },
    /// A number of free 8-byte words in a space, which is subtracted.
    FreeWords {
        /// The address.
        addr: Addr,
    },
    /// CMS's lists of free chunks, whose total size is subtracted. The n-th list has chunks of n words.
    FreeLists {
        /// Address of the first list's number of chunks.
        first: Addr,
        /// Distance in bytes to the next list.
        stride: u64,
    },
}

/// `ZValueStorage::offset`: distance in bytes between ZGC's values for successive NUMA nodes.
pub(super) const Z_VALUE_STRIDE: u64 = 4096;
/// End of the addresses of processes: 47 bits on x86-64, 48 on aarch64.
const MAX_ADDRESS: u64 = 1 << 48;
/// Maximum number of NUMA nodes. A gauge holds at most eight terms, and each node needs at least one.
pub(super) const MAX_NODES: u32 = 8;
/// Maximum distance in bytes of `G1CollectedHeap::_allocator` before `_summary_bytes_used`; in JDK 11
/// to 28 the field `_verifier` is between these two fields.
const ALLOCATOR_WITHIN: u64 = 64;
/// Number of bytes of a `G1Allocator` that are searched for a `MutatorAllocRegion` or for a pointer to an
/// array of them.
const ALLOCATOR_SIZE: u64 = 64;

struct Reader<'a> {
    memory: &'a Memory,
    layout: &'a Layout,
}

/// Returns the recipe for a collector's heap. Whenever the sum is computed, it equals what the JVM's own
/// `used()` returns at that instant, to the byte. For G1 there is no recipe if libjvm.so has no symbol table.
///
/// `None` means that the JVM has not set up its heap yet.
///
/// # Errors
/// The reason why the used size cannot be determined.
pub(super) fn used(
    memory: &Memory,
    layout: &Layout,
    collector: Collector,
) -> Result<Option<Vec<Term>>, String> {
    match (Reader { memory, layout }).used(collector) {
        Ok(terms) => Ok(Some(terms)),
        Err(Why::NotYet) => Ok(None),
        Err(Why::Unknown(why)) => Err(why),
    }
}

/// Returns the address ranges that contain the objects of a collector's heap. For collectors whose heaps have regions,
/// this is the complete reserved range.
///
/// # Errors
/// [`Error::Unsupported`] for ZGC and CMS, [`Error::Layout`] naming the missing field.
pub(super) fn ranges(
    memory: &Memory,
    layout: &Layout,
    collector: Collector,
) -> Result<Vec<Range<Addr>>> {
    match collector {
        Collector::Z | Collector::GenerationalZ | Collector::Cms => {
            let what = format!("the heap of {} is not searched", collector.name());
            Err(Error::Unsupported { what })
        }
        Collector::G1 | Collector::Shenandoah | Collector::GenerationalShenandoah => {
            let heap = memory.pointer(layout.address(Item::CollectedHeap)?)?;
            let region = plus(heap, layout.get(Item::ReservedHeap)?)?;
            let start = memory.pointer(plus(region, layout.get(Item::RegionStart)?)?)?;
            let words = memory.u64(plus(region, layout.get(Item::RegionWords)?)?)?;
            let end = plus(start, words.saturating_mul(8))?;
            if end.0 > MAX_ADDRESS {
                return Err(Error::layout("the addresses of the heap are implausible"));
            }
            Ok(vec![start..end])
        }
        _ => {
            let terms = used(memory, layout, collector).map_err(Error::layout)?;
            let range = |term: &Term| match *term {
                Term::Span { holder, end_offset, start_offset, .. } => {
                    let space = memory.pointer(holder).ok()?;
                    let word = |offset| memory.pointer(space.checked_add(offset)?).ok();
                    Some(word(start_offset)?..word(end_offset)?)
                }
                _ => None,
            };
            Ok(terms.iter().flatten().filter_map(range).collect())
        }
    }
}

/// The reason why there is no recipe.
#[derive(Debug)]
enum Why {
    /// The heap is not set up yet.
    NotYet,
    /// A field is missing, or the layout differs from the known ones.
    Unknown(String),
}

impl Why {
    fn unknown(why: impl Into<String>) -> Self {
        Self::Unknown(why.into())
    }
}

impl From<Error> for Why {
    fn from(error: Error) -> Self {
        Self::Unknown(error.to_string())
    }
}

type RecipeResult<T> = std::result::Result<T, Why>;

/// Returns the address in a pointer; fails with `NotYet` if it is null.
fn set_up(pointer: Addr) -> RecipeResult<Addr> {
    if pointer == Addr(0) { Err(Why::NotYet) } else { Ok(pointer) }
}

/// Returns the addresses of the counters of used bytes of all spaces in the performance data. Their sum is
/// the heap size that the JVM's log prints after a collection.
///
/// The result is empty for most collectors. Exceptions are the collectors that set these counters at the end
/// of a collection and then, still within the operation, allocate the object for which there was no free
/// space before the collection. Their heaps are `GenCollectedHeap`, `SerialHeap` and `ParallelScavengeHeap`.
pub(super) fn used_at_gc_end(base: Addr, data: &PerfData, collector: Collector) -> Vec<Addr> {
    if !allocates_after_collection(collector) {
        return Vec::new();
    }
    data.names()
        .filter(|name| name.starts_with("sun.gc.generation.") && name.ends_with(".used"))
        .filter_map(|name| base.checked_add(data.offset(name)? as u64))
        .collect()
}

/// Whether the collector allocates after a collection within the same operation: see [`used_at_gc_end`].
pub(super) fn allocates_after_collection(collector: Collector) -> bool {
    matches!(collector, Collector::Serial | Collector::Parallel | Collector::Cms)
}

fn plus(addr: Addr, offset: u64) -> Result<Addr> {
    addr.checked_add(offset).ok_or_else(|| Error::layout("an address overflows"))
}

impl Reader<'_> {
    fn used(&self, collector: Collector) -> RecipeResult<Vec<Term>> {
        let heap = self.layout.address(Item::CollectedHeap)?;
        let heap = set_up(self.memory.pointer(heap)?)?;
        match collector {
            Collector::Serial => self.serial(heap),
            Collector::Parallel => self.parallel(heap),
            Collector::Cms => self.cms(heap),
            Collector::G1 => self.g1(heap),
            Collector::Z => self.z(heap, false),
            Collector::GenerationalZ => self.z(heap, true),
            Collector::Shenandoah | Collector::GenerationalShenandoah => self.shenandoah(heap),
            Collector::Epsilon => Ok(vec![self.contiguous(self.field(heap, Item::EpsilonSpace)?)?]),
            Collector::Unknown => Err(Why::NotYet),
        }
    }

    /// Returns the address of an object's field.
    fn field(&self, object: Addr, field: Item) -> RecipeResult<Addr> {
        Ok(plus(object, self.layout.get(field)?)?)
    }

    /// Returns the object that an object's field points to.
    fn follow(&self, object: Addr, field: Item) -> RecipeResult<Addr> {
        set_up(self.memory.pointer(self.field(object, field)?)?)
    }

    fn serial(&self, heap: Addr) -> RecipeResult<Vec<Term>> {
        let (young, old) = self.generations(heap)?;
        let mut terms = self.young(young)?;
        terms.push(self.contiguous(self.field(old, Item::SerialTenured)?)?);
        Ok(terms)
    }

    /// Returns the young and the old generation of Serial and CMS.
    fn generations(&self, heap: Addr) -> RecipeResult<(Addr, Addr)> {
        if self.layout.has(Item::Generations) {
            // JDK 8 has an array of two generations.
            let young = self.field(heap, Item::Generations)?;
            let old = plus(young, 8)?;
            return Ok((set_up(self.memory.pointer(young)?)?, set_up(self.memory.pointer(old)?)?));
        }
        Ok((self.follow(heap, Item::SerialYoung)?, self.follow(heap, Item::SerialOld)?))
    }

    /// Terms for eden and the survivor space in use, for Serial and for CMS (`ParNewGeneration`).
    fn young(&self, young: Addr) -> RecipeResult<Vec<Term>> {
        Ok(vec![
            self.contiguous(self.field(young, Item::SerialEden)?)?,
            self.contiguous(self.field(young, Item::SerialFrom)?)?,
        ])
    }

    fn contiguous(&self, holder: Addr) -> RecipeResult<Term> {
        Ok(Term::Span {
            holder,
            end_offset: self.layout.get(Item::ContiguousTop)?,
            start_offset: self.layout.get(Item::ContiguousBottom)?,
            none: None,
        })
    }

    /// Terms for CMS. The used part of its old generation is the complete space minus the free memory, which
    /// is counted in words (`CompactibleFreeListSpace::free()`).
    fn cms(&self, heap: Addr) -> RecipeResult<Vec<Term>> {
        let (young, old) = self.generations(heap)?;
        let holder = self.field(old, Item::CmsSpace)?;
        let space = self.follow(old, Item::CmsSpace)?;
        let dictionary = self.follow(space, Item::CmsDictionary)?;
        let block = self.field(space, Item::CmsBlock)?;
        let lists = self.field(space, Item::CmsLists)?;
        let mut terms = self.young(young)?;
        terms.extend([
            Term::Span {
                holder,
                end_offset: self.layout.get(Item::CmsEnd)?,
                start_offset: self.layout.get(Item::CmsBottom)?,
                none: None,
            },
            Term::FreeWords { addr: self.field(dictionary, Item::CmsTreeSize)? },
            Term::FreeWords { addr: self.field(block, Item::CmsBlockSize)? },
            Term::FreeLists {
                first: self.field(lists, Item::CmsListCount)?,
                stride: self.layout.get(Item::CmsListSize)?,
            },
        ]);
        Ok(terms)
    }

    /// Terms for G1. G1's own sum does not include the region from which the application currently allocates.
    /// G1 adds the region when it is full or a collection begins. Until then, only the `MutatorAllocRegion`s
    /// show how much of the region is used (`G1CollectedHeap::used()`,
    /// `G1Allocator::used_in_alloc_regions()`). vmStructs does not export these objects.
    fn g1(&self, heap: Addr) -> RecipeResult<Vec<Term>> {
        let vtable = plus(self.layout.address(Item::G1AllocRegionTable)?, 16)?;
        let dummy = self.layout.address(Item::G1DummyRegion)?;
        // In JDK 8 the allocator holds the sum; in later JDKs the pointer to the allocator is a few words
        // before the sum.
        let (summary, allocators) = if self.layout.has(Item::G1AllocatorBytes) {
            let at = self.follow(heap, Item::G1Allocator)?;
            (self.field(at, Item::G1AllocatorBytes)?, vec![at])
        } else {
            let summary = self.field(heap, Item::G1Bytes)?;
            let before = Addr(summary.0.saturating_sub(ALLOCATOR_WITHIN));
            (summary, self.words(before, ALLOCATOR_WITHIN)?)
        };
        let region = allocators.into_iter().find_map(|at| self.alloc_region(at, vtable));
        let mut region = region.ok_or(Why::NotYet)?;
        let retained = self.retained_offset(region)?;
        let none = set_up(self.memory.pointer(dummy)?)?;
        let end_offset = self.layout.get(Item::G1RegionTop)?;
        let start_offset = self.layout.get(Item::G1RegionBottom)?;
        let span = |holder| Term::Span { holder, end_offset, start_offset, none: Some(none) };
        let mut terms = vec![Term::Direct { addr: summary }];
        // One `MutatorAllocRegion` for each NUMA node in use.
        for _ in 0..MAX_NODES {
            terms.push(span(plus(region, 8)?));
            let Some(retained) = retained else { break };
            terms.push(span(plus(region, retained)?));
            region = plus(region, retained + 8)?;
            if self.memory.pointer(region).ok() != Some(vtable) {
                break;
            }
        }
        Ok(terms)
    }

    /// Searches for a `MutatorAllocRegion` in a supposed `G1Allocator`, or in an array that it points to.
    fn alloc_region(&self, allocator: Addr, vtable: Addr) -> Option<Addr> {
        let words = self.words(allocator, ALLOCATOR_SIZE).ok()?;
        words.into_iter().enumerate().find_map(|(i, word)| {
            if word == vtable {
                return allocator.checked_add(i as u64 * 8);
            }
            let is_array = self.memory.pointer(word).is_ok_and(|first| first == vtable);
            is_array.then_some(word)
        })
    }

    /// Returns the offset of `_retained_alloc_region` in a `MutatorAllocRegion`; `None` if it has none.
    ///
    /// `G1AllocRegion` has these fields, in this order: virtual table, `_alloc_region`, `_count`,
    /// `_used_bytes_before` (until JDK 24), `_bot_updates` (until JDK 19), `_name`, and `_node_index` (from
    /// JDK 14 on). The subclass adds `_wasted_bytes` and `_retained_alloc_region`. `_name` is found by its
    /// text. The distance from `_name` to `_retained_alloc_region` depends only on the JDK.
    fn retained_offset(&self, region: Addr) -> RecipeResult<Option<u64>> {
        let is_name = |offset: &u64| {
            let name = plus(region, *offset).and_then(|at| self.memory.pointer(at));
            let name = name.and_then(|name| self.memory.c_string(name, 64));
            name.is_ok_and(|name| name == "Mutator Alloc Region")
        };
        let name = [24, 32, 40].into_iter().find(is_name);
        let name =
            name.ok_or_else(|| Why::unknown("the layout of G1's MutatorAllocRegion is unknown"))?;
        match self.layout.major {
            8 => Ok(None),
            11..=13 => Ok(Some(name + 16)),
            14.. => Ok(Some(name + 24)),
            other => Err(Why::unknown(format!("JDK {other} is not supported"))),
        }
    }

    fn words(&self, at: Addr, bytes: u64) -> RecipeResult<Vec<Addr>> {
        let bytes = self.memory.read(at, bytes as usize)?;
        let (words, _) = bytes.as_chunks::<8>();
        Ok(words.iter().map(|word| Addr(u64::from_ne_bytes(*word))).collect())
    }

    fn parallel(&self, heap: Addr) -> RecipeResult<Vec<Term>> {
        let generation = |fixed, field| -> RecipeResult<Addr> {
            let fixed = self.layout.try_address(fixed);
            let holder = fixed.map_or_else(|| self.field(heap, field), Ok)?;
            set_up(self.memory.pointer(holder)?)
        };
        let young = generation(Item::ParallelYoungStatic, Item::ParallelYoung)?;
        let old = generation(Item::ParallelOldStatic, Item::ParallelOld)?;
        let start_offset = self.layout.get(Item::MutableBottom)?;
        let end_offset = self.layout.get(Item::MutableTop)?;
        let span = |holder| Term::Span { holder, end_offset, start_offset, none: None };
        Ok(vec![
            span(self.field(young, Item::ParallelEden)?),
            span(self.field(young, Item::ParallelFrom)?),
            span(self.field(old, Item::ParallelObjects)?),
        ])
    }

    fn z(&self, heap: Addr, generational: bool) -> RecipeResult<Vec<Term>> {
        // JDK 21 to 23 have both variants; the class names of the non-generational one begin with an X.
        if self.layout.has(Item::XUsed) && !generational {
            let heap = self.field(heap, Item::XHeapOfHeap)?;
            let allocator = self.field(heap, Item::XAllocator)?;
            return Ok(vec![Term::Direct { addr: self.field(allocator, Item::XUsed)? }]);
        }
        // ZHeap is embedded in ZCollectedHeap, not referred to by a pointer.
        let heap = self.field(heap, Item::ZHeapOfHeap)?;
        let allocator = self.field(heap, Item::ZAllocator)?;
        if self.layout.has(Item::ZUsed) {
            return Ok(vec![Term::Direct { addr: self.field(allocator, Item::ZUsed)? }]);
        }
        // One partition for each NUMA node.
        let nodes = self.memory.u32(self.layout.address(Item::ZNodes)?)?;
        if !(1..=MAX_NODES).contains(&nodes) {
            // A gauge has no terms for more nodes.
            return Err(Why::unknown(format!(
                "the JVM uses {nodes} NUMA nodes, but at most {MAX_NODES} are supported"
            )));
        }
        let partitions = self.field(allocator, Item::ZPartitions)?;
        let first = self.follow(partitions, Item::ZPartitionAddr)?;
        (0..u64::from(nodes))
            .map(|node| {
                let partition = plus(first, node * Z_VALUE_STRIDE)?;
                Ok(Term::Direct { addr: self.field(partition, Item::ZPartitionUsed)? })
            })
            .collect()
    }

    fn shenandoah(&self, heap: Addr) -> RecipeResult<Vec<Term>> {
        let addr = if self.layout.has(Item::ShenandoahUsed) {
            self.field(heap, Item::ShenandoahUsed)?
        } else if self.layout.has(Item::ShenandoahFreeUsed) {
            let free_set = self.follow(heap, Item::ShenandoahFreeSet)?;
            self.field(free_set, Item::ShenandoahFreeUsed)?
        } else {
            let global = self.follow(heap, Item::ShenandoahGlobal)?;
            self.field(global, Item::ShenandoahGlobalUsed)?
        };
        Ok(vec![Term::Direct { addr }])
    }
}

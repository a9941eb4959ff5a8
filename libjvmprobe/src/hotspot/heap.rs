//! How to compute the used bytes of the Java heap from a JVM's own structures.
//!
//! The result is not a number but a recipe: a sum of a few words of memory that
//! a BPF program can read in the target's context, at the very instant of a
//! probe. The C++ objects that describe a heap do not move, so that all but the
//! last steps are walked here, once. Sources: HotSpot's gc/*/*.hpp, the fields
//! as vmStructs_*.hpp exports them, JDK 8 to 28.
//!
//! What changed, as far as it is of interest here:
//!
//! | JDK | |
//! |---|---|
//! | 9 | the generations of Serial and CMS are two fields, no array |
//! | 10 | G1 keeps a second region that it allocates from (used since 11) |
//! | 14 | CMS is gone; `MutableSpace` has all fields of `ImmutableSpace`; G1 allocates by NUMA node |
//! | 21 to 23 | ZGC without generations is called X |
//! | 22 | `Space` is part of `ContiguousSpace`; `SerialHeap` has its own fields |
//! | 23 | `HeapRegion` is `G1HeapRegion` |
//! | 24 | Shenandoah's count is that of its global generation |
//! | 25 | ZGC counts by NUMA node |
//! | 26 | Shenandoah's count is that of its free set |
//! | 27 | the generations of Parallel are fields of the heap, no statics |

use crate::{
    Addr, Error, Result,
    hotspot::{Collector, perfdata::PerfData, vmstructs::VmStructs},
    process::memory::Memory,
};

/// One summand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    /// The word at an address.
    Direct {
        /// The address.
        addr: Addr,
    },
    /// A word of the object that a pointer points to.
    Indirect {
        /// Where the pointer is.
        holder: Addr,
        /// The word's offset.
        offset: u64,
    },
    /// The difference of two words of that object: a space from its bottom to its top.
    Span {
        /// Where the pointer is. Young collections swap the survivor spaces by
        /// swapping such pointers.
        holder: Addr,
        /// The upper word's offset.
        end_offset: u64,
        /// The lower word's offset.
        start_offset: u64,
        /// The object that stands for none, where there is one.
        none: Option<Addr>,
    },
    /// A number of free words of 8 bytes within a span, to be subtracted.
    FreeWords {
        /// The address.
        addr: Addr,
    },
    /// CMS's lists of free chunks, the n-th with chunks of n words, to be subtracted.
    FreeLists {
        /// Where the first list keeps its number of chunks.
        first: Addr,
        /// How far the next list is.
        stride: u64,
    },
}

/// `ZValueStorage::offset`: how far apart ZGC keeps its per-node values.
const Z_VALUE_STRIDE: u64 = 4096;
/// As many NUMA nodes as a gauge has terms.
const MAX_NODES: u32 = 8;
/// `G1CollectedHeap::_allocator` comes that many bytes or fewer before
/// `_summary_bytes_used`; with the verifier between them in JDK 11 to 28.
const ALLOCATOR_WITHIN: u64 = 64;
/// `G1Allocator` has its regions for the application within so many bytes.
const ALLOCATOR_SIZE: u64 = 64;

/// How the names of the private statics begin that [`used`] asks for.
pub const PRIVATES: [&str; 2] = [MUTATOR_ALLOC_REGION, DUMMY_REGION];
/// `MutatorAllocRegion`'s virtual table.
const MUTATOR_ALLOC_REGION: &str = "_ZTV18MutatorAllocRegion";
/// `G1AllocRegion::_dummy_region`, which stands for no region and looks full.
const DUMMY_REGION: &str = "_ZN13G1AllocRegion13_dummy_regionE";

struct Reader<'a> {
    memory: &'a Memory,
    structs: &'a VmStructs,
}

/// The recipe for a collector's heap: what the JVM's own `used()` says at that instant, to
/// the byte.
///
/// `private` finds a symbol of one of the names [`PRIVATES`]; G1's heap is unknown without.
/// `None` means that the JVM has not set up its heap yet.
///
/// # Errors
/// Why it cannot be known.
pub fn used(
    memory: &Memory,
    structs: &VmStructs,
    collector: Collector,
    major: u32,
    private: impl Fn(&str) -> Option<Addr>,
) -> Result<Option<Vec<Term>>, String> {
    let reader = Reader { memory, structs };
    match reader.used(collector, major, private) {
        Ok(terms) => Ok(Some(terms)),
        Err(Why::NotYet) => Ok(None),
        Err(Why::Unknown(why)) => Err(why),
    }
}

/// Why there is no recipe.
#[derive(Debug)]
enum Why {
    /// The heap is not set up yet.
    NotYet,
    /// A field is missing, or the layout is another one.
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

type Found<T> = std::result::Result<T, Why>;

/// The place that a pointer points to, once it does.
fn set_up(pointer: Addr) -> Found<Addr> {
    if pointer == Addr(0) { Err(Why::NotYet) } else { Ok(pointer) }
}

/// The used counters of all spaces in the performance data, of those collectors that set
/// them at the end of each collection and then, inside the same operation, allocate what had
/// not fitted before: `GenCollectedHeap`, `SerialHeap` and `ParallelScavengeHeap`. The heap
/// that the JVM's log tells after a collection is the sum of these.
pub fn settled(base: Addr, data: &PerfData, collector: Collector) -> Vec<Addr> {
    if !settles(collector) {
        return Vec::new();
    }
    data.names()
        .filter(|name| name.starts_with("sun.gc.generation.") && name.ends_with(".used"))
        .filter_map(|name| base.checked_add(data.offset(name)? as u64))
        .collect()
}

/// Whether the end of an operation is not the end of its collection: see [`settled`].
pub fn settles(collector: Collector) -> bool {
    matches!(collector, Collector::Serial | Collector::Parallel | Collector::Cms)
}

fn plus(addr: Addr, offset: u64) -> Result<Addr> {
    addr.checked_add(offset).ok_or_else(|| Error::layout("an address wraps"))
}

impl Reader<'_> {
    fn used(
        &self,
        collector: Collector,
        major: u32,
        private: impl Fn(&str) -> Option<Addr>,
    ) -> Found<Vec<Term>> {
        let heap = self.structs.static_field("Universe", "_collectedHeap")?;
        let heap = set_up(self.memory.pointer(heap)?)?;
        match collector {
            Collector::Serial => self.serial(heap),
            Collector::Parallel => self.parallel(heap),
            Collector::Cms => self.cms(heap),
            Collector::G1 => {
                let missing = |name| Why::unknown(format!("libjvm.so has no symbol {name}"));
                let private = |name| private(name).ok_or_else(|| missing(name));
                self.g1(heap, major, private(MUTATOR_ALLOC_REGION)?, private(DUMMY_REGION)?)
            }
            Collector::Z => self.z(heap, false),
            Collector::GenerationalZ => self.z(heap, true),
            Collector::Shenandoah | Collector::GenerationalShenandoah => self.shenandoah(heap),
            Collector::Epsilon => {
                let holder = self.field(heap, "EpsilonHeap", "_space")?;
                Ok(vec![self.contiguous(holder)?])
            }
            Collector::Unknown => Err(Why::NotYet),
        }
    }

    fn has(&self, of: &str, field: &str) -> bool {
        self.structs.field(of, field).is_ok()
    }

    /// The address of an object's field.
    fn field(&self, object: Addr, of: &str, field: &str) -> Found<Addr> {
        let offset = self.structs.field(of, field)?;
        Ok(plus(object, offset)?)
    }

    /// The object that an object's field points to.
    fn follow(&self, object: Addr, of: &str, field: &str) -> Found<Addr> {
        set_up(self.memory.pointer(self.field(object, of, field)?)?)
    }

    fn serial(&self, heap: Addr) -> Found<Vec<Term>> {
        let (young, old) = self.generations(heap)?;
        let renamed = self.has("TenuredGeneration", "_the_space");
        let tenured = if renamed { "TenuredGeneration" } else { "OneContigSpaceCardGeneration" };
        let mut terms = self.young(young)?;
        terms.push(self.contiguous(self.field(old, tenured, "_the_space")?)?);
        Ok(terms)
    }

    /// The young and the old generation of Serial and CMS.
    fn generations(&self, heap: Addr) -> Found<(Addr, Addr)> {
        if self.has("GenCollectedHeap", "_gens") {
            // JDK 8 has an array of two.
            let young = self.field(heap, "GenCollectedHeap", "_gens")?;
            let old = plus(young, 8)?;
            return Ok((set_up(self.memory.pointer(young)?)?, set_up(self.memory.pointer(old)?)?));
        }
        // Renamed in JDK 22.
        let renamed = self.has("SerialHeap", "_young_gen");
        let of = if renamed { "SerialHeap" } else { "GenCollectedHeap" };
        Ok((self.follow(heap, of, "_young_gen")?, self.follow(heap, of, "_old_gen")?))
    }

    /// Eden and the survivors, also of CMS's `ParNewGeneration`.
    fn young(&self, young: Addr) -> Found<Vec<Term>> {
        Ok(vec![
            self.contiguous(self.field(young, "DefNewGeneration", "_eden_space")?)?,
            self.contiguous(self.field(young, "DefNewGeneration", "_from_space")?)?,
        ])
    }

    fn contiguous(&self, holder: Addr) -> Found<Term> {
        // JDK 22 merged Space into ContiguousSpace.
        let bottom = self
            .structs
            .field("ContiguousSpace", "_bottom")
            .or_else(|_| self.structs.field("Space", "_bottom"))?;
        Ok(Term::Span {
            holder,
            end_offset: self.structs.field("ContiguousSpace", "_top")?,
            start_offset: bottom,
            none: None,
        })
    }

    /// CMS's old generation is its whole space but what is free, in words:
    /// `CompactibleFreeListSpace::free()`.
    fn cms(&self, heap: Addr) -> Found<Vec<Term>> {
        let (young, old) = self.generations(heap)?;
        let of = "CompactibleFreeListSpace";
        let holder = self.field(old, "ConcurrentMarkSweepGeneration", "_cmsSpace")?;
        let space = self.follow(old, "ConcurrentMarkSweepGeneration", "_cmsSpace")?;
        let dictionary = self.follow(space, of, "_dictionary")?;
        let block = self.field(space, of, "_smallLinearAllocBlock")?;
        let lists = self.field(space, of, "_indexedFreeList[0]")?;
        let mut terms = self.young(young)?;
        terms.extend([
            Term::Span {
                holder,
                end_offset: self.structs.field("Space", "_end")?,
                start_offset: self.structs.field("Space", "_bottom")?,
                none: None,
            },
            Term::FreeWords {
                addr: self.field(dictionary, "AFLBinaryTreeDictionary", "_total_size")?,
            },
            Term::FreeWords { addr: self.field(block, "LinearAllocBlock", "_word_size")? },
            Term::FreeLists {
                first: self.field(lists, "AdaptiveFreeList<FreeChunk>", "_count")?,
                stride: self.structs.type_size("AdaptiveFreeList<FreeChunk>")?,
            },
        ]);
        Ok(terms)
    }

    /// G1 counts the regions that the application allocates from when they are full or a
    /// collection begins. What is in them until then is known to `MutatorAllocRegion`s that
    /// the tables do not tell of: `G1CollectedHeap::used()`, `G1Allocator::used_in_alloc_regions()`.
    fn g1(&self, heap: Addr, major: u32, vtable: Addr, dummy: Addr) -> Found<Vec<Term>> {
        // In JDK 8 the allocator has the sum; in others it comes some words before it.
        let (summary, allocators) = if self.has("G1Allocator", "_summary_bytes_used") {
            let allocator = self.field(heap, "G1CollectedHeap", "_allocator")?;
            let at = set_up(self.memory.pointer(allocator)?)?;
            (self.field(at, "G1Allocator", "_summary_bytes_used")?, vec![at])
        } else {
            let summary = self.field(heap, "G1CollectedHeap", "_summary_bytes_used")?;
            let before = Addr(summary.0.saturating_sub(ALLOCATOR_WITHIN));
            (summary, self.words(before, ALLOCATOR_WITHIN)?)
        };
        let vtable = plus(vtable, 16)?;
        let region = allocators.into_iter().find_map(|at| self.alloc_region(at, vtable));
        let mut region = region.ok_or(Why::NotYet)?;
        let retained = self.retained_offset(region, major)?;
        let none = set_up(self.memory.pointer(dummy)?)?;
        let field = |names: [(&str, &str); 4]| {
            let found = names.iter().find_map(|(of, field)| self.structs.field(of, field).ok());
            found.ok_or_else(|| Why::unknown(format!("{names:?} are missing in vmStructs")))
        };
        // Named anew in JDK 23, 12 and 9.
        let end_offset = field([
            ("G1HeapRegion", "_top"),
            ("HeapRegion", "_top"),
            ("G1ContiguousSpace", "_top"),
            ("G1OffsetTableContigSpace", "_top"),
        ])?;
        let start_offset = field([
            ("G1HeapRegion", "_bottom"),
            ("HeapRegion", "_bottom"),
            ("Space", "_bottom"),
            ("Space", "_bottom"),
        ])?;
        let span = |holder| Term::Span { holder, end_offset, start_offset, none: Some(none) };
        let mut terms = vec![Term::Direct { addr: summary }];
        // One for each NUMA node that is in use.
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

    /// A `MutatorAllocRegion` inside a supposed `G1Allocator`, or in an array of it.
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

    /// Where a `MutatorAllocRegion` has its `_retained_alloc_region`; `None` where it has none.
    ///
    /// `G1AllocRegion` begins with its virtual table, `_alloc_region` and `_count`. JDK 25
    /// left out `_used_bytes_before` behind them, JDK 20 `_bot_updates`. Then comes `_name`,
    /// by which we know, and from JDK 14 on `_node_index`; then `_wasted_bytes` of the
    /// subclass, and `_retained_alloc_region`.
    fn retained_offset(&self, region: Addr, major: u32) -> Found<Option<u64>> {
        let is_name = |offset: &u64| {
            let name = plus(region, *offset).and_then(|at| self.memory.pointer(at));
            let name = name.and_then(|name| self.memory.c_string(name, 64));
            name.is_ok_and(|name| name == "Mutator Alloc Region")
        };
        let name = [24, 32, 40].into_iter().find(is_name);
        let name = name.ok_or_else(|| Why::unknown("its allocation region has no name"))?;
        match major {
            8 => Ok(None),
            11..=13 => Ok(Some(name + 16)),
            14.. => Ok(Some(name + 24)),
            _ => Err(Why::unknown(format!("JDK {major} was never looked at"))),
        }
    }

    fn words(&self, at: Addr, bytes: u64) -> Found<Vec<Addr>> {
        let bytes = self.memory.read(at, bytes as usize)?;
        let (words, _) = bytes.as_chunks::<8>();
        Ok(words.iter().map(|word| Addr(u64::from_ne_bytes(*word))).collect())
    }

    fn parallel(&self, heap: Addr) -> Found<Vec<Term>> {
        let generation = |field| -> Found<Addr> {
            // Static up to JDK 26.
            let holder = self
                .structs
                .static_field("ParallelScavengeHeap", field)
                .or_else(|_| self.field(heap, "ParallelScavengeHeap", field))?;
            set_up(self.memory.pointer(holder)?)
        };
        let (young, old) = (generation("_young_gen")?, generation("_old_gen")?);
        // JDK 14 merged ImmutableSpace into MutableSpace.
        let start_offset = self
            .structs
            .field("MutableSpace", "_bottom")
            .or_else(|_| self.structs.field("ImmutableSpace", "_bottom"))?;
        let end_offset = self.structs.field("MutableSpace", "_top")?;
        let span = |holder| Term::Span { holder, end_offset, start_offset, none: None };
        Ok(vec![
            span(self.field(young, "PSYoungGen", "_eden_space")?),
            span(self.field(young, "PSYoungGen", "_from_space")?),
            span(self.field(old, "PSOldGen", "_object_space")?),
        ])
    }

    fn z(&self, heap: Addr, generational: bool) -> Found<Vec<Term>> {
        // JDK 21 to 23 have both: the one without generations begins with an X.
        let has_x = self.has("XPageAllocator", "_used");
        let [collected_heap, z_heap, allocator] = if has_x && !generational {
            ["XCollectedHeap", "XHeap", "XPageAllocator"]
        } else {
            ["ZCollectedHeap", "ZHeap", "ZPageAllocator"]
        };
        // Embedded, not pointed to.
        let z_heap_at = self.field(heap, collected_heap, "_heap")?;
        let allocator_at = self.field(z_heap_at, z_heap, "_page_allocator")?;
        if self.has(allocator, "_used") {
            return Ok(vec![Term::Direct { addr: self.field(allocator_at, allocator, "_used")? }]);
        }
        // From JDK 25 on, a partition for each NUMA node.
        let nodes = self.memory.u32(self.structs.static_field("ZNUMA", "_count")?)?;
        if !(1..=MAX_NODES).contains(&nodes) {
            // More than are summed up.
            return Err(Why::unknown(format!("it is on {nodes} NUMA nodes")));
        }
        let partitions = self.field(allocator_at, "ZPageAllocator", "_partitions")?;
        let first = self.follow(partitions, "ZPerNUMAZPartition", "_addr")?;
        (0..u64::from(nodes))
            .map(|node| {
                let partition = plus(first, node * Z_VALUE_STRIDE)?;
                Ok(Term::Direct { addr: self.field(partition, "ZPartition", "_used")? })
            })
            .collect()
    }

    fn shenandoah(&self, heap: Addr) -> Found<Vec<Term>> {
        let addr = if self.has("ShenandoahHeap", "_used") {
            self.field(heap, "ShenandoahHeap", "_used")?
        } else if self.has("ShenandoahFreeSet", "_total_global_used") {
            // JDK 26.
            let free_set = self.follow(heap, "ShenandoahHeap", "_free_set")?;
            self.field(free_set, "ShenandoahFreeSet", "_total_global_used")?
        } else {
            // JDK 24.
            let global = self.follow(heap, "ShenandoahHeap", "_global_generation")?;
            self.field(global, "ShenandoahGeneration", "_used")?
        };
        Ok(vec![Term::Direct { addr }])
    }
}

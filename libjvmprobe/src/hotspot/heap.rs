//! How to compute the used bytes of the Java heap from a JVM's own structures.
//!
//! The result is not a number but a recipe: a sum of a few words of memory that
//! a BPF program can read in the target's context, at the very instant of a
//! probe. The C++ objects that describe a heap do not move, so that all but the
//! last steps are walked here, once. Sources: HotSpot's gc/*/*.hpp, the fields
//! as vmStructs_*.hpp exports them, JDK 8 to 25.

use super::{Collector, vmstructs::VmStructs};
use crate::{
    Addr, Error, Result,
    jvm::{memory::Memory, perfdata::PerfData},
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
    },
}

/// `ZValueStorage::offset`: how far apart ZGC keeps its per-node values.
const Z_VALUE_STRIDE: u64 = 4096;
/// As many NUMA nodes as a gauge has terms.
const MAX_NODES: u32 = 8;

struct Reader<'a> {
    memory: &'a Memory,
    structs: &'a VmStructs,
}

/// The recipe for a collector's heap.
///
/// Exact for Serial, Parallel, Epsilon, ZGC and Shenandoah. G1 enters what is
/// allocated in the region in use only when the region is full or collected: its
/// sum can be low by up to one region while the application runs.
///
/// # Errors
/// [`Error::Layout`] where a field is missing or the heap is not set up yet.
pub fn used(memory: &Memory, structs: &VmStructs, collector: Collector) -> Result<Vec<Term>> {
    let reader = Reader { memory, structs };
    let heap = memory.pointer(structs.static_field("Universe", "_collectedHeap")?)?;
    if heap == Addr(0) {
        return Err(Error::layout("the heap is not set up yet"));
    }
    match collector {
        Collector::Serial => reader.serial(heap),
        Collector::Parallel => reader.parallel(),
        Collector::G1 => Ok(vec![Term::Direct {
            addr: reader.field(heap, "G1CollectedHeap", "_summary_bytes_used")?,
        }]),
        Collector::Z => reader.z(heap, false),
        Collector::GenerationalZ => reader.z(heap, true),
        Collector::Shenandoah | Collector::GenerationalShenandoah => reader.shenandoah(heap),
        Collector::Epsilon => {
            let holder = reader.field(heap, "EpsilonHeap", "_space")?;
            Ok(vec![reader.contiguous(holder)?])
        }
        Collector::Cms | Collector::Unknown => {
            Err(Error::layout("the used heap of this collector is not in the tables"))
        }
    }
}

/// The recipe from performance data, for collectors that the tables do not
/// describe: the used counters of all spaces. HotSpot updates some of these
/// only at the end of a collection or every 50 ms.
pub fn used_by_perfdata(base: Addr, data: &PerfData) -> Vec<Term> {
    data.names()
        .filter(|name| name.starts_with("sun.gc.generation.") && name.ends_with(".used"))
        .filter_map(|name| base.checked_add(data.offset(name)? as u64))
        .map(|addr| Term::Direct { addr })
        .collect()
}

impl Reader<'_> {
    fn has(&self, of: &str, field: &str) -> bool {
        self.structs.field(of, field).is_ok()
    }

    /// The address of an object's field.
    fn field(&self, object: Addr, of: &str, field: &str) -> Result<Addr> {
        let offset = self.structs.field(of, field)?;
        object.checked_add(offset).ok_or_else(|| Error::layout(format!("{of}::{field} wraps")))
    }

    /// The object that an object's field points to.
    fn follow(&self, object: Addr, of: &str, field: &str) -> Result<Addr> {
        match self.memory.pointer(self.field(object, of, field)?)? {
            Addr(0) => Err(Error::layout(format!("{of}::{field} is not set up yet"))),
            target => Ok(target),
        }
    }

    fn serial(&self, heap: Addr) -> Result<Vec<Term>> {
        let (young, old) = if self.has("GenCollectedHeap", "_gens") {
            // JDK 8 has an array of two.
            let young = self.field(heap, "GenCollectedHeap", "_gens")?;
            let old = young.checked_add(8).ok_or_else(|| Error::layout("_gens wraps"))?;
            (self.memory.pointer(young)?, self.memory.pointer(old)?)
        } else {
            // Renamed in JDK 22.
            let renamed = self.has("SerialHeap", "_young_gen");
            let of = if renamed { "SerialHeap" } else { "GenCollectedHeap" };
            (self.follow(heap, of, "_young_gen")?, self.follow(heap, of, "_old_gen")?)
        };
        let renamed = self.has("TenuredGeneration", "_the_space");
        let tenured = if renamed { "TenuredGeneration" } else { "OneContigSpaceCardGeneration" };
        Ok(vec![
            self.contiguous(self.field(young, "DefNewGeneration", "_eden_space")?)?,
            self.contiguous(self.field(young, "DefNewGeneration", "_from_space")?)?,
            self.contiguous(self.field(old, tenured, "_the_space")?)?,
        ])
    }

    fn contiguous(&self, holder: Addr) -> Result<Term> {
        // JDK 22 merged Space into ContiguousSpace.
        let bottom = self
            .structs
            .field("ContiguousSpace", "_bottom")
            .or_else(|_| self.structs.field("Space", "_bottom"))?;
        Ok(Term::Span {
            holder,
            end_offset: self.structs.field("ContiguousSpace", "_top")?,
            start_offset: bottom,
        })
    }

    fn parallel(&self) -> Result<Vec<Term>> {
        let generation = |field| -> Result<Addr> {
            let holder = self.structs.static_field("ParallelScavengeHeap", field)?;
            match self.memory.pointer(holder)? {
                Addr(0) => Err(Error::layout("the heap is not set up yet")),
                generation => Ok(generation),
            }
        };
        let (young, old) = (generation("_young_gen")?, generation("_old_gen")?);
        // JDK 14 merged ImmutableSpace into MutableSpace.
        let start_offset = self
            .structs
            .field("MutableSpace", "_bottom")
            .or_else(|_| self.structs.field("ImmutableSpace", "_bottom"))?;
        let end_offset = self.structs.field("MutableSpace", "_top")?;
        let span = |holder| Term::Span { holder, end_offset, start_offset };
        Ok(vec![
            span(self.field(young, "PSYoungGen", "_eden_space")?),
            span(self.field(young, "PSYoungGen", "_from_space")?),
            span(self.field(old, "PSOldGen", "_object_space")?),
        ])
    }

    fn z(&self, heap: Addr, generational: bool) -> Result<Vec<Term>> {
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
            return Err(Error::layout(format!("{nodes} NUMA nodes are more than are summed up")));
        }
        let partitions = self.field(allocator_at, "ZPageAllocator", "_partitions")?;
        let first = self.follow(partitions, "ZPerNUMAZPartition", "_addr")?;
        (0..u64::from(nodes))
            .map(|node| {
                let partition = first.checked_add(node * Z_VALUE_STRIDE);
                let partition = partition.ok_or_else(|| Error::layout("a partition wraps"))?;
                Ok(Term::Direct { addr: self.field(partition, "ZPartition", "_used")? })
            })
            .collect()
    }

    fn shenandoah(&self, heap: Addr) -> Result<Vec<Term>> {
        let addr = if self.has("ShenandoahHeap", "_used") {
            self.field(heap, "ShenandoahHeap", "_used")?
        } else {
            let global = self.follow(heap, "ShenandoahHeap", "_global_generation")?;
            self.field(global, "ShenandoahGeneration", "_used")?
        };
        Ok(vec![Term::Direct { addr }])
    }
}

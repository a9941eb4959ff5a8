//! Current sizes of a pool, by its name.
//!
//! | collector | source |
//! |---|---|
//! | Serial, CMS, Parallel, Epsilon | the bounds of the space: bottom, top, end |
//! | G1 | `G1MonitoringSupport`, which JMX uses too. It counts eden by whole regions (gc/g1/g1MonitoringSupport.hpp) |
//! | ZGC | `ZPageAllocator`: capacity, and used bytes by generation (gc/z/zServiceability.cpp) |
//! | Shenandoah | `ShenandoahHeap`, and its generations (gc/shenandoah/shenandoahMemoryPool.cpp) |

use super::{
    Usage,
    metaspace::{self, Part},
    object::PoolObject,
};
use crate::{
    Addr, Error, Result,
    hotspot::{
        code::fill::HeapFill,
        heap::{MAX_NODES, Z_VALUE_STRIDE},
        layout::Item,
        loaded::at,
        pages::Pages,
        resolved::Layout,
    },
};

/// Distance in bytes of `ZPageAllocator::_used_generations` from `_used`.
const Z_GENERATIONS_AFTER_USED: u64 = 8;
/// Distance in bytes of `ZPageAllocator::_used` from `_max_capacity` since JDK 25.
const Z_USED_AFTER_MAX: u64 = 8;
/// Offset in bytes of `_capacity` in a `ZPhysicalMemoryManager` of JDK 11.
const Z_CAPACITY_OF_PHYSICAL: u64 = 0x50;
/// Distance in bytes of `PSYoungGen::_max_gen_size` from `_to_space` since JDK 17.
const PARALLEL_MAX_AFTER_TO: u64 = 16;
/// Distance in bytes of `ShenandoahGeneration::_affiliated_region_count` before `_used`, JDK 24 and 25.
const SHENANDOAH_REGIONS_BEFORE_USED: u64 = 24;

/// A generation of ZGC or Shenandoah, in the order of HotSpot's arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Generation {
    Young,
    Old,
}

/// Reads sizes of pools.
pub(super) struct Reader<'a, 'b> {
    pub(super) pages: &'a mut Pages<'b>,
    pub(super) layout: &'a Layout,
    pub(super) code_heaps: Vec<HeapFill>,
}

impl Reader<'_, '_> {
    /// Reads the sizes of the pool with this name.
    ///
    /// # Errors
    /// [`Error::Layout`] if a field is missing or implausible, or the pool is unknown; [`Error::Memory`].
    pub(super) fn usage(&mut self, name: &str, object: Option<&PoolObject>) -> Result<Usage> {
        match name {
            "Eden Space" | "Par Eden Space" => self.young_space(Item::SerialEden),
            "Survivor Space" | "Par Survivor Space" => self.young_space(Item::SerialFrom),
            "Tenured Gen" => {
                let (_, old) = self.serial_generations()?;
                self.space(old, Item::SerialTenured, CONTIGUOUS)
            }
            "CMS Old Gen" => self.cms_old(),
            "PS Eden Space" => self.parallel_eden(),
            "PS Survivor Space" => {
                let young = self.parallel_generation(Generation::Young)?;
                let usage = self.space(young, Item::ParallelFrom, MUTABLE)?;
                Ok(Usage { limit: Some(usage.committed), ..usage })
            }
            "PS Old Gen" => {
                let old = self.parallel_generation(Generation::Old)?;
                self.space(old, Item::ParallelObjects, MUTABLE)
            }
            "G1 Eden Space" => self.g1(Item::G1EdenUsed, Item::G1EdenCommitted),
            "G1 Survivor Space" => self.g1(Item::G1SurvivorUsed, Item::G1SurvivorCommitted),
            "G1 Old Gen" => self.g1(Item::G1OldUsed, Item::G1OldCommitted),
            "ZHeap" => self.z_heap(),
            "ZGC Young Generation" => self.z_generation(Generation::Young),
            "ZGC Old Generation" => self.z_generation(Generation::Old),
            "Shenandoah" => self.shenandoah(),
            "Shenandoah Young Gen" => self.shenandoah_generation(Generation::Young, object),
            "Shenandoah Old Gen" => self.shenandoah_generation(Generation::Old, object),
            "Epsilon Heap" => self.epsilon(),
            "Metaspace" => metaspace::whole(self.pages, self.layout),
            "Compressed Class Space" => metaspace::part(self.pages, self.layout, Part::Classes),
            _ => self.code_heap(object),
        }
    }

    fn heap(&mut self) -> Result<Addr> {
        let heap = self.pages.pointer(self.layout.address(Item::CollectedHeap)?)?;
        set_up(heap)
    }

    /// Returns the address of an object's field.
    fn field(&self, object: Addr, field: Item) -> Result<Addr> {
        at(object, self.layout.get(field)?)
    }

    /// Returns the object that an object's field points to.
    fn follow(&mut self, object: Addr, field: Item) -> Result<Addr> {
        let holder = self.field(object, field)?;
        set_up(self.pages.pointer(holder)?)
    }

    fn number(&mut self, object: Addr, field: Item) -> Result<u64> {
        let field = self.field(object, field)?;
        self.pages.u64(field)
    }

    /// Reads the space that a field refers to.
    fn space(&mut self, holder: Addr, field: Item, bounds: [Item; 3]) -> Result<Usage> {
        let space = self.follow(holder, field)?;
        let [bottom, top, end] = bounds;
        let (bottom, top) = (self.number(space, bottom)?, self.number(space, top)?);
        let end = self.number(space, end)?;
        Ok(Usage::new(top.saturating_sub(bottom), end.saturating_sub(bottom)))
    }

    /// Returns the young and the old generation of Serial and CMS.
    fn serial_generations(&mut self) -> Result<(Addr, Addr)> {
        let heap = self.heap()?;
        if self.layout.has(Item::Generations) {
            // JDK 8 has an array of two generations.
            let young = self.field(heap, Item::Generations)?;
            let old = self.pages.pointer(at(young, 8)?)?;
            return Ok((set_up(self.pages.pointer(young)?)?, set_up(old)?));
        }
        Ok((self.follow(heap, Item::SerialYoung)?, self.follow(heap, Item::SerialOld)?))
    }

    fn young_space(&mut self, space: Item) -> Result<Usage> {
        let (young, _) = self.serial_generations()?;
        self.space(young, space, CONTIGUOUS)
    }

    /// Reads the old generation of CMS, which counts its free memory: see [`crate::hotspot::heap`].
    fn cms_old(&mut self) -> Result<Usage> {
        let (_, old) = self.serial_generations()?;
        let space = self.follow(old, Item::CmsSpace)?;
        let bottom = self.number(space, Item::CmsBottom)?;
        let committed = self.number(space, Item::CmsEnd)?.saturating_sub(bottom);
        let dictionary = self.follow(space, Item::CmsDictionary)?;
        let block = self.field(space, Item::CmsBlock)?;
        let mut free = self.number(dictionary, Item::CmsTreeSize)?;
        free = free.saturating_add(self.number(block, Item::CmsBlockSize)?);
        let lists = self.field(space, Item::CmsLists)?;
        let stride = self.layout.get(Item::CmsListSize)?;
        for words in 0..CMS_LISTS {
            let list = at(lists, words.saturating_mul(stride))?;
            let chunks = self.number(list, Item::CmsListCount)?;
            free = free.saturating_add(chunks.saturating_mul(words));
        }
        Ok(Usage::new(committed.saturating_sub(free.saturating_mul(8)), committed))
    }

    fn parallel_generation(&mut self, generation: Generation) -> Result<Addr> {
        let (fixed, field) = match generation {
            Generation::Young => (Item::ParallelYoungStatic, Item::ParallelYoung),
            Generation::Old => (Item::ParallelOldStatic, Item::ParallelOld),
        };
        match self.layout.try_address(fixed) {
            Some(holder) => set_up(self.pages.pointer(holder)?),
            None => {
                let heap = self.heap()?;
                self.follow(heap, field)
            }
        }
    }

    /// Reads eden of Parallel. Its maximum is that of the generation without the survivor spaces
    /// (`EdenMutableSpacePool::max_size`).
    fn parallel_eden(&mut self) -> Result<Usage> {
        let young = self.parallel_generation(Generation::Young)?;
        let eden = self.space(young, Item::ParallelEden, MUTABLE)?;
        let from = self.space(young, Item::ParallelFrom, MUTABLE)?.committed;
        let to = self.space(young, Item::ParallelTo, MUTABLE)?.committed;
        let max = match self.layout.has(Item::ParallelMaxYoung) {
            true => self.field(young, Item::ParallelMaxYoung)?,
            // JDK 28 does not export the field.
            false => at(self.field(young, Item::ParallelTo)?, PARALLEL_MAX_AFTER_TO)?,
        };
        let max = self.pages.u64(max)?;
        Ok(Usage { limit: Some(max.saturating_sub(from).saturating_sub(to)), ..eden })
    }

    fn g1(&mut self, used: Item, committed: Item) -> Result<Usage> {
        let heap = self.heap()?;
        let monitoring = self.follow(heap, Item::G1Monitoring)?;
        Ok(Usage::new(self.number(monitoring, used)?, self.number(monitoring, committed)?))
    }

    fn z_allocator(&mut self) -> Result<Addr> {
        // ZHeap is embedded in ZCollectedHeap, not referred to by a pointer.
        let heap = self.heap()?;
        let heap = self.field(heap, Item::ZHeapOfHeap)?;
        self.field(heap, Item::ZAllocator)
    }

    /// Reads the heap of non-generational ZGC. In JDK 21 to 23, the names of its classes begin with an X.
    fn z_heap(&mut self) -> Result<Usage> {
        if self.layout.has(Item::XUsed) {
            let heap = self.heap()?;
            let heap = self.field(heap, Item::XHeapOfHeap)?;
            let allocator = self.field(heap, Item::XAllocator)?;
            let used = self.number(allocator, Item::XUsed)?;
            return Ok(Usage::new(used, self.number(allocator, Item::XCapacity)?));
        }
        let allocator = self.z_allocator()?;
        let used = self.number(allocator, Item::ZUsed)?;
        let committed = match self.layout.has(Item::ZCapacity) {
            true => self.number(allocator, Item::ZCapacity)?,
            false => {
                let physical = self.field(allocator, Item::ZPhysical)?;
                self.pages.u64(at(physical, Z_CAPACITY_OF_PHYSICAL)?)?
            }
        };
        Ok(Usage::new(used, committed))
    }

    /// Reads a generation of ZGC. The committed size of the old generation equals its used size; that of the young
    /// generation is the remaining capacity.
    fn z_generation(&mut self, generation: Generation) -> Result<Usage> {
        let allocator = self.z_allocator()?;
        let (capacity, used) = match self.layout.has(Item::ZUsed) {
            true => (self.number(allocator, Item::ZCapacity)?, self.field(allocator, Item::ZUsed)?),
            false => {
                let max = self.field(allocator, Item::ZMaxCapacity)?;
                (self.z_capacity(allocator)?, at(max, Z_USED_AFTER_MAX)?)
            }
        };
        let first = at(used, Z_GENERATIONS_AFTER_USED)?;
        let young = self.pages.u64(first)?;
        let old = self.pages.u64(at(first, 8)?)?.min(capacity);
        let rest = capacity - old;
        Ok(match generation {
            Generation::Young => Usage::new(young.min(rest), rest),
            Generation::Old => Usage::new(old, old),
        })
    }

    /// Sums the capacity of the partitions, of which there is one for each NUMA node.
    fn z_capacity(&mut self, allocator: Addr) -> Result<u64> {
        let nodes = self.pages.u32(self.layout.address(Item::ZNodes)?)?;
        if !(1..=MAX_NODES).contains(&nodes) {
            return Err(Error::layout(format!("implausible number of {nodes} NUMA nodes")));
        }
        let partitions = self.field(allocator, Item::ZPartitions)?;
        let first = self.follow(partitions, Item::ZPartitionAddr)?;
        let mut sum: u64 = 0;
        for node in 0..u64::from(nodes) {
            let partition = at(first, node * Z_VALUE_STRIDE)?;
            sum = sum.saturating_add(self.number(partition, Item::ZPartitionCapacity)?);
        }
        Ok(sum)
    }

    fn shenandoah(&mut self) -> Result<Usage> {
        let heap = self.heap()?;
        let used = if self.layout.has(Item::ShenandoahUsed) {
            self.number(heap, Item::ShenandoahUsed)?
        } else if self.layout.has(Item::ShenandoahFreeUsed) {
            let free_set = self.follow(heap, Item::ShenandoahFreeSet)?;
            self.number(free_set, Item::ShenandoahFreeUsed)?
        } else {
            let global = self.follow(heap, Item::ShenandoahGlobal)?;
            self.number(global, Item::ShenandoahGlobalUsed)?
        };
        let committed = self.number(heap, Item::ShenandoahCommitted)?;
        Ok(Usage::new(used, committed.max(used)))
    }

    /// Reads a generation of generational Shenandoah. Its committed size is that of its regions. Up to JDK 25, the sizes are
    /// fields of `ShenandoahGeneration`, to which the pool's object refers directly after the heap. Since JDK 26,
    /// `ShenandoahFreeSet` has five adjacent fields: used young, used old, used total, regions young, regions old.
    fn shenandoah_generation(
        &mut self,
        generation: Generation,
        object: Option<&PoolObject>,
    ) -> Result<Usage> {
        let heap = self.heap()?;
        let region = self.pages.u64(self.layout.address(Item::ShenandoahRegion)?)?;
        let (used, regions) = if self.layout.has(Item::ShenandoahFreeUsed) {
            let free_set = self.follow(heap, Item::ShenandoahFreeSet)?;
            let sum = self.field(free_set, Item::ShenandoahFreeUsed)?;
            let (used, regions) = match generation {
                Generation::Young => (16, 8),
                Generation::Old => (8, 16),
            };
            (Addr(sum.0.saturating_sub(used)), at(sum, regions)?)
        } else {
            let words = object.map(PoolObject::fields).unwrap_or_default();
            let mut after_heap = words.iter().skip_while(|&&word| word != heap.0).skip(1);
            let generation = after_heap.next().copied().filter(|&word| word != 0);
            let unknown = || Error::layout("unknown layout of a memory pool of Shenandoah");
            let generation = Addr(generation.ok_or_else(unknown)?);
            let used = self.field(generation, Item::ShenandoahGlobalUsed)?;
            (used, Addr(used.0.saturating_sub(SHENANDOAH_REGIONS_BEFORE_USED)))
        };
        let committed = self.pages.u64(regions)?.saturating_mul(region);
        Ok(Usage::new(self.pages.u64(used)?, committed))
    }

    fn epsilon(&mut self) -> Result<Usage> {
        let heap = self.heap()?;
        let used = self.space(heap, Item::EpsilonSpace, CONTIGUOUS)?.used;
        let space = self.field(heap, Item::EpsilonCommitted)?;
        let low = self.number(space, Item::SpaceLow)?;
        let committed = self.number(space, Item::SpaceHigh)?.saturating_sub(low);
        Ok(Usage::new(used, committed))
    }

    /// Returns the sizes of the code heap that a pool's object refers to, or those of all of them.
    fn code_heap(&self, object: Option<&PoolObject>) -> Result<Usage> {
        let is_wanted =
            |fill: &&HeapFill| object.is_none_or(|object| object.fields().contains(&fill.heap.0));
        let mut sum: Option<Usage> = None;
        for fill in self.code_heaps.iter().filter(is_wanted) {
            let before = sum.unwrap_or(Usage::new(0, 0));
            sum = Some(Usage {
                used: before.used.saturating_add(fill.used),
                committed: before.committed.saturating_add(fill.committed),
                limit: Some(before.limit.unwrap_or(0).saturating_add(fill.size)),
            });
        }
        sum.ok_or_else(|| Error::layout("unknown memory pool"))
    }
}

/// Bottom, top and end of a `ContiguousSpace`.
const CONTIGUOUS: [Item; 3] = [Item::ContiguousBottom, Item::ContiguousTop, Item::ContiguousEnd];
/// Bottom, top and end of a `MutableSpace`.
const MUTABLE: [Item; 3] = [Item::MutableBottom, Item::MutableTop, Item::MutableEnd];
/// Number of CMS's lists of free chunks (`CompactibleFreeListSpace::IndexSetSize`).
const CMS_LISTS: u64 = 257;

/// Fails if a pointer is null, because the JVM is still starting up.
fn set_up(pointer: Addr) -> Result<Addr> {
    if pointer == Addr(0) {
        return Err(Error::layout("the heap is not set up yet"));
    }
    Ok(pointer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::testing::{Image, own_memory};

    #[test]
    fn implausible_size_of_a_list_of_cms_is_an_error() {
        for (stride, used) in [(0, Some(8000)), (u64::MAX / 100, None)] {
            let mut image = Image::new();
            // All objects are at the same address. Words: the address, zero, bottom, end.
            let heap = image.end();
            image.put(&[heap.0, 0, 2000, 10_000]);
            let heap = image.put(&[heap.0]);
            image.static_field("Universe", "_collectedHeap", heap);
            for (class, field, offset) in [
                ("GenCollectedHeap", "_young_gen", 0),
                ("GenCollectedHeap", "_old_gen", 0),
                ("ConcurrentMarkSweepGeneration", "_cmsSpace", 0),
                ("CompactibleFreeListSpace", "_dictionary", 0),
                ("CompactibleFreeListSpace", "_smallLinearAllocBlock", 0),
                ("CompactibleFreeListSpace", "_indexedFreeList[0]", 0),
                ("AFLBinaryTreeDictionary", "_total_size", 8),
                ("LinearAllocBlock", "_word_size", 8),
                ("AdaptiveFreeList<FreeChunk>", "_count", 8),
                ("Space", "_bottom", 16),
                ("Space", "_end", 24),
            ] {
                image.field(class, field, offset);
            }
            image.class("AdaptiveFreeList<FreeChunk>", stride);
            image.finish();
            let (memory, layout) = (own_memory(), image.read().unwrap());
            let pages = &mut Pages::scattered(&memory);
            let mut reader = Reader { pages, layout: &layout, code_heaps: Vec::new() };
            let usage = reader.usage("CMS Old Gen", None);
            assert_eq!(usage.map(|usage| usage.used).ok(), used);
        }
    }
}

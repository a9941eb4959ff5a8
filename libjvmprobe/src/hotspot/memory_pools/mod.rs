//! Memory pools: used, committed and maximum size of each, as `MemoryPoolMXBean` shows them.
//!
//! HotSpot has an object for each pool, with its name, its maximum size and its usage after the last collection
//! (`object`). The current sizes are in the data of the collector, of metaspace and of the code cache (`usage`,
//! `metaspace`). All of them are read, none is computed by the JVM. Sources: hotspot/share/services/{memoryPool,
//! memoryService,memoryUsage}.hpp, JDK 8 to 28.
//!
//! Finding the list of pools needs the symbol table of libjvm.so. Without it, the pools are derived from the collector,
//! without limits and without usage after collections.

mod metaspace;
mod object;
mod usage;

use std::{sync::Arc, time::Duration};

use crate::{
    Addr, Result,
    hotspot::{Collector, HotSpot, code::fill, pages::Pages, resolved::Layout},
    process::{memory::Memory, reader::within},
};

use self::{object::PoolObject, usage::Reader};

/// A memory pool. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPool {
    /// Its name, for example `G1 Eden Space`.
    pub name: Arc<str>,
    /// Whether it is part of the Java heap.
    pub is_heap: bool,
    /// Size in use.
    pub used: u64,
    /// Committed size.
    pub committed: u64,
    /// Size that the JVM requested when it started, if known.
    pub initial: Option<u64>,
    /// Maximum size; `None` if it is unknown or undefined.
    pub limit: Option<u64>,
    /// Size in use after the last collection of this pool, 0 before the first one; `None` if the pool is not collected,
    /// or if the size is unknown.
    pub used_after_gc: Option<u64>,
}

/// Size in use and committed size of a pool, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Usage {
    used: u64,
    committed: u64,
    /// Maximum size; `None` if that in the pool's object applies.
    limit: Option<u64>,
}

impl Usage {
    fn new(used: u64, committed: u64) -> Self {
        Self { used, committed, limit: None }
    }
}

/// Reads the memory pools of a JVM repeatedly.
#[derive(Debug)]
pub struct PoolReader {
    memory: Memory,
    layout: Layout,
    collector: Collector,
    /// Pages that the last reading needed.
    needed: Vec<Addr>,
}

impl HotSpot {
    /// Returns a reader of the memory pools.
    pub fn pool_reader(&self) -> PoolReader {
        let (memory, layout) = (self.memory.clone(), self.layout.clone());
        PoolReader { memory, layout, collector: self.collector, needed: Vec::new() }
    }
}

impl PoolReader {
    /// Returns the memory pools. Pools whose sizes cannot be determined are left out.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] if a list or a field is missing or implausible, [`crate::Error::Memory`] if the JVM has
    /// exited or the time is used up.
    pub fn read(&mut self, max_time: Duration) -> Result<Vec<MemoryPool>> {
        let memory = self.memory.clone();
        let mut pages = Pages::scattered(&memory);
        let Self { layout, collector, needed, .. } = self;
        within(max_time, || pages.read_repeatedly(needed, |pages| read(pages, layout, *collector)))
    }
}

fn read(pages: &mut Pages<'_>, layout: &Layout, collector: Collector) -> Result<Vec<MemoryPool>> {
    let objects = object::read(pages, layout)?;
    let code_heaps = fill::read_heaps(pages, layout)?;
    let mut reader = Reader { pages, layout, code_heaps };
    if objects.is_empty() {
        return Ok(reader.pools_of(collector));
    }
    Ok(objects.into_iter().filter_map(|object| reader.pool(object)).collect())
}

/// Entry point for the fuzzer: reads the listed pools, and returns those of a JVM without a list.
#[cfg(feature = "fuzzing")]
pub(super) fn fuzz(
    pages: &mut Pages<'_>,
    layout: &Layout,
    collector: Collector,
) -> Vec<MemoryPool> {
    let _ = read(pages, layout, collector);
    Reader { pages, layout, code_heaps: Vec::new() }.pools_of(collector)
}

impl Reader<'_, '_> {
    fn pool(&mut self, object: PoolObject) -> Option<MemoryPool> {
        let usage = self.usage(&object.name, Some(&object)).ok()?;
        Some(MemoryPool {
            is_heap: object.is_heap,
            used: usage.used,
            committed: usage.committed,
            initial: Some(object.initial),
            limit: usage.limit.or(object.max),
            used_after_gc: object.is_heap.then_some(object.used_after_gc),
            name: object.name,
        })
    }

    /// Returns the pools of a collector and the code cache, for a JVM whose list of pools is unknown.
    fn pools_of(&mut self, collector: Collector) -> Vec<MemoryPool> {
        let names: &[&str] = match collector {
            Collector::Serial => &["Eden Space", "Survivor Space", "Tenured Gen"],
            Collector::Parallel => &["PS Eden Space", "PS Survivor Space", "PS Old Gen"],
            Collector::Cms => &["Par Eden Space", "Par Survivor Space", "CMS Old Gen"],
            Collector::G1 => &["G1 Eden Space", "G1 Survivor Space", "G1 Old Gen"],
            Collector::Z => &["ZHeap"],
            Collector::GenerationalZ => &["ZGC Young Generation", "ZGC Old Generation"],
            Collector::Shenandoah => &["Shenandoah"],
            Collector::Epsilon => &["Epsilon Heap"],
            Collector::GenerationalShenandoah | Collector::Unknown => &[],
        };
        let pool = |(name, is_heap): (&str, bool)| {
            let usage = self.usage(name, None).ok()?;
            Some(MemoryPool {
                name: name.into(),
                is_heap,
                used: usage.used,
                committed: usage.committed,
                initial: None,
                limit: usage.limit,
                used_after_gc: None,
            })
        };
        let heap = names.iter().map(|&name| (name, true));
        heap.chain([("CodeCache", false)]).filter_map(pool).collect()
    }
}

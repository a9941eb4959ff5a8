//! VM operations and collections of a JVM: names and numbers.

use crate::{
    Addr, Error, Result, Vaddr,
    hotspot::{Collector, HotSpot, heap, layout::Item},
    names::clean,
};

/// The operation that collects because metaspace is short (gc/shared/gcVMOperations.cpp). Its probe always
/// reports a full collection, even if the collection is not full, or is skipped because metaspace became
/// available before it began.
const FOR_METASPACE: &str = "CollectForMetadataAllocation";

/// Collections during an operation, from the JVM's own counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collections {
    /// Number of collections; 0 if the operation found nothing to do. `None` if the JVM does not count them.
    pub count: Option<u64>,
    /// Whether one of them was full; `None` if unknown.
    pub is_full: Option<bool>,
}

impl HotSpot {
    /// Whether the JVM counts the classes that it has unloaded.
    pub(crate) fn counts_unloaded_classes(&self) -> bool {
        self.class_counts.unloads().is_some()
    }

    /// Returns the number of classes that the JVM has unloaded; `None` if the JVM does not count them.
    pub(crate) fn classes_unloaded(&self) -> Option<u64> {
        self.memory.u64(self.class_counts.unloads()?).ok()
    }

    /// Returns the address of the JVM's 32-bit counter of collections.
    ///
    /// # Errors
    /// [`Error::Layout`] if the heap is not set up yet, or naming the missing field.
    pub(crate) fn collections_at(&self) -> Result<Addr> {
        let heap = self.memory.pointer(self.layout.address(Item::CollectedHeap)?)?;
        let offset = self.layout.get(Item::TotalCollections)?;
        let at = heap.checked_add(offset).filter(|_| heap != Addr(0));
        at.ok_or_else(|| Error::layout("the heap is not set up yet"))
    }

    /// Returns the size in bytes above which objects are humongous in G1; `None` if the size is unknown, and
    /// for other collectors. With G1, an object of more than half a heap region is humongous
    /// (`G1CollectedHeap::humongous_threshold_for`).
    pub fn humongous_bytes(&self) -> Option<u64> {
        if self.collector != Collector::G1 {
            return None;
        }
        let bytes = self.memory.u64(self.layout.try_address(Item::G1GrainBytes)?).ok()?;
        (bytes > 0).then_some(bytes / 2)
    }

    /// Returns the collections of an operation, from the values of the gauge's counters before and after it.
    pub fn collections(
        &self,
        op: Option<&str>,
        before: &[u64; 4],
        after: &[u64; 4],
    ) -> Collections {
        let is_marking = match self.collector {
            Collector::Serial | Collector::Parallel => false,
            Collector::Cms => is_cms_marking(op),
            // The pauses of concurrent marking increment a third counter, and they do so before the first
            // reading. So a comparison of the readings would not show them.
            Collector::G1 => op.is_none_or(is_g1_marking),
            _ => return Collections::default(),
        };
        // Counters are compared as 32-bit numbers, which wrap.
        let done = |i: usize| u64::from((after[i] as u32).wrapping_sub(before[i] as u32));
        let (young, full) = (done(0), done(1));
        match self.gauge.counters {
            _ if is_marking => Collections::default(),
            [Some(_), Some(_), ..] => {
                Collections { count: Some(young + full), is_full: Some(full > 0) }
            }
            // One counter for young and full collections.
            [Some(_), None, ..] => Collections { count: Some(young), is_full: None },
            // If metaspace is short, G1 starts a concurrent cycle, which begins with a young collection. Only
            // if metaspace is still too small after this young collection, G1 also makes a full one. Without
            // counters, this full collection cannot be detected, so the operation counts as not full.
            _ => {
                let is_young = self.collector == Collector::G1 && op == Some(FOR_METASPACE);
                Collections { count: None, is_full: is_young.then_some(false) }
            }
        }
    }

    /// Whether an operation with this number of collections may have allocated an object after its last
    /// collection: the object for which there was no free space before. In that case the used heap at the end
    /// of the operation differs from the used heap at the end of the collection.
    pub(crate) fn allocates_after_collection(&self, op: Option<&str>, collections: u64) -> bool {
        heap::allocates_after_collection(self.collector)
            && match self.collector {
                Collector::Cms => !is_cms_marking(op),
                _ => collections > 0,
            }
    }

    /// Whether a probe on HotSpot's `GCTracer` is needed to read the used heap at the end of a collection.
    /// That is the case if the operation may allocate after its collection, and if the counters of used bytes
    /// are missing or not looked up yet.
    pub(crate) fn needs_collection_end_probe(&self) -> bool {
        let may_allocate = heap::allocates_after_collection(self.collector)
            || self.collector == Collector::Unknown;
        may_allocate && self.gauge.used_at_gc_end.is_empty()
    }

    /// Whether an operation is a collector's pause, for collectors whose pauses are recognised by the
    /// operation's name; see [`Gauge::op_shows_collection`](super::gauge::Gauge::op_shows_collection). The
    /// pauses of ZGC are `VM_ZMarkStart`, `VM_ZMarkEnd` and `VM_ZRelocateStart` (gc/z/zDriver.cpp); since JDK
    /// 21 the generation is appended (gc/z/zGeneration.cpp). In JDK 21 to 23, those of the non-generational
    /// ZGC have an X instead of the Z (gc/x/xDriver.cpp). Other operations of ZGC verify the heap or wait for
    /// ZGC's threads.
    pub fn is_pause(&self, op: Option<&str>) -> bool {
        let name = op.and_then(|op| op.strip_prefix(['Z', 'X']));
        let is_pause_name = |name: &str| name.starts_with("Mark") || name.starts_with("Relocate");
        self.gauge.op_shows_collection && name.is_some_and(is_pause_name)
    }

    /// Returns the name of a VM operation by its number, as the JVM's log prints it.
    pub(crate) fn operation_named(&self, op_type: u64) -> Option<String> {
        // `const char* VM_Operation::_names[]` has about a hundred elements.
        let offset = op_type.checked_mul(8).filter(|&offset| offset < 8 * 1024)?;
        let name = self
            .memory
            .pointer(self.layout.try_address(Item::OperationNames)?.checked_add(offset)?)
            .ok()?;
        let name = self.memory.c_string(name, 64).ok().filter(|name| !name.is_empty())?;
        Some(clean::name(&name).into_owned())
    }

    /// Returns the name of the VM operation whose C++ vtable is at an address of the target, for
    /// example `G1CollectForAllocation`.
    pub(crate) fn operation_of(&self, vtable: u64) -> Option<String> {
        // An object's vtable pointer points 16 bytes after its class's symbol `_ZTV...`: offset-to-top and
        // type information come first (Itanium C++ ABI, 2.5.2).
        let symbol = Vaddr(vtable.wrapping_sub(self.bias).wrapping_sub(16));
        let symbol = self.build.elf.symbols().ok()?.at(symbol, "_ZTV")?;
        let class =
            symbol.name.strip_prefix("_ZTV")?.trim_start_matches(|c: char| c.is_ascii_digit());
        Some(clean::name(class.strip_prefix("VM_").unwrap_or(class)).into_owned())
    }
}

/// Whether an operation is a pause of G1's concurrent marking: `VM_CGC_Operation` up to JDK 11, then
/// `VM_G1Concurrent`, since JDK 17 a separate operation for each pause (gc/g1/g1VMOperations.hpp).
fn is_g1_marking(op: &str) -> bool {
    ["CGC_", "G1Concurrent", "G1PauseRemark", "G1PauseCleanup"]
        .iter()
        .any(|name| op.starts_with(name))
}

/// Whether an operation is CMS's initial mark or final remark. These stops collect nothing, but the
/// counter of the old generation's collector includes them.
fn is_cms_marking(op: Option<&str>) -> bool {
    op.is_some_and(|op| op.starts_with("CMS_"))
}

//! New addresses of objects that ZGC has moved.
//!
//! Sources: hotspot/share/gc/z/{zForwarding,zForwardingEntry,zForwardingTable,zGranuleMap,zHash,zGeneration,zBarrier,
//! zAddress}.hpp with their inline files; gc/x for non-generational ZGC of JDK 21 to 23. When ZGC has
//! moved an object, it reuses the old memory at once. It corrects a reference to the object only when the
//! application reads the reference, or in the next collection. Until the reference is corrected, the object's
//! new address is in the forwarding of the object's former page. The forwardings of a generation are in a
//! table, whose index is the number of a granule of 2 MiB. vmStructs does not contain the offset of this
//! table in a ZGeneration. The table is found by the two members before it, which are pointers to parts of
//! the ZHeap.

use crate::{
    Addr, Error, Result,
    hotspot::{
        Collector, layout::Item, loaded::at, pages::Pages, processor::remapped, resolved::Layout,
    },
    process::memory::Memory,
};

/// Binary logarithm of a granule's size (`ZGranuleSizeShift`).
const GRANULE_SHIFT: u32 = 21;
/// Maximum number of bytes of a ZHeap that are searched for generations.
const MAX_HEAP: u64 = 64 << 10;
/// Maximum number of entries of a forwarding that are examined for one object.
const MAX_PROBES: u64 = 256;
/// Maximum number of entries of a forwarding, and maximum binary logarithm of the alignment of its objects.
const MAX_ENTRIES: u64 = 1 << 24;
const MAX_ALIGNMENT_SHIFT: u64 = 32;
/// Mask of the remembered bits in a reference of generational ZGC (`ZPointerRememberedMask`).
const REMEMBERED: u64 = 0x30;
/// `ZGenerationId::young` and `ZGenerationId::old`.
const YOUNG: u8 = 0;
const OLD: u8 = 1;

/// Finds objects that ZGC has moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forwarding {
    tables: Tables,
    /// Address of the mask of bad bits. A reference that needs a correction has at least one of these bits.
    bad_mask: Addr,
    /// Mask of the bits of an object's address that are the object's offset in the heap.
    offset_mask: u64,
    /// Offset of the array in a map of granules.
    map: u64,
    /// Offsets in a ZForwarding.
    start: u64,
    alignment_shift: u64,
    length: u64,
    entries: u64,
}

/// Addresses of maps from granules to forwardings.
#[derive(Clone, Copy, Debug)]
enum Tables {
    /// Non-generational ZGC. `good_mask` is the address of the mask of the bits that each corrected address
    /// contains besides the offset.
    One { table: Addr, good_mask: Addr },
    /// Generational ZGC. `good_mask` is the address of the mask of the metadata bits of references that need
    /// no correction.
    Generations { young: Addr, old: Addr, good_mask: Addr },
}

impl Forwarding {
    /// Looks up the forwardings of a JVM; `None` if its collector is not ZGC.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field, or if the generations in the heap are not found.
    pub(super) fn read(
        memory: &Memory,
        layout: &Layout,
        collector: Collector,
    ) -> Result<Option<Self>> {
        if !matches!(collector, Collector::Z | Collector::GenerationalZ) {
            return Ok(None);
        }
        let is_generational = collector == Collector::GenerationalZ;
        // The names of the classes of non-generational ZGC of JDK 21 to 23 begin with an X.
        let is_x = !is_generational && layout.has(Item::XHeapOfHeap);
        let select = |z, x| if is_x { x } else { z };
        let [bad_mask, good_mask] = match is_generational {
            true => [Item::ZLoadBadMask, Item::ZLoadGoodMask],
            false => {
                [select(Item::ZBadMask, Item::XBadMask), select(Item::ZGoodMask, Item::XGoodMask)]
            }
        };
        let pages = &mut Pages::sequential(memory);
        let heap = pages.pointer(layout.address(Item::CollectedHeap)?)?;
        let heap = at(heap, layout.get(select(Item::ZHeapOfHeap, Item::XHeapOfHeap))?)?;
        let globals = pages.pointer(layout.address(select(Item::ZGlobals, Item::XGlobals))?)?;
        let variable = |pages: &mut Pages<'_>, item| -> Result<Addr> {
            pages.pointer(at(globals, layout.get(item)?)?)
        };
        let bad_mask = variable(pages, bad_mask)?;
        let good_mask = variable(pages, good_mask)?;
        let offset_mask = variable(pages, select(Item::ZOffsetMask, Item::XOffsetMask))?;
        let offset_mask = pages.u64(offset_mask)?;
        let table_map = layout.get(select(Item::ZTableMap, Item::XTableMap))?;
        let tables = if is_generational {
            let [young, old] = generations(pages, layout, heap)?;
            let [young, old] = [at(young, table_map)?, at(old, table_map)?];
            Tables::Generations { young, old, good_mask }
        } else {
            let table = layout.get(select(Item::ZForwardingTable, Item::XForwardingTable))?;
            Tables::One { table: at(at(heap, table)?, table_map)?, good_mask }
        };
        let sum = |first, second| {
            let sum = layout.get(first)?.checked_add(layout.get(second)?);
            sum.ok_or_else(|| Error::layout("the offset in a ZForwarding overflows"))
        };
        let range = select(Item::ZForwardingRange, Item::XForwardingRange);
        let entries = select(Item::ZForwardingEntries, Item::XForwardingEntries);
        let size = layout.get(select(Item::ZForwardingSize, Item::XForwardingSize))?;
        Ok(Some(Self {
            tables,
            bad_mask,
            offset_mask,
            map: layout.get(select(Item::ZGranules, Item::XGranules))?,
            start: sum(range, select(Item::ZRangeStart, Item::XRangeStart))?,
            alignment_shift: layout.get(select(Item::ZForwardingShift, Item::XForwardingShift))?,
            length: sum(entries, select(Item::ZEntriesLength, Item::XEntriesLength))?,
            // ZAttachedArray: the entries follow the ZForwarding.
            entries: size.next_multiple_of(8),
        }))
    }

    /// Returns the present address of the object that a reference refers to. `address` is the one in the reference.
    ///
    /// # Errors
    /// [`Error::Memory`] if the forwardings cannot be read, [`Error::Layout`] if they are implausible.
    pub(super) fn current(
        &self,
        pages: &mut Pages<'_>,
        reference: u64,
        address: Addr,
    ) -> Result<Addr> {
        if reference & pages.u64(self.bad_mask)? == 0 {
            return Ok(address);
        }
        let offset = address.0 & self.offset_mask;
        match self.tables {
            Tables::One { table, good_mask } => {
                let forwarding = self.forwarding(pages, table, offset)?;
                let moved = self.moved(pages, forwarding, offset)?;
                let good = pages.u64(good_mask)?;
                Ok(Addr(moved.unwrap_or(offset) | good))
            }
            Tables::Generations { young, old, good_mask } => {
                let in_young = self.forwarding(pages, young, offset)?;
                let in_old = self.forwarding(pages, old, offset)?;
                let good = pages.u64(good_mask)?;
                let forwarding =
                    if is_young(reference, good, in_young.is_some()) { in_young } else { in_old };
                let moved = self.moved(pages, forwarding, offset)?;
                Ok(moved.map_or(address, |offset| Addr(address.0 & !self.offset_mask | offset)))
            }
        }
    }

    /// Returns the possible present addresses of an object to which a thread's lock stack refers. With
    /// generational ZGC, addresses in a lock stack have no metadata. So it is unknown which generation's
    /// forwarding applies, and each of the two may yield an address. ZGC corrects a thread's lock stack
    /// before the thread runs again. Until then, addresses in the lock stack may be old.
    ///
    /// # Errors
    /// The errors of [`Self::current`].
    pub(super) fn candidates(&self, pages: &mut Pages<'_>, address: Addr) -> Result<Vec<Addr>> {
        let Tables::Generations { young, old, .. } = self.tables else {
            return Ok(vec![self.current(pages, address.0, address)?]);
        };
        let offset = address.0 & self.offset_mask;
        let mut candidates = Vec::new();
        for table in [young, old] {
            let forwarding = self.forwarding(pages, table, offset)?;
            let moved = self.moved(pages, forwarding, offset)?;
            candidates.extend(moved.map(|offset| Addr(address.0 & !self.offset_mask | offset)));
        }
        if candidates.is_empty() {
            candidates.push(address);
        }
        Ok(candidates)
    }

    /// Returns the forwarding of the granule at an offset in the heap; `None` if its objects were not moved.
    fn forwarding(&self, pages: &mut Pages<'_>, table: Addr, offset: u64) -> Result<Option<Addr>> {
        let map = pages.pointer(at(table, self.map)?)?;
        let forwarding = pages.pointer(at(map, (offset >> GRANULE_SHIFT) * 8)?)?;
        Ok((forwarding != Addr(0)).then_some(forwarding))
    }

    /// Returns the new offset of an object; `None` if it was not moved yet.
    fn moved(
        &self,
        pages: &mut Pages<'_>,
        forwarding: Option<Addr>,
        offset: u64,
    ) -> Result<Option<u64>> {
        let Some(forwarding) = forwarding else { return Ok(None) };
        let start = pages.u64(at(forwarding, self.start)?)?;
        let shift = pages.u64(at(forwarding, self.alignment_shift)?)?;
        let length = pages.u64(at(forwarding, self.length)?)?;
        let from = offset.checked_sub(start).filter(|_| shift <= MAX_ALIGNMENT_SHIFT);
        let Some(from) = from.filter(|_| length.is_power_of_two() && length <= MAX_ENTRIES) else {
            return Err(Error::layout("a ZForwarding is implausible"));
        };
        let index = from >> shift;
        let entries = at(forwarding, self.entries)?;
        let mut cursor = u64::from(hash(index as u32));
        for _ in 0..MAX_PROBES.min(length) {
            cursor &= length - 1;
            let entry = pages.u64(at(entries, cursor * 8)?)?;
            // Bit 0 is set in used entries. The new offset has 45 bits, the index in the page 18 bits.
            match entry & 1 {
                0 => return Ok(None),
                _ if entry >> 46 == index => return Ok(Some(entry >> 1 & ((1 << 45) - 1))),
                _ => cursor += 1,
            }
        }
        Ok(None)
    }
}

/// Returns the forwarding tables of the young and of the old generation. The first members of a ZGeneration are its
/// number, pointers to page allocator and page table of the heap, and the forwarding table.
fn generations(pages: &mut Pages<'_>, layout: &Layout, heap: Addr) -> Result<[Addr; 2]> {
    let allocator = at(heap, layout.get(Item::ZAllocator)?)?;
    let page_table = at(heap, layout.get(Item::ZPageTable)?)?;
    let granules = pages.u64(page_table)?;
    let mut found = [None; 2];
    let mut last = [0; 2];
    for offset in (0..MAX_HEAP).step_by(8) {
        // The ZHeap may be shorter than the searched range, and the memory after it may be unmapped.
        let Ok(word) = pages.u64(at(heap, offset)?) else { break };
        if [last[1], word] == [allocator.0, page_table.0] {
            let table = at(heap, offset + 8)?;
            let id = last[0] as u8;
            let slot = found.get_mut(usize::from(id)).filter(|_| id == YOUNG || id == OLD);
            // A map of granules begins with its size. No map is larger than that of the page table.
            if let Some(slot) = slot
                && pages.u64(table).is_ok_and(|size| (1..=granules).contains(&size))
            {
                *slot = Some(table);
            }
        }
        last = [last[1], word];
    }
    match found {
        [Some(young), Some(old)] => Ok([young, old]),
        _ => Err(Error::layout("the generations in the heap of ZGC were not found")),
    }
}

/// Whether the young generation's forwarding applies to a reference (`ZBarrier::remap_generation`). `good` is the mask
/// of references that need no correction. `is_in_young` is whether the young generation has a forwarding for
/// the granule to which the reference refers.
fn is_young(reference: u64, good: u64, is_in_young: bool) -> bool {
    // Exactly one of the four remapped bits differs from the others. Its position, 0 to 3, has two binary digits.
    // The low digit changes with each young collection, and the high digit with each old collection.
    let changed = remapped(reference) ^ remapped(good);
    match (changed & 2 != 0, changed & 1 != 0) {
        (false, _) => true,
        (true, false) => false,
        // An old object contains the reference, and the reference refers to an old object.
        (true, true) if reference & REMEMBERED == REMEMBERED => false,
        (true, true) => is_in_young,
    }
}

/// `ZHash::uint32_to_uint32`.
fn hash(key: u32) -> u32 {
    let mut key = (!key).wrapping_add(key << 15);
    key ^= key >> 12;
    key = key.wrapping_add(key << 2);
    key ^= key >> 4;
    key = key.wrapping_mul(2057);
    key ^ key >> 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::{
        processor::REMAPPED_SHIFT,
        testing::{Image, own_memory},
    };

    /// Mask of offsets, which is also the base of the heap minus one.
    const OFFSETS: u64 = (1 << 42) - 1;
    const HEAP: u64 = 1 << 42;
    /// Masks of the remapped bits: the lowest bit is good, the other three are bad.
    const GOOD: u64 = 1 << 12;
    const BAD: u64 = 0xe000;
    const GRANULE: u64 = 1 << GRANULE_SHIFT;

    /// Generational ZGC. The young generation has a forwarding for the second granule. `entry` sets the four
    /// entries of this forwarding.
    fn jvm(entry: impl FnOnce(&mut [u64; 4])) -> (Image, Forwarding) {
        let mut image = Image::new();
        let bad_mask = image.put(&[BAD]);
        let good_mask = image.put(&[GOOD]);
        let mut entries = [0; 4];
        entry(&mut entries);
        // Words of a ZForwarding: start, alignment, number of entries.
        let forwarding = image.put(&[GRANULE, 3, 4]);
        image.put(&entries);
        let young = image.put(&[0, forwarding.0]);
        let old = image.put(&[0, 0]);
        let [young, old] = [young, old].map(|map| image.put(&[2, map.0]));
        let forwarding = Forwarding {
            tables: Tables::Generations { young, old, good_mask },
            bad_mask,
            offset_mask: OFFSETS,
            map: 8,
            start: 0,
            alignment_shift: 8,
            length: 16,
            entries: 24,
        };
        (image, forwarding)
    }

    fn entry(index: u64, to: u64) -> u64 {
        index << 46 | to << 1 | 1
    }

    #[test]
    fn moved_object_is_found_after_a_collision() {
        let index = 5_u64;
        let at = hash(index as u32) as usize & 3;
        let (_image, forwarding) = jvm(|entries| {
            entries[at] = entry(9, 77);
            entries[(at + 1) & 3] = entry(index, 0x1234_5678);
        });
        let memory = own_memory();
        let pages = &mut Pages::new(&memory);
        let old = Addr(HEAP | GRANULE | index << 3);
        let new = Addr(HEAP | 0x1234_5678);
        assert_eq!(forwarding.current(pages, 1 << 13, old).unwrap(), new);
        assert_eq!(forwarding.candidates(pages, old).unwrap(), [new]);
        // A reference that needs no correction, an object that was not moved, and a granule without moved objects.
        assert_eq!(forwarding.current(pages, GOOD, old).unwrap(), old);
        for other in [old.0 + 8, HEAP | 8].map(Addr) {
            assert_eq!(forwarding.current(pages, 1 << 13, other).unwrap(), other);
            assert_eq!(forwarding.candidates(pages, other).unwrap(), [other]);
        }
    }

    #[test]
    fn full_or_implausible_forwarding_terminates() {
        let (mut image, forwarding) = jvm(|entries| *entries = [entry(9, 77); 4]);
        let memory = own_memory();
        let old = Addr(HEAP | GRANULE | 8);
        assert_eq!(forwarding.current(&mut Pages::new(&memory), 1 << 13, old).unwrap(), old);
        let Tables::Generations { young, .. } = forwarding.tables else { return };
        let map = memory.pointer(Addr(young.0 + 8)).unwrap();
        let of_granule = memory.pointer(Addr(map.0 + 8)).unwrap();
        for length in [0, 3, u64::MAX, 1 << 60] {
            image.overwrite(Addr(of_granule.0 + 16), length);
            assert!(forwarding.current(&mut Pages::new(&memory), 1 << 13, old).is_err());
        }
    }

    #[test]
    fn generation_of_a_reference_is_derived_from_its_metadata() {
        let words = || (0..16).map(|bits| bits << REMAPPED_SHIFT);
        let reference = |number: u32| words().find(|&word| remapped(word) == number).unwrap();
        assert!(is_young(reference(1), reference(0), false));
        assert!(!is_young(reference(2), reference(0), true));
        for is_in_young in [false, true] {
            assert_eq!(is_young(reference(3), reference(0), is_in_young), is_in_young);
            assert!(!is_young(reference(3) | REMEMBERED, reference(0), is_in_young));
        }
    }
}

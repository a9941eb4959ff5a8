//! Code heaps: consecutive blocks, each with its length in segments.
//!
//! Sources: hotspot/share/code/codeCache.hpp, memory/heap.hpp, memory/virtualspace.hpp,
//! utilities/growableArray.hpp. The segment map has one byte for each segment: 0 where a block begins, 255 in
//! segments that belong to no block. Any other value is a distance back in segments, to the beginning of the
//! block or, in a long block, to an earlier segment of the same block.

use crate::{
    Addr, Error, Result,
    hotspot::{code::at, layout::Item, pages::Pages, resolved::Layout},
};

/// Maximum number of heaps; HotSpot has three heaps, or one.
const MAX_HEAPS: u32 = 16;
/// Maximum number of blocks in a heap: more than any code cache holds.
const MAX_BLOCKS: usize = 4_000_000;
/// Maximum number of steps back through the segment map. A method of several megabytes needs fewer.
const MAX_HOPS: usize = 1024;
/// Plausibility limit for the size of a heap in bytes; the code cache is at most 2 GiB.
const MAX_HEAP: u64 = 4 << 30;
/// Value of the segment map for a segment that belongs to no block.
const FREE: u8 = 0xff;

/// A CodeHeap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hotspot) struct Heap {
    /// The committed part.
    pub(crate) low: Addr,
    pub(crate) high: Addr,
    /// The reserved part, up to which it may grow.
    pub(crate) reserved_low: Addr,
    pub(crate) reserved_high: Addr,
    pub(crate) segmap: Addr,
    /// The binary logarithm of a segment's bytes.
    pub(crate) segment_log: u32,
}

/// Returns the code heaps of a JVM.
///
/// # Errors
/// [`Error::Layout`] naming the field that is missing or implausible, [`Error::Memory`].
pub(in crate::hotspot) fn heaps(pages: &mut Pages<'_>, layout: &Layout) -> Result<Vec<Heap>> {
    let addresses = addresses(pages, layout)?;
    addresses.into_iter().map(|heap| Heap::read(pages, layout, heap)).collect()
}

/// Returns the addresses of the CodeHeaps.
///
/// # Errors
/// The errors of [`heaps`].
pub(super) fn addresses(pages: &mut Pages<'_>, layout: &Layout) -> Result<Vec<Addr>> {
    if layout.is_jdk_8() {
        return Ok(vec![pages.pointer(layout.address(Item::CodeHeapOne)?)?]);
    }
    let array = pages.pointer(layout.address(Item::CodeHeaps)?)?;
    if array == Addr(0) {
        return Err(Error::layout("the code cache is not set up yet"));
    }
    let count = pages.u32(at(array, layout.get(Item::ArrayLength)?)?)?.min(MAX_HEAPS);
    // GrowableArray<E> has the pointer to its elements directly after its base class.
    let data = layout.get(Item::ArrayData).or_else(|_| layout.get(Item::ArraySize))?;
    let data = pages.pointer(at(array, data)?)?;
    (0..count).map(|i| pages.pointer(at(data, u64::from(i) * 8)?)).collect()
}

impl Heap {
    /// Reads a heap.
    ///
    /// # Errors
    /// The errors of [`heaps`].
    pub(super) fn read(pages: &mut Pages<'_>, layout: &Layout, heap: Addr) -> Result<Self> {
        let space = at(heap, layout.get(Item::HeapMemory)?)?;
        let segments = at(heap, layout.get(Item::HeapSegmap)?)?;
        let mut pointer = |space, field| pages.pointer(at(space, layout.get(field)?)?);
        let found = Self {
            low: pointer(space, Item::SpaceLow)?,
            high: pointer(space, Item::SpaceHigh)?,
            reserved_low: pointer(space, Item::SpaceLowBoundary)?,
            reserved_high: pointer(space, Item::SpaceHighBoundary)?,
            segmap: pointer(segments, Item::SpaceLow)?,
            segment_log: pages.u32(at(heap, layout.get(Item::HeapSegmentLog)?)?)?,
        };
        let log = found.segment_log;
        if !(4..=16).contains(&log) {
            return Err(Error::layout(format!("implausible code cache segments of 2^{log} bytes")));
        }
        if found.high.0.saturating_sub(found.low.0) > MAX_HEAP {
            return Err(Error::layout("a heap of the code cache exceeds 4 GiB"));
        }
        Ok(found)
    }

    /// Returns its maximum size in bytes.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved_high.0.saturating_sub(self.reserved_low.0)
    }

    /// Returns the segment map's value for an address.
    fn segment(&self, pages: &mut Pages<'_>, addr: Addr) -> Result<u8> {
        let number = addr.0.saturating_sub(self.low.0) >> self.segment_log;
        let [segment] = pages.array(at(self.segmap, number)?)?;
        Ok(segment)
    }
}

/// A block: its blob and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hotspot) struct HeapBlock {
    pub(crate) blob: Addr,
    pub(crate) bytes: u64,
    /// Address of the byte that is nonzero while the block is in use.
    pub(crate) used: Addr,
}

/// Layout of a block's header.
#[derive(Clone, Debug)]
pub(in crate::hotspot) struct Blocks {
    header: u64,
    length: u64,
    length_is_long: bool,
    used: u64,
}

impl Blocks {
    pub(crate) fn read(layout: &Layout) -> Result<Self> {
        let header = layout.get(Item::BlockHeaderSize).or_else(|_| layout.get(Item::BlockSize))?;
        Ok(Self {
            header: layout.get(Item::BlockSize)?,
            length: layout.get(Item::BlockLength)?,
            length_is_long: header >= 16,
            used: layout.get(Item::BlockUsed)?,
        })
    }

    /// Visits the blocks of a heap that are in use.
    pub(crate) fn each(
        &self,
        pages: &mut Pages<'_>,
        heap: &Heap,
        mut visit: impl FnMut(&mut Pages<'_>, HeapBlock),
    ) -> Result<()> {
        let mut address = heap.low;
        for _ in 0..MAX_BLOCKS {
            // The walk ends after the last block, at an address where no block begins, or at a block whose
            // length cannot be determined.
            if address >= heap.high || !matches!(heap.segment(pages, address), Ok(0)) {
                break;
            }
            let Ok((block, is_used)) = self.block(pages, heap, address) else { break };
            if is_used {
                visit(pages, block);
            }
            address = at(address, block.bytes)?;
        }
        Ok(())
    }

    /// Returns the block in use that contains an address, as `CodeHeap::find_block_for` does.
    pub(crate) fn find(
        &self,
        pages: &mut Pages<'_>,
        heaps: &[Heap],
        addr: Addr,
    ) -> Result<Option<HeapBlock>> {
        let Some(heap) = heaps.iter().find(|heap| (heap.low..heap.high).contains(&addr)) else {
            return Ok(None);
        };
        let log = heap.segment_log;
        let mut segment = Addr(heap.low.0 + ((addr.0 - heap.low.0) >> log << log));
        for _ in 0..MAX_HOPS {
            match heap.segment(pages, segment)? {
                0 => {
                    let (block, is_used) = self.block(pages, heap, segment)?;
                    return Ok(is_used.then_some(block));
                }
                FREE => return Ok(None),
                back => match segment.0.checked_sub(u64::from(back) << log) {
                    Some(before) if before >= heap.low.0 => segment = Addr(before),
                    _ => return Ok(None),
                },
            }
        }
        Ok(None)
    }

    /// Reads a block's header: its blob, its length, and whether it is in use.
    fn block(&self, pages: &mut Pages<'_>, heap: &Heap, block: Addr) -> Result<(HeapBlock, bool)> {
        let length = at(block, self.length)?;
        let length = match self.length_is_long {
            true => pages.u64(length)?,
            false => pages.u32(length)?.into(),
        };
        let used = at(block, self.used)?;
        let [is_used] = pages.array(used)?;
        let bytes = length.checked_mul(1 << heap.segment_log);
        let bytes = bytes.filter(|&n| n > 0 && n <= heap.high.0.saturating_sub(block.0));
        let bytes =
            bytes.ok_or_else(|| Error::layout("implausible length of a code cache block"))?;
        Ok((HeapBlock { blob: at(block, self.header)?, bytes, used }, is_used != 0))
    }
}

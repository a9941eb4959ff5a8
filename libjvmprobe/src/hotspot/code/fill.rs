//! Fill level of the code cache, as `jcmd PID Compiler.codecache` prints it.
//!
//! Source: hotspot/share/memory/heap.hpp. vmStructs exports the offset of the binary logarithm of a
//! `CodeHeap`'s segment size, but not the offsets of the fields beside the logarithm. The table lists these
//! fields. Their order is the same from JDK 8 to 28. The two fields before the logarithm must agree with
//! values that are known from other fields. If they do not, the result is an error.
//!
//! | distance from the logarithm in words | field |
//! |---|---|
//! | -2 | `_number_of_reserved_segments` |
//! | -1 | `_segment_size` |
//! | 1 | `_next_segment`: segments before it were allocated at least once |
//! | 2 | `_freelist`: blocks that were freed, or null |
//! | 3 | `_last_insert_point`, a block in that list or null; exists in JDK 11 since 11.0.6 and since JDK 14 |
//! | 3 or 4 | `_freelist_segments`: number of segments in that list |

use crate::{
    Addr, Error, Result,
    hotspot::{
        code::{
            at,
            heap::{Heap, addresses},
        },
        layout::Item,
        pages::Pages,
        resolved::Layout,
    },
    process::memory::Memory,
};

/// Fill level of the code cache in bytes: the sum of all code heaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// Bytes in use, including stubs and the interpreter.
    pub used: u64,
    /// Maximum size.
    pub size: u64,
}

/// Number of words that are read before the logarithm, and total number of words that are read.
const BEFORE: u64 = 2;
const WORDS: usize = 7;

/// Fill level of one code heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hotspot) struct HeapFill {
    /// Address of the CodeHeap.
    pub(in crate::hotspot) heap: Addr,
    /// Bytes in use.
    pub(in crate::hotspot) used: u64,
    /// Committed size.
    pub(in crate::hotspot) committed: u64,
    /// Maximum size.
    pub(in crate::hotspot) size: u64,
}

/// Reads the fill level of the code cache.
///
/// # Errors
/// The errors of [`read_heaps`].
pub(in crate::hotspot) fn read(memory: &Memory, layout: &Layout) -> Result<Fill> {
    let heaps = read_heaps(&mut Pages::new(memory), layout)?;
    Ok(heaps.iter().fold(Fill::default(), |sum, heap| Fill {
        used: sum.used.saturating_add(heap.used),
        size: sum.size.saturating_add(heap.size),
    }))
}

/// Reads the fill level of each code heap.
///
/// # Errors
/// [`Error::Layout`] naming the field that is missing or implausible, [`Error::Memory`].
pub(in crate::hotspot) fn read_heaps(
    pages: &mut Pages<'_>,
    layout: &Layout,
) -> Result<Vec<HeapFill>> {
    let log = layout.get(Item::HeapSegmentLog)?;
    let first = log.checked_sub(8 * BEFORE).filter(|first| first.is_multiple_of(8));
    let first = first.ok_or_else(|| Error::layout("unknown layout of a code heap"))?;
    let mut fills = Vec::new();
    for address in addresses(pages, layout)? {
        let heap = Heap::read(pages, layout, address)?;
        let mut words = [0; WORDS];
        for (word, offset) in words.iter_mut().zip((first..).step_by(8)) {
            *word = pages.u64(at(address, offset)?)?;
        }
        let used = used_segments(&heap, words);
        let used = used.ok_or_else(|| Error::layout("unknown layout of a code heap"))?;
        fills.push(HeapFill {
            heap: address,
            used: used << heap.segment_log,
            committed: heap.high.0.saturating_sub(heap.low.0),
            size: heap.reserved(),
        });
    }
    Ok(fills)
}

/// Returns the number of segments in use; `None` if the words are implausible.
fn used_segments(heap: &Heap, words: [u64; WORDS]) -> Option<u64> {
    let [reserved, size, _, next, list, third, fourth] = words;
    let is_ours = size == 1 << heap.segment_log && reserved == heap.reserved() >> heap.segment_log;
    let is_block = |word: u64| (heap.low..heap.high).contains(&Addr(word));
    let free = match list {
        0 => 0,
        // A free list that is not empty has at least one segment. So if the word at distance 3 is zero, it
        // is not the count of segments, but an insert point that is null.
        list if is_block(list) && (third == 0 || is_block(third)) => fourth,
        list if is_block(list) => third,
        _ => return None,
    };
    (is_ours && next <= reserved && free <= next).then(|| next - free)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAP: Heap = Heap {
        low: Addr(0x10000),
        high: Addr(0x20000),
        reserved_low: Addr(0x10000),
        reserved_high: Addr(0x50000),
        segmap: Addr(0),
        segment_log: 7,
    };

    #[test]
    fn freed_segments_do_not_count_as_used() {
        let of = |next, list, third, fourth| {
            used_segments(&HEAP, [0x800, 128, 7, next, list, third, fourth])
        };
        assert_eq!(of(100, 0, 0, 99), Some(100));
        // In JDK 8 the count is directly after the list. In JDK 14 and later it is after the insert point,
        // which may be null.
        assert_eq!(of(100, 0x10080, 30, 0x11111), Some(70));
        assert_eq!(of(100, 0x10080, 0x10100, 30), Some(70));
        assert_eq!(of(100, 0x10080, 0, 30), Some(70));
    }

    #[test]
    fn implausible_heap_words_return_none() {
        let words = [0x800, 128, 7, 100, 0x10080, 0x10100, 30];
        assert!(used_segments(&HEAP, words).is_some());
        for (at, wrong) in [(0, 0x7ff), (1, 64), (3, 0x801), (3, 29), (4, 0x20000), (6, 101)] {
            let mut words = words;
            words[at] = wrong;
            assert_eq!(used_segments(&HEAP, words), None, "{at}");
        }
    }
}

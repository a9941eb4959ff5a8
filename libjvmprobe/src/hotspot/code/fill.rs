//! How full the code cache is: what `jcmd PID Compiler.codecache` tells.
//!
//! Source: hotspot/share/memory/heap.hpp. vmStructs tells where a `CodeHeap` has the binary
//! logarithm of its segments' size. What stands around it is in the same order from JDK 8 to 28, and
//! what stands before it must agree with what is known otherwise, or nothing is told:
//!
//! | words from there | |
//! |---|---|
//! | -2 | `_number_of_reserved_segments` |
//! | -1 | `_segment_size` |
//! | 1 | `_next_segment`: those before it were handed out once |
//! | 2 | `_freelist`: those that were given back, or none |
//! | 3 | from JDK 14 (and 11.0.6) on `_last_insert_point`, a block in that list or none |
//! | 3 or 4 | `_freelist_segments` |

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

/// How full the code cache is, in bytes: all its heaps together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// What code takes, stubs and the interpreter among it.
    pub used: u64,
    /// What it can take at most.
    pub size: u64,
}

/// Words before and behind the logarithm.
const BEFORE: u64 = 2;
const WORDS: usize = 7;

/// Reads it.
///
/// # Errors
/// [`Error::Layout`] naming what is missing or implausible, [`Error::Memory`].
pub(in crate::hotspot) fn read(memory: &Memory, layout: &Layout) -> Result<Fill> {
    let pages = &mut Pages::new(memory);
    let log = layout.get(Item::HeapSegmentLog)?;
    let first = log.checked_sub(8 * BEFORE).filter(|first| first.is_multiple_of(8));
    let first = first.ok_or_else(|| Error::layout("a code heap of another shape"))?;
    let mut fill = Fill::default();
    for address in addresses(pages, layout)? {
        let heap = Heap::read(pages, layout, address)?;
        let mut words = [0; WORDS];
        for (word, offset) in words.iter_mut().zip((first..).step_by(8)) {
            *word = pages.u64(at(address, offset)?)?;
        }
        let used = used_segments(&heap, words);
        let used = used.ok_or_else(|| Error::layout("a code heap of another shape"))?;
        fill.used = fill.used.saturating_add(used << heap.segment_log);
        fill.size = fill.size.saturating_add(heap.reserved());
    }
    Ok(fill)
}

/// Segments in use; `None` where the words are not what they should be.
fn used_segments(heap: &Heap, words: [u64; WORDS]) -> Option<u64> {
    let [reserved, size, _, next, list, third, fourth] = words;
    let is_ours = size == 1 << heap.segment_log && reserved == heap.reserved() >> heap.segment_log;
    let is_block = |word: u64| (heap.low..heap.high).contains(&Addr(word));
    let free = match list {
        0 => 0,
        // In a list there is at least one segment.
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
    fn what_was_given_back_is_not_in_use() {
        let of = |next, list, third, fourth| {
            used_segments(&HEAP, [0x800, 128, 7, next, list, third, fourth])
        };
        assert_eq!(of(100, 0, 0, 99), Some(100));
        // JDK 8, which counts right behind the list; then with and without a point to insert at.
        assert_eq!(of(100, 0x10080, 30, 0x11111), Some(70));
        assert_eq!(of(100, 0x10080, 0x10100, 30), Some(70));
        assert_eq!(of(100, 0x10080, 0, 30), Some(70));
    }

    #[test]
    fn what_cannot_be_is_not_told() {
        let words = [0x800, 128, 7, 100, 0x10080, 0x10100, 30];
        assert!(used_segments(&HEAP, words).is_some());
        for (at, wrong) in [(0, 0x7ff), (1, 64), (3, 0x801), (3, 29), (4, 0x20000), (6, 101)] {
            let mut words = words;
            words[at] = wrong;
            assert_eq!(used_segments(&HEAP, words), None, "{at}");
        }
    }
}

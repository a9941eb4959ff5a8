//! Where the tables of a native image's code are.
//!
//! Nothing exports that. But `ImageCodeInfo` says where the code begins and how large it is,
//! several times over, and refers to an index of the code's table, whose length follows from
//! that. Few words of a heap look so, and of these only the right ones lead to an index.
//!
//! Its fields, each of eight bytes: codeStart, codeSize, dataOffset, dataSize,
//! codeAndDataMemorySize, (objectFields,) codeInfoIndex, codeInfoEncodings, referenceMapEncoding,
//! frameInfoEncodings, objectConstants, classes, memberNames, otherStrings, methodTable.

use crate::{
    Vaddr,
    elf::{ElfFile, Relocations},
    image::heap::{Heap, Object, WORD},
};

/// So much code is one entry of the index for (`CodeInfoIndexGranularity`).
pub(super) const GRANULARITY: u64 = 256;
/// Less than the least image has, and more than the largest.
const CODE: std::ops::Range<u64> = 4096..1 << 32;
/// The field codeInfoIndex, without and with objectFields before it.
const INDEX_FIELDS: [usize; 2] = [6, 5];
/// How far behind the base of the heap the section may begin: a collector's own structures and a
/// guard, of whole pages.
const MAX_BEGIN: u64 = 64 << 20;
const PAGE: usize = 4096;
/// So many words that look like the beginning are looked at: one does in an image.
const MAX_TRIED: usize = 256;

/// The tables.
#[derive(Debug)]
pub(super) struct Found {
    /// Where the code begins.
    pub(super) code: Vaddr,
    pub(super) code_size: u64,
    pub(super) index: Object,
    pub(super) entries: Object,
    /// Where the field after `entries` and `referenceMapEncoding` is: all others follow it.
    pub(super) frames_field: usize,
}

/// Finds the tables in a section that is loaded at `vaddr`.
pub(super) fn find(elf: &ElfFile, vaddr: Vaddr, bytes: Vec<u8>) -> Option<(Heap, Found)> {
    let mut heap = Heap::new(bytes, 0);
    let last = heap.len().checked_sub(16 * WORD)?;
    let relocations = elf.relocations();
    let mut tried = 0;
    for at in (0..=last).step_by(WORD) {
        let word = |n: usize| heap.u64(at + n * WORD);
        let (Some(start), Some(size), Some(data), Some(data_size), Some(all)) =
            (word(0), word(1), word(2), word(3), word(4))
        else {
            continue;
        };
        // Code, then data, and both together: unlikely to be anything else.
        let fits = data >= size && data.checked_add(data_size).is_some_and(|end| end <= all);
        if !CODE.contains(&size) || !fits || all >= CODE.end {
            continue;
        }
        let place = Vaddr(vaddr.0.wrapping_add(at as u64));
        let start = Vaddr(start);
        let Some(code) = code_at(elf, &relocations, start, place, size) else { continue };
        tried += 1;
        if tried > MAX_TRIED {
            return None;
        }
        for field in INDEX_FIELDS {
            let field = at + field * WORD;
            let Some(begin) = begin(&heap, field, size) else { continue };
            heap.begin = begin;
            let (Some(index), Some(entries)) = (heap.object(field), heap.object(field + WORD))
            else {
                continue;
            };
            let frames_field = field + 3 * WORD;
            return Some((heap, Found { code, code_size: size, index, entries, frames_field }));
        }
    }
    None
}

/// Where the code begins: the word itself, or what a program that may be loaded anywhere is to
/// put there. `None` where no code of that size is.
fn code_at(
    elf: &ElfFile,
    relocations: &Relocations,
    start: Vaddr,
    place: Vaddr,
    size: u64,
) -> Option<Vaddr> {
    let is_code = |start: &Vaddr| elf.is_code(*start, size);
    Some(start).filter(is_code).or_else(|| relocations.at(place).filter(is_code))
}

/// What a reference to the section's first byte is, if the one at `field` is to be an index of
/// so much code: an array of bytes, four for each entry, of which the first is 0.
fn begin(heap: &Heap, field: usize, code_size: u64) -> Option<u64> {
    let length = u32::try_from(code_size.div_ceil(GRANULARITY) * 4).ok()?;
    let reference = heap.u64(field)?;
    let is_index = |&begin: &u64| {
        let place = reference.checked_sub(begin).and_then(|place| usize::try_from(place).ok());
        place.is_some_and(|place| {
            let word = |at: usize| place.checked_add(at).and_then(|at| heap.u32(at));
            place % WORD == 0 && word(12) == Some(length) && word(16) == Some(0)
        })
    };
    (0..=MAX_BEGIN).step_by(PAGE).find(is_index)
}

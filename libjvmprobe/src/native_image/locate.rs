//! Location of a native image's code tables.
//!
//! No symbol leads to these tables. But the object `ImageCodeInfo` contains the start of the code, the size
//! of the code, other sizes that must be consistent with it, and a reference to an index of the code table.
//! The length of the index follows from the code size. Few positions in a heap match this pattern, and only
//! the right one leads to an index.
//!
//! The fields of `ImageCodeInfo`, each of eight bytes: codeStart, codeSize, dataOffset, dataSize,
//! codeAndDataMemorySize, (objectFields,) codeInfoIndex, codeInfoEncodings, referenceMapEncoding,
//! frameInfoEncodings, objectConstants, classes, memberNames, otherStrings, methodTable.

use crate::{
    Vaddr,
    elf::{ElfFile, Relocations, SectionData},
    native_image::heap::{Heap, Object, WORD},
};

/// Number of bytes of code per index entry (`CodeInfoIndexGranularity`).
pub(super) const GRANULARITY: u64 = 256;
/// Range of plausible code sizes in bytes.
const CODE_SIZES: std::ops::Range<u64> = 4096..1 << 32;
/// Word offset of the field codeInfoIndex, with and without objectFields before it.
const INDEX_FIELDS: [usize; 2] = [6, 5];
/// Maximum offset of the section from the heap's base. The garbage collector's own data and a guard page
/// precede the section. The offset is always a multiple of the page size.
const MAX_BEGIN: u64 = 64 << 20;
const PAGE: usize = 4096;
/// Maximum number of positions examined that look like the beginning of `ImageCodeInfo`. An image normally
/// has one.
const MAX_CANDIDATES: usize = 256;

/// Location of the tables.
#[derive(Debug)]
pub(super) struct CodeTables {
    /// Start of the code.
    pub(super) code: Vaddr,
    pub(super) code_size: u64,
    pub(super) index: Object,
    pub(super) entries: Object,
    /// Position of the field frameInfoEncodings. The fields listed after it in the module head follow it.
    pub(super) frames_field: usize,
}

/// Finds the tables in the content of a section that is loaded at `vaddr`.
pub(super) fn find(elf: &ElfFile, vaddr: Vaddr, bytes: SectionData) -> Option<(Heap, CodeTables)> {
    let mut heap = Heap::new(bytes, 0);
    let last = heap.len().checked_sub(16 * WORD)?;
    let relocations = elf.relocations();
    let mut candidates = 0;
    for at in (0..=last).step_by(WORD) {
        let word = |n: usize| heap.u64(at + n * WORD);
        let (Some(start), Some(size), Some(data), Some(data_size), Some(all)) =
            (word(0), word(1), word(2), word(3), word(4))
        else {
            continue;
        };
        // The sizes of the code, of the data, and of both together must agree. Words that are not an
        // `ImageCodeInfo` rarely meet this condition.
        let fits = data >= size && data.checked_add(data_size).is_some_and(|end| end <= all);
        if !CODE_SIZES.contains(&size) || !fits || all >= CODE_SIZES.end {
            continue;
        }
        let address = Vaddr(vaddr.0.wrapping_add(at as u64));
        let start = Vaddr(start);
        let Some(code) = code_at(elf, &relocations, start, address, size) else { continue };
        candidates += 1;
        if candidates > MAX_CANDIDATES {
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
            return Some((
                heap,
                CodeTables { code, code_size: size, index, entries, frames_field },
            ));
        }
    }
    None
}

/// Returns the start of the code: `start` itself or, in a position-independent program, the value of the
/// relocation of the word at `address`. `None` if code of that size begins at neither of these two
/// addresses.
fn code_at(
    elf: &ElfFile,
    relocations: &Relocations,
    start: Vaddr,
    address: Vaddr,
    size: u64,
) -> Option<Vaddr> {
    let is_code = |start: &Vaddr| elf.is_code(*start, size);
    Some(start).filter(is_code).or_else(|| relocations.at(address).filter(is_code))
}

/// Finds the value that a reference to the section's first byte has. With this value, the reference at
/// `field` leads to an index for `code_size` bytes of code: an array with four bytes for each index entry,
/// whose first entry is 0.
fn begin(heap: &Heap, field: usize, code_size: u64) -> Option<u64> {
    let length = u32::try_from(code_size.div_ceil(GRANULARITY) * 4).ok()?;
    let reference = heap.u64(field)?;
    let is_index = |&begin: &u64| {
        let position =
            reference.checked_sub(begin).and_then(|position| usize::try_from(position).ok());
        position.is_some_and(|position| {
            let word = |at: usize| position.checked_add(at).and_then(|at| heap.u32(at));
            position % WORD == 0 && word(12) == Some(length) && word(16) == Some(0)
        })
    };
    (0..=MAX_BEGIN).step_by(PAGE).find(is_index)
}

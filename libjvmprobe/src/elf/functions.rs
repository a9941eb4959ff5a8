//! Start addresses of functions according to the file itself: the binary search table in `.eh_frame_hdr`, which remains
//! when a file is stripped.
//!
//! Entries are read one by one during a search, so that a table of any size takes no memory.
//!
//! Source: Linux Standard Base Core 5.0, chapter 10.6.

use std::{fs::File, os::unix::fs::FileExt};

use crate::{
    FileOffset, Vaddr,
    elf::{ElfFile, Segments},
};

/// Expected header: version 1, then the encodings of the pointer to `.eh_frame` (four bytes, relative to its
/// own address), of the number of entries (four bytes) and of the entries (four bytes each, relative to the
/// section's address). All linkers write these.
const HEAD: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
/// Size of the data before the entries, in bytes.
const ENTRIES: u64 = 12;
/// Size of an entry in bytes: start of the function, and address of its description in `.eh_frame`.
const ENTRY: u64 = 8;

/// Functions of an open file.
#[derive(Debug)]
pub(crate) struct Functions {
    file: File,
    segments: Segments,
    /// Address of `.eh_frame_hdr`.
    header: Vaddr,
    /// File offset of the entries.
    entries: u64,
    count: u64,
}

impl Functions {
    /// Opens the table; `None` if the file has none, or one with another header.
    pub(crate) fn read(elf: &ElfFile) -> Option<Self> {
        let section = elf.section(".eh_frame_hdr")?;
        let (range, is_compressed) = section.stored()?;
        let size = (range.end - range.start).checked_sub(ENTRIES).filter(|_| !is_compressed)?;
        let file = elf.file().try_clone().ok()?;
        let mut head = HEAD;
        file.read_exact_at(&mut head, range.start).ok()?;
        let (entries, count) = (range.start + ENTRIES, size / ENTRY);
        let segments = elf.segments();
        (head == HEAD).then(|| Self { file, segments, header: section.vaddr(), entries, count })
    }

    /// Returns the start of the function that contains an address.
    pub(crate) fn start(&self, at: Vaddr) -> Option<Vaddr> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            match self.entry(middle)?.0 <= at {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let (start, description) = self.entry(low.checked_sub(1)?)?;
        (at.0 - start.0 < self.size(start, description)?.into()).then_some(start)
    }

    /// Returns the start of the function that contains a file offset, as a file offset.
    pub(crate) fn start_in_file(&self, at: FileOffset) -> Option<FileOffset> {
        let vaddr = self.segments.vaddr(at)?;
        at.0.checked_sub(vaddr.0 - self.start(vaddr)?.0).map(FileOffset)
    }

    /// Reads an entry: start and description of a function.
    fn entry(&self, index: u64) -> Option<(Vaddr, Vaddr)> {
        let [start, description] = self.words(self.entries + index * ENTRY)?;
        let absolute =
            |offset: u32| Vaddr(self.header.0.wrapping_add_signed(offset.cast_signed().into()));
        Some((absolute(start), absolute(description)))
    }

    /// Returns the size of a function in bytes, from its frame description entry. The entry consists of a
    /// length, a pointer to the CIE, the start of the function relative to the position of this field, and
    /// the size. `None` if the decoded start is not that of the function: then the entry has another
    /// encoding.
    fn size(&self, start: Vaddr, description: Vaddr) -> Option<u32> {
        let at = self.segments.offset(description)?;
        let [_length, _common, relative, size] = self.words(at.0)?;
        let encoded =
            description.0.wrapping_add(8).wrapping_add_signed(relative.cast_signed().into());
        (encoded == start.0).then_some(size)
    }

    fn words<const N: usize>(&self, at: u64) -> Option<[u32; N]> {
        let mut bytes = [[0; 4]; N];
        self.file.read_exact_at(bytes.as_flattened_mut(), at).ok()?;
        Some(bytes.map(u32::from_le_bytes))
    }
}

impl ElfFile {
    /// Returns whether a function begins at an address.
    pub(crate) fn begins_function(&self, vaddr: Vaddr) -> bool {
        Functions::read(self).and_then(|functions| functions.start(vaddr)) == Some(vaddr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::testing::Library;

    #[test]
    fn function_starts_are_read_from_eh_frame_hdr() {
        let library = Library::build(
            ".text
             .globl first, second
             .type first, @function
             .type second, @function
             first: .cfi_startproc
             nop
             nop
             .cfi_endproc
             second: .cfi_startproc
             nop
             .cfi_endproc",
            &["-Wl,--eh-frame-hdr"],
        );
        let elf = library.elf();
        let at = |name: &str| elf.symbols().unwrap().find(name).unwrap().value;
        let (first, second) = (at("first"), at("second"));
        assert!(elf.begins_function(first) && elf.begins_function(second));
        assert!(!elf.begins_function(Vaddr(first.0 + 1)));
        assert!(!elf.begins_function(Vaddr(second.0 + 1)) && !elf.begins_function(Vaddr(0)));
        let functions = Functions::read(&elf).unwrap();
        assert_eq!(functions.start(Vaddr(first.0 + 1)), Some(first));
        assert_eq!(functions.start(second), Some(second));
        // After the last function, and before the first one.
        assert_eq!(functions.start(Vaddr(second.0 + 1)), None);
        assert_eq!(functions.start(Vaddr(first.0 - 1)), None);
        let offset = elf.vaddr_to_offset(first).unwrap();
        assert_eq!(functions.start_in_file(FileOffset(offset.0 + 1)), Some(offset));
        assert!(!Library::build(".text\nnop", &[]).elf().begins_function(first));
    }
}

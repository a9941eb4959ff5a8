//! Where functions begin, as the file itself says: the table for binary search in
//! `.eh_frame_hdr`, which stripping leaves.
//!
//! Source: Linux Standard Base Core 5.0, chapter 10.6.2.

use crate::{Vaddr, elf::ElfFile};

/// Version 1; a pointer to `.eh_frame` and the number of entries, of four bytes each; entries
/// counted from the section's address, as all linkers write it.
const HEAD: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
/// What is before the entries, and one entry: where the function begins, and its description.
const ENTRIES: usize = 12;
const ENTRY: usize = 8;

impl ElfFile {
    /// Whether a function begins at an address.
    pub(crate) fn begins_function(&self, vaddr: Vaddr) -> bool {
        let Some(section) = self.section(".eh_frame_hdr") else { return false };
        let Ok(bytes) = section.data() else { return false };
        if bytes.get(..4) != Some(&HEAD[..]) {
            return false;
        }
        let Some(entries) = bytes.get(ENTRIES..) else { return false };
        let begins = |entry: &[u8]| {
            let offset = i32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
            section.vaddr().0.wrapping_add_signed(offset.into()) == vaddr.0
        };
        entries.chunks_exact(ENTRY).any(begins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::testing::Library;

    #[test]
    fn functions_begin_where_the_file_says() {
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
        assert!(!Library::build(".text\nnop", &[]).elf().begins_function(first));
    }
}

//! Relocations of a position-independent file.
//!
//! Sources: System V gABI, chapter 4 (relocations); psABI for x86-64, chapter 4.4; ELF for the
//! Arm 64-bit Architecture (aaelf64), chapter 5.7.

use crate::{Vaddr, elf::ElfFile};

/// Relocation type: the word is the sum of the file's base address and the addend.
const R_X86_64_RELATIVE: u64 = 8;
/// The same on aarch64.
const R_AARCH64_RELATIVE: u64 = 1027;
/// Size of `Elf64_Rela` in bytes: offset, type and addend.
const ENTRY: usize = 24;

/// For each relocated word, its address and the link-time address to which the word will point; ascending.
#[derive(Debug, Default)]
pub(crate) struct Relocations(Vec<(Vaddr, Vaddr)>);

impl ElfFile {
    /// Reads all base-relative relocations; empty if they cannot be read.
    pub(crate) fn relocations(&self) -> Relocations {
        let Some(kind) = self.machine().select(R_X86_64_RELATIVE, R_AARCH64_RELATIVE) else {
            return Relocations::default();
        };
        let section = self.section(".rela.dyn");
        let bytes = section.and_then(|section| section.data().ok()).unwrap_or_default();
        let word = |entry: &[u8], n: usize| {
            let word = entry.get(n * 8..n * 8 + 8)?;
            Some(u64::from_le_bytes(word.try_into().ok()?))
        };
        let relative = |entry: &[u8]| {
            (word(entry, 1)? == kind).then_some(())?;
            Some((Vaddr(word(entry, 0)?), Vaddr(word(entry, 2)?)))
        };
        let mut all: Vec<_> = bytes.chunks_exact(ENTRY).filter_map(relative).collect();
        all.sort_unstable();
        Relocations(all)
    }
}

impl Relocations {
    /// Returns the link-time address to which a word will point, if the word is relocated.
    pub(crate) fn at(&self, place: Vaddr) -> Option<Vaddr> {
        let found = self.0.binary_search_by_key(&place, |(place, _)| *place).ok()?;
        self.0.get(found).map(|(_, address)| *address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::testing::Library;

    #[test]
    fn relocation_of_a_pointer_gives_its_target_address() {
        let library = Library::build(
            ".text
             .globl function
             function: nop
             .data
             .globl pointer
             .type pointer, @object
             other: .8byte 0
             pointer: .8byte inside, 0
             .size pointer, 8
             .text
             inside: nop",
            &[],
        );
        let elf = library.elf();
        let at = |name: &str| elf.symbols().unwrap().find(name).unwrap().value;
        let (pointer, function) = (at("pointer"), at("function"));
        let relocations = elf.relocations();
        assert_eq!(relocations.at(pointer), Some(Vaddr(function.0 + 1)));
        assert_eq!(relocations.at(Vaddr(pointer.0 + 8)), None);
        assert!(elf.is_code(function, 2) && !elf.is_code(pointer, 1));
        assert!(!elf.is_code(function, 1 << 40) && !elf.is_code(function, u64::MAX));
    }
}

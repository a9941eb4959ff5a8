//! Relocations of a position-independent file.
//!
//! Sources: System V gABI, chapter 4 (relocations); psABI for x86-64, chapter 4.4; ELF for the
//! Arm 64-bit Architecture (aaelf64), chapter 5.7.

use crate::{
    Vaddr,
    elf::{ElfFile, content::MAX_SECTION},
    sys::{budget::Reservation, limited},
};

/// Relocation type: the word is the sum of the file's base address and the addend.
const R_X86_64_RELATIVE: u64 = 8;
/// The same on aarch64.
const R_AARCH64_RELATIVE: u64 = 1027;
/// Size of `Elf64_Rela` in bytes: offset, type and addend.
const ENTRY: usize = 24;
/// Number of relocations for which memory is reserved at once.
const RESERVED: usize = 1024;

/// For each relocated word, its address and the link-time address to which the word will point; ascending.
#[derive(Debug, Default)]
pub(crate) struct Relocations {
    all: Vec<(Vaddr, Vaddr)>,
    _reserved: Reservation,
}

impl ElfFile {
    /// Reads all base-relative relocations; empty if they cannot be read.
    pub(crate) fn relocations(&self) -> Relocations {
        let Some(kind) = self.machine().select(R_X86_64_RELATIVE, R_AARCH64_RELATIVE) else {
            return Relocations::default();
        };
        let Some(section) = self.section(".rela.dyn") else { return Relocations::default() };
        let word = |entry: &[u8], n: usize| {
            let word = entry.get(n * 8..n * 8 + 8)?;
            Some(u64::from_le_bytes(word.try_into().ok()?))
        };
        let relative = |entry: &[u8]| {
            (word(entry, 1)? == kind).then_some(())?;
            Some((Vaddr(word(entry, 0)?), Vaddr(word(entry, 2)?)))
        };
        let mut reserved = Reservation::within(self.share());
        let mut all = Vec::new();
        let result = section.content(MAX_SECTION).and_then(|content| {
            content.for_each_entry(ENTRY, |entry| {
                let Some(one) = relative(entry) else { return true };
                // Growing copies the table, so for some time the old and the new one exist.
                let has_capacity = !all.len().is_multiple_of(RESERVED)
                    || reserved.reserve(2 * RESERVED * size_of_val(&one));
                if has_capacity {
                    all.push(one);
                } else {
                    limited::add("files", self.share().tenant(), 1);
                }
                has_capacity
            })
        });
        if let Err(error) = result {
            log::debug!("cannot read relocations: {error}");
        }
        all.sort_unstable();
        Relocations { all, _reserved: reserved }
    }
}

impl Relocations {
    /// Returns the link-time address to which a word will point, if the word is relocated.
    pub(crate) fn at(&self, place: Vaddr) -> Option<Vaddr> {
        let found = self.all.binary_search_by_key(&place, |(place, _)| *place).ok()?;
        self.all.get(found).map(|(_, address)| *address)
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

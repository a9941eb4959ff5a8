//! Thread-local variables that a file exports, and how its code finds them.
//!
//! Sources: System V gABI, chapter 4 (symbols, relocations); psABI for x86-64, chapter 4.4; ELF for the Arm 64-bit
//! Architecture, "Dynamic relocations" and "Thread-local storage"; "ELF Handling For Thread-Local Storage" by Ulrich
//! Drepper; "Thread-Local Storage Descriptors for IA32 and AMD64/EM64T" by Alexandre Oliva and Glauber de Oliveira Araújo.

use goblin::elf::{
    program_header::{PT_INTERP, PT_TLS, ProgramHeader},
    section_header::SHN_UNDEF,
    sym::{STT_TLS, Sym, st_type},
};
use scroll::Pread;

use crate::{
    Vaddr,
    elf::{ElfFile, Machine, content::MAX_SECTION, string_search::Needles},
};

/// Relocation types of a processor.
struct RelocationTypes {
    descriptor: u32,
    module: u32,
    offset: u32,
}

/// `R_X86_64_TLSDESC`, `R_X86_64_DTPMOD64` and `R_X86_64_TPOFF64`.
const X86_64: RelocationTypes = RelocationTypes { descriptor: 36, module: 16, offset: 18 };
/// `R_AARCH64_TLSDESC`, `R_AARCH64_TLS_DTPMOD` and `R_AARCH64_TLS_TPREL`.
const AARCH64: RelocationTypes = RelocationTypes { descriptor: 1031, module: 1028, offset: 1030 };

impl RelocationTypes {
    /// Returns those of a processor; `None` if they are not known.
    fn of(machine: Machine) -> Option<&'static Self> {
        machine.select(&X86_64, &AARCH64)
    }
}

/// Sections with relocations. Linkers write those of TLS descriptors into either of them.
const RELOCATIONS: [&str; 2] = [".rela.dyn", ".rela.plt"];
/// Size of `Elf64_Rela` in bytes: offset, type and symbol, addend.
const ENTRY: usize = 24;
/// Maximum size in bytes of a block of thread-local variables.
const MAX_BLOCK: u64 = 1 << 30;

/// How code finds a thread-local variable of its file. Addresses are link-time addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsAccess {
    /// By a TLS descriptor at this address: a function and its argument.
    Descriptor(Vaddr),
    /// By a `tls_index` at this address: the module's number, and the variable's offset in the module's block.
    Index(Vaddr),
    /// By the offset from the thread pointer, which is the word at this address.
    OffsetAt(Vaddr),
    /// By this offset from the thread pointer, because the file is an executable.
    Offset(i64),
}

/// A relocation.
#[derive(Clone, Copy)]
struct Relocation {
    at: Vaddr,
    kind: u32,
    symbol: u32,
    addend: u64,
}

impl ElfFile {
    /// Returns the total size in bytes of the tables that [`exported_thread_local`](Self::exported_thread_local) reads.
    pub(crate) fn thread_local_tables(&self) -> u64 {
        // Few files have thread-local variables.
        if self.segment(PT_TLS).is_none() || RelocationTypes::of(self.machine()).is_none() {
            return 0;
        }
        let symbols = self.section(".dynsym");
        let strings = symbols.and_then(|symbols| self.section_at(symbols.link()));
        let relocations = RELOCATIONS.iter().filter_map(|name| self.section(name));
        let sizes = symbols.into_iter().chain(strings).chain(relocations).map(|s| s.size());
        sizes.fold(0, u64::saturating_add)
    }

    /// Returns the first of these thread-local variables that the file exports: its index in `names`, and how code
    /// finds it. `None` if there is none, or if the file's code does not refer to it in a known way.
    pub(crate) fn exported_thread_local(&self, names: &[&str]) -> Option<(usize, TlsAccess)> {
        let block = self.segment(PT_TLS)?;
        let types = RelocationTypes::of(self.machine())?;
        let table = self.section(".dynsym")?;
        let strings = self.section_at(table.link())?.content(MAX_SECTION).ok()?;
        let entries = table.content(MAX_SECTION).ok()?;
        let names: Vec<_> = names.iter().map(|name| format!("{name}\0")).collect();
        let matches = Needles::new(names.iter().map(String::as_bytes)).search(strings).ok()?;
        if matches.is_empty() {
            return None;
        }
        let mut found: Option<(usize, usize, Sym)> = None;
        let mut index = 0;
        let size = Sym::size(self.ctx().container);
        let read = entries.for_each_entry(size, |entry| {
            let symbol = entry.pread_with::<Sym>(0, self.ctx()).ok();
            let symbol = symbol.filter(|symbol| {
                st_type(symbol.st_info) == STT_TLS && symbol.st_shndx != SHN_UNDEF as usize
            });
            if let Some(symbol) = symbol
                && let Some(which) = matches.at(symbol.st_name).min()
                && found.is_none_or(|(known, ..)| which < known)
            {
                found = Some((which, index, symbol));
            }
            index += 1;
            true
        });
        read.ok()?;
        let (which, index, symbol) = found?;
        let relocated = self.tls_relocation(types, index, symbol.st_value);
        let access = relocated.or_else(|| {
            // The linker has resolved the variable of an executable.
            self.segment(PT_INTERP)?;
            offset_in_executable(self.machine(), block, symbol.st_value).map(TlsAccess::Offset)
        })?;
        Some((which, access))
    }

    /// Returns how relocations describe the thread-local variable with this index in `.dynsym` and this offset in the
    /// file's block.
    fn tls_relocation(
        &self,
        types: &RelocationTypes,
        index: usize,
        offset: u64,
    ) -> Option<TlsAccess> {
        let mut found = None;
        for section in RELOCATIONS.iter().filter_map(|name| self.section(name)) {
            let Ok(relocations) = section.content(MAX_SECTION) else { continue };
            let mut descriptor = None;
            let read = relocations.for_each_entry(ENTRY, |entry| {
                let Some(Relocation { at, kind, symbol, addend }) = relocation(entry) else {
                    return true;
                };
                let is_own = usize::try_from(symbol) == Ok(index) && addend == 0;
                // If the linker has bound the variable to its own file, the relocation has no symbol.
                let is_bound = symbol == 0 && addend == offset;
                if kind == types.descriptor && (is_own || is_bound) {
                    descriptor = Some(TlsAccess::Descriptor(at));
                } else if kind == types.module && is_own {
                    found = Some(TlsAccess::Index(at));
                } else if kind == types.offset && (is_own || is_bound) {
                    found = found.or(Some(TlsAccess::OffsetAt(at)));
                }
                descriptor.is_none()
            });
            read.ok()?;
            if descriptor.is_some() {
                return descriptor;
            }
        }
        found
    }
}

/// Returns the offset from the thread pointer of the variable at an offset in the block of an executable.
fn offset_in_executable(machine: Machine, block: &ProgramHeader, offset: u64) -> Option<i64> {
    /// Size in bytes of the control block at the thread pointer of aarch64.
    const CONTROL_BLOCK: u64 = 16;
    let align = block.p_align.max(1);
    match machine {
        // The block ends at the thread pointer.
        Machine::X86_64 => {
            let size = block.p_memsz.checked_next_multiple_of(align)?;
            let below = size.checked_sub(offset).filter(|&below| below < MAX_BLOCK)?;
            (below > 0).then_some(-i64::try_from(below).ok()?)
        }
        // The block begins at the first address after the control block with the alignment of its own address.
        Machine::Aarch64 => {
            let gap = block.p_vaddr.wrapping_sub(CONTROL_BLOCK) & (align - 1);
            let above = gap.checked_add(CONTROL_BLOCK)?.checked_add(offset)?;
            i64::try_from(above).ok().filter(|_| above < MAX_BLOCK)
        }
        Machine::Other(_) => None,
    }
}

fn relocation(entry: &[u8]) -> Option<Relocation> {
    let word = |n: usize| Some(u64::from_le_bytes(*entry.get(8 * n..)?.first_chunk()?));
    let (at, info, addend) = (word(0)?, word(1)?, word(2)?);
    // The low half is the type, the high half the symbol.
    Some(Relocation { at: Vaddr(at), kind: info as u32, symbol: (info >> 32) as u32, addend })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::elf::testing::{Library, open};

    const NAMES: [&str; 2] = ["first", "second"];

    /// Returns the assembly of a library whose thread-local variable `second` is accessed by `code`.
    fn assembly(code: &str) -> String {
        format!(
            ".text
             .globl function
             function: {code}
             ret
             .section .tbss,\"awT\",@nobits
             .balign 8
             other: .zero 16
             .globl second
             .type second, @object
             second: .zero 8
             .size second, 8"
        )
    }

    const DESCRIPTOR: &str = "leaq second@tlsdesc(%rip), %rax\ncall *second@tlscall(%rax)";
    const GENERAL: &str = ".byte 0x66\nleaq second@tlsgd(%rip), %rdi\n.value 0x6666\nrex64\n\
                           call __tls_get_addr@PLT";
    const INITIAL: &str = "movq second@gottpoff(%rip), %rax";

    /// Returns the address of the relocation of this type, as readelf prints it.
    fn address(library: &Library, kind: &str) -> Vaddr {
        let out = Command::new("readelf").arg("-rW").arg(library.path()).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        let line = text.lines().find(|line| line.contains(kind)).expect("a relocation");
        Vaddr(u64::from_str_radix(line.split_whitespace().next().unwrap(), 16).unwrap())
    }

    #[test]
    fn relocations_agree_with_readelf_for_each_access_model() {
        type Of = fn(Vaddr) -> TlsAccess;
        let models: [(&str, &[&str], &str, Of); 4] = [
            (DESCRIPTOR, &[], "R_X86_64_TLSDESC", TlsAccess::Descriptor),
            (DESCRIPTOR, &["-Wl,-Bsymbolic"], "R_X86_64_TLSDESC", TlsAccess::Descriptor),
            (GENERAL, &[], "R_X86_64_DTPMOD64", TlsAccess::Index),
            (INITIAL, &[], "R_X86_64_TPOFF64", TlsAccess::OffsetAt),
        ];
        for (code, flags, kind, of) in models {
            let library = Library::build(&assembly(code), flags);
            let found = library.elf().exported_thread_local(&NAMES);
            assert_eq!(found, Some((1, of(address(&library, kind)))), "{kind}");
            assert_eq!(library.elf().exported_thread_local(&["third", "function"]), None);
            assert!((100..10_000).contains(&library.elf().thread_local_tables()));
        }
    }

    #[test]
    fn block_of_an_executable_is_beside_the_thread_pointer() {
        let block = |address, size, align| ProgramHeader {
            p_vaddr: address,
            p_memsz: size,
            p_align: align,
            ..ProgramHeader::default()
        };
        let x86_64 =
            |size, align, at| offset_in_executable(Machine::X86_64, &block(0, size, align), at);
        assert_eq!(x86_64(20, 8, 16), Some(-8));
        assert_eq!(x86_64(20, 0, 20), None);
        assert_eq!(x86_64(u64::MAX, 8, 0), None);
        let aarch64 = |address, align, at| {
            offset_in_executable(Machine::Aarch64, &block(address, 64, align), at)
        };
        assert_eq!(aarch64(0x1_fd10, 8, 8), Some(24));
        assert_eq!(aarch64(0x1_fd40, 64, 8), Some(72));
        assert_eq!(aarch64(0x1_fd50, 64, 8), Some(24));
        assert_eq!(aarch64(0, 8, u64::MAX), None);
        assert_eq!(aarch64(0, 8, MAX_BLOCK), None);
    }

    #[test]
    fn variable_without_relocation_is_not_found_in_a_library() {
        let library = Library::build(&assembly("nop"), &[]);
        assert_eq!(library.elf().exported_thread_local(&NAMES), None);
    }

    #[test]
    fn damaged_library_does_not_panic() {
        let whole = Library::build(&assembly(DESCRIPTOR), &[]).bytes();
        for step in [7, 64] {
            for at in (0..whole.len()).step_by(step) {
                let mut bytes = whole.clone();
                bytes[at] ^= 0xff;
                let _ = open(&bytes).map(|elf| elf.exported_thread_local(&NAMES));
            }
        }
        for end in (0..whole.len()).step_by(97) {
            let _ = open(&whole[..end]).map(|elf| elf.exported_thread_local(&NAMES));
        }
    }
}

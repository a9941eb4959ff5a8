//! Thread-local variables of processes: which file that a process has mapped exports one of them, and where each
//! thread has its copy.
//!
//! The dynamic linker decides where a file's variables are when it loads the file. Its decision is in the words to
//! which the file's relocations refer, so these words are read from the process.
//!
//! Sources: glibc, sysdeps/{x86_64,aarch64}/dl-tlsdesc.h and dl-tls.h; musl, ldso/dynlink.c and
//! src/internal/pthread_impl.h.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Weak},
};

use crate::{
    Addr, Pid,
    elf::{ElfFile, Machine, Segments, TlsAccess},
    process::{
        code::{CodeFile, CodeMaps},
        memory::Memory,
    },
    sys::{
        budget::{Budget, Reservation, Share},
        limited,
    },
};

/// Maximum number of a module with thread-local variables.
const MAX_MODULE: u64 = 1 << 16;
/// Maximum distance of a variable from the begin of its block, or from the thread pointer, in bytes.
const MAX_OFFSET: u64 = 1 << 30;
/// Maximum distance of a variable that is above the thread pointer, in bytes. Linkers give no code or data an address below
/// 4 MiB, so a larger number may be an address.
const MAX_ABOVE: u64 = 4 << 20;

/// Bytes by which each file that is opened counts towards [`SearchBudget`], in addition to its tables.
const FILE: u64 = 64 << 10;

/// Number of bytes that may still be read from the files of a process. A process may map any number of files with large
/// tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchBudget(u64);

impl Default for SearchBudget {
    fn default() -> Self {
        Self(64 << 20)
    }
}

impl SearchBudget {
    /// Takes bytes from the budget; `None` if they exceed it.
    fn spend(&mut self, bytes: u64) -> Option<()> {
        self.0 = self.0.checked_sub(bytes)?;
        Some(())
    }
}

/// Where each thread of a process has its copy of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadVariable {
    /// At this offset from the thread pointer.
    Static(i64),
    /// In the block of a module, which the thread's table of blocks (DTV) contains.
    Dynamic {
        /// Number of the module.
        module: u64,
        /// Offset in the block.
        offset: u64,
        /// Whether the table has the layout of musl, not that of glibc.
        is_musl: bool,
    },
}

/// Result of a search in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Search {
    /// No mapped file exports a variable.
    Nothing,
    /// A file exports one, but the dynamic linker has not finished loading it.
    Unresolved,
    /// The variable, by its index in the list of names.
    Found(usize, ThreadVariable),
}

/// A file that exports a variable.
#[derive(Debug)]
struct Exporter {
    /// Index of the variable's name.
    which: usize,
    access: TlsAccess,
    segments: Segments,
}

/// Searches processes for variables. Each file is read once, and an entry is dropped after the last user of its
/// [`CodeFile`] has gone.
#[derive(Debug)]
pub(crate) struct ThreadVariables {
    /// Names of the variables; an earlier one is preferred.
    names: &'static [&'static str],
    /// By the address of the [`CodeFile`]. The weak reference holds the allocation, so that no other file gets its
    /// address while the entry exists.
    files: HashMap<usize, (Weak<CodeFile>, Option<Exporter>)>,
}

impl ThreadVariables {
    /// Creates a search for variables of these names.
    pub(crate) fn new(names: &'static [&'static str]) -> Self {
        Self { names, files: HashMap::new() }
    }

    /// Searches the files that a process has mapped. Files beyond the budget are left out.
    pub(crate) fn find(&mut self, pid: Pid, maps: &CodeMaps, budget: &mut SearchBudget) -> Search {
        self.files.retain(|_, (file, _)| file.strong_count() > 0);
        let names = self.names;
        let share = Budget::of_process().share(maps.tenant());
        let mut candidates: Vec<(usize, TlsAccess, u64)> = Vec::new();
        for mapping in maps.iter() {
            let Some(file) = &mapping.file else { continue };
            let (_, exporter) = match self.files.entry(Arc::as_ptr(file) as usize) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => match exporter(file, names, budget, &share) {
                    Some(exporter) => new.insert((Arc::downgrade(file), exporter)),
                    None => continue,
                },
            };
            let Some(Exporter { which, access, segments }) = exporter else { continue };
            if let Some(bias) = segments.load_bias(mapping.start, mapping.offset) {
                candidates.push((*which, *access, bias));
            }
        }
        if candidates.is_empty() {
            return Search::Nothing;
        }
        candidates.sort_by_key(|(which, ..)| *which);
        let is_mapped = |is: fn(&str) -> bool| maps.iter().any(|mapping| is(&mapping.module));
        let is_musl = is_mapped(is_musl) && !is_mapped(|module| module == "libc.so.6");
        let Ok(memory) = Memory::open(pid) else { return Search::Unresolved };
        let word = |at: u64| memory.u64(Addr(at)).ok();
        // The mappings include those of libraries that the process has unloaded, whose words cannot be read.
        let found = candidates.into_iter().find_map(|(which, access, bias)| {
            Some((which, resolve(Machine::NATIVE, access, bias, is_musl, word)?))
        });
        found.map_or(Search::Unresolved, |(which, variable)| Search::Found(which, variable))
    }
}

/// Returns whether a file may be musl's libc, which is also its dynamic linker. Debian calls it libc.so.
fn is_musl(module: &str) -> bool {
    module == "libc.so" || module.starts_with("ld-musl-") || module.starts_with("libc.musl-")
}

/// Returns the variable that a file exports, if any. Returns `None` if the budget or the tenant's share of memory does not
/// suffice to read the file.
fn exporter(
    file: &CodeFile,
    names: &[&str],
    budget: &mut SearchBudget,
    share: &Share,
) -> Option<Option<Exporter>> {
    budget.spend(FILE)?;
    let Some(elf) = file.reopen().ok().and_then(|file| ElfFile::open(file).ok()) else {
        return Some(None);
    };
    let tables = elf.thread_local_tables();
    budget.spend(tables)?;
    let mut reserved = Reservation::within(share);
    if !usize::try_from(tables).is_ok_and(|size| reserved.reserve(size)) {
        limited::add("files", share.tenant(), 1);
        return None;
    }
    let found = elf.exported_thread_local(names);
    if !file.is_same(elf.file()) {
        return None;
    }
    Some(found.map(|(which, access)| Exporter { which, access, segments: elf.into_segments() }))
}

/// Returns where a variable is; `None` if the words that say so are not initialised yet, or are implausible. `bias` is
/// the difference between addresses in the process and link-time addresses. `word` reads the process's memory.
fn resolve(
    machine: Machine,
    access: TlsAccess,
    bias: u64,
    is_musl: bool,
    word: impl Fn(u64) -> Option<u64>,
) -> Option<ThreadVariable> {
    let dynamic = |at: u64| {
        let (module, offset) = (word(at)?, word(at.checked_add(8)?)?);
        let is_plausible = (1..=MAX_MODULE).contains(&module) && offset < MAX_OFFSET;
        is_plausible.then_some(ThreadVariable::Dynamic { module, offset, is_musl })
    };
    match access {
        TlsAccess::Offset(offset) => fixed(machine, offset.cast_unsigned()),
        TlsAccess::OffsetAt(at) => fixed(machine, word(at.0.wrapping_add(bias))?),
        TlsAccess::Index(at) => dynamic(at.0.wrapping_add(bias)),
        TlsAccess::Descriptor(at) => {
            // The second word is the argument of the function in the first one: an offset from the thread pointer or,
            // if the file got no space near it, the address of a `tls_index`.
            let argument = word(at.0.wrapping_add(bias).checked_add(8)?)?;
            fixed(machine, argument).or_else(|| dynamic(argument))
        }
    }
}

/// Returns the variable at an offset from the thread pointer. Variables are above it on aarch64, and below it elsewhere
/// (variants I and II of "ELF Handling For Thread-Local Storage").
fn fixed(machine: Machine, offset: u64) -> Option<ThreadVariable> {
    let signed = offset.cast_signed();
    let is_plausible = match machine {
        Machine::Aarch64 => (1..MAX_ABOVE).contains(&offset),
        _ => signed < 0 && signed.unsigned_abs() < MAX_OFFSET,
    };
    is_plausible.then_some(ThreadVariable::Static(signed))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Vaddr;

    const BIAS: u64 = 0x7f00_0000_0000;
    const SLOT: u64 = BIAS + 0x3fd0;

    fn read(words: &[(u64, u64)]) -> impl Fn(u64) -> Option<u64> {
        move |at| words.iter().find(|(known, _)| *known == at).map(|(_, word)| *word)
    }

    fn at(access: TlsAccess, words: &[(u64, u64)]) -> Option<ThreadVariable> {
        resolve(Machine::X86_64, access, BIAS, false, read(words))
    }

    #[test]
    fn descriptor_is_an_offset_or_refers_to_a_module() {
        let descriptor = TlsAccess::Descriptor(Vaddr(0x3fd0));
        let function = (SLOT, 0x7f12_0000_0000);
        let below = at(descriptor, &[function, (SLOT + 8, (-120_i64).cast_unsigned())]);
        assert_eq!(below, Some(ThreadVariable::Static(-120)));
        let heap = 0x5500_0000_1230;
        let words = [function, (SLOT + 8, heap), (heap, 3), (heap + 8, 16)];
        let expected = ThreadVariable::Dynamic { module: 3, offset: 16, is_musl: false };
        assert_eq!(at(descriptor, &words), Some(expected));
        // Before the dynamic linker has processed the relocation, the argument is 0.
        assert_eq!(at(descriptor, &[function, (SLOT + 8, 0)]), None);
        assert_eq!(at(descriptor, &[]), None);
    }

    #[test]
    fn variables_of_aarch64_are_above_the_thread_pointer() {
        let heap = 0x55_0000_1230;
        let at = |argument: u64| {
            let words = [(SLOT + 8, argument), (heap, 3), (heap + 8, 16)];
            let descriptor = TlsAccess::Descriptor(Vaddr(0x3fd0));
            resolve(Machine::Aarch64, descriptor, BIAS, true, read(&words))
        };
        assert_eq!(at(24), Some(ThreadVariable::Static(24)));
        let expected = ThreadVariable::Dynamic { module: 3, offset: 16, is_musl: true };
        assert_eq!(at(heap), Some(expected));
        assert_eq!((at(0), at((-24_i64).cast_unsigned())), (None, None));
    }

    #[test]
    fn file_is_searched_again_if_memory_does_not_suffice() {
        let file = CodeFile::new(std::fs::File::open("/proc/self/exe").unwrap());
        let search = |bytes| {
            let share = Budget::of(bytes).share(&"a".into());
            exporter(&file, &["no_such_variable"], &mut SearchBudget::default(), &share)
        };
        assert!(search(0).is_none());
        assert!(search(1 << 30).is_some_and(|exporter| exporter.is_none()));
    }

    #[test]
    fn index_and_offset_slots_are_read_directly() {
        let index = TlsAccess::Index(Vaddr(0x3fd0));
        let expected = ThreadVariable::Dynamic { module: 2, offset: 8, is_musl: false };
        assert_eq!(at(index, &[(SLOT, 2), (SLOT + 8, 8)]), Some(expected));
        for (module, offset) in [(0, 8), (MAX_MODULE + 1, 8), (2, MAX_OFFSET), (2, u64::MAX)] {
            assert_eq!(at(index, &[(SLOT, module), (SLOT + 8, offset)]), None);
        }
        let slot = TlsAccess::OffsetAt(Vaddr(0x3fd0));
        let near = (-64_i64).cast_unsigned();
        assert_eq!(at(slot, &[(SLOT, near)]), Some(ThreadVariable::Static(-64)));
        assert_eq!(at(slot, &[(SLOT, 64)]), None);
        assert_eq!(at(TlsAccess::Offset(-8), &[]), Some(ThreadVariable::Static(-8)));
    }

    proptest! {
        #[test]
        fn hostile_words_do_not_panic(at: u64, bias: u64, all: [u64; 4], which in 0..3_u8) {
            let access = match which {
                0 => TlsAccess::Descriptor(Vaddr(at)),
                1 => TlsAccess::Index(Vaddr(at)),
                _ => TlsAccess::OffsetAt(Vaddr(at)),
            };
            let _ = resolve(Machine::NATIVE, access, bias, true, |at| all.get((at % 7) as usize).copied());
        }
    }
}

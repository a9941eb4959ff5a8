//! Symbols by address: the function or variable that contains an address.
//!
//! The entries stay in memory, 24 bytes each. A name is read from the file when it is needed. Source: System V gABI,
//! chapter 4.

use std::{fs::File, ops::Range, os::unix::fs::FileExt};

use goblin::elf::{
    section_header::SHN_UNDEF,
    sym::{STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE, STT_OBJECT, Sym},
};
use scroll::Pread;

use crate::{
    Vaddr,
    elf::{
        ElfFile,
        content::MAX_SECTION,
        file::{MAX_NAME, c_bytes},
    },
};

/// Symbols of a file, by address.
#[derive(Debug, Default)]
pub(crate) struct Addresses(Vec<Table>);

/// A symbol table, with the file that contains its names.
#[derive(Debug)]
struct Table {
    file: File,
    /// File range of the string table.
    names: Range<u64>,
    /// Entries by ascending address; at equal addresses, the largest symbol first.
    entries: Vec<Entry>,
    /// Whether a symbol without a size extends to the next one. Symbols of `.dynsym` do not, because that
    /// table lacks most functions: an address in such a function would get the name of the exported symbol
    /// before it.
    extends: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u64,
    size: u64,
    name: u32,
}

impl Addresses {
    /// Reads these symbol tables; lookups try them in this order.
    pub(crate) fn read(elf: &ElfFile, tables: &[&str]) -> Self {
        Self(tables.iter().filter_map(|name| Table::read(elf, name)).collect())
    }

    /// Returns the name of the symbol that contains an address, mangled as in the file, and the range of
    /// addresses around it for which the result is the same.
    pub(crate) fn name(&self, at: Vaddr) -> (Option<String>, Range<Vaddr>) {
        let mut range = Vaddr(0)..Vaddr(u64::MAX);
        for table in &self.0 {
            let (entry, same) = table.find(at.0);
            range = range.start.max(Vaddr(same.start))..range.end.min(Vaddr(same.end));
            if let Some(entry) = entry {
                return (table.name_of(entry), range);
            }
        }
        (None, range)
    }

    /// Returns the memory used by the tables, in bytes.
    pub(crate) fn size(&self) -> usize {
        self.0.iter().map(|table| table.entries.capacity() * size_of::<Entry>()).sum()
    }
}

impl Table {
    fn read(elf: &ElfFile, name: &str) -> Option<Self> {
        let section = elf.section(name)?;
        let (names, is_compressed) = elf.section_at(section.link())?.stored()?;
        let content = section.content(MAX_SECTION).ok().filter(|_| !is_compressed)?;
        let size = Sym::size(elf.ctx().container);
        let mut entries = Vec::new();
        let read = content.for_each_entry(size, |symbol| {
            entries.extend(symbol.pread_with::<Sym>(0, elf.ctx()).ok().and_then(|s| entry(&s)));
            true
        });
        read.ok()?;
        entries.shrink_to_fit();
        // The sort is stable, so that of several symbols with the same range, the first one in the file is
        // used.
        entries.sort_by_key(|entry| (entry.start, std::cmp::Reverse(entry.size)));
        let file = elf.file().try_clone().ok()?;
        Some(Self { file, names, entries, extends: name == ".symtab" })
    }

    /// Finds the symbol that contains the address `at`, and the range of addresses around `at` for which the
    /// result is the same. Of the start addresses that are not above `at`, only the highest one is considered,
    /// and of the symbols that start there only the largest and the smallest one. If the largest one does not
    /// contain `at`, no other symbol that starts there and has a size contains `at`. The smallest one may have
    /// no size; then it may extend to the next symbol.
    fn find(&self, at: u64) -> (Option<Entry>, Range<u64>) {
        let (before, after) =
            self.entries.split_at(self.entries.partition_point(|entry| entry.start <= at));
        let next = after.first().map_or(u64::MAX, |entry| entry.start);
        let Some(&last) = before.last() else { return (None, 0..next) };
        let first = before.partition_point(|entry| entry.start < last.start);
        let mut range = last.start..next;
        for entry in [self.entries[first], last] {
            let end = match entry.size {
                0 if self.extends => next,
                size => entry.start.saturating_add(size.max(1)),
            };
            if at < end {
                return (Some(entry), range.start..range.end.min(end));
            }
            range.start = range.start.max(end);
        }
        (None, range)
    }

    fn name_of(&self, entry: Entry) -> Option<String> {
        let start = self.names.start.checked_add(entry.name.into())?;
        let max_len = self.names.end.checked_sub(start)?.min(MAX_NAME as u64);
        let mut bytes = vec![0; usize::try_from(max_len).ok()?];
        self.file.read_exact_at(&mut bytes, start).ok()?;
        let name = String::from_utf8_lossy(c_bytes(&bytes, 0)).into_owned();
        (!name.is_empty()).then_some(name)
    }
}

/// Converts a symbol table entry. The symbol must be defined and have a name, and must be a function or a
/// variable or have no type (a label in assembly code); otherwise, returns `None`.
fn entry(symbol: &Sym) -> Option<Entry> {
    let is_named = [STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE, STT_OBJECT].contains(&symbol.st_type());
    let is_defined = symbol.st_shndx != SHN_UNDEF as usize && symbol.st_value != 0;
    (is_named && is_defined && symbol.st_name != 0).then_some(())?;
    let (start, size) = (symbol.st_value, symbol.st_size);
    Some(Entry { start, size, name: u32::try_from(symbol.st_name).ok()? })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::elf::testing::Library;

    const ASSEMBLY: &str = "
        .text
        .globl outer
        .type outer, @function
        outer: nop
        .globl short
        .type short, @function
        short: nop
        nop
        .size short, 1
        nop
        sizeless: nop
        nop
        .globl exported_sizeless
        exported_sizeless: nop
        nop
        .size outer, . - outer
    ";

    #[test]
    fn address_resolves_only_to_the_nearest_symbol_starting_at_or_before_it() {
        let elf = Library::build(ASSEMBLY, &[]).elf();
        let symbols = elf.symbols().unwrap();
        let outer = symbols.find("outer").unwrap().value;
        let table = Addresses::read(&elf, &[".symtab", ".dynsym"]);
        let name = |at: u64| table.name(Vaddr(outer.0 + at)).0;
        for (at, expected) in [
            (0, Some("outer")),
            (1, Some("short")),
            // After the end of `short`, but within `outer`, which starts before it.
            (2, None),
            (4, Some("sizeless")),
            (5, Some("sizeless")),
            (7, Some("exported_sizeless")),
        ] {
            assert_eq!(name(at).as_deref(), expected, "{at}");
        }
        assert_eq!(table.name(Vaddr(0)).0, None);
        assert!(table.size() > 0);
        // In `.dynsym`, a symbol without a size covers only its start address.
        let exported = Addresses::read(&elf, &[".dynsym"]);
        assert_eq!(exported.name(Vaddr(outer.0 + 6)).0.as_deref(), Some("exported_sizeless"));
        assert_eq!(exported.name(Vaddr(outer.0 + 7)).0, None);
    }

    #[test]
    fn all_addresses_of_a_range_have_the_same_name() {
        let elf = Library::build(ASSEMBLY, &[]).elf();
        let outer = elf.symbols().unwrap().find("outer").unwrap().value;
        for tables in [&[".symtab", ".dynsym"][..], &[".dynsym"]] {
            let table = Addresses::read(&elf, tables);
            let mut at = outer;
            let mut ranges = 0;
            while at.0 < outer.0 + 8 {
                let (name, range) = table.name(at);
                assert!(range.contains(&at), "{at} {range:?}");
                for other in range.start.0.max(outer.0)..range.end.0.min(outer.0 + 8) {
                    assert_eq!(
                        table.name(Vaddr(other)),
                        (name.clone(), range.clone()),
                        "{other:#x}"
                    );
                }
                (at, ranges) = (range.end, ranges + 1);
            }
            assert!(ranges > 4, "{tables:?}");
        }
    }

    /// A lookup checks at most two symbols, however many contain the address, and reads one name.
    #[test]
    fn overlapping_symbols_do_not_slow_down_lookup() {
        let overlapping = 65_000;
        let mut assembly = ".text\nbegin: .space 65536\n".to_owned();
        for i in 0..overlapping {
            assembly += &format!(".set s{i}, begin\n.size s{i}, {}\n", i + 1);
        }
        let elf = Library::build(&assembly, &[]).elf();
        let begin = elf.symbols().unwrap().find("s7").unwrap().value;
        let table = Addresses::read(&elf, &[".symtab"]);
        for at in (0..overlapping).rev() {
            let last = format!("s{}", overlapping - 1);
            assert_eq!(table.name(Vaddr(begin.0 + at)).0, Some(last));
        }
        // All symbols with a size end here. `begin` has no size, so it extends further.
        assert_eq!(table.name(Vaddr(begin.0 + overlapping)).0.as_deref(), Some("begin"));
    }

    /// Compares the result with [`crate::elf::Symbols`] for a real library.
    #[test]
    fn every_function_of_a_real_library_is_found() {
        let cc = Command::new("cc").arg("-print-file-name=libstdc++.so.6").output().unwrap();
        let path = String::from_utf8(cc.stdout).unwrap();
        let Ok(file) = File::open(path.trim()) else {
            println!("skipped: no libstdc++.so.6 is installed");
            return;
        };
        let elf = ElfFile::open(file).unwrap();
        let table = Addresses::read(&elf, &[".symtab", ".dynsym"]);
        let all = elf.symbols().unwrap().with_prefixes(&["_ZN"]);
        let functions: Vec<_> = all.values().filter(|symbol| symbol.size > 0).collect();
        assert!(functions.len() > 1000);
        for symbol in functions {
            for at in [symbol.value.0, symbol.value.0 + symbol.size - 1] {
                let name = table.name(Vaddr(at)).0.unwrap();
                // Another symbol may start at the same address, or inside this one.
                let other = &all.get(&name);
                let is_same =
                    name == symbol.name || other.is_none_or(|other| other.value >= symbol.value);
                assert!(is_same, "{at:#x}: {name}, not {}", symbol.name);
            }
        }
    }
}

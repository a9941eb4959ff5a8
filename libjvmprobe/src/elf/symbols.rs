//! Symbols: `.symtab` and `.dynsym`.
//!
//! A libjvm.so has 60,000 symbols; a hostile file may have 1.4 million. The tables are not kept in memory. Each search
//! passes once over the names and once over the symbols, both read piece by piece from the page cache, which takes
//! milliseconds. So a search for several symbols at once is much cheaper than several searches. Source: System V gABI,
//! chapter 4.

use std::collections::{HashMap, hash_map::Entry};

use goblin::elf::{section_header::SHN_UNDEF, sym::Sym};
use scroll::Pread;

use crate::{
    Result, Vaddr,
    elf::{
        ElfFile,
        content::{Content, MAX_SECTION},
        file::Section,
        lookups::Key,
        string_search::{Matches, Needles},
    },
};

/// Maximum number of bytes of the symbols that [`Symbols::with_prefixes`] returns. Names may overlap in a string table,
/// so the size of the file does not limit them. The selected symbols of a libjvm.so have about 40 KB.
const MAX_SELECTED: usize = 512 << 10;
/// Maximum number of symbols at one address whose names are read.
const MAX_AT_ADDRESS: usize = 64;

/// A named address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Name; mangled for C++.
    pub(crate) name: String,
    /// Link-time address.
    pub value: Vaddr,
    /// Size in bytes, or 0 if unknown.
    pub(crate) size: u64,
}

/// Defined symbols of an open file.
#[derive(Debug)]
pub struct Symbols<'a> {
    elf: &'a ElfFile,
    tables: Vec<Table<'a>>,
    /// Whether these are the exported symbols only.
    is_dynamic: bool,
}

/// A symbol table and its names.
#[derive(Debug)]
struct Table<'a> {
    elf: &'a ElfFile,
    entries: Section<'a>,
    strings: Section<'a>,
}

impl ElfFile {
    /// Returns all symbols: `.symtab`, `.dynsym`, and the symbols in the separate file if there is one.
    /// A table that is missing or cannot be read counts as empty.
    ///
    /// # Errors
    /// Currently none.
    pub fn symbols(&self) -> Result<Symbols<'_>> {
        let mut tables = self.tables(&[".symtab", ".dynsym"]);
        if let Some(separate_debug_file) = &self.separate_debug_file {
            tables.extend(separate_debug_file.tables(&[".symtab"]));
        }
        Ok(Symbols { elf: self, tables, is_dynamic: false })
    }

    /// Returns the exported symbols only: a small table that exists in stripped files, too.
    ///
    /// # Errors
    /// Returns the errors of [`ElfFile::symbols`].
    pub(crate) fn dynamic_symbols(&self) -> Result<Symbols<'_>> {
        Ok(Symbols { elf: self, tables: self.tables(&[".dynsym"]), is_dynamic: true })
    }

    /// Returns whether symbols of a separate file are used.
    pub(crate) fn has_separate_symbols(&self) -> bool {
        self.separate_debug_file.is_some()
    }

    /// Returns whether it has neither `.symtab`, the only table that contains private functions, nor a separate file
    /// with symbols.
    ///
    /// # Errors
    /// Returns the errors of [`ElfFile::symbols`].
    pub(crate) fn is_stripped(&self) -> Result<bool> {
        let has_none = || self.tables(&[".symtab"]).iter().all(Table::is_empty);
        Ok(self.separate_debug_file.is_none() && has_none())
    }

    fn tables(&self, names: &[&str]) -> Vec<Table<'_>> {
        let sections = names.iter().filter_map(|name| self.section(name));
        sections
            .filter_map(|entries| {
                let strings = self.section_at(entries.link())?;
                // A stripped file may still have the section header, without content.
                let is_there = entries.has_data() && strings.has_data();
                is_there.then_some(Table { elf: self, entries, strings })
            })
            .collect()
    }
}

impl Symbols<'_> {
    /// Returns the symbol with exactly this name.
    pub fn find(&self, name: &str) -> Option<Symbol> {
        self.first(&[format!("{name}\0")]).pop().flatten()
    }

    /// Returns the first symbol whose name has this prefix.
    pub fn find_prefix(&self, prefix: &str) -> Option<Symbol> {
        self.find_prefixes(&[prefix]).pop().flatten()
    }

    /// Returns, for each prefix, the first symbol whose name has it.
    pub(crate) fn find_prefixes(&self, prefixes: &[&str]) -> Vec<Option<Symbol>> {
        self.first(prefixes)
    }

    /// Returns the symbols whose names have one of these prefixes, by name, with a single pass over the tables: all of
    /// them, or the first ones with [`MAX_SELECTED`] bytes.
    pub(crate) fn with_prefixes(&self, prefixes: &[&str]) -> HashMap<String, Symbol> {
        let mut found = HashMap::new();
        let mut free_bytes = MAX_SELECTED;
        let needles = Needles::new(prefixes.iter().map(|prefix| prefix.as_bytes()));
        for table in &self.tables {
            table.for_each_match(&needles, |sym, _| {
                let Some(symbol) = table.symbol(&sym) else { return true };
                let Entry::Vacant(entry) = found.entry(symbol.name.clone()) else { return true };
                // The name is stored twice.
                let bytes = size_of::<(String, Symbol)>() + 2 * symbol.name.len();
                let Some(rest) = free_bytes.checked_sub(bytes) else {
                    log::debug!(
                        "a file has more than {MAX_SELECTED} bytes of symbols; ignoring the rest"
                    );
                    return false;
                };
                free_bytes = rest;
                entry.insert(symbol);
                true
            });
        }
        found
    }

    /// Returns the symbol at exactly this address whose name has this prefix.
    pub(crate) fn at(&self, address: Vaddr, prefix: &str) -> Option<Symbol> {
        self.elf.lookups.get_or_search(Key::at(address, prefix), self.elf.share(), || {
            self.tables.iter().find_map(|table| table.at(address, prefix))
        })
    }

    /// Returns whether there are no symbols.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn is_empty(&self) -> bool {
        self.tables.iter().all(Table::is_empty)
    }

    /// Returns, for each of these beginnings of a NUL-terminated name, the first symbol whose name has it.
    fn first<S: AsRef<str>>(&self, beginnings: &[S]) -> Vec<Option<Symbol>> {
        let texts = beginnings.iter().map(AsRef::as_ref);
        let keys: Vec<_> = texts.map(|text| Key::name(self.is_dynamic, text)).collect();
        self.elf.lookups.get_or_search_all(&keys, self.elf.share(), |missing| {
            let bytes = |&i: &usize| beginnings[i].as_ref().as_bytes();
            self.first_of(&Needles::new(missing.iter().map(bytes)), missing.len())
        })
    }

    fn first_of(&self, needles: &Needles<'_>, count: usize) -> Vec<Option<Symbol>> {
        let mut found = vec![None; count];
        let mut left = count;
        for table in &self.tables {
            table.for_each_match(needles, |sym, needle| {
                if let Some(found @ None) = found.get_mut(needle) {
                    *found = table.symbol(&sym);
                    left -= usize::from(found.is_some());
                }
                left > 0
            });
        }
        found
    }
}

impl Table<'_> {
    /// Calls `visit` with each defined symbol whose name begins with a needle, and the index of the needle, until it
    /// returns false. A table that cannot be read has no symbols.
    fn for_each_match(&self, needles: &Needles<'_>, mut visit: impl FnMut(Sym, usize) -> bool) {
        let search = || -> Result<Matches> { needles.search(self.names()?) };
        let matches = search().unwrap_or_else(|error| {
            log::debug!("cannot read the names of symbols: {error}");
            Matches::default()
        });
        if !matches.is_empty() {
            self.for_each_defined(|sym| matches.at(sym.st_name).all(|needle| visit(sym, needle)));
        }
    }

    /// Calls `visit` with each defined symbol until it returns false.
    fn for_each_defined(&self, mut visit: impl FnMut(Sym) -> bool) {
        let ctx = self.elf.ctx();
        let Ok(entries) = self.entries.content(MAX_SECTION) else { return };
        let result = entries.for_each_entry(Sym::size(ctx.container), |entry| {
            let sym = entry.pread_with::<Sym>(0, ctx).ok();
            let sym = sym.filter(|sym| sym.st_shndx != SHN_UNDEF as usize && sym.st_value != 0);
            sym.is_none_or(&mut visit)
        });
        if let Err(error) = result {
            log::debug!("cannot read symbols: {error}");
        }
    }

    fn is_empty(&self) -> bool {
        let mut is_empty = true;
        self.for_each_defined(|_| {
            is_empty = false;
            false
        });
        is_empty
    }

    fn at(&self, address: Vaddr, prefix: &str) -> Option<Symbol> {
        let (mut found, mut left) = (None, MAX_AT_ADDRESS);
        self.for_each_defined(|sym| {
            if sym.st_value == address.0 {
                found = self.symbol(&sym).filter(|symbol| symbol.name.starts_with(prefix));
                left -= 1;
            }
            found.is_none() && left > 0
        });
        found
    }

    fn symbol(&self, sym: &Sym) -> Option<Symbol> {
        let name = self.names().ok()?.string(sym.st_name as u64)?;
        let name = String::from_utf8_lossy(&name).into_owned();
        Some(Symbol { name, value: Vaddr(sym.st_value), size: sym.st_size })
    }

    fn names(&self) -> Result<Content<'_>> {
        self.strings.content(MAX_SECTION)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::elf::{
        file::MAX_NAME,
        testing::{Library, sections},
    };

    const ASSEMBLY: &str = "
        .text
        .globl _ZN7Printer5printEv
        .type _ZN7Printer5printEv, @function
        _ZN7Printer5printEv: nop
        nop
        .size _ZN7Printer5printEv, . - _ZN7Printer5printEv
        local: nop
        .type local, @function
        .data
        .globl table
        .type table, @object
        table: .8byte local, undefined_elsewhere
        .size table, 16
    ";

    #[test]
    fn symbol_table_agrees_with_nm() {
        let library = Library::build(ASSEMBLY, &[]);
        let elf = library.elf();
        let symbols = elf.symbols().unwrap();
        let nm = Command::new("nm").args(["--defined-only"]).arg(library.path()).output().unwrap();
        let mut compared = 0;
        for line in String::from_utf8(nm.stdout).unwrap().lines() {
            let (value, rest) = line.split_once(' ').unwrap();
            let name = rest.split_once(' ').unwrap().1;
            let found = symbols.find(name).unwrap();
            assert_eq!(found.value.0, u64::from_str_radix(value, 16).unwrap(), "{name}");
            compared += 1;
        }
        assert!(compared >= 3, "{compared}");
    }

    #[test]
    fn symbols_are_found_by_name_prefix_and_address() {
        let elf = Library::build(ASSEMBLY, &[]).elf();
        let symbols = elf.symbols().unwrap();
        let print = symbols.find("_ZN7Printer5printEv").unwrap();
        assert_eq!(print.size, 2);
        assert_eq!(symbols.find_prefix("_ZN7Printer"), Some(print.clone()));
        assert_eq!(symbols.at(print.value, "_Z"), Some(print.clone()));
        assert_eq!(symbols.at(print.value, "_ZTV"), None);
        assert_eq!(symbols.find("_ZN7Printer5print"), None);
        let several = ["local", "nothing", "_ZN7", "tab", "local"];
        let values = symbols.find_prefixes(&several).into_iter().map(|found| found.map(|s| s.name));
        let names = ["local", "", "_ZN7Printer5printEv", "table", "local"];
        assert_eq!(values.map(Option::unwrap_or_default).collect::<Vec<_>>(), names);
        assert_eq!(symbols.find("undefined_elsewhere"), None);
    }

    #[test]
    fn overlapping_names_do_not_exceed_the_limit() {
        // The name of each symbol begins one byte after that of the previous one.
        let entry =
            |at: u32| [u64::from(at) | 1 << 48, 0x1000, 0].into_iter().flat_map(u64::to_le_bytes);
        let entries: Vec<u8> = (0..2000).flat_map(entry).collect();
        let tables = [(".symtab", 2, &entries[..]), (".strtab", 3, &[b'g'; MAX_NAME][..])];
        let elf = ElfFile::open(sections(&tables)).unwrap();
        let symbols = elf.symbols().unwrap();
        let found = symbols.with_prefixes(&["g"]);
        let bytes: usize = found.keys().map(|name| 2 * name.len()).sum();
        assert!(found.len() > 50 && bytes <= MAX_SELECTED, "{} {bytes}", found.len());
    }

    #[test]
    fn stripped_file_retains_only_exported_symbols() {
        let elf = Library::build(ASSEMBLY, &["-Wl,-s"]).elf();
        let symbols = elf.symbols().unwrap();
        assert!(symbols.find("table").is_some());
        assert!(symbols.find("local").is_none());
        assert!(!elf.dynamic_symbols().unwrap().is_empty());
    }
}

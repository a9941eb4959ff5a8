//! Symbols by name: functions and variables, from `.symtab` and `.dynsym`.
//!
//! A libjvm.so has 60,000 symbols. The tables are kept as the raw bytes of the file and searched linearly, which takes
//! milliseconds and no memory beyond the sections themselves. Source: System V gABI, chapter 4.

use std::collections::{HashMap, hash_map::Entry};

use goblin::{
    container::Ctx,
    elf::{section_header::SHN_UNDEF, sym::Sym},
};
use scroll::Pread;

use crate::{
    Result, Vaddr,
    elf::{
        ElfFile,
        file::{c_bytes, malformed},
    },
};

/// Maximum number of bytes of the symbols that [`Symbols::with_prefixes`] returns. Names may overlap in a string table,
/// so the size of the file does not limit them. The selected symbols of a libjvm.so have about 40 KB.
const MAX_SELECTED: usize = 4 << 20;

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

/// Defined symbols of a file.
#[derive(Debug, Default)]
pub struct Symbols {
    tables: Vec<Table>,
}

#[derive(Debug)]
struct Table {
    entries: Vec<u8>,
    strings: Vec<u8>,
    ctx: Ctx,
}

impl ElfFile {
    /// Returns all symbols: `.symtab`, `.dynsym`, and the symbols in the separate file if there is one.
    /// A table that is missing or cannot be read counts as empty.
    ///
    /// # Errors
    /// Currently none.
    pub fn symbols(&self) -> Result<Symbols> {
        let mut symbols = self.tables(&[".symtab", ".dynsym"])?;
        if let Some(separate_debug_file) = &self.separate_debug_file {
            symbols.tables.extend(separate_debug_file.tables(&[".symtab"])?.tables);
        }
        Ok(symbols)
    }

    /// Returns the exported symbols only: a small table that exists in stripped files, too.
    ///
    /// # Errors
    /// Returns the errors of [`ElfFile::symbols`].
    pub(crate) fn dynamic_symbols(&self) -> Result<Symbols> {
        self.tables(&[".dynsym"])
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
        Ok(self.separate_debug_file.is_none() && self.tables(&[".symtab"])?.is_empty())
    }

    fn tables(&self, names: &[&str]) -> Result<Symbols> {
        let mut tables = Vec::new();
        for section in names.iter().filter_map(|name| self.section(name)) {
            let Some(strings) = self.section_at(section.link()) else {
                continue;
            };
            // A stripped file may still have the section header, without content.
            let (Ok(entries), Ok(strings)) = (section.data(), strings.data()) else {
                continue;
            };
            tables.push(Table { entries, strings, ctx: self.ctx() });
        }
        Ok(Symbols { tables })
    }
}

impl Symbols {
    /// Returns the symbol with exactly this name.
    pub fn find(&self, name: &str) -> Option<Symbol> {
        self.first(|symbol, _| symbol == name.as_bytes())
    }

    /// Returns the first symbol whose name has this prefix.
    pub fn find_prefix(&self, prefix: &str) -> Option<Symbol> {
        self.first(|symbol, _| symbol.starts_with(prefix.as_bytes()))
    }

    /// Returns the symbols whose names have one of these prefixes, by name, with a single pass over the tables: all of
    /// them, or the first ones with [`MAX_SELECTED`] bytes.
    pub(crate) fn with_prefixes(&self, prefixes: &[&str]) -> HashMap<String, Symbol> {
        let mut found = HashMap::new();
        let mut free_bytes = MAX_SELECTED;
        for table in &self.tables {
            for sym in table.defined() {
                let name = c_bytes(&table.strings, sym.st_name);
                if prefixes.iter().any(|prefix| name.starts_with(prefix.as_bytes())) {
                    let symbol = symbol(name, &sym);
                    let Entry::Vacant(entry) = found.entry(symbol.name.clone()) else { continue };
                    // The name is stored twice.
                    let bytes = size_of::<(String, Symbol)>() + 2 * symbol.name.len();
                    let Some(rest) = free_bytes.checked_sub(bytes) else {
                        log::debug!(
                            "a file has more than {MAX_SELECTED} bytes of symbols; ignoring the rest"
                        );
                        return found;
                    };
                    free_bytes = rest;
                    entry.insert(symbol);
                }
            }
        }
        found
    }

    /// Returns the symbol at exactly this address whose name has this prefix.
    pub(crate) fn at(&self, address: Vaddr, prefix: &str) -> Option<Symbol> {
        self.first(|name, sym| sym.st_value == address.0 && name.starts_with(prefix.as_bytes()))
    }

    /// Returns whether there are no symbols.
    pub(crate) fn is_empty(&self) -> bool {
        self.tables.iter().all(|table| table.defined().next().is_none())
    }

    fn first(&self, mut predicate: impl FnMut(&[u8], &Sym) -> bool) -> Option<Symbol> {
        self.tables.iter().find_map(|table| {
            table.defined().find_map(|sym| {
                let name = c_bytes(&table.strings, sym.st_name);
                predicate(name, &sym).then(|| symbol(name, &sym))
            })
        })
    }
}

fn symbol(name: &[u8], sym: &Sym) -> Symbol {
    Symbol {
        name: String::from_utf8_lossy(name).into_owned(),
        value: Vaddr(sym.st_value),
        size: sym.st_size,
    }
}

impl Table {
    fn defined(&self) -> impl Iterator<Item = Sym> + '_ {
        let size = Sym::size(self.ctx.container);
        self.entries
            .chunks_exact(size)
            .filter_map(|entry| entry.pread_with::<Sym>(0, self.ctx).map_err(malformed).ok())
            .filter(|sym| sym.st_shndx != SHN_UNDEF as usize && sym.st_value != 0)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use goblin::container::{Container, Endian};

    use super::*;
    use crate::elf::{file::MAX_NAME, testing::Library};

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
        let symbols = library.elf().symbols().unwrap();
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
        let symbols = Library::build(ASSEMBLY, &[]).elf().symbols().unwrap();
        let print = symbols.find("_ZN7Printer5printEv").unwrap();
        assert_eq!(print.size, 2);
        assert_eq!(symbols.find_prefix("_ZN7Printer"), Some(print.clone()));
        assert_eq!(symbols.at(print.value, "_Z"), Some(print.clone()));
        assert_eq!(symbols.at(print.value, "_ZTV"), None);
        assert_eq!(symbols.find("_ZN7Printer5print"), None);
        assert_eq!(symbols.find("undefined_elsewhere"), None);
    }

    #[test]
    fn overlapping_names_do_not_exceed_the_limit() {
        // The name of each symbol begins one byte after that of the previous one.
        let entry =
            |at: u32| [u64::from(at) | 1 << 48, 0x1000, 0].into_iter().flat_map(u64::to_le_bytes);
        let ctx = Ctx::new(Container::Big, Endian::Little);
        let (entries, strings) = ((0..2000).flat_map(entry).collect(), vec![b'g'; MAX_NAME]);
        let symbols = Symbols { tables: vec![Table { entries, strings, ctx }] };
        let found = symbols.with_prefixes(&["g"]);
        let bytes: usize = found.keys().map(|name| 2 * name.len()).sum();
        assert!(found.len() > 500 && bytes <= MAX_SELECTED, "{} {bytes}", found.len());
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

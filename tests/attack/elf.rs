//! Libraries whose section headers describe more than any linker writes. The dynamic linker ignores section headers, so
//! programs run with these libraries. Source of the formats: the System V gABI, and DWARF 5, section 6.4.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, PermissionsExt},
    path::Path,
};

const PAGE: u64 = 4096;
const SYMBOL_TABLE: u32 = 2;
const STRING_TABLE: u32 = 3;
/// Size of a symbol in a symbol table.
const SYMBOL: u64 = 24;

/// A section header.
#[derive(Clone, Copy)]
struct Section {
    name: u32,
    kind: u32,
    flags: u64,
    addr: u64,
    offset: u64,
    size: u64,
    link: u32,
    info: u32,
    align: u64,
    entry: u64,
}

impl Section {
    fn parse(bytes: &[u8]) -> Self {
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        Self {
            name: half(0),
            kind: half(4),
            flags: word(8),
            addr: word(16),
            offset: word(24),
            size: word(32),
            link: half(40),
            info: half(44),
            align: word(48),
            entry: word(56),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = [self.name.to_le_bytes(), self.kind.to_le_bytes()].concat();
        for word in [self.flags, self.addr, self.offset, self.size] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend([self.link.to_le_bytes(), self.info.to_le_bytes()].concat());
        bytes.extend([self.align.to_le_bytes(), self.entry.to_le_bytes()].concat());
        bytes
    }
}

/// A library whose section headers are changed. Its segments stay as they are.
struct Library {
    bytes: Vec<u8>,
    sections: Vec<Section>,
    /// Content that is appended to the file, with its offset.
    added: Vec<(u64, Vec<u8>)>,
    end: u64,
}

impl Library {
    fn read(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap();
        let at = u64::from_le_bytes(bytes[0x28..0x30].try_into().unwrap()) as usize;
        let count = usize::from(u16::from_le_bytes([bytes[0x3c], bytes[0x3d]]));
        let sections = bytes[at..at + 64 * count].chunks(64).map(Section::parse).collect();
        let end = (bytes.len() as u64).next_multiple_of(PAGE);
        Self { bytes, sections, added: Vec::new(), end }
    }

    fn content(&self, index: usize) -> &[u8] {
        let Section { offset, size, .. } = self.sections[index];
        &self.bytes[offset as usize..(offset + size) as usize]
    }

    fn index_of_names(&self) -> usize {
        usize::from(u16::from_le_bytes([self.bytes[0x3e], self.bytes[0x3f]]))
    }

    fn find(&self, name: &str) -> Option<usize> {
        let names = self.content(self.index_of_names());
        let name = [name.as_bytes(), b"\0"].concat();
        self.sections.iter().position(|one| names[one.name as usize..].starts_with(&name))
    }

    /// Replaces a section's content. The section gets `size` bytes, the rest of which is a hole in the file.
    fn set(&mut self, index: usize, content: Vec<u8>, size: u64) {
        (self.sections[index].offset, self.sections[index].size) = (self.end, size);
        self.added.push((self.end, content));
        self.end = (self.end + size).next_multiple_of(PAGE);
    }

    /// Appends a symbol table and its strings, in place of those that the library has. Both are of this size.
    fn set_symbols(&mut self, symbols: Vec<u8>, strings: Vec<u8>, size: u64) {
        let at = self.index_of_names();
        let mut names = self.content(at).to_vec();
        let mut name = |text: &str| {
            names.extend(format!("{text}\0").bytes());
            (names.len() - text.len() - 1) as u32
        };
        for old in [".symtab", ".strtab"] {
            if let Some(index) = self.find(old) {
                self.sections[index].name = name(".old");
            }
        }
        let count = self.sections.len();
        let table = Section {
            name: name(".symtab"),
            kind: SYMBOL_TABLE,
            flags: 0,
            addr: 0,
            offset: 0,
            size: 0,
            link: count as u32 + 1,
            info: 0,
            align: 8,
            entry: SYMBOL,
        };
        let text =
            Section { name: name(".strtab"), kind: STRING_TABLE, link: 0, entry: 0, ..table };
        self.sections.extend([table, text]);
        let length = names.len() as u64;
        self.set(at, names, length);
        self.set(count, symbols, size / SYMBOL * SYMBOL);
        self.set(count + 1, strings, size);
    }

    fn write(&self, path: &Path) {
        let file = File::create(path).unwrap();
        file.write_all_at(&self.bytes, 0).unwrap();
        for (at, content) in &self.added {
            file.write_all_at(content, *at).unwrap();
        }
        let headers: Vec<_> = self.sections.iter().flat_map(Section::bytes).collect();
        file.write_all_at(&headers, self.end).unwrap();
        file.write_all_at(&self.end.to_le_bytes(), 0x28).unwrap();
        file.write_all_at(&(self.sections.len() as u16).to_le_bytes(), 0x3c).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// Writes a copy of a library whose tables of symbols and strings are of `size` bytes each. They are holes in the file,
/// behind the content of the dynamic ones.
pub fn sparse_symbols(from: &Path, to: &Path, size: u64) {
    let mut library = Library::read(from);
    let table = library.find(".dynsym").unwrap();
    let strings = library.sections[table].link as usize;
    for (index, size) in [(table, size / SYMBOL * SYMBOL), (strings, size)] {
        library.set(index, library.content(index).to_vec(), size);
    }
    library.set_symbols(Vec::new(), Vec::new(), size);
    library.write(to);
}

/// Writes a copy of a library with a symbol table of `size` bytes. All symbols have the same long name, which is none
/// that a tracer needs.
pub fn many_symbols(from: &Path, to: &Path, size: u64) {
    let symbol = [&[1, 0, 0, 0, 2, 0, 5, 0][..], &PAGE.to_le_bytes(), &16_u64.to_le_bytes()];
    let symbols = symbol.concat().repeat((size / SYMBOL) as usize);
    let strings = format!("\0{}unneeded_symbol\0", "_ZN".repeat(10));
    let mut library = Library::read(from);
    library.set_symbols(symbols, strings.into_bytes(), size);
    library.write(to);
}

/// Writes a copy of a library with one unwind entry that has this number of rows, each for one byte of the section
/// `.text`.
pub fn unwind_rows(from: &Path, to: &Path, rows: u64) {
    let mut library = Library::read(from);
    let text = library.sections[library.find(".text").unwrap()];
    assert!(text.size >= rows, "{} bytes of code for {rows} rows", text.size);
    // Pads an entry with instructions that do nothing, and puts its length in front.
    let entry = |mut body: Vec<u8>| {
        body.resize((body.len() + 4).next_multiple_of(8) - 4, 0);
        [&(body.len() as u32).to_le_bytes()[..], &body].concat()
    };
    // Version 1, no augmentation, code and data alignment, return address; CFA is rsp + 8, and the return address is
    // below it.
    let common = entry([&[0; 4][..], &[1, 0, 1, 0x78, 16], &[0x0c, 7, 8], &[0x90, 1]].concat());
    // Advance by one byte; the CFA is rsp + 16, and then rsp + 8.
    let pairs = [0x41, 0x0e, 16, 0x41, 0x0e, 8].repeat((rows / 2) as usize);
    let to_common = common.len() as u32 + 4;
    let range = [text.addr.to_le_bytes(), text.size.to_le_bytes()].concat();
    let function = entry([&to_common.to_le_bytes()[..], &range, &pairs].concat());
    let frames = [common, function, vec![0; 4]].concat();
    let index = library.find(".eh_frame").unwrap();
    let size = frames.len() as u64;
    library.set(index, frames, size);
    // The index of the entries would be wrong, and is optional.
    if let Some(index) = library.find(".eh_frame_hdr") {
        library.sections[index].name = 0;
    }
    library.write(to);
}

//! An ELF file, read piece by piece.
//!
//! Source: System V gABI, chapters 4 and 5 (elf(5)).

use std::{fmt, fs::File, os::unix::fs::FileExt, sync::Arc};

use goblin::{
    container::Ctx,
    elf::{
        Elf, Header, ProgramHeader, SectionHeader, header,
        program_header::{PF_X, PT_LOAD},
        section_header,
    },
};

use crate::{
    Addr, Error, FileOffset, Result, Vaddr,
    elf::{content, lookups::Lookups},
    sys::budget::{Reservation, Share},
};

/// Maximum number of sections and of segments. Programs and libraries have less than 100, and an open file keeps the
/// headers in memory.
const MAX_HEADERS: usize = 4096;
/// Maximum size of a table of section or program headers in bytes.
const MAX_TABLE: u64 = 64 * MAX_HEADERS as u64;

/// Section that contains the heap of a GraalVM native image (substratevm, `SectionName.SVM_HEAP`).
pub(crate) const NATIVE_IMAGE_HEAP: &str = ".svm_heap";

/// Maximum length of a name in bytes. C++ mangled names are longer only in tests of compilers.
pub(super) const MAX_NAME: usize = 4096;

/// Maximum size in bytes of the table of section names. Also limits the total length of all names, which can
/// exceed the size of the table because names may overlap in it.
const MAX_NAMES: usize = 256 << 10;

/// Machine architecture of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    /// x86-64.
    X86_64,
    /// 64-bit Arm.
    Aarch64,
    /// Anything else, by its `e_machine` number.
    Other(u16),
}

impl Machine {
    /// Architecture of this program, which can only be built for x86-64 and aarch64.
    pub(crate) const NATIVE: Self =
        if cfg!(target_arch = "x86_64") { Self::X86_64 } else { Self::Aarch64 };

    /// Returns the value for this architecture; `None` for one that is not known.
    pub(crate) fn select<T>(self, x86_64: T, aarch64: T) -> Option<T> {
        match self {
            Self::X86_64 => Some(x86_64),
            Self::Aarch64 => Some(aarch64),
            Self::Other(_) => None,
        }
    }
}

impl From<u16> for Machine {
    /// Converts `e_machine` of a file's header.
    fn from(number: u16) -> Self {
        match number {
            header::EM_X86_64 => Self::X86_64,
            header::EM_AARCH64 => Self::Aarch64,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::X86_64 => f.write_str("x86-64"),
            Self::Aarch64 => f.write_str("aarch64"),
            Self::Other(header::EM_386) => f.write_str("32-bit x86"),
            Self::Other(header::EM_ARM) => f.write_str("32-bit Arm"),
            Self::Other(number) => write!(f, "machine {number}"),
        }
    }
}

/// An open ELF file with its headers.
#[derive(Debug)]
pub struct ElfFile {
    file: File,
    size: u64,
    ctx: Ctx,
    machine: u16,
    segments: Vec<ProgramHeader>,
    sections: Vec<(String, SectionHeader)>,
    /// A separate file with the symbols that this one lacks.
    pub(super) separate_debug_file: Option<Box<Self>>,
    /// Share of memory in which data of the file is reserved.
    pub(super) share: Share,
    _reserved: Reservation,
    /// Results of searches for symbols.
    pub(super) lookups: Arc<Lookups>,
}

impl ElfFile {
    /// Reads the headers of a file without a limit on the memory that its data takes. For files of this program, of its
    /// user, and in a child process with a limit of its own.
    ///
    /// # Errors
    /// [`Error::Elf`] if it is not an ELF file or truncated, [`Error::Io`] if it cannot be read.
    pub fn open(file: File) -> Result<Self> {
        Self::open_for(file, &Share::default())
    }

    /// Reads the headers of a file that a target uses. All data of the file that is held in memory is reserved in the
    /// tenant's share.
    ///
    /// # Errors
    /// Returns the errors of [`ElfFile::open`], and [`Error::Io`] of the kind `OutOfMemory` if the share does not suffice.
    pub fn open_for(file: File, share: &Share) -> Result<Self> {
        let size = file.metadata().map_err(|e| Error::io("stat an ELF file", e))?.len();
        let ident = read_at(&file, size, 0, size.min(64), 64)?;
        let head = Elf::parse_header(&ident).map_err(malformed)?;
        let container = head.container().map_err(malformed)?;
        let ctx = Ctx::new(container, head.endianness().map_err(malformed)?);
        let segments = segments(&file, size, ctx, &head)?;
        let sections = sections(&file, size, ctx, &head)?;
        let names: usize = sections.iter().map(|(name, _)| name.capacity()).sum();
        let headers = size_of_val(&segments[..]) + size_of_val(&sections[..]);
        let reserved = content::reserve(share, headers + names)?;
        Ok(Self {
            file,
            size,
            ctx,
            machine: head.e_machine,
            segments,
            sections,
            separate_debug_file: None,
            share: share.clone(),
            _reserved: reserved,
            lookups: Arc::default(),
        })
    }

    /// Returns the architecture of the file.
    pub(crate) fn machine(&self) -> Machine {
        self.machine.into()
    }

    /// Returns all sections with this name, in file order.
    pub(crate) fn sections<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Section<'a>> + 'a {
        self.sections
            .iter()
            .filter(move |(section, _)| section == name)
            .map(|(_, header)| Section { elf: self, header })
    }

    /// Returns whether it is a GraalVM native image.
    pub(crate) fn is_native_image(&self) -> bool {
        self.section(NATIVE_IMAGE_HEAP).is_some()
    }

    /// Returns the first section with this name.
    pub(crate) fn section(&self, name: &str) -> Option<Section<'_>> {
        let (_, header) = self.sections.iter().find(|(section, _)| section == name)?;
        Some(Section { elf: self, header })
    }

    /// Returns the section with an index, as in `sh_link`.
    pub(super) fn section_at(&self, index: u32) -> Option<Section<'_>> {
        let (_, header) = self.sections.get(usize::try_from(index).ok()?)?;
        Some(Section { elf: self, header })
    }

    /// Returns the file offset of a link-time address; `None` outside of the segments or in their zero-filled ends.
    pub(crate) fn vaddr_to_offset(&self, vaddr: Vaddr) -> Option<FileOffset> {
        offset(&self.segments, vaddr)
    }

    /// Returns whether `size` bytes at a link-time address are code.
    pub(crate) fn is_code(&self, vaddr: Vaddr, size: u64) -> bool {
        let code = self.segments.iter().filter(|s| s.p_type == PT_LOAD && s.p_flags & PF_X != 0);
        code.into_iter().any(|s| {
            let inside = vaddr.0.checked_sub(s.p_vaddr).and_then(|at| at.checked_add(size));
            inside.is_some_and(|end| end <= s.p_filesz)
        })
    }

    /// Returns the link-time addresses of code: the executable segments in ascending order, those that overlap or touch
    /// merged.
    pub(crate) fn code(&self) -> Vec<std::ops::Range<Vaddr>> {
        let code = self.segments.iter().filter(|s| s.p_type == PT_LOAD && s.p_flags & PF_X != 0);
        let mut code: Vec<_> =
            code.map(|s| (s.p_vaddr, s.p_vaddr.saturating_add(s.p_filesz))).collect();
        code.sort_unstable();
        let mut merged: Vec<std::ops::Range<Vaddr>> = Vec::new();
        for (start, end) in code {
            match merged.last_mut() {
                Some(last) if Vaddr(start) <= last.end => last.end = last.end.max(Vaddr(end)),
                _ => merged.push(Vaddr(start)..Vaddr(end)),
            }
        }
        merged
    }

    /// See [`Segments::load_bias`].
    pub(crate) fn load_bias(&self, map_start: Addr, map_offset: FileOffset) -> Option<u64> {
        load_bias(&self.segments, map_start, map_offset)
    }

    /// Returns the size of the file in bytes, when it was opened.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Returns this file with a cache of searches for symbols that other users of the same file share.
    pub(crate) fn with_lookups(mut self, lookups: &Arc<Lookups>) -> Self {
        self.lookups = Arc::clone(lookups);
        self
    }

    /// Returns the open file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Returns the segments of the file.
    pub(super) fn segments(&self) -> Segments {
        Segments(self.segments.clone())
    }

    /// Returns the first segment of a type.
    pub(super) fn segment(&self, kind: u32) -> Option<&ProgramHeader> {
        self.segments.iter().find(|segment| segment.p_type == kind)
    }

    /// Closes the file, and returns its segments.
    pub fn into_segments(self) -> Segments {
        Segments(self.segments)
    }

    /// Returns the start address of the page in which the lowest loaded segment begins; `None` if no segment
    /// is loaded.
    pub(crate) fn base(&self) -> Option<Vaddr> {
        let page = 4096;
        let loaded = self.segments.iter().filter(|s| s.p_type == PT_LOAD);
        loaded.map(|s| s.p_vaddr / page * page).min().map(Vaddr)
    }

    pub(crate) fn ctx(&self) -> Ctx {
        self.ctx
    }
}

/// Segments of a file: mapping between file offsets and addresses, which remains usable after the file has
/// been closed.
#[derive(Clone, Debug)]
pub struct Segments(Vec<ProgramHeader>);

impl Segments {
    /// Returns the difference between addresses in a process and link-time addresses, for a mapping that
    /// begins at `map_start` with the byte at file offset `map_offset`. `None` if no loaded segment contains
    /// this offset.
    pub fn load_bias(&self, map_start: Addr, map_offset: FileOffset) -> Option<u64> {
        load_bias(&self.0, map_start, map_offset)
    }

    /// Returns the link-time address of a file offset.
    pub(crate) fn vaddr(&self, offset: FileOffset) -> Option<Vaddr> {
        let bias = self.load_bias(Addr(0), offset)?;
        Some(Vaddr(bias.wrapping_neg()))
    }

    /// See [`ElfFile::vaddr_to_offset`].
    pub(super) fn offset(&self, vaddr: Vaddr) -> Option<FileOffset> {
        offset(&self.0, vaddr)
    }
}

fn offset(segments: &[ProgramHeader], vaddr: Vaddr) -> Option<FileOffset> {
    segments.iter().filter(|s| s.p_type == PT_LOAD).find_map(|s| {
        let inside = vaddr.0.checked_sub(s.p_vaddr).filter(|&n| n < s.p_filesz)?;
        s.p_offset.checked_add(inside).map(FileOffset)
    })
}

fn load_bias(segments: &[ProgramHeader], start: Addr, offset: FileOffset) -> Option<u64> {
    let page = 4096;
    segments.iter().filter(|s| s.p_type == PT_LOAD).find_map(|s| {
        // A mapping starts at the page that contains the start of its segment.
        let first = s.p_offset / page * page;
        let end = s.p_offset.checked_add(s.p_filesz)?;
        (first..end).contains(&offset.0).then(|| {
            let vaddr = s.p_vaddr.wrapping_sub(s.p_offset).wrapping_add(offset.0);
            start.0.wrapping_sub(vaddr)
        })
    })
}

/// A section of an open file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section<'a> {
    elf: &'a ElfFile,
    header: &'a SectionHeader,
}

impl Section<'_> {
    /// Returns its link-time address, or 0 if it is not loaded.
    pub(crate) fn vaddr(&self) -> Vaddr {
        Vaddr(self.header.sh_addr)
    }

    /// Returns its size in bytes, which may be too large in a malformed file.
    pub(crate) fn size(&self) -> u64 {
        self.header.sh_size
    }

    /// Returns its alignment.
    pub(super) fn alignment(&self) -> u64 {
        self.header.sh_addralign
    }

    /// Returns the index of the linked section (the string table of a symbol table).
    pub(super) fn link(&self) -> u32 {
        self.header.sh_link
    }

    /// Returns the file range of its bytes, and whether they are compressed; `None` if the section has no
    /// bytes in the file or extends beyond the end of the file. Reads nothing.
    pub(crate) fn stored(&self) -> Option<(std::ops::Range<u64>, bool)> {
        let SectionHeader { sh_offset, sh_size, sh_flags, sh_type, .. } = *self.header;
        let end = sh_offset.checked_add(sh_size).filter(|&end| end <= self.elf.size)?;
        let is_compressed = sh_flags & u64::from(section_header::SHF_COMPRESSED) != 0;
        (sh_type != section_header::SHT_NOBITS).then_some((sh_offset..end, is_compressed))
    }

    /// Returns its header.
    pub(super) fn header(&self) -> &SectionHeader {
        self.header
    }
}

impl<'a> Section<'a> {
    /// Returns the file that contains it.
    pub(super) fn elf(&self) -> &'a ElfFile {
        self.elf
    }
}

fn segments(file: &File, size: u64, ctx: Ctx, head: &Header) -> Result<Vec<ProgramHeader>> {
    let count = usize::from(head.e_phnum);
    let entry = ProgramHeader::size(ctx);
    if count == 0 || head.e_phoff == 0 {
        return Ok(Vec::new());
    }
    if usize::from(head.e_phentsize) != entry {
        return Err(Error::elf(format!(
            "each program header has {} bytes, not {entry}",
            head.e_phentsize
        )));
    }
    let bytes = read_at(file, size, head.e_phoff, (count * entry) as u64, MAX_TABLE)?;
    ProgramHeader::parse(&bytes, 0, count, ctx).map_err(malformed)
}

fn sections(
    file: &File,
    size: u64,
    ctx: Ctx,
    head: &Header,
) -> Result<Vec<(String, SectionHeader)>> {
    let entry = SectionHeader::size(ctx);
    if head.e_shoff == 0 {
        return Ok(Vec::new());
    }
    if usize::from(head.e_shentsize) != entry {
        return Err(Error::elf(format!(
            "each section header has {} bytes, not {entry}",
            head.e_shentsize
        )));
    }
    let first = read_at(file, size, head.e_shoff, entry as u64, MAX_TABLE)?;
    let first = SectionHeader::parse_from(&first, 0, 1, ctx).map_err(malformed)?;
    // Numbers that do not fit into the header are in the first section header.
    let count = match (head.e_shnum, first.first()) {
        (0, Some(first)) => first.sh_size,
        (count, _) => count.into(),
    };
    let count = usize::try_from(count)
        .ok()
        .filter(|&count| count <= MAX_HEADERS)
        .ok_or_else(|| Error::elf(format!("{count} sections, more than {MAX_HEADERS}")))?;
    if count == 0 {
        return Ok(Vec::new());
    }
    let names_at = match (u32::from(head.e_shstrndx), first.first()) {
        (section_header::SHN_XINDEX, Some(first)) => first.sh_link,
        (index, _) => index,
    };
    let bytes = read_at(file, size, head.e_shoff, (count * entry) as u64, MAX_TABLE)?;
    let headers = SectionHeader::parse_from(&bytes, 0, count, ctx).map_err(malformed)?;
    let names = match usize::try_from(names_at).ok().and_then(|at| headers.get(at)) {
        Some(names) => read_at(file, size, names.sh_offset, names.sh_size, MAX_NAMES as u64)?,
        None => return Err(Error::elf("section names are missing")),
    };
    let mut remaining = MAX_NAMES;
    let named = headers.into_iter().map(|header| {
        let name = c_string(&names, header.sh_name);
        remaining = remaining
            .checked_sub(name.len())
            .ok_or_else(|| Error::elf("the names of its sections are too long"))?;
        Ok((name, header))
    });
    named.collect()
}

/// Returns the NUL-terminated string at an offset of a string table; empty if there is none.
pub(super) fn c_string(table: &[u8], offset: usize) -> String {
    String::from_utf8_lossy(c_bytes(table, offset)).into_owned()
}

/// Returns the bytes of the string at an offset of a string table, at most [`MAX_NAME`].
pub(super) fn c_bytes(table: &[u8], offset: usize) -> &[u8] {
    let rest = table.get(offset..).unwrap_or_default();
    let rest = rest.get(..MAX_NAME).unwrap_or(rest);
    rest.split(|&b| b == 0).next().unwrap_or_default()
}

/// Reads a range, which must be within the file and have at most `max` bytes. Both conditions limit the
/// allocation.
fn read_at(file: &File, size: u64, offset: u64, len: u64, max: u64) -> Result<Vec<u8>> {
    if offset.checked_add(len).is_none_or(|end| end > size) {
        let what = format!("truncated: {len} bytes at {offset:#x} of a file of {size} bytes");
        return Err(Error::elf(what));
    }
    let mut bytes = match usize::try_from(len) {
        Ok(len_in_memory) if len <= max => vec![0; len_in_memory],
        _ => return Err(Error::elf(format!("{len} bytes at {offset:#x}, more than {max}"))),
    };
    file.read_exact_at(&mut bytes, offset).map_err(|e| Error::io("read an ELF file", e))?;
    Ok(bytes)
}

pub(super) fn malformed(error: goblin::error::Error) -> Error {
    Error::elf(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::FileExt, process::Command};

    use goblin::elf::program_header::PF_X;

    use super::*;
    use crate::elf::{
        content::MAX_SECTION,
        testing::{Library, open},
    };

    const ASSEMBLY: &str = "
        .text
        .globl code
        code: .8byte 0x1122334455667788
        .data
        .globl data
        data: .8byte 0x99aabbccddeeff00
        .bss
        .globl zeroes
        zeroes: .space 65536
    ";

    #[test]
    fn vaddr_maps_to_its_file_offset() {
        let library = Library::build(ASSEMBLY, &[]);
        let elf = library.elf();
        assert_eq!(elf.machine(), Machine::NATIVE);
        let symbols = elf.symbols().unwrap();
        for (name, value) in [("code", 0x1122_3344_5566_7788), ("data", 0x99aa_bbcc_ddee_ff00_u64)]
        {
            let offset = elf.vaddr_to_offset(symbols.find(name).unwrap().value).unwrap();
            let mut word = [0; 8];
            File::open(library.path()).unwrap().read_exact_at(&mut word, offset.0).unwrap();
            assert_eq!(u64::from_ne_bytes(word), value, "{name}");
        }
        let zeroes = symbols.find("zeroes").unwrap();
        assert_eq!(elf.vaddr_to_offset(Vaddr(zeroes.value.0 + 60_000)), None);
        assert_eq!(elf.vaddr_to_offset(Vaddr(u64::MAX)), None);
    }

    #[test]
    fn total_length_of_section_names_is_limited() {
        // The names of the sections overlap: each name starts one byte after that of the previous section.
        let count = 4000_usize;
        let strings = vec![b'a'; count + MAX_NAME];
        let file = |count: usize| {
            let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0];
            bytes.resize(64, 0);
            bytes[16] = 3;
            bytes[18] = 62;
            bytes[40] = 64;
            bytes[58..60].copy_from_slice(&64_u16.to_le_bytes());
            bytes[60..62].copy_from_slice(&(count as u16).to_le_bytes());
            for i in 0..count {
                let mut header = [0; 64];
                header[..4].copy_from_slice(&(i as u32).to_le_bytes());
                header[24..32].copy_from_slice(&(64 + 64 * count as u64).to_le_bytes());
                header[32..40].copy_from_slice(&(strings.len() as u64).to_le_bytes());
                bytes.extend(header);
            }
            [bytes, strings.clone()].concat()
        };
        assert!(open(&file(MAX_NAMES / MAX_NAME)).is_ok());
        let error = open(&file(count)).unwrap_err().to_string();
        assert!(error.contains("names of its sections"), "{error}");
    }

    #[test]
    fn mapping_address_and_offset_give_the_load_bias() {
        let elf = Library::build(ASSEMBLY, &[]).elf();
        let code = elf.segments.iter().find(|s| s.p_flags & PF_X != 0).unwrap();
        let bias = 0x7f00_0000_0000;
        let start = Addr(bias + code.p_vaddr / 4096 * 4096);
        let offset = FileOffset(code.p_offset / 4096 * 4096);
        assert_eq!(elf.load_bias(start, offset), Some(bias));
        assert_eq!(elf.load_bias(start, FileOffset(1 << 40)), None);
    }

    #[test]
    fn malformed_and_truncated_files_return_specific_errors() {
        let message = |bytes: &[u8]| open(bytes).unwrap_err().to_string();
        assert!(message(b"").contains("malformed"), "{}", message(b""));
        assert!(message(b"#!/bin/sh\nexec java\n").contains("malformed"));
        let whole = Library::build(ASSEMBLY, &[]).bytes();
        let half = message(&whole[..whole.len() / 2]);
        assert!(half.contains("truncated"), "{half}");
    }

    #[test]
    fn section_without_content_returns_an_error() {
        let library = Library::build(ASSEMBLY, &[]);
        let elf = library.elf();
        assert!(elf.section(".bss").unwrap().data().is_err());
        assert_eq!(elf.section(".data").unwrap().data().unwrap().len(), 8);
        let debug = library.dir().join("debug");
        let status = Command::new("objcopy")
            .args(["--only-keep-debug"])
            .args([&library.path(), &debug])
            .status()
            .unwrap();
        assert!(status.success());
        let elf = ElfFile::open(File::open(debug).unwrap()).unwrap();
        assert!(elf.section(".data").unwrap().data().is_err());
        assert!(elf.symbols().unwrap().find("code").is_some());
    }

    /// Returns a sparse file with a library. Its headers claim this size for `.symtab` if `symbols` is set,
    /// otherwise for the table of section names.
    fn file_claiming_size(symbols: bool, size: u64) -> Option<File> {
        let mut bytes = Library::build(ASSEMBLY, &[]).bytes();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let headers = usize::try_from(word(40)).unwrap();
        let names = usize::from(u16::from_le_bytes(bytes[62..64].try_into().unwrap()));
        let is_symbols = |i: &usize| bytes[headers + i * 64 + 4] == 2;
        let index = if symbols { (0..names).find(is_symbols).unwrap() } else { names };
        let size_at = headers + index * 64 + 32;
        bytes[size_at..size_at + 8].copy_from_slice(&size.to_le_bytes());
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        // Some file systems do not support such a file.
        file.set_len(size * 2).is_ok().then_some(file)
    }

    #[test]
    fn oversized_sections_of_sparse_files_are_rejected() {
        for size in [MAX_NAMES as u64 + 1, 250 << 20, 1 << 41] {
            let Some(file) = file_claiming_size(false, size) else { continue };
            let error = ElfFile::open(file).unwrap_err().to_string();
            assert!(error.contains("more than"), "{error}");
        }
        assert!(ElfFile::open(file_claiming_size(false, MAX_NAMES as u64).unwrap()).is_ok());
        let elf = ElfFile::open(file_claiming_size(true, MAX_SECTION + 1).unwrap()).unwrap();
        assert!(elf.section(".symtab").unwrap().data().is_err() && !elf.has_symbols());
    }
}

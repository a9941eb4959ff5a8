//! Inlined functions and lines from DWARF.
//!
//! Used in the confined child only. Sections are mapped, so that the kernel can reclaim their memory. If a file shrinks
//! meanwhile, the child dies of SIGBUS, and only the names of that file are lost.
//! Source: DWARF 5; System V gABI, chapter 4 (`Elf64_Chdr`).
//!
//! Soundness: a mapping is private, readable and exists until its `Bytes` are dropped. Its content may change
//! if the file does. That is tolerated, because gimli reads it byte by byte and checks each value that it
//! uses.

use std::{io::Read, ops::Deref, rc::Rc};

use addr2line::Context;
use gimli::{CloneStableDeref, EndianReader, RunTimeEndian, SectionId, StableDeref};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::{Vaddr, elf::ElfFile};

/// Maximum size of a section in bytes, after decompression.
const MAX_SECTION: u64 = 512 << 20;
/// Maximum depth of inlined functions at one address.
const MAX_INLINED: usize = 32;

/// Bytes of a section.
#[derive(Clone, Debug)]
struct Bytes(Rc<SectionBytes>);

#[derive(Debug)]
enum SectionBytes {
    Unpacked(Vec<u8>),
    /// A mapping: its start and length, and the offset and length of the section in it.
    Mapped {
        at: *mut std::ffi::c_void,
        len: usize,
        skip: usize,
        size: usize,
    },
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &*self.0 {
            SectionBytes::Unpacked(bytes) => bytes,
            // SAFETY: the mapping has `skip + size` bytes and exists as long as `self`.
            &SectionBytes::Mapped { at, skip, size, .. } => unsafe {
                std::slice::from_raw_parts(at.cast::<u8>().add(skip), size)
            },
        }
    }
}

// SAFETY: the bytes are in a mapping or a vector that is never moved or resized, behind a reference-counted
// pointer, so their address stays the same while a clone exists.
unsafe impl StableDeref for Bytes {}
// SAFETY: clones share the bytes.
unsafe impl CloneStableDeref for Bytes {}

impl Drop for SectionBytes {
    fn drop(&mut self) {
        if let Self::Mapped { at, len, .. } = *self {
            // SAFETY: `bytes` made this mapping, and its last user is being dropped.
            let _ = unsafe { munmap(at, len) };
        }
    }
}

type Reader = EndianReader<RunTimeEndian, Bytes>;

/// The debug information of a file.
pub(super) struct DebugInfo(Context<Reader>);

/// A function at an address, perhaps inlined.
#[derive(Debug)]
pub(super) struct Function {
    /// Mangled name, if known.
    pub(super) name: Option<String>,
    /// Source file without its folder.
    pub(super) file: Option<String>,
    pub(super) line: u32,
}

impl DebugInfo {
    /// Opens the debug information of a file, with the shared part in `common`; `None` if the file has none.
    pub(super) fn open(elf: &ElfFile, common: Option<&ElfFile>) -> Option<Self> {
        elf.section(".debug_info")?;
        let mut dwarf = gimli::Dwarf::load(|id| Ok::<_, gimli::Error>(section(elf, id))).ok()?;
        if let Some(common) = common {
            dwarf.load_sup(|id| Ok::<_, gimli::Error>(section(common, id))).ok()?;
        }
        Context::from_dwarf(dwarf).ok().map(Self)
    }

    /// Returns the functions at an address, innermost first.
    pub(super) fn functions(&self, at: Vaddr) -> Vec<Function> {
        let mut functions = Vec::new();
        let Ok(mut frames) = self.0.find_frames(at.0).skip_all_loads() else { return functions };
        while let Ok(Some(frame)) = frames.next() {
            if functions.len() >= MAX_INLINED {
                return Vec::new();
            }
            let name = frame.function.and_then(|name| Some(name.raw_name().ok()?.into_owned()));
            let location = frame.location;
            let file = location.as_ref().and_then(|location| location.file);
            let file = file.and_then(|path| path.rsplit('/').next()).map(str::to_owned);
            let line = location.and_then(|location| location.line).unwrap_or(0);
            functions.push(Function { name, file, line });
        }
        functions
    }
}

/// Returns a section, empty if it is missing or cannot be read.
fn section(elf: &ElfFile, id: SectionId) -> Reader {
    let bytes = bytes(elf, id.name()).unwrap_or(SectionBytes::Unpacked(Vec::new()));
    let endian = if elf.ctx().le.is_little() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    EndianReader::new(Bytes(Rc::new(bytes)), endian)
}

fn bytes(elf: &ElfFile, name: &str) -> Option<SectionBytes> {
    let (range, is_compressed) = elf.section(name)?.stored()?;
    let (start, size) = (range.start, range.end - range.start);
    let size = usize::try_from(size).ok().filter(|&size| size > 0 && size as u64 <= MAX_SECTION)?;
    let page = 4096;
    let skip = usize::try_from(start % page).ok()?;
    let (flags, len) = (MapFlags::PRIVATE, size + skip);
    // SAFETY: makes a new mapping at an address that the kernel chooses.
    let at = unsafe {
        mmap(std::ptr::null_mut(), len, ProtFlags::READ, flags, elf.file(), start - start % page)
    };
    let mapped = Bytes(Rc::new(SectionBytes::Mapped { at: at.ok()?, len, skip, size }));
    if is_compressed {
        unpack(&mapped).map(SectionBytes::Unpacked)
    } else {
        Rc::into_inner(mapped.0)
    }
}

/// Decompresses a section of a 64-bit file.
fn unpack(packed: &[u8]) -> Option<Vec<u8>> {
    const ZLIB: u32 = 1;
    const ZSTD: u32 = 2;
    // Elf64_Chdr: ch_type, ch_reserved, ch_size, ch_addralign.
    let (head, content) = packed.split_at_checked(24)?;
    let kind = u32::from_ne_bytes(head[..4].try_into().ok()?);
    let size = u64::from_ne_bytes(head[8..16].try_into().ok()?);
    let size = usize::try_from(size).ok().filter(|&size| size as u64 <= MAX_SECTION)?;
    let mut bytes = Vec::new();
    match kind {
        ZLIB => flate2::read::ZlibDecoder::new(content)
            .take(size as u64)
            .read_to_end(&mut bytes)
            .ok()?,
        ZSTD => {
            let decoder = ruzstd::decoding::StreamingDecoder::new(content).ok()?;
            decoder.take(size as u64).read_to_end(&mut bytes).ok()?
        }
        _ => return None,
    };
    (bytes.len() == size).then_some(bytes)
}

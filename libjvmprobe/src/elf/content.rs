//! Content of sections: complete, reserved in the name of a tenant, or piece by piece.

use std::{fs::File, num::NonZeroU64, ops::Deref, os::unix::fs::FileExt};

use goblin::elf::section_header;
use rustix::fs::{Advice, fadvise};

use crate::{
    Error, Result,
    elf::{
        ElfFile,
        file::{MAX_NAME, Section, c_bytes},
    },
    sys::{
        budget::{Reservation, Share},
        limited,
    },
};

/// Maximum size in bytes of a section that is read. The largest tables of a libjvm.so are its symbol names,
/// about 3 MB, and its unwind table, about 2 MB. Other libraries have tables of up to 20 MB. A sparse file
/// may claim terabytes.
pub(super) const MAX_SECTION: u64 = 32 << 20;

/// Maximum size in bytes of the heap of a GraalVM native image, which is one section.
const MAX_IMAGE_HEAP: u64 = 128 << 20;

/// Maximum size in bytes of a section that contains one name and a checksum, or one short note.
const MAX_SHORT: u64 = 64 << 10;
/// Size of a section above which its pages do not stay in the page cache, where they would count towards the memory limit
/// of this process's control group. Symbol tables of a JVM are smaller.
const MAX_CACHED: u64 = 16 << 20;

/// Number of bytes that are read at once from sections of any size.
pub(super) const PIECE: usize = 256 << 10;

/// Complete content of a section. Its memory is reserved in the name of the tenant whose process uses the file.
#[derive(Debug, Default)]
pub(crate) struct SectionData {
    bytes: Vec<u8>,
    _reserved: Reservation,
}

impl Deref for SectionData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reserves memory for data of a file. If the tenant's share does not suffice, counts the file as dropped.
///
/// # Errors
/// [`Error::Io`] of the kind `OutOfMemory`. A later attempt may succeed.
pub(super) fn reserve(share: &Share, bytes: usize) -> Result<Reservation> {
    let mut reserved = Reservation::within(share);
    if reserved.reserve(bytes) {
        return Ok(reserved);
    }
    limited::add("files", share.tenant(), 1);
    let what = format!("read {bytes} bytes of a file of {}", share.tenant());
    let why = "its share of the memory for data of targets is used up";
    Err(Error::io(what, std::io::Error::new(std::io::ErrorKind::OutOfMemory, why)))
}

impl Section<'_> {
    /// Reads its bytes.
    ///
    /// # Errors
    /// [`Error::Elf`] if the section has no bytes in the file (stripped into a debug
    /// file), is compressed, extends beyond the end of the file, or is larger than 32 MiB. [`Error::Io`] if the tenant's
    /// share of memory is used up.
    pub(crate) fn data(&self) -> Result<SectionData> {
        self.read(0..self.size(), MAX_SECTION)
    }

    /// Reads the bytes of a short section: a link to another file, or a build ID.
    ///
    /// # Errors
    /// The errors of [`Section::data`], with a limit of 64 KiB.
    pub(super) fn short_data(&self) -> Result<SectionData> {
        self.read(0..self.size(), MAX_SHORT)
    }

    /// Reads the bytes of a native image's heap.
    ///
    /// # Errors
    /// The errors of [`Section::data`], with a limit of 128 MiB.
    pub(crate) fn image_heap(&self) -> Result<SectionData> {
        self.read(0..self.size(), MAX_IMAGE_HEAP)
    }

    /// Reads a range of its bytes, given by offsets within the section.
    ///
    /// # Errors
    /// The errors of [`Section::data`], and an error if the range is not within the section.
    pub(crate) fn part(&self, range: std::ops::Range<u64>) -> Result<SectionData> {
        let is_inside = range.start <= range.end && range.end <= self.size();
        is_inside.then_some(()).ok_or_else(|| Error::elf("a range is outside of its section"))?;
        self.read(range, MAX_SECTION)
    }

    fn read(&self, range: std::ops::Range<u64>, max: u64) -> Result<SectionData> {
        let content = self.content(u64::MAX)?;
        let len = range.end - range.start;
        let size = usize::try_from(len).ok().filter(|_| len <= max);
        let size = size.ok_or_else(|| Error::elf(format!("a section of {len} bytes")))?;
        let reserved = reserve(&self.elf().share, size)?;
        let mut bytes = vec![0; size];
        content.fill(range.start, &mut bytes)?;
        Ok(SectionData { bytes, _reserved: reserved })
    }

    /// Returns whether [`Section::data`] can return data. Reads nothing.
    pub(crate) fn has_data(&self) -> bool {
        self.content(MAX_SECTION).is_ok()
    }
}

impl<'a> Section<'a> {
    /// Returns its content, to be read piece by piece.
    ///
    /// # Errors
    /// [`Error::Elf`] if the section has no bytes in the file, is compressed, extends beyond the end of the file, or is
    /// larger than `max`.
    pub(super) fn content(&self, max: u64) -> Result<Content<'a>> {
        let header = self.header();
        if header.sh_type == section_header::SHT_NOBITS {
            return Err(Error::elf("a section has no content in this file"));
        }
        if header.sh_flags & u64::from(section_header::SHF_COMPRESSED) != 0 {
            return Err(Error::elf("a section is compressed"));
        }
        let (start, len) = (header.sh_offset, header.sh_size);
        if start.checked_add(len).is_none_or(|end| end > self.elf().size()) {
            return Err(Error::elf(format!("truncated: a section of {len} bytes at {start:#x}")));
        }
        if len > max {
            return Err(Error::elf(format!("a section of {len} bytes, more than {max}")));
        }
        Ok(Content { file: self.elf().file(), start, len })
    }
}

/// Bytes of a section in an open file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Content<'a> {
    file: &'a File,
    start: u64,
    len: u64,
}

impl Content<'_> {
    /// Fills `to` with the bytes at an offset.
    fn fill(&self, at: u64, to: &mut [u8]) -> Result<()> {
        let end = at.checked_add(to.len() as u64).filter(|&end| end <= self.len);
        end.ok_or_else(|| Error::elf("a range is outside of its section"))?;
        // The section is within the file, so the sum does not overflow.
        let read = self.file.read_exact_at(to, self.start + at);
        read.map_err(|e| Error::io("read an ELF file", e))
    }

    /// Calls `visit` with the content in pieces of at most [`PIECE`] bytes plus `overlap` bytes of the next piece, until
    /// it returns false. `visit` also gets the offset of the piece, and the number of bytes without the overlap.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn for_each_piece(
        &self,
        overlap: usize,
        mut visit: impl FnMut(u64, &[u8], usize) -> bool,
    ) -> Result<()> {
        let mut buffer = Vec::new();
        let mut at = 0;
        while at < self.len {
            let left = usize::try_from(self.len - at).unwrap_or(usize::MAX);
            let own = left.min(PIECE);
            buffer.resize(left.min(PIECE + overlap), 0);
            self.fill(at, &mut buffer)?;
            let goes_on = visit(at, &buffer, own);
            if self.len > MAX_CACHED {
                let len = NonZeroU64::new(own as u64);
                // If the pages stay in the cache, the kernel has to reclaim them later.
                let _ = fadvise(self.file, self.start + at, len, Advice::DontNeed);
            }
            if !goes_on {
                break;
            }
            at += own as u64;
        }
        Ok(())
    }

    /// Calls `visit` with each complete entry of `size` bytes until it returns false.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn for_each_entry(
        &self,
        size: usize,
        mut visit: impl FnMut(&[u8]) -> bool,
    ) -> Result<()> {
        // An entry that begins in a piece continues in the overlap.
        self.for_each_piece(size - 1, |at, bytes, own| {
            // Offset within the piece of the first entry that begins in it.
            let first = (size - usize::try_from(at % size as u64).unwrap_or(0)) % size;
            let entries = bytes.get(first..).unwrap_or_default().chunks_exact(size);
            let count = own.saturating_sub(first).div_ceil(size);
            entries.take(count).all(&mut visit)
        })
    }

    /// Returns the bytes of the NUL-terminated string at an offset, at most [`MAX_NAME`].
    pub(super) fn string(&self, at: u64) -> Option<Vec<u8>> {
        /// Length of most names. Longer ones are read again.
        const USUAL: u64 = 256;
        let left = self.len.checked_sub(at)?;
        for max in [USUAL, MAX_NAME as u64] {
            let mut bytes = vec![0; usize::try_from(left.min(max)).ok()?];
            self.fill(at, &mut bytes).ok()?;
            let len = c_bytes(&bytes, 0).len();
            if len < bytes.len() || left <= max || max == MAX_NAME as u64 {
                bytes.truncate(len);
                return Some(bytes);
            }
        }
        None
    }
}

impl ElfFile {
    /// Returns the share of memory that data of this file is reserved in.
    pub(super) fn share(&self) -> &Share {
        &self.share
    }

    /// Reserves memory for data that was read from the file.
    ///
    /// # Errors
    /// [`Error::Io`] of the kind `OutOfMemory`. A later attempt may succeed.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<Reservation> {
        reserve(&self.share, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        elf::testing::{Library, sparse},
        sys::budget::Budget,
    };

    #[test]
    fn entries_that_span_two_pieces_are_visited_once() {
        let size = 24;
        let count = 2 * PIECE / size + 5;
        let words: Vec<u8> = (0..count as u64)
            .flat_map(|i| [i, i, i])
            .flat_map(u64::to_ne_bytes)
            .chain([1, 2, 3])
            .collect();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&words, 100).unwrap();
        let content = Content { file: &file, start: 100, len: words.len() as u64 };
        let mut seen = 0;
        content
            .for_each_entry(size, |entry| {
                assert_eq!(entry, (seen as u64).to_ne_bytes().repeat(3));
                seen += 1;
                true
            })
            .unwrap();
        assert_eq!(seen, count);
        let mut seen = 0;
        content
            .for_each_entry(size, |_| {
                seen += 1;
                seen < 7
            })
            .unwrap();
        assert_eq!(seen, 7);
    }

    #[test]
    fn long_and_unterminated_strings_are_truncated() {
        let file = tempfile::tempfile().unwrap();
        let text = [b"short\0".to_vec(), vec![b'l'; 300], vec![0], vec![b'x'; 5000]].concat();
        file.write_all_at(&text, 0).unwrap();
        let content = Content { file: &file, start: 0, len: text.len() as u64 };
        assert_eq!(content.string(0).unwrap(), b"short");
        assert_eq!(content.string(2).unwrap(), b"ort");
        assert_eq!(content.string(6).unwrap(), [b'l'; 300]);
        assert_eq!(content.string(307).unwrap(), [b'x'; MAX_NAME]);
        assert_eq!(content.string(text.len() as u64 - 3).unwrap(), b"xxx");
        assert_eq!(content.string(text.len() as u64).unwrap(), b"");
        assert_eq!(content.string(u64::MAX), None);
    }

    #[test]
    fn section_beyond_the_share_of_its_tenant_is_not_read() {
        let library = Library::build(".data\n.space 1000\n", &[]);
        let budget = Budget::of(100_000);
        let open =
            || ElfFile::open_for(File::open(library.path()).unwrap(), &budget.share(&"t".into()));
        let elf = open().unwrap();
        let data = elf.section(".data").unwrap().data().unwrap();
        let held = budget.held();
        assert!(held > 1000 && data.len() == 1000);
        drop(data);
        assert_eq!(budget.held(), held - 1000);
        let mut other = Reservation::within(&budget.share(&"t".into()));
        assert!(other.reserve(50_000 - budget.held() - 999));
        let error = elf.section(".data").unwrap().data().unwrap_err();
        assert!(
            matches!(&error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::OutOfMemory),
            "{error}"
        );
        assert!(limited::take().contains_key(&("files", "t".into())));
        drop((elf, other));
        assert_eq!(budget.held(), 0);
    }

    /// Returns the peak memory of this process that is not shared, in bytes.
    fn peak() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
        let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kib << 10
    }

    /// The registry, four tracers and the sampler may read files at the same time.
    #[test]
    fn tables_at_the_maximum_size_take_little_memory_in_six_threads() {
        let file = sparse(&[".symtab", ".strtab", ".dynsym", ".dynstr", ".rela.dyn"], MAX_SECTION);
        // Other tests run in this process at the same time, so a child process measures.
        if std::env::var_os("JVMPROBE_TEST_PEAK").is_none() {
            let name = "tables_at_the_maximum_size_take_little_memory_in_six_threads";
            let status = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", &format!("elf::content::tests::{name}")])
                .env("JVMPROBE_TEST_PEAK", "1")
                .status();
            assert!(status.unwrap().success());
            return;
        }
        let before = peak();
        let budget = Budget::of(75 << 20);
        std::thread::scope(|threads| {
            for _ in 0..6 {
                threads.spawn(|| {
                    let elf =
                        ElfFile::open_for(file.try_clone().unwrap(), &budget.share(&"t".into()))
                            .unwrap();
                    let symbols = elf.symbols().unwrap();
                    assert!(symbols.find("nothing").is_none() && symbols.is_empty());
                    assert!(symbols.with_prefixes(&["_ZN", "gHotSpotVM"]).is_empty());
                    assert!(
                        elf.is_stripped().unwrap() && elf.dynamic_symbols().unwrap().is_empty()
                    );
                    let _ = (elf.relocations(), elf.exported_thread_local(&["variable"]));
                });
            }
        });
        let grown = peak() - before;
        assert!(grown < 20 << 20, "{grown}");
        assert_eq!(budget.held(), 0);
    }
}

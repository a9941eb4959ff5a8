//! ELF core dumps: memory segments, threads and mapped files.
//!
//! Sources: elf(5) and core(5); `elf_core_dump` and `fill_files_note` in Linux's fs/binfmt_elf.c; `struct
//! elf_prstatus` and `struct elf_prpsinfo` in include/linux/elfcore.h, with `struct user_regs_struct` of x86-64
//! (arch/x86/include/asm/user_64.h) or `struct user_pt_regs` of aarch64 (arch/arm64/include/uapi/asm/ptrace.h);
//! `linux_make_mappings_corefile_notes` in gdb's linux-tdep.c. A core dump may be truncated at any byte, because of
//! the limit `ulimit -c` or a full disk.

use std::{
    ffi::OsStr, fs::File, ops::Range, os::unix::ffi::OsStrExt, os::unix::fs::FileExt, path::PathBuf,
};

use crate::{
    Addr, FileOffset, Result,
    elf::{file::Machine, separate_debug_file::BuildId},
};

/// Maximum number of segments. The kernel's default limit is 65,530 mappings (sysctl vm.max_map_count).
const MAX_SEGMENTS: usize = 1 << 18;
/// Maximum number of threads.
const MAX_THREADS: usize = 1 << 17;
/// Maximum size in bytes of all notes that are read. A thread takes 336 bytes on x86-64, and 392 on aarch64.
const MAX_NOTES: u64 = 1 << 28;
/// Number of bytes that are added to the size of each note when [`MAX_NOTES`] is applied, because small notes
/// take time, too.
const NOTE_COST: u64 = 256;
/// Maximum size of a note in bytes. The kernel limits the list of mapped files to 4 MiB by default, and to 16 MiB at
/// most (sysctl kernel.core_file_note_size_limit).
const MAX_NOTE: u64 = 16 << 20;

/// Remedy for a truncated core file.
pub(crate) const TRUNCATED: &str =
    "raise the limit `ulimit -c` of the JVM, and check that the disk is not full";

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const ET_CORE: u16 = 4;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
/// Value of `e_phnum` if the number of program headers is in the first section header instead.
const PN_XNUM: u16 = 0xffff;

/// Name of the notes that are read, with its final NUL byte.
const CORE: &[u8] = b"CORE\0";
const NT_PRSTATUS: u32 = 1;
const NT_PRPSINFO: u32 = 3;
const NT_AUXV: u32 = 6;
const NT_FILE: u32 = 0x4649_4c45;
/// `AT_SYSINFO_EHDR`: address of the vDSO.
const AT_VDSO: u64 = 33;

/// A core dump of a process for this program's processor.
#[derive(Debug)]
pub(crate) struct CoreDump {
    file: File,
    /// Size of the file in bytes.
    pub(crate) size: u64,
    /// Size that the file would have if it were complete, according to its program headers.
    pub(crate) complete_size: u64,
    /// Memory segments, sorted by address, without overlap.
    segments: Vec<Segment>,
    /// Whether any writable segment was dumped.
    has_modified_memory: bool,
    /// PID and command name, if the core dump has them.
    pub(crate) process: Option<(u32, String)>,
    /// The signal that ended the process; `None` if it continued.
    pub(crate) signal: Option<u16>,
    /// The threads, in the order of the core dump. The first one received the signal.
    pub(crate) threads: Vec<CoreThread>,
    /// Mappings of files, sorted by address.
    pub(crate) files: Vec<FileMapping>,
    /// Address of the vDSO.
    pub(crate) vdso: Option<Addr>,
}

/// Memory segment of a core dump.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// First address.
    pub(crate) start: u64,
    /// End address, exclusive.
    pub(crate) end: u64,
    /// Offset in the core file of the byte at `start`.
    offset: u64,
    /// Number of bytes from `start` on that were dumped.
    dumped: u64,
    /// Whether it was writable.
    pub(crate) is_writable: bool,
    /// Whether it was executable.
    pub(crate) is_code: bool,
}

/// Where the byte at an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    /// In the core file: offset, and number of bytes there from the address on.
    Core(u64, u64),
    /// Not in the core file: number of bytes for which this is so, and what is known about them.
    Missing(u64, Missing),
}

/// Knowledge about memory that is not in the core file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    /// It is the same as in the mapped file.
    SameAsFile,
    /// It was never written, and is zero.
    Zero,
    /// Nothing is known about it.
    Unknown,
}

/// A thread of a core dump, with the registers that the stack walker needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CoreThread {
    /// Its thread ID, in the PID namespace of the process if the kernel wrote the dump.
    pub(crate) tid: u32,
    /// Address of its next instruction.
    pub(crate) ip: u64,
    /// Stack pointer.
    pub(crate) sp: u64,
    /// Frame pointer.
    pub(crate) fp: u64,
    /// Other registers, in the order of `struct registers` of bpf/walk/arch_*.h; 0 where that has none.
    pub(crate) others: [u64; OTHER_REGISTERS],
}

/// Number of other registers of a thread: `OTHER_REGISTERS` of bpf/walk/walk.h.
const OTHER_REGISTERS: usize = 6;

/// Positions of the registers of [`CoreThread`] in a note's `pr_reg`.
struct RegisterPositions {
    ip: usize,
    sp: usize,
    fp: usize,
    /// Position, and the bits that belong to the value.
    others: &'static [(usize, u64)],
}

/// rax, rbx, r13 and rdx, which have 64 bits.
const X86_64: RegisterPositions = RegisterPositions {
    ip: 16,
    sp: 19,
    fp: 4,
    others: &[(10, u64::MAX), (5, u64::MAX), (2, u64::MAX), (12, u64::MAX)],
};

/// x30, whose bits above the address may be a signature; x12, x22, x19, x13 and x20.
const AARCH64: RegisterPositions = RegisterPositions {
    ip: 32,
    sp: 31,
    fp: 29,
    others: &[
        (30, (1 << 48) - 1),
        (12, u64::MAX),
        (22, u64::MAX),
        (19, u64::MAX),
        (13, u64::MAX),
        (20, u64::MAX),
    ],
};

impl RegisterPositions {
    /// Returns those of a processor; `None` if they are not known.
    fn of(machine: Machine) -> Option<&'static Self> {
        machine.select(&X86_64, &AARCH64)
    }
}

/// A mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileMapping {
    /// First address.
    pub(crate) start: Addr,
    /// End address, exclusive.
    pub(crate) end: Addr,
    /// File offset of the byte at `start`.
    pub(crate) offset: FileOffset,
    /// Path in the file system of the process.
    pub(crate) path: PathBuf,
}

impl CoreDump {
    /// Reads headers and notes of a core file.
    ///
    /// # Errors
    /// The reason, for the user.
    pub(crate) fn open(file: File) -> Result<Self, String> {
        let meta = file.metadata().map_err(|e| format!("cannot read the core file: {e}"))?;
        if !meta.is_file() {
            return Err("not a regular file".into());
        }
        let size = meta.len();
        let mut header = [0; HEADER];
        let is_elf = file.read_exact_at(&mut header, 0).is_ok() && header.starts_with(b"\x7fELF");
        if !is_elf {
            return Err("not a core file: it is not an ELF file".into());
        }
        let machine = match (u16_at(&header, 16), u16_at(&header, 18)) {
            (Some(ET_CORE), Some(machine)) => Machine::from(machine),
            _ => return Err("not a core file, but another kind of ELF file".into()),
        };
        // 64 bits, little endian.
        if header[4..6] != [2, 1] || machine != Machine::NATIVE {
            let bits = if header[4] == 1 { ", 32 bits" } else { "" };
            let native = Machine::NATIVE;
            return Err(format!(
                "core file of a process for {machine}{bits}; this program reads those for {native} only"
            ));
        }
        let mut core = Self {
            file,
            size,
            complete_size: 0,
            segments: Vec::new(),
            has_modified_memory: false,
            process: None,
            signal: None,
            threads: Vec::new(),
            files: Vec::new(),
            vdso: None,
        };
        let notes = core.read_program_headers(&header)?;
        let mut budget = MAX_NOTES;
        for (offset, len) in notes {
            core.read_notes(offset, len, &mut budget);
        }
        core.files.sort_by_key(|mapping| mapping.start);
        Ok(core)
    }

    /// Reads the segments. Returns offset and size of the notes.
    fn read_program_headers(&mut self, header: &[u8; HEADER]) -> Result<Vec<(u64, u64)>, String> {
        let missing = || {
            let size = self.size;
            format!(
                "the core file is truncated after {size} bytes, within its program headers; {TRUNCATED}"
            )
        };
        let at = u64_at(header, 32).ok_or_else(missing)?;
        if u16_at(header, 54).map(usize::from) != Some(PROGRAM_HEADER) {
            return Err("malformed core file: its program headers have an unknown size".into());
        }
        let count = match u16_at(header, 56).ok_or_else(missing)? {
            PN_XNUM => {
                // `sh_info` of the first section header, which is at the end of the file.
                let section = u64_at(header, 40).filter(|&section| section > 0);
                let section = section.and_then(|section| self.bytes(section, 64));
                section.and_then(|section| u32_at(&section, 44)).ok_or_else(missing)? as usize
            }
            count => count.into(),
        };
        if count > MAX_SEGMENTS {
            return Err(format!(
                "malformed core file: {count} program headers, more than {MAX_SEGMENTS}"
            ));
        }
        let table = self.bytes(at, (count * PROGRAM_HEADER) as u64).ok_or_else(missing)?;
        let mut notes = Vec::new();
        for entry in table.chunks_exact(PROGRAM_HEADER) {
            let word = |at| u64_at(entry, at).unwrap_or(0);
            let (offset, start, dumped, len) = (word(8), word(16), word(32), word(40));
            let flags = u32_at(entry, 4).unwrap_or(0);
            self.complete_size = self.complete_size.max(offset.saturating_add(dumped));
            match u32_at(entry, 0) {
                Some(PT_NOTE) => notes.push((offset, dumped)),
                Some(PT_LOAD) => self.segments.push(Segment {
                    start,
                    end: start.saturating_add(len),
                    offset,
                    dumped: dumped.min(len),
                    is_writable: flags & PF_W != 0,
                    is_code: flags & PF_X != 0,
                }),
                _ => {}
            }
        }
        self.has_modified_memory =
            self.segments.iter().any(|segment| segment.is_writable && segment.dumped > 0);
        self.segments.sort_by_key(|segment| segment.start);
        // If segments overlap, which the kernel never writes, the one with the lower address is used.
        let mut end = 0;
        self.segments.retain(|segment| {
            let is_kept = segment.start >= end && segment.start < segment.end;
            end = if is_kept { segment.end } else { end };
            is_kept
        });
        Ok(notes)
    }

    /// Reads the notes in a part of the file. Subtracts their sizes from `budget`, and stops when it is used
    /// up. Also stops at the first malformed or truncated note.
    fn read_notes(&mut self, offset: u64, len: u64, budget: &mut u64) {
        let end = offset.saturating_add(len).min(self.size);
        let mut at = offset;
        while let Some(head) = self.bytes(at, 12).filter(|_| at < end) {
            let word = |at| u64::from(u32_at(&head, at).unwrap_or(0));
            let (name_len, len, kind) = (word(0), word(4), u32_at(&head, 8).unwrap_or(0));
            let name_at = at.saturating_add(12);
            let content = name_at.saturating_add(name_len.next_multiple_of(4));
            let is_wanted = matches!(kind, NT_PRSTATUS | NT_PRPSINFO | NT_AUXV | NT_FILE)
                && name_len == CORE.len() as u64
                && self.bytes(name_at, name_len).as_deref() == Some(CORE)
                && len <= MAX_NOTE;
            let cost = NOTE_COST + if is_wanted { len } else { 0 };
            let Some(rest) = budget.checked_sub(cost) else { break };
            *budget = rest;
            if is_wanted {
                let Some(content) = self.bytes(content, len) else { break };
                self.add_note(kind, &content);
            }
            at = content.saturating_add(len.next_multiple_of(4));
        }
    }

    fn add_note(&mut self, kind: u32, content: &[u8]) {
        match kind {
            NT_PRSTATUS if self.threads.len() < MAX_THREADS => {
                if self.threads.is_empty() {
                    // `pr_cursig`
                    self.signal = u16_at(content, 12).filter(|&signal| signal > 0);
                }
                let positions = RegisterPositions::of(Machine::NATIVE);
                self.threads.extend(positions.and_then(|positions| thread(content, positions)));
            }
            NT_PRPSINFO => self.process = process(content),
            NT_AUXV => self.vdso = vdso(content),
            NT_FILE => self.files = files(content).unwrap_or_default(),
            _ => {}
        }
    }

    /// Reads a part of the file; `None` if it is not there completely.
    fn bytes(&self, offset: u64, len: u64) -> Option<Vec<u8>> {
        offset.checked_add(len).filter(|&end| end <= self.size)?;
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        self.file.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }

    /// Returns whether bytes at the end of the file are missing.
    pub(crate) fn is_truncated(&self) -> bool {
        self.size < self.complete_size
    }

    /// Returns the segment that contains an address.
    pub(crate) fn segment(&self, addr: u64) -> Option<&Segment> {
        let behind = self.segments.partition_point(|segment| segment.start <= addr);
        self.segments.get(behind.checked_sub(1)?).filter(|segment| addr < segment.end)
    }

    /// Returns the parts of an address range that the file contains, ascending.
    pub(crate) fn dumped(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.segments.partition_point(|segment| segment.end <= range.start);
        let segments = self.segments.iter().skip(first);
        let segments = segments.take_while(move |segment| segment.start < range.end);
        segments.filter_map(move |segment| {
            let in_file = segment.dumped.min(self.size.saturating_sub(segment.offset));
            let end = segment.start.saturating_add(in_file).min(range.end);
            let start = segment.start.max(range.start);
            (start < end).then_some(start..end)
        })
    }

    fn location(&self, addr: u64) -> Location {
        let Some(segment) = self.segment(addr) else {
            let behind = self.segments.partition_point(|segment| segment.start <= addr);
            let next = self.segments.get(behind).map_or(u64::MAX, |segment| segment.start);
            // The kernel writes a program header for each mapping. Some versions of gdb write none for a
            // mapping whose memory they do not dump because it is the same as in the file.
            return Location::Missing(next - addr, Missing::SameAsFile);
        };
        let inside = addr - segment.start;
        let in_file = segment.dumped.min(self.size.saturating_sub(segment.offset));
        if inside < in_file {
            return Location::Core(segment.offset + inside, in_file - inside);
        }
        if inside < segment.dumped {
            // Truncated. Code is never modified, but read-only data may be, by relocation.
            let is_unmodified = segment.is_code && !segment.is_writable;
            let missing = if is_unmodified { Missing::SameAsFile } else { Missing::Unknown };
            return Location::Missing(segment.dumped - inside, missing);
        }
        // If bit 0 of coredump_filter is set, the kernel dumps a private mapping completely if any of its
        // pages was modified (`vma_dump_size`). So an anonymous mapping that was not dumped was never
        // written. If bit 0 is not set, the kernel dumps no private anonymous memory, and nothing is known
        // about such a mapping. If the core file contains no writable memory at all, bit 0 is assumed not to
        // be set.
        let is_anonymous = || {
            let before = self.files.partition_point(|mapping| mapping.end.0 <= segment.start);
            self.files.get(before).is_none_or(|mapping| mapping.start.0 >= segment.end)
        };
        let missing = match segment.is_writable {
            false => Missing::SameAsFile,
            true if segment.dumped == 0 && self.has_modified_memory && is_anonymous() => {
                Missing::Zero
            }
            true => Missing::Unknown,
        };
        Location::Missing(segment.end - addr, missing)
    }

    /// Fills `buf` with the memory at an address. `mapped` fills its buffer from the mapped file, for memory that was
    /// not dumped because it is the same as in that file. Returns `false` if a part cannot be read.
    pub(crate) fn read(
        &self,
        addr: u64,
        buf: &mut [u8],
        mapped: impl Fn(u64, &mut [u8]) -> bool,
    ) -> bool {
        let (mut at, mut rest) = (addr, buf);
        while !rest.is_empty() {
            let location = self.location(at);
            let (Location::Core(_, len) | Location::Missing(len, _)) = location;
            let len = usize::try_from(len).unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = rest.split_at_mut(len);
            let is_read = match location {
                Location::Core(offset, _) => self.file.read_exact_at(now, offset).is_ok(),
                Location::Missing(_, Missing::SameAsFile) => mapped(at, now),
                Location::Missing(_, Missing::Zero) => {
                    now.fill(0);
                    true
                }
                Location::Missing(_, Missing::Unknown) => false,
            };
            match at.checked_add(len as u64) {
                Some(next) if is_read && len > 0 => (at, rest) = (next, later),
                _ => return false,
            }
        }
        true
    }

    /// Returns the build ID of the ELF file whose first byte is mapped at an address; `None` if the core file does
    /// not contain it.
    pub(crate) fn build_id(&self, start: Addr) -> Option<BuildId> {
        /// Maximum number of program headers of a library.
        const MAX_HEADERS: u16 = 64;
        let read = |at: u64, len: usize| {
            let mut bytes = vec![0; len];
            self.read(at, &mut bytes, |_, _| false).then_some(bytes)
        };
        let header = read(start.0, HEADER).filter(|header| header.starts_with(b"\x7fELF"))?;
        let count = u16_at(&header, 56)?.min(MAX_HEADERS);
        let table = start.0.checked_add(u64_at(&header, 32)?)?;
        let table = read(table, usize::from(count) * PROGRAM_HEADER)?;
        let headers = || table.chunks_exact(PROGRAM_HEADER);
        let is = |entry: &&[u8], kind| u32_at(entry, 0) == Some(kind);
        let first = headers().find(|entry| is(entry, PT_LOAD) && u64_at(entry, 8) == Some(0))?;
        let bias = start.0.wrapping_sub(u64_at(first, 16)?);
        headers().filter(|entry| is(entry, PT_NOTE)).find_map(|entry| {
            let len = usize::try_from(u64_at(entry, 32)?).ok().filter(|&len| len <= 4096)?;
            BuildId::of_notes(&read(bias.wrapping_add(u64_at(entry, 16)?), len)?)
        })
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Decodes `struct elf_prstatus`: `pr_pid` and `pr_reg`.
fn thread(note: &[u8], positions: &RegisterPositions) -> Option<CoreThread> {
    let register = |index: usize| u64_at(note, 112 + 8 * index);
    let mut others = [0; OTHER_REGISTERS];
    for (to, (index, bits)) in others.iter_mut().zip(positions.others) {
        *to = register(*index)? & bits;
    }
    Some(CoreThread {
        tid: u32_at(note, 32)?,
        ip: register(positions.ip)?,
        sp: register(positions.sp)?,
        fp: register(positions.fp)?,
        others,
    })
}

/// Decodes `struct elf_prpsinfo`: `pr_pid` and `pr_fname`.
fn process(note: &[u8]) -> Option<(u32, String)> {
    let name = note.get(40..56)?.split(|&byte| byte == 0).next()?;
    Some((u32_at(note, 24)?, String::from_utf8_lossy(name).into_owned()))
}

fn vdso(note: &[u8]) -> Option<Addr> {
    let mut entries = note.chunks_exact(16);
    let entry = entries.find(|entry| u64_at(entry, 0) == Some(AT_VDSO))?;
    u64_at(entry, 8).map(Addr)
}

/// Decodes the list of mapped files: their number and the unit of offsets; for each one, the two addresses and the
/// offset; then the paths.
fn files(note: &[u8]) -> Option<Vec<FileMapping>> {
    let (count, unit) = (usize::try_from(u64_at(note, 0)?).ok()?, u64_at(note, 8)?);
    let names_at = count.checked_mul(24)?.checked_add(16)?;
    let entries = note.get(16..names_at)?.chunks_exact(24);
    let names = note.get(names_at..)?.split(|&byte| byte == 0);
    let mapping = |(entry, path): (&[u8], &[u8])| {
        let (start, end) = (u64_at(entry, 0)?, u64_at(entry, 8)?);
        let offset = u64_at(entry, 16)?.checked_mul(unit)?;
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        (start < end).then(|| FileMapping {
            start: Addr(start),
            end: Addr(end),
            offset: FileOffset(offset),
            path: OsStr::from_bytes(path).into(),
        })
    };
    Some(entries.zip(names).filter_map(mapping).collect())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    /// Number of bytes of header and program headers.
    const HEADERS: usize = HEADER + 5 * PROGRAM_HEADER;

    fn note(kind: u32, content: &[u8]) -> Vec<u8> {
        let head = [5, u32::try_from(content.len()).unwrap(), kind];
        let mut note: Vec<u8> = head.iter().flat_map(|n| n.to_le_bytes()).collect();
        note.extend_from_slice(b"CORE\0\0\0\0");
        note.extend_from_slice(content);
        note.resize(note.len().next_multiple_of(4), 0);
        note
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Makes a core file of a process with two threads. Its memory is one page of data, and one page of code
    /// of which nothing was dumped. The second half of a third segment is missing from the file, because the
    /// file is truncated. A fourth segment was never written.
    fn core() -> Vec<u8> {
        let machine = if Machine::NATIVE == Machine::Aarch64 { 183 } else { 62 };
        let thread = |tid: u32| {
            let mut status = vec![0; 112];
            status[32..36].copy_from_slice(&tid.to_le_bytes());
            status[12] = 11;
            status.extend(words(&(0..34).collect::<Vec<_>>()));
            note(NT_PRSTATUS, &status)
        };
        let mut process = vec![0; 136];
        process[24..28].copy_from_slice(&7_u32.to_le_bytes());
        process[40..44].copy_from_slice(b"java");
        let mut files = words(&[2, 4096, 0x2000, 0x3000, 1, 0x1000, 0x2000, 0]);
        files.extend_from_slice(b"/lib/a.so (deleted)\0/lib/a.so\0");
        let notes = [
            thread(7),
            note(NT_PRPSINFO, &process),
            note(NT_AUXV, &words(&[6, 4096, AT_VDSO, 0x5000])),
            note(NT_FILE, &files),
            thread(8),
        ]
        .concat();
        let mut core = b"\x7fELF\x02\x01\x01".to_vec();
        core.resize(HEADER, 0);
        core[16..20].copy_from_slice(&[4, 0, machine, 0]);
        core[32..40].copy_from_slice(&(HEADER as u64).to_le_bytes());
        core[54..58].copy_from_slice(&[PROGRAM_HEADER as u8, 0, 5, 0]);
        let memory = (HEADERS + notes.len()) as u64;
        for (kind, flags, offset, start, dumped, len) in [
            (PT_NOTE, 0, HEADERS as u64, 0, notes.len() as u64, 0),
            (PT_LOAD, 4 | PF_X, memory, 0x2000, 0, 0x1000),
            (PT_LOAD, 4 | PF_W, memory, 0x1000, 0x1000, 0x1000),
            (PT_LOAD, 4 | PF_W, memory + 0x1000, 0x3000, 0x2000, 0x2000),
            (PT_LOAD, 4 | PF_W, memory + 0x3000, 0x8000, 0, 0x1000),
        ] {
            core.extend_from_slice(&u64::to_le_bytes(u64::from(kind) | u64::from(flags) << 32));
            core.extend(words(&[offset, start, 0, dumped, len, 0x1000]));
        }
        core.extend(notes);
        core.extend([0xda; 0x1000]);
        core.extend([0xdb; 0x1000]);
        core
    }

    fn open(bytes: &[u8]) -> Result<CoreDump, String> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        CoreDump::open(file)
    }

    #[test]
    fn threads_files_and_memory_are_read() {
        let core = open(&core()).unwrap();
        assert_eq!(core.process, Some((7, "java".into())));
        assert_eq!(core.signal, Some(11));
        assert_eq!(core.threads.iter().map(|thread| thread.tid).collect::<Vec<_>>(), [7, 8]);
        let file = |start: u64, offset| FileMapping {
            start: Addr(start),
            end: Addr(start + 0x1000),
            offset: FileOffset(offset),
            path: "/lib/a.so".into(),
        };
        assert_eq!(core.files, [file(0x1000, 0), file(0x2000, 4096)]);
        assert_eq!(core.vdso, Some(Addr(0x5000)));
        assert!(core.is_truncated() && core.complete_size == core.size + 0x1000);
        // Data from the core file, code from the mapped file.
        let mapped = |addr: u64, to: &mut [u8]| {
            to.fill(0xcc);
            addr >= 0x2000
        };
        let mut bytes = [0; 16];
        assert!(core.read(0x1ff8, &mut bytes, mapped));
        assert_eq!(bytes, [[0xda; 8], [0xcc; 8]].concat()[..]);
        assert!(core.read(0x3ff0, &mut bytes, mapped) && bytes == [0xdb; 16]);
        assert!(core.read(0x8ff0, &mut bytes, mapped) && bytes == [0; 16]);
        // Data that was dumped but is truncated must not be replaced by that of the mapped file.
        assert!(!core.read(0x3ff8, &mut bytes, mapped));
        assert!(!core.read(0x1ff8, &mut bytes, |_, _| false));
        assert!(!core.read(u64::MAX - 4, &mut bytes, |_, _| true));
    }

    #[test]
    fn registers_of_each_processor_are_read() {
        let mut status = [vec![0; 112], words(&(0..34).collect::<Vec<_>>())].concat();
        status[112 + 8 * 30 + 6] = 0x5a;
        let of = |machine| thread(&status, RegisterPositions::of(machine).unwrap()).unwrap();
        let x86_64 = CoreThread { tid: 0, ip: 16, sp: 19, fp: 4, others: [10, 5, 2, 12, 0, 0] };
        assert_eq!(of(Machine::X86_64), x86_64);
        let aarch64 =
            CoreThread { tid: 0, ip: 32, sp: 31, fp: 29, others: [30, 12, 22, 19, 13, 20] };
        assert_eq!(of(Machine::Aarch64), aarch64);
        assert_eq!(thread(&status[..112 + 8 * 31], &AARCH64), None);
    }

    #[test]
    fn errors_say_what_the_file_is() {
        let error = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = core();
            change(&mut bytes);
            open(&bytes).unwrap_err()
        };
        assert!(error(&|bytes| bytes[0] = 0).contains("not an ELF file"));
        assert!(error(&|bytes| bytes[16] = 3).contains("another kind of ELF file"));
        assert!(error(&|bytes| bytes[18] = 40).contains("for 32-bit Arm; this program reads"));
        assert!(error(&|bytes| bytes[18..20].fill(0xff)).contains("for machine 65535"));
        assert!(error(&|bytes| bytes[4] = 1).contains("32 bits"));
        assert!(error(&|bytes| bytes.truncate(HEADERS - 1)).contains("truncated after 343 bytes"));
        assert!(error(&|bytes| bytes[56..58].fill(0xff)).contains("truncated"));
    }

    #[test]
    fn number_of_many_segments_is_in_the_first_section() {
        let mut bytes = core();
        let section = bytes.len();
        bytes[40..48].copy_from_slice(&(section as u64).to_le_bytes());
        bytes[56..58].fill(0xff);
        bytes.resize(section + 64, 0);
        bytes[section + 44] = 5;
        assert_eq!(open(&bytes).unwrap().threads.len(), 2);
        bytes[section + 47] = 1;
        assert!(open(&bytes).unwrap_err().contains("16777221 program headers"));
    }

    proptest! {
        #[test]
        fn hostile_core_files_do_not_panic(
            damage in prop::collection::vec((0..1024_usize, any::<u8>()), 0..12),
            len in 0..9000_usize,
            addr in any::<u64>(),
        ) {
            let mut bytes = core();
            for (at, value) in damage {
                bytes[at] = value;
            }
            bytes.truncate(len);
            if let Ok(core) = open(&bytes) {
                for addr in [addr, 0x1000, 0x2ff8, u64::MAX] {
                    core.read(addr, &mut [0; 64], |_, _| true);
                    core.build_id(Addr(addr));
                    core.segment(addr);
                }
                prop_assert!(core.files.iter().all(|mapping| mapping.start < mapping.end));
            }
        }
    }
}

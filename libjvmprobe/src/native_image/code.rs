//! Code table of a native image. It has an entry for the start of each method, for each call and for the
//! start of each 256-byte chunk of code, in ascending order of addresses. An index refers to the entries of
//! the chunks.
//!
//! Format of an entry: flags and the distance to the next entry (0 in the last one). Then follow, as indicated by the
//! flags: frame size, exception handler, reference map, and frame information (`CodeInfoDecoder`).

use std::ops::Range;

use crate::{
    Vaddr,
    native_image::{
        heap::Heap,
        locate::{CodeTables, GRANULARITY},
    },
};

/// Sizes in bytes of the four parts of an entry. For each part, two bits of the flags are the index of its
/// size.
const SIZES: [[usize; 4]; 4] = [[0, 1, 2, 4], [0, 1, 2, 4], [0, 0, 2, 4], [0, 4, 4, 4]];
/// Flag bits in a frame size.
const METHOD_START: i32 = 1;
const ENTRY_POINT: i32 = 2;
const SAVES_REGISTERS: i32 = 4;
const STATUS: i32 = 7;
/// Kind of frame information that applies to any address in its method.
const DEFAULT: u8 = 3;
/// Maximum number of 256-byte chunks that are searched for the frame information of one method. A chunk whose
/// start is the return address of a call has no such information.
const MAX_CHUNKS: usize = 64;

/// A method: a range of code with a constant frame size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Method {
    /// First address.
    pub(crate) start: Vaddr,
    /// End address, exclusive.
    pub(crate) end: Vaddr,
    /// Size of its frame including the return address, in words of 8 bytes.
    pub(crate) frame_words: u16,
    /// Whether it is called by C code or at arbitrary points of other methods. In both cases, it saves all
    /// registers that it changes, the frame pointer first.
    pub(crate) saves_fp: bool,
}

/// Start of a method, as an offset in the code.
#[derive(Debug)]
struct Start {
    at: u32,
    frame_words: u16,
    saves_fp: bool,
}

/// The code table.
#[derive(Debug)]
pub(super) struct Table {
    index: Range<usize>,
    entries: Range<usize>,
    code_size: u64,
    starts: Vec<Start>,
    /// Offsets of all frame information, sorted, without duplicates.
    infos: Vec<u32>,
}

/// An entry of the table.
struct Entry {
    /// Distance to the next entry in bytes of code; 0 for the last one.
    distance: u8,
    /// Frame size with flag bits, if present.
    size: Option<i32>,
    /// Kind and offset of the frame information, if present.
    info: Option<(u8, u32)>,
    /// Position of the next entry.
    next: usize,
}

impl Table {
    /// Reads all entries, and checks them against the index.
    pub(super) fn read(heap: &Heap, tables: &CodeTables) -> Option<Self> {
        let index = heap.elements(tables.index, 1)?;
        let entries = heap.elements(tables.entries, 1)?;
        let code_size = tables.code_size;
        let mut table = Self { index, entries, code_size, starts: Vec::new(), infos: Vec::new() };
        let (mut at, mut position, mut chunk) = (0_u64, table.entries.start, 0);
        loop {
            if at % GRANULARITY == 0 {
                (table.chunk(heap, chunk)? == position).then_some(())?;
                chunk += 1;
            }
            let entry = table.entry(heap, position)?;
            if let Some(size) = entry.size.filter(|size| size & METHOD_START != 0) {
                let words = u16::try_from((size & !STATUS) / 8).ok().filter(|&words| words > 0)?;
                table.starts.push(Start {
                    at: u32::try_from(at).ok()?,
                    frame_words: words,
                    saves_fp: size & (ENTRY_POINT | SAVES_REGISTERS) != 0,
                });
            }
            table.starts.first()?;
            table.infos.extend(entry.info.map(|(_, info)| info));
            if entry.distance == 0 {
                break;
            }
            let next = at + u64::from(entry.distance);
            // Each 256-byte chunk has an entry at its start, and no entry is beyond the code.
            (next < code_size && next / GRANULARITY <= at / GRANULARITY + 1).then_some(())?;
            (next % GRANULARITY == 0 || next / GRANULARITY == at / GRANULARITY).then_some(())?;
            (at, position) = (next, entry.next);
        }
        table.infos.sort_unstable();
        table.infos.dedup();
        (chunk == table.index.len() / 4).then_some(table)
    }

    /// Returns the position of the first entry of a 256-byte chunk of code.
    fn chunk(&self, heap: &Heap, chunk: usize) -> Option<usize> {
        let at = chunk.checked_mul(4).and_then(|at| self.index.start.checked_add(at))?;
        (at < self.index.end).then_some(())?;
        let position = self.entries.start.checked_add(usize::try_from(heap.u32(at)?).ok()?)?;
        (position < self.entries.end).then_some(position)
    }

    fn entry(&self, heap: &Heap, position: usize) -> Option<Entry> {
        let bytes = heap.bytes(position..self.entries.end)?;
        let (&flags, &distance) = (bytes.first()?, bytes.get(1)?);
        let part = |number: usize| SIZES[number][usize::from(flags >> (2 * number) & 3)];
        let info_at = 2 + part(0) + part(1) + part(2);
        let size = match (part(0), bytes.get(2..)?) {
            (1, [a, ..]) => Some(i8::from_le_bytes([*a]).into()),
            (2, [a, b, ..]) => Some(i16::from_le_bytes([*a, *b]).into()),
            (4, [a, b, c, d, ..]) => Some(i32::from_le_bytes([*a, *b, *c, *d])),
            (0, _) => None,
            _ => return None,
        };
        let info = match part(3) {
            0 => None,
            _ => {
                let bytes = bytes.get(info_at..info_at + 4)?;
                Some((flags >> 6, u32::from_le_bytes(bytes.try_into().ok()?)))
            }
        };
        Some(Entry { distance, size, info, next: position + info_at + part(3) })
    }

    /// Returns all methods, for code that begins at `code`.
    pub(super) fn methods(&self, code: Vaddr) -> impl Iterator<Item = Method> + '_ {
        let ends = self.starts.iter().skip(1).map(|start| u64::from(start.at));
        let ends = ends.chain([self.code_size]);
        self.starts.iter().zip(ends).map(move |(start, end)| Method {
            start: Vaddr(code.0.wrapping_add(start.at.into())),
            end: Vaddr(code.0.wrapping_add(end)),
            frame_words: start.frame_words,
            saves_fp: start.saves_fp,
        })
    }

    /// Returns the offset of the frame information for an offset in the code. For a call, `inside` is one byte before
    /// the return address.
    pub(super) fn frame_info(&self, heap: &Heap, inside: u64) -> Option<u32> {
        (inside < self.code_size).then_some(())?;
        let first = usize::try_from(inside / GRANULARITY).ok()?;
        // A chunk whose start is the return address of a call has no frame information of its method, so
        // preceding chunks are searched, too.
        for chunk in (0..=first).rev().take(MAX_CHUNKS) {
            let (mut at, mut position) = (chunk as u64 * GRANULARITY, self.chunk(heap, chunk)?);
            let mut method = None;
            while at <= inside + 1 {
                let entry = self.entry(heap, position)?;
                match entry.info {
                    Some((DEFAULT, info)) if at <= inside => method = Some(info),
                    Some((kind, info)) if kind != DEFAULT && at == inside + 1 => return Some(info),
                    _ => {}
                }
                if entry.distance == 0 {
                    break;
                }
                at += u64::from(entry.distance);
                position = entry.next;
            }
            if method.is_some() {
                return method;
            }
        }
        None
    }

    /// Returns the offsets of all frame information, ascending.
    pub(super) fn infos(&self) -> &[u32] {
        &self.infos
    }
}

//! What a native image's table says of its code: entries by ascending addresses, for the
//! beginnings of methods, for calls, and for each 256 bytes of code, which an index leads to.
//!
//! An entry: flags, the distance to the next entry (0 in the last), then, as the flags say, the
//! size of the frame, an exception handler, a reference map, and what frames are here
//! (`CodeInfoDecoder`).

use std::ops::Range;

use crate::{
    Vaddr,
    image::{
        found::{Found, GRANULARITY},
        heap::Heap,
    },
};

/// Of how many bytes the parts are, by two bits of the flags each.
const SIZES: [[usize; 4]; 4] = [[0, 1, 2, 4], [0, 1, 2, 4], [0, 0, 2, 4], [0, 4, 4, 4]];
/// Bits of a frame's size that say something else.
const METHOD_START: i32 = 1;
const ENTRY_POINT: i32 = 2;
const SAVES_REGISTERS: i32 = 4;
const STATUS: i32 = 7;
/// The frame is its method's, wherever in it the address is.
const DEFAULT: u8 = 3;
/// So many pieces of 256 bytes that begin right behind a call do not follow each other.
const MAX_CHUNKS: usize = 64;

/// A method: a range of code that has frames of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Method {
    /// Its first address.
    pub(crate) start: Vaddr,
    /// The first address behind it.
    pub(crate) end: Vaddr,
    /// Its frame with the return address, in words.
    pub(crate) frame_words: u16,
    /// It is called by C code or at any place of a method: so it saves what it changes, and the
    /// frame pointer before all.
    pub(crate) saves_fp: bool,
}

/// A method, by its place in the code.
#[derive(Debug)]
struct Start {
    at: u32,
    frame_words: u16,
    saves_fp: bool,
}

/// The table.
#[derive(Debug)]
pub(super) struct Table {
    index: Range<usize>,
    entries: Range<usize>,
    code_size: u64,
    starts: Vec<Start>,
    /// The places of all that is said of frames, each once.
    infos: Vec<u32>,
}

/// One entry.
struct Entry {
    /// How far it is to the next; 0 for the last.
    distance: u8,
    /// A frame's size with what else its bits say, where it changes.
    size: Option<i32>,
    /// Where it is said which frames are here, and in which way.
    info: Option<(u8, u32)>,
    /// Where the next one is.
    next: usize,
}

impl Table {
    /// Reads all entries, and checks them against the index.
    pub(super) fn read(heap: &Heap, found: &Found) -> Option<Self> {
        let index = heap.elements(found.index, 1)?;
        let entries = heap.elements(found.entries, 1)?;
        let code_size = found.code_size;
        let mut table = Self { index, entries, code_size, starts: Vec::new(), infos: Vec::new() };
        let (mut at, mut place, mut chunk) = (0_u64, table.entries.start, 0);
        loop {
            if at % GRANULARITY == 0 {
                (table.chunk(heap, chunk)? == place).then_some(())?;
                chunk += 1;
            }
            let entry = table.entry(heap, place)?;
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
            // Each 256 bytes have an entry, and none is behind the code.
            (next < code_size && next / GRANULARITY <= at / GRANULARITY + 1).then_some(())?;
            (next % GRANULARITY == 0 || next / GRANULARITY == at / GRANULARITY).then_some(())?;
            (at, place) = (next, entry.next);
        }
        table.infos.sort_unstable();
        table.infos.dedup();
        (chunk == table.index.len() / 4).then_some(table)
    }

    /// Where the entries of 256 bytes of code begin.
    fn chunk(&self, heap: &Heap, chunk: usize) -> Option<usize> {
        let at = chunk.checked_mul(4).and_then(|at| self.index.start.checked_add(at))?;
        (at < self.index.end).then_some(())?;
        let place = self.entries.start.checked_add(usize::try_from(heap.u32(at)?).ok()?)?;
        (place < self.entries.end).then_some(place)
    }

    fn entry(&self, heap: &Heap, place: usize) -> Option<Entry> {
        let bytes = heap.bytes(place..self.entries.end)?;
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
        Some(Entry { distance, size, info, next: place + info_at + part(3) })
    }

    /// The methods of code that begins there.
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

    /// Where it is said which frames are at a place of the code. That of a call is one byte
    /// before the address that it returns to.
    pub(super) fn frame_info(&self, heap: &Heap, inside: u64) -> Option<u32> {
        (inside < self.code_size).then_some(())?;
        let first = usize::try_from(inside / GRANULARITY).ok()?;
        // A piece of code that begins behind a call has none that is its method's.
        for chunk in (0..=first).rev().take(MAX_CHUNKS) {
            let (mut at, mut place) = (chunk as u64 * GRANULARITY, self.chunk(heap, chunk)?);
            let mut method = None;
            while at <= inside + 1 {
                let entry = self.entry(heap, place)?;
                match entry.info {
                    Some((DEFAULT, info)) if at <= inside => method = Some(info),
                    Some((kind, info)) if kind != DEFAULT && at == inside + 1 => return Some(info),
                    _ => {}
                }
                if entry.distance == 0 {
                    break;
                }
                at += u64::from(entry.distance);
                place = entry.next;
            }
            if method.is_some() {
                return method;
            }
        }
        None
    }

    /// The places of all that is said of frames, ascending.
    pub(super) fn infos(&self) -> &[u32] {
        &self.infos
    }
}

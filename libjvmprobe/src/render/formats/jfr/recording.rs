//! Writes a recording as a stream of chunks. Each chunk can be read on its own: it contains a header, events, their
//! constants, and the types.
//!
//! Source: hotspot/share/jfr/recorder/repository/jfrChunkWriter.cpp, jdk.jfr.internal.consumer.ChunkHeader.

use std::{
    collections::HashSet,
    io::{self, Write},
};

use super::{encode::Buffer, facts::Fact, metadata, pauses::Numbers, pools::Pools, types::Type};

/// Size of a chunk's header in bytes.
const HEADER: usize = 68;

/// Number of bytes of events and constants after which a chunk is written. A chunk is in memory until then, because its
/// header contains positions and times that are only known at its end.
const CHUNK: usize = 8 << 20;

/// Ticks per second: a tick is a nanosecond since 1970.
const TICKS: u64 = 1_000_000_000;

/// A recording that is being written.
#[derive(Debug)]
pub struct Recording<W> {
    to: W,
    /// Events of the current chunk.
    events: Buffer,
    /// Constants of the current chunk. The keys of constants change with each chunk.
    pub(super) pools: Pools,
    /// Number of the current chunk.
    pub(super) chunk: u64,
    /// Begin of the first event and end of the last one in the current chunk, in nanoseconds since 1970.
    span: Option<(u64, u64)>,
    /// Numbers of collections and safepoints.
    pub(super) numbers: Numbers,
    /// Processes whose JVMs are described.
    pub(super) jvms: HashSet<u32>,
    /// Facts that the current chunk is still missing, with their times in nanoseconds since 1970.
    pub(super) facts: Vec<(u64, Fact)>,
}

impl<W: Write> Recording<W> {
    /// Begins a recording.
    pub fn new(to: W) -> Self {
        Self {
            to,
            events: Buffer::default(),
            pools: Pools::default(),
            chunk: 0,
            span: None,
            numbers: Numbers::default(),
            jvms: HashSet::new(),
            facts: Vec::new(),
        }
    }

    /// Adds an event. `values` encodes the fields behind `startTime`, with keys of the current chunk.
    ///
    /// `start_ns` and `end_ns` are in nanoseconds since 1970.
    pub(super) fn event(
        &mut self,
        of: &Type,
        span: (u64, u64),
        values: impl FnOnce(&mut Pools, &mut Buffer),
    ) -> io::Result<()> {
        self.append(of, span, values);
        if self.events.len() + self.pools.size() >= CHUNK { self.flush(false) } else { Ok(()) }
    }

    /// Adds an event to the current chunk, however long it is.
    pub(super) fn append(
        &mut self,
        of: &Type,
        (start_ns, end_ns): (u64, u64),
        values: impl FnOnce(&mut Pools, &mut Buffer),
    ) {
        let pools = &mut self.pools;
        self.events.event(|to| {
            to.number(of.id.0);
            to.number(start_ns);
            values(pools, to);
        });
        let (first, last) = self.span.unwrap_or((start_ns, end_ns));
        self.span = Some((first.min(start_ns), last.max(end_ns)));
    }

    /// Writes the current chunk, if it has events, and begins a new one.
    fn flush(&mut self, is_last: bool) -> io::Result<()> {
        self.add_facts();
        let Some((start, end)) = self.span.take() else { return Ok(()) };
        let mut constants = Buffer::default();
        std::mem::take(&mut self.pools).write(start, &mut constants);
        let mut types = Buffer::default();
        metadata::write(start, &mut types);
        let constants_at = HEADER + self.events.len();
        let types_at = constants_at + constants.len();
        let mut header = Buffer::default();
        // Magic number and version: 2.1.
        header.raw(b"FLR\0\0\x02\0\x01");
        header.word((types_at + types.len()) as u64);
        header.word(constants_at as u64);
        header.word(types_at as u64);
        header.word(start);
        header.word(end.saturating_sub(start));
        header.word(start);
        header.word(TICKS);
        // State of the file: complete. Two bytes are unused. Flags: compressed integers, last chunk.
        header.raw(&[0, 0, 0, 1 | u8::from(is_last) << 1]);
        for part in [&header, &self.events, &constants, &types] {
            self.to.write_all(part.bytes())?;
        }
        self.events.clear();
        self.chunk += 1;
        Ok(())
    }

    /// Returns whether the recording has events. Without one, nothing is written, and readers reject the empty file.
    pub(super) fn has_events(&self) -> bool {
        self.chunk > 0 || self.span.is_some()
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush(true)?;
        self.to.flush()
    }
}

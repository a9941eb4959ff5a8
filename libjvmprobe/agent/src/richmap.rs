//! The records of the agent's map: the file in which the agent describes the JVM's
//! generated code, including inlined methods and lines.
//!
//! The map's format is the agent's own. It is text with one record per line and
//! TAB between fields. All numbers are hexadecimal without 0x:
//!
//! - `L ADDRESS SIZE` and a frame: a method was compiled; LINE of the frame is the method's first line
//! - `I START END` and one or more frames, the innermost first: the code from
//!   address START up to, but not including, END; it belongs to the method in the
//!   last `L`, and the frames are the methods, inlined into each other, from which
//!   it was compiled
//! - `D ADDRESS SIZE NAME`: generated code that is not a method
//!
//! A frame has five fields: CLASS METHOD SIGNATURE FILE LINE, each empty if the
//! JVM does not provide it. If the frames or ranges of a method exceed the
//! buffer's limits, the outermost frames or the last ranges are left out.

use crate::buffer::Buffer;
use crate::inline::{Chain, Pc, Range, ranges};
use crate::jvmti::MethodId;
use crate::names::Methods;

/// Address range of code.
#[derive(Clone, Copy)]
pub struct Code {
    /// Address of the first byte.
    pub start: usize,
    /// Number of bytes.
    pub size: usize,
}

/// Writes a `D` record: generated code that is not a method.
pub fn dynamic(out: &mut Buffer, code: Code, name: &[u8]) {
    if out.begin() {
        out.byte(b'D');
        write_range(out, code);
        out.byte(b'\t');
        out.name(name.iter().copied());
        out.end();
    }
}

/// Writes an `L` record and its `I` records: a method was compiled.
pub fn loaded(out: &mut Buffer, methods: &mut Methods, id: MethodId, code: Code, pcs: &[Pc]) {
    if out.begin() {
        out.byte(b'L');
        write_range(out, code);
        frame(out, methods, id, None);
        out.end();
        let end = code.start.saturating_add(code.size);
        InlineRecords { out, methods }.add_merged(ranges(pcs, code.start, end));
    }
}

fn write_range(out: &mut Buffer, code: Code) {
    out.field(code.start as u64);
    out.field(code.size as u64);
}

fn frame(out: &mut Buffer, methods: &mut Methods, id: MethodId, bci: Option<i32>) {
    methods.with(id, |method| {
        out.byte(b'\t');
        out.name(method.class());
        out.byte(b'\t');
        out.name(method.name.bytes().iter().copied());
        out.byte(b'\t');
        out.name(method.signature.bytes().iter().copied());
        out.byte(b'\t');
        out.name(method.file());
        out.byte(b'\t');
        if let Some(line) = method.line(bci) {
            out.hex(line);
        }
    });
}

/// Writes `I` records.
struct InlineRecords<'a> {
    out: &'a mut Buffer,
    methods: &'a mut Methods,
}

impl InlineRecords<'_> {
    /// Writes the ranges. Adjacent ranges with the same methods and lines become one record.
    fn add_merged<'a>(&mut self, ranges: impl Iterator<Item = Range<'a>>) {
        let mut pending: Option<Range<'_>> = None;
        for range in ranges {
            if let Some(last) = &mut pending
                && last.end == range.start
                && self.is_same(last.chain, range.chain)
            {
                last.end = range.end;
            } else if let Some(last) = pending.replace(range) {
                self.add(last);
            }
        }
        if let Some(last) = pending {
            self.add(last);
        }
    }

    /// Whether the chains have the same methods and lines.
    fn is_same(&mut self, one: Chain<'_>, other: Chain<'_>) -> bool {
        one.methods == other.methods
            && one.frames().zip(other.frames()).all(|((id, here), (_, there))| {
                here == there
                    || self
                        .methods
                        .with(id, |method| method.line(Some(here)) == method.line(Some(there)))
            })
    }

    /// Writes one record.
    fn add(&mut self, range: Range<'_>) {
        if !self.out.begin() {
            return;
        }
        self.out.byte(b'I');
        self.out.field(range.start as u64);
        self.out.field(range.end as u64);
        for (id, bci) in range.chain.frames() {
            let before = self.out.len();
            frame(self.out, self.methods, id, Some(bci));
            if self.out.is_truncated() {
                self.out.rewind(before);
                break;
            }
        }
        self.out.end();
    }
}

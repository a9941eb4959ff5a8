//! The records of the rich map.
//!
//! What is known here: the map's format, which is the agent's own. It is text,
//! one record a line, fields set apart by TAB, all numbers hexadecimal without
//! 0x, times those of `CLOCK_MONOTONIC` in nanoseconds:
//!
//! - `J 1 PID`: the agent was loaded; format version, process as it sees itself
//! - `L TIME ADDRESS SIZE` and a frame: a method was compiled; its first line
//! - `I START END` and one or more frames, the innermost first: what a part of
//!   the method in the last `L` was compiled from
//! - `D TIME ADDRESS SIZE NAME`: code that is no method
//! - `U TIME ADDRESS`: a method's code is gone
//! - `E TIME`: all code that was there before the agent has been written down
//!
//! A frame is five fields: CLASS METHOD SIGNATURE FILE LINE, empty where the
//! JVM does not know. If a method has more frames or ranges than there is room
//! for, the outermost frames or the last ranges are left out.

use crate::buffer::Buffer;
use crate::inline::{Chain, Pc, Range, Sink, merge, ranges};
use crate::jvmti::MethodId;
use crate::names::Methods;
use crate::options::ClassStyle;
use crate::sys;

/// A piece of code.
#[derive(Clone, Copy)]
pub struct Code {
    /// Its first address.
    pub start: usize,
    /// How many bytes it has.
    pub size: usize,
}

/// The agent was loaded.
pub fn header(out: &mut Buffer) {
    if out.begin() {
        out.text(b"J\t1");
        out.field(sys::pid());
        out.end();
    }
}

/// The snapshot is complete.
pub fn complete(out: &mut Buffer) {
    if out.begin() {
        out.byte(b'E');
        out.field(sys::nanoseconds());
        out.end();
    }
}

/// A method's code is gone.
pub fn unloaded(out: &mut Buffer, start: usize) {
    if out.begin() {
        out.byte(b'U');
        out.field(sys::nanoseconds());
        out.field(start as u64);
        out.end();
    }
}

/// There is code that is no method.
pub fn dynamic(out: &mut Buffer, code: Code, name: &[u8]) {
    if out.begin() {
        out.byte(b'D');
        place(out, code);
        out.byte(b'\t');
        out.name(name.iter().copied());
        out.end();
    }
}

/// A method was compiled.
pub fn loaded(out: &mut Buffer, methods: &mut Methods, id: MethodId, code: Code, pcs: &[Pc]) {
    if out.begin() {
        out.byte(b'L');
        place(out, code);
        frame(out, methods, id, None);
        out.end();
        let mut sink = RichSink { out, methods };
        merge(ranges(pcs, code.start, code.start.saturating_add(code.size)), &mut sink);
    }
}

fn place(out: &mut Buffer, code: Code) {
    out.field(sys::nanoseconds());
    out.field(code.start as u64);
    out.field(code.size as u64);
}

fn frame(out: &mut Buffer, methods: &mut Methods, id: MethodId, bci: Option<i32>) {
    methods.with(id, |method| {
        out.byte(b'\t');
        out.name(method.class(ClassStyle::Dotted));
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
struct RichSink<'a> {
    out: &'a mut Buffer,
    methods: &'a mut Methods,
}

impl Sink for RichSink<'_> {
    fn is_same(&mut self, one: Chain<'_>, other: Chain<'_>) -> bool {
        one.methods == other.methods
            && one.frames().zip(other.frames()).all(|((id, here), (_, there))| {
                here == there
                    || self
                        .methods
                        .with(id, |method| method.line(Some(here)) == method.line(Some(there)))
            })
    }

    fn take(&mut self, range: Range<'_>) {
        if !self.out.begin() {
            return;
        }
        self.out.byte(b'I');
        self.out.field(range.start as u64);
        self.out.field(range.end as u64);
        for (id, bci) in range.chain.frames() {
            let before = self.out.len();
            frame(self.out, self.methods, id, Some(bci));
            if self.out.is_over() {
                self.out.rewind(before);
                break;
            }
        }
        self.out.end();
    }
}

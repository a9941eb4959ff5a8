//! The lines of a perf map.
//!
//! The format of `/tmp/perf-PID.map`, lines of `START SIZE NAME` with
//! hexadecimal numbers, comes from the Linux kernel's
//! `tools/perf/Documentation/jit-interface.txt`. The options (see `options.rs`)
//! determine the form of the names. Entries of one method never overlap, and
//! together they cover all of its code.

use crate::buffer::{Buffer, MAX_NAME};
use crate::inline::{Chain, Pc, Range, RangeSink, merge, ranges};
use crate::jvmti::MethodId;
use crate::names::Methods;
use crate::options::{Style, Unfold};
use crate::richmap::Code;

/// Writes an entry for generated code that is not a method.
pub fn dynamic(out: &mut Buffer, code: Code, name: &[u8]) {
    if out.begin() {
        write_address_and_size(out, code);
        out.name(name.iter().copied());
        out.end();
    }
}

/// Writes the entries of a compiled method.
pub fn loaded(
    out: &mut Buffer,
    methods: &mut Methods,
    id: MethodId,
    code: Code,
    pcs: &[Pc],
    style: Style,
) {
    let end = code.start.saturating_add(code.size);
    let mut sink = PerfSink { out, methods, style, id, at: code.start };
    if style.unfold != Unfold::None {
        merge(ranges(pcs, code.start, end), &mut sink);
    }
    sink.write_own_entry(end);
}

fn write_address_and_size(out: &mut Buffer, code: Code) {
    out.hex(code.start as u64);
    out.byte(b' ');
    out.hex(code.size as u64);
    out.byte(b' ');
    out.limit_rest(MAX_NAME);
}

/// Writes the entries of one method.
struct PerfSink<'a> {
    out: &'a mut Buffer,
    methods: &'a mut Methods,
    style: Style,
    id: MethodId,
    at: usize,
}

impl PerfSink<'_> {
    /// Writes an entry with the method's own name for the code from the last entry up to `end`.
    fn write_own_entry(&mut self, end: usize) {
        if end > self.at && self.out.begin() {
            write_address_and_size(self.out, Code { start: self.at, size: end - self.at });
            self.name(self.id, None, false);
            self.out.end();
        }
        self.at = end;
    }

    fn name(&mut self, id: MethodId, bci: Option<i32>, inlined: bool) {
        let (out, style) = (&mut *self.out, self.style);
        self.methods.with(id, |method| {
            out.name(method.class(style.class));
            out.text(b"::");
            out.name(method.name.bytes().iter().copied());
            if style.signature {
                out.name(method.signature.bytes().iter().copied());
            }
            if style.source
                && let Some(line) = method.line(bci)
            {
                out.byte(b'(');
                out.name(method.file());
                out.byte(b':');
                out.decimal(line);
                out.byte(b')');
            }
        });
        if style.annotate {
            out.text(if inlined { b"_[i]" } else { b"_[j]" });
        }
    }

    /// Returns the number of frames of a chain that the name contains.
    fn depth(&self, chain: Chain<'_>) -> usize {
        if self.style.unfold == Unfold::All { chain.methods.len() } else { 1 }
    }
}

impl RangeSink for PerfSink<'_> {
    fn is_same(&mut self, one: Chain<'_>, other: Chain<'_>) -> bool {
        let depth = self.depth(one);
        if depth != self.depth(other) || (one.methods.len() > 1) != (other.methods.len() > 1) {
            return false;
        }
        let source = self.style.source;
        one.frames().zip(other.frames()).take(depth).all(|((id, here), (other, there))| {
            id == other
                && (!source
                    || here == there
                    || self
                        .methods
                        .with(id, |method| method.line(Some(here)) == method.line(Some(there))))
        })
    }

    fn add(&mut self, range: Range<'_>) {
        self.write_own_entry(range.start);
        if !self.out.begin() {
            return;
        }
        write_address_and_size(
            self.out,
            Code { start: range.start, size: range.end - range.start },
        );
        let depth = self.depth(range.chain);
        let outermost = range.chain.methods.len() - 1;
        for (at, (id, bci)) in range.chain.frames().take(depth).enumerate() {
            if at > 0 {
                self.out.text(b" in ");
            }
            self.name(id, Some(bci), at < outermost);
        }
        self.out.end();
        self.at = range.end;
    }
}

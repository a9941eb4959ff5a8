//! What a piece of generated code is called, and what was inlined into it.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use crate::Addr;

/// What kind of generated code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeKind {
    /// A compiled method.
    Method,
    /// The template interpreter.
    Interpreter,
    /// Anything else.
    Stub,
}

/// A name for generated code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Code {
    /// What kind.
    pub(crate) kind: CodeKind,
    /// `java.lang.String.hashCode`.
    pub(crate) name: Arc<str>,
    /// A method's parameters, in the words of its source.
    pub(crate) signature: Option<Arc<str>>,
    /// What was inlined where, by ascending addresses; empty where that is unknown.
    pub(crate) inlined: Arc<[Inlined]>,
}

/// A range of a compiled method and the methods that it comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Inlined {
    /// Its first address.
    pub(crate) start: Addr,
    /// The first address behind it.
    pub(crate) end: Addr,
    /// Innermost first; the last is the compiled method itself.
    pub(crate) chain: Vec<SourceFrame>,
    /// Whether it is all: else the code may belong to what was inlined further in.
    pub(crate) is_sure: bool,
}

/// A method at a line of its source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SourceFrame {
    /// `java.lang.String.hashCode`.
    pub(crate) name: Arc<str>,
    /// Its parameters, in the words of its source.
    pub(crate) signature: Option<Arc<str>>,
    /// The source file, where it is known.
    pub(crate) file: Option<Arc<str>>,
    /// The line, 0 where it is unknown.
    pub(crate) line: u32,
}

impl Code {
    /// A name without parameters.
    pub fn new(kind: CodeKind, name: &str) -> Self {
        Self { kind, name: name.into(), signature: None, inlined: Arc::new([]) }
    }

    /// A method, named `class.method`. What tells one hidden class from the next
    /// (`Main$$Lambda/0x00007f0123456789.run`) is left out, so that profiles merge.
    pub fn method(name: &str, signature: Option<&str>) -> Self {
        Self {
            kind: CodeKind::Method,
            name: mask_hidden(name).into(),
            signature: signature.map(Into::into),
            inlined: Arc::new([]),
        }
    }

    /// Takes over what another look at the same code has found out.
    pub(crate) fn add_inlined(&mut self, other: &Self) {
        if other.inlined.is_empty() {
            return;
        }
        let mut ranges: BTreeMap<Addr, Inlined> =
            self.inlined.iter().map(|range| (range.start, range.clone())).collect();
        ranges.extend(other.inlined.iter().map(|range| (range.start, range.clone())));
        self.inlined = ranges.into_values().collect();
    }

    /// What was inlined at an address of the code.
    pub(crate) fn inlined_at(&self, addr: Addr) -> Option<&Inlined> {
        let behind = self.inlined.partition_point(|range| range.start <= addr);
        behind.checked_sub(1).and_then(|at| self.inlined.get(at)).filter(|range| addr < range.end)
    }
}

/// Removes `/0x...` and `+0x...`, which hidden classes carry.
pub(crate) fn mask_hidden(name: &str) -> Cow<'_, str> {
    if !name.contains("0x") {
        return name.into();
    }
    let mut masked = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find("0x") {
        let (head, tail) = rest.split_at(at);
        let digits = tail[2..].bytes().take_while(u8::is_ascii_hexdigit).count();
        match head.strip_suffix(['/', '+']) {
            Some(head) if digits >= 8 => masked.push_str(head),
            _ => masked.extend([head, &tail[..2 + digits]]),
        }
        rest = &tail[2 + digits..];
    }
    (masked + rest).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_classes_merge() {
        for (name, masked) in [
            ("Main$$Lambda/0x00007f0123456789.run", "Main$$Lambda.run"),
            ("Main$$Lambda$14+0x0000000800c03000.run", "Main$$Lambda$14.run"),
            ("a.Hex0x.b0x12", "a.Hex0x.b0x12"),
            ("0x", "0x"),
        ] {
            assert_eq!(mask_hidden(name), masked);
        }
    }
}

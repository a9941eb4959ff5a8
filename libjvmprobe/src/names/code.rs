//! Names of generated code, with the methods inlined into it.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use crate::{
    Addr,
    names::clean::{self, MAX_PARAMETERS, MAX_PART},
};

/// Maximum size in bytes of a method's name with that of its class.
const MAX_METHOD: usize = 2 * MAX_PART + 1;

/// Kind of generated code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeKind {
    /// A compiled method.
    Method,
    /// The template interpreter.
    Interpreter,
    /// Any other code.
    Stub,
}

/// A name for generated code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Code {
    /// Kind of code.
    pub(crate) kind: CodeKind,
    /// Name: `java.lang.String.hashCode`.
    pub(crate) name: Arc<str>,
    /// Parameters of a method, in Java syntax.
    pub(crate) signature: Option<Arc<str>>,
    /// Origin of a method, if the reader was asked for it.
    pub(crate) origin: Option<Arc<MethodOrigin>>,
    /// Inlined methods by ascending address; empty if unknown.
    pub(crate) inlined: Arc<[Inlined]>,
}

/// A range of a compiled method, with the methods whose code it contains.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Inlined {
    /// First address.
    pub(crate) start: Addr,
    /// End address, exclusive.
    pub(crate) end: Addr,
    /// Methods, innermost first; the last one is the compiled method itself.
    pub(crate) chain: Vec<SourceFrame>,
    /// Whether the chain is complete. If not, the code may belong to a method that was inlined into the first
    /// one.
    pub(crate) is_sure: bool,
}

/// A method at a source line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SourceFrame {
    /// Name: `java.lang.String.hashCode`.
    pub(crate) name: Arc<str>,
    /// Parameters, in Java syntax.
    pub(crate) signature: Option<Arc<str>>,
    /// Source file, if known.
    pub(crate) file: Option<Arc<str>>,
    /// Line, or 0 if unknown.
    pub(crate) line: u32,
    /// Its origin, if the reader was asked for it.
    pub(crate) origin: Option<Arc<MethodOrigin>>,
}

/// Properties of a Java method that only thread dumps show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct MethodOrigin {
    /// Whether it is implemented in native code.
    pub is_native: bool,
    /// The module of its class; `None` for unnamed modules.
    pub module: Option<Arc<JavaModule>>,
}

/// A named module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JavaModule {
    /// Name: `java.base`.
    pub name: Arc<str>,
    /// Version, if it has one.
    pub version: Option<Arc<str>>,
    /// Whether it has the same version as `java.base`.
    pub is_of_jdk: bool,
}

impl Code {
    /// Makes a name without parameters.
    pub fn new(kind: CodeKind, name: &str) -> Self {
        let name = clean::cut(name, MAX_PART).into();
        Self { kind, name, signature: None, origin: None, inlined: Arc::new([]) }
    }

    /// Makes the name of a method, given as `class.method`. The part that distinguishes hidden classes
    /// (`Main$$Lambda/0x00007f0123456789.run`) is left out, so that profiles can be merged.
    pub fn method(name: &str, signature: Option<&str>) -> Self {
        Self {
            kind: CodeKind::Method,
            name: method_name(name),
            signature: signature.map(|text| clean::cut(text, MAX_PARAMETERS).into()),
            origin: None,
            inlined: Arc::new([]),
        }
    }

    /// Adds the inlined ranges found by another read of the same code.
    pub(crate) fn add_inlined(&mut self, other: &Self) {
        if other.inlined.is_empty() {
            return;
        }
        let mut ranges: BTreeMap<Addr, Inlined> =
            self.inlined.iter().map(|range| (range.start, range.clone())).collect();
        ranges.extend(other.inlined.iter().map(|range| (range.start, range.clone())));
        self.inlined = ranges.into_values().collect();
    }

    /// Returns the inlined range that contains an address of the code.
    pub(crate) fn inlined_at(&self, addr: Addr) -> Option<&Inlined> {
        let behind = self.inlined.partition_point(|range| range.start <= addr);
        behind.checked_sub(1).and_then(|at| self.inlined.get(at)).filter(|range| addr < range.end)
    }
}

/// Returns a method's name, given as `class.method`, as it is shown and kept: without the part that distinguishes hidden
/// classes, and with a limited length.
pub(crate) fn method_name(name: &str) -> Arc<str> {
    clean::cut(&mask_hidden(name), MAX_METHOD).into()
}

/// Removes `/0x...` and `+0x...`, which occur in names of hidden classes.
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
    fn addresses_of_hidden_classes_are_masked() {
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

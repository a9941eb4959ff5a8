//! perf-PID.map files: names of code that a program generated while it ran.
//!
//! One line per symbol: `START SIZE NAME`, numbers in hexadecimal (Linux,
//! tools/perf/Documentation/jit-interface.txt). If two symbols overlap, the later line
//! is valid. HotSpot's `Compiler.perfmap` (since JDK 17) writes `0x` before numbers
//! and Java names with types: `int java.lang.String.hashCode()`.

use crate::{
    Addr,
    names::code::{Code, CodeKind},
};

/// Maximum number of entries; no code cache has more methods.
pub(crate) const MAX_ENTRIES: usize = 4_000_000;

/// Maximum size of a name in bytes. In practice, the name of a method with its parameter types is shorter. Longer
/// names are cut, because they would be repeated in every stack.
const MAX_NAME: usize = 8192;

/// One line of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// Start of the code.
    pub(crate) start: Addr,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Name as in the file.
    pub(crate) name: &'a str,
}

/// Parses a map. Invalid lines are skipped, for example a last one that is still being written.
pub(crate) fn parse(text: &str) -> impl Iterator<Item = Entry<'_>> {
    text.lines().filter_map(parse_line).take(MAX_ENTRIES)
}

fn parse_line(line: &str) -> Option<Entry<'_>> {
    let (start, rest) = line.split_once(' ')?;
    let (size, name) = rest.split_once(' ')?;
    let (start, size) = (hex(start)?, hex(size)?);
    start.checked_add(size).filter(|_| size > 0 && !name.is_empty())?;
    let end = (0..=name.len().min(MAX_NAME)).rev().find(|&at| name.is_char_boundary(at))?;
    Some(Entry { start: Addr(start), size, name: &name[..end] })
}

fn hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    // from_str_radix() would accept a sign.
    digits.starts_with(|c: char| c.is_ascii_hexdigit()).then_some(())?;
    u64::from_str_radix(digits, 16).ok()
}

/// Parses HotSpot's name of a piece of code.
pub(crate) fn hotspot_code(name: &str) -> Code {
    if name == "Interpreter" {
        return Code::new(CodeKind::Interpreter, name);
    }
    // Format: `TYPE CLASS.METHOD(TYPES)`. Names of stubs may contain spaces, but no parameters.
    let method = name.strip_suffix(')').and_then(|name| name.split_once('('));
    match method.and_then(|(head, types)| Some((head.rsplit_once(' ')?.1, types))) {
        Some((method, types)) if method.contains('.') => {
            Code::method(method, Some(&format!("({types})")))
        }
        _ => Code::new(CodeKind::Stub, name),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hex_prefix_is_optional_and_invalid_lines_are_skipped() {
        let long = format!("7f00 10 {}", "\u{e9}".repeat(MAX_NAME));
        let names: Vec<_> = parse(&long).map(|entry| entry.name.len()).collect();
        assert_eq!(names, [MAX_NAME]);
        let text = "0x00007f00 0x0020 int A.b(int)\n7f40 10 Lx;::y\nrubbish\n7f80 0 empty\n\
                    -1 10 sign\nffffffffffffffff 10 wraps\n7fff";
        let entries: Vec<_> = parse(text).collect();
        assert_eq!(
            entries,
            [
                Entry { start: Addr(0x7f00), size: 0x20, name: "int A.b(int)" },
                Entry { start: Addr(0x7f40), size: 0x10, name: "Lx;::y" }
            ]
        );
    }

    #[test]
    fn hotspot_names_are_classified_as_method_or_stub() {
        let method = hotspot_code("java.lang.Object a.B$C.<init>(int[], java.lang.String)");
        assert_eq!(method.kind, CodeKind::Method);
        assert_eq!(&*method.name, "a.B$C.<init>");
        assert_eq!(method.signature.as_deref(), Some("(int[], java.lang.String)"));
        for stub in ["StubRoutines (1)", "I2C/C2I adapters", "vtable chunks", "x ()"] {
            assert_eq!(hotspot_code(stub).kind, CodeKind::Stub, "{stub}");
            assert_eq!(&*hotspot_code(stub).name, stub);
        }
        assert_eq!(hotspot_code("Interpreter").kind, CodeKind::Interpreter);
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "[0-9a-fx ().\\n\\PC]{0,200}") {
            for entry in parse(&text) {
                let _ = hotspot_code(entry.name);
            }
        }
    }
}

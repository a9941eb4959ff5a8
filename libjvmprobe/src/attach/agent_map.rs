//! Parser of the map that our agent writes.
//!
//! The map is text with one record per line, fields separated by TAB and numbers in hexadecimal; the format is
//! described in `libjvmprobe/agent/src/richmap.rs`:
//! - `L ADDRESS SIZE`, followed by a frame (CLASS METHOD SIGNATURE FILE LINE), describes a compiled
//!   method.
//! - `I START END`, followed by frames, innermost first, describes a range of the preceding method. The
//!   frames are the inlined methods to which the code in this range belongs, and the preceding method itself.
//! - `D ADDRESS SIZE NAME` describes other code.
//!
//! The target writes the map, so the map is untrusted.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    Addr,
    names::{
        clean,
        code::{Code, CodeKind, Inlined, SourceFrame, method_name},
        java::java_parameters,
    },
};

/// Maximum number of entries; no code cache has more.
const MAX_ENTRIES: usize = 4_000_000;
/// Maximum number of frames in a range. HotSpot never inlines so deeply.
const MAX_CHAIN: usize = 1024;

/// Parses a map, and returns the code that no later record replaces. Invalid lines are skipped.
pub fn parse(text: &str) -> impl Iterator<Item = (Addr, u64, Code)> + use<> {
    let mut reader = Reader::default();
    for line in text.lines() {
        reader.line(line);
        if reader.entries.len() >= MAX_ENTRIES {
            break;
        }
    }
    reader.finish();
    reader.entries.into_iter().map(|(addr, (size, code))| (addr, size, code))
}

#[derive(Default)]
struct Reader {
    entries: BTreeMap<Addr, (u64, Code)>,
    /// The method that subsequent `I` records belong to.
    open: Option<(Addr, u64, Code)>,
    ranges: Vec<Inlined>,
}

impl Reader {
    fn line(&mut self, line: &str) {
        let mut fields = line.split('\t');
        match fields.next() {
            Some("I") => {
                let range = inlined(fields);
                let open = self.open.as_ref().map(|(start, size, _)| (start.0, start.0 + size));
                if let (Some(range), Some((start, end))) = (range, open)
                    && (start..=end).contains(&range.start.0)
                    && range.end.0 <= end
                    && self.ranges.last().is_none_or(|last| last.end <= range.start)
                {
                    self.ranges.push(range);
                }
            }
            kind => {
                self.finish();
                match kind {
                    Some("L") => self.open = method(fields),
                    Some("D") => {
                        if let Some((addr, size, name)) = dynamic(fields) {
                            self.entries.insert(addr, (size, code(&name)));
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    fn finish(&mut self) {
        if let Some((start, size, mut code)) = self.open.take() {
            code.inlined = std::mem::take(&mut self.ranges).into();
            self.entries.insert(start, (size, code));
        }
        self.ranges.clear();
    }
}

fn code(name: &str) -> Code {
    let kind = if name == "Interpreter" { CodeKind::Interpreter } else { CodeKind::Stub };
    Code::new(kind, name)
}

fn hex(text: &str) -> Option<u64> {
    text.starts_with(|c: char| c.is_ascii_hexdigit()).then_some(())?;
    u64::from_str_radix(text, 16).ok()
}

fn address_and_size<'a>(fields: &mut impl Iterator<Item = &'a str>) -> Option<(Addr, u64)> {
    let (start, size) = (hex(fields.next()?)?, hex(fields.next()?)?);
    start.checked_add(size).filter(|_| size > 0)?;
    Some((Addr(start), size))
}

fn method<'a>(mut fields: impl Iterator<Item = &'a str>) -> Option<(Addr, u64, Code)> {
    let (start, size) = address_and_size(&mut fields)?;
    let frame = frame(&mut fields)?;
    let code = Code {
        kind: CodeKind::Method,
        name: frame.name,
        signature: frame.signature,
        origin: None,
        inlined: Arc::new([]),
    };
    Some((start, size, code))
}

fn dynamic<'a>(mut fields: impl Iterator<Item = &'a str>) -> Option<(Addr, u64, String)> {
    let (start, size) = address_and_size(&mut fields)?;
    Some((start, size, unescape(fields.next()?)))
}

fn inlined<'a>(mut fields: impl Iterator<Item = &'a str>) -> Option<Inlined> {
    let (start, end) = (hex(fields.next()?)?, hex(fields.next()?)?);
    let mut chain = Vec::new();
    while chain.len() < MAX_CHAIN
        && let Some(frame) = frame(&mut fields)
    {
        chain.push(frame);
    }
    let range = Inlined { start: Addr(start), end: Addr(end), chain, is_sure: true };
    (start < end && !range.chain.is_empty()).then_some(range)
}

fn frame<'a>(fields: &mut impl Iterator<Item = &'a str>) -> Option<SourceFrame> {
    let mut next = || fields.next().map(unescape);
    let (class, method, descriptor, file, line) = (next()?, next()?, next()?, next()?, next()?);
    Some(SourceFrame {
        name: method_name(&format!("{class}.{method}")),
        signature: java_parameters(&descriptor).map(Into::into),
        file: (!file.is_empty()).then(|| clean::cut(&file, clean::MAX_PART).into()),
        line: hex(&line).and_then(|line| u32::try_from(line).ok()).unwrap_or(0),
        origin: None,
    })
}

/// Replaces `\xNN` by the byte that it encodes.
fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((head, tail)) = rest.split_once("\\x") {
        plain.push_str(head);
        match tail.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                plain.push(char::from(byte));
                rest = &tail[2..];
            }
            None => {
                plain.push_str("\\x");
                rest = tail;
            }
        }
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAP: &str = "D\t1000\t100\tInterpreter\n\
        L\t2000\t80\ta.Main\trun\t(I)V\tMain.java\tc\n\
        I\t2000\t2010\ta.Main\trun\t(I)V\tMain.java\td\n\
        I\t2010\t2020\ta.B\tin\t()V\tB\\x09.java\t3\ta.Main\trun\t(I)V\tMain.java\te\n\
        L\t4000\tcut";

    #[test]
    fn parse_returns_loaded_code_and_its_inlining() {
        let entries: Vec<_> = parse(MAP).collect();
        assert_eq!(entries.len(), 2, "{entries:?}");
        assert_eq!(entries[0].2.kind, CodeKind::Interpreter);
        let (addr, size, code) = &entries[1];
        assert_eq!((addr.0, *size, &*code.name), (0x2000, 0x80, "a.Main.run"));
        assert_eq!(code.signature.as_deref(), Some("(int)"));
        let chain = &code.inlined_at(Addr(0x2015)).unwrap().chain;
        assert_eq!(chain.len(), 2);
        assert_eq!((&*chain[0].name, chain[0].line), ("a.B.in", 3));
        assert_eq!(chain[0].file.as_deref(), Some("B\t.java"));
        assert_eq!(chain[1].line, 14);
    }

    #[test]
    fn descriptors_become_parameters() {
        for (descriptor, parameters) in [
            ("()V", Some("()")),
            ("(ILjava/lang/String;[J)V", Some("(int, java.lang.String, long[])")),
            ("([[Z)Z", Some("(boolean[][])")),
            ("(Lcut/off", None),
            ("(Q)V", None),
            ("", None),
        ] {
            assert_eq!(java_parameters(descriptor).as_deref(), parameters, "{descriptor}");
        }
    }

    proptest! {
        #[test]
        fn hostile_maps_do_not_panic(
            flips in prop::collection::vec((0..MAP.len(), any::<u8>()), 0..20),
            text in "[LID\t0-9a-f\\\\x.\n]{0,300}",
        ) {
            let mut bytes = MAP.as_bytes().to_vec();
            for (at, byte) in flips {
                bytes[at] = byte;
            }
            let _ = parse(&String::from_utf8_lossy(&bytes)).count();
            let _ = parse(&text).count();
        }

        #[test]
        fn hostile_descriptors_do_not_panic(text in "\\PC{0,40}", more in "\\([\\[LIJ;a/é]{0,20}\\)V") {
            let _ = (java_parameters(&text), java_parameters(&more));
        }
    }
}

//! Messages between the parent and the confined child.
//!
//! Numbers have the byte order of the machine. Answers are validated like other untrusted bytes, because a file may
//! have compromised the child that read it.

use crate::FileOffset;

/// Maximum size in bytes of a demangled name, and of a source file's name.
pub(super) const MAX_NAME: usize = 8192;
/// Maximum number of functions at one address.
pub(super) const MAX_FRAMES: usize = 64;
/// Maximum size of all names at one address in bytes.
const MAX_NAMES: usize = crate::sys::channel::MAX_MESSAGE - 1024;

/// A symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Symbol {
    /// Its name, demangled.
    pub(crate) name: String,
    /// Source file without its folder.
    pub(crate) file: Option<String>,
    /// Line, or 0 if unknown.
    pub(crate) line: u32,
    /// Whether it is a Java method of a native image.
    pub(crate) is_java: bool,
}

/// Symbols at an offset, and the range of offsets that have the same symbols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The symbols, innermost first; empty if none is known.
    pub(crate) symbols: Vec<Symbol>,
    /// First offset of the range.
    pub(crate) start: FileOffset,
    /// Size of the range in bytes.
    pub(crate) len: u64,
}

impl Found {
    /// Makes an answer for one offset.
    pub(crate) fn only_at(offset: FileOffset, symbols: Vec<Symbol>) -> Self {
        Self { symbols, start: offset, len: 1 }
    }

    /// Returns whether the range contains an offset.
    pub(crate) fn contains(&self, offset: FileOffset) -> bool {
        offset.0.checked_sub(self.start.0).is_some_and(|inside| inside < self.len)
    }
}

/// Parameters of a request to open a file. The first three fields say which descriptors follow the descriptor
/// of the file itself, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Files {
    /// Whether there is a file with symbols that the file itself lacks.
    pub(super) separate_symbols: bool,
    /// Whether there is a file with debug information that the file itself lacks.
    pub(super) debug: bool,
    /// Whether there is a file with debug information shared by several files.
    pub(super) common: bool,
    /// Whether to read debug information.
    pub(super) debug_info: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Opens a file and reads its tables. Later requests refer to it by this key.
    Open { key: u64, files: Files },
    /// Looks up an offset of a file.
    Find { key: u64, offset: FileOffset },
    /// Closes a file.
    Close { key: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The file was opened or closed.
    Done,
    /// The file cannot be read.
    Refused,
    /// No file with this key is open.
    NotOpen,
    /// Symbols at the offset.
    Found(Found),
}

impl Request {
    pub(super) fn encode(self) -> Vec<u8> {
        let (kind, key, value) = match self {
            Self::Open { key, files } => {
                let Files { separate_symbols, debug, common, debug_info } = files;
                let flags = [separate_symbols, debug, common, debug_info];
                let bit = |(i, &flag): (usize, &bool)| u64::from(flag) << i;
                (0, key, flags.iter().enumerate().map(bit).sum())
            }
            Self::Find { key, offset } => (1, key, offset.0),
            Self::Close { key } => (2, key, 0),
        };
        [&[kind][..], &u64::to_ne_bytes(key), &u64::to_ne_bytes(value)].concat()
    }

    pub(super) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let [kind] = *take::<1>(&mut bytes)?;
        let key = u64::from_ne_bytes(*take(&mut bytes)?);
        let value = u64::from_ne_bytes(*take(&mut bytes)?);
        let flag = |bit: u32| value >> bit & 1 != 0;
        match kind {
            _ if !bytes.is_empty() => None,
            0 => {
                let (separate_symbols, debug, common) = (flag(0), flag(1), flag(2));
                let files = Files { separate_symbols, debug, common, debug_info: flag(3) };
                Some(Self::Open { key, files })
            }
            1 => Some(Self::Find { key, offset: FileOffset(value) }),
            2 => Some(Self::Close { key }),
            _ => None,
        }
    }
}

impl Answer {
    /// Encodes an answer, with as many symbols as fit.
    pub(super) fn encode(&self) -> Vec<u8> {
        let Found { symbols, start, len } = match self {
            Self::Done => return vec![0],
            Self::Refused => return vec![1],
            Self::NotOpen => return vec![2],
            Self::Found(found) => found,
        };
        let mut bytes = [&[3][..], &start.0.to_ne_bytes(), &len.to_ne_bytes()].concat();
        for Symbol { name, file, line, .. } in symbols.iter().take(MAX_FRAMES) {
            let file = file.as_deref().unwrap_or_default();
            if bytes.len() + name.len() + file.len() + 8 > MAX_NAMES {
                break;
            }
            bytes.extend(line.to_ne_bytes());
            for text in [name, file] {
                // Texts have at most MAX_NAME bytes.
                bytes.extend(u16::try_from(text.len()).unwrap_or(0).to_ne_bytes());
                bytes.extend(text.as_bytes());
            }
        }
        bytes
    }

    /// Decodes an answer; `None` if an intact child cannot have sent it.
    pub(super) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let [kind] = *take::<1>(&mut bytes)?;
        match kind {
            3 => {}
            _ if !bytes.is_empty() => return None,
            0 => return Some(Self::Done),
            1 => return Some(Self::Refused),
            2 => return Some(Self::NotOpen),
            _ => return None,
        }
        let start = FileOffset(u64::from_ne_bytes(*take(&mut bytes)?));
        let len = u64::from_ne_bytes(*take(&mut bytes)?);
        let mut symbols = Vec::new();
        while !bytes.is_empty() {
            let line = u32::from_ne_bytes(*take(&mut bytes)?);
            let (name, file) = (text(&mut bytes)?, text(&mut bytes)?);
            if symbols.len() >= MAX_FRAMES || name.is_empty() {
                return None;
            }
            let file = Some(file).filter(|file| !file.is_empty());
            symbols.push(Symbol { name, file, line, is_java: false });
        }
        Some(Self::Found(Found { symbols, start, len }))
    }
}

fn take<'a, const N: usize>(bytes: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(taken)
}

fn text(bytes: &mut &[u8]) -> Option<String> {
    let length = usize::from(u16::from_ne_bytes(*take(bytes)?));
    let (text, rest) = bytes.split_at_checked(length).filter(|_| length <= MAX_NAME)?;
    *bytes = rest;
    String::from_utf8(text.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(symbols: Vec<Symbol>) -> Answer {
        Answer::Found(Found { symbols, start: FileOffset(0x1230), len: 7 })
    }

    fn symbol(name: &str, file: Option<&str>) -> Symbol {
        Symbol { name: name.to_owned(), file: file.map(str::to_owned), line: 7, is_java: false }
    }

    #[test]
    fn encoded_messages_decode_to_the_same_values() {
        let files = Files { separate_symbols: true, debug: false, common: true, debug_info: true };
        for request in [
            Request::Open { key: 5, files },
            Request::Find { key: u64::MAX, offset: FileOffset(0x1234) },
            Request::Close { key: 0 },
        ] {
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        let two = found(vec![symbol("a::b", Some("b.cpp")), symbol("main", None)]);
        for answer in [Answer::Done, Answer::Refused, Answer::NotOpen, two, found(Vec::new())] {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
    }

    #[test]
    fn malformed_or_oversized_answers_are_rejected() {
        let long = found(vec![symbol(&"n".repeat(MAX_NAME + 1), None)]).encode();
        assert_eq!(Answer::decode(&long), None);
        let one = found(vec![symbol("n", None)]).encode();
        let (head, symbol_bytes) = one.split_at(17);
        let many = [head, &symbol_bytes.repeat(MAX_FRAMES)].concat();
        assert!(Answer::decode(&many).is_some());
        assert_eq!(Answer::decode(&[&many[..], symbol_bytes].concat()), None);
        assert_eq!(Answer::decode(&one[..one.len() - 1]), None, "truncated");
        assert_eq!(Answer::decode(&[0, 0]), None, "trailing bytes");
        assert_eq!(Answer::decode(&[9]), None);
        assert_eq!(Answer::decode(&[]), None);
        let no_text = [head, &[0, 0, 0, 0, 1, 0, 0xff, 0, 0]].concat();
        assert_eq!(Answer::decode(&no_text), None, "no UTF-8");
        // Answers of an intact child fit into a message.
        let large = found(vec![symbol(&"n".repeat(MAX_NAME), None); MAX_FRAMES]).encode();
        assert!(large.len() <= crate::sys::channel::MAX_MESSAGE);
        assert!(matches!(Answer::decode(&large), Some(Answer::Found(f)) if f.symbols.len() == 7));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_decode_within_limits(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Request::decode(&bytes);
            let answer = [&[3][..], &bytes].concat();
            if let Some(Answer::Found(found)) = Answer::decode(&answer) {
                prop_assert!(found.symbols.len() <= MAX_FRAMES);
            }
        }
    }
}

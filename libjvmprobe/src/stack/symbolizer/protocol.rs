//! Messages between the parent and the confined child.
//!
//! They are encoded by postcard. Answers are validated like other untrusted bytes, because a file may have compromised
//! the child that read it.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::FileOffset;

/// Maximum size in bytes of a demangled name, and of a source file's name.
pub(super) const MAX_NAME: usize = 8192;
/// Maximum number of functions at one address.
pub(super) const MAX_FRAMES: usize = 64;
/// Maximum size in bytes of an encoded symbol besides its names.
const MAX_SYMBOL_OVERHEAD: usize = 16;
/// Maximum size of all symbols at one address in bytes.
const MAX_SYMBOLS: usize = crate::sys::channel::MAX_MESSAGE - 1024;

/// A symbol.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Symbol {
    /// Its name, demangled.
    pub(crate) name: String,
    /// Source file without its folder.
    pub(crate) file: Option<String>,
    /// Line, or 0 if unknown.
    pub(crate) line: u32,
    /// Whether it is a Java method of a native image. The child does not know this.
    #[serde(skip)]
    pub(crate) is_java: bool,
}

/// Symbols at an offset, and the range of offsets that have the same symbols.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) enum Request {
    /// Opens a file and reads its tables. Later requests refer to it by this key.
    Open { key: u64, files: Files },
    /// Looks up an offset of a file.
    Find { key: u64, offset: FileOffset },
    /// Closes a file.
    Close { key: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
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
        encode(&self)
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        decode(bytes)
    }
}

impl Answer {
    /// Encodes an answer, with as many symbols as fit.
    pub(super) fn encode(mut self) -> Vec<u8> {
        if let Self::Found(Found { symbols, .. }) = &mut self {
            let mut size = 0;
            let fits = |symbol: &&Symbol| {
                let file = symbol.file.as_ref().map_or(0, String::len);
                size += symbol.name.len() + file + MAX_SYMBOL_OVERHEAD;
                size <= MAX_SYMBOLS
            };
            let count = symbols.iter().take(MAX_FRAMES).take_while(fits).count();
            symbols.truncate(count);
        }
        encode(&self)
    }

    /// Decodes an answer; `None` if an intact child cannot have sent it.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let answer = decode(bytes)?;
        if let Self::Found(Found { symbols, .. }) = &answer {
            let fits = |symbol: &Symbol| {
                let file = symbol.file.as_ref().map_or(0, String::len);
                !symbol.name.is_empty() && symbol.name.len() <= MAX_NAME && file <= MAX_NAME
            };
            if symbols.len() > MAX_FRAMES || !symbols.iter().all(fits) {
                return None;
            }
        }
        Some(answer)
    }
}

fn encode(message: &impl Serialize) -> Vec<u8> {
    // Encoding into memory fails only for types that these messages do not contain.
    postcard::to_extend(message, Vec::new()).unwrap_or_default()
}

/// Decodes a message; `None` if it is malformed or bytes follow it.
fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (message, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(message)
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
            assert_eq!(Answer::decode(&answer.clone().encode()), Some(answer));
        }
    }

    #[test]
    fn malformed_or_oversized_answers_are_rejected() {
        let decoded = |symbols| Answer::decode(&encode(&found(symbols)));
        let (long, most) = ("n".repeat(MAX_NAME + 1), vec![symbol("n", None); MAX_FRAMES]);
        assert!(decoded(most.clone()).is_some());
        assert_eq!(decoded([most, vec![symbol("n", None)]].concat()), None);
        assert_eq!(decoded(vec![symbol("", None)]), None);
        assert_eq!(decoded(vec![symbol(&long, None)]), None);
        assert_eq!(decoded(vec![symbol("n", Some(&long))]), None);
        let one = found(vec![symbol("n", None)]).encode();
        assert_eq!(Answer::decode(&one[..one.len() - 1]), None, "truncated");
        assert_eq!(Answer::decode(&[one, vec![0]].concat()), None, "trailing bytes");
        assert_eq!(Answer::decode(&[9]), None);
        assert_eq!(Answer::decode(&[]), None);
    }

    #[test]
    fn answers_of_an_intact_child_fit_into_a_message() {
        let large = found(vec![symbol(&"n".repeat(MAX_NAME), None); MAX_FRAMES]).encode();
        assert!(large.len() <= crate::sys::channel::MAX_MESSAGE);
        assert!(matches!(Answer::decode(&large), Some(Answer::Found(f)) if f.symbols.len() == 7));
        let small = Symbol { line: u32::MAX, ..symbol(&"n".repeat(200), Some(&"f".repeat(200))) };
        let size = encode(&small).len();
        assert!(size <= 400 + MAX_SYMBOL_OVERHEAD, "{size}");
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

//! Functions of files that were found before, by their ranges in the files.
//!
//! A profile contains many addresses of few functions. So one answer of the symbol reader
//! ([`crate::stack::symbolizer`]) serves all addresses of a function, in all processes that have mapped the file.

use std::collections::BTreeMap;

use crate::{
    FileOffset,
    stack::symbolizer::{Found, Symbol},
};

/// Maximum size of all names in bytes. When it is exceeded, all functions are forgotten.
const MAX_BYTES: usize = 4 << 20;
/// Memory of an entry without its name, in bytes.
const ENTRY_BYTES: usize = 128;

/// Functions of files. `K` identifies a file.
#[derive(Debug)]
pub(super) struct KnownFunctions<K> {
    /// The functions of each file by the offset of the first byte, with the offset behind the last byte.
    files: BTreeMap<K, BTreeMap<u64, (u64, Symbol)>>,
    /// Memory that the functions use, in bytes.
    size: usize,
}

impl<K: Ord + Copy> KnownFunctions<K> {
    pub(super) const fn new() -> Self {
        Self { files: BTreeMap::new(), size: 0 }
    }

    /// Returns the function at an offset of a file, if it is known.
    pub(super) fn get(&self, file: K, offset: FileOffset) -> Option<Symbol> {
        let (_, (end, symbol)) = self.files.get(&file)?.range(..=offset.0).next_back()?;
        (offset.0 < *end).then(|| symbol.clone())
    }

    /// Remembers a function. Several functions at the same offset, and functions that are known only for one offset,
    /// are not remembered: they come from debug information, which has other lines at other offsets.
    pub(super) fn insert(&mut self, file: K, found: &Found) {
        let ([symbol], 2..) = (&found.symbols[..], found.len) else { return };
        let size = ENTRY_BYTES + symbol.name.len();
        if self.size + size > MAX_BYTES {
            self.files.clear();
            self.size = 0;
        }
        let end = found.start.0.saturating_add(found.len);
        self.size += size;
        let functions = self.files.entry(file).or_default();
        if let Some((_, old)) = functions.insert(found.start.0, (end, symbol.clone())) {
            self.size -= ENTRY_BYTES + old.name.len();
        }
    }

    /// Forgets the functions of a file.
    pub(super) fn remove(&mut self, file: K) {
        for (_, old) in self.files.remove(&file).unwrap_or_default().into_values() {
            self.size -= ENTRY_BYTES + old.name.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, start: u64, len: u64) -> Found {
        let symbol = Symbol { name: name.to_owned(), file: None, line: 0, is_java: false };
        Found { symbols: vec![symbol], start: FileOffset(start), len }
    }

    #[test]
    fn each_offset_of_a_known_function_has_its_name() {
        let mut known = KnownFunctions::new();
        known.insert(1, &found("a", 100, 10));
        known.insert(1, &found("b", 110, 10));
        known.insert(2, &found("c", 100, 1));
        let name = |known: &KnownFunctions<_>, file, at| {
            known.get(file, FileOffset(at)).map(|symbol| symbol.name)
        };
        for (at, expected) in
            [(99, None), (100, Some("a")), (109, Some("a")), (110, Some("b")), (120, None)]
        {
            assert_eq!(name(&known, 1, at).as_deref(), expected, "{at}");
            assert_eq!(name(&known, 2, at), None, "a function with one offset");
        }
        known.remove(1);
        assert_eq!((name(&known, 1, 100), known.size), (None, 0));
    }

    #[test]
    fn memory_is_bounded() {
        let mut known = KnownFunctions::new();
        for i in 0..100_000 {
            known.insert(0, &found(&"n".repeat(100), 2 * i, 2));
            known.insert(0, &found("again", 2 * i, 2));
            assert!(known.size <= MAX_BYTES);
        }
        let sizes = known.files[&0].values().map(|(_, symbol)| ENTRY_BYTES + symbol.name.len());
        assert_eq!(sizes.sum::<usize>(), known.size);
        assert!(known.get(0, FileOffset(199_999)).is_some());
    }
}

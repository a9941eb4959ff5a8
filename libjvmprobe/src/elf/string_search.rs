//! Search for strings with given beginnings in a string table.
//!
//! Symbols refer to their names by offsets in any order, and hostile ones may overlap. So the search does not read the
//! name of each symbol. It passes once over the string table and collects the offsets at which one of the wanted names
//! begins. A pass over the symbols then only compares offsets.

use crate::{Result, elf::content::Content};

/// Maximum number of offsets collected. The names that are searched in a libjvm.so begin at about 1,000 offsets.
const MAX_MATCHES: usize = 1 << 16;

/// Beginnings of strings to search for.
pub(super) struct Needles<'a> {
    /// The beginnings, ascending, each with its index in the caller's list.
    sorted: Vec<(&'a [u8], u32)>,
    /// For each of them, the index of the longest one that is a beginning of it.
    shorter: Vec<Option<usize>>,
    /// Whether one of them begins with these two bytes.
    pairs: Vec<bool>,
    max_len: usize,
}

/// Offsets at which strings begin with one of the needles, ascending, each with the index of the needle.
#[derive(Debug, Default)]
pub(super) struct Matches(Vec<(u32, u32)>);

impl<'a> Needles<'a> {
    /// Prepares a search for strings with these beginnings. An empty one matches nothing.
    pub(super) fn new(texts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut sorted: Vec<_> = (0..).zip(texts).map(|(index, text)| (text, index)).collect();
        sorted.retain(|(text, _)| !text.is_empty());
        sorted.sort_unstable();
        let before = |i: usize| (0..i).rev().find(|&j| sorted[i].0.starts_with(sorted[j].0));
        let shorter = (0..sorted.len()).map(before).collect();
        let mut pairs = vec![false; 1 << 16];
        for (text, _) in &sorted {
            match text {
                [first, second, ..] => pairs[pair(*first, *second)] = true,
                [first, ..] => (0..=255).for_each(|second| pairs[pair(*first, second)] = true),
                [] => {}
            }
        }
        let max_len = sorted.iter().map(|(text, _)| text.len()).max().unwrap_or(0);
        Self { sorted, shorter, pairs, max_len }
    }

    /// Returns the offsets in a string table at which a needle begins, at most [`MAX_MATCHES`].
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io).
    pub(super) fn search(&self, strings: Content<'_>) -> Result<Matches> {
        let mut matches = Vec::new();
        // A needle consists of at least two bytes or is followed by NUL, so the last byte needs no check.
        strings.for_each_piece(self.max_len.max(2) - 1, |at, bytes, own| {
            for (i, two) in bytes.windows(2).take(own).enumerate() {
                if !self.pairs[pair(two[0], two[1])] {
                    continue;
                }
                let Ok(offset) = u32::try_from(at + i as u64) else { return false };
                for needle in self.at(&bytes[i..]) {
                    if matches.len() >= MAX_MATCHES {
                        log::debug!("a file has more than {MAX_MATCHES} names of symbols to find");
                        return false;
                    }
                    matches.push((offset, needle));
                }
            }
            true
        })?;
        Ok(Matches(matches))
    }

    /// Returns the indices of the needles that are beginnings of a text.
    fn at(&self, text: &[u8]) -> impl Iterator<Item = u32> {
        // Of two beginnings of a text, the shorter one is a beginning of the longer one. The needle that sorts directly
        // before the text is the longest one, or has it as a beginning.
        let before = self.sorted.partition_point(|(needle, _)| *needle <= text).checked_sub(1);
        std::iter::successors(before, |&i| self.shorter[i])
            .map(|i| self.sorted[i])
            .filter(move |(needle, _)| text.starts_with(needle))
            .map(|(_, index)| index)
    }
}

fn pair(first: u8, second: u8) -> usize {
    usize::from(first) << 8 | usize::from(second)
}

impl Matches {
    /// Returns whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the indices of the needles that begin at an offset.
    pub(super) fn at(&self, offset: usize) -> impl Iterator<Item = usize> {
        let offset = u32::try_from(offset).unwrap_or(u32::MAX);
        let first = self.0.partition_point(|&(at, _)| at < offset);
        let same = self.0[first..].iter().take_while(move |&&(at, _)| at == offset);
        same.map(|&(_, needle)| needle as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::{ElfFile, content::PIECE, testing::sections};

    /// Searches in a section with these bytes.
    fn search(bytes: &[u8], needles: &[&str]) -> Matches {
        let elf = ElfFile::open(sections(&[(".strtab", 3, bytes)])).unwrap();
        let section = elf.section(".strtab").unwrap();
        let needles = Needles::new(needles.iter().map(|needle| needle.as_bytes()));
        needles.search(section.content(u64::MAX).unwrap()).unwrap()
    }

    #[test]
    fn strings_are_found_by_all_their_beginnings() {
        let found = search(b"\0abcd\0xabc\0b\0", &["abc", "a", "ab", "abcde", "b\0", "", "ac"]);
        assert_eq!(found.0, [(1, 0), (1, 2), (1, 1), (7, 0), (7, 2), (7, 1), (11, 4)]);
        assert_eq!(found.at(7).collect::<Vec<_>>(), [0, 2, 1]);
        assert_eq!(found.at(8).count(), 0);
        assert!(search(b"", &["a"]).is_empty() && search(b"abc\0", &[]).is_empty());
    }

    #[test]
    fn string_that_spans_two_pieces_is_found_once() {
        let needle = "wanted";
        for before in PIECE - needle.len() - 1..PIECE + 2 {
            let bytes = [vec![b'w'; before], needle.into(), vec![0]].concat();
            assert_eq!(search(&bytes, &[needle]).0, [(before as u32, 0)], "{before}");
        }
    }

    #[test]
    fn number_of_matches_is_limited() {
        assert_eq!(search(&vec![b'g'; 2 * MAX_MATCHES], &["g"]).0.len(), MAX_MATCHES);
    }
}

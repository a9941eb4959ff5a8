//! Search of memory for a set of numbers. Most of the time of a heap search is spent in this loop, so one access to a
//! bitmap that fits into the processor's first cache excludes most numbers.

use std::collections::HashSet;

/// Binary logarithm of the number of bits in the bitmap.
const BITS: u32 = 18;

/// A set of numbers of four or eight bytes.
#[derive(Debug)]
pub(super) struct Words {
    /// Size of a word in bytes.
    width: usize,
    all: HashSet<u64>,
    /// Has the bit of each word's hash.
    bitmap: Box<[u64; 1 << (BITS - 6)]>,
}

/// Returns a number of [`BITS`] bits.
fn hash(word: u64) -> usize {
    (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - BITS)) as usize
}

impl Words {
    /// Makes a set.
    pub(super) fn new(width: usize, words: impl IntoIterator<Item = u64>) -> Self {
        let all: HashSet<u64> = words.into_iter().collect();
        let mut bitmap = Box::new([0; 1 << (BITS - 6)]);
        for &word in &all {
            bitmap[hash(word) >> 6] |= 1 << (hash(word) & 63);
        }
        Self { width, all, bitmap }
    }

    /// Calls `found` with the offset of each word of the set.
    pub(super) fn find(&self, bytes: &[u8], found: impl FnMut(usize)) {
        match self.width {
            4 => {
                let words = bytes.as_chunks().0.iter();
                self.find_in(words.map(|word| u64::from(u32::from_ne_bytes(*word))), found);
            }
            _ => self
                .find_in(bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)), found),
        }
    }

    fn find_in(&self, words: impl Iterator<Item = u64>, mut found: impl FnMut(usize)) {
        for (index, word) in words.enumerate() {
            let hash = hash(word);
            if self.bitmap[hash >> 6] >> (hash & 63) & 1 != 0 && self.all.contains(&word) {
                found(index * self.width);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn exactly_the_words_of_the_set_are_found(
            words in prop::collection::vec(0..64_u64, 0..200),
            wanted in prop::collection::vec(0..64_u64, 0..9),
        ) {
            for (width, factor) in [(4, 1 << 25), (8, 1 << 40)] {
                let bytes: Vec<u8> =
                    words.iter().flat_map(|word| (word * factor).to_ne_bytes()[..width].to_vec()).collect();
                let mut found = Vec::new();
                let set = Words::new(width, wanted.iter().map(|word| word * factor));
                set.find(&bytes, |offset| found.push(offset));
                let expected = words.iter().enumerate().filter(|(_, word)| wanted.contains(word));
                let expected: Vec<_> = expected.map(|(index, _)| index * width).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}

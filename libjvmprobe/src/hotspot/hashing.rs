//! Hash maps keyed by numbers from a target, mostly addresses.
//!
//! The standard hasher would take more time than all other work on such a key, and there are
//! millions of keys. This hasher multiplies by factors that are random for each map, so a target
//! that does not know them cannot choose keys that collide.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher, Hasher, RandomState},
};

/// A map keyed by numbers.
pub(super) type NumberMap<K, V> = HashMap<K, V, Factors>;
/// A set of numbers.
pub(super) type NumberSet<K> = HashSet<K, Factors>;

/// The random factors of one map.
#[derive(Clone, Debug)]
pub(super) struct Factors {
    begin: u64,
    factor: u64,
}

impl Default for Factors {
    fn default() -> Self {
        let random = RandomState::new();
        // The factor is odd, so that the low half of the product retains all bits of the number.
        Self { begin: random.hash_one(0_u8), factor: random.hash_one(1_u8) | 1 }
    }
}

impl BuildHasher for Factors {
    type Hasher = Mixer;

    fn build_hasher(&self) -> Mixer {
        Mixer { hash: self.begin, factor: self.factor }
    }
}

/// Hashes a number by multiplication.
#[derive(Debug)]
pub(super) struct Mixer {
    hash: u64,
    factor: u64,
}

impl Mixer {
    fn mix(&self, number: u64) -> u64 {
        let product = u128::from(self.hash ^ number) * u128::from(self.factor);
        // Each half of the product alone depends little on the bits at one end of the number.
        product as u64 ^ (product >> 64) as u64
    }
}

impl Hasher for Mixer {
    fn write_u64(&mut self, number: u64) {
        self.hash = self.mix(number);
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_ne_bytes(word));
        }
    }

    fn finish(&self) -> u64 {
        // After a single multiplication, evenly spaced keys would still be evenly spaced.
        self.mix(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Addr;

    #[test]
    fn regularly_spaced_numbers_hash_to_spread_values() {
        let factors = Factors::default();
        for step in [1_u64, 8, 64, 4096, 1 << 20, 1 << 32, 1 << 50] {
            let low: HashSet<u64> =
                (0..1024).map(|i| factors.hash_one(Addr(i * step)) % 1024).collect();
            let high: HashSet<u64> = (0..1024).map(|i| factors.hash_one(i * step) >> 57).collect();
            // With random hashes, `low` would contain about 647 of 1,024 possible values, and `high` all 128.
            assert!(low.len() > 550, "{step}: {}", low.len());
            assert!(high.len() > 110, "{step}: {}", high.len());
        }
    }

    #[test]
    fn hash_factors_differ_between_maps() {
        let [a, b] = [Factors::default(), Factors::default()];
        assert!((0..100_u64).any(|i| a.hash_one(i) != b.hash_one(i)));
        assert!((0..100_u64).all(|i| a.hash_one(i) == a.clone().hash_one(i)));
    }
}

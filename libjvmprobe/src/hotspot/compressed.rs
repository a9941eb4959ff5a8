//! HotSpot's compressed integers, UNSIGNED5: one to five bytes.
//!
//! Source: hotspot/share/code/compressedStream.cpp up to JDK 19,
//! hotspot/share/utilities/unsigned5.hpp since JDK 20. The bytes are digits in base 64, the lowest first.
//! A byte below 192 is the last one of its number, and so is a fifth byte. Since JDK 20, no number contains
//! the byte 0.

/// The variant of the encoding that a JDK uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Encoding {
    /// Number of byte values, from 0 up, that the encoding does not use.
    excluded: u32,
}

impl Encoding {
    /// Returns the encoding of a JDK.
    pub(crate) fn of_jdk(major: u32) -> Self {
        Self { excluded: u32::from(major >= 20) }
    }
}

/// Reads successive numbers.
#[derive(Clone, Debug)]
pub(crate) struct Stream<'a> {
    bytes: &'a [u8],
    encoding: Encoding,
}

impl<'a> Stream<'a> {
    /// Reads from the beginning of `bytes`.
    pub(crate) fn new(bytes: &'a [u8], encoding: Encoding) -> Self {
        Self { bytes, encoding }
    }

    /// Returns the next byte unchanged; `None` at the end.
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(first)
    }

    /// Returns the next number; `None` if the bytes end first, or if one of them cannot be part of a number.
    pub(crate) fn unsigned(&mut self) -> Option<u32> {
        let excluded = self.encoding.excluded;
        // A byte of this value or above means that more bytes follow.
        let limit = 256 - 64;
        let mut sum = 0_u32;
        for i in 0..5 {
            let byte = u32::from(self.byte()?);
            let digit = byte.checked_sub(excluded)?;
            sum = sum.wrapping_add(digit.wrapping_shl(6 * i));
            if byte < limit {
                break;
            }
        }
        Some(sum)
    }

    /// Returns the next signed number. Codes 0, 1, 2, 3, 4 mean 0, -1, 1, -2, 2 and so on.
    pub(crate) fn signed(&mut self) -> Option<i32> {
        let coded = self.unsigned()?;
        Some((coded >> 1) as i32 ^ -((coded & 1) as i32))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Encodes a number as the sources named above do.
    fn write(value: u32, excluded: u32) -> Vec<u8> {
        let low = 256 - excluded - 64;
        let mut bytes = Vec::new();
        let mut sum = value;
        for i in 0..5 {
            if sum < low || i == 4 {
                bytes.push((excluded + sum) as u8);
                break;
            }
            sum -= low;
            bytes.push((excluded + low + sum % 64) as u8);
            sum >>= 6;
        }
        bytes
    }

    #[test]
    fn small_numbers_decode_from_one_byte() {
        let old = Encoding::of_jdk(17);
        let new = Encoding::of_jdk(21);
        assert_eq!(Stream::new(&[0], old).unsigned(), Some(0));
        assert_eq!(Stream::new(&[191], old).unsigned(), Some(191));
        assert_eq!(Stream::new(&[1], new).unsigned(), Some(0));
        assert_eq!(Stream::new(&[0], new).unsigned(), None);
        assert_eq!(Stream::new(&[192], old).unsigned(), None, "cut off");
        assert_eq!(Stream::new(&[3], old).signed(), Some(-2));
    }

    proptest! {
        #[test]
        fn encoded_numbers_decode_to_the_same_values(values in prop::collection::vec(any::<u32>(), 0..20)) {
            for (major, excluded) in [(17, 0), (21, 1)] {
                let bytes: Vec<_> = values.iter().flat_map(|&v| write(v, excluded)).collect();
                let mut stream = Stream::new(&bytes, Encoding::of_jdk(major));
                for &value in &values {
                    prop_assert_eq!(stream.unsigned(), Some(value));
                }
                prop_assert_eq!(stream.unsigned(), None);
            }
        }
    }
}

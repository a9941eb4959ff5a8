//! Integers as text. Each character holds five bits of the number, the lowest bits first, and a sixth bit
//! that is set if more characters follow. Most numbers of a page are small, and take one or two characters of
//! its JSON.

/// 64 characters that need no escape in JSON or HTML.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A sequence of encoded numbers.
#[derive(Debug, Default)]
pub(super) struct Packed(String);

impl Packed {
    /// Appends a number.
    pub(super) fn push(&mut self, mut number: u64) {
        loop {
            let more = if number >= 32 { 32 } else { 0 };
            self.0.push(char::from(DIGITS[(number % 32) as usize | more]));
            number /= 32;
            if more == 0 {
                break;
            }
        }
    }

    /// Appends numbers.
    pub(super) fn extend(&mut self, numbers: impl IntoIterator<Item = u64>) {
        numbers.into_iter().for_each(|number| self.push(number));
    }
}

impl serde::Serialize for Packed {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Decodes the numbers.
    pub(in super::super) fn numbers(text: &str) -> Vec<u64> {
        let (mut all, mut number, mut shift) = (Vec::new(), 0, 0);
        for byte in text.bytes() {
            let digit = DIGITS.iter().position(|of| *of == byte).unwrap() as u64;
            number |= (digit & 31) << shift;
            shift += 5;
            if digit < 32 {
                all.push(number);
                (number, shift) = (0, 0);
            }
        }
        all
    }

    #[test]
    fn packed_numbers_decode_to_the_same_values() {
        let all = [0, 1, 31, 32, 33, 1023, 1024, u64::from(u32::MAX), (1 << 53) - 1, u64::MAX];
        let mut packed = Packed::default();
        packed.extend(all);
        assert_eq!(numbers(&packed.0), all);
        assert!(packed.0.starts_with("ABf"), "{}", packed.0);
    }
}

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

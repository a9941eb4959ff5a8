//! Encoding of numbers, texts and events.
//!
//! Source: hotspot/share/jfr/writers/jfrEncoding.hpp, jfrEncoders.hpp, and jdk.jfr's StringParser.

/// Bytes of one chunk, or of a part of it.
#[derive(Debug, Default)]
pub(super) struct Buffer(Vec<u8>);

impl Buffer {
    /// Appends a number in LEB128, of which the ninth byte has eight bits.
    pub(super) fn number(&mut self, mut value: u64) {
        for _ in 0..8 {
            let low = (value & 0x7f) as u8;
            value >>= 7;
            if value == 0 {
                self.0.push(low);
                return;
            }
            self.0.push(low | 0x80);
        }
        self.0.push(value as u8);
    }

    /// Appends one byte: 1 or 0.
    pub(super) fn boolean(&mut self, value: bool) {
        self.0.push(value.into());
    }

    /// Appends a `float`, which is big-endian and not compressed.
    pub(super) fn float(&mut self, value: f32) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    /// Appends a text as UTF-8. Empty texts are encoded in the same way, because some readers of symbols know
    /// no other encoding.
    pub(super) fn text(&mut self, text: &str) {
        const UTF8: u8 = 3;
        self.0.push(UTF8);
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    /// Appends the value of a field without a text.
    pub(super) fn no_text(&mut self) {
        const NULL: u8 = 0;
        self.0.push(NULL);
    }

    /// Appends a number of chunk headers, which are big-endian.
    pub(super) fn word(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    /// Appends bytes.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Appends an event: its size, which includes the size itself, and its content, which `content` appends.
    pub(super) fn event(&mut self, content: impl FnOnce(&mut Self)) {
        let at = self.0.len();
        // Most events are short, so that their size takes one byte.
        self.0.push(0);
        content(self);
        let length = (self.0.len() - at - 1) as u64;
        let size = (1..=9).map(|own| length + own).find(|size| length_of(*size) + length == *size);
        let mut encoded = Self::default();
        match size.unwrap_or(length + 9) {
            short @ 0..0x80 => self.0[at] = short as u8,
            long => {
                encoded.number(long);
                self.0.splice(at..=at, encoded.0);
            }
        }
    }

    /// Returns the bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the number of bytes.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes all bytes.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Returns the number of bytes that a number takes.
fn length_of(value: u64) -> u64 {
    let bits = u64::from(64 - value.max(1).leading_zeros());
    bits.div_ceil(7).min(9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_one_to_nine_bytes() {
        for value in [0, 1, 0x7f, 0x80, 0x3fff, 0x4000, 1 << 55, 1 << 56, u64::MAX] {
            let mut buffer = Buffer::default();
            buffer.number(value);
            assert_eq!(buffer.len() as u64, length_of(value), "{value:x}");
            let decoded = buffer.bytes().iter().enumerate().fold(0_u64, |sum, (at, byte)| {
                let bits = if at < 8 { byte & 0x7f } else { *byte };
                sum | u64::from(bits) << (7 * at)
            });
            assert_eq!(decoded, value);
        }
    }

    #[test]
    fn the_size_of_an_event_includes_itself() {
        for length in [0, 126, 127, 128, 16_381, 16_382, 16_383] {
            let (mut event, mut size) = (Buffer::default(), Buffer::default());
            event.event(|to| to.raw(&vec![1; length]));
            size.number(event.len() as u64);
            assert_eq!(event.bytes(), [size.bytes(), &vec![1; length]].concat(), "{length}");
        }
    }
}

//! Objects in the heap of a native image.
//!
//! References are 8-byte offsets from the heap's base. The section begins some distance after that base, for the sake
//! of the garbage collector; `locate` determines the distance. An object begins with a reference to its
//! class; the low bits of that reference are flags. An array has its length at offset 12 and its elements at
//! offset 16.

use std::ops::Range;

use crate::elf::SectionData;

/// Flag bits in the first word of an object.
const FLAGS: u64 = 7;
const LENGTH: usize = 12;
const ELEMENTS: usize = 16;
pub(super) const WORD: usize = 8;

/// Content of the heap section.
#[derive(Debug)]
pub(super) struct Heap {
    bytes: SectionData,
    /// Value of a reference to the first byte.
    pub(super) begin: u64,
}

/// An object, by its offset in the section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Object(pub(super) usize);

impl Heap {
    pub(super) fn new(bytes: SectionData, begin: u64) -> Self {
        Self { bytes, begin }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn bytes(&self, range: Range<usize>) -> Option<&[u8]> {
        self.bytes.get(range)
    }

    pub(super) fn u16(&self, at: usize) -> Option<u16> {
        let bytes = self.bytes.get(at..at.checked_add(2)?)?;
        Some(u16::from_le_bytes(bytes.try_into().ok()?))
    }

    pub(super) fn u32(&self, at: usize) -> Option<u32> {
        let bytes = self.bytes.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    pub(super) fn u64(&self, at: usize) -> Option<u64> {
        let bytes = self.bytes.get(at..at.checked_add(WORD)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Returns the object that the reference at an offset refers to, if it is plausible.
    pub(super) fn object(&self, at: usize) -> Option<Object> {
        let place = usize::try_from(self.u64(at)?.checked_sub(self.begin)?).ok()?;
        let is_one = place % WORD == 0 && place.checked_add(ELEMENTS)? <= self.len();
        is_one.then_some(Object(place))
    }

    /// Returns the class of an object, as a reference.
    pub(super) fn class(&self, object: Object) -> Option<u64> {
        Some(self.u64(object.0)? & !FLAGS)
    }

    /// Returns the range of an array's elements, each of `size` bytes.
    pub(super) fn elements(&self, array: Object, size: usize) -> Option<Range<usize>> {
        let count = usize::try_from(self.u32(array.0.checked_add(LENGTH)?)?).ok()?;
        let start = array.0.checked_add(ELEMENTS)?;
        let end = count.checked_mul(size).and_then(|bytes| start.checked_add(bytes))?;
        (end <= self.len()).then_some(start..end)
    }

    /// Returns an element of an array of references.
    pub(super) fn element(&self, array: &Range<usize>, index: usize) -> Option<Object> {
        let at = index.checked_mul(WORD).and_then(|bytes| array.start.checked_add(bytes))?;
        (at < array.end).then_some(())?;
        self.object(at)
    }

    /// Reads a string. A string object has a reference to its bytes, which are Latin-1 if possible, else
    /// UTF-16. A field of the object contains the encoding, but the offset of that field is unknown.
    /// Therefore bytes that contain a NUL are decoded as UTF-16, because names of Java code contain no NUL
    /// characters.
    pub(super) fn string(&self, string: Object, bytes_class: u64) -> Option<String> {
        /// Maximum size in bytes; class files cannot contain longer strings.
        const MAX_BYTES: usize = 2 << 16;
        let fields = [string.0 + WORD, string.0 + 2 * WORD];
        let mut values = fields.iter().filter_map(|&at| self.object(at));
        let value = values.find(|&value| self.class(value) == Some(bytes_class))?;
        let range = self.elements(value, 1).filter(|range| range.len() <= MAX_BYTES)?;
        let bytes = self.bytes(range)?;
        if bytes.len() % 2 == 0 && bytes.contains(&0) {
            let units = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
            return Some(char::decode_utf16(units).map(|c| c.unwrap_or('\u{fffd}')).collect());
        }
        Some(bytes.iter().map(|&byte| char::from(byte)).collect())
    }
}

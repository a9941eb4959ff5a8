//! HotSpot's performance data: counters and strings that the JVM keeps in memory
//! for `jstat`, unless it was started with `-XX:-UsePerfData`.
//!
//! The file `/tmp/hsperfdata_USER/PID` in the target's file system has the same
//! contents. Reading the target's memory instead requires neither the file nor a user
//! name. Source: HotSpot's runtime/perfMemory.hpp, `PerfDataPrologue` and
//! `PerfDataEntry`.

use std::collections::BTreeMap;

use crate::{Error, Result};

/// `0xcafec0c0` in big-endian order on all machines.
const MAGIC: [u8; 4] = [0xca, 0xfe, 0xc0, 0xc0];
const PROLOGUE: usize = 32;
/// Plausibility limit for the number of entries; HotSpot has about 300.
const MAX_ENTRIES: u32 = 16_384;

/// A snapshot of one JVM's performance data, with the offset of each value.
#[derive(Debug, Default)]
pub(crate) struct PerfData {
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    value: Value,
    offset: usize,
}

#[derive(Debug)]
enum Value {
    /// A number. Callers that need its later values read it at its address in the target.
    Long(u64),
    Text(String),
}

impl PerfData {
    /// Parses a copy of the buffer.
    ///
    /// # Errors
    /// [`Error::PerfData`] if the bytes are malformed, are not performance data, or have an unknown version
    /// or the other byte order, or if the JVM has not finished creating them.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let fail = |what: &str| Err(Error::PerfData { what: what.into() });
        if bytes.get(..4) != Some(&MAGIC) {
            return fail("the buffer does not begin with the magic number");
        }
        let little = u8::from(cfg!(target_endian = "little"));
        match (byte(bytes, 4)?, byte(bytes, 5)?, byte(bytes, 7)?) {
            (order, ..) if order != little => return fail("wrong byte order"),
            (_, major, _) if major != 2 => {
                return fail(&format!("unknown version {major}, expected 2"));
            }
            (_, _, 0) => return fail("the JVM has not finished creating the data"),
            _ => {}
        }
        let mut at = int(bytes, 24)? as usize;
        let count = int(bytes, 28)?;
        if at < PROLOGUE || count > MAX_ENTRIES {
            return fail("its prologue is implausible");
        }
        let mut data = Self::default();
        for _ in 0..count {
            let length = int(bytes, at)? as usize;
            let entry = at
                .checked_add(length)
                .and_then(|end| bytes.get(at..end))
                .filter(|entry| entry.len() >= 20);
            let Some(entry) = entry else {
                return fail("an entry extends beyond the buffer");
            };
            if let Some((name, value, offset)) = parse_entry(entry) {
                data.entries.insert(name, Entry { value, offset: at + offset });
            }
            at += length;
        }
        Ok(data)
    }

    /// Returns a string, for example `sun.gc.cause`.
    pub(crate) fn string(&self, name: &str) -> Option<&str> {
        match &self.entries.get(name)?.value {
            Value::Text(text) => Some(text),
            Value::Long(_) => None,
        }
    }

    /// Returns the value that a number had when the buffer was copied.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        match self.entries.get(name)?.value {
            Value::Long(number) => Some(number),
            Value::Text(_) => None,
        }
    }

    /// Returns the offset of a value in the buffer, in bytes, so that it can be read again.
    pub(crate) fn offset(&self, name: &str) -> Option<usize> {
        self.entries.get(name).map(|entry| entry.offset)
    }

    /// Returns all names, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }
}

/// Returns name, value and the value's offset in the entry; `None` for malformed entries, and for kinds of
/// entries that this parser does not support.
fn parse_entry(entry: &[u8]) -> Option<(String, Value, usize)> {
    let name = entry.get(int(entry, 4).ok()? as usize..)?;
    let name = name.split(|&b| b == 0).next()?;
    let length = int(entry, 8).ok()? as usize;
    let offset = int(entry, 16).ok()? as usize;
    let value = match (byte(entry, 12).ok()?, length) {
        (b'J', 0) => Value::Long(u64::from_ne_bytes(*entry.get(offset..)?.first_chunk()?)),
        (b'B', 1..) => {
            let text = entry.get(offset..offset.checked_add(length)?)?;
            let text = text.split(|&b| b == 0).next()?;
            Value::Text(String::from_utf8_lossy(text).into_owned())
        }
        _ => return None,
    };
    Some((String::from_utf8_lossy(name).into_owned(), value, offset))
}

fn byte(bytes: &[u8], at: usize) -> Result<u8> {
    bytes.get(at).copied().ok_or_else(cut)
}

fn int(bytes: &[u8], at: usize) -> Result<u32> {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk().copied());
    word.map(u32::from_ne_bytes).ok_or_else(cut)
}

fn cut() -> Error {
    Error::PerfData { what: "the buffer is truncated".into() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A buffer with one number and one string.
    fn sample() -> Vec<u8> {
        fn entry(name: &str, kind: u8, length: u32, value: &[u8]) -> Vec<u8> {
            let offset = (20 + name.len() + 1).next_multiple_of(8);
            let size = offset + value.len().next_multiple_of(8);
            let mut e = vec![0; size];
            e[..4].copy_from_slice(&(size as u32).to_ne_bytes());
            e[4..8].copy_from_slice(&20u32.to_ne_bytes());
            e[8..12].copy_from_slice(&length.to_ne_bytes());
            e[12] = kind;
            e[16..20].copy_from_slice(&(offset as u32).to_ne_bytes());
            e[20..20 + name.len()].copy_from_slice(name.as_bytes());
            e[offset..offset + value.len()].copy_from_slice(value);
            e
        }
        let mut b = vec![0; PROLOGUE];
        b[..4].copy_from_slice(&MAGIC);
        b[4] = cfg!(target_endian = "little").into();
        b[5] = 2;
        b[7] = 1;
        b[24..28].copy_from_slice(&(PROLOGUE as u32).to_ne_bytes());
        b[28..32].copy_from_slice(&2u32.to_ne_bytes());
        b.extend(entry("sun.gc.collector.0.invocations", b'J', 0, &7i64.to_ne_bytes()));
        b.extend(entry("sun.gc.cause", b'B', 16, b"No GC\0\0\0\0\0\0\0\0\0\0\0"));
        b
    }

    #[test]
    fn parse_returns_values_and_their_offsets() {
        let bytes = sample();
        let data = PerfData::parse(&bytes).unwrap();
        let at = data.offset("sun.gc.collector.0.invocations").unwrap();
        assert_eq!(bytes[at..at + 8], 7i64.to_ne_bytes());
        assert_eq!(data.string("sun.gc.collector.0.invocations"), None);
        assert_eq!(data.number("sun.gc.collector.0.invocations"), Some(7));
        assert_eq!(data.string("sun.gc.cause"), Some("No GC"));
        let at = data.offset("sun.gc.cause").unwrap();
        assert_eq!(&bytes[at..at + 5], b"No GC");
        assert_eq!(data.names().count(), 2);
    }

    #[test]
    fn unready_or_foreign_buffer_is_rejected() {
        for (at, value) in [(0, 0), (4, 7), (5, 1), (7, 0), (24, 1), (28, 255), (31, 255)] {
            let mut bytes = sample();
            bytes[at] = value;
            assert!(PerfData::parse(&bytes).is_err(), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn damaged_buffer_does_not_panic(cut in 0usize..200, flips in prop::collection::vec((0usize..200, any::<u8>()), 0..8)) {
            let mut bytes = sample();
            for (at, value) in flips {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            bytes.truncate(cut);
            let _ = PerfData::parse(&bytes);
        }
    }
}

//! Decodes the events and map entries of BPF programs from bytes, with bounds checks.

use std::io::Read;

use libbpf_rs::{Iter, MapCore, MapFlags, ProgramMut};
use plain::Plain;

use crate::{Error, Result, names::clean};

/// Implements [`Plain`] for structs that are shared with the kernel side.
///
/// # Safety
/// Each type must be a `#[repr(C)]` struct of integers and arrays of integers, without padding: the generated type of a
/// struct of `bpf/`, or a type of the same layout.
macro_rules! plain_structs {
    ($($type:ty),+ $(,)?) => {
        $(
            // SAFETY: the type consists of integers only, so any bit pattern is a value. Unit tests compare the layouts
            // with the C headers.
            unsafe impl ::plain::Plain for $type {}
        )+
    };
}
pub(crate) use plain_structs;

/// Copies a struct from the beginning of a record; `None` if the record is shorter than the struct.
pub fn copy<T: Plain + Default>(record: &[u8]) -> Option<T> {
    let mut value = T::default();
    plain::copy_from_bytes(&mut value, record).ok()?;
    Some(value)
}

/// Returns the bytes of a value or a slice, to be written to a map. Types that are [`Plain`] in this library consist of
/// integers without padding between or after them.
pub fn bytes<T: Plain + ?Sized>(value: &T) -> &[u8] {
    // SAFETY: all bytes are initialised, because there is no padding. The tests of the layouts compare the size of a
    // struct with the sum of the sizes of its fields.
    unsafe { plain::as_bytes(value) }
}

/// Returns the 64-bit number at an offset; `None` if it is not within the record.
pub fn word(record: &[u8], offset: usize) -> Option<u64> {
    let bytes = record.get(offset..offset.checked_add(8)?)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

/// Returns the text of a NUL-padded field of C's `char`, signed or unsigned, with control characters escaped.
pub fn text<T: Copy + Into<i64>>(field: &[T]) -> String {
    let bytes = field.iter().map(|&c| c.into() as u8).take_while(|&b| b != 0);
    clean::name(&String::from_utf8_lossy(&bytes.collect::<Vec<_>>())).into_owned()
}

/// Returns all keys and values of a map, read with one system call. Several calls would miss entries:
/// libbpf-rs treats a batch that is not full as the last one, although the kernel also leaves a batch
/// incomplete if the next bucket does not fit into it.
///
/// # Errors
/// [`Error::Bpf`].
pub(crate) fn entries(map: &impl MapCore) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let failed = |source| Error::Bpf { what: "read the BPF counters".into(), source };
    let all = map.max_entries();
    Ok(map.lookup_batch(all, MapFlags::ANY, MapFlags::ANY).map_err(failed)?.collect())
}

/// Returns all keys and values of a map and removes them, each entry in one step, so that no count is lost in between.
///
/// # Errors
/// [`Error::Bpf`].
pub(crate) fn take_entries(map: &impl MapCore) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let failed = |source| Error::Bpf { what: "read and reset the BPF counters".into(), source };
    let all = map.max_entries();
    let taken = map.lookup_and_delete_batch(all, MapFlags::ANY, MapFlags::ANY);
    Ok(taken.map_err(failed)?.collect())
}

/// Runs a BPF iterator over all tasks, and returns the records that it writes, at most `max`.
///
/// # Errors
/// [`Error::Bpf`], [`Error::Io`].
pub(crate) fn tasks<T: Plain + Default>(iterator: &ProgramMut<'_>, max: u64) -> Result<Vec<T>> {
    let failed = |source| Error::Bpf { what: "iterate over all tasks".into(), source };
    let link = iterator.attach().map_err(failed)?;
    let mut bytes = Vec::new();
    let mut records = Iter::new(&link).map_err(failed)?.take(max * size_of::<T>() as u64);
    records.read_to_end(&mut bytes).map_err(|e| Error::io("read all tasks", e))?;
    Ok(bytes.chunks_exact(size_of::<T>()).filter_map(copy).collect())
}

/// Empties a map.
///
/// # Errors
/// [`Error::Bpf`].
pub(crate) fn clear(map: &impl MapCore) -> Result<()> {
    for (key, _) in entries(map)? {
        // Failure means that the entry is gone already.
        let _ = map.delete(&key);
    }
    Ok(())
}

/// Returns a counter in a map; 0 if there is none.
pub fn counter(map: &dyn MapCore, key: u64) -> u64 {
    let value = map.lookup(&key.to_ne_bytes(), MapFlags::ANY).ok().flatten();
    value.and_then(|value| word(&value, 0)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_at_nul_and_escapes_control_characters() {
        assert_eq!(text(b"G1\0x"), "G1");
        assert_eq!(text(b"a\n\x1b[31m"), "a\\x0a\\x1b[31m");
        assert_eq!(text(&[0xffu8, b'x']), "\u{fffd}x");
        assert_eq!(text(&[-1i8, b'x' as i8]), "\u{fffd}x");
    }

    #[test]
    fn word_outside_the_record_returns_none() {
        let record = [1u64, 2].map(u64::to_ne_bytes).concat();
        assert_eq!(word(&record, 8), Some(2));
        assert_eq!((word(&record, 9), word(&record, usize::MAX)), (None, None));
    }
}

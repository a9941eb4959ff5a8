//! What BPF programs count and send: bytes, read with care.

use libbpf_rs::{MapCore, MapFlags};
use plain::Plain;

use crate::{Error, Result, names::clean};

/// Copies a struct out of at least as many bytes.
pub fn copy<T: Plain + Default>(record: &[u8]) -> Option<T> {
    let mut value = T::default();
    plain::copy_from_bytes(&mut value, record).ok()?;
    Some(value)
}

/// The bytes of a value, or of several, for a map. Structs that are [`Plain`] here consist of
/// integers without padding between or behind them.
pub fn bytes<T: Plain + ?Sized>(value: &T) -> &[u8] {
    // SAFETY: all of its bytes are initialised, as said above; the tests of layouts compare the
    // sizes.
    unsafe { plain::as_bytes(value) }
}

/// The number at an offset.
pub fn word(record: &[u8], offset: usize) -> Option<u64> {
    let bytes = record.get(offset..offset.checked_add(8)?)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

/// The text of a NUL-padded field of C's `char`, however that is spelled, made harmless.
pub fn text<T: Copy + Into<i64>>(field: &[T]) -> String {
    let bytes = field.iter().map(|&c| c.into() as u8).take_while(|&b| b != 0);
    clean::name(&String::from_utf8_lossy(&bytes.collect::<Vec<_>>())).into_owned()
}

/// All keys and values of a map, with one system call: libbpf-rs takes a batch that is not
/// full for the last, but the kernel ends one before a bucket that does not fit.
///
/// # Errors
/// [`Error::Bpf`].
pub(crate) fn entries(map: &impl MapCore) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let failed = |source| Error::Bpf { what: "read what was counted".into(), source };
    let all = map.max_entries();
    Ok(map.lookup_batch(all, MapFlags::ANY, MapFlags::ANY).map_err(failed)?.collect())
}

/// The same, taken out of the map: each in one step, so that no count between is lost.
///
/// # Errors
/// [`Error::Bpf`].
pub(crate) fn take_entries(map: &impl MapCore) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let failed = |source| Error::Bpf { what: "take out what was counted".into(), source };
    let all = map.max_entries();
    let taken = map.lookup_and_delete_batch(all, MapFlags::ANY, MapFlags::ANY);
    Ok(taken.map_err(failed)?.collect())
}

/// Empties a map.
///
/// # Errors
/// [`Error::Bpf`].
pub(crate) fn clear(map: &impl MapCore) -> Result<()> {
    for (key, _) in entries(map)? {
        // Gone or not, it is not needed.
        let _ = map.delete(&key);
    }
    Ok(())
}

/// A counter in a map, 0 where there is none.
pub fn counter(map: &dyn MapCore, key: u64) -> u64 {
    let value = map.lookup(&key.to_ne_bytes(), MapFlags::ANY).ok().flatten();
    value.and_then(|value| word(&value, 0)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_at_nul_and_harmless() {
        assert_eq!(text(b"G1\0x"), "G1");
        assert_eq!(text(b"a\n\x1b[31m"), "a\\x0a\\x1b[31m");
        assert_eq!(text(&[0xffu8, b'x']), "\u{fffd}x");
        assert_eq!(text(&[-1i8, b'x' as i8]), "\u{fffd}x");
    }

    #[test]
    fn numbers_lie_inside() {
        let record = [1u64, 2].map(u64::to_ne_bytes).concat();
        assert_eq!(word(&record, 8), Some(2));
        assert_eq!((word(&record, 9), word(&record, usize::MAX)), (None, None));
    }
}

//! The JVM's own locks by their addresses (JDK 17 and later).
//!
//! Sources: hotspot/share/runtime/{mutex,mutexLocker}.hpp and os/posix/mutex_posix.hpp. A `Mutex` contains a
//! `pthread_mutex_t` and a `pthread_cond_t`, on whose words threads wait by futex(2). `_mutex_array` lists the JVM's locks:
//! an array of pointers, to which a pointer refers since `Mutex::_mutex_array` is exported. The offset of `Mutex::_name` is
//! not exported by all JDKs, so it is the offset at which most of the locks refer to a name.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    Addr, Result,
    hotspot::{HotSpot, layout::Item, pages::Pages},
    names::clean,
    process::{memory::Memory, reader::within},
};

/// Maximum number of locks; JDK 25 has about 90.
const MAX_LOCKS: usize = 256;
/// Number of pointers at the beginning of a `Mutex` among which its name is searched.
const WORDS: u64 = 32;
/// Maximum offset of a futex word in a `Mutex`. Before it are a pointer to the virtual functions, the owner, the mutex of 40
/// bytes (48 on aarch64), and 44 bytes of the condition. Each `Mutex` is larger than this.
const LAST_FUTEX: u64 = 108;
/// Maximum time for reading the locks.
const MAX_TIME: Duration = Duration::from_millis(500);
/// Number of locks by which the offset of the names is found.
const TRIED: usize = 16;
/// Maximum length of a name.
const MAX_NAME: usize = 64;

/// The locks of a JVM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NativeLocks(BTreeMap<Addr, Arc<str>>);

impl NativeLocks {
    /// Returns the name of the lock that contains a futex word, for example `Threads_lock`.
    pub(crate) fn name(&self, futex: Addr) -> Option<&Arc<str>> {
        let (lock, name) = self.0.range(..=futex).next_back()?;
        (futex.0 - lock.0 <= LAST_FUTEX).then_some(name)
    }
}

impl HotSpot {
    /// Returns the JVM's locks.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] if the JVM does not list its locks, [`crate::Error::Memory`] if it has exited.
    pub(crate) fn native_locks(&self) -> Result<NativeLocks> {
        let array = match self.layout.try_address(Item::NativeLocks) {
            Some(pointer) => self.memory.pointer(pointer)?,
            None => self.layout.address(Item::NativeLockArray)?,
        };
        within(MAX_TIME, || read(&self.memory, array))
    }
}

pub(super) fn read(memory: &Memory, array: Addr) -> Result<NativeLocks> {
    let elements = (0..MAX_LOCKS as u64).filter_map(|index| array.checked_add(index * 8));
    let pointers = memory.words(&elements.collect::<Vec<_>>())?;
    let locks: Vec<_> = pointers
        .into_iter()
        .map_while(|word| word.filter(|&lock| lock != 0 && lock.is_multiple_of(8)))
        .map(Addr)
        .collect();
    let tried = locks.get(..TRIED).unwrap_or(&locks);
    // Locks and names are in few pages.
    let pages = &mut Pages::scattered(memory);
    let offsets = (0..WORDS).map(|word| (names(pages, tried, word * 8).len(), word * 8));
    let offset = offsets.max().filter(|(number, _)| number * 2 > tried.len());
    Ok(NativeLocks(offset.map(|(_, offset)| names(pages, &locks, offset)).unwrap_or_default()))
}

/// Returns the locks that refer to a name at an offset.
fn names(pages: &mut Pages<'_>, locks: &[Addr], offset: u64) -> BTreeMap<Addr, Arc<str>> {
    let named = locks.iter().filter_map(|&lock| {
        let pointer = pages.pointer(lock.checked_add(offset)?).ok()?;
        let name = pages.name(pointer).ok()?;
        is_name(&name).then(|| (lock, clean::name(&name).into()))
    });
    named.collect()
}

/// Whether a text may be the name of a lock.
fn is_name(text: &str) -> bool {
    text.len() <= MAX_NAME
        && text.ends_with("_lock")
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn futex_words_belong_to_the_lock_that_contains_them() {
        let locks = NativeLocks(BTreeMap::from([
            (Addr(0x1000), "Heap_lock".into()),
            (Addr(0x1080), "Threads_lock".into()),
        ]));
        let name = |futex| locks.name(Addr(futex)).map(|name| &**name);
        assert_eq!(name(0xfff), None);
        assert_eq!(name(0x1010), Some("Heap_lock"));
        assert_eq!(name(0x1068), Some("Heap_lock"));
        assert_eq!(name(0x1070), None);
        assert_eq!(name(0x10b0), Some("Threads_lock"));
        assert_eq!(name(u64::MAX), None);
    }

    #[test]
    fn names_of_locks_are_recognized() {
        assert!(is_name("MonitorDeflation_lock") && is_name("JNICritical_lock"));
        assert!(!is_name("") && !is_name("lock") && !is_name("a b_lock"));
    }
}

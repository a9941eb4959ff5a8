//! `MemoryPool` objects: name, type, initial and maximum size, and usage after the last collection.
//!
//! vmStructs does not export this class. Its words are:
//!
//! | JDK 8 to 27 | JDK 28 | field |
//! |---|---|---|
//! | 1 | 1 | `_name` |
//! | 2 | 2 | `_type`: 1 heap, 2 other memory |
//! | 3, 4 | 3, 4 | `_initial_size`, `_max_size` (-1: undefined) |
//! | 5 | - | `_available_for_allocation` |
//! | 6 to 11 | 5 to 10 | managers |
//! | 12 to 15 | 11 to 14 | `_peak_usage` (`MemoryUsage`: initial, used, committed, maximum) |
//! | 16 to 19 | 15 to 18 | `_after_gc_usage` (`MemoryUsage`) |
//! | from 20 | from 19 | thresholds, sensors, the Java object, and then the fields of the subclass |

use std::sync::Arc;

use crate::{
    Addr, Error, Result,
    hotspot::{layout::Item, loaded::at, pages::Pages, resolved::Layout},
    names::clean,
};

/// Number of 8-byte values of an object that are read, including the fields of the subclass.
const VALUES: usize = 32;
const NAME: usize = 1;
const TYPE: usize = 2;
const INITIAL: usize = 3;
const MAX: usize = 4;
const USED_AFTER_GC: usize = 17;
const USED_AFTER_GC_28: usize = 16;
/// The first value that is searched for fields of a subclass.
const FIRST_OF_SUBCLASS: usize = 22;
/// `MemoryPool::PoolType`.
const HEAP: u64 = 1;
const NON_HEAP: u64 = 2;
/// Maximum number of pools; HotSpot has at most eight.
const MAX_POOLS: u32 = 32;
/// Plausibility limit for sizes, in bytes.
const MAX_SIZE: u64 = 1 << 47;

/// A pool's object.
#[derive(Clone, Debug)]
pub(super) struct PoolObject {
    pub(super) name: Arc<str>,
    pub(super) is_heap: bool,
    pub(super) initial: u64,
    /// `None` if it is undefined.
    pub(super) max: Option<u64>,
    pub(super) used_after_gc: u64,
    words: [u64; VALUES],
}

impl PoolObject {
    /// Returns the words that contain the fields of the subclass.
    pub(super) fn fields(&self) -> &[u64] {
        self.words.get(FIRST_OF_SUBCLASS..).unwrap_or_default()
    }
}

/// Reads the objects of all pools; none if libjvm.so has no symbol table or the list does not exist yet.
///
/// # Errors
/// [`Error::Layout`] if the list or an object is implausible, [`Error::Memory`].
pub(super) fn read(pages: &mut Pages<'_>, layout: &Layout) -> Result<Vec<PoolObject>> {
    let Some(list) = layout.try_address(Item::MemoryPools) else { return Ok(Vec::new()) };
    let list = pages.pointer(list)?;
    if list == Addr(0) {
        return Ok(Vec::new());
    }
    let count = pages.u32(at(list, layout.get(Item::ArrayLength)?)?)?;
    if count > MAX_POOLS {
        return Err(Error::layout(format!("implausible number of {count} memory pools")));
    }
    // GrowableArray<E> has the pointer to its elements directly after its base class.
    let data = layout.get(Item::ArrayData).or_else(|_| layout.get(Item::ArraySize))?;
    let data = pages.pointer(at(list, data)?)?;
    (0..u64::from(count))
        .map(|i| {
            let pool = pages.pointer(at(data, i * 8)?)?;
            object(pages, pool, layout.major)
        })
        .collect()
}

fn object(pages: &mut Pages<'_>, pool: Addr, major: u32) -> Result<PoolObject> {
    let mut words = [0; VALUES];
    for (word, offset) in words.iter_mut().zip((0..).step_by(8)) {
        *word = pages.u64(at(pool, offset)?)?;
    }
    let is_heap = match words[TYPE] & u64::from(u32::MAX) {
        HEAP => true,
        NON_HEAP => false,
        _ => return Err(Error::layout("unknown layout of a memory pool")),
    };
    let size = |at: usize| Some(words[at]).filter(|&size| size < MAX_SIZE);
    let used_after_gc = if major >= 28 { USED_AFTER_GC_28 } else { USED_AFTER_GC };
    let (Some(initial), Some(used_after_gc)) = (size(INITIAL), size(used_after_gc)) else {
        return Err(Error::layout("unknown layout of a memory pool"));
    };
    let name = pages.name(Addr(words[NAME]))?;
    Ok(PoolObject {
        name: clean::name(&name).into(),
        is_heap,
        initial,
        max: size(MAX),
        used_after_gc,
        words,
    })
}

//! Unused memory between objects of a heap, which may contain former objects.
//!
//! Sources: hotspot/share/gc/shared/{collectedHeap,threadLocalAllocBuffer}.cpp. The rest of a TLAB is not used yet. When
//! the JVM gives up the rest of a buffer, it makes an array there (`CollectedHeap::fill_with_objects`).

use std::{ops::Range, time::Instant};

use super::{
    heap_pages::{LATE, visit},
    reader::Reader,
    synchronizers::OwnedSynchronizer,
};
use crate::{
    Addr, Result,
    hotspot::{Collector, hashing::NumberMap, layout::Item, loaded::at, pages::Pages},
};

/// Classes of the arrays that fill unused memory, up to JDK 18 and since.
const FILLERS: [&str; 2] = ["int[]", "jdk.internal.vm.FillerElement[]"];
/// Maximum number of classes that are examined to find such arrays.
const MAX_CLASSES: usize = 1 << 14;

impl Reader {
    /// Whether a Klass is that of the arrays that fill unused memory.
    pub(super) fn is_filler(&mut self, pages: &mut Pages<'_>, klass: Addr) -> bool {
        self.class(pages, klass).is_ok_and(|class| FILLERS.contains(&&*class.name))
    }
}

/// Returns the unused parts of the threads' TLABs. `ranges` are the parts of the heap that contain objects.
pub(super) fn unused_parts(
    reader: &Reader,
    collector: Collector,
    ranges: &[Range<Addr>],
    threads: &[Addr],
) -> Vec<Range<Addr>> {
    let Reader { memory, layout, .. } = reader;
    let part = |pages: &mut Pages<'_>, thread: Addr| -> Result<Range<Addr>> {
        let tlab = at(thread, layout.get(Item::Tlab)?)?;
        let mut word = |item| pages.u64(at(tlab, layout.get(item)?)?);
        let (start, top) = (word(Item::TlabStart)?, word(Item::TlabTop)?);
        let end = word(Item::TlabEnd)?;
        let size = match collector {
            // If allocations are sampled, `_end` may be before the end of the TLAB. This matters only for collectors that
            // do not overwrite headers. TLABs of Parallel have at least the desired size, except at the end of eden.
            Collector::Parallel => word(Item::TlabDesiredSize).unwrap_or(0).saturating_mul(8),
            _ => 0,
        };
        let end = Addr(end.max(start.saturating_add(size)));
        let range = ranges.iter().find(|range| range.contains(&Addr(start)));
        Ok(Addr(top)..range.map_or(end, |range| end.min(range.end)))
    };
    let pages = &mut Pages::scattered(memory);
    let parts = pages.read_batched(threads, |pages, &thread| part(pages, thread).ok());
    parts.into_iter().flatten().filter(|part| part.start.0 != 0).collect()
}

/// Removes those of the synchronizers that lie within arrays by which the JVM fills unused memory. `found` is sorted by
/// address. Unused memory may contain such arrays, too, so these arrays are found in ascending order from the begin of a
/// range. Returns why arrays may have been missed.
///
/// # Errors
/// [`crate::Error::Memory`] or [`crate::Error::Io`] if the JVM has exited.
pub(super) fn remove_in_fillers(
    reader: &mut Reader,
    ranges: &[Range<Addr>],
    unused: &[Range<Addr>],
    until: Instant,
    found: &mut Vec<OwnedSynchronizer>,
) -> Result<Option<&'static str>> {
    let memory = reader.memory.clone();
    let pages = &mut Pages::scattered(&memory);
    let header = reader.references.array_header();
    let mut classes: NumberMap<Addr, bool> = NumberMap::default();
    let mut incomplete = None;
    for range in ranges {
        let last = found.iter().rfind(|found| range.contains(&found.object));
        let Some(to_last) = last.map(|last| range.start..last.object) else { continue };
        let mut end_of_last = range.start;
        let why = visit(&memory, &[to_last], until, |start, bytes| {
            for (index, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
                let array = Addr(start.0 + index as u64 * 8);
                if array < end_of_last || !header.is_unlocked(u64::from_ne_bytes(*word)) {
                    continue;
                }
                let head = bytes.get(index * 8..).and_then(|bytes| bytes.first_chunk().copied());
                let Some(head) = head.or_else(|| memory.array(array).ok()) else { continue };
                let klass = header.class(&head);
                if classes.len() < MAX_CLASSES && !classes.contains_key(&klass) {
                    classes.insert(klass, reader.is_filler(pages, klass));
                }
                let is_filler = classes.get(&klass).copied().unwrap_or(false);
                let end = header.end_of_ints(array, &head).filter(|&end| end <= range.end);
                if let Some(end) = end.filter(|_| is_filler)
                    && !unused.iter().any(|part| part.contains(&array))
                {
                    found.retain(|found| !(array..end).contains(&found.object));
                    end_of_last = end;
                }
            }
            true
        })?;
        incomplete = incomplete.or(why);
    }
    if incomplete == Some(LATE) {
        // Any of them may be a former copy.
        found.clear();
    }
    Ok(incomplete)
}

//! Reads the pages of a heap that are in memory.

use std::{ops::Range, time::Instant};

use crate::{
    Addr, Result,
    process::memory::{MAX_BYTES, Memory},
};

/// Number of bytes for which it is determined at once which pages are present.
const SLICE: u64 = 256 << 20;
/// Ranges that are shorter are read together, page by page.
const MIN_RANGE: u64 = 64 << 10;
const PAGE: usize = 4096;
/// Why memory was left out if the time limit was exceeded.
pub(super) const LATE: &str = "the search of the heap took too long";

/// Passes the memory in some ranges to `found`, piece by piece, until `found` returns `false`. The first and the last page
/// of a range are passed completely. Leaves out pages that are not in memory, because they have no content or are swapped
/// out. Returns why memory with content was left out.
///
/// # Errors
/// [`crate::Error::Memory`] or [`crate::Error::Io`] if the JVM has exited.
pub(super) fn visit(
    memory: &Memory,
    ranges: &[Range<Addr>],
    until: Instant,
    mut found: impl FnMut(Addr, &[u8]) -> bool,
) -> Result<Option<&'static str>> {
    let mut buffer = vec![0; MAX_BYTES];
    let mut incomplete = None;
    // Reads blocks of equal size. Returns whether to go on.
    let mut read = |blocks: &[Addr], size: usize| -> Result<bool> {
        let bytes = &mut buffer[..blocks.len() * size];
        let are_read = memory.read_blocks(blocks, size, bytes)?;
        for ((&block, bytes), is_read) in blocks.iter().zip(bytes.chunks(size)).zip(are_read) {
            if is_read && !found(block, bytes) {
                incomplete = Some("the heap has too many references to threads");
                return Ok(false);
            }
        }
        Ok(Instant::now() < until)
    };
    let (mut has_missing, mut goes_on) = (false, true);
    let mut pages = Vec::new();
    for range in ranges {
        let mut start = range.start.0;
        while start < range.end.0 && goes_on {
            let end = start.saturating_add(SLICE).min(range.end.0);
            let present = memory.present(Addr(start)..Addr(end))?;
            has_missing |= present.has_missing;
            // Also ends the search of a range that has no pages.
            goes_on = Instant::now() < until;
            for Range { start, end } in present.ranges {
                let mut at = start;
                while end - at >= MIN_RANGE && goes_on {
                    let size = (end - at).min(MAX_BYTES as u64);
                    goes_on = read(&[Addr(at)], size as usize)?;
                    at += size;
                }
                pages.extend((at..end).step_by(PAGE).map(Addr));
            }
            for some in pages.chunks(MAX_BYTES / PAGE) {
                goes_on = goes_on && read(some, PAGE)?;
            }
            pages.clear();
            start = end;
        }
    }
    let late = (!goes_on).then_some(LATE);
    let missing = has_missing.then_some("a part of the heap is not in memory");
    Ok(incomplete.or(late).or(missing))
}

//! Pages of a process that are present in memory, so that reading them neither swaps nor populates pages.
//!
//! Source: Documentation/admin-guide/mm/pagemap.rst. `/proc/PID/pagemap` has eight bytes for each page. Bit 63 is set if
//! the page is present, bit 62 if it is swapped out. These bits need no capability besides the right to read the process.

use std::{
    io::{self, Read},
    ops::Range,
};

use crate::{Addr, Pid, process::reader::ProcFile};

/// Size of a page in bytes.
const PAGE: u64 = 4096;
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;

/// The parts of an address range that can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Present {
    /// Ranges of complete pages, ascending.
    pub(crate) ranges: Vec<Range<u64>>,
    /// Whether other pages of the range have content, too: they are swapped out, or missing from a core file.
    pub(crate) has_missing: bool,
}

impl Present {
    /// Adds a range that follows the other ones.
    pub(super) fn push(&mut self, range: Range<u64>) {
        match self.ranges.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.ranges.push(range),
        }
    }
}

/// Returns the pages of an address range that are present. Pages at its ends count completely.
///
/// # Errors
/// The errors of open(2) and read(2).
pub(super) fn of_process(pid: Pid, range: &Range<Addr>) -> io::Result<Present> {
    let mut pagemap = ProcFile::open_at(pid, "pagemap", range.start.0 / PAGE * 8)?;
    let mut found = Present::default();
    let mut page = range.start.0 / PAGE * PAGE;
    let mut bytes = vec![0; 64 << 10];
    while page < range.end.0 {
        let wanted = (range.end.0 - page).div_ceil(PAGE).min(bytes.len() as u64 / 8);
        let read = pagemap.read(&mut bytes[..wanted as usize * 8])?;
        let (entries, _) = bytes[..read].as_chunks::<8>();
        if entries.is_empty() {
            break;
        }
        for entry in entries {
            let entry = u64::from_ne_bytes(*entry);
            if entry & PRESENT != 0 {
                found.push(page..page.saturating_add(PAGE));
            }
            found.has_missing |= entry & SWAPPED != 0;
            page = page.saturating_add(PAGE);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_touched_pages_are_present() {
        let pages = 64;
        let size = pages * PAGE as usize;
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel chooses the address of a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), size, access, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: the range is this mapping. Without huge pages, a write populates one page.
        assert_eq!(unsafe { libc::madvise(at, size, libc::MADV_NOHUGEPAGE) }, 0);
        let start = at as u64;
        let page = |index: u64| start + index * PAGE..start + (index + 1) * PAGE;
        for index in [3, 4, 60] {
            // SAFETY: the address is in the mapping, which is writable.
            unsafe { at.cast::<u8>().add(index * PAGE as usize).write(1) };
        }
        let pid = Pid(std::process::id());
        let of =
            |range: Range<u64>| of_process(pid, &(Addr(range.start)..Addr(range.end))).unwrap();
        let all = of(start..start + size as u64);
        assert_eq!(all.ranges, [page(3).start..page(4).end, page(60)]);
        let part = of(page(3).start + 8..page(4).start + 16);
        assert_eq!(part.ranges, &all.ranges[..1]);
        assert_eq!(of(page(10).start..page(50).end), Present::default());
        // SAFETY: nothing refers to the mapping any more.
        assert_eq!(unsafe { libc::munmap(at, size) }, 0);
    }
}

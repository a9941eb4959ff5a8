//! A bounded cache of the target's pages.
//!
//! vmStructs and the flag table refer to thousands of names. The names lie close together in libjvm's
//! read-only data, so one page holds about a hundred names. The parts of methods are close together,
//! too: they lie in metaspace in the order in which classes were loaded. Cached pages are never
//! refreshed, so a cache should be used for one pass over the target only.

use crate::{
    Addr, Error, Result,
    hotspot::hashing::NumberMap,
    process::memory::{MAX_BYTES, Memory},
};

/// Size of a page in bytes.
pub(crate) const PAGE: usize = 4096;
/// Maximum number of pages, 4 MiB. JDK 8 to 25 need 60 to 180 pages for their tables.
const MAX_PAGES: usize = 1024;
/// Number of pages in a group, which are read together because adjacent pages are often needed next.
const GROUP: usize = 8;
/// Maximum number of groups of one range that are requested at once.
const MAX_GROUPS: usize = 32;
/// Maximum number of rounds in [`Pages::read_batched`]. A compiled method with everything that it refers to
/// needs about ten.
const MAX_ROUNDS: usize = 32;
/// Number of recently used pages that are found without a map lookup, by the lowest bits of their numbers.
const MAX_RECENT: usize = 64;
/// A number that no page has.
const NO_PAGE: u64 = u64::MAX;
/// Maximum length of a name in bytes. Names in the tables are C++ type names of up to about 100 bytes.
const MAX_NAME: usize = 1024;

/// Cache of the target's pages.
pub(crate) struct Pages<'a> {
    memory: &'a Memory,
    /// Contents of the pages, group by group.
    bytes: Vec<u8>,
    groups: Vec<Group>,
    /// Buffer for the groups of a request.
    incoming: Vec<u8>,
    /// Index of each group by its number.
    cached: NumberMap<u64, usize>,
    /// Recently used pages with their groups' indexes.
    recent: [(u64, usize); MAX_RECENT],
    /// Number of pages in a group.
    size: usize,
    /// Whether, once there are [`MAX_PAGES`], a further group replaces one that was not used recently. If
    /// not, reading a further group fails.
    replaces: bool,
    /// The group that was last considered for replacement (CLOCK algorithm).
    hand: usize,
    /// During [`Self::read_batched`]: groups that were requested but not read yet.
    missing: Option<Vec<u64>>,
}

/// Pages that were read together.
#[derive(Clone, Copy, Debug)]
struct Group {
    number: u64,
    /// Bit mask of the pages that could be read.
    read: u8,
    /// Whether it was used since the hand last passed it.
    is_used: bool,
}

impl<'a> Pages<'a> {
    /// Creates a cache for small tables. If they use more than [`MAX_PAGES`], reads fail.
    pub(crate) fn new(memory: &'a Memory) -> Self {
        Self {
            memory,
            bytes: Vec::new(),
            groups: Vec::new(),
            incoming: Vec::new(),
            cached: NumberMap::default(),
            recent: [(NO_PAGE, 0); MAX_RECENT],
            size: GROUP,
            replaces: false,
            hand: 0,
            missing: None,
        }
    }

    /// Creates a cache for scattered reads of any amount; pages are read one at a time.
    pub(crate) fn scattered(memory: &'a Memory) -> Self {
        Self { replaces: true, size: 1, ..Self::new(memory) }
    }

    /// Creates a cache for reads of any amount with adjacent addresses; pages are read in groups.
    pub(crate) fn sequential(memory: &'a Memory) -> Self {
        Self { replaces: true, ..Self::new(memory) }
    }

    /// Runs `read`, which reads the same data from time to time. The pages that the last run needed are read in one
    /// request beforehand; `needed` holds their addresses between the runs.
    pub(crate) fn read_repeatedly<R>(
        &mut self,
        needed: &mut Vec<Addr>,
        read: impl FnOnce(&mut Self) -> R,
    ) -> R {
        self.prefetch(needed.drain(..));
        self.groups.iter_mut().for_each(|group| group.is_used = false);
        let result = read(self);
        let used = self.groups.iter().filter(|group| group.is_used);
        needed.extend(used.map(|group| Addr(group.number * (self.size * PAGE) as u64)));
        result
    }

    /// Clears the cache, so that later reads return current contents.
    pub(crate) fn clear(&mut self) {
        self.groups.clear();
        self.cached.clear();
        self.recent = [(NO_PAGE, 0); MAX_RECENT];
    }

    /// Calls `ask` for each of `items`, and reads the pages that these calls need in as few requests as
    /// possible. If a call needs a page that is not cached, the read of that page fails. When the missing
    /// pages of all items have been read together, such calls are repeated. Therefore `ask` must not remember
    /// a failure.
    pub(crate) fn read_batched<T, R>(
        &mut self,
        items: &[T],
        mut ask: impl FnMut(&mut Self, &T) -> R,
    ) -> Vec<R> {
        let mut answers: Vec<Option<R>> = items.iter().map(|_| None).collect();
        for _ in 0..MAX_ROUNDS {
            let mut missing = Vec::new();
            for (item, answer) in items.iter().zip(&mut answers).filter(|(_, a)| a.is_none()) {
                self.missing = Some(Vec::new());
                let new = ask(self, item);
                match self.missing.take() {
                    Some(pages) if !pages.is_empty() => missing.extend(pages),
                    _ => *answer = Some(new),
                }
            }
            if missing.is_empty() {
                break;
            }
            self.load_all(missing);
        }
        // Items that need more than MAX_ROUNDS read their remaining pages without batches.
        let answers = items.iter().zip(answers);
        answers.map(|(item, answer)| answer.unwrap_or_else(|| ask(self, item))).collect()
    }

    /// Returns whether the present call of `ask` in [`Self::read_batched`] has failed to read a page that is not cached,
    /// and so will be repeated.
    pub(crate) fn awaits_pages(&self) -> bool {
        self.missing.as_ref().is_some_and(|missing| !missing.is_empty())
    }

    /// Reads the pages of some addresses in as few requests as possible. Unreadable pages cause an error
    /// only when they are used.
    pub(crate) fn prefetch(&mut self, addrs: impl IntoIterator<Item = Addr>) {
        let number = |addr: Addr| addr.0 / PAGE as u64 / self.size as u64;
        self.load_all(addrs.into_iter().map(number).collect());
    }

    /// Reads the given groups unless they are cached.
    fn load_all(&mut self, mut wanted: Vec<u64>) {
        wanted.sort_unstable();
        wanted.dedup();
        wanted.retain(|number| !self.cached.contains_key(number));
        // Half of the capacity is left to other groups.
        wanted.truncate(MAX_PAGES / self.size / 2);
        for some in wanted.chunks(MAX_BYTES / (self.size * PAGE)) {
            if self.load(some).is_err() {
                break;
            }
        }
    }

    /// Fills `buf` with the bytes at `addr`.
    pub(crate) fn read(&mut self, addr: Addr, buf: &mut [u8]) -> Result<()> {
        let mut at = addr.0;
        let mut rest = buf;
        if let Some(missing) = &mut self.missing {
            let group = |at: u64| at / PAGE as u64 / self.size as u64;
            let last = at.saturating_add(rest.len().saturating_sub(1) as u64);
            let behind = (group(at)..=group(last)).skip(1).take(MAX_GROUPS);
            missing.extend(behind.filter(|number| !self.cached.contains_key(number)));
        }
        while !rest.is_empty() {
            let from = self.tail(Addr(at))?;
            let len = from.len().min(rest.len());
            let (now, later) = rest.split_at_mut(len);
            now.copy_from_slice(&from[..len]);
            rest = later;
            at = at.saturating_add(len as u64);
        }
        Ok(())
    }

    /// Reads `len` bytes.
    pub(crate) fn bytes(&mut self, addr: Addr, len: usize) -> Result<Vec<u8>> {
        let mut buf = vec![0; len];
        self.read(addr, &mut buf)?;
        Ok(buf)
    }

    /// Reads an `N`-byte array.
    pub(crate) fn array<const N: usize>(&mut self, addr: Addr) -> Result<[u8; N]> {
        let mut buf = [0; N];
        self.read(addr, &mut buf)?;
        Ok(buf)
    }

    /// Reads a pointer.
    pub(crate) fn pointer(&mut self, addr: Addr) -> Result<Addr> {
        self.u64(addr).map(Addr)
    }

    /// Reads a 16-bit number.
    pub(crate) fn u16(&mut self, addr: Addr) -> Result<u16> {
        self.array(addr).map(u16::from_ne_bytes)
    }

    /// Reads a 64-bit number.
    pub(crate) fn u64(&mut self, addr: Addr) -> Result<u64> {
        let mut buf = [0; 8];
        self.read(addr, &mut buf)?;
        Ok(u64::from_ne_bytes(buf))
    }

    /// Reads a 32-bit number.
    pub(crate) fn u32(&mut self, addr: Addr) -> Result<u32> {
        let mut buf = [0; 4];
        self.read(addr, &mut buf)?;
        Ok(u32::from_ne_bytes(buf))
    }

    /// Reads a NUL-terminated name; one longer than MAX_NAME is an error.
    pub(crate) fn name(&mut self, addr: Addr) -> Result<String> {
        let mut bytes = Vec::new();
        let mut at = addr.0;
        while bytes.len() <= MAX_NAME {
            let from = self.tail(Addr(at))?;
            match from.iter().position(|&b| b == 0) {
                Some(end) if bytes.len() + end <= MAX_NAME => {
                    bytes.extend_from_slice(&from[..end]);
                    return Ok(String::from_utf8_lossy(&bytes).into_owned());
                }
                Some(_) => break,
                None => bytes.extend_from_slice(from),
            }
            at = at.saturating_add(from.len() as u64);
        }
        Err(Error::layout(format!("the name at {addr} does not end within {MAX_NAME} bytes")))
    }

    /// Returns the bytes from `addr` to the end of its page.
    fn tail(&mut self, addr: Addr) -> Result<&[u8]> {
        let number = addr.0 / PAGE as u64;
        let index = self.index(number)?;
        let page = (number % self.size as u64) as usize;
        let from = addr.0 as usize % PAGE;
        Ok(&self.bytes[(index * self.size + page) * PAGE..][from..PAGE])
    }

    /// Returns the index of a page's group. Reads the group if it is not cached.
    fn index(&mut self, number: u64) -> Result<usize> {
        let slot = number as usize % MAX_RECENT;
        if self.recent[slot].0 != number {
            let group = number / self.size as u64;
            if !self.cached.contains_key(&group) {
                if let Some(missing) = &mut self.missing {
                    missing.push(group);
                    return Err(Error::not_mapped(Addr(number * PAGE as u64), PAGE));
                }
                self.load(&[group])?;
            }
            let index = self.cached.get(&group).copied().unwrap_or_default();
            if self.groups[index].read >> (number % self.size as u64) & 1 == 0 {
                return Err(Error::not_mapped(Addr(number * PAGE as u64), PAGE));
            }
            self.recent[slot] = (number, index);
        }
        let (_, index) = self.recent[slot];
        self.groups[index].is_used = true;
        Ok(index)
    }

    /// Reads groups in one request.
    fn load(&mut self, numbers: &[u64]) -> Result<()> {
        let pages_of = |number: u64| (number * self.size as u64..).take(self.size);
        let pages = numbers.iter().copied().flat_map(pages_of);
        let pages: Vec<_> = pages.map(|page| Addr(page * PAGE as u64)).collect();
        let size = self.size * PAGE;
        let mut bytes = std::mem::take(&mut self.incoming);
        bytes.resize(bytes.len().max(numbers.len() * size), 0);
        let incoming = &mut bytes[..numbers.len() * size];
        let is_read = self.memory.read_blocks(&pages, PAGE, incoming)?;
        let read = is_read.chunks(self.size).zip(incoming.chunks(size));
        for (&number, (is_read, bytes)) in numbers.iter().zip(read) {
            let index = self.free_group()?;
            let read = is_read.iter().rev().fold(0, |bits, &is_read| bits << 1 | u8::from(is_read));
            self.groups[index] = Group { number, read, is_used: true };
            self.bytes[index * size..][..size].copy_from_slice(bytes);
            self.cached.insert(number, index);
        }
        self.incoming = bytes;
        Ok(())
    }

    /// Returns the index of a group that may be overwritten.
    fn free_group(&mut self) -> Result<usize> {
        let many = self.groups.len();
        if many < MAX_PAGES / self.size {
            self.groups.push(Group { number: NO_PAGE, read: 0, is_used: false });
            let end = (many + 1) * self.size * PAGE;
            if self.bytes.len() < end {
                self.bytes.resize(end, 0);
            }
            return Ok(many);
        }
        if !self.replaces {
            return Err(Error::layout(format!(
                "the tables use more than {MAX_PAGES} memory pages"
            )));
        }
        loop {
            self.hand = (self.hand + 1) % many;
            let group = &mut self.groups[self.hand];
            if !std::mem::take(&mut group.is_used) {
                self.cached.remove(&group.number);
                let pages = group.number * self.size as u64..;
                for page in pages.take(self.size) {
                    let recent = &mut self.recent[page as usize % MAX_RECENT];
                    if recent.0 == page {
                        recent.0 = NO_PAGE;
                    }
                }
                return Ok(self.hand);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;
    use crate::hotspot::testing::own_memory;

    /// Maps pages and writes the number of each page at its beginning. The first page is aligned to a group
    /// of pages.
    fn own_pages(many: usize) -> *mut u8 {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let size = (many + GROUP) * PAGE;
        // SAFETY: a new private mapping at an address that the kernel chooses.
        let at = unsafe { libc::mmap(null_mut(), size, access, kind, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let at = at.cast::<u8>();
        let at = at.wrapping_add(at.align_offset(GROUP * PAGE));
        for number in 0..many {
            // SAFETY: the page lies within the mapping, which has spare pages for the alignment.
            unsafe { at.add(number * PAGE).cast::<u64>().write(number as u64) };
        }
        at
    }

    fn page(at: *mut u8, number: usize) -> Addr {
        Addr(at as u64 + (number * PAGE) as u64)
    }

    #[test]
    fn reads_beside_an_unmapped_page_succeed() {
        let at = own_pages(3 * GROUP);
        let missing = [GROUP - 1, GROUP + 2];
        for number in missing {
            // SAFETY: the page was mapped above and has no further users.
            assert_eq!(unsafe { libc::munmap(at.add(number * PAGE).cast(), PAGE) }, 0);
        }
        let memory = own_memory();
        for mut pages in [Pages::new(&memory), Pages::sequential(&memory)] {
            for _ in 0..2 {
                for number in 0..3 * GROUP {
                    let read = pages.u64(page(at, number)).ok();
                    let expected = (!missing.contains(&number)).then_some(number as u64);
                    assert_eq!(read, expected, "{number}");
                }
            }
            // Reads across the end of a page, and across the end of a group.
            let across = |number: usize| Addr(page(at, number).0 - 4);
            assert_eq!(pages.u64(across(2 * GROUP)).unwrap(), (2 * GROUP as u64) << 32);
            assert_eq!(pages.u64(across(2)).unwrap(), 2 << 32);
            assert!(pages.u64(across(GROUP)).is_err());
        }
    }

    #[test]
    fn cached_pages_are_unchanged_until_clear() {
        let at = own_pages(GROUP);
        let memory = own_memory();
        let mut pages = Pages::sequential(&memory);
        assert_eq!(pages.u64(page(at, 1)).unwrap(), 1);
        // SAFETY: the second of the pages mapped above.
        unsafe { at.add(PAGE).cast::<u64>().write(77) };
        assert_eq!(pages.u64(page(at, 1)).unwrap(), 1);
        pages.clear();
        assert_eq!(pages.u64(page(at, 1)).unwrap(), 77);
    }

    #[test]
    fn repeated_reading_begins_with_the_pages_that_the_last_one_needed() {
        let at = own_pages(GROUP);
        let memory = own_memory();
        let mut needed = Vec::new();
        for numbers in [&[1, 3][..], &[3, 1, 5], &[5], &[]] {
            let mut pages = Pages::scattered(&memory);
            let before = needed.clone();
            pages.read_repeatedly(&mut needed, |pages| {
                assert!(
                    before.iter().all(|page| pages.cached.contains_key(&(page.0 / PAGE as u64)))
                );
                assert_eq!(pages.groups.len(), before.len());
                numbers.iter().for_each(|&n| assert_eq!(pages.u64(page(at, n)).unwrap(), n as u64));
            });
            needed.sort_unstable();
            let mut expected: Vec<_> = numbers.iter().map(|&number| page(at, number)).collect();
            expected.sort_unstable();
            assert_eq!(needed, expected);
        }
    }

    #[test]
    fn full_cache_evicts_pages_or_rejects_reads() {
        let many = 2 * MAX_PAGES + GROUP;
        let at = own_pages(many);
        let memory = own_memory();
        for mut pages in [Pages::scattered(&memory), Pages::sequential(&memory)] {
            for number in (0..many).chain((0..many).rev()) {
                assert_eq!(pages.u64(page(at, number)).unwrap(), number as u64);
                assert!(pages.bytes.len() <= MAX_PAGES * PAGE);
            }
        }
        let mut pages = Pages::new(&memory);
        let first_error = (0..many).find(|&number| pages.u64(page(at, number)).is_err());
        assert_eq!(first_error, Some(MAX_PAGES));
    }

    #[test]
    fn prefetched_pages_return_their_content_at_prefetch_time() {
        let many = MAX_PAGES / 4;
        let at = own_pages(many);
        // SAFETY: the page was mapped above and has no further users.
        assert_eq!(unsafe { libc::munmap(at.add(5 * PAGE).cast(), PAGE) }, 0);
        let memory = own_memory();
        for mut pages in [Pages::scattered(&memory), Pages::sequential(&memory)] {
            pages.prefetch((0..many).rev().map(|number| page(at, number)).chain([Addr(8)]));
            for number in (0..many).filter(|&number| number != 5) {
                // SAFETY: the page lies within the part that is still mapped.
                let word = unsafe { &mut *at.add(number * PAGE).cast::<u64>() };
                *word = 77;
                assert_eq!(pages.u64(page(at, number)).unwrap(), number as u64);
                *word = number as u64;
            }
            assert!(pages.u64(page(at, 5)).is_err() && pages.u64(Addr(8)).is_err());
        }
    }

    #[test]
    fn batched_pointer_chains_need_one_round_per_level() {
        const LISTS: usize = 20;
        const DEPTH: usize = 5;
        let at = own_pages(LISTS * DEPTH);
        // Each page of a list holds the address of the list's next page; the last page holds the list's
        // number. The first fifth of the memory holds the first page of every list, the second fifth the
        // second page, and so on.
        for list in 0..LISTS {
            for depth in 0..DEPTH {
                let next = page(at, (depth + 1) * LISTS + list);
                let next = if depth + 1 < DEPTH { next.0 } else { list as u64 };
                // SAFETY: the page lies within the mapping.
                unsafe { at.add((depth * LISTS + list) * PAGE).cast::<u64>().write(next) };
            }
        }
        let memory = own_memory();
        let mut pages = Pages::scattered(&memory);
        let mut asked = 0;
        let heads: Vec<_> = (0..LISTS).map(|list| page(at, list)).chain([Addr(8)]).collect();
        let ends = pages.read_batched(&heads, |pages, head| {
            asked += 1;
            (1..DEPTH).try_fold(*head, |at, _| pages.pointer(at)).and_then(|at| pages.u64(at)).ok()
        });
        let expected: Vec<_> = (0..LISTS as u64).map(Some).chain([None]).collect();
        assert_eq!(ends, expected);
        // For each list, DEPTH calls lacked a page and one more call succeeded. The unmapped address took two
        // calls.
        assert_eq!(asked, LISTS * (DEPTH + 1) + 2);
        // A range larger than a group, and more items than the cache can hold.
        let mut pages = Pages::sequential(&memory);
        let whole = pages.read_batched(&[page(at, 0)], |pages, &at| pages.bytes(at, LISTS * PAGE));
        assert!(whole[0].as_ref().is_ok_and(|bytes| bytes.len() == LISTS * PAGE));
        let at = own_pages(2 * MAX_PAGES);
        let all: Vec<_> = (0..2 * MAX_PAGES).map(|number| page(at, number)).collect();
        let words = Pages::sequential(&memory).read_batched(&all, |pages, &at| pages.u64(at).ok());
        assert_eq!(words, (0..2 * MAX_PAGES as u64).map(Some).collect::<Vec<_>>());
    }

    #[test]
    fn page_in_use_is_not_evicted() {
        let many = 2 * MAX_PAGES - 4 * GROUP;
        let at = own_pages(many);
        let memory = own_memory();
        let mut pages = Pages::sequential(&memory);
        // The first page of the third group.
        let used = 2 * GROUP;
        for number in 0..many {
            if number >= used {
                assert_eq!(pages.u64(page(at, used)).unwrap(), used as u64, "{number}");
                // SAFETY: one of the pages mapped above.
                unsafe { at.add(used * PAGE).cast::<u64>().write(77) };
            }
            if number != used {
                assert_eq!(pages.u64(page(at, number)).unwrap(), number as u64);
            }
        }
    }
}

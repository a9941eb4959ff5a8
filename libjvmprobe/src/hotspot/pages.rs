//! A bounded cache of the target's pages.
//!
//! vmStructs and the flag table hold thousands of names. They lie close together
//! in libjvm's read-only data, so a page read once answers a hundred of them. So it is
//! with methods, whose parts lie in metaspace in the order in which classes were loaded.
//! What was read stays as it was: a cache is for one look at the target.

use crate::{
    Addr, Error, Result,
    hotspot::hashing::NumberMap,
    process::memory::{MAX_BYTES, Memory},
};

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;
/// Maximum number of pages, 4 MiB. JDK 8 to 25 need 60 to 180 pages for their tables.
const MAX_PAGES: usize = 1024;
/// Number of pages that are read together: those beside one are most often asked for next.
const GROUP: usize = 8;
/// Maximum number of groups of one block of memory that are asked for at once.
const MAX_GROUPS: usize = 32;
/// Maximum number of times that a thing asks for a page that was not read yet. A compiled method with all that it
/// refers to asks about ten times.
const MAX_ROUNDS: usize = 32;
/// Number of pages that are found without a look into the map, by the lowest bits of their numbers.
const FOUND: usize = 64;
/// The number of no page.
const NO_PAGE: u64 = u64::MAX;
/// Names in the tables are C++ type names: long ones have about 100 bytes.
const MAX_NAME: usize = 1024;

/// Pages of the target read so far.
pub(crate) struct Pages<'a> {
    memory: &'a Memory,
    /// The pages, group by group.
    bytes: Vec<u8>,
    groups: Vec<Group>,
    /// Buffer for the groups of a request.
    incoming: Vec<u8>,
    /// Index of each group by its number.
    known: NumberMap<u64, usize>,
    /// Pages that were asked for last, with their groups' indexes: most often it is one of them again.
    found: [(u64, usize); FOUND],
    /// Number of pages in a group.
    size: usize,
    /// Whether a group that was not used for long gives way to a new one when there are [`MAX_PAGES`].
    replaces: bool,
    /// The group that gives way next unless it was used (CLOCK).
    hand: usize,
    /// Within [`Self::together`]: the groups that were asked for and not read yet.
    missing: Option<Vec<u64>>,
}

/// Pages that were read together.
#[derive(Clone, Copy, Debug)]
struct Group {
    number: u64,
    /// The pages that could be read: a bit for each.
    read: u8,
    /// Whether it was asked for since the hand last passed by.
    is_used: bool,
}

impl<'a> Pages<'a> {
    /// A cache for tables, which are small: more than [`MAX_PAGES`] are an error.
    pub(crate) fn new(memory: &'a Memory) -> Self {
        Self {
            memory,
            bytes: Vec::new(),
            groups: Vec::new(),
            incoming: Vec::new(),
            known: NumberMap::default(),
            found: [(NO_PAGE, 0); FOUND],
            size: GROUP,
            replaces: false,
            hand: 0,
            missing: None,
        }
    }

    /// A cache for anything of any size that is read here and there.
    pub(crate) fn many(memory: &'a Memory) -> Self {
        Self { replaces: true, size: 1, ..Self::new(memory) }
    }

    /// A cache for anything of any size whose parts lie beside each other.
    pub(crate) fn ahead(memory: &'a Memory) -> Self {
        Self { replaces: true, ..Self::new(memory) }
    }

    /// Forgets what was read: what is asked for from now on is as it is then.
    pub(crate) fn forget(&mut self) {
        self.groups.clear();
        self.known.clear();
        self.found = [(NO_PAGE, 0); FOUND];
    }

    /// Asks for each of some things, and reads the pages that all of them need in as few requests as possible:
    /// what asks for a page that was not read fails, and is asked again when all such pages have been read.
    /// `ask` must not remember that something failed.
    pub(crate) fn together<T, R>(
        &mut self,
        things: &[T],
        mut ask: impl FnMut(&mut Self, &T) -> R,
    ) -> Vec<R> {
        let mut answers: Vec<Option<R>> = things.iter().map(|_| None).collect();
        for _ in 0..MAX_ROUNDS {
            let mut missing = Vec::new();
            for (thing, answer) in things.iter().zip(&mut answers).filter(|(_, a)| a.is_none()) {
                self.missing = Some(Vec::new());
                let new = ask(self, thing);
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
        // A thing that needs more rounds is read page by page.
        let answers = things.iter().zip(answers);
        answers.map(|(thing, answer)| answer.unwrap_or_else(|| ask(self, thing))).collect()
    }

    /// Reads the pages that hold some addresses, in as few requests as possible. What cannot be read is an error
    /// when it is asked for.
    pub(crate) fn prefetch(&mut self, addrs: impl IntoIterator<Item = Addr>) {
        let number = |addr: Addr| addr.0 / PAGE as u64 / self.size as u64;
        self.load_all(addrs.into_iter().map(number).collect());
    }

    /// Reads groups that were not read yet.
    fn load_all(&mut self, mut wanted: Vec<u64>) {
        wanted.sort_unstable();
        wanted.dedup();
        wanted.retain(|number| !self.known.contains_key(number));
        // Others remain, too.
        wanted.truncate(MAX_PAGES / self.size / 2);
        for some in wanted.chunks(MAX_BYTES / (self.size * PAGE)) {
            if self.load(some).is_err() {
                break;
            }
        }
    }

    /// Fills `buf` from `addr` on.
    pub(crate) fn read(&mut self, addr: Addr, buf: &mut [u8]) -> Result<()> {
        let mut at = addr.0;
        let mut rest = buf;
        if let Some(missing) = &mut self.missing {
            let group = |at: u64| at / PAGE as u64 / self.size as u64;
            let last = at.saturating_add(rest.len().saturating_sub(1) as u64);
            let behind = (group(at)..=group(last)).skip(1).take(MAX_GROUPS);
            missing.extend(behind.filter(|number| !self.known.contains_key(number)));
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

    /// Follows a pointer.
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

    /// Reads a NUL-terminated name; an endless one is an error.
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
        Err(Error::layout(format!("the name at {addr} does not end")))
    }

    /// The page that holds `addr`, from there to its end.
    fn tail(&mut self, addr: Addr) -> Result<&[u8]> {
        let number = addr.0 / PAGE as u64;
        let index = self.index(number)?;
        let page = (number % self.size as u64) as usize;
        let from = addr.0 as usize % PAGE;
        Ok(&self.bytes[(index * self.size + page) * PAGE..][from..PAGE])
    }

    /// The index of the group of a page that could be read.
    fn index(&mut self, number: u64) -> Result<usize> {
        let slot = number as usize % FOUND;
        if self.found[slot].0 != number {
            let group = number / self.size as u64;
            if !self.known.contains_key(&group) {
                if let Some(missing) = &mut self.missing {
                    missing.push(group);
                    return Err(Error::not_mapped(Addr(number * PAGE as u64), PAGE));
                }
                self.load(&[group])?;
            }
            let index = self.known.get(&group).copied().unwrap_or_default();
            if self.groups[index].read >> (number % self.size as u64) & 1 == 0 {
                return Err(Error::not_mapped(Addr(number * PAGE as u64), PAGE));
            }
            self.found[slot] = (number, index);
        }
        let (_, index) = self.found[slot];
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
            let index = self.free()?;
            let read = is_read.iter().rev().fold(0, |bits, &is_read| bits << 1 | u8::from(is_read));
            self.groups[index] = Group { number, read, is_used: true };
            self.bytes[index * size..][..size].copy_from_slice(bytes);
            self.known.insert(number, index);
        }
        self.incoming = bytes;
        Ok(())
    }

    /// The index of a group that may be overwritten.
    fn free(&mut self) -> Result<usize> {
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
            return Err(Error::layout("the tables are scattered over too much memory"));
        }
        loop {
            self.hand = (self.hand + 1) % many;
            let group = &mut self.groups[self.hand];
            if !std::mem::take(&mut group.is_used) {
                self.known.remove(&group.number);
                let pages = group.number * self.size as u64..;
                for page in pages.take(self.size) {
                    let found = &mut self.found[page as usize % FOUND];
                    if found.0 == page {
                        found.0 = NO_PAGE;
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

    /// Pages of our own, at an address that many pages at once may begin at; each begins with its
    /// number.
    fn own_pages(many: usize) -> *mut u8 {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let size = (many + GROUP) * PAGE;
        // SAFETY: memory of its own, anywhere.
        let at = unsafe { libc::mmap(null_mut(), size, access, kind, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let at = at.cast::<u8>();
        let at = at.wrapping_add(at.align_offset(GROUP * PAGE));
        for number in 0..many {
            // SAFETY: within what was mapped, with room for the alignment.
            unsafe { at.add(number * PAGE).cast::<u64>().write(number as u64) };
        }
        at
    }

    fn page(at: *mut u8, number: usize) -> Addr {
        Addr(at as u64 + (number * PAGE) as u64)
    }

    #[test]
    fn pages_beside_one_that_is_missing_are_read() {
        let at = own_pages(3 * GROUP);
        let missing = [GROUP - 1, GROUP + 2];
        for number in missing {
            // SAFETY: a page that was mapped above, and is not used any more.
            assert_eq!(unsafe { libc::munmap(at.add(number * PAGE).cast(), PAGE) }, 0);
        }
        let memory = own_memory();
        for mut pages in [Pages::new(&memory), Pages::ahead(&memory)] {
            for _ in 0..2 {
                for number in 0..3 * GROUP {
                    let read = pages.u64(page(at, number)).ok();
                    let expected = (!missing.contains(&number)).then_some(number as u64);
                    assert_eq!(read, expected, "{number}");
                }
            }
            // Across the end of a page, and of those that are read at once.
            let across = |number: usize| Addr(page(at, number).0 - 4);
            assert_eq!(pages.u64(across(2 * GROUP)).unwrap(), (2 * GROUP as u64) << 32);
            assert_eq!(pages.u64(across(2)).unwrap(), 2 << 32);
            assert!(pages.u64(across(GROUP)).is_err());
        }
    }

    #[test]
    fn pages_stay_as_they_were_until_they_are_forgotten() {
        let at = own_pages(GROUP);
        let memory = own_memory();
        let mut pages = Pages::ahead(&memory);
        assert_eq!(pages.u64(page(at, 1)).unwrap(), 1);
        // SAFETY: the second of the pages that were mapped above.
        unsafe { at.add(PAGE).cast::<u64>().write(77) };
        assert_eq!(pages.u64(page(at, 1)).unwrap(), 1);
        pages.forget();
        assert_eq!(pages.u64(page(at, 1)).unwrap(), 77);
    }

    #[test]
    fn a_full_cache_replaces_pages_or_refuses_more() {
        let many = 2 * MAX_PAGES + GROUP;
        let at = own_pages(many);
        let memory = own_memory();
        for mut pages in [Pages::many(&memory), Pages::ahead(&memory)] {
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
    fn prefetched_pages_are_as_they_were_then() {
        let many = MAX_PAGES / 4;
        let at = own_pages(many);
        // SAFETY: a page that was mapped above, and is not used any more.
        assert_eq!(unsafe { libc::munmap(at.add(5 * PAGE).cast(), PAGE) }, 0);
        let memory = own_memory();
        for mut pages in [Pages::many(&memory), Pages::ahead(&memory)] {
            pages.prefetch((0..many).rev().map(|number| page(at, number)).chain([Addr(8)]));
            for number in (0..many).filter(|&number| number != 5) {
                // SAFETY: within what was mapped and is still there.
                let word = unsafe { &mut *at.add(number * PAGE).cast::<u64>() };
                *word = 77;
                assert_eq!(pages.u64(page(at, number)).unwrap(), number as u64);
                *word = number as u64;
            }
            assert!(pages.u64(page(at, 5)).is_err() && pages.u64(Addr(8)).is_err());
        }
    }

    #[test]
    fn what_is_asked_for_together_is_read_in_as_many_requests_as_it_is_deep() {
        const LISTS: usize = 20;
        const DEPTH: usize = 5;
        let at = own_pages(LISTS * DEPTH);
        // In each page but the last of a list, the address of the next: one in each fifth of the memory.
        for list in 0..LISTS {
            for depth in 0..DEPTH {
                let next = page(at, (depth + 1) * LISTS + list);
                let next = if depth + 1 < DEPTH { next.0 } else { list as u64 };
                // SAFETY: within what was mapped.
                unsafe { at.add((depth * LISTS + list) * PAGE).cast::<u64>().write(next) };
            }
        }
        let memory = own_memory();
        let mut pages = Pages::many(&memory);
        let mut asked = 0;
        let heads: Vec<_> = (0..LISTS).map(|list| page(at, list)).chain([Addr(8)]).collect();
        let ends = pages.together(&heads, |pages, head| {
            asked += 1;
            (1..DEPTH).try_fold(*head, |at, _| pages.pointer(at)).and_then(|at| pages.u64(at)).ok()
        });
        let expected: Vec<_> = (0..LISTS as u64).map(Some).chain([None]).collect();
        assert_eq!(ends, expected);
        // Each time but the last something was missing, of which the address without a page took one time.
        assert_eq!(asked, LISTS * (DEPTH + 1) + 2);
        // Larger than a group, and with more things than there is room for.
        let mut pages = Pages::ahead(&memory);
        let whole = pages.together(&[page(at, 0)], |pages, &at| pages.bytes(at, LISTS * PAGE));
        assert!(whole[0].as_ref().is_ok_and(|bytes| bytes.len() == LISTS * PAGE));
        let at = own_pages(2 * MAX_PAGES);
        let all: Vec<_> = (0..2 * MAX_PAGES).map(|number| page(at, number)).collect();
        let words = Pages::ahead(&memory).together(&all, |pages, &at| pages.u64(at).ok());
        assert_eq!(words, (0..2 * MAX_PAGES as u64).map(Some).collect::<Vec<_>>());
    }

    #[test]
    fn pages_in_use_stay_where_others_are_replaced() {
        let many = 2 * MAX_PAGES - 4 * GROUP;
        let at = own_pages(many);
        let memory = own_memory();
        let mut pages = Pages::ahead(&memory);
        // The third group of those that are read first.
        let used = 2 * GROUP;
        for number in 0..many {
            if number >= used {
                assert_eq!(pages.u64(page(at, used)).unwrap(), used as u64, "{number}");
                // SAFETY: one of the pages that were mapped above.
                unsafe { at.add(used * PAGE).cast::<u64>().write(77) };
            }
            if number != used {
                assert_eq!(pages.u64(page(at, number)).unwrap(), number as u64);
            }
        }
    }
}

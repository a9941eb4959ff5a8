//! A bounded cache of the target's pages.
//!
//! vmStructs and the flag table hold thousands of names. They lie close together
//! in libjvm's read-only data, so a page read once answers a hundred of them. So it is
//! with methods, whose parts lie in metaspace in the order in which classes were loaded.
//! What was read stays as it was: a cache is for one look at the target.

use crate::{Addr, Error, Result, hotspot::hashing::NumberMap, process::memory::Memory};

const PAGE: usize = 4096;
/// 4 MiB. JDK 8 to 25 need 60 to 180 pages for their tables.
const MAX_PAGES: usize = 1024;
/// 8 MiB at a time for a code cache of any size.
const MANY_PAGES: usize = 2048;
/// So many pages are read at once where most of those beside one are asked for next: each takes half
/// as long then.
const AT_ONCE: usize = 8;
/// Where so many pages were found last, by the lowest bits of their numbers.
const FOUND: usize = 64;
/// The number of no page.
const NO_PAGE: u64 = u64::MAX;
/// Names in the tables are C++ type names: long ones have about 100 bytes.
const MAX_NAME: usize = 1024;

/// Pages of the target read so far.
pub(crate) struct Pages<'a> {
    memory: &'a Memory,
    /// The pages, one behind the other, and how many of them are in use.
    bytes: Vec<u8>,
    used: usize,
    /// Which page, by its number, is the how manieth.
    known: NumberMap<u64, usize>,
    /// Those that were asked for last: most often it is one of them again.
    found: [(u64, usize); FOUND],
    /// How many at most; and whether to begin again then, or to give up.
    room: usize,
    begins_again: bool,
    /// How many are read at once.
    at_once: usize,
}

impl<'a> Pages<'a> {
    /// For tables, which are small.
    pub(crate) fn new(memory: &'a Memory) -> Self {
        Self {
            memory,
            bytes: Vec::new(),
            used: 0,
            known: NumberMap::default(),
            found: [(NO_PAGE, 0); FOUND],
            room: MAX_PAGES,
            begins_again: false,
            at_once: 1,
        }
    }

    /// For what may be of any size: when it is full, it is emptied.
    pub(crate) fn many(memory: &'a Memory) -> Self {
        Self { room: MANY_PAGES, begins_again: true, ..Self::new(memory) }
    }

    /// For what is of any size, too, and is read from one end to the other, more or less.
    pub(crate) fn ahead(memory: &'a Memory) -> Self {
        Self { at_once: AT_ONCE, ..Self::many(memory) }
    }

    /// Forgets what was read: what is asked for from now on is as it is then.
    pub(crate) fn forget(&mut self) {
        self.used = 0;
        self.known.clear();
        self.found = [(NO_PAGE, 0); FOUND];
    }

    /// Fills `buf` from `addr` on.
    pub(crate) fn read(&mut self, addr: Addr, buf: &mut [u8]) -> Result<()> {
        let mut at = addr.0;
        let mut rest = buf;
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
        let index = self.index(addr.0 / PAGE as u64)?;
        let from = addr.0 as usize % PAGE;
        Ok(&self.bytes[index * PAGE..][from..PAGE])
    }

    /// Where a page is among those that were read.
    fn index(&mut self, number: u64) -> Result<usize> {
        let slot = number as usize % FOUND;
        if self.found[slot].0 != number {
            let index = match self.known.get(&number) {
                Some(&index) => index,
                None => self.load(number)?,
            };
            self.found[slot] = (number, index);
        }
        Ok(self.found[slot].1)
    }

    /// Reads a page, and those beside it where all of them can be read.
    fn load(&mut self, number: u64) -> Result<usize> {
        if self.used + self.at_once > self.room {
            if !self.begins_again {
                return Err(Error::layout("the tables are scattered over too much memory"));
            }
            self.forget();
        }
        let end = (self.used + self.at_once) * PAGE;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        let first = number - number % self.at_once as u64;
        let (first, many) = match self.fill(first, self.at_once) {
            Err(_) if self.at_once > 1 => (number, self.fill(number, 1).map(|()| 1)?),
            filled => (first, filled.map(|()| self.at_once)?),
        };
        for number in first..first + many as u64 {
            self.known.insert(number, self.used);
            self.used += 1;
        }
        Ok(self.used - many + (number - first) as usize)
    }

    /// Reads pages behind those that are in use.
    fn fill(&mut self, first: u64, many: usize) -> Result<()> {
        let begin = self.used * PAGE;
        let room = &mut self.bytes[begin..begin + many * PAGE];
        self.memory.read_into(Addr(first * PAGE as u64), room)
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
        let size = (many + AT_ONCE) * PAGE;
        // SAFETY: memory of its own, anywhere.
        let at = unsafe { libc::mmap(null_mut(), size, access, kind, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let at = at.cast::<u8>();
        let at = at.wrapping_add(at.align_offset(AT_ONCE * PAGE));
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
        let at = own_pages(3 * AT_ONCE);
        let missing = [AT_ONCE - 1, AT_ONCE + 2];
        for number in missing {
            // SAFETY: a page that was mapped above, and is not used any more.
            assert_eq!(unsafe { libc::munmap(at.add(number * PAGE).cast(), PAGE) }, 0);
        }
        let memory = own_memory();
        for mut pages in [Pages::new(&memory), Pages::ahead(&memory)] {
            for _ in 0..2 {
                for number in 0..3 * AT_ONCE {
                    let read = pages.u64(page(at, number)).ok();
                    let expected = (!missing.contains(&number)).then_some(number as u64);
                    assert_eq!(read, expected, "{number}");
                }
            }
            // Across the end of a page, and of those that are read at once.
            let across = |number: usize| Addr(page(at, number).0 - 4);
            assert_eq!(pages.u64(across(2 * AT_ONCE)).unwrap(), (2 * AT_ONCE as u64) << 32);
            assert_eq!(pages.u64(across(2)).unwrap(), 2 << 32);
            assert!(pages.u64(across(AT_ONCE)).is_err());
        }
    }

    #[test]
    fn what_was_read_stays_until_it_is_forgotten() {
        let at = own_pages(AT_ONCE);
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
    fn there_is_room_for_so_many() {
        let many = 2 * MANY_PAGES + AT_ONCE;
        let at = own_pages(many);
        let memory = own_memory();
        for mut pages in [Pages::many(&memory), Pages::ahead(&memory)] {
            for number in (0..many).chain((0..many).rev()) {
                assert_eq!(pages.u64(page(at, number)).unwrap(), number as u64);
                assert!(pages.bytes.len() <= MANY_PAGES * PAGE);
            }
        }
        let mut pages = Pages::new(&memory);
        let first_error = (0..many).find(|&number| pages.u64(page(at, number)).is_err());
        assert_eq!(first_error, Some(MAX_PAGES));
    }
}

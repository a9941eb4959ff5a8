//! A bounded cache of the target's pages.
//!
//! vmStructs and the flag table hold thousands of names. They lie close together
//! in libjvm's read-only data, so a page read once answers a hundred of them. So it is
//! with methods, whose parts lie in metaspace in the order in which classes were loaded.
//! What was read stays as it was: a cache is for one look at the target.

use std::collections::HashMap;

use crate::{Addr, Error, Result, process::memory::Memory};

const PAGE: u64 = 4096;
/// 4 MiB. JDK 8 to 25 need 60 to 180 pages for their tables.
const MAX_PAGES: usize = 1024;
/// 8 MiB at a time for a code cache of any size.
const MANY_PAGES: usize = 2048;
/// Names in the tables are C++ type names: long ones have about 100 bytes.
const MAX_NAME: usize = 1024;

/// Pages of the target read so far.
pub(crate) struct Pages<'a> {
    memory: &'a Memory,
    pages: HashMap<u64, Box<[u8; PAGE as usize]>>,
    /// How many at most; and whether to begin again then, or to give up.
    room: usize,
    begins_again: bool,
}

impl<'a> Pages<'a> {
    /// For tables, which are small.
    pub(crate) fn new(memory: &'a Memory) -> Self {
        Self { memory, pages: HashMap::new(), room: MAX_PAGES, begins_again: false }
    }

    /// For what may be of any size: when it is full, it is emptied.
    pub(crate) fn many(memory: &'a Memory) -> Self {
        Self { memory, pages: HashMap::new(), room: MANY_PAGES, begins_again: true }
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
        let number = addr.0 / PAGE;
        let from = (addr.0 % PAGE) as usize;
        if !self.pages.contains_key(&number) {
            if self.pages.len() >= self.room {
                if !self.begins_again {
                    return Err(Error::layout("the tables are scattered over too much memory"));
                }
                self.pages.clear();
            }
            let page = self.memory.array(Addr(number * PAGE))?;
            self.pages.insert(number, Box::new(page));
        }
        Ok(&self.pages[&number][from..])
    }
}

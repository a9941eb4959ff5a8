//! Reads the target's memory: limited in size and time, without writing to it or stopping the target.
//!
//! The target is a process, or a core file with the memory of a process: see `crate::process::core_file`.
//!
//! A reader process makes the reads of a process: see `crate::process::reader`. An open `/proc/PID/mem` is bound to the
//! address space that existed when it was opened (proc(5)). After each read, the reader process checks that
//! this address space still exists. So if the target has run another program (exec), or has ended and its PID
//! was reused, the read fails and never returns another program's memory.

#[cfg(feature = "fuzzing")]
use std::fs::File;
use std::{ops::Range, sync::Arc};

pub(crate) use crate::process::reader::MAX_BYTES;
use crate::{
    Addr, Error, Pid, Result,
    process::{
        cgroup::tenant_of,
        core_file::CoreMemory,
        present::{self, Present},
        reader::MemoryFile,
    },
    sys::budget::{Budget, Share},
};

/// Maximum size of a single read in bytes; anything larger is a corrupt length, not data.
const MAX_READ: usize = 16 << 20;

/// Access to the memory of one process or core file. Clones share the open file.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Source>);

#[derive(Debug)]
enum Source {
    Process(MemoryFile),
    Core(CoreMemory),
    #[cfg(feature = "fuzzing")]
    File(File),
}

impl Memory {
    /// Opens the memory of a process for reading.
    ///
    /// # Errors
    /// [`Error::Permission`] without `CAP_SYS_PTRACE` over the target, [`Error::Io`] if the process has ended.
    pub fn open(pid: Pid) -> Result<Self> {
        match MemoryFile::open(pid) {
            Ok(file) => Ok(Self(Arc::new(Source::Process(file)))),
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => Err(Error::Permission {
                what: format!("read the memory of process {pid}"),
                missing: "CAP_SYS_PTRACE is missing".into(),
            }),
            Err(e) => Err(Error::io(format!("open /proc/{pid}/mem"), e)),
        }
    }

    /// Uses the memory in a core file.
    pub(super) fn of_core(core: CoreMemory) -> Self {
        Self(Arc::new(Source::Core(core)))
    }

    /// Uses a file as memory: the byte at each address is the byte at that file offset.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn of_file(file: File) -> Self {
        Self(Arc::new(Source::File(file)))
    }

    /// Returns the share of this process's budget from which data about this memory's owner is reserved. Core files have
    /// one share.
    pub(crate) fn share(&self) -> Share {
        let tenant = match &*self.0 {
            Source::Process(file) => tenant_of(file.pid()),
            Source::Core(_) => "core files".into(),
            #[cfg(feature = "fuzzing")]
            Source::File(_) => "files".into(),
        };
        Budget::of_process().share(&tenant)
    }

    /// Fills `buf` with memory from `addr` on; fails unless all of it can be read.
    ///
    /// # Errors
    /// [`Error::Memory`] if it is not mapped, or does not answer within one second.
    pub(crate) fn read_into(&self, addr: Addr, buf: &mut [u8]) -> Result<()> {
        let mut at = addr;
        for part in buf.chunks_mut(MAX_BYTES) {
            let len = part.len();
            if self.read_blocks(&[at], len, part)? != [true] {
                return Err(Error::not_mapped(addr, len));
            }
            at = Addr(at.0.wrapping_add(len as u64));
        }
        Ok(())
    }

    /// Reads blocks of `size` bytes (at most 1 MiB) with as few requests as possible, and stores them one
    /// after another in `to`. Returns for each block whether it could be read.
    ///
    /// # Errors
    /// [`Error::Memory`] if the process has ended, or its memory does not answer within one second.
    pub(crate) fn read_blocks(
        &self,
        blocks: &[Addr],
        size: usize,
        to: &mut [u8],
    ) -> Result<Vec<bool>> {
        let len = to.len();
        let read = match &*self.0 {
            Source::Process(file) => file.read_blocks(blocks, size, to),
            Source::Core(core) => {
                let blocks = blocks.iter().zip(to.chunks_mut(size.max(1)));
                Ok(blocks.map(|(at, to)| core.read(*at, to)).collect())
            }
            #[cfg(feature = "fuzzing")]
            Source::File(file) => {
                use std::os::unix::fs::FileExt;
                let blocks = blocks.iter().zip(to.chunks_mut(size.max(1)));
                Ok(blocks.map(|(at, to)| file.read_exact_at(to, at.0).is_ok()).collect())
            }
        };
        let addr = blocks.first().copied().unwrap_or(Addr(0));
        read.map_err(|source| Error::Memory { addr, len, source })
    }

    /// Returns which pages of an address range can be read without swapping or populating a page.
    ///
    /// # Errors
    /// [`Error::Io`] if the process has ended.
    pub(crate) fn present(&self, range: Range<Addr>) -> Result<Present> {
        match &*self.0 {
            Source::Process(file) => {
                let pid = file.pid();
                present::of_process(pid, &range)
                    .map_err(|e| Error::io(format!("read /proc/{pid}/pagemap"), e))
            }
            Source::Core(core) => Ok(core.present(&range)),
            #[cfg(feature = "fuzzing")]
            Source::File(file) => {
                // The rest of the file has no content.
                let size = file.metadata().map_or(0, |file| file.len());
                let start = range.start.0.max(size.saturating_sub(1 << 20));
                let mut found = Present::default();
                found.push(start..range.end.0.min(size).max(start));
                Ok(found)
            }
        }
    }

    /// Reads `len` bytes, at most 16 MiB.
    pub(crate) fn read(&self, addr: Addr, len: usize) -> Result<Vec<u8>> {
        if len > MAX_READ {
            return Err(Error::layout(format!("implausible length of {len} bytes at {addr}")));
        }
        let mut buf = vec![0; len];
        self.read_into(addr, &mut buf)?;
        Ok(buf)
    }

    /// Reads an `N`-byte array, for `u64::from_ne_bytes` and the like.
    pub(crate) fn array<const N: usize>(&self, addr: Addr) -> Result<[u8; N]> {
        let mut buf = [0; N];
        self.read_into(addr, &mut buf)?;
        Ok(buf)
    }

    /// Reads 64-bit words in as few requests as possible; returns `None` for each that cannot be read.
    ///
    /// # Errors
    /// Returns the errors of [`Self::read_blocks`].
    pub(crate) fn words(&self, addrs: &[Addr]) -> Result<Vec<Option<u64>>> {
        let mut bytes = vec![0; 8 * addrs.len()];
        let is_read = self.read_blocks(addrs, 8, &mut bytes)?;
        let words = bytes.as_chunks().0.iter().zip(is_read);
        Ok(words.map(|(&word, is_read)| is_read.then_some(u64::from_ne_bytes(word))).collect())
    }

    /// Reads a 64-bit number.
    pub(crate) fn u64(&self, addr: Addr) -> Result<u64> {
        self.array(addr).map(u64::from_ne_bytes)
    }

    /// Reads a 32-bit number.
    pub(crate) fn u32(&self, addr: Addr) -> Result<u32> {
        self.array(addr).map(u32::from_ne_bytes)
    }

    /// Follows a pointer: the 64-bit address stored at `addr`.
    pub(crate) fn pointer(&self, addr: Addr) -> Result<Addr> {
        self.u64(addr).map(Addr)
    }

    /// Reads a NUL-terminated string of at most `max` bytes, replacing invalid UTF-8.
    ///
    /// # Errors
    /// [`Error::Memory`] if the first byte cannot be read. A string that runs into an unreadable page or past `max` is
    /// cut there.
    pub(crate) fn c_string(&self, addr: Addr, max: usize) -> Result<String> {
        let mut bytes = Vec::new();
        let mut at = addr;
        while bytes.len() < max {
            // Only up to the end of the page, because the next one may not be mapped.
            let rest_of_page = 4096 - (at.0 % 4096) as usize;
            let len = rest_of_page.min(max - bytes.len());
            match self.read(at, len) {
                Ok(chunk) => match chunk.iter().position(|&b| b == 0) {
                    Some(end) => {
                        bytes.extend_from_slice(&chunk[..end]);
                        break;
                    }
                    None => bytes.extend_from_slice(&chunk),
                },
                Err(e) if bytes.is_empty() => return Err(e),
                Err(_) => break,
            }
            match at.checked_add(len as u64) {
                Some(next) => at = next,
                None => break,
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

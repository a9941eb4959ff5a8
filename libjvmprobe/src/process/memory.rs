//! Reading the target's memory: bounded in size and time, never writing, never stopping it.
//!
//! The open `/proc/PID/mem` is tied to the address space that it was opened on (proc(5)), so that a
//! target that execs or ends, and whose number is reused, is never mistaken for the one that was
//! checked. The read itself is made by a reader process: see `crate::process::reader`.

use std::fs::File;

use crate::{Addr, Error, Pid, Result, process::reader};

/// The longest single read; anything larger is a corrupt length, not data.
const MAX_READ: usize = 16 << 20;

/// A view of one process's memory.
#[derive(Debug)]
pub struct Memory {
    file: File,
    /// The process; `None` where the file is not a process's memory.
    pid: Option<Pid>,
}

impl Memory {
    /// Opens the memory of a process for reading.
    ///
    /// # Errors
    /// [`Error::Permission`] without `CAP_SYS_PTRACE` over the target,
    /// [`Error::Io`] when it is gone.
    pub fn open(pid: Pid) -> Result<Self> {
        let path = format!("/proc/{pid}/mem");
        match File::open(&path) {
            Ok(file) => Ok(Self { file, pid: Some(pid) }),
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => Err(Error::Permission {
                what: format!("read the memory of process {pid}"),
                missing: "CAP_SYS_PTRACE".into(),
            }),
            Err(e) => Err(Error::io(format!("open {path}"), e)),
        }
    }

    /// The memory that a file stands for, each byte at its position.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn of_file(file: File) -> Self {
        Self { file, pid: None }
    }

    /// Fills `buf` from `addr` on, whole or not at all.
    ///
    /// # Errors
    /// [`Error::Memory`] where it is not there, or does not answer within one second.
    pub fn read_into(&self, addr: Addr, buf: &mut [u8]) -> Result<()> {
        let read = match self.pid {
            Some(pid) => reader::read_memory(pid, &self.file, addr, buf),
            None => std::os::unix::fs::FileExt::read_exact_at(&self.file, buf, addr.0),
        };
        read.map_err(|source| Error::Memory { addr, len: buf.len(), source })
    }

    /// Reads `len` bytes, at most 16 MiB.
    pub(crate) fn read(&self, addr: Addr, len: usize) -> Result<Vec<u8>> {
        if len > MAX_READ {
            return Err(Error::layout(format!("a length of {len} bytes at {addr} is implausible")));
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
    /// [`Error::Memory`] where the first byte cannot be read. A string that runs
    /// into an unreadable page or past `max` is cut there.
    pub(crate) fn c_string(&self, addr: Addr, max: usize) -> Result<String> {
        let mut bytes = Vec::new();
        let mut at = addr;
        while bytes.len() < max {
            // Up to the end of the page: the next one may not be mapped.
            let room = 4096 - (at.0 % 4096) as usize;
            let len = room.min(max - bytes.len());
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

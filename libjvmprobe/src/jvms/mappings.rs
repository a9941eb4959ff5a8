//! Kernel events for mappings of libjvm.so.
//!
//! A software event that counts nothing (`PERF_COUNT_SW_DUMMY`), one per processor, records each executable
//! mapping on this machine with its process and file. It needs no tracefs, no BTF and no probe. PIDs are
//! those of our own PID namespace. The kernel writes the records of each event to a ring buffer. We read the
//! ring buffers periodically, so the events need not wake up a thread, and the main cost is to read the
//! records. Each program that starts causes about ten records, so a machine that starts a thousand programs
//! per second causes ten thousand records per second. Source: perf_event_open(2), "MMAP layout".

use std::{
    io,
    mem::offset_of,
    os::fd::{AsRawFd, OwnedFd},
    ptr::{NonNull, null_mut},
    sync::atomic::{AtomicU64, Ordering},
};

use libbpf_sys::{perf_event_attr, perf_event_mmap_page};

use crate::{Error, Pid, Result, bpf::perf};

/// `PERF_TYPE_SOFTWARE` and `PERF_COUNT_SW_DUMMY`.
const DUMMY: (u32, u64) = (1, 9);
/// Total number of pages of all rings, and the allowed range for one ring. All these numbers are powers of
/// two.
const ALL_PAGES: usize = 2048;
const PAGES: std::ops::RangeInclusive<usize> = 8..=64;

/// `PERF_RECORD_*`.
const LOST: u32 = 2;
const MMAP2: u32 = 10;
/// `struct perf_event_header`: type, misc, size.
const HEADER: usize = 8;
/// Offset of the file name in the body of a mapping record, that is, after its header.
const NAME: usize = 64;
/// File name of the library, and the placeholder that the kernel reports instead of a name that is too long.
const LIBJVM: &[u8] = b"/libjvm.so";
const TOO_LONG: &[u8] = b"//toolong";

/// Mapping events of all processors, filtered for libjvm.so.
#[derive(Debug)]
pub(crate) struct Mappings {
    rings: Vec<Ring>,
}

impl Mappings {
    /// Starts recording.
    ///
    /// # Errors
    /// [`Error::Permission`] if CAP_PERFMON is missing or perf_event_open is forbidden; [`Error::Io`] for other
    /// failures.
    pub(crate) fn open() -> Result<Self> {
        let cpus = perf::online_cpus()?;
        if cpus.is_empty() {
            let none = io::Error::other("/sys lists no online CPU");
            return Err(Error::io("receive mapping events", none));
        }
        let pages = (ALL_PAGES / cpus.len().max(1)).clamp(*PAGES.start(), *PAGES.end());
        let pages = 1 << pages.ilog2();
        let ring = |cpu| {
            Ring::open(cpu, pages).map_err(|e| match e.kind() {
                io::ErrorKind::PermissionDenied => Error::Permission {
                    what: "receive mapping events".into(),
                    missing:
                        "CAP_PERFMON is missing, or perf_event_open is forbidden here (seccomp)"
                            .into(),
                },
                _ => Error::io(format!("receive mapping events of CPU {cpu}"), e),
            })
        };
        Ok(Self { rings: cpus.into_iter().map(ring).collect::<Result<_>>()? })
    }

    /// Returns the processes that have mapped libjvm.so since the last call, each once, and the number of records lost
    /// because a ring was full.
    pub(crate) fn take(&mut self) -> (Vec<Pid>, u64) {
        let mut parsed = MappingRecords::default();
        for ring in &mut self.rings {
            parsed.read(ring.take());
        }
        parsed.pids.sort_unstable();
        parsed.pids.dedup();
        (parsed.pids, parsed.missed)
    }
}

/// Result of reading records: PIDs that have mapped libjvm.so, and the number of lost records.
#[derive(Debug, Default, PartialEq, Eq)]
struct MappingRecords {
    pids: Vec<Pid>,
    missed: u64,
}

impl MappingRecords {
    /// Parses consecutive records.
    fn read(&mut self, mut records: &[u8]) {
        while let Some((kind, body, rest)) = split(records) {
            records = rest;
            match kind {
                LOST => self.missed = self.missed.saturating_add(number(body, 8).unwrap_or(1)),
                MMAP2 if names_libjvm(body) => {
                    // 0 or -1: the process is outside of our PID namespace.
                    let pid = number(body, 0).unwrap_or(0) as u32;
                    if i32::try_from(pid).is_ok_and(|pid| pid > 0) {
                        self.pids.push(Pid(pid));
                    }
                }
                _ => {}
            }
        }
    }
}

/// Splits off the first record. Returns its type, its body after the header, and the remaining bytes.
fn split(records: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let kind = u32::from_ne_bytes(*records.first_chunk()?);
    let size = u16::from_ne_bytes(*records.get(6..)?.first_chunk()?);
    let (record, rest) = records.split_at_checked(size.into())?;
    Some((kind, record.get(HEADER..)?, rest))
}

fn number(body: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*body.get(at..)?.first_chunk()?))
}

fn names_libjvm(body: &[u8]) -> bool {
    let name = body.get(NAME..).unwrap_or_default();
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    name.ends_with(LIBJVM) || name == TOO_LONG
}

/// Ring buffer of one processor's event.
struct Ring {
    /// Start of the mapping: one control page (`perf_event_mmap_page`), then the ring.
    memory: NonNull<u8>,
    page: usize,
    /// Size of the ring in bytes, a power of two.
    size: usize,
    /// Copy of the records that were read last.
    records: Vec<u8>,
    /// The event's descriptor, kept open as long as its memory is mapped.
    _event: OwnedFd,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("size", &self.size).finish_non_exhaustive()
    }
}

impl Ring {
    fn open(cpu: u32, pages: usize) -> io::Result<Self> {
        let (type_, config) = DUMMY;
        let mut attr = perf_event_attr { type_, config, ..Default::default() };
        attr.set_mmap(1);
        attr.set_mmap2(1);
        // The kernel wakes up waiting threads after this number of bytes. No thread waits for the event, so
        // the maximum is used, which prevents wake-ups.
        attr.set_watermark(1);
        attr.__bindgen_anon_2.wakeup_watermark = u32::MAX;
        let event = perf::open_event(&mut attr, perf::EventScope::Processor(cpu))?;
        let page = rustix::param::page_size();
        let size = pages * page;
        // SAFETY: creates a new mapping of a descriptor that we own; it overlaps no other mapping.
        let memory = unsafe {
            libc::mmap(
                null_mut(),
                page + size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        let failed = memory == libc::MAP_FAILED;
        let memory = NonNull::new(memory.cast()).filter(|_| !failed);
        let memory = memory.ok_or_else(io::Error::last_os_error)?;
        Ok(Self { memory, page, size, records: Vec::new(), _event: event })
    }

    /// Returns a 64-bit field of the control page, which the kernel accesses, too.
    fn shared(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: callers pass the offset of an aligned 64-bit member of the control page. The page is mapped as long
        // as `self` lives, and our side accesses the member only through atomics.
        unsafe { AtomicU64::from_ptr(self.memory.as_ptr().add(offset).cast()) }
    }

    /// Consumes and returns all records in the ring.
    fn take(&mut self) -> &[u8] {
        let tail_at = offset_of!(perf_event_mmap_page, data_tail);
        let head = self.shared(offset_of!(perf_event_mmap_page, data_head));
        let head = head.load(Ordering::Acquire);
        let tail = self.shared(tail_at).load(Ordering::Relaxed);
        let size = self.size;
        // Never more than the size of the ring, even if `head` is corrupt.
        let len = usize::try_from(head.wrapping_sub(tail)).unwrap_or(size).min(size);
        let begin = (tail & (size as u64 - 1)) as usize;
        let first = len.min(size - begin);
        self.records.clear();
        for (from, len) in [(begin, first), (0, len - first)] {
            // SAFETY: both ranges lie in the ring, which is mapped as long as `self` lives. The kernel does not write
            // between tail and head.
            let part = unsafe {
                let data = self.memory.as_ptr().add(self.page + from);
                std::slice::from_raw_parts(data, len)
            };
            self.records.extend_from_slice(part);
        }
        self.shared(tail_at).store(head, Ordering::Release);
        &self.records
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: `open` made this mapping with this length, and no reference to it is left.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.page + self.size) };
    }
}

/// Entry point for the fuzzer.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(records: &[u8]) {
    MappingRecords::default().read(records);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, proptest};

    use super::*;

    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let size = u16::try_from(HEADER + body.len()).unwrap();
        [&kind.to_ne_bytes()[..], &[0; 2], &size.to_ne_bytes(), body].concat()
    }

    fn mapping(pid: u32, name: &str) -> Vec<u8> {
        let mut body = vec![0; NAME];
        body[..4].copy_from_slice(&pid.to_ne_bytes());
        body.extend(name.as_bytes());
        body.resize((body.len() / 8 + 1) * 8, 0);
        record(MMAP2, &body)
    }

    fn parsed(records: &[Vec<u8>]) -> MappingRecords {
        let mut parsed = MappingRecords::default();
        parsed.read(&records.concat());
        parsed
    }

    #[test]
    fn mmap_records_yield_pids_that_map_libjvm() {
        let records = [
            mapping(7, "/usr/lib/jvm/lib/server/libjvm.so"),
            mapping(8, "/usr/lib/libc.so.6"),
            record(LOST, &[0_u64, 5].map(u64::to_ne_bytes).concat()),
            mapping(9, "/opt/libjvm.so"),
            mapping(10, "/opt/libjvm.so.debug"),
            // Outside of our PID namespace.
            mapping(0, "/opt/libjvm.so"),
            mapping(u32::MAX, "/opt/libjvm.so"),
            mapping(11, "//toolong"),
        ];
        assert_eq!(
            parsed(&records),
            MappingRecords { pids: vec![Pid(7), Pid(9), Pid(11)], missed: 5 }
        );
    }

    #[test]
    fn truncated_record_ends_parsing() {
        let mut records = mapping(7, "/opt/libjvm.so");
        records.extend(&mapping(8, "/opt/libjvm.so")[..70]);
        assert_eq!(parsed(&[records]).pids, [Pid(7)]);
        assert_eq!(parsed(&[vec![0; 64]]), MappingRecords::default());
    }

    #[test]
    fn lost_record_count_saturates() {
        let lost = |n: u64| record(LOST, &[0, n].map(u64::to_ne_bytes).concat());
        assert_eq!(parsed(&[lost(u64::MAX), lost(5)]).missed, u64::MAX);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            let mut parsed = MappingRecords::default();
            parsed.read(&bytes);
        }
    }
}

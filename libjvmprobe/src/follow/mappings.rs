//! Which processes map libjvm.so just now, as the kernel tells.
//!
//! A software event that counts nothing (`PERF_COUNT_SW_DUMMY`), one a processor, records
//! each mapping of code on this machine with its process and file. It needs no tracefs, no
//! BTF and no probe. The numbers of processes are those of our own PID namespace. Nobody
//! is woken up: the records are read every now and then, so that a machine that starts a
//! thousand programs a second costs us what ten thousand records cost to read. Source:
//! perf_event_open(2), "MMAP layout".

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
/// Pages of all rings, and of one. Each a power of two.
const ALL_PAGES: usize = 2048;
const PAGES: std::ops::RangeInclusive<usize> = 8..=64;

/// `PERF_RECORD_*`.
const LOST: u32 = 2;
const MMAP2: u32 = 10;
/// `struct perf_event_header`: type, misc, size.
const HEADER: usize = 8;
/// Where the file's name begins in a record of a mapping, behind its header.
const NAME: usize = 64;
/// The library, and the longest name of a file that the kernel tells.
const LIBJVM: &[u8] = b"/libjvm.so";
const TOO_LONG: &[u8] = b"//toolong";

/// Who maps libjvm.so.
#[derive(Debug)]
pub(crate) struct Mappings {
    rings: Vec<Ring>,
}

impl Mappings {
    /// From now on.
    ///
    /// # Errors
    /// [`Error::Permission`], or [`Error::Io`] where the kernel refuses.
    pub(crate) fn open() -> Result<Self> {
        let cpus = perf::online_cpus()?;
        if cpus.is_empty() {
            let none = io::Error::other("/sys tells of no processor");
            return Err(Error::io("be told of mappings", none));
        }
        let pages = (ALL_PAGES / cpus.len().max(1)).clamp(*PAGES.start(), *PAGES.end());
        let pages = 1 << pages.ilog2();
        let ring = |cpu| {
            Ring::open(cpu, pages).map_err(|e| match e.kind() {
                io::ErrorKind::PermissionDenied => Error::Permission {
                    what: "be told of mappings".into(),
                    missing:
                        "CAP_PERFMON is missing, or perf_event_open is forbidden here (seccomp)"
                            .into(),
                },
                _ => Error::io(format!("be told of mappings on processor {cpu}"), e),
            })
        };
        Ok(Self { rings: cpus.into_iter().map(ring).collect::<Result<_>>()? })
    }

    /// Processes that have mapped libjvm.so since the last call, each once, and how many
    /// records found no room.
    pub(crate) fn take(&mut self) -> (Vec<Pid>, u64) {
        let mut told = Told::default();
        for ring in &mut self.rings {
            told.read(ring.take());
        }
        told.pids.sort_unstable();
        told.pids.dedup();
        (told.pids, told.missed)
    }
}

/// What some records say.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    pids: Vec<Pid>,
    missed: u64,
}

impl Told {
    /// Reads records, one behind the other.
    fn read(&mut self, mut records: &[u8]) {
        while let Some((kind, body, rest)) = split(records) {
            records = rest;
            match kind {
                LOST => self.missed = self.missed.saturating_add(number(body, 8).unwrap_or(1)),
                MMAP2 if names_libjvm(body) => {
                    // 0 or -1: it is in no PID namespace that we see.
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

/// The first record: its kind, what is behind its header, and all that follows.
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

/// The records of one processor.
struct Ring {
    /// One page about the ring, then the ring.
    memory: NonNull<u8>,
    page: usize,
    /// Bytes of the ring, a power of two.
    size: usize,
    /// What was taken out.
    taken: Vec<u8>,
    /// Lives as long as its memory is mapped.
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
        // Nobody waits for it.
        attr.set_watermark(1);
        attr.__bindgen_anon_2.wakeup_watermark = u32::MAX;
        let event = perf::open_event(&mut attr, perf::Where::Processor(cpu))?;
        let page = rustix::param::page_size();
        let size = pages * page;
        // SAFETY: a new mapping, of a descriptor of ours, that overlaps nothing.
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
        Ok(Self { memory, page, size, taken: Vec::new(), _event: event })
    }

    /// A number of the first page that the kernel and we share.
    fn shared(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the offset is that of an aligned 64-bit member of the page, which is
        // mapped as long as `self` lives, and of which atomics are the only readers and
        // writers on our side.
        unsafe { AtomicU64::from_ptr(self.memory.as_ptr().add(offset).cast()) }
    }

    /// Takes out all records that are there.
    fn take(&mut self) -> &[u8] {
        let tail_at = offset_of!(perf_event_mmap_page, data_tail);
        let head = self.shared(offset_of!(perf_event_mmap_page, data_head));
        let head = head.load(Ordering::Acquire);
        let tail = self.shared(tail_at).load(Ordering::Relaxed);
        let size = self.size;
        // More than there is room for was never there.
        let len = usize::try_from(head.wrapping_sub(tail)).unwrap_or(size).min(size);
        let begin = (tail & (size as u64 - 1)) as usize;
        let first = len.min(size - begin);
        self.taken.clear();
        for (from, len) in [(begin, first), (0, len - first)] {
            // SAFETY: both ranges lie in the ring, which is mapped as long as `self` lives;
            // the kernel does not write what lies between tail and head.
            let part = unsafe {
                let data = self.memory.as_ptr().add(self.page + from);
                std::slice::from_raw_parts(data, len)
            };
            self.taken.extend_from_slice(part);
        }
        self.shared(tail_at).store(head, Ordering::Release);
        &self.taken
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`, with this length, and nobody refers to it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.page + self.size) };
    }
}

/// What a fuzzer calls.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(records: &[u8]) {
    Told::default().read(records);
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

    fn told(records: &[Vec<u8>]) -> Told {
        let mut told = Told::default();
        told.read(&records.concat());
        told
    }

    #[test]
    fn tells_who_maps_the_library() {
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
        assert_eq!(told(&records), Told { pids: vec![Pid(7), Pid(9), Pid(11)], missed: 5 });
    }

    #[test]
    fn a_record_that_is_cut_ends_it() {
        let mut records = mapping(7, "/opt/libjvm.so");
        records.extend(&mapping(8, "/opt/libjvm.so")[..70]);
        assert_eq!(told(&[records]).pids, [Pid(7)]);
        assert_eq!(told(&[vec![0; 64]]), Told::default());
    }

    #[test]
    fn losses_add_up_to_no_more_than_a_number_holds() {
        let lost = |n: u64| record(LOST, &[0, n].map(u64::to_ne_bytes).concat());
        assert_eq!(told(&[lost(u64::MAX), lost(5)]).missed, u64::MAX);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            let mut told = Told::default();
            told.read(&bytes);
        }
    }
}

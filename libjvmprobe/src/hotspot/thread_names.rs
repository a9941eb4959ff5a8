//! Complete names of Java threads. The kernel stores only 15 bytes of each name (`comm`).
//!
//! Source: `os::set_native_thread_name`, os_linux.cpp. `java_threads` reads the names that the threads' Java objects
//! hold. A thread's name is used only if its truncated form equals the kernel's `comm`. Collectors move objects
//! during the reads, so everything is read twice, and names that differ are dropped.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    Pid, Result,
    hotspot::{HotSpot, java_threads::reader::Reader, resolved::Layout},
    names::clean,
    process::{memory::Memory, pid::status_of, reader::within},
};

/// Number of bytes of a thread's name that the kernel stores: `TASK_COMM_LEN` without the zero byte.
const COMM_LEN: usize = 15;
/// Newer JDKs give the kernel the first and the last bytes of a long name, with two dots between them.
const FIRST: usize = 7;
const LAST: usize = 6;
/// Maximum number of characters of a name; longer names stay truncated.
const MAX_CHARACTERS: usize = 128;
/// Maximum time of one scan of all threads. The caller reads no events meanwhile.
const MAX_SCAN: Duration = Duration::from_millis(200);
/// Minimum time between two scans of one JVM: the longer one of a fixed time and a multiple of the last
/// scan's duration.
const MIN_SCAN_INTERVAL: Duration = Duration::from_millis(500);
const SCAN_INTERVAL_FACTOR: u32 = 50;
/// Minimum time from a scan of one JVM to the next scan of this or any other JVM, as a multiple of the
/// earlier scan's duration. So a JVM whose memory is slow to read does not delay the events of other JVMs for
/// long.
const SHARED_SCAN_INTERVAL_FACTOR: u32 = 10;
/// Time during which a scan's result is used for further threads.
const FRESH: Duration = Duration::from_secs(1);
/// Time after which a name is looked up again, because threads are renamed and thread IDs are reused.
const EXPIRES: Duration = Duration::from_secs(10);
/// Time after which a missing name is looked up again, once [`MAX_FAILED_SCANS`] scans have failed to find
/// it.
const MISSING_EXPIRES: Duration = Duration::from_secs(60);
const MAX_FAILED_SCANS: u8 = 3;
/// Maximum number of names cached.
const MAX_CACHED_NAMES: usize = 1 << 13;

/// Time at which the next scan of any JVM may begin.
static NEXT_SCAN: Mutex<Option<Instant>> = Mutex::new(None);

/// Complete names by thread ID.
#[derive(Clone, Debug, Default)]
pub struct CompleteNames(Arc<HashMap<u32, CachedName>>);

#[derive(Clone, Debug)]
struct CachedName {
    /// The truncated name that the kernel has.
    comm: String,
    complete: Option<Arc<str>>,
    /// Number of scans that have not found the complete name.
    failed_scans: u8,
    at: Instant,
}

impl CompleteNames {
    /// Returns the complete name of a thread whose kernel name is `comm`; `None` if it is unknown.
    pub fn get(&self, tid: u32, comm: &str) -> Option<&Arc<str>> {
        self.0.get(&tid).filter(|cached| cached.comm == comm)?.complete.as_ref()
    }
}

/// Looks up the names of the threads of one JVM.
#[derive(Debug)]
pub struct ThreadNames {
    pid: Pid,
    memory: Memory,
    layout: Layout,
    /// Names found so far.
    pub names: CompleteNames,
    reader: Option<Reader>,
    /// The names that the last scan has read, by thread ID in the JVM's PID namespace.
    scanned: HashMap<u32, String>,
    last_scan: Option<Instant>,
    next_scan: Instant,
}

impl ThreadNames {
    /// Creates a reader of a JVM's thread names. Reads nothing yet.
    pub fn new(hotspot: &HotSpot) -> Self {
        Self {
            pid: hotspot.pid,
            memory: hotspot.memory.clone(),
            layout: hotspot.layout.clone(),
            names: CompleteNames::default(),
            reader: None,
            scanned: HashMap::new(),
            last_scan: None,
            next_scan: Instant::now(),
        }
    }

    /// Looks up the complete name of a running thread whose kernel name is `comm`.
    pub(crate) fn look_up(&mut self, tid: u32, comm: &str) {
        // A `comm` shorter than the limit was not truncated. Its characters may have been escaped, but
        // escaping never shortens a name.
        if comm.len() < COMM_LEN {
            return;
        }
        let cached = self.names.0.get(&tid).filter(|cached| cached.comm == comm);
        let failed_scans = cached.map_or(0, |cached| cached.failed_scans);
        let is_current = |cached: &CachedName| match &cached.complete {
            Some(_) => cached.at.elapsed() < EXPIRES,
            // Until the next scan, the name stays unknown.
            None if failed_scans < MAX_FAILED_SCANS => {
                !self.may_scan() && self.last_scan.is_some_and(|scan| cached.at >= scan)
            }
            None => cached.at.elapsed() < MISSING_EXPIRES,
        };
        if cached.is_some_and(is_current) || !(self.is_fresh() || self.may_scan()) {
            return;
        }
        let complete = self.find(tid, comm);
        let failed_scans = if complete.is_some() { 0 } else { failed_scans.saturating_add(1) };
        let cached =
            CachedName { comm: comm.to_owned(), complete, failed_scans, at: Instant::now() };
        let all = Arc::make_mut(&mut self.names.0);
        if all.len() >= MAX_CACHED_NAMES {
            all.clear();
        }
        all.insert(tid, cached);
    }

    /// Returns the name of a running thread: the complete name if it is known, else `comm`.
    pub fn of(&mut self, tid: u32, comm: String) -> String {
        self.look_up(tid, &comm);
        self.names.get(tid, &comm).map_or(comm, |complete| String::from(&**complete))
    }

    /// Whether the limit of this JVM and the limit of all JVMs both permit a scan now.
    fn may_scan(&self) -> bool {
        let shared = *NEXT_SCAN.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        now >= self.next_scan && shared.is_none_or(|next| now >= next)
    }

    /// Whether the last scan's result may still be used.
    fn is_fresh(&self) -> bool {
        self.last_scan.is_some_and(|at| at.elapsed() < FRESH)
    }

    fn find(&mut self, tid: u32, comm: &str) -> Option<Arc<str>> {
        let own = tid_in_namespace(self.pid, tid)?;
        if self.is_fresh() {
            let found = self.among_scanned(own, comm);
            if found.is_some() || !self.may_scan() {
                return found;
            }
        }
        let begin = Instant::now();
        let result = within(MAX_SCAN, || self.scan(begin + MAX_SCAN));
        let end = Instant::now();
        self.last_scan = Some(end);
        self.next_scan = end + MIN_SCAN_INTERVAL.max((end - begin) * SCAN_INTERVAL_FACTOR);
        *NEXT_SCAN.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(end + (end - begin) * SHARED_SCAN_INTERVAL_FACTOR);
        if let Err(why) = result {
            let pid = self.pid;
            log::debug!("process {pid}: thread names are truncated: {why}");
        }
        self.among_scanned(own, comm)
    }

    fn among_scanned(&self, own: u32, comm: &str) -> Option<Arc<str>> {
        let name = self.scanned.get(&own).filter(|name| is_cut_to(name, comm))?;
        Some(clean::name(name).into())
    }

    /// Reads the names of all threads, twice.
    fn scan(&mut self, until: Instant) -> Result<()> {
        self.scanned.clear();
        let mut reader = match self.reader.take() {
            Some(reader) => reader,
            None => Reader::new(&self.memory, &self.layout)?,
        };
        let is_long = |name: &str| name.len() >= COMM_LEN && name.chars().count() <= MAX_CHARACTERS;
        let before = reader.names(until, is_long)?;
        let mut names = reader.names(until, is_long)?;
        names.retain(|tid, name| before.get(tid) == Some(name));
        // A reader reads the encoding of references only when it is created. While a JVM is starting up, it
        // may not have set this encoding yet. So a reader that finds nothing is not retained.
        if !names.is_empty() {
            self.reader = Some(reader);
        }
        self.scanned = names;
        Ok(())
    }
}

/// Whether a name may have been truncated by the kernel.
pub(crate) fn is_cut(comm: &str) -> bool {
    comm.len() == COMM_LEN || comm.contains(char::REPLACEMENT_CHARACTER)
}

/// Returns a thread's ID in its innermost PID namespace, which is that of the JVM.
fn tid_in_namespace(pid: Pid, tid: u32) -> Option<u32> {
    let status =
        status_of(Pid(tid)).ok().filter(|status| u32::try_from(status.tgid) == Ok(pid.0))?;
    let innermost = status.nspid.as_ref().and_then(|ids| ids.last().copied());
    innermost.map_or(Some(tid), |id| u32::try_from(id).ok())
}

/// Whether `comm` is a truncated form of a name: its first bytes, or its first and last bytes.
fn is_cut_to(name: &str, comm: &str) -> bool {
    let bytes = name.as_bytes();
    let readable = |bytes: &[u8]| clean::name(&String::from_utf8_lossy(bytes)).into_owned();
    let (Some(first), Some(last)) = (bytes.get(..FIRST), bytes.last_chunk::<LAST>()) else {
        return false;
    };
    bytes.len() >= COMM_LEN
        && (bytes.get(..COMM_LEN).is_some_and(|kept| readable(kept) == comm)
            || readable(&[first, b"..", last].concat()) == comm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_thread_name_matches_its_truncated_kernel_name() {
        let name = "http-nio-8080-exec-12";
        assert!(is_cut_to(name, "http-nio-8080-e"));
        assert!(is_cut_to(name, "http-ni..xec-12"));
        assert!(!is_cut_to(name, "http-nio-8080-f"));
        assert!(is_cut_to("order-service-\u{437}-3", "order-service-\u{fffd}"));
        assert!(!is_cut_to("short", "short"));
        assert!(is_cut_to("pool-1-thread-1", "pool-1-thread-1"));
        // Truncated within a character of three bytes.
        assert!(is_cut_to(
            "w\u{4e2d}\u{4e2d}\u{4e2d}\u{4e2d}\u{4e2d}",
            "w\u{4e2d}\u{4e2d}\u{4e2d}\u{4e2d}\u{fffd}"
        ));
    }
}

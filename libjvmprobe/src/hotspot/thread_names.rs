//! Complete names of Java threads. The kernel stores only 15 bytes of each name (`comm`).
//!
//! Sources: hotspot/share/runtime/{javaThread,osThread}.hpp; `os::set_native_thread_name`, os_linux.cpp; java.base's
//! java/lang/{Thread,String}.java. Among the strings that a thread's Java object refers to, the thread's name
//! is the one whose truncated form equals the kernel's `comm`. The first match shows which field of a Thread
//! holds the name. Collectors move objects during the reads, so everything is read twice, and strings that
//! differ are dropped.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    Addr, Pid, Result,
    hotspot::{
        HotSpot,
        layout::Item,
        pages::Pages,
        references::{Object, References, characters},
        resolved::Layout,
        threads,
    },
    names::clean,
    process::{memory::Memory, pid::status_of, reader::within},
};

/// Number of bytes of a thread's name that the kernel stores: `TASK_COMM_LEN` without the zero byte.
const COMM_LEN: usize = 15;
/// Newer JDKs give the kernel the first and the last bytes of a long name, with two dots between them.
const FIRST: usize = 7;
const LAST: usize = 6;
/// The first JDK whose threads refer to their Java objects by handles.
const FIRST_WITH_HANDLES: u32 = 16;
/// Maximum number of characters of a name; longer names stay truncated.
const MAX_CHARACTERS: u32 = 128;
/// Maximum number of threads read.
const MAX_THREADS: usize = 1 << 14;
/// Maximum number of strings cached for one thread, and for all threads. A Thread has one name. Subclasses of
/// Thread may have further strings.
const MAX_OF_THREAD: usize = 8;
const MAX_STRINGS: usize = 1 << 13;
/// Number of fields of a string that are examined.
const FIELDS_OF_STRING: usize = 4;
/// Number of threads that are read together.
const THREADS_PER_BATCH: usize = 64;
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
    /// The strings that each thread's Java object refers to, with the fields that refer to them, by thread ID
    /// in the JVM's PID namespace.
    strings: HashMap<u32, Vec<Text>>,
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
            strings: HashMap::new(),
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
        let is_current = |cached: &CachedName| {
            let expires = match &cached.complete {
                Some(_) => EXPIRES,
                None if failed_scans < MAX_FAILED_SCANS => Duration::ZERO,
                None => MISSING_EXPIRES,
            };
            cached.at.elapsed() < expires
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
            let found = self.among_strings(own, comm);
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
        self.among_strings(own, comm)
    }

    fn among_strings(&mut self, own: u32, comm: &str) -> Option<Arc<str>> {
        let found = self.strings.get(&own)?.iter().find(|text| is_cut_to(&text.text, comm))?;
        if let Some(reader) = &mut self.reader {
            reader.name_field = Some(found.field);
        }
        Some(clean::name(&found.text).into())
    }

    /// Reads the strings of all threads, twice.
    fn scan(&mut self, until: Instant) -> Result<()> {
        self.strings.clear();
        let mut reader = match self.reader.take() {
            Some(reader) => reader,
            None => Reader::new(&self.memory, &self.layout)?,
        };
        let before = reader.strings(until)?;
        let mut strings = reader.strings(until)?;
        strings.retain(|number, texts| before.get(number) == Some(texts));
        // A reader reads the encoding of references only when it is created. While a JVM is starting up, it
        // may not have set this encoding yet. So a reader that finds nothing is not retained.
        if !strings.is_empty() {
            self.reader = Some(reader);
        }
        self.strings = strings;
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

/// A string that a thread's Java object refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Text {
    /// Offset of the referring field in the Java object.
    field: usize,
    text: String,
}

/// Reads the strings that threads' Java objects refer to.
#[derive(Debug)]
pub(super) struct Reader {
    memory: Memory,
    layout: Layout,
    references: References,
    os_thread: u64,
    os_thread_id: u64,
    thread_object: u64,
    has_handles: bool,
    /// The Klass of strings, once a string was seen.
    string: Option<Addr>,
    /// Offset of a Thread's name, once a name was found.
    name_field: Option<usize>,
}

impl Reader {
    pub(super) fn new(memory: &Memory, layout: &Layout) -> Result<Self> {
        Ok(Self {
            memory: memory.clone(),
            layout: layout.clone(),
            references: References::new(memory, layout)?,
            os_thread: layout.get(Item::OsThread)?,
            os_thread_id: layout.get(Item::OsThreadId)?,
            thread_object: layout.get(Item::ThreadObject)?,
            has_handles: layout.major >= FIRST_WITH_HANDLES,
            string: None,
            name_field: None,
        })
    }

    /// Returns the strings that threads' objects refer to, by thread ID in the JVM's PID namespace. Stops at `until`.
    pub(super) fn strings(&mut self, until: Instant) -> Result<HashMap<u32, Vec<Text>>> {
        let mut threads = threads::addresses(&self.memory, &self.layout)?;
        threads.sort_unstable();
        threads.dedup();
        threads.truncate(MAX_THREADS);
        let memory = self.memory.clone();
        let mut pages = Pages::scattered(&memory);
        let (mut strings, mut kept) = (HashMap::new(), 0);
        for some in threads.chunks(THREADS_PER_BATCH) {
            let found = pages.read_batched(some, |pages, &thread| {
                // A hostile JVM may have a list of threads that takes long to read.
                (Instant::now() < until).then(|| self.of_thread(pages, thread))?
            });
            for (number, found) in
                found.into_iter().flatten().filter(|(_, found)| !found.is_empty())
            {
                kept += found.len();
                strings.insert(number, found);
            }
            if kept >= MAX_STRINGS || Instant::now() >= until {
                break;
            }
        }
        Ok(strings)
    }

    fn of_thread(&mut self, pages: &mut Pages<'_>, thread: Addr) -> Option<(u32, Vec<Text>)> {
        let os_thread = pages.pointer(thread.checked_add(self.os_thread)?).ok();
        let object = pages.pointer(thread.checked_add(self.thread_object)?).ok()?;
        let object = if self.has_handles { pages.pointer(object).ok()? } else { object };
        let object = self.references.root(object).map(|at| self.references.object(pages, at));
        let number = pages.u32(os_thread?.checked_add(self.os_thread_id)?).ok()?;
        let object = object?.ok()?;
        let fields: Vec<_> = match self.name_field {
            Some(field) => vec![field],
            None => self.references.fields(&object).collect(),
        };
        // Visits every field before it returns, so that `read_batched` reads their pages in one request.
        let mut texts = Vec::new();
        for field in fields {
            let found = self.text(pages, &object, field).unwrap_or_default();
            let found = found.into_iter().filter(|text| text.len() >= COMM_LEN);
            texts.extend(found.map(|text| Text { field, text }));
        }
        texts.truncate(MAX_OF_THREAD);
        Some((number, texts))
    }

    /// Reads the string that a field refers to, as Latin-1 and as UTF-16.
    fn text(
        &mut self,
        pages: &mut Pages<'_>,
        object: &Object,
        field: usize,
    ) -> Option<Vec<String>> {
        let address = self.references.reference(object, field)?;
        let string = self.references.object(pages, address).ok()?;
        let is_string = match self.string {
            Some(class) => string.klass == class,
            None => self.references.is_of(pages, &string, "java/lang/String"),
        };
        if !is_string {
            return None;
        }
        self.string = Some(string.klass);
        // The only object that a string refers to is its array of characters; the other fields are numbers.
        self.references.fields(&string).take(FIELDS_OF_STRING).find_map(|field| {
            let at = self.references.reference(&string, field)?;
            let array = self.references.object(pages, at).ok()?;
            characters(pages, at, &array, MAX_CHARACTERS)
        })
    }
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

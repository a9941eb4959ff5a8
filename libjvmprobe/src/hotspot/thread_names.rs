//! Whole names of Java threads. The kernel keeps 15 bytes of them (`comm`).
//!
//! Sources: hotspot/share/runtime/{javaThread,osThread}.hpp; `os::set_native_thread_name`, os_linux.cpp; java.base's
//! java/lang/{Thread,String}.java. Which field of a Thread is its name is not looked up: it is a string that what the
//! kernel has is made of. So no name is that of another thread, whatever is read while objects move.

use std::{
    collections::HashMap,
    sync::Arc,
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
    own::remark,
    process::{memory::Memory, pid::status_of, reader::within},
};

/// Number of bytes of a thread's name that the kernel keeps: `TASK_COMM_LEN` without the zero byte.
const KEPT: usize = 15;
/// Since JDK 22, a long name's first and last bytes are kept, with two dots between them.
const FIRST: usize = 7;
const LAST: usize = 6;
/// Since this JDK, threads refer to their objects by handles.
const FIRST_WITH_HANDLES: u32 = 16;
/// Maximum number of characters of a name.
const MAX_CHARACTERS: u32 = 128;
/// Maximum number of strings of one thread, and of all, that are kept: a Thread has one name, and classes derived from
/// it may have some more strings.
const MAX_OF_THREAD: usize = 8;
const MAX_STRINGS: usize = 1 << 15;
/// Number of threads that are read together.
const AT_ONCE: usize = 64;
/// Minimum time between two looks at all threads.
const REST: Duration = Duration::from_millis(500);
/// Maximum number of looks for one name: objects move.
const MAX_LOOKS: u8 = 3;
/// Maximum time of one look.
const LOOK: Duration = Duration::from_secs(1);
/// Maximum number of names that are kept.
const MAX_KNOWN: usize = 1 << 13;

/// Whole names by thread.
#[derive(Clone, Debug, Default)]
pub struct WholeNames(HashMap<u32, Known>);

#[derive(Clone, Debug)]
struct Known {
    /// The kernel's part of the name.
    comm: String,
    whole: Option<Arc<str>>,
    /// Number of looks that have not found it.
    looks: u8,
}

impl WholeNames {
    /// The whole name of a thread, of which the kernel has `comm`; `None` where that is all there is.
    pub fn get(&self, tid: u32, comm: &str) -> Option<&Arc<str>> {
        self.0.get(&tid).filter(|known| known.comm == comm)?.whole.as_ref()
    }
}

/// Learns the names of the threads of one JVM.
#[derive(Debug)]
pub struct ThreadNames {
    pid: Pid,
    memory: Memory,
    layout: Layout,
    /// Names that were found.
    pub known: WholeNames,
    reader: Option<Reader>,
    /// By the thread's number as the JVM knows it: the strings that its object refers to.
    strings: HashMap<u32, Vec<String>>,
    /// When all threads may be looked at again.
    next_look: Instant,
}

impl ThreadNames {
    /// Prepares for the threads of a JVM.
    pub fn new(hotspot: &HotSpot) -> Self {
        Self {
            pid: hotspot.pid,
            memory: hotspot.memory.clone(),
            layout: hotspot.layout.clone(),
            known: WholeNames::default(),
            reader: None,
            strings: HashMap::new(),
            next_look: Instant::now(),
        }
    }

    /// Finds the whole name of a thread that runs, of which the kernel has `comm`.
    pub fn learn(&mut self, tid: u32, comm: &str) {
        // Escaped characters make `comm` longer, never shorter.
        if comm.len() < KEPT {
            return;
        }
        let known = self.known.0.get(&tid);
        if known.is_some_and(|known| known.whole.as_deref() == Some(comm)) {
            return;
        }
        let known = known.filter(|known| known.comm == comm);
        let looks = known.map_or(0, |known| known.looks);
        if looks >= MAX_LOOKS || known.is_some_and(|known| known.whole.is_some()) {
            return;
        }
        let Some(whole) = self.find(tid, comm) else { return };
        if self.known.0.len() >= MAX_KNOWN {
            self.known.0.clear();
        }
        let known = Known { comm: comm.to_owned(), whole, looks: looks + 1 };
        self.known.0.insert(tid, known);
    }

    /// The name of a thread that runs: the whole one where it is known. That of a whole name is itself.
    pub fn of(&mut self, tid: u32, comm: String) -> String {
        self.learn(tid, &comm);
        self.known.get(tid, &comm).map_or(comm, |whole| String::from(&**whole))
    }

    /// The whole name: `Some(None)` where it is not found, `None` where it is too early to look.
    fn find(&mut self, tid: u32, comm: &str) -> Option<Option<Arc<str>>> {
        let Some(own) = own_number(self.pid, tid) else { return Some(None) };
        let found = self.among_strings(own, comm);
        let begin = Instant::now();
        if found.is_some() {
            return Some(found);
        }
        if begin < self.next_look {
            return None;
        }
        let looked = within(LOOK, || self.look());
        self.next_look = Instant::now() + REST.max(begin.elapsed() * 10);
        if let Err(why) = looked {
            let pid = self.pid;
            remark(|| format!("process {pid}: names of threads are cut off: {why}"));
        }
        Some(self.among_strings(own, comm))
    }

    fn among_strings(&self, own: u32, comm: &str) -> Option<Arc<str>> {
        let found = self.strings.get(&own)?.iter().find(|name| is_cut_to(name, comm))?;
        Some(clean::name(found).into())
    }

    /// Reads the strings of all threads.
    fn look(&mut self) -> Result<()> {
        let mut reader = match self.reader.take() {
            Some(reader) => reader,
            None => Reader::new(&self.memory, &self.layout)?,
        };
        self.strings = reader.strings()?;
        // While a JVM sets itself up, it does not say yet how references are to be read.
        if self.strings.values().any(|strings| !strings.is_empty()) {
            self.reader = Some(reader);
        }
        Ok(())
    }
}

/// A thread's number in its innermost PID namespace, which is the JVM's own.
fn own_number(pid: Pid, tid: u32) -> Option<u32> {
    let status =
        status_of(Pid(tid)).ok().filter(|status| u32::try_from(status.tgid) == Ok(pid.0))?;
    let innermost = status.nspid.as_ref().and_then(|ids| ids.last().copied());
    innermost.map_or(Some(tid), |id| u32::try_from(id).ok())
}

/// Whether this is what the kernel has of a name: its first bytes, or its first and its last ones.
fn is_cut_to(name: &str, comm: &str) -> bool {
    let bytes = name.as_bytes();
    let readable = |bytes: &[u8]| clean::name(&String::from_utf8_lossy(bytes)).into_owned();
    let (Some(first), Some(last)) = (bytes.get(..FIRST), bytes.last_chunk::<LAST>()) else {
        return false;
    };
    bytes.len() > KEPT
        && (bytes.get(..KEPT).is_some_and(|kept| readable(kept) == comm)
            || readable(&[first, b"..", last].concat()) == comm)
}

/// Reads the strings that threads refer to.
#[derive(Debug)]
pub(super) struct Reader {
    memory: Memory,
    layout: Layout,
    references: References,
    os_thread: u64,
    os_thread_id: u64,
    thread_object: u64,
    has_handles: bool,
    /// The class of strings, once one was seen.
    string: Option<Addr>,
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
        })
    }

    /// The strings that the objects of all threads refer to, by the threads' numbers.
    pub(super) fn strings(&mut self) -> Result<HashMap<u32, Vec<String>>> {
        let threads = threads::addresses(&self.memory, &self.layout)?;
        let memory = self.memory.clone();
        let mut pages = Pages::many(&memory);
        let mut strings = HashMap::new();
        let mut kept = 0;
        for some in threads.chunks(AT_ONCE) {
            let found = pages.together(some, |pages, &thread| self.of_thread(pages, thread));
            for (number, found) in found.into_iter().flatten() {
                kept += found.len();
                strings.insert(number, found);
            }
            if kept > MAX_STRINGS {
                break;
            }
        }
        Ok(strings)
    }

    fn of_thread(&mut self, pages: &mut Pages<'_>, thread: Addr) -> Option<(u32, Vec<String>)> {
        let os_thread = pages.pointer(thread.checked_add(self.os_thread)?).ok();
        let object = pages.pointer(thread.checked_add(self.thread_object)?).ok()?;
        let object = if self.has_handles { pages.pointer(object).ok()? } else { object };
        let object = self.references.root(object).map(|at| self.references.object(pages, at));
        let number = pages.u32(os_thread?.checked_add(self.os_thread_id)?).ok()?;
        let object = object?.ok()?;
        // All of them are asked for, so that they are read together.
        let fields: Vec<_> = self.references.fields(&object).collect();
        let found = fields.into_iter().filter_map(|field| self.text(pages, &object, field));
        let names = found.flatten().filter(|name| name.len() > KEPT);
        Some((number, names.take(MAX_OF_THREAD).collect()))
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
        // Its array of characters is the only object that a string refers to.
        let array = self.references.fields(&string).find_map(|field| {
            let at = self.references.reference(&string, field)?;
            let array = self.references.object(pages, at).ok()?;
            characters(pages, at, &array, MAX_CHARACTERS)
        })?;
        Some(array)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_known_by_what_the_kernel_has_of_it() {
        let name = "http-nio-8080-exec-12";
        assert!(is_cut_to(name, "http-nio-8080-e"));
        assert!(is_cut_to(name, "http-ni..xec-12"));
        assert!(!is_cut_to(name, "http-nio-8080-f"));
        assert!(is_cut_to("order-service-\u{437}-3", "order-service-\u{fffd}"));
        assert!(!is_cut_to("short", "short"));
        assert!(!is_cut_to("http-nio-8080-e", "http-nio-8080-e"));
        // Within a character of three bytes.
        assert!(is_cut_to(
            "w\u{4e2d}\u{4e2d}\u{4e2d}\u{4e2d}\u{4e2d}",
            "w\u{4e2d}\u{4e2d}\u{4e2d}\u{4e2d}\u{fffd}"
        ));
    }
}

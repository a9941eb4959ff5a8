//! Number of Java threads by state, as `ThreadMXBean` counts them: without threads that HotSpot hides from Java code.
//!
//! Hidden are the threads of the compilers and some of the VM's own JavaThreads
//! (`JavaThread::is_hidden_from_external_view`). Each kind of them has its own C++ class, so a thread is visible if its
//! vtable is that of `JavaThread` or of a subclass that does not override this function. Without a symbol table, hidden
//! threads are recognized by their names.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{
    ThreadStatus,
    reader::{AT_ONCE, Reader},
};
use crate::{
    Addr, Error, Result,
    hotspot::{
        HotSpot,
        layout::Item,
        loaded::at,
        pages::Pages,
        threads::{ThreadArray, addresses_again},
    },
    process::reader::within,
};

/// Distance in bytes from the symbol of a vtable to the address that objects contain.
const VTABLE: u64 = 16;
/// Maximum number of times that a thread is read.
const MAX_READS: usize = 3;
/// Names of hidden threads; a name that ends in `CompilerThread` may be followed by a number.
const HIDDEN: [&str; 4] =
    ["Service Thread", "Monitor Deflation Thread", "Sweeper thread", "StringDedupThread"];
const COMPILER: &str = "CompilerThread";
/// Vtables of visible threads.
const VISIBLE: [Item; 5] = [
    Item::JavaThreadTable,
    Item::AgentThreadTable,
    Item::NotificationThreadTable,
    Item::AttachThreadTable,
    Item::RecorderThreadTable,
];

/// State of a thread: the constants of `java.lang.Thread.State`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names are those of Thread.State")]
pub enum ThreadState {
    New,
    Runnable,
    Blocked,
    Waiting,
    TimedWaiting,
    Terminated,
}

impl ThreadState {
    /// Returns the name of the state in lower case, for example `timed_waiting`.
    pub fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Runnable => "runnable",
            Self::Blocked => "blocked",
            Self::Waiting => "waiting",
            Self::TimedWaiting => "timed_waiting",
            Self::Terminated => "terminated",
        }
    }

    fn of(status: ThreadStatus) -> Option<Self> {
        Some(match status {
            ThreadStatus::New => Self::New,
            ThreadStatus::Runnable => Self::Runnable,
            ThreadStatus::Blocked => Self::Blocked,
            ThreadStatus::Waiting | ThreadStatus::Parked => Self::Waiting,
            ThreadStatus::Sleeping | ThreadStatus::TimedWaiting | ThreadStatus::ParkedTimed => {
                Self::TimedWaiting
            }
            ThreadStatus::Terminated => Self::Terminated,
            ThreadStatus::Unknown(_) => return None,
        })
    }
}

/// Number of threads for each combination of daemon status and state.
pub type ThreadCounts = BTreeMap<(bool, ThreadState), u64>;

/// Counts the threads of one JVM. It caches offsets, so it should be kept.
#[derive(Debug)]
pub struct ThreadCounter {
    reader: Reader,
    /// Vtables of the classes of threads that are not hidden; empty if they are unknown.
    vtables: Vec<u64>,
    /// Pages that the last count needed.
    needed: Vec<Addr>,
    /// The array of threads of the last count.
    array: ThreadArray,
}

impl HotSpot {
    /// Returns a counter of the Java threads.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming the missing field, [`crate::Error::Memory`] if the JVM has exited.
    pub fn thread_counter(&self) -> Result<ThreadCounter> {
        let reader = Reader::new(&self.memory, &self.layout)?;
        let vtable = |item| Some(self.layout.try_address(item)?.0.wrapping_add(VTABLE));
        let vtables = VISIBLE.into_iter().filter_map(vtable).collect();
        Ok(ThreadCounter { reader, vtables, needed: Vec::new(), array: ThreadArray::default() })
    }
}

impl ThreadCounter {
    /// Counts the threads. Threads that start or exit meanwhile, and threads whose Java object is being moved, may be
    /// missing.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming the missing field, or if the time is used up; [`crate::Error::Memory`] if the JVM has
    /// exited.
    pub fn count(&mut self, max_time: Duration) -> Result<ThreadCounts> {
        let until = Instant::now() + max_time;
        within(max_time, || {
            let memory = self.reader.memory.clone();
            let mut counts = ThreadCounts::new();
            let layout = &self.reader.layout;
            let threads = addresses_again(&memory, layout, &mut self.array)?;
            let mut needed = std::mem::take(&mut self.needed);
            let mut unread = Pages::scattered(&memory).read_repeatedly(&mut needed, |pages| {
                self.add(pages, &threads, &mut counts, until)
            })?;
            self.needed = needed;
            for _ in 1..MAX_READS {
                if unread.is_empty() {
                    break;
                }
                // Each attempt reads the memory again.
                unread = self.add(&mut Pages::scattered(&memory), &unread, &mut counts, until)?;
            }
            Ok(counts)
        })
    }

    /// Adds some threads to the counts. Returns those that could not be read.
    fn add(
        &mut self,
        pages: &mut Pages<'_>,
        threads: &[Addr],
        counts: &mut ThreadCounts,
        until: Instant,
    ) -> Result<Vec<Addr>> {
        let mut failed = Vec::new();
        for some in threads.chunks(AT_ONCE) {
            if Instant::now() >= until {
                return Err(Error::layout("the threads could not be counted in time"));
            }
            let read = pages.read_batched(some, |pages, &thread| self.thread(pages, thread));
            for (&thread, state) in some.iter().zip(read) {
                match state {
                    Ok(Some(state)) => *counts.entry(state).or_default() += 1,
                    Ok(None) => {}
                    Err(_) => failed.push(thread),
                }
            }
        }
        Ok(failed)
    }

    /// Reads whether a thread is a daemon, and its state; `None` if it is hidden or has no state yet.
    fn thread(
        &mut self,
        pages: &mut Pages<'_>,
        thread: Addr,
    ) -> Result<Option<(bool, ThreadState)>> {
        if !self.vtables.is_empty() && !self.vtables.contains(&pages.u64(thread)?) {
            return Ok(None);
        }
        let root = at(thread, self.reader.offsets.object)?;
        let Some(object) = self.reader.root(pages, root)? else { return Ok(None) };
        let (fields, _) = self.reader.thread_fields(pages, object)?;
        if self.vtables.is_empty() {
            let name = self.reader.name(pages, object, &fields)?;
            if name.is_some_and(|name| is_hidden(&name)) {
                return Ok(None);
            }
        }
        let state = self.reader.state(pages, object, &fields)?;
        Ok(state.and_then(|java| Some((java.is_daemon, ThreadState::of(java.status)?))))
    }
}

fn is_hidden(name: &str) -> bool {
    let unnumbered = name.trim_end_matches(|c: char| c.is_ascii_digit());
    HIDDEN.contains(&name) || unnumbered.ends_with(COMPILER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_compilers_are_hidden_by_name() {
        for name in ["C2 CompilerThread0", "C1 CompilerThread12", "Service Thread"] {
            assert!(is_hidden(name), "{name}");
        }
        for name in ["main", "Signal Dispatcher", "CompilerThreadPool"] {
            assert!(!is_hidden(name), "{name}");
        }
    }
}

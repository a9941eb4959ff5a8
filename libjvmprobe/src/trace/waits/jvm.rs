//! State of one JVM: its threads, its stacks, and its waits that may go on.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    Addr, Pid, Result,
    bpf::{clock, walker::Walker},
    hotspot::{
        HotSpot,
        java_threads::{AwaitedReader, ConnectionPool},
        native_locks::NativeLocks,
        thread_names::ThreadNames,
    },
    process::os_threads::os_threads,
    stack::{Frame, namer::Namers},
    trace::waits::{
        resources::Resource,
        unmounted::UnmountedReading,
        wait::{ThreadName, Wait},
    },
};

/// Maximum number of stacks kept by their IDs, and of bytes of the JVMs' stacks.
pub(super) const MAX_STACKS: usize = 1 << 15;
pub(super) const MAX_STACKS_SIZE: usize = 64 << 20;
/// Time within which a new thread is expected in the JVM's list of threads. A thread that is not listed by then is no Java
/// thread.
const TIME_TO_LIST: Duration = Duration::from_secs(1);
/// After the list was read, it is not read again for this many times as long as that took, because a JVM may have
/// thousands of threads and start new ones all the time.
const LIST_DELAY_FACTOR: u32 = 4;
/// Interval at which the list is read while it lacks a new thread: when the thread was just seen, and later.
const LIST_INTERVALS: [(Duration, Duration); 2] = [
    (Duration::from_millis(20), Duration::from_millis(1)),
    (TIME_TO_LIST, Duration::from_millis(100)),
];
/// Minimum time between two readings of connection pools; a reading is also followed by this many times its own duration.
const MIN_POOLS_INTERVAL: Duration = Duration::from_millis(250);
const POOLS_DELAY_FACTOR: u32 = 100;
/// Number of waits kept for each thread: what it waited for while other threads waited for it.
const MAX_RECENT: usize = 8;
/// A thread that releases a lock may wake several threads within this time, in nanoseconds.
const SAME_RELEASE_NS: u64 = 500_000;
/// Maximum number of threads and of locks for which data is kept.
const MAX_KEPT: usize = 1 << 15;

/// A stack: frames, outermost first.
pub(super) type Stack = Arc<[Frame]>;

/// A wait that may go on: the thread may have been woken too early, and waits again.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) wait: Wait,
    /// Running time of the thread when the wait began, in nanoseconds.
    pub(super) on_ns: u64,
    /// Number of threads that the thread had woken when the wait ended.
    pub(super) wakes: u64,
    /// Time at which it was received.
    pub(super) at: Instant,
    /// Whether the thread had run on when the events were read last.
    pub(super) is_over: bool,
}

/// State of a JVM.
#[derive(Debug)]
pub struct Jvm {
    pub(super) pid: Pid,
    pub(super) stacks: HashMap<u64, Stack>,
    /// Size of the stacks in bytes.
    pub(super) stacks_size: usize,
    reader: Option<AwaitedReader>,
    /// Number of classes that the JVM had unloaded when the reader was used last.
    unloaded: Option<u64>,
    names: Option<ThreadNames>,
    /// The JVM's own locks; `None` until a thread waits for one.
    native_locks: Option<NativeLocks>,
    /// Earliest time at which the connection pools are read.
    pub(super) next_pools_at: Instant,
    /// Earliest time at which the list of threads is read again.
    next_list_at: Instant,
    /// Threads whose JavaThreads are not known yet, with the times at which they were seen first.
    unlisted: HashMap<u32, Instant>,
    /// Waits that may go on, by thread.
    pub(super) held: HashMap<u32, Held>,
    /// The last waits of each thread, the newest last.
    recent: HashMap<u32, VecDeque<Wait>>,
    /// For each lock and each thread that has acquired it after a wait: the time of the last acquisition, on
    /// `CLOCK_MONOTONIC` in nanoseconds. A thread is given by its ID and the number of the virtual thread.
    acquired: HashMap<(u64, u32, Option<u64>), u64>,
    /// The same for the last release that has woken a thread.
    released: HashMap<(u64, u32, Option<u64>), u64>,
    /// Monitors by the addresses of their objects.
    monitors: HashMap<u64, u64>,
    /// Time of the last reading of the unmounted virtual threads, on `CLOCK_MONOTONIC` in nanoseconds.
    pub(super) unmounted_read_ns: u64,
    /// Data of the last reading of the unmounted virtual threads.
    pub(super) unmounted: Option<UnmountedReading>,
}

impl Jvm {
    pub(super) fn new(pid: Pid, hotspot: Option<&HotSpot>, reader: Option<AwaitedReader>) -> Self {
        Self {
            pid,
            stacks: HashMap::new(),
            stacks_size: 0,
            reader,
            unloaded: None,
            names: hotspot.map(ThreadNames::new),
            native_locks: None,
            next_pools_at: Instant::now(),
            next_list_at: Instant::now(),
            unlisted: HashMap::new(),
            held: HashMap::new(),
            recent: HashMap::new(),
            acquired: HashMap::new(),
            released: HashMap::new(),
            monitors: HashMap::new(),
            unmounted_read_ns: clock::monotonic_ns(),
            unmounted: None,
        }
    }

    /// Returns the last reading of the unmounted virtual threads once more, for the time since then.
    pub(super) fn repeat_unmounted(&mut self) -> Option<&UnmountedReading> {
        let last = self.unmounted.as_mut()?;
        last.at_ns = clock::monotonic_ns();
        last.since_ns = std::mem::replace(&mut self.unmounted_read_ns, last.at_ns);
        last.is_repeated = true;
        Some(last)
    }

    /// Names and keeps a stack.
    pub(super) fn take_stack(
        &mut self,
        hotspot: &HotSpot,
        namers: &mut Namers,
        walker: &mut Walker,
        id: u64,
        raw: &crate::stack::raw::RawStack,
    ) -> Result<()> {
        if let Some(frames) = namers.name(hotspot, walker, raw)? {
            self.keep_stack(id, frames);
        }
        Ok(())
    }

    fn keep_stack(&mut self, id: u64, frames: Vec<Frame>) {
        self.stacks_size += Frame::sum_of_sizes(&frames);
        let old = self.stacks.insert(id, frames.into());
        self.stacks_size -= old.map_or(0, |old| Frame::sum_of_sizes(&old));
    }

    /// Forgets all stacks, also those of earlier waits.
    pub(super) fn forget_stacks(&mut self) {
        self.stacks.clear();
        self.stacks_size = 0;
        self.recent.clear();
    }

    /// Records a thread that was seen for the first time.
    pub(super) fn add_thread(&mut self, tid: u32) {
        if self.unlisted.len() < MAX_KEPT {
            self.unlisted.entry(tid).or_insert_with(Instant::now);
        }
    }

    /// Returns the time after which the list of threads is to be read again; `None` if no thread is missing.
    pub(super) fn next_list(&self) -> Option<Duration> {
        let newest = self.unlisted.values().max()?.elapsed();
        let interval = LIST_INTERVALS.iter().find(|(age, _)| newest < *age);
        Some(interval.map_or(TIME_TO_LIST, |(_, interval)| *interval))
    }

    /// Returns the JavaThreads of threads that were not known before; address 0 for threads that are no Java threads.
    pub(super) fn listed_threads(&mut self) -> Vec<(u32, Addr)> {
        let Some(reader) = self.reader.as_mut().filter(|_| !self.unlisted.is_empty()) else {
            self.unlisted.clear();
            return Vec::new();
        };
        let begin = Instant::now();
        if begin < self.next_list_at {
            return Vec::new();
        }
        let Ok(listed) = reader.threads() else { return Vec::new() };
        let Ok(threads) = os_threads(self.pid) else { return Vec::new() };
        let mut found = Vec::new();
        let still: HashSet<_> = threads.iter().map(|thread| thread.tid).collect();
        self.unlisted.retain(|tid, _| still.contains(tid));
        for thread in &threads {
            let Some(since) = self.unlisted.get(&thread.tid) else { continue };
            match listed.get(&thread.namespace_tid) {
                Some(&java_thread) => found.push((thread.tid, java_thread)),
                None if since.elapsed() > TIME_TO_LIST => found.push((thread.tid, Addr(0))),
                None => continue,
            }
            self.unlisted.remove(&thread.tid);
        }
        self.next_list_at = Instant::now() + begin.elapsed() * LIST_DELAY_FACTOR;
        found
    }

    /// Returns the Java threads that run now, by the addresses of their JavaThreads.
    pub(super) fn platform_threads(&mut self) -> HashMap<Addr, ThreadName> {
        let Some(reader) = &mut self.reader else { return HashMap::new() };
        let (Ok(listed), Ok(threads)) = (reader.threads(), os_threads(self.pid)) else {
            return HashMap::new();
        };
        let named = threads.into_iter().filter_map(|thread| {
            let address = *listed.get(&thread.namespace_tid)?;
            let name = self.name(thread.tid, thread.name);
            let (pid, tid) = (self.pid, thread.tid);
            Some((address, ThreadName { pid, tid, name, virtual_thread: None }))
        });
        named.collect()
    }

    /// Makes classes be read again if the JVM has unloaded classes since the last call, or does not count them.
    pub(super) fn forget_unloaded(&mut self, hotspot: &HotSpot) {
        let unloaded = hotspot.classes_unloaded();
        if unloaded.is_none() || unloaded != self.unloaded {
            self.unloaded = unloaded;
            self.reader.iter_mut().for_each(AwaitedReader::forget_classes);
        }
    }

    /// Returns the class of an awaited object, and whether it is a synchronizer.
    pub(super) fn class(&mut self, klass: u64) -> Option<(Arc<str>, bool)> {
        let class = self.reader.as_mut()?.class(Addr(klass)).filter(|_| klass != 0)?;
        Some((class.name, class.is_synchronizer))
    }

    /// Returns the name of a thread: the complete one if it is known, else `comm`.
    pub(super) fn name(&mut self, tid: u32, comm: String) -> Arc<str> {
        match &mut self.names {
            Some(names) => names.of(tid, comm).into(),
            None => comm.into(),
        }
    }

    /// Returns the name of the JVM's own lock that contains a futex word.
    pub(super) fn native_lock(
        &mut self,
        hotspot: Option<&HotSpot>,
        futex: u64,
    ) -> Option<Arc<str>> {
        let hotspot = hotspot?;
        let locks = self.native_locks.get_or_insert_with(|| match hotspot.native_locks() {
            Ok(locks) => locks,
            Err(error) => {
                log::debug!("process {}: the JVM's own locks have no names: {error}", self.pid);
                NativeLocks::default()
            }
        });
        locks.name(Addr(futex)).cloned()
    }

    /// Returns the pools of HikariCP if `resource` is a connection of one and a reading is due.
    pub(super) fn connection_pools(
        &mut self,
        resource: Option<&'static Resource>,
    ) -> Vec<ConnectionPool> {
        let begin = Instant::now();
        let is_due = begin >= self.next_pools_at && resource.is_some_and(Resource::is_hikari);
        let Some(reader) = self.reader.as_mut().filter(|_| is_due) else { return Vec::new() };
        let pools = reader.pools().unwrap_or_default();
        let delay = (begin.elapsed() * POOLS_DELAY_FACTOR).max(MIN_POOLS_INTERVAL);
        self.next_pools_at = begin + delay;
        pools
    }

    /// Records that a thread has acquired a lock, or an element of a pool, after a wait.
    pub(super) fn acquire(&mut self, lock: u64, thread: &ThreadName, at: u64) {
        if self.acquired.len() >= MAX_KEPT {
            self.acquired.clear();
        }
        self.acquired.insert((lock, thread.tid, thread.virtual_thread), at);
    }

    /// Records that a thread has released a lock, or an element of a pool. Returns when it had acquired it after a wait;
    /// `None` if that is not known, because it has acquired it again without a wait since.
    pub(super) fn release(&mut self, lock: u64, thread: &ThreadName, at: u64) -> Option<u64> {
        let key = (lock, thread.tid, thread.virtual_thread);
        if self.released.len() >= MAX_KEPT {
            self.released.clear();
        }
        let last = self.released.entry(key).or_insert(at);
        let before = std::mem::replace(last, at.max(*last));
        let is_same = before.saturating_add(SAME_RELEASE_NS) > at;
        self.acquired.get(&key).copied().filter(|&acquired| is_same || before <= acquired)
    }

    /// Records the monitor of an object.
    pub(super) fn add_monitor(&mut self, object: u64, monitor: u64) {
        if self.monitors.len() >= MAX_KEPT {
            self.monitors.clear();
        }
        self.monitors.insert(object, monitor);
    }

    /// Returns the monitor that an object had in the last wait for it.
    pub(super) fn monitor(&self, object: u64) -> Option<u64> {
        self.monitors.get(&object).copied()
    }

    /// Keeps a wait for later waits of threads that waited for its thread. What the holder waited for is left out, so that a
    /// chain of waits has at most two of them.
    pub(super) fn keep(&mut self, wait: &Wait) {
        if self.recent.len() >= MAX_KEPT {
            self.recent.clear();
        }
        let waits = self.recent.entry(wait.thread.tid).or_default();
        if waits.len() == MAX_RECENT {
            waits.pop_front();
        }
        let mut wait = wait.clone();
        if let Some(holder) = &mut wait.holder {
            holder.waited = None;
        }
        waits.push_back(wait);
    }

    /// Returns the longest wait of a thread within a period, and the length of their intersection.
    pub(super) fn longest_within(&self, tid: u32, begin: u64, end: u64) -> Option<(&Wait, u64)> {
        let held = self.held.get(&tid).map(|held| &held.wait);
        let waits = self.recent.get(&tid).into_iter().flatten().chain(held);
        let common = |wait: &Wait| wait.end_ns.min(end).saturating_sub(wait.begin_ns.max(begin));
        waits.map(|wait| (wait, common(wait))).filter(|(_, ns)| *ns > 0).max_by_key(|(_, ns)| *ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::Kind;

    const MS: u64 = 1_000_000;

    #[test]
    fn size_of_stacks_includes_names() {
        let mut jvm = Jvm::new(Pid(1), None, None);
        for _ in 0..2 {
            jvm.keep_stack(3, vec![Frame::new(Kind::Java, "n".repeat(2000))]);
            assert!((2000..2200).contains(&jvm.stacks_size), "{}", jvm.stacks_size);
        }
        jvm.forget_stacks();
        assert_eq!(jvm.stacks_size, 0);
    }

    #[test]
    fn lock_that_was_released_in_between_has_been_held_for_an_unknown_time() {
        let mut jvm = Jvm::new(Pid(1), None, None);
        let thread =
            ThreadName { pid: Pid(1), tid: 2, name: "holder".into(), virtual_thread: None };
        jvm.acquire(7, &thread, 100 * MS);
        assert_eq!(jvm.release(7, &thread, 500 * MS), Some(100 * MS));
        // The release has woken another thread, too, whose event comes later.
        assert_eq!(jvm.release(7, &thread, 500 * MS + 1000), Some(100 * MS));
        assert_eq!(jvm.release(7, &thread, 900 * MS), None, "acquired again without a wait");
        assert_eq!(jvm.release(8, &thread, 900 * MS), None, "another lock");
        jvm.acquire(7, &thread, 950 * MS);
        assert_eq!(jvm.release(7, &thread, 990 * MS), Some(950 * MS));
    }
}

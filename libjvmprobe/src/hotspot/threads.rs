//! Bytes that each Java thread has allocated, from HotSpot's own counters.
//!
//! Sources: hotspot/share/runtime/{thread,threadSMR}.hpp and
//! gc/shared/threadLocalAllocBuffer.hpp, with the fields that vmStructs exports. `_allocated_bytes`
//! counts a thread's allocations outside of TLABs, and each TLAB from the time when it is full. The
//! used part of the current TLAB lies between its start and its top. The sum of both is what
//! `com.sun.management.ThreadMXBean.getThreadAllocatedBytes` returns
//! (`Thread::cooked_allocated_bytes`).

use std::collections::HashSet;

use crate::{
    Addr, Error, Result,
    hotspot::{layout::Item, pages::Pages, resolved::Layout},
    process::memory::Memory,
};

/// Maximum number of threads read. By default a process has fewer than 32,768.
const MAX_THREADS: usize = 1 << 17;
/// Plausibility limit for the size of a TLAB in bytes. A larger TLAB would not fit into a heap region, or its
/// size in words would not fit into an `int`.
pub(super) const MAX_TLAB: u64 = 1 << 34;

/// Maximum number of attempts to read a thread if the thread replaces its TLAB during each attempt, and to
/// read the list of threads if the JVM replaces the list during each attempt.
const MAX_TRIES: u32 = 8;
/// Maximum number of attempts to read the list of threads if the list is unreadable in each attempt, because
/// the JVM has freed it.
const MAX_LIST_TRIES: u32 = 64;
/// Maximum number of threads of an array that is compared with its last contents, word by word.
const MAX_AGAIN: usize = 250;

/// Offsets in bytes of a Thread's allocation counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadLayout {
    /// `Thread::_allocated_bytes`.
    pub allocated: u64,
    /// `_start` of `Thread::_tlab`.
    pub tlab_start: u64,
    /// `_top` of `Thread::_tlab`.
    pub tlab_top: u64,
    /// `_desired_size` of `Thread::_tlab`, a number of words.
    pub desired_tlab_size: u64,
    /// Whether `AllocTracer` is called for a new TLAB before the thread's `_tlab` is that TLAB
    /// (`CollectedHeap::allocate_from_tlab_slow`, collectedHeap.cpp of JDK 8).
    pub probe_precedes_tlab: bool,
}

/// A Java thread and its allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadBytes {
    /// Its JavaThread.
    pub thread: Addr,
    /// Number of bytes allocated since it started.
    pub allocated: u64,
}

impl ThreadLayout {
    /// Looks up the offsets.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field.
    pub(super) fn read(layout: &Layout) -> Result<Self> {
        let tlab = layout.get(Item::Tlab)?;
        let in_tlab = |field| {
            let offset = layout.get(field)?;
            tlab.checked_add(offset).ok_or_else(|| Error::layout("the offset of a TLAB overflows"))
        };
        Ok(Self {
            allocated: layout.get(Item::AllocatedBytes)?,
            tlab_start: in_tlab(Item::TlabStart)?,
            tlab_top: in_tlab(Item::TlabTop)?,
            desired_tlab_size: in_tlab(Item::TlabDesiredSize)?,
            probe_precedes_tlab: layout.is_jdk_8(),
        })
    }

    /// Returns the bytes that each thread has allocated so far; `None` for a thread that has exited.
    fn bytes(&self, memory: &Memory, threads: &[Addr]) -> Vec<Option<u64>> {
        // The threads run on and may replace or retire their TLABs between these reads, which happen in this
        // order. Then start and top belong to different TLABs, or one is null, and their difference is
        // meaningless. So the start and the counter are read again after the top.
        let order =
            [self.allocated, self.tlab_start, self.tlab_top, self.tlab_start, self.allocated];
        let mut bytes = vec![None; threads.len()];
        let mut open: Vec<usize> = (0..threads.len()).collect();
        for tries in 1..=MAX_TRIES {
            // An address that overflows is unreadable, like null.
            let at = |thread: usize, offset| threads[thread].checked_add(offset).unwrap_or(Addr(0));
            let addrs: Vec<_> =
                open.iter().flat_map(|&thread| order.map(|offset| at(thread, offset))).collect();
            let Ok(words) = memory.words(&addrs) else { break };
            let mut changed = Vec::new();
            for (&thread, words) in open.iter().zip(words.as_chunks::<5>().0) {
                let &[Some(allocated), Some(start), Some(top), Some(start_after), Some(after)] =
                    words
                else {
                    continue;
                };
                let used = top.checked_sub(start).filter(|&used| start != 0 && used < MAX_TLAB);
                if (start, allocated) == (start_after, after) {
                    bytes[thread] = Some(allocated.saturating_add(used.unwrap_or(0)));
                } else if tries == MAX_TRIES {
                    bytes[thread] = Some(allocated);
                } else {
                    changed.push(thread);
                }
            }
            open = changed;
            if open.is_empty() {
                break;
            }
        }
        bytes
    }
}

/// Returns all Java threads with the bytes they have allocated. Threads that start or exit meanwhile
/// may be missing. The list of threads is read a second time, and threads that it no longer contains are
/// dropped, because the memory of an exited thread may be reused. `last` is the array of threads of the last reading.
///
/// # Errors
/// [`Error::Layout`] if HotSpot has none of the known thread lists.
pub(super) fn read(
    memory: &Memory,
    layout: &Layout,
    last: &mut ThreadArray,
) -> Result<Vec<ThreadBytes>> {
    let fields = ThreadLayout::read(layout)?;
    let threads = addresses_again(memory, layout, last)?;
    let bytes = fields.bytes(memory, &threads).into_iter().zip(threads);
    let mut threads: Vec<_> = bytes
        .filter_map(|(allocated, thread)| Some(ThreadBytes { thread, allocated: allocated? }))
        .collect();
    let still: HashSet<_> = addresses_again(memory, layout, last)?.into_iter().collect();
    threads.retain(|thread| still.contains(&thread.thread));
    Ok(threads)
}

/// Whether a Java thread exists already. The first one is listed when the heap, the
/// interpreter and the stubs are set up, and before any Java code runs.
///
/// # Errors
/// The errors of [`read`].
pub(super) fn have_begun(memory: &Memory, layout: &Layout) -> Result<bool> {
    Ok(!addresses(memory, layout)?.is_empty())
}

/// Returns the addresses of the JavaThreads.
///
/// # Errors
/// [`Error::Layout`] if HotSpot has none of the known thread lists.
pub(super) fn addresses(memory: &Memory, layout: &Layout) -> Result<Vec<Addr>> {
    addresses_again(memory, layout, &mut ThreadArray::default())
}

/// Returns the addresses of the JavaThreads. If the JVM's array of threads is still `last`, one request is enough to read it.
///
/// # Errors
/// The errors of [`addresses`].
pub(super) fn addresses_again(
    memory: &Memory,
    layout: &Layout,
    last: &mut ThreadArray,
) -> Result<Vec<Addr>> {
    if layout.has(Item::ThreadList) && !layout.has(Item::ThreadsList) {
        return linked(memory, layout);
    }
    if !last.is_current(memory, layout)? {
        *last = array(memory, layout)?;
    }
    Ok(last.threads.iter().copied().filter(|&thread| thread != Addr(0)).collect())
}

/// Reads the linked list of threads of JDK 8.
fn linked(memory: &Memory, layout: &Layout) -> Result<Vec<Addr>> {
    let next = layout.get(Item::NextThread)?;
    let mut thread = memory.pointer(layout.address(Item::ThreadList)?)?;
    let mut threads = Vec::new();
    let mut seen = HashSet::new();
    // Threads that were started one after another lie close together.
    let mut pages = Pages::sequential(memory);
    // An address that occurs twice means that the list is cyclic.
    while thread != Addr(0) && threads.len() < MAX_THREADS && seen.insert(thread) {
        threads.push(thread);
        // If a thread has exited meanwhile, its link to the next thread may be unreadable. Then the result is
        // the threads found so far.
        let at = thread.checked_add(next);
        thread = at.and_then(|at| pages.pointer(at).ok()).unwrap_or(Addr(0));
    }
    Ok(threads)
}

/// The array of threads (`ThreadsList`) as it was read. The JVM replaces it when a thread starts or exits, and may free the
/// old one.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadArray {
    /// Address of the `ThreadsList`; null before the first reading.
    list: Addr,
    /// Address of its array.
    array: Addr,
    /// The array's entries, some of which may be null.
    threads: Vec<Addr>,
}

impl ThreadArray {
    /// Reads the array again, and returns whether it is the same. An array at the same address may be another one, so its
    /// entries are compared, too.
    fn is_current(&self, memory: &Memory, layout: &Layout) -> Result<bool> {
        if self.list == Addr(0) || self.threads.len() > MAX_AGAIN {
            return Ok(false);
        }
        let list_at = layout.address(Item::ThreadsList)?;
        let [length, array] = fields(layout, self.list)?;
        // The words are read in this order.
        let mut addrs = vec![list_at, length, array];
        addrs
            .extend((0..self.threads.len() as u64).map(|i| Addr(self.array.0.wrapping_add(8 * i))));
        addrs.push(list_at);
        let words: Option<Vec<_>> = memory.words(&addrs)?.into_iter().collect();
        Ok(words.is_some_and(|words| match &words[..] {
            [list, length, array, threads @ .., list_after] => {
                [*list, *array, *list_after] == [self.list.0, self.array.0, self.list.0]
                    && *length as u32 as usize == self.threads.len()
                    && self.threads.iter().zip(threads).all(|(thread, word)| thread.0 == *word)
            }
            _ => false,
        }))
    }
}

fn array(memory: &Memory, layout: &Layout) -> Result<ThreadArray> {
    let list_at = layout.address(Item::ThreadsList)?;
    let mut tries = 0;
    loop {
        let list = memory.pointer(list_at)?;
        let threads = of_list(memory, layout, list);
        tries += 1;
        // After MAX_TRIES attempts, a readable list is accepted even if the JVM has replaced it meanwhile.
        // Such a list may lack the newest threads.
        let is_enough = if threads.is_ok() { tries >= MAX_TRIES } else { tries >= MAX_LIST_TRIES };
        if is_enough || threads.is_ok() && memory.pointer(list_at)? == list {
            return threads;
        }
    }
}

fn of_list(memory: &Memory, layout: &Layout, list: Addr) -> Result<ThreadArray> {
    if list == Addr(0) {
        return Ok(ThreadArray::default());
    }
    let words = memory.words(&fields(layout, list)?)?;
    let &[Some(length), Some(array)] = &words[..] else {
        return Err(Error::not_mapped(list, 8));
    };
    let (length, array) = (length as u32 as usize, Addr(array));
    let bytes = memory.read(array, length.min(MAX_THREADS) * 8)?;
    let (words, _) = bytes.as_chunks();
    let threads = words.iter().map(|&word| Addr(u64::from_ne_bytes(word))).collect();
    Ok(ThreadArray { list, array, threads })
}

/// Returns the addresses of the length and of the array of a `ThreadsList`. The length is the lower half of its word.
fn fields(layout: &Layout, list: Addr) -> Result<[Addr; 2]> {
    let at = |field| {
        let field = list.checked_add(layout.get(field)?);
        field.ok_or_else(|| Error::layout("the address of the thread list overflows"))
    };
    Ok([at(Item::ThreadsLength)?, at(Item::ThreadsArray)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::testing::{Image, own_memory};

    /// Two threads: one with a TLAB, one whose TLAB is being replaced.
    fn threads_with(list: impl FnOnce(&mut Image, [Addr; 2])) -> Vec<u64> {
        let mut image = Image::new();
        let second = image.put(&[0, 1000, 64, 8]);
        let first = image.put(&[second.0, 500, 4096, 4196]);
        image.field("Thread", "_allocated_bytes", 8);
        image.field("Thread", "_tlab", 16);
        image.field("ThreadLocalAllocBuffer", "_start", 0);
        image.field("ThreadLocalAllocBuffer", "_top", 8);
        image.field("ThreadLocalAllocBuffer", "_desired_size", 24);
        list(&mut image, [first, second]);
        image.finish();
        let mut last = ThreadArray::default();
        let layout = image.read().unwrap();
        let first = read(&own_memory(), &layout, &mut last).unwrap();
        let threads = read(&own_memory(), &layout, &mut last).unwrap();
        assert_eq!(first, threads, "the second reading");
        threads.iter().map(|thread| thread.allocated).collect()
    }

    #[test]
    fn linked_thread_list_is_read_to_its_end() {
        let bytes = threads_with(|image, [first, _]| {
            let head = image.put(&[first.0]);
            image.static_field("Threads", "_thread_list", head);
            image.field("JavaThread", "_next", 0);
        });
        assert_eq!(bytes, [600, 1000]);
    }

    #[test]
    fn cyclic_thread_list_is_read_once() {
        let bytes = threads_with(|image, [first, second]| {
            let head = image.put(&[first.0]);
            image.overwrite(second, first.0);
            image.static_field("Threads", "_thread_list", head);
            image.field("JavaThread", "_next", 0);
        });
        assert_eq!(bytes, [600, 1000]);
    }

    #[test]
    fn null_entries_of_the_thread_array_are_skipped() {
        let bytes = threads_with(|image, [first, second]| {
            let array = image.put(&[first.0, 0, second.0]);
            let list = image.put(&[3, array.0]);
            let list_at = image.put(&[list.0]);
            image.static_field("ThreadsSMRSupport", "_java_thread_list", list_at);
            image.field("ThreadsList", "_length", 0);
            image.field("ThreadsList", "_threads", 8);
        });
        assert_eq!(bytes, [600, 1000]);
    }

    #[test]
    fn changed_thread_array_is_read_again() {
        let mut image = Image::new();
        let array = image.put(&[1, 2, 3]);
        let list = image.put(&[2, array.0]);
        let list_at = image.put(&[list.0]);
        image.static_field("ThreadsSMRSupport", "_java_thread_list", list_at);
        image.field("ThreadsList", "_length", 0);
        image.field("ThreadsList", "_threads", 8);
        image.finish();
        let (memory, layout) = (own_memory(), image.read().unwrap());
        let mut last = ThreadArray::default();
        let mut now = || addresses_again(&memory, &layout, &mut last).unwrap();
        assert_eq!(now(), [Addr(1), Addr(2)]);
        // The list at the same address has another length, another entry, another array.
        image.overwrite(list, 3);
        assert_eq!(now(), [Addr(1), Addr(2), Addr(3)]);
        image.overwrite(Addr(array.0 + 8), 9);
        assert_eq!(now(), [Addr(1), Addr(9), Addr(3)]);
        let other = image.put(&[5, 6, 7]);
        image.overwrite(Addr(list.0 + 8), other.0);
        assert_eq!(now(), [Addr(5), Addr(6), Addr(7)]);
        let other = image.put(&[1, array.0]);
        image.overwrite(list_at, other.0);
        assert_eq!(now(), [Addr(1)]);
        image.overwrite(list_at, 0);
        assert_eq!(now(), []);
    }

    /// Layout of a thread that consists only of these fields.
    const LAYOUT: ThreadLayout = ThreadLayout {
        allocated: 0,
        tlab_start: 8,
        tlab_top: 16,
        desired_tlab_size: 24,
        probe_precedes_tlab: false,
    };

    #[test]
    fn thread_without_tlab_has_no_used_tlab_bytes() {
        // Many heaps lie below 4 GiB. In such a heap, the difference of a top and a start that is null is a
        // plausible size of a TLAB.
        for (start, top, used) in [(0, 0xffe0_0000, 0), (0xffd0_0000, 0xffe0_0000, 1 << 20)] {
            let thread: [u64; 3] = [500, start, top];
            let at = Addr(thread.as_ptr() as u64);
            assert_eq!(LAYOUT.bytes(&own_memory(), &[at]), [Some(500 + used)]);
        }
    }

    #[test]
    fn unreadable_thread_has_no_allocated_bytes() {
        assert_eq!(LAYOUT.bytes(&own_memory(), &[Addr(8)]), [None]);
    }
}

//! How many bytes each Java thread has allocated, by HotSpot's own count.
//!
//! Sources: hotspot/share/runtime/{thread,threadSMR}.hpp and
//! gc/shared/threadLocalAllocBuffer.hpp, their fields as vmStructs exports them. A thread
//! counts what it allocated outside of its TLAB, and TLABs when they are full; what is in
//! the current one lies between its start and its top. The sum of both is what
//! `com.sun.management.ThreadMXBean.getThreadAllocatedBytes` says
//! (`Thread::cooked_allocated_bytes`).

use std::collections::HashSet;

use crate::{
    Addr, Error, Result,
    hotspot::{layout::Item, resolved::Layout},
    process::memory::Memory,
};

/// As many threads as are read. A process has fewer than 32,768 by default.
const MAX_THREADS: usize = 1 << 17;
/// No TLAB is larger: it would not fit into the heap region or an int of words.
pub(super) const MAX_TLAB: u64 = 1 << 34;

/// A thread that gets one TLAB after the other may do so while it is read, each time.
const MOST_TRIES: u32 = 8;

/// Where a Thread keeps its count: offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadLayout {
    /// `Thread::_allocated_bytes`.
    pub allocated: u64,
    /// `_start` of `Thread::_tlab`.
    pub tlab_start: u64,
    /// `_top` of `Thread::_tlab`.
    pub tlab_top: u64,
    /// Whether `AllocTracer` is told of a TLAB before its thread has it
    /// (`CollectedHeap::allocate_from_tlab_slow`, collectedHeap.cpp of JDK 8).
    pub told_first: bool,
}

/// A Java thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadBytes {
    /// Its JavaThread.
    pub thread: Addr,
    /// The bytes that it has allocated in its life.
    pub allocated: u64,
}

impl ThreadLayout {
    /// Looks them up.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the field that is missing.
    pub(super) fn read(layout: &Layout) -> Result<Self> {
        let tlab = layout.get(Item::Tlab)?;
        let in_tlab = |field| {
            let offset = layout.get(field)?;
            tlab.checked_add(offset).ok_or_else(|| Error::layout("a TLAB outside of its thread"))
        };
        Ok(Self {
            allocated: layout.get(Item::AllocatedBytes)?,
            tlab_start: in_tlab(Item::TlabStart)?,
            tlab_top: in_tlab(Item::TlabTop)?,
            told_first: layout.is_jdk_8(),
        })
    }

    /// What a thread has allocated so far; `None` where it is gone.
    fn bytes(&self, memory: &Memory, thread: Addr) -> Option<u64> {
        let word = |offset| memory.u64(thread.checked_add(offset)?).ok();
        let mut tries = 0;
        loop {
            let allocated = word(self.allocated)?;
            // The thread runs on meanwhile, and may get another TLAB in between, or lose the one
            // that it has: the end of one is nothing behind the start of another, or of none.
            let (start, top) = (word(self.tlab_start)?, word(self.tlab_top)?);
            let is_one = word(self.tlab_start)? == start;
            let used = top.checked_sub(start).filter(|&used| start != 0 && used < MAX_TLAB);
            tries += 1;
            if is_one && word(self.allocated)? == allocated {
                return Some(allocated.saturating_add(used.unwrap_or(0)));
            }
            if tries == MOST_TRIES {
                return Some(allocated);
            }
        }
    }
}

/// All Java threads with what they have allocated. Threads that come or go meanwhile
/// may be missing: a number counts only if its thread is still there behind it, for what was
/// a thread may be anything a moment later.
///
/// # Errors
/// [`Error::Layout`] where HotSpot keeps no list that we know.
pub(super) fn read(memory: &Memory, layout: &Layout) -> Result<Vec<ThreadBytes>> {
    let fields = ThreadLayout::read(layout)?;
    let bytes = |thread| {
        let allocated = fields.bytes(memory, thread)?;
        Some(ThreadBytes { thread, allocated })
    };
    let mut threads: Vec<_> = addresses(memory, layout)?.into_iter().filter_map(bytes).collect();
    let still: HashSet<_> = addresses(memory, layout)?.into_iter().collect();
    threads.retain(|thread| still.contains(&thread.thread));
    Ok(threads)
}

/// Whether there is a Java thread already. The first one is listed when the heap, the
/// interpreter and the stubs are there, and before any Java code runs
/// (`Threads::create_vm`, hotspot/share/runtime/threads.cpp).
///
/// # Errors
/// As [`read`].
pub(super) fn have_begun(memory: &Memory, layout: &Layout) -> Result<bool> {
    Ok(!addresses(memory, layout)?.is_empty())
}

/// The JavaThreads.
///
/// # Errors
/// As [`read`].
pub(super) fn addresses(memory: &Memory, layout: &Layout) -> Result<Vec<Addr>> {
    if !layout.has(Item::ThreadList) || layout.has(Item::ThreadsList) {
        return array(memory, layout);
    }
    let next = layout.get(Item::NextThread)?;
    let mut thread = memory.pointer(layout.address(Item::ThreadList)?)?;
    let mut threads = Vec::new();
    let mut seen = HashSet::new();
    // One that comes again makes a ring.
    while thread != Addr(0) && threads.len() < MAX_THREADS && seen.insert(thread) {
        threads.push(thread);
        // A thread that ends meanwhile breaks the chain: what was found must do.
        let at = thread.checked_add(next);
        thread = at.and_then(|at| memory.pointer(at).ok()).unwrap_or(Addr(0));
    }
    Ok(threads)
}

fn array(memory: &Memory, layout: &Layout) -> Result<Vec<Addr>> {
    let list = memory.pointer(layout.address(Item::ThreadsList)?)?;
    let at = |field| -> Result<Addr> {
        let offset = layout.get(field)?;
        list.checked_add(offset).ok_or_else(|| Error::layout("the list of threads wraps"))
    };
    if list == Addr(0) {
        return Ok(Vec::new());
    }
    let length = memory.u32(at(Item::ThreadsLength)?)? as usize;
    let threads = memory.pointer(at(Item::ThreadsArray)?)?;
    let words = memory.read(threads, length.min(MAX_THREADS) * 8)?;
    let word = |bytes: &[u8]| Some(Addr(u64::from_ne_bytes(bytes.try_into().ok()?)));
    Ok(words.chunks_exact(8).filter_map(word).filter(|&thread| thread != Addr(0)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::testing::{Image, own_memory};

    /// Two threads: one with a TLAB, one whose TLAB is just being replaced.
    fn threads_with(list: impl FnOnce(&mut Image, [Addr; 2])) -> Vec<u64> {
        let mut image = Image::new();
        let second = image.put(&[0, 1000, 64, 8]);
        let first = image.put(&[second.0, 500, 4096, 4196]);
        image.field("Thread", "_allocated_bytes", 8);
        image.field("Thread", "_tlab", 16);
        image.field("ThreadLocalAllocBuffer", "_start", 0);
        image.field("ThreadLocalAllocBuffer", "_top", 8);
        list(&mut image, [first, second]);
        image.finish();
        let threads = read(&own_memory(), &image.read().unwrap()).unwrap();
        threads.iter().map(|thread| thread.allocated).collect()
    }

    #[test]
    fn a_chain_of_threads() {
        let bytes = threads_with(|image, [first, _]| {
            let head = image.put(&[first.0]);
            image.static_field("Threads", "_thread_list", head);
            image.field("JavaThread", "_next", 0);
        });
        assert_eq!(bytes, [600, 1000]);
    }

    #[test]
    fn a_ring_of_threads_is_gone_round_once() {
        let bytes = threads_with(|image, [first, second]| {
            let head = image.put(&[first.0]);
            image.overwrite(second, first.0);
            image.static_field("Threads", "_thread_list", head);
            image.field("JavaThread", "_next", 0);
        });
        assert_eq!(bytes, [600, 1000]);
    }

    #[test]
    fn an_array_of_threads() {
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
    fn where_no_tlab_begins_nothing_is_used_of_one() {
        let layout = ThreadLayout { allocated: 0, tlab_start: 8, tlab_top: 16, told_first: false };
        // Below four gigabytes, where many heaps lie.
        for (start, top, used) in [(0, 0xffe0_0000, 0), (0xffd0_0000, 0xffe0_0000, 1 << 20)] {
            let thread: [u64; 3] = [500, start, top];
            let at = Addr(thread.as_ptr() as u64);
            assert_eq!(layout.bytes(&own_memory(), at), Some(500 + used));
        }
    }

    #[test]
    fn a_thread_that_is_gone_has_no_bytes() {
        let layout = ThreadLayout { allocated: 0, tlab_start: 8, tlab_top: 16, told_first: false };
        assert_eq!(layout.bytes(&own_memory(), Addr(8)), None);
    }
}

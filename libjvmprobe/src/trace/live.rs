//! A process whose threads the walker in user space walks. It is a running process, or one that has left a
//! core file.

use crate::{
    Addr,
    bpf::{
        user_walker::Source,
        walker::{MappingEntry, WalkData},
    },
    hotspot::{
        pages::{PAGE, Pages},
        walking::JvmLayout,
    },
    unwind::Row,
};

/// Number of threads that are walked together.
pub(crate) const AT_ONCE: usize = 64;
/// Number of bytes of a stack, from the stack pointer on, that are read in advance.
const STACK_BYTES: u64 = 16 << 10;

/// A process whose threads are walked while they do not run, or whose core file contains the threads.
pub(crate) struct Live<'a, 'p> {
    /// Memory of the process.
    pub(crate) pages: &'a mut Pages<'p>,
    /// Layout of the process's JVM.
    pub(crate) layout: &'a JvmLayout,
    /// Mappings and unwind tables of the process.
    pub(crate) walk_data: &'a WalkData<'a>,
}

impl<'a, 'p> Live<'a, 'p> {
    /// Calls `walk` for each of `threads`, and reads the memory that these calls need in as few requests as possible. A
    /// call may be repeated, see [`Pages::read_batched`]. `sp` returns a thread's stack pointer.
    pub(crate) fn walk_all<T, R>(
        pages: &mut Pages<'p>,
        layout: &JvmLayout,
        walk_data: &WalkData<'_>,
        threads: &[T],
        sp: impl Fn(&T) -> u64,
        mut walk: impl FnMut(&mut Live<'_, 'p>, &T) -> R,
    ) -> Vec<R> {
        let mut all = Vec::with_capacity(threads.len());
        for some in threads.chunks(AT_ONCE) {
            pages.prefetch(some.iter().flat_map(|thread| {
                let sp = sp(thread);
                (sp..sp.saturating_add(STACK_BYTES)).step_by(PAGE).map(Addr)
            }));
            all.extend(pages.read_batched(some, |pages, thread| {
                walk(&mut Live { pages, layout, walk_data }, thread)
            }));
        }
        all
    }
}

impl Source for Live<'_, '_> {
    fn read(&mut self, addr: u64, to: &mut [u8]) -> bool {
        self.pages.read(Addr(addr), to).is_ok()
    }

    fn mapping(&mut self, index: u32) -> Option<MappingEntry> {
        self.walk_data.mapping(index)
    }

    fn row(&mut self, table: u32, index: u32) -> Option<Row> {
        self.walk_data.row(table, index)
    }

    fn jvm(&self) -> JvmLayout {
        *self.layout
    }
}

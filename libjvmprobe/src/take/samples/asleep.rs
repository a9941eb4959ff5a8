//! Threads that sleep since before the trace: where they are.
//!
//! Of a program that hangs, these are all there are. None of our programs has run in them. The
//! kernel side tells their registers, and the walker goes up their stacks here: they do not run,
//! so their memory stands still. A thread that wakes up in the meantime is seen to do so, and left
//! out.

use std::collections::HashSet;

use crate::{
    Addr, Pid, Result,
    bpf::{
        here::{Source, Start, walk},
        walker::{MappingEntry, Told},
    },
    hotspot::walking::JvmLayout,
    own::remark,
    process::memory::Memory,
    stack::raw::RawStack,
    take::samples::{
        event::sleeper,
        session::{self, Session},
    },
    unwind::Row,
};

/// Where a thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The number of its user stack, as the kernel side would know it.
    pub(crate) user: u64,
    /// How its walk ended, see `WalkEnd::from_code`.
    pub(crate) user_end: u32,
    /// The number of its kernel stack, 0 for none.
    pub(crate) kernel: u64,
    /// The epoch of the JVM's code cache.
    pub(crate) epoch: u64,
}

/// A thread that was found.
pub(crate) struct Found {
    /// Its process and its number.
    pub(crate) thread: (u32, u32),
    /// Where it sleeps.
    pub(crate) place: Place,
    /// Its stack.
    pub(crate) stack: RawStack,
}

/// A process as the walker's source.
struct Live<'a> {
    memory: Memory,
    jvm: &'a JvmLayout,
    told: Told<'a>,
}

impl Source for Live<'_> {
    fn read(&mut self, addr: u64, to: &mut [u8]) -> bool {
        self.memory.read_into(Addr(addr), to).is_ok()
    }

    fn mapping(&mut self, index: u32) -> Option<MappingEntry> {
        self.told.mapping(index)
    }

    fn row(&mut self, table: u32, index: u32) -> Option<Row> {
        self.told.row(table, index)
    }

    fn jvm(&self) -> JvmLayout {
        *self.jvm
    }
}

/// Finds the sleeping threads of JVMs that are walked like this.
///
/// # Errors
/// [`crate::Error::Bpf`].
pub(crate) fn find(session: &mut Session, jvms: &[(u32, JvmLayout)]) -> Result<Vec<Found>> {
    let asleep = session::sleepers(session)?;
    let mut found = Vec::new();
    for (pid, jvm) in jvms {
        let threads = asleep.iter().filter(|thread| thread.tgid == *pid);
        let memory = match Memory::open(Pid(*pid)) {
            Ok(memory) => memory,
            Err(error) => {
                remark(|| format!("process {pid}: where its threads sleep is not known: {error}"));
                continue;
            }
        };
        let walker = session.walker();
        let Some(told) = walker.and_then(|walker| walker.told((*pid).into())) else { continue };
        let mut live = Live { memory, jvm, told };
        found.extend(threads.map(|thread| walk_one(&mut live, thread)));
    }
    // Those that sleep still have not moved.
    let still = session::sleepers(session)?;
    let still: HashSet<_> = still.iter().map(|thread| (thread.tgid, thread.tid)).collect();
    found.retain(|found| still.contains(&found.thread));
    Ok(found)
}

fn walk_one(live: &mut Live<'_>, thread: &sleeper) -> Found {
    let [ax, bx, r13, dx] = thread.others;
    let start = Start { ip: thread.ip, sp: thread.sp, fp: thread.fp, ax, bx, r13, dx };
    let target = u64::from(thread.tgid);
    let (number, stack) = walk(live, target, &start);
    let place = Place {
        user: number,
        user_end: u32::try_from(stack.end).unwrap_or(0),
        kernel: thread.kernel,
        epoch: thread.epoch,
    };
    let stack = RawStack::of(target, stack.unloads, stack.frames.iter().copied());
    Found { thread: (thread.tgid, thread.tid), place, stack }
}

//! Finds the stacks of threads that have been asleep since before the trace.
//!
//! If an application hangs, all its threads may be asleep. No BPF program has run in these threads, and a BPF
//! program can read only the memory of the task in which it runs. The kernel side therefore reports the
//! registers of these threads, and the walker's code, compiled for user space, walks their stacks in this
//! process. This works because a sleeping thread does not change its stack. A thread that wakes up during the
//! walk is detected and left out.

use std::collections::HashSet;

use crate::{
    Pid, Result,
    bpf::user_walker::{Registers, walk},
    hotspot::{pages::Pages, walking::JvmLayout},
    process::memory::Memory,
    stack::raw::RawStack,
    trace::{
        live::Live,
        samples::{
            event::sleeper,
            session::{self, Session},
        },
    },
};

/// Stacks of a sleeping thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SleepingStacks {
    /// Number of the user stack, as the kernel side would compute it.
    pub(crate) user: u64,
    /// How the walk of the user stack ended, see `WalkEnd::from_code`.
    pub(crate) user_end: u32,
    /// Number of the kernel stack, 0 for none.
    pub(crate) kernel: u64,
    /// The epoch of the JVM's code cache.
    pub(crate) epoch: u64,
}

/// A sleeping thread.
pub(crate) struct SleepingThread {
    /// Process ID and thread ID.
    pub(crate) thread: (u32, u32),
    /// The numbers of its stacks.
    pub(crate) stacks: SleepingStacks,
    /// Its user stack.
    pub(crate) stack: RawStack,
}

/// Finds the sleeping threads of the given JVMs and walks their stacks by the JVMs' layouts.
///
/// # Errors
/// [`crate::Error::Bpf`], [`crate::Error::Io`].
pub(crate) fn find(
    session: &mut Session,
    jvms: &[(u32, JvmLayout)],
) -> Result<Vec<SleepingThread>> {
    let asleep = session::sleepers(session)?;
    let mut found = Vec::new();
    for (pid, jvm) in jvms {
        let threads: Vec<_> = asleep.iter().filter(|thread| thread.tgid == *pid).collect();
        let memory = match Memory::open(Pid(*pid)) {
            Ok(memory) => memory,
            Err(error) => {
                log::debug!(
                    "process {pid}: cannot read the stacks of its sleeping threads: {error}"
                );
                continue;
            }
        };
        let walker = session.walker();
        let Some(walk_data) = walker.and_then(|walker| walker.walk_data((*pid).into())) else {
            continue;
        };
        let mut pages = Pages::scattered(&memory);
        found.extend(Live::walk_all(
            &mut pages,
            jvm,
            &walk_data,
            &threads,
            |thread| thread.sp,
            |live, thread| walk_one(live, thread),
        ));
    }
    // The kernel side reports only threads that have not run since their process was added. A thread that it
    // reports again therefore has the same stack as before.
    let still_asleep = session::sleepers(session)?;
    let still_asleep: HashSet<_> =
        still_asleep.iter().map(|thread| (thread.tgid, thread.tid)).collect();
    found.retain(|found| still_asleep.contains(&found.thread));
    Ok(found)
}

fn walk_one(live: &mut Live<'_, '_>, thread: &sleeper) -> SleepingThread {
    let start = Registers::new([thread.ip, thread.sp, thread.fp], thread.others);
    let target = u64::from(thread.tgid);
    let (number, stack) = walk(live, target, &start);
    let stacks = SleepingStacks {
        user: number,
        user_end: u32::try_from(stack.end).unwrap_or(0),
        kernel: thread.kernel,
        epoch: thread.epoch,
    };
    let stack = RawStack::of(target, stack.unloads, stack.frames.iter().copied());
    SleepingThread { thread: (thread.tgid, thread.tid), stacks, stack }
}

//! Stacks of threads that sleep.
//!
//! If an application hangs, all its threads may be asleep. A BPF program can read only the memory of the task in which
//! it runs, and none runs in a sleeping thread. The kernel side therefore reports the registers of these threads, and
//! the walker's code, compiled for user space, walks their stacks in this process. This works because a sleeping thread
//! does not change its stack. A thread that wakes up during the walk is detected and left out.

use std::collections::HashSet;

use libbpf_rs::{Object, skel::Skel};

use crate::{
    Pid, Result,
    bpf::{
        offcpu::{self, Sleeper},
        session::Session,
        user_walker::{Registers, walk},
    },
    hotspot::{pages::Pages, walking::JvmLayout},
    process::memory::Memory,
    stack::raw::RawStack,
    trace::live::Live,
};

/// A sleeping thread.
pub(crate) struct SleepingThread {
    /// Process ID and thread ID.
    pub(crate) thread: (u32, u32),
    /// When it was switched out, on the kernel's monotonic clock in nanoseconds; 0 if that was before the trace.
    pub(crate) since: u64,
    /// Number of the user stack, as the kernel side would compute it.
    pub(crate) user: u64,
    /// How the walk of the user stack ended, see `WalkEnd::from_code`.
    pub(crate) user_end: u32,
    /// Number of the kernel stack, 0 for none.
    pub(crate) kernel: u64,
    /// Its user stack.
    pub(crate) stack: RawStack,
}

/// Finds the sleeping threads of JVMs and walks their stacks. A JVM is given by its PID, its key in the stack walker, and
/// its layout.
///
/// # Errors
/// [`crate::Error::Bpf`], [`crate::Error::Io`].
pub(crate) fn find<S: Skel<'static>, E>(
    session: &mut Session<S, E>,
    jvms: &[(u32, u64, JvmLayout)],
) -> Result<Vec<SleepingThread>> {
    let object: &mut Object = session.skel.object_mut();
    let asleep = offcpu::sleepers(object)?;
    let mut found = Vec::new();
    for (pid, key, jvm) in jvms {
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
        let Some(walk_data) = walker.and_then(|walker| walker.walk_data(*key)) else {
            continue;
        };
        let mut pages = Pages::scattered(&memory);
        found.extend(Live::walk_all(
            &mut pages,
            jvm,
            &walk_data,
            &threads,
            |thread| thread.sp,
            |live, thread| walk_one(live, *key, thread),
        ));
    }
    // A thread that was not switched meanwhile has the same stack as before.
    let still_asleep = offcpu::sleepers(session.skel.object_mut())?;
    let still_asleep: HashSet<_> =
        still_asleep.iter().map(|thread| (thread.tgid, thread.tid, thread.since)).collect();
    found.retain(|found| still_asleep.contains(&(found.thread.0, found.thread.1, found.since)));
    Ok(found)
}

fn walk_one(live: &mut Live<'_, '_>, target: u64, thread: &Sleeper) -> SleepingThread {
    let start = Registers::new([thread.ip, thread.sp, thread.fp], thread.others);
    let (user, stack) = walk(live, target, &start);
    SleepingThread {
        thread: (thread.tgid, thread.tid),
        since: thread.since,
        user,
        user_end: u32::try_from(stack.end).unwrap_or(0),
        kernel: thread.kernel,
        stack: RawStack::of(target, stack.unloads, stack.frames.iter().copied()),
    }
}

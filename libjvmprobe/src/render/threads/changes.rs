//! Differences between successive dumps of a JVM: how much CPU time each thread has used in between, and
//! whether the thread has moved. A thread has moved if it has used CPU time or if its stack has changed.

use std::{cmp::Reverse, collections::HashMap, time::Duration};

use crate::{Pid, stack::Frame, trace::threads::Thread};

/// Activity of a thread between two dumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// CPU time that the thread has used.
    pub cpu: Duration,
    /// Whether the thread has used no CPU time and has the same stack as in the last dump.
    pub is_still: bool,
}

/// A thread in an earlier dump.
#[derive(Debug)]
struct Earlier {
    cpu: Duration,
    frames: Vec<Frame>,
}

/// Threads of the last dump of each JVM.
#[derive(Debug, Default)]
pub struct Changes {
    /// By PID and thread ID.
    earlier: HashMap<Pid, HashMap<u32, Earlier>>,
}

impl Changes {
    /// Returns for each thread what it did since the last dump of its JVM; `None` if the thread was not in
    /// that dump. Stores `threads` for the comparison with the next dump.
    pub fn since_last(&mut self, pid: Pid, threads: &[Thread]) -> Vec<Option<Change>> {
        let now = threads.iter().map(|thread| {
            (thread.os.tid, Earlier { cpu: thread.os.cpu(), frames: thread.frames.clone() })
        });
        let earlier = self.earlier.insert(pid, now.collect()).unwrap_or_default();
        let change = |thread: &Thread| {
            let earlier = earlier.get(&thread.os.tid)?;
            // If the CPU time is lower than in the last dump, the kernel has given the ID to a new thread. A
            // new thread that has already used more CPU time than the old one is not recognized.
            let cpu = thread.os.cpu().checked_sub(earlier.cpu)?;
            Some(Change { cpu, is_still: cpu.is_zero() && thread.frames == earlier.frames })
        };
        threads.iter().map(change).collect()
    }
}

/// Returns the positions of the `top` threads that have used the most CPU time, in descending order of this
/// time. The CPU time since the last dump counts. For a thread without an entry in `changes`, the CPU time
/// since the thread's start counts.
pub fn busiest(threads: &[Thread], changes: &[Option<Change>], top: usize) -> Vec<usize> {
    let used = |at: usize| {
        let change = changes.get(at).copied().flatten();
        change.map_or_else(|| threads.get(at).map_or(Duration::ZERO, |t| t.os.cpu()), |it| it.cpu)
    };
    let mut all: Vec<_> = (0..threads.len()).collect();
    all.sort_by_key(|&at| Reverse(used(at)));
    all.truncate(top);
    all
}

//! Differences between successive dumps of a JVM: how much CPU time each thread has used in between, and
//! whether the thread has moved. A thread has moved if it has used CPU time or if its stack has changed.

use std::{collections::HashMap, sync::Arc, time::Duration};

use crate::{Pid, stack::Frame, trace::threads::Dump};

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
    frames: Arc<[Frame]>,
}

/// Threads of the last dump of each JVM.
#[derive(Debug, Default)]
pub struct Changes {
    /// By PID and thread ID.
    earlier: HashMap<Pid, HashMap<u32, Earlier>>,
}

impl Changes {
    /// Sets for each platform thread of a dump what it did since the last dump of its JVM. Stores the threads for the
    /// comparison with the next dump.
    pub fn since_last(&mut self, dump: &mut Dump) {
        let now = dump.threads.iter().map(|thread| {
            (thread.os.tid, Earlier { cpu: thread.os.cpu(), frames: Arc::clone(&thread.frames) })
        });
        let earlier = self.earlier.insert(dump.pid, now.collect()).unwrap_or_default();
        for thread in &mut dump.threads {
            let Some(earlier) = earlier.get(&thread.os.tid) else { continue };
            // If the CPU time is lower than in the last dump, the kernel has given the ID to a new thread. A
            // new thread that has already used more CPU time than the old one is not recognized.
            let cpu = thread.os.cpu().checked_sub(earlier.cpu);
            thread.change = cpu.map(|cpu| Change {
                cpu,
                is_still: cpu.is_zero() && thread.frames == earlier.frames,
            });
        }
    }
}

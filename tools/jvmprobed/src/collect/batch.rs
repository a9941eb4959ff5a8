//! Batches that the tracers deliver to the main loop.

use libjvmprobe::{bpf::cost::Cost, stack::profile::Profile, trace::pauses::record::Record};

use crate::{metrics::figures::Waited, thread_dump::ThreadDump};

/// A batch, and the time that decides which window it belongs to.
#[derive(Debug)]
pub struct Delivery {
    /// Time on `CLOCK_MONOTONIC`, in nanoseconds. For a stop or a cycle, it is its end. For
    /// [`Batch::Reported`], it is the time of the report. For data of an interval, it is the middle of the
    /// interval.
    pub at_ns: u64,
    /// The batch.
    pub batch: Batch,
}

/// A batch of recorded data.
#[derive(Debug)]
pub enum Batch {
    /// A tracer has started. From here on, it records every running JVM completely.
    Started,
    /// CPU samples of an interval, and off-CPU time if it is collected, of all JVMs together.
    Samples {
        /// Profiles, one for each event.
        profiles: Vec<Profile>,
        /// Number of samples whose stacks were lost.
        lost_stacks: u64,
        /// Number of missed loads and unloads of compiled code. Each may make method names wrong.
        lost_code: u64,
    },
    /// Allocation of a JVM in an interval.
    Allocated {
        /// PID of the JVM.
        pid: u32,
        /// Allocation by class and stack.
        profile: Option<Profile>,
    },
    /// Waits of a JVM that ended in a window.
    Waits {
        /// PID of the JVM.
        pid: u32,
        /// Waiting time by thread, stack and kind.
        profile: Profile,
        /// Waits by kind.
        kinds: Vec<Waited>,
    },
    /// A stop of a JVM, a cycle of its collector, a loss of such records, or sums of stops.
    Pause(Box<Record>),
    /// Thread dump of a JVM with a deadlock or without progress.
    Threads(Box<ThreadDump>),
    /// Events that are missing because the kernel side could not deliver them, or because the queue to the
    /// main loop was full.
    Lost {
        /// Kind of the events, in one word.
        kind: &'static str,
        /// Number of events.
        events: u64,
    },
    /// Cost of a tracer's probes to a process, since the last batch of this kind for the same tracer and
    /// process.
    Cost {
        /// The tracer: `pauses`, `samples`, `allocation` or `waits`.
        tracer: &'static str,
        /// Its cost.
        cost: Cost,
    },
    /// A tracer has delivered all data of an interval.
    Reported {
        /// Name of the tracer.
        tracer: &'static str,
    },
    /// A tracer has ended without having been stopped.
    Ended {
        /// Name of the tracer.
        tracer: &'static str,
        /// Reason.
        reason: String,
    },
}

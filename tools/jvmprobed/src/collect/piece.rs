//! What takers hand over.

use std::sync::Arc;

use libjvmprobe::{bpf::cost::Cost, stack::profile::Profile, take::pauses::record::Record};

/// A piece of what was taken.
#[derive(Debug)]
pub enum Piece {
    /// A taker has begun: of JVMs that run, it takes all from here on.
    Begun,
    /// An interval's processor samples, and times off the processor where these are wanted: of all
    /// JVMs together.
    Samples {
        /// One of each event.
        profiles: Vec<Profile>,
        /// Samples without their stacks.
        lost_stacks: u64,
        /// Loads of code that were missed: names may be wrong.
        lost_code: u64,
    },
    /// What a JVM has allocated in an interval.
    Allocated {
        /// Its process.
        pid: u32,
        /// By class and stack.
        profile: Option<Profile>,
    },
    /// A stop of a JVM, a cycle of its collector, a loss of these, or sums of stops.
    Pause(Box<Record>),
    /// Something of a JVM could not be handed over by the kernel.
    Lost {
        /// What it is of, in one word.
        what: &'static str,
        /// How many.
        events: u64,
    },
    /// Cost of the probes of a tracer to a process since the last time.
    Cost {
        /// The tracer: `pauses`, `samples` or `allocation`.
        tracer: &'static str,
        /// Its cost.
        cost: Cost,
    },
    /// A tenant did not get some detail because it exceeded its share.
    Limited {
        /// Kind of detail, as `jvmprobed_limited_total` names it.
        reason: &'static str,
        /// The tenant.
        tenant: Arc<str>,
        /// Number of samples or events without it.
        count: u64,
    },
    /// A taker has ended, and not because it was asked to.
    Ended {
        /// What it took.
        what: &'static str,
        /// Why.
        why: String,
    },
}

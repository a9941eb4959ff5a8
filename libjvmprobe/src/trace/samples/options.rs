//! Options of the sampling tracer.

use std::{
    path::PathBuf,
    str::FromStr,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use clap::ValueEnum;

use crate::{Pid, jvms::Registry, sys::Pace, trace::samples::events::EventSpec};

/// Options of the sampling tracer: processes, events and stacks.
#[derive(Clone, Debug)]
pub struct Options {
    /// The processes to sample.
    pub targets: Targets,
    /// Whether the user has named the processes. If so, [`SymbolSource::Auto`] may load the agent into them,
    /// and it is an error if a process lacks an event; with [`skip_missing`](Self::skip_missing), a missing
    /// event is only reported by a message. If not, `Auto` reads JVMs from outside only, and an event that a
    /// process lacks is never an error.
    pub named_by_user: bool,
    /// The events to sample. The number of an event is its index.
    pub events: Vec<EventSpec>,
    /// Samples per second and processor.
    pub frequency: u64,
    /// Source of a new frequency during the trace, set by another thread. It is read after each report; 0 is ignored.
    pub rate: Option<Arc<AtomicU64>>,
    /// Skip events that are not available, with a message.
    pub skip_missing: bool,
    /// Record the user part of stacks.
    pub user: bool,
    /// Record the kernel part of stacks.
    pub kernel: bool,
    /// How stacks are walked.
    pub walk: StackWalk,
    /// Source of the names of compiled code.
    pub symbols: SymbolSource,
    /// Show methods with their parameters.
    pub signatures: bool,
    /// Waits shorter than this are only summed per thread, without their stacks.
    pub min_wait: Duration,
    /// Also show the stacks of threads that wait for work.
    pub idle: bool,
    /// Read the trace contexts that threads publish, and keep samples of different spans apart.
    pub spans: bool,
    /// Length of the time slots in which samples are counted separately, in nanoseconds. With 0, there are no slots,
    /// and stops of JVMs are not recorded.
    pub slot_ns: u64,
    /// Approximate maximum memory for samples and stacks, in bytes: one half is for samples that are not
    /// named yet, the other for named profiles.
    pub max_memory: usize,
    /// Keep the profiles and figures of all intervals for [`finish`]. If unset, each interval is reported by itself,
    /// and memory does not grow with the length of the trace.
    ///
    /// [`finish`]: super::Sampler::finish
    pub keeps_whole_trace: bool,
    /// How soon events are read.
    pub pace: Pace,
    /// The registry that finds JVMs if every JVM is sampled; `None` to start one.
    pub registry: Option<Registry>,
}

/// The processes to sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// These processes.
    Named(Vec<Pid>),
    /// A command that is about to be started; see [`add_process`](super::Sampler::add_process).
    Command,
    /// Every JVM, including those that start later.
    EveryJvm,
    /// Every process.
    EveryProcess,
}

impl Options {
    /// Returns the samples of CPU time per second and processor.
    pub fn hertz(&self) -> u64 {
        let cpu = self.events.iter().find(|event| event.is_cpu());
        cpu.map_or(self.frequency, |cpu| cpu.hertz(self.frequency))
    }

    /// Returns whether JVMs that the user has not named are sampled.
    pub(super) fn finds_jvms(&self) -> bool {
        matches!(self.targets, Targets::EveryJvm | Targets::EveryProcess)
    }
}

/// How stacks are walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StackWalk {
    /// `hotspot` if it is possible, else `fp`
    Auto,
    /// HotSpot's code cache and unwind tables
    Hotspot,
    /// Frame pointers
    Fp,
}

/// Source of the names of compiled code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SymbolSource {
    /// The JVM's memory. If that cannot name the code, a perf map that exists already. If there is none and the user
    /// has named the JVM, our agent.
    Auto,
    /// The JVM's memory, read from outside.
    HotSpot,
    /// The perf map that the JVM writes on request; it is an error if the JVM cannot write one.
    PerfMap,
    /// Our agent, loaded into the JVM. It also reports inlined methods and line numbers.
    Agent,
    /// None: compiled code has no names, and the JVM is not accessed for them.
    None,
    /// A perf map that exists already.
    File(PathBuf),
}

impl FromStr for SymbolSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "hotspot" => Ok(Self::HotSpot),
            "perfmap" => Ok(Self::PerfMap),
            "agent" => Ok(Self::Agent),
            "none" => Ok(Self::None),
            _ => match text.strip_prefix("file:") {
                Some(path) if !path.is_empty() => Ok(Self::File(path.into())),
                _ => Err("expected auto, hotspot, perfmap, agent, none or file:PATH".into()),
            },
        }
    }
}

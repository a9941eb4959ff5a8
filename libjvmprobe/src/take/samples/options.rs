//! What is wanted.

use std::{
    path::PathBuf,
    str::FromStr,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use clap::ValueEnum;

use crate::{Pid, follow::Registry, own::Pace, take::samples::events::Asked};

/// What to sample, of whom, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who is sampled.
    pub whom: Whom,
    /// Whether JVMs may be asked, as [`symbols`](Self::symbols) says: those alone that the user has
    /// named. All others are looked at from outside only. An event that one of those lacks is an
    /// error.
    pub may_ask: bool,
    /// What is sampled; the number of an event is an index.
    pub events: Vec<Asked>,
    /// Samples a second of each processor.
    pub frequency: u64,
    /// Where that may change: what is here when an interval has been told holds from then on.
    pub rate: Option<Arc<AtomicU64>>,
    /// Go on without events that cannot be had.
    pub skip_missing: bool,
    /// The user part of stacks.
    pub user: bool,
    /// The kernel's part of stacks.
    pub kernel: bool,
    /// How stacks are walked.
    pub walk: StackWalk,
    /// Where names of compiled code come from.
    pub symbols: SymbolSource,
    /// Methods with their parameters.
    pub signatures: bool,
    /// Shorter waits are only added up.
    pub min_wait: Duration,
    /// Show where threads wait for work, too.
    pub idle: bool,
    /// How long slots of time are in which samples are counted apart, in nanoseconds; 0 where
    /// nobody wants them. Then, stops of JVMs are not told, either.
    pub slot_ns: u64,
    /// About so many bytes are kept of samples and stacks: half of it while they have no names,
    /// half of it as profiles.
    pub max_memory: usize,
    /// Keep what the intervals have told, and what is said of all, for [`finish`]. Otherwise each
    /// interval stands for itself, and nothing grows however long it takes.
    ///
    /// [`finish`]: super::Taker::finish
    pub keeps_all: bool,
    /// How soon events are read.
    pub pace: Pace,
    /// Say on stderr how new JVMs are found.
    pub verbose: bool,
    /// The registry that finds JVMs if every JVM is sampled; `None` to start one.
    pub registry: Option<Registry>,
}

/// Who is sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whom {
    /// These processes.
    Named(Vec<Pid>),
    /// A command that is about to be started; see [`add_process`](super::Taker::add_process).
    Command,
    /// Every JVM, also those that start later.
    EveryJvm,
    /// Every process.
    EveryProcess,
}

impl Options {
    /// Samples of processor time a second, of each processor.
    pub fn hertz(&self) -> u64 {
        let cpu = self.events.iter().find(|event| event.is_cpu());
        cpu.map_or(self.frequency, |cpu| cpu.hertz(self.frequency))
    }

    /// Whether JVMs are sampled that nobody has named.
    pub(super) fn finds_jvms(&self) -> bool {
        matches!(self.whom, Whom::EveryJvm | Whom::EveryProcess)
    }
}

/// How stacks are walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StackWalk {
    /// As `hotspot` where that can be done, else as `fp`
    Auto,
    /// By HotSpot's code cache and unwind tables
    Hotspot,
    /// By frame pointers
    Fp,
}

/// Where names of compiled code come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SymbolSource {
    /// The JVM's memory; where that cannot name the code, a map that is there; where there is
    /// none, of a JVM that was named, our agent.
    Auto,
    /// The JVM's memory: it is not asked.
    HotSpot,
    /// The JVM's own map, or an error.
    PerfMap,
    /// Our agent, loaded into the JVM: with what was inlined, and lines.
    Agent,
    /// Nowhere: the JVM is left alone.
    None,
    /// A map that is there.
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
                _ => Err("auto, hotspot, perfmap, agent, none or file:PATH is expected".into()),
            },
        }
    }
}

//! How often a trace looks around: it costs processor time, whatever the JVMs do.

use std::time::Duration;

use super::{note, remark};

/// How soon a trace notices what happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// Somebody watches it, or it is short.
    #[default]
    Prompt,
    /// Nobody does: events wait for each other, for up to half a second.
    Calm,
}

impl Pace {
    /// How often to look for processes that end or get ready, and for events that have not woken
    /// anybody.
    pub(crate) fn tick(self) -> Duration {
        match self {
            Self::Prompt => Duration::from_millis(200),
            Self::Calm => Duration::from_millis(500),
        }
    }

    /// How often to take what was counted, in ticks: while the threads that were counted still
    /// have names.
    pub(crate) fn ticks_to_collect(self) -> u32 {
        match self {
            Self::Prompt => 5,
            Self::Calm => 30,
        }
    }

    /// The same as a time.
    pub(crate) fn collects_every(self) -> Duration {
        self.tick() * self.ticks_to_collect()
    }

    /// Whether to look, at a tick, for processes that run another program, too, and for losses:
    /// that costs some system calls for each.
    pub(crate) fn looks_closely(self, collect: bool) -> bool {
        collect || self == Self::Prompt
    }

    /// Says what is only of interest to somebody who watches.
    pub(crate) fn tell(self, line: &str) {
        match self {
            Self::Prompt => note(line),
            Self::Calm => remark(|| line.to_owned()),
        }
    }

    /// How often to ask the kernel for new JVMs.
    pub(crate) fn look(self) -> Duration {
        match self {
            Self::Prompt => Duration::from_millis(20),
            Self::Calm => Duration::from_millis(250),
        }
    }

    /// The share of one processor's time that reading TLABs may take.
    pub(crate) fn census(self) -> f64 {
        match self {
            Self::Prompt => 0.01,
            Self::Calm => 0.001,
        }
    }

    /// The share of one processor's time that naming stacks of allocations may take, if that has a
    /// bound.
    pub(crate) fn naming(self) -> Option<f64> {
        match self {
            Self::Prompt => None,
            Self::Calm => Some(0.003),
        }
    }

    /// Bytes of the ring buffer through which many JVMs send. Where events wait, the one that
    /// fills a quarter of it wakes the reader, so that a small one does.
    pub(crate) fn ring(self) -> u32 {
        match self {
            Self::Prompt => 1 << 22,
            Self::Calm => 1 << 20,
        }
    }
}

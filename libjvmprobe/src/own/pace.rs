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

    /// How long a new JVM must live before it is looked at, where so many came in the last ten
    /// seconds: to look at one and to attach to it takes some hundredths of a second, as long as
    /// many a short one lives.
    pub(crate) fn wait_for_new(self, came: usize) -> Duration {
        /// So many are looked at as they come.
        const FEW: usize = 10;
        const EACH: Duration = Duration::from_millis(200);
        match self {
            Self::Calm if came > FEW => EACH * u32::try_from(came).unwrap_or(u32::MAX).min(300),
            Self::Calm | Self::Prompt => Duration::ZERO,
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

    /// How long nothing may come before more of it is taken: in a daemon what is taken comes all at
    /// once, ten seconds apart at most.
    pub(crate) fn patience(self) -> Duration {
        match self {
            Self::Prompt => Duration::ZERO,
            Self::Calm => Duration::from_secs(12),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_ones_wait_in_a_crowd_alone() {
        assert_eq!(Pace::Calm.wait_for_new(10), Duration::ZERO);
        assert_eq!(Pace::Calm.wait_for_new(11), Duration::from_millis(2200));
        assert_eq!(Pace::Calm.wait_for_new(usize::MAX), Duration::from_secs(60));
        assert_eq!(Pace::Prompt.wait_for_new(1000), Duration::ZERO);
    }
}

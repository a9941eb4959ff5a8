//! Intervals of a trace's periodic work, which costs CPU time even if the JVMs are idle.

use std::time::Duration;

/// Trade-off between a fast reaction and low overhead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// For interactive use and short traces.
    #[default]
    Prompt,
    /// For unattended use, such as the daemon: events are delayed by up to half a second.
    Calm,
}

impl Pace {
    /// Interval between ticks. A tick checks for processes that have ended. Events that cause no wake-up are
    /// read at the next tick at the latest.
    pub(crate) fn tick(self) -> Duration {
        match self {
            Self::Prompt => Duration::from_millis(200),
            Self::Calm => Duration::from_millis(500),
        }
    }

    /// Interval between reads of counters, in ticks. It is short enough that most threads with counters still
    /// exist at the next read, so that their names can be read. With `Calm`, it is a little longer than the daemon's
    /// default window of 15 seconds, because the report at the end of a window reads the counters, too.
    pub(crate) fn ticks_to_collect(self) -> u32 {
        match self {
            Self::Prompt => 5,
            Self::Calm => 32,
        }
    }

    /// Interval between reads of counters.
    pub(crate) fn collect_interval(self) -> Duration {
        self.tick() * self.ticks_to_collect()
    }

    /// Returns whether a tick also checks for processes that run another program (exec) and for lost events, which
    /// takes some system calls per JVM.
    pub(crate) fn checks_closely(self, collect: bool) -> bool {
        collect || self == Self::Prompt
    }

    /// Prints a progress message; with [`Calm`](Self::Calm), only in verbose mode.
    pub(crate) fn log_progress(self, line: &str) {
        match self {
            Self::Prompt => log::warn!("{line}"),
            Self::Calm => log::debug!("{line}"),
        }
    }

    /// Interval between reads of the kernel's mapping events.
    pub(crate) fn mapping_poll_interval(self) -> Duration {
        match self {
            Self::Prompt => Duration::from_millis(20),
            Self::Calm => Duration::from_millis(250),
        }
    }

    /// Minimum interval between scans of processes while mapping events are lost.
    pub(crate) fn scan_interval_after_loss(self) -> Duration {
        match self {
            Self::Prompt => Duration::from_secs(1),
            Self::Calm => Duration::from_secs(5),
        }
    }

    /// Returns the minimum age at which a new JVM is examined, if its tenant has started `started_recently`
    /// JVMs in the last ten seconds. Examining a JVM and attaching to it takes 10 to 50 ms of CPU time. This
    /// CPU time is saved for short programs, which end before they reach the minimum age.
    pub(crate) fn min_age(self, started_recently: usize) -> Duration {
        /// Maximum value of `started_recently` at which a new JVM is examined immediately.
        const FEW: usize = 10;
        const DELAY_PER_START: Duration = Duration::from_millis(200);
        match self {
            Self::Calm if started_recently > FEW => {
                DELAY_PER_START * u32::try_from(started_recently).unwrap_or(u32::MAX).min(300)
            }
            Self::Calm | Self::Prompt => Duration::ZERO,
        }
    }

    /// Maximum share of one processor's time for reading TLABs.
    pub(crate) fn tlab_reading_share(self) -> f64 {
        match self {
            Self::Prompt => 0.01,
            Self::Calm => 0.001,
        }
    }

    /// Maximum share of one processor's time for naming stacks of allocations; `None` for no limit.
    pub(crate) fn naming_share(self) -> Option<f64> {
        match self {
            Self::Prompt => None,
            Self::Calm => Some(0.003),
        }
    }

    /// Time without data after which the amount of collected data is increased. A daemon reads its data in
    /// batches up to ten seconds apart, so a shorter time without data is normal.
    pub(crate) fn raise_delay(self) -> Duration {
        match self {
            Self::Prompt => Duration::ZERO,
            Self::Calm => Duration::from_secs(12),
        }
    }

    /// Size in bytes of a ring buffer shared by many JVMs. With [`Calm`](Self::Calm), user space polls the
    /// buffer at each tick, and is woken earlier once the buffer is a quarter full. So a small buffer is
    /// sufficient.
    pub(crate) fn ring_bytes(self) -> u32 {
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
    fn new_jvms_wait_only_if_their_tenant_has_started_many() {
        assert_eq!(Pace::Calm.min_age(10), Duration::ZERO);
        assert_eq!(Pace::Calm.min_age(11), Duration::from_millis(2200));
        assert_eq!(Pace::Calm.min_age(usize::MAX), Duration::from_secs(60));
        assert_eq!(Pace::Prompt.min_age(1000), Duration::ZERO);
    }
}

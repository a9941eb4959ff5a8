//! The receiver of samples ([`Sink`]), and the figures that describe an interval or a trace ([`About`]).

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::{
    Pid, Result,
    bpf::{perf::Clock, stops::StopLog},
    hotspot::description::Description,
    stack::profile::Profile,
    trace,
};

/// Receives the results of sampling.
pub trait Sink: trace::Sink {
    /// Receives the profiles of an interval: one of each event, in the order of the options, and `about` with
    /// the figures of that interval. Unless
    /// [`keeps_whole_trace`](crate::trace::samples::Options::keeps_whole_trace) is set, the sink may move the
    /// profiles out of the slice.
    ///
    /// # Errors
    /// If the trace cannot continue.
    fn profiles(&mut self, profiles: &mut [Profile], about: &About) -> Result<()>;

    /// Receives the progress: elapsed time and number of samples so far. Called several times per second.
    fn progress(&mut self, elapsed: Duration, samples: u64) {
        let _ = (elapsed, samples);
    }
}

/// Figures of an interval, or of the whole trace.
#[derive(Debug, Default)]
pub struct About {
    /// Samples per second and processor.
    pub hertz: u64,
    /// Length of the interval or trace.
    pub duration: Duration,
    /// Time at which the interval or trace began.
    pub begin: Option<SystemTime>,
    /// Number of samples that could not be counted.
    pub lost: u64,
    /// Number of samples whose stack could not be sent.
    pub lost_stacks: u64,
    /// Number of loads and unloads of compiled code that could not be sent.
    pub lost_code: u64,
    /// JVMs whose compiled code could not be read. Methods that they compiled before the profile have no
    /// names.
    pub unnamed: Vec<Pid>,
    /// The clock whose ticks triggered samples on each processor.
    pub clock: Option<Clock>,
    /// Start of the whole trace on the kernel's monotonic clock, in nanoseconds. Time slots are counted from here.
    pub begin_ns: u64,
    /// End of the reported interval on the kernel's monotonic clock, in nanoseconds. Samples up to this time
    /// belong to the interval.
    pub end_ns: u64,
    /// Stops of the applications in the interval or trace.
    pub stops: StopLog,
    /// Descriptions of the JVMs of the whole trace.
    pub jvms: Vec<Description>,
}

impl About {
    /// Copies these figures into a profile.
    pub(crate) fn describe(&self, profile: &mut Profile) {
        profile.hertz = self.hertz;
        profile.duration_ns = u64::try_from(self.duration.as_nanos()).unwrap_or(u64::MAX);
        profile.begin_unix_ns = self
            .begin
            .and_then(|begin| begin.duration_since(UNIX_EPOCH).ok())
            .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0));
        profile.lost = self.lost;
    }
}

/// Start of an interval, and the loss counters at that time.
pub(super) struct Since {
    pub(super) begin: Instant,
    pub(super) lost: u64,
    pub(super) lost_stacks: u64,
    pub(super) lost_code: u64,
}

impl Since {
    pub(super) fn now() -> Self {
        Self { begin: Instant::now(), lost: 0, lost_stacks: 0, lost_code: 0 }
    }
}

//! What is told of samples, and who is told.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::{
    Pid, Result,
    bpf::{cost::Cost, perf::Clock, stops::StopLog},
    stack::profile::Profile,
    take::samples::taker::Limited,
};

/// Who is told.
pub trait Sink {
    /// Takes the profiles of an interval, one of each event in the order in which they were asked
    /// for, with what is said of all of it. Where nothing is kept for the end
    /// ([`keeps_all`](crate::take::samples::Options::keeps_all)) they may be taken out.
    ///
    /// # Errors
    /// Where the trace cannot go on.
    fn profiles(&mut self, profiles: &mut [Profile], about: &About) -> Result<()>;

    /// It goes on since so long, and has taken so many samples: called some times a second.
    fn goes_on(&mut self, elapsed: Duration, samples: u64) {
        let _ = (elapsed, samples);
    }

    /// Takes what sampling has cost a process since the last time: once an interval, at
    /// [`Pace::Calm`](crate::own::Pace::Calm).
    fn cost(&mut self, cost: Cost) {
        let _ = cost;
    }

    /// Takes what a tenant did not get in an interval because it exceeded its share: see
    /// [`with_stack_budget`](super::Taker::with_stack_budget).
    fn limited(&mut self, limited: Limited) {
        let _ = limited;
    }

    /// Whether nobody wants more of it: then the trace ends.
    fn is_closed(&self) -> bool {
        false
    }
}

/// What is said of profiles as a whole.
#[derive(Debug, Default)]
pub struct About {
    /// Samples a second, of each processor.
    pub hertz: u64,
    /// How long was sampled.
    pub duration: Duration,
    /// When it began.
    pub begin: Option<SystemTime>,
    /// Samples that could not be counted.
    pub lost: u64,
    /// Samples of which a stack could not be sent.
    pub lost_stacks: u64,
    /// Loads and unloads of code that could not be sent.
    pub lost_code: u64,
    /// JVMs whose methods have no names, for nothing was asked of them.
    pub unnamed: Vec<Pid>,
    /// What made the processors take samples.
    pub clock: Option<Clock>,
    /// When it began, on the kernel's clock, if it is wanted when samples were taken.
    pub begin_ns: u64,
    /// When it ended, on the kernel's clock: until then samples were taken that belong to it.
    pub end_ns: u64,
    /// When applications were stopped meanwhile.
    pub stops: StopLog,
}

impl About {
    /// Says of a profile what is known of it as a whole.
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

/// Since when something is told, and what was lost by then.
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

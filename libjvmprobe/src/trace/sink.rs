//! The receiver of a tracer's results.

use crate::{Result, bpf::cost::Cost, hotspot::HotSpot, jvms::Lost};

/// Receiver of a tracer's results: the part that all tracers share. Each tracer has its own trait for its results, which
/// extends this one.
pub trait Sink {
    /// Receives a JVM that is recorded from now on. The default ignores it. The sampler describes JVMs in its results
    /// instead.
    ///
    /// # Errors
    /// If the trace cannot go on.
    fn jvm(&mut self, hotspot: &HotSpot) -> Result<()> {
        let _ = hotspot;
        Ok(())
    }

    /// Receives the number of events of a JVM that could not be counted or sent. The default prints a message. The
    /// tracer of pauses and the sampler report losses in their results instead.
    ///
    /// # Errors
    /// If the trace cannot go on.
    fn lost(&mut self, lost: Lost) -> Result<()> {
        lost.warn();
        Ok(())
    }

    /// Receives the cost of the probes, or of sampling, to one process since the previous call for that process. Called
    /// for each process once per interval and when the process has ended, at [`Pace::Calm`](crate::sys::Pace::Calm) only.
    fn cost(&mut self, cost: Cost) {
        let _ = cost;
    }

    /// Called after each report of an interval. The tracer of waits calls
    /// [`report`](crate::trace::waits::Sink::report) instead.
    fn reported(&mut self) {}

    /// Returns whether the sink is closed and accepts no more results. If so, the trace ends.
    fn is_closed(&self) -> bool {
        false
    }
}

//! What stands at the end of a stack, or in its place, where a thread does not run.

/// It waits until it is woken.
pub(crate) const BLOCKED: &str = "[blocked]";

/// It could run, and waits for a processor.
pub(crate) const RUNNABLE: &str = "[waits for a processor]";

/// Waits that are too short to be told one by one.
pub(crate) const SHORT: &str = "[waits shorter than --min]";

/// It waits because there is nothing to do.
pub(crate) const IDLE: &str = "[idle]";

/// It had gone to sleep before the trace, and has not woken up since: nobody knows where.
pub(crate) const UNSEEN: &str = "[asleep since before the trace]";

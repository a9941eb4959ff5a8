//! Placeholder frames of threads that do not run. A placeholder is the innermost frame of the stack. It is
//! the only frame if no stack was recorded, or if the stack is not shown because the thread has no work.

/// The thread waits until it is woken up.
pub(crate) const BLOCKED: &str = "[blocked]";

/// The thread is runnable, and waits for a processor.
pub(crate) const RUNNABLE: &str = "[waits for a processor]";

/// Sum of waits that are too short to be reported one by one.
pub(crate) const SHORT: &str = "[waits shorter than --min]";

/// The thread waits because there is no work.
pub(crate) const IDLE: &str = "[idle]";

/// The thread was asleep at the end of the trace, and its stack is unknown.
pub(crate) const ASLEEP: &str = "[asleep]";

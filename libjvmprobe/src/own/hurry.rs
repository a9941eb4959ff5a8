//! Being preferred by the scheduler for a moment.

use rustix::process::{getpriority_process, setpriority_process};

/// How much the scheduler prefers a thread that is in a hurry.
const HURRY: i32 = -10;

/// While this lives, the calling thread goes before others: to get ready is a fifth of a
/// second of work, which on a machine in trouble would take seconds.
#[derive(Debug)]
pub struct Hurry(Option<i32>);

impl Hurry {
    /// From now on. Without the right to it, it takes its time.
    pub fn begin() -> Self {
        let before = getpriority_process(None).ok().filter(|&nice| nice > HURRY);
        let raised = before.filter(|_| setpriority_process(None, HURRY).is_ok());
        Self(raised)
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            // To lower it again is always permitted.
            let _ = setpriority_process(None, before);
        }
    }
}

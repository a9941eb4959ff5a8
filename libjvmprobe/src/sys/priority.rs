//! Scheduling priority of a thread.

use rustix::process::{getpriority_process, setpriority_process};

/// Nice value of a thread with priority.
const PRIORITY_NICE: i32 = -10;

/// Guard that raises the calling thread's priority as long as the guard lives. Preparing a trace takes 200 ms
/// of CPU time. On an overloaded machine, a thread of normal priority would need seconds for it.
#[derive(Debug)]
pub struct PriorityBoost(Option<i32>);

impl PriorityBoost {
    /// Raises the priority. Without the right to do so, the thread keeps its priority.
    pub fn begin() -> Self {
        let before = getpriority_process(None).ok().filter(|&nice| nice > PRIORITY_NICE);
        let raised = before.filter(|_| setpriority_process(None, PRIORITY_NICE).is_ok());
        Self(raised)
    }
}

/// Nice value of a thread without priority.
const NORMAL_NICE: i32 = 0;

/// Takes the priority away that the calling thread has inherited from the thread that started it.
pub(crate) fn lower() {
    // Lowering the priority is always permitted.
    if getpriority_process(None).is_ok_and(|nice| nice < NORMAL_NICE) {
        let _ = setpriority_process(None, NORMAL_NICE);
    }
}

impl Drop for PriorityBoost {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            // Lowering the priority is always permitted.
            let _ = setpriority_process(None, before);
        }
    }
}

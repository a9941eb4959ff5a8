//! Cleanup that must happen even if a signal ends the process.
//!
//! Code that changes something outside of this process registers here how to undo the change. In the normal
//! case, that code undoes the change itself. SIGKILL cannot be handled: after it, a file that we created in a
//! target's folder stays there.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// A cleanup action.
pub type Step = Box<dyn FnOnce() + Send>;

static STEPS: Mutex<Steps> = Mutex::new(Steps { last: 0, by_number: BTreeMap::new() });

struct Steps {
    last: u64,
    by_number: BTreeMap<u64, Step>,
}

impl Steps {
    fn add(&mut self, step: Step) -> u64 {
        self.last += 1;
        self.by_number.insert(self.last, step);
        self.last
    }
}

fn steps() -> MutexGuard<'static, Steps> {
    STEPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A registered cleanup action. Dropping it cancels the action; the owner must then clean up itself.
#[derive(Debug)]
#[must_use = "dropping it immediately cancels the cleanup"]
pub struct Undo(u64);

impl Drop for Undo {
    fn drop(&mut self) {
        // The action is freed after the lock is released.
        let step = steps().by_number.remove(&self.0);
        drop(step);
    }
}

/// Does `work` and registers the action that undoes it. The process does not end between the two.
///
/// # Errors
/// Returns the error of `work`; then nothing is registered.
pub(crate) fn run_undoable<T, E>(
    work: impl FnOnce() -> Result<T, E>,
    undo: impl FnOnce(&T) -> Step,
) -> Result<(T, Undo), E> {
    let mut steps = steps();
    let done = work()?;
    let step = undo(&done);
    Ok((done, Undo(steps.add(step))))
}

/// Registers an action that runs at the end of the process, whether it ends normally or through a signal.
pub(crate) fn on_exit(step: Step) {
    steps().add(step);
}

/// Runs all actions, the last one first. Afterwards no action can be registered; the process is about to end.
pub(crate) fn run_all() {
    let mut steps = steps();
    while let Some((_, step)) = steps.by_number.pop_last() {
        step();
    }
    // The lock is never released: threads that want to register an action wait for the end of the process.
    std::mem::forget(steps);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    static UNDONE: AtomicBool = AtomicBool::new(false);

    #[test]
    fn undo_step_is_not_run_if_it_is_dropped_or_its_work_failed() {
        let step = |_: &()| -> Step { Box::new(|| UNDONE.store(true, Ordering::Relaxed)) };
        let ((), undo) = run_undoable(|| Ok::<_, ()>(()), step).unwrap();
        let number = undo.0;
        assert!(steps().by_number.contains_key(&number));
        drop(undo);
        assert!(!steps().by_number.contains_key(&number));
        assert!(run_undoable(|| Err::<(), _>("no"), step).is_err());
        assert!(!UNDONE.load(Ordering::Relaxed));
    }
}

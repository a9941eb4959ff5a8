//! What must be undone even when the process ends in the middle of things.
//!
//! Whoever leaves a trace outside of this process says here how it is taken back, and takes
//! it back itself in the ordinary case. SIGKILL alone cannot be answered: then a file in a
//! target's folder stays, of which the name tells whose it is.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// How something is taken back.
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

/// Something that will be undone. Dropped, it no longer will be: its owner has seen to it.
#[derive(Debug)]
#[must_use = "dropped at once, nothing is undone"]
pub struct Undo(u64);

impl Drop for Undo {
    fn drop(&mut self) {
        // What it holds is freed after the lock is given back.
        let step = steps().by_number.remove(&self.0);
        drop(step);
    }
}

/// Does something, and says how it is undone. No end comes between the two.
///
/// # Errors
/// Those of what is done: then there is nothing to undo.
pub(crate) fn doing<T, E>(
    work: impl FnOnce() -> Result<T, E>,
    undo: impl FnOnce(&T) -> Step,
) -> Result<(T, Undo), E> {
    let mut steps = steps();
    let done = work()?;
    let step = undo(&done);
    Ok((done, Undo(steps.add(step))))
}

/// Has a step done when the process ends, however it does.
pub(crate) fn at_the_end(step: Step) {
    steps().add(step);
}

/// Undoes all of it, the last first. Nothing more can be begun: the process is about to end.
pub(crate) fn everything() {
    let mut steps = steps();
    while let Some((_, step)) = steps.by_number.pop_last() {
        step();
    }
    // Who wants to begin something waits here for the end.
    std::mem::forget(steps);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    static UNDONE: AtomicBool = AtomicBool::new(false);

    #[test]
    fn what_was_seen_to_is_not_undone() {
        let step = |_: &()| -> Step { Box::new(|| UNDONE.store(true, Ordering::Relaxed)) };
        let ((), undo) = doing(|| Ok::<_, ()>(()), step).unwrap();
        let number = undo.0;
        assert!(steps().by_number.contains_key(&number));
        drop(undo);
        assert!(!steps().by_number.contains_key(&number));
        assert!(doing(|| Err::<(), _>("no"), step).is_err());
        assert!(!UNDONE.load(Ordering::Relaxed));
    }
}

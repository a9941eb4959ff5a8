//! What may be kept in memory, of all JVMs together.
//!
//! Each table has bounds of its own; a hundred JVMs have a hundred tables. Whoever keeps what a
//! target makes grow takes room for it here first, by an estimate, and counts what finds none.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// How many bytes may be kept. Clones share them; by default there is no limit.
#[derive(Clone, Debug)]
pub struct Budget(Arc<AtomicUsize>);

impl Default for Budget {
    fn default() -> Self {
        Self::of(usize::MAX)
    }
}

impl Budget {
    /// About so many.
    pub fn of(max: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(max)))
    }
}

/// What was taken by one table. Given back when it goes out of scope.
#[derive(Debug, Default)]
pub struct Kept {
    budget: Budget,
    bytes: usize,
}

impl Kept {
    /// Nothing yet.
    pub fn within(budget: &Budget) -> Self {
        Self { budget: budget.clone(), bytes: 0 }
    }

    /// Takes room for so many bytes more; `false` where there is none.
    #[must_use]
    pub fn take(&mut self, bytes: usize) -> bool {
        let take = |left: usize| left.checked_sub(bytes);
        let left = &self.budget.0;
        let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        self.bytes += if taken { bytes } else { 0 };
        taken
    }

    /// Gives all of it back: nothing is kept any more.
    pub(crate) fn give_back(&mut self) {
        self.budget.0.fetch_add(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_given_back() {
        let budget = Budget::of(100);
        let mut one = Kept::within(&budget);
        assert!(one.take(50) && one.take(0));
        let mut other = Kept::within(&budget);
        assert!(!other.take(51));
        one.give_back();
        assert!(other.take(51) && !one.take(50));
        drop((one, other));
        assert!(Kept::within(&budget).take(100));
        // Another one's is no matter of it.
        assert!(Kept::within(&Budget::of(100)).take(100) && Kept::default().take(1 << 40));
    }
}

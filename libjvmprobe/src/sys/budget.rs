//! Memory budget shared by all JVMs.
//!
//! Each table has its own limit, but a hundred JVMs have a hundred tables. Code whose data grows with the target's
//! behaviour therefore reserves estimated memory here first, and counts what it drops for lack of budget.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Number of bytes that may be reserved. Clones share it; the default is unlimited.
#[derive(Clone, Debug)]
pub struct Budget(Arc<AtomicUsize>);

impl Default for Budget {
    fn default() -> Self {
        Self::of(usize::MAX)
    }
}

impl Budget {
    /// Makes a budget of `max` bytes.
    pub fn of(max: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(max)))
    }
}

/// Memory reserved by one table. Returned to the budget when dropped.
#[derive(Debug, Default)]
pub struct Kept {
    budget: Budget,
    bytes: usize,
}

impl Kept {
    /// Makes an empty reservation.
    pub fn within(budget: &Budget) -> Self {
        Self { budget: budget.clone(), bytes: 0 }
    }

    /// Reserves `bytes` more. Returns `false` if the budget does not suffice.
    #[must_use]
    pub fn take(&mut self, bytes: usize) -> bool {
        let take = |left: usize| left.checked_sub(bytes);
        let left = &self.budget.0;
        let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        self.bytes += if taken { bytes } else { 0 };
        taken
    }

    /// Returns the complete reservation to the budget.
    pub(crate) fn release(&mut self) {
        self.budget.0.fetch_add(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returned_and_dropped_reservations_free_the_budget() {
        let budget = Budget::of(100);
        let mut one = Kept::within(&budget);
        assert!(one.take(50) && one.take(0));
        let mut other = Kept::within(&budget);
        assert!(!other.take(51));
        one.release();
        assert!(other.take(51) && !one.take(50));
        drop((one, other));
        assert!(Kept::within(&budget).take(100));
        // Budgets are independent of each other, and the default budget is unlimited.
        assert!(Kept::within(&Budget::of(100)).take(100) && Kept::default().take(1 << 40));
    }
}

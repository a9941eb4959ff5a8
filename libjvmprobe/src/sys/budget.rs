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
pub struct Reservation {
    budget: Budget,
    bytes: usize,
}

impl Reservation {
    /// Makes an empty reservation.
    pub fn within(budget: &Budget) -> Self {
        Self { budget: budget.clone(), bytes: 0 }
    }

    /// Reserves `bytes` more. Returns `false` if the budget does not suffice.
    #[must_use]
    pub fn reserve(&mut self, bytes: usize) -> bool {
        let subtract = |left: usize| left.checked_sub(bytes);
        let left = &self.budget.0;
        let is_reserved = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract).is_ok();
        self.bytes += if is_reserved { bytes } else { 0 };
        is_reserved
    }

    /// Returns the complete reservation to the budget.
    pub(crate) fn release(&mut self) {
        self.budget.0.fetch_add(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }
}

impl Drop for Reservation {
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
        let mut one = Reservation::within(&budget);
        assert!(one.reserve(50) && one.reserve(0));
        let mut other = Reservation::within(&budget);
        assert!(!other.reserve(51));
        one.release();
        assert!(other.reserve(51) && !one.reserve(50));
        drop((one, other));
        assert!(Reservation::within(&budget).reserve(100));
        // Budgets are independent of each other, and the default budget is unlimited.
        assert!(
            Reservation::within(&Budget::of(100)).reserve(100)
                && Reservation::default().reserve(1 << 40)
        );
    }
}

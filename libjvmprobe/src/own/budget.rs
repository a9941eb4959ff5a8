//! What a tool may keep in memory, all JVMs together.
//!
//! Each table has bounds of its own; a hundred JVMs have a hundred tables. Whoever keeps what a
//! target makes grow takes room for it here first, by an estimate, and counts what finds none.

use std::sync::atomic::{AtomicUsize, Ordering};

static LEFT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// From now on about so many bytes may be kept. To be called once, before anything is kept.
pub fn set(max: usize) {
    LEFT.store(max, Ordering::Relaxed);
}

/// What was taken by one table. Given back when it goes out of scope.
#[derive(Debug, Default)]
pub struct Kept(usize);

impl Kept {
    /// Takes room for so many bytes more; `false` where there is none.
    #[must_use]
    pub fn take(&mut self, bytes: usize) -> bool {
        let take = |left: usize| left.checked_sub(bytes);
        let taken = LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        self.0 += if taken { bytes } else { 0 };
        taken
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        LEFT.fetch_add(self.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_given_back() {
        // Nobody else's tests take any: half of all there is stays free for them.
        let most = LEFT.load(Ordering::Relaxed);
        let mut one = Kept::default();
        assert!(one.take(most / 2) && one.take(0));
        let mut other = Kept::default();
        assert!(!other.take(most));
        drop(one);
        assert!(other.take(most / 2 + 1));
    }
}

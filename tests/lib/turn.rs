//! Which tests of one binary may run at the same time.
//!
//! By default a test runs alone: tests that measure, that trace all JVMs, or that check what other
//! tests leave on the machine need that. A test that only checks what a tool reports about the
//! test's own JVMs calls [`beside_others`]. Two such tests run at once, because they wait most of
//! the time.

use std::{
    cell::RefCell,
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

static TURN: RwLock<()> = RwLock::new(());

enum Turn {
    Alone(#[allow(dead_code, reason = "held")] RwLockWriteGuard<'static, ()>),
    Beside(#[allow(dead_code, reason = "held")] RwLockReadGuard<'static, ()>),
}

thread_local! {
    /// Held until the test's thread ends.
    static MINE: RefCell<Option<Turn>> = const { RefCell::new(None) };
}

/// Acquires the test's turn, unless the thread already holds one.
fn take(turn: impl FnOnce() -> Turn) {
    MINE.with_borrow_mut(|mine| {
        mine.get_or_insert_with(turn);
    });
}

/// Requires root, and makes this test run alone.
///
/// # Panics
/// Without root: a test that does nothing must not pass.
pub fn need_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test attaches BPF programs: run it as root (sudo make test)"
    );
    // A failed test poisons the lock, but has released it.
    take(|| Turn::Alone(TURN.write().unwrap_or_else(PoisonError::into_inner)));
}

/// Makes this test run at the same time as others that call this function. Call it before
/// [`need_root`], which then has no effect on the turn.
pub fn beside_others() {
    take(|| Turn::Beside(TURN.read().unwrap_or_else(PoisonError::into_inner)));
}

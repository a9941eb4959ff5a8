//! Which tests of one binary may run at the same time.
//!
//! Alone is the rule: a test that measures, that traces all JVMs, or that looks at what others
//! leave on the machine, has it for itself. Those that only look at what a tool says of JVMs of
//! their own say so ([`beside_others`]), and two of them run at once: most of their time they
//! wait.

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
    /// Until the test's thread ends.
    static MINE: RefCell<Option<Turn>> = const { RefCell::new(None) };
}

/// Takes the test's turn, unless it has it.
fn take(turn: impl FnOnce() -> Turn) {
    MINE.with_borrow_mut(|mine| {
        mine.get_or_insert_with(turn);
    });
}

/// This test needs root, and runs while no other one does.
///
/// # Panics
/// Without root: a test that does nothing must not pass.
pub fn need_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test attaches BPF programs: run it as root (sudo make test)"
    );
    // A test that failed has had its turn.
    take(|| Turn::Alone(TURN.write().unwrap_or_else(PoisonError::into_inner)));
}

/// This test may run while others run that say so, too. What it needs beside that comes later.
pub fn beside_others() {
    take(|| Turn::Beside(TURN.read().unwrap_or_else(PoisonError::into_inner)));
}

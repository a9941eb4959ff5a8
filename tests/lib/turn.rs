//! Which tests may run at the same time.
//!
//! A test calls [`run_alone`] if it measures, counts all JVMs, or checks that nothing is left on
//! the machine. A test that only checks what a tool reports about the test's own JVMs calls
//! [`run_beside_others`]. Up to three such tests run at once, because they wait most of the time.
//!
//! A turn consists of locks on files beside the test binaries, because `tests/run` runs several
//! binaries at a time. If `JVMPROBE_TEST_TIMES` names a file, each test adds a line with its time,
//! without the time spent waiting for its turn.

use std::{
    cell::RefCell,
    fs::{File, OpenOptions},
    io::Write,
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, flock};

/// Lock files. A test that runs beside others locks one of them, and a test that runs alone locks all.
const FILES: [&str; 3] = ["turn-0.lock", "turn-1.lock", "turn-2.lock"];

/// A test's turn, until its thread ends.
struct Turn {
    files: Vec<File>,
    begin: Instant,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(times) = std::env::var_os("JVMPROBE_TEST_TIMES") else { return };
        let test = thread::current().name().unwrap_or("?").to_owned();
        let turn = if self.files.len() == 1 { "beside" } else { "alone" };
        let line = format!("{:.1} {turn} {test}\n", self.begin.elapsed().as_secs_f64());
        // Only statistics are lost if this fails.
        let file = OpenOptions::new().append(true).create(true).open(times);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

thread_local! {
    static TURN: RefCell<Option<Turn>> = const { RefCell::new(None) };
}

/// Locks all files if `alone` is true, otherwise one of them. Waits until this is possible.
fn lock(alone: bool) -> Vec<File> {
    let test = std::env::current_exe().expect("own path");
    let open = |name| {
        let path = test.with_file_name(name);
        File::options().write(true).create(true).truncate(false).open(path).expect("a file")
    };
    let files = FILES.map(open);
    if alone {
        // In this order, so that two tests never wait for each other.
        for file in &files {
            flock(file, FlockOperation::LockExclusive).expect("flock");
        }
        return files.into();
    }
    loop {
        let is_free = |file: &&File| flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if let Some(at) = files.iter().position(|file| is_free(&file)) {
            return files.into_iter().skip(at).take(1).collect();
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for the test's turn, unless its thread already has one.
fn wait_for_turn(alone: bool) {
    TURN.with_borrow_mut(|turn| {
        turn.get_or_insert_with(|| Turn { files: lock(alone), begin: Instant::now() });
    });
}

fn check_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test attaches BPF programs: run it as root (sudo make test)"
    );
}

/// Requires root, and makes this test run alone, unless its thread has called
/// [`run_beside_others`].
///
/// # Panics
/// Without root: a test that does nothing must not pass.
pub fn run_alone() {
    check_root();
    wait_for_turn(true);
}

/// Requires root, and makes this test run at the same time as others that call this function.
///
/// # Panics
/// Without root.
pub fn run_beside_others() {
    check_root();
    wait_for_turn(false);
}

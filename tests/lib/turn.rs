//! Which tests may run at the same time.
//!
//! A test calls [`run_alone`] if it measures, counts all JVMs, or checks that nothing is left on
//! the machine. A test that only checks what a tool reports about the test's own JVMs calls
//! [`run_beside_others`]. Up to three such tests run at once, because they wait most of the time.
//!
//! A turn consists of locks on files beside the test binaries, because `tests/run` runs several
//! binaries at a time. If `JVMPROBE_TEST_TIMES` names a file, each test adds a line with its time,
//! without the time spent waiting for its turn.
//!
//! Before a test runs alone, the others have to end, and the machine idles more and more. Therefore tests that run
//! alone wait until there are no longer three others to run, and then run one after another.

use std::{
    cell::RefCell,
    fs::{File, OpenOptions},
    io::Write,
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, flock};

/// Lock files of tests that run beside others: each locks one of them. A test that runs alone locks all.
const PLACES: [&str; 3] = ["turn-0.lock", "turn-1.lock", "turn-2.lock"];
/// Lock file of the tests that run alone: the one that holds the lock is the next, or runs.
const ALONE: &str = "turn-alone.lock";
/// Number of successive times at which a test that runs alone must find a free place before it locks all.
const CHECKS: u32 = 4;
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A test's turn, until its thread ends.
struct Turn {
    places: Vec<File>,
    alone: Option<File>,
    begin: Instant,
}

impl Drop for Turn {
    fn drop(&mut self) {
        // The next test that runs alone waits for this lock. It is released first, so that this test has queued for the
        // places before a test that runs beside others can find a free one.
        if self.alone.take().is_some() {
            thread::sleep(CHECK_INTERVAL);
        }
        let Some(times) = std::env::var_os("JVMPROBE_TEST_TIMES") else { return };
        let test = thread::current().name().unwrap_or("?").to_owned();
        let turn = if self.places.len() == 1 { "beside" } else { "alone" };
        let line = format!("{:.1} {turn} {test}\n", self.begin.elapsed().as_secs_f64());
        // Only statistics are lost if this fails.
        let file = OpenOptions::new().append(true).create(true).open(times);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

thread_local! {
    static TURN: RefCell<Option<Turn>> = const { RefCell::new(None) };
}

fn open(name: &str) -> File {
    let test = std::env::current_exe().expect("own path");
    let path = test.with_file_name(name);
    File::options().write(true).create(true).truncate(false).open(path).expect("a file")
}

/// Locks a file. Waits until this is possible.
fn lock(file: &File) {
    flock(file, FlockOperation::LockExclusive).expect("flock");
}

/// Locks a free place, if there is one. Returns its index.
fn lock_free(places: &[File]) -> Option<usize> {
    let is_free = |file: &File| flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
    places.iter().position(is_free)
}

fn turn_alone() -> Turn {
    let (alone, places) = (open(ALONE), PLACES.map(open));
    // A test that had to wait for this lock follows another one that ran alone, so all places are free.
    let is_first = flock(&alone, FlockOperation::NonBlockingLockExclusive).is_ok();
    if !is_first {
        lock(&alone);
    }
    let mut found_free = if is_first { 0 } else { CHECKS };
    while found_free < CHECKS {
        match lock_free(&places) {
            Some(at) => {
                flock(&places[at], FlockOperation::Unlock).expect("flock");
                found_free += 1;
            }
            None => found_free = 0,
        }
        thread::sleep(CHECK_INTERVAL);
    }
    places.iter().for_each(lock);
    Turn { places: places.into(), alone: Some(alone), begin: Instant::now() }
}

fn turn_beside_others() -> Turn {
    let places = PLACES.map(open);
    loop {
        if let Some(at) = lock_free(&places) {
            let places = places.into_iter().skip(at).take(1).collect();
            return Turn { places, alone: None, begin: Instant::now() };
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for the test's turn, unless its thread already has one.
fn wait_for_turn(turn_of: impl FnOnce() -> Turn) {
    TURN.with_borrow_mut(|turn| {
        turn.get_or_insert_with(turn_of);
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
    wait_for_turn(turn_alone);
}

/// Requires root, and makes this test run at the same time as others that call this function.
///
/// # Panics
/// Without root.
pub fn run_beside_others() {
    check_root();
    wait_for_turn(turn_beside_others);
}

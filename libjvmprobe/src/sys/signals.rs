//! Handling of Ctrl-C, SIGTERM and SIGHUP. The first of these signals to arrive ends the trace, and the
//! second one ends the tool immediately.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{Error, Result, sys::undo};

/// Maximum delay within which two signals count as one. `timeout` and some shells send a signal twice, to the process
/// and to its group; a user who presses Ctrl-C twice takes longer.
const SAME_SIGNAL_WITHIN: Duration = Duration::from_millis(250);

/// Exit status that a shell shows for a program killed by SIGINT.
const EXIT_STATUS_SIGINT: i32 = 130;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// Returns 1 if a signal has arrived, else 0.
pub(super) fn count() -> u32 {
    COUNT.load(Ordering::Relaxed)
}

/// State of the signals that ask the process to end.
#[derive(Debug, Default)]
pub struct EndSignals {
    first: Option<Instant>,
}

impl EndSignals {
    /// Handles a signal. The first one makes deadlines expire. A later one ends the process immediately.
    pub fn handle_signal(&mut self) {
        let now = Instant::now();
        if now - *self.first.get_or_insert(now) >= SAME_SIGNAL_WITHIN {
            end_at_once();
        }
        COUNT.store(1, Ordering::Relaxed);
    }
}

/// Ends the process immediately, after undoing its effects.
fn end_at_once() -> ! {
    undo::run_all();
    // SAFETY: ends the process without running exit handlers that free data in use by other threads.
    unsafe { libc::_exit(EXIT_STATUS_SIGINT) };
}

/// Returns a flag that becomes true on Ctrl-C, SIGTERM or SIGHUP. The second signal ends the process immediately, after
/// undoing its effects.
///
/// # Errors
/// [`Error::Io`] if the handler cannot be installed.
pub fn stop_on_signal() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let mut end_signals = EndSignals::default();
    // Runs in a normal thread, not in a signal handler, so any function may be called.
    let on_signal = move || {
        end_signals.handle_signal();
        flag.store(true, Ordering::Relaxed);
    };
    ctrlc::set_handler(on_signal)
        .map_err(|e| Error::io("handle signals", std::io::Error::other(e)))?;
    Ok(stop)
}

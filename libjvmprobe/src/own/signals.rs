//! Ctrl-C, SIGTERM and SIGHUP: the first ends a trace, the second ends the tool.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{Error, Result, own::undo};

/// `timeout` and some shells send one signal twice, to the process and to its group. A person
/// who wants out takes longer.
const SAME: Duration = Duration::from_millis(250);

/// What a shell shows of a program that SIGINT has ended.
const ENDED_AT_ONCE: i32 = 130;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// How many signals have come.
pub(super) fn count() -> u32 {
    COUNT.load(Ordering::Relaxed)
}

/// Signals that ask the process to end.
#[derive(Debug, Default)]
pub struct Endings {
    first: Option<Instant>,
}

impl Endings {
    /// One has come: whoever waits within a deadline hurries. If it is not the first one, the process
    /// ends at once, whatever it is busy with.
    pub fn come(&mut self) {
        let now = Instant::now();
        if now - *self.first.get_or_insert(now) >= SAME {
            end_at_once();
        }
        COUNT.store(1, Ordering::Relaxed);
    }
}

/// Ends the process, whatever it is busy with, with nothing left behind.
fn end_at_once() -> ! {
    undo::everything();
    // SAFETY: ends the process without running what other threads still use.
    unsafe { libc::_exit(ENDED_AT_ONCE) };
}

/// Becomes true on Ctrl-C, SIGTERM or SIGHUP. From the second one on the process ends at
/// once, whatever it is busy with, with nothing left behind.
///
/// # Errors
/// [`Error::Io`] where the handler cannot be installed.
pub fn stop_on_signal() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let mut endings = Endings::default();
    // Runs in a thread of its own, where everything is allowed.
    let on_signal = move || {
        endings.come();
        flag.store(true, Ordering::Relaxed);
    };
    ctrlc::set_handler(on_signal)
        .map_err(|e| Error::io("handle signals", std::io::Error::other(e)))?;
    Ok(stop)
}

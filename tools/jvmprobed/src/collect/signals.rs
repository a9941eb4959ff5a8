//! Signals: SIGTERM, Ctrl-C and SIGQUIT end the daemon. SIGHUP makes it read its configuration again.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use libjvmprobe::sys::EndSignals;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::net::Net;

/// Requests received as signals.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    /// Request to end.
    pub stop: Arc<AtomicBool>,
    /// Request to read the configuration again.
    pub reload: Arc<AtomicBool>,
}

/// Installs the handlers. The second signal that asks the daemon to end terminates the process immediately.
///
/// # Errors
/// A handler cannot be installed.
pub fn listen(net: &Net) -> io::Result<Signals> {
    let signals = Signals::default();
    let ending_signals = net.enter(|| {
        Ok::<_, io::Error>([
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::quit())?,
        ])
    })?;
    let mut hangup = net.enter(|| signal(SignalKind::hangup()))?;
    let reload = Arc::clone(&signals.reload);
    net.spawn(async move {
        while hangup.recv().await.is_some() {
            reload.store(true, Ordering::Relaxed);
        }
    });
    let end_signals = Arc::default();
    for signal in ending_signals {
        net.spawn(end(signal, Arc::clone(&end_signals), Arc::clone(&signals.stop)));
    }
    Ok(signals)
}

/// Waits for signals of one kind that ask the daemon to end. The second signal, of whichever kind, terminates
/// the process immediately.
async fn end(mut signal: Signal, end_signals: Arc<Mutex<EndSignals>>, stop: Arc<AtomicBool>) {
    while signal.recv().await.is_some() {
        end_signals.lock().unwrap_or_else(PoisonError::into_inner).handle_signal();
        stop.store(true, Ordering::Relaxed);
    }
}

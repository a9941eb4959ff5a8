//! Signals: SIGTERM, Ctrl-C and SIGQUIT end the daemon, SIGHUP makes it read its configuration again.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use libjvmprobe::sys::Endings;
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

/// Installs the handlers. The second ending signal ends the process at once.
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
    let endings = Arc::default();
    for signal in ending_signals {
        net.spawn(end(signal, Arc::clone(&endings), Arc::clone(&signals.stop)));
    }
    Ok(signals)
}

/// Waits for one kind of signal. The second signal of any of these kinds ends the process.
async fn end(mut signal: Signal, endings: Arc<Mutex<Endings>>, stop: Arc<AtomicBool>) {
    while signal.recv().await.is_some() {
        endings.lock().unwrap_or_else(PoisonError::into_inner).handle_signal();
        stop.store(true, Ordering::Relaxed);
    }
}

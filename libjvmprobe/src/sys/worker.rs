//! Threads of this process, and worker threads, which process jobs one after another.

use std::{
    sync::mpsc::{Sender, channel},
    thread,
};

use crate::{
    Error, Result,
    sys::privileges::{self, Rights},
};

/// Starts a thread that keeps the capabilities `needed` only.
///
/// # Errors
/// [`Error::Io`] if the kernel cannot create another thread.
pub(crate) fn start_thread(
    name: &str,
    needed: Rights,
    work: impl FnOnce() + Send + 'static,
) -> Result<()> {
    let work = move || {
        privileges::keep_only(needed);
        work();
    };
    let started = thread::Builder::new().name(name.into()).spawn(work);
    started.map(drop).map_err(|e| Error::io("start a thread", e))
}

/// A worker thread. When this is dropped, the thread processes the jobs sent so far and ends.
#[derive(Debug)]
pub(crate) struct Worker<J>(Sender<J>);

impl<J: Send + 'static> Worker<J> {
    /// Starts a thread that keeps the capabilities `needed` only, calls `make`, and passes each job to the
    /// function that `make` returns.
    ///
    /// # Errors
    /// The errors of [`start_thread`].
    pub(crate) fn start<W: FnMut(J)>(
        name: &str,
        needed: Rights,
        make: impl FnOnce() -> W + Send + 'static,
    ) -> Result<Self> {
        let (jobs, todo) = channel();
        start_thread(name, needed, move || todo.into_iter().for_each(make()))?;
        Ok(Self(jobs))
    }

    /// Sends a job. Returns `false` if the thread has panicked; the job is then dropped here.
    pub(crate) fn send(&self, job: J) -> bool {
        self.0.send(job).is_ok()
    }
}

//! Network threads: one for push targets and signals, and one for each listener.
//!
//! They parse data from other hosts, so they have no capabilities. Their helper threads, which resolve host
//! names and write files, have none either. Ports are bound before the network threads start. Permission bits
//! decide which files network threads can read, even if the daemon runs as root, because only other threads
//! of the daemon have `CAP_DAC_READ_SEARCH`.

use std::{
    future::Future,
    io,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

use libjvmprobe::sys::privileges::{Rights, keep_only};
use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
    task::JoinHandle as JoinTask,
};

use crate::metrics::server::cost::Allowance;

/// Maximum number of helper threads, which run only while they are used. Each target may wait for its disk.
const MAX_HELPERS: usize = 16;

/// A thread with a tokio runtime.
#[derive(Debug)]
pub struct Net {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Net {
    /// Starts the thread for push targets and signals.
    ///
    /// # Errors
    /// The thread or its epoll instance cannot be created.
    pub fn start() -> io::Result<Self> {
        // Helper threads resolve host names and use the queues on disk, because these calls block.
        let mut builder = Builder::new_current_thread();
        builder.thread_name("jvmprobed-help");
        Self::with(builder, "jvmprobed-net")
    }

    /// Starts the thread of a listener. Each time before the thread sleeps, it charges its CPU time to
    /// `allowance`.
    ///
    /// # Errors
    /// The thread or its epoll instance cannot be created.
    pub fn serving(name: &str, allowance: &Arc<Allowance>) -> io::Result<Self> {
        let mut builder = Builder::new_current_thread();
        let allowance = Arc::clone(allowance);
        builder.thread_name(name).on_thread_park(move || allowance.charge_thread());
        Self::with(builder, name)
    }

    fn with(mut builder: Builder, name: &str) -> io::Result<Self> {
        // A thread inherits the capabilities of the thread that starts it, and that thread may have some.
        builder.on_thread_start(|| keep_only(Rights::empty()));
        let runtime = builder.enable_all().max_blocking_threads(MAX_HELPERS).build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            keep_only(Rights::empty());
            let _ = runtime.block_on(stopped);
            // Resolving a name may hang for a long time, so do not wait for it.
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Calls `make` in the context of the runtime, so that the objects that it creates belong to the runtime.
    pub fn enter<T>(&self, make: impl FnOnce() -> T) -> T {
        let _inside = self.handle.enter();
        make()
    }

    /// Runs a function in the thread and waits for its result. Returns `None` if the thread has ended.
    pub fn run<T: Send + 'static>(&self, run: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (done, result) = mpsc::channel();
        self.spawn(async move { _ = done.send(run()) });
        result.recv().ok()
    }

    /// Starts a task.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinTask<()> {
        self.handle.spawn(task)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

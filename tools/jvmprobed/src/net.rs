//! The thread that does all network input and output: the metrics' server and the targets.
//!
//! It parses what others send, so it has no capabilities, and neither have the threads that look names up and
//! write files for it. Ports are bound before. It reads files as the daemon's user, by their permission
//! bits: `CAP_DAC_READ_SEARCH` of the other threads does not reach it.

use std::{
    future::Future,
    io,
    sync::mpsc,
    thread::{self, JoinHandle},
};

use libjvmprobe::own::privileges::{Rights, keep};
use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
    task::JoinHandle as JoinTask,
};

/// A thread with a runtime.
#[derive(Debug)]
pub struct Net {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Net {
    /// Starts the thread.
    ///
    /// # Errors
    /// Those of making a thread and an epoll instance.
    pub fn start() -> io::Result<Self> {
        // Names of hosts are looked up in threads of their own: the C library waits.
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(2)
            .thread_name("jvmprobed-names")
            // Threads inherit the capabilities of the one that starts them, which may be any.
            .on_thread_start(|| keep(Rights::empty()))
            .build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name("jvmprobed-net".into()).spawn(move || {
            keep(Rights::empty());
            let _ = runtime.block_on(stopped);
            // A look-up of a name may hang for long: nobody waits for it.
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Does something that only the runtime can: what it makes belongs to it.
    pub fn enter<T>(&self, make: impl FnOnce() -> T) -> T {
        let _inside = self.handle.enter();
        make()
    }

    /// Runs a function in the thread and waits for its result. `None` if the thread has ended.
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

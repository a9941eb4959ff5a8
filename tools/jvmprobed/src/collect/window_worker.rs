//! Worker thread that passes windows on to the store and to push targets.
//!
//! The worker writes to disks, which may be slow. The main loop must not wait for them, because it has to
//! handle new JVMs and to notify systemd's watchdog in time.

use std::{
    sync::mpsc::{Receiver, SyncSender, channel, sync_channel},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use libjvmprobe::sys::limited;

use crate::{clock::unix_ns, metrics::SharedTotals, push::Push, store::Store, window::Window};

/// Time whose windows may wait for the worker: one minute of data.
const MAX_QUEUED: Duration = Duration::from_secs(60);

enum Job {
    Window(Window),
    Bounds(Duration, u64),
}

/// The worker thread.
#[derive(Debug)]
pub struct WindowWorker {
    jobs: SyncSender<Job>,
    /// Receives the push targets when all windows have been passed on. They may still have requests to send.
    done: Receiver<Push>,
    totals: SharedTotals,
    is_dropping: bool,
}

impl WindowWorker {
    /// Starts the worker.
    ///
    /// # Errors
    /// The thread cannot be created.
    pub fn start(
        mut store: Store,
        push: Push,
        totals: &SharedTotals,
        window: Duration,
    ) -> Result<Self> {
        let (jobs, todo) = sync_channel(MAX_QUEUED.div_duration_f64(window) as usize);
        let (end, done) = channel();
        totals.lock().store_counts = store.counts();
        let shared = totals.clone();
        let run = move || {
            for job in todo {
                match job {
                    Job::Window(window) => process_window(window, &mut store, &push, &shared),
                    Job::Bounds(age, size) => store.set_bounds(age, size),
                }
            }
            // Sending fails if `WindowWorker::end` has timed out, because `end` then drops the receiver.
            let _ = end.send(push);
        };
        thread::Builder::new()
            .name("window-worker".into())
            .spawn(run)
            .context("cannot start a thread")?;
        Ok(Self { jobs, done, totals: totals.clone(), is_dropping: false })
    }

    /// Queues a window for the worker, or drops it if the queue is full.
    pub fn enqueue(&mut self, window: Window) {
        match self.jobs.try_send(Job::Window(window)) {
            Ok(()) => self.is_dropping = false,
            Err(_) => {
                self.totals.lock().dropped_windows += 1;
                if !std::mem::replace(&mut self.is_dropping, true) {
                    log::warn!("dropping windows: the disk is too slow; sampling continues");
                }
            }
        }
    }

    /// Sets the bounds of the store.
    pub fn set_bounds(&mut self, age: Duration, size: u64) {
        // If the queue is full, the store keeps its old bounds until the next reload.
        if self.jobs.try_send(Job::Bounds(age, size)).is_err() {
            log::warn!("the store is busy: keeping its previous limits");
        }
    }

    /// Waits, for at most the time `within`, until all windows have been passed on. Returns the push targets,
    /// which may still have requests to send.
    pub fn end(self, within: Duration) -> Option<Push> {
        drop(self.jobs);
        let done = self.done.recv_timeout(within).ok();
        if done.is_none() {
            log::warn!("the disk is too slow: the last data may not be stored");
        }
        done
    }
}

fn process_window(window: Window, store: &mut Store, push: &Push, totals: &SharedTotals) {
    let end_ns = window.end_ns;
    push.window(&window);
    store.put(window);
    let mut locked = totals.lock();
    locked.windows += 1;
    locked.store_counts = store.counts();
    for (tenant, lost) in store.take_limited() {
        limited::add("store", &tenant, lost);
    }
    locked.own.window_delay_ns = unix_ns().saturating_sub(end_ns);
    drop(locked);
    push.metrics(totals);
}

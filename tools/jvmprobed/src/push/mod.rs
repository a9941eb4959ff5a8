//! Push: sends windows and metrics to other systems.
//!
//! | module | content |
//! |---|---|
//! | [`target`] | addresses `pyroscope=URL`, `otlp=URL`, `dir=PATH`, and options of a target |
//! | [`pyroscope`], [`otlp`], [`dir`] | for each kind of target: a window as requests, and sending them |
//! | [`labels`] | limit on new names and attributes that JVMs choose |
//! | [`queue`] | queue of requests on disk |
//! | [`ledger`] | counts of delivered, dropped and waiting samples |
//! | [`sender`] | sends queued requests in order |
//! | [`retry`] | delays before another attempt |
//! | [`client`], [`grpc`] | a request and its outcome |
//!
//! The thread that calls [`Push::window`] encodes the window and immediately puts the requests into each
//! target's queue. One task for each target sends them. A request may arrive twice if the answer to the first
//! attempt was lost. Every request that is dropped is counted.

pub mod client;
pub mod dir;
pub mod grpc;
pub mod labels;
pub mod ledger;
pub mod otlp;
pub mod pyroscope;
pub mod queue;
pub mod retry;
pub mod sender;
pub mod target;

use std::{
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use libjvmprobe::stack::profile::{Measure, Profile, Sample};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::{
    clock::unix_ns,
    metrics::SharedTotals,
    net::Net,
    push::{
        ledger::Ledger,
        sender::Sender,
        target::{Address, Options},
    },
    window::Window,
};

/// All push targets.
#[derive(Debug)]
pub struct Push {
    senders: Vec<(Arc<Sender>, JoinHandle<()>)>,
    start_ns: u64,
}

impl Push {
    /// Opens the queues, which are subdirectories of `folder`, and starts to send the requests that wait in
    /// them.
    ///
    /// # Errors
    /// A queue cannot be opened, or a file that an option names is wrong. An unreachable target is not an
    /// error, because it may come up later.
    pub fn start(
        net: &Net,
        targets: &[Options],
        folder: &Path,
        retry: retry::Limits,
    ) -> Result<Self> {
        queue::private_folder(folder)
            .with_context(|| format!("cannot keep queues in {}", folder.display()))?;
        // If one target fails, dropping `push` ends the tasks of the targets that were opened before.
        let mut push = Self { senders: Vec::new(), start_ns: unix_ns() };
        for options in targets {
            if let Some(warning) = options.insecurity_warning() {
                log::warn!("{warning}");
            }
            if let Address::Dir(path) = &options.to {
                DirBuilder::new().recursive(true).mode(0o750).create(path).with_context(|| {
                    format!("--push {}: cannot create the directory", options.to)
                })?;
            }
            let sender = Sender::open(net, options, folder, retry)
                .with_context(|| format!("--push {}", options.to))?;
            let sender = Arc::new(sender);
            let task = Arc::clone(&sender);
            let task = net.spawn(async move { task.run().await });
            push.senders.push((sender, task));
        }
        Ok(push)
    }

    /// Returns the counts of each target, for [`Totals::targets`](crate::metrics::Totals::targets).
    pub fn ledgers(&self) -> Vec<Arc<Ledger>> {
        self.senders.iter().map(|(sender, _)| Arc::clone(sender.ledger())).collect()
    }

    /// Queues a window for all targets. Requests that cannot be queued are counted as dropped.
    pub fn window(&self, window: &Window) {
        for (sender, _) in &self.senders {
            let requests = match sender.address() {
                Address::Pyroscope(_) => pyroscope::requests(window),
                Address::OtlpHttp(_) | Address::OtlpGrpc(_) => otlp::profiles::requests(window),
                Address::Dir(_) => dir::files(window),
            };
            for (header, body) in requests {
                sender.enqueue(header, body);
            }
        }
    }

    /// Queues the current metrics for the targets that accept metrics.
    pub fn metrics(&self, totals: &SharedTotals) {
        let senders = self.senders.iter().map(|(sender, _)| sender);
        let mut recipients = senders.filter(|sender| sender.accepts_metrics()).peekable();
        if recipients.peek().is_none() {
            return;
        }
        // The totals are locked only while the request is built, not while it is written to disk.
        let request = otlp::metrics::request(&totals.lock(), self.start_ns, unix_ns());
        let Some((header, body)) = request else { return };
        for sender in recipients {
            sender.enqueue(header.clone(), body.clone());
        }
    }

    /// Makes one more attempt to send all waiting requests, for at most this long, and ends. Requests that
    /// were not sent stay on disk for the next process. If such a request is only in memory, it is dropped
    /// and counted.
    pub fn end(mut self, net: &Net, within: Duration) {
        let until = Instant::now() + within;
        let waits: Vec<_> = std::mem::take(&mut self.senders)
            .into_iter()
            .map(|(sender, task)| {
                let (done, wait) = oneshot::channel();
                net.spawn(async move {
                    sender.flush(until).await;
                    task.abort();
                    let _ = task.await;
                    sender.end().await;
                    // Now another `Push` can open the queue, unless the disk hangs: then a helper thread still has it.
                    drop(sender);
                    let _ = done.send(());
                });
                wait
            })
            .collect();
        for wait in waits {
            let _ = wait.blocking_recv();
        }
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        self.senders.iter().for_each(|(_, task)| task.abort());
    }
}

/// Returns the number of samples of a profile. For CPU time, this is the number of recorded samples. For
/// allocation, it is the number of distinct stacks, because the number of objects is an estimate. For other
/// measures, it is the number of events that happened.
pub fn samples(profile: &Profile) -> u64 {
    samples_of(&profile.measure, &profile.samples)
}

fn samples_of(measure: &Measure, samples: &[Sample]) -> u64 {
    let of = |sample: &Sample| match measure {
        Measure::Time => sample.count,
        Measure::Allocation => 1,
        _ => sample.occurrences,
    };
    samples.iter().map(of).fold(0, u64::saturating_add)
}

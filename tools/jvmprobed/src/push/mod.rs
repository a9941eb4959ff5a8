//! What is taken goes on to others.
//!
//! | module | what it knows |
//! |---|---|
//! | [`target`] | where to: `pyroscope=URL`, `otlp=URL`, `dir=PATH`, and what belongs to it |
//! | [`pyroscope`], [`otlp`], [`dir`] | a window as requests to each, and how one is sent |
//! | [`queue`] | what waits, on disk |
//! | [`ledger`] | what became of it |
//! | [`sender`] | sends what waits, in order |
//! | [`retry`] | when something is tried again |
//! | [`client`], [`grpc`] | a request and what comes of it |
//!
//! A window is made into requests and put into each target's queue at once, by whoever hands it
//! in; a task of each target sends them. A request may arrive twice, where the answer to the first
//! was lost; it is never lost itself without being counted.

pub mod client;
pub mod dir;
pub mod grpc;
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
use libjvmprobe::{
    own::note,
    stack::profile::{Measure, Profile, Sample},
};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::{
    clock::unix_ns,
    metrics::SharedBook,
    net::Net,
    push::{
        ledger::Ledger,
        sender::Sender,
        target::{Address, Options},
    },
    window::Window,
};

/// All targets.
#[derive(Debug)]
pub struct Push {
    senders: Vec<(Arc<Sender>, JoinHandle<()>)>,
    start_ns: u64,
}

impl Push {
    /// Opens the queues, which are below a folder, and starts to send what waits in them.
    ///
    /// # Errors
    /// A queue cannot be opened, or a file that an option names is not as it should be. That a
    /// target does not answer is none: it may come up later.
    pub fn start(
        net: &Net,
        targets: &[Options],
        folder: &Path,
        retry: retry::Limits,
    ) -> Result<Self> {
        queue::private_folder(folder)
            .with_context(|| format!("cannot keep queues in {}", folder.display()))?;
        // Where one of them fails, those before it end.
        let mut push = Self { senders: Vec::new(), start_ns: unix_ns() };
        for options in targets {
            if let Some(warning) = options.unprotected() {
                note(&warning);
            }
            if let Address::Dir(path) = &options.to {
                DirBuilder::new()
                    .recursive(true)
                    .mode(0o750)
                    .create(path)
                    .with_context(|| format!("--push {}: cannot make the folder", options.to))?;
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

    /// The counts of each target, for [`Book::targets`](crate::metrics::Book::targets).
    pub fn ledgers(&self) -> Vec<Arc<Ledger>> {
        self.senders.iter().map(|(sender, _)| Arc::clone(sender.ledger())).collect()
    }

    /// Hands in a window. What of it could not be kept is counted.
    pub fn window(&self, window: &Window) {
        for (sender, _) in &self.senders {
            let requests = match sender.address() {
                Address::Pyroscope(_) => pyroscope::requests(window),
                Address::OtlpHttp(_) | Address::OtlpGrpc(_) => otlp::profiles::requests(window),
                Address::Dir(_) => dir::files(window),
            };
            for (head, body) in requests {
                sender.hand_in(head, body);
            }
        }
    }

    /// Hands in the metrics as they are, for targets that take them.
    pub fn metrics(&self, book: &SharedBook) {
        let senders = self.senders.iter().map(|(sender, _)| sender);
        let mut wanting = senders.filter(|sender| sender.takes_metrics()).peekable();
        if wanting.peek().is_none() {
            return;
        }
        // Nobody waits for the book while this is written to the disk.
        let request = otlp::metrics::request(&book.lock(), self.start_ns, unix_ns());
        let Some((head, body)) = request else { return };
        for sender in wanting {
            sender.hand_in(head.clone(), body.clone());
        }
    }

    /// Tries once more to send all that waits, for so long at most, and ends. What still waits
    /// then is on disk, for the next process.
    pub fn end(mut self, net: &Net, within: Duration) {
        let until = Instant::now() + within;
        let waits: Vec<_> = std::mem::take(&mut self.senders)
            .into_iter()
            .map(|(sender, task)| {
                let (done, wait) = oneshot::channel();
                net.spawn(async move {
                    sender.flush(until).await;
                    // Then nobody has the queue any more, and it can be opened again.
                    task.abort();
                    let _ = task.await;
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

/// Returns how many samples a profile has: of processor time those that were taken, of allocation the stacks with their
/// sums (not the objects, which are an estimate), of other things how often they happened.
pub fn samples(profile: &Profile) -> u64 {
    samples_of(&profile.measure, &profile.samples)
}

fn samples_of(measure: &Measure, samples: &[Sample]) -> u64 {
    let of = |sample: &Sample| match measure {
        Measure::Time => sample.count,
        Measure::Allocation => 1,
        _ => sample.things,
    };
    samples.iter().map(of).fold(0, u64::saturating_add)
}

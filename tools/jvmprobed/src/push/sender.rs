//! Sends the queued requests of one target, in order and one at a time.

use std::{
    collections::BTreeSet,
    mem,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use reqwest::Url;
use serde_json::json;
use tokio::{
    sync::Notify,
    task::spawn_blocking,
    time::{sleep, timeout, timeout_at},
};

use crate::{
    net::Net,
    push::{
        client::{Outcome, Target},
        dir,
        ledger::{Ledger, reason},
        otlp, pyroscope,
        queue::{Entry, Header, Parts, Queue},
        retry::{self, Backoff},
        target::{Address, Options},
    },
};

/// Maximum number of different errors that are logged between two accepted requests.
const MAX_ERRORS: usize = 10;
/// Maximum time to wait at the end for a thread that writes to the queue.
const MAX_END: Duration = Duration::from_secs(1);

/// A target with its queue and state.
#[derive(Debug)]
pub struct Sender {
    transport: Transport,
    address: Address,
    metrics: bool,
    queue: Arc<Mutex<Queue>>,
    ledger: Arc<Ledger>,
    retry: retry::Limits,
    /// Notified when a request was queued.
    request_queued: Notify,
    /// Set at shutdown: the task sends nothing more.
    is_ending: AtomicBool,
    /// Lock that allows one request at a time.
    send_lock: tokio::sync::Mutex<()>,
    /// The first [`MAX_ERRORS`] different errors since the target last accepted a request. Each was logged
    /// once.
    errors: Mutex<BTreeSet<String>>,
}

/// Transport to a target.
#[derive(Debug)]
enum Transport {
    Pyroscope(Target, Url),
    Otlp(Target, Url, bool),
    Dir(PathBuf),
}

impl Sender {
    /// Opens a target and its queue, which is a subdirectory of `folder`.
    pub(super) fn open(
        net: &Net,
        options: &Options,
        folder: &Path,
        retry: retry::Limits,
    ) -> Result<Self> {
        let ledger = Arc::new(Ledger::new(&options.to.to_string()));
        // The network thread, not this one, reads the target's files here, because it reads files with
        // secrets again later. So if it lacks the rights to read them, that is an error at the start.
        let target = |url: &Url| {
            let (options, url) = (options.clone(), url.clone());
            let target = net.run(move || Target::new(&options, &url));
            target.unwrap_or_else(|| bail!("the network thread has ended"))
        };
        let transport = match &options.to {
            Address::Pyroscope(url) => Transport::Pyroscope(target(url)?, url.clone()),
            Address::OtlpHttp(url) => Transport::Otlp(target(url)?, url.clone(), false),
            Address::OtlpGrpc(url) => Transport::Otlp(target(url)?, url.clone(), true),
            Address::Dir(path) => Transport::Dir(path.clone()),
        };
        let folder = folder.join(options.to.folder());
        let queue = Queue::open(&folder, options.queue_size, Arc::clone(&ledger))?;
        Ok(Self {
            transport,
            address: options.to.clone(),
            metrics: options.metrics
                && matches!(options.to, Address::OtlpHttp(_) | Address::OtlpGrpc(_)),
            queue: Arc::new(Mutex::new(queue)),
            ledger,
            retry,
            request_queued: Notify::new(),
            is_ending: AtomicBool::new(false),
            send_lock: tokio::sync::Mutex::new(()),
            errors: Mutex::default(),
        })
    }

    /// Returns the delivery counts.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Returns the target's address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns whether the target accepts metrics, too.
    pub fn accepts_metrics(&self) -> bool {
        self.metrics
    }

    /// Adds a request to the queue.
    pub fn enqueue(&self, header: Header, body: Vec<u8>) {
        lock(&self.queue).push(header, body);
        self.request_queued.notify_one();
    }

    /// Sends queued requests until [`Self::flush`] is called. The caller of `flush` also aborts this task.
    pub(super) async fn run(&self) {
        let mut backoff = Backoff::new(self.retry);
        loop {
            let guard = self.send_lock.lock().await;
            if self.is_ending.load(Ordering::Relaxed) {
                break;
            }
            let sent = self.send_oldest().await;
            drop(guard);
            let wait = match sent {
                Sent::Nothing => {
                    self.request_queued.notified().await;
                    continue;
                }
                Sent::One => {
                    backoff.reset();
                    continue;
                }
                Sent::Later(retry_after) => backoff.wait(retry_after),
            };
            sleep(wait).await;
        }
    }

    /// Asks the task of [`Self::run`] to end, and sends queued requests until `until` or until the first
    /// failure. The other requests stay in the queue.
    pub(super) async fn flush(&self, until: Instant) {
        self.is_ending.store(true, Ordering::Relaxed);
        let all = async {
            let _guard = self.send_lock.lock().await;
            while matches!(self.send_oldest().await, Sent::One) {}
        };
        let _ = timeout_at(until.into(), all).await;
    }

    /// Ends the queue, when no task sends requests any more. Its requests stay on disk; those that are only in memory are
    /// dropped and counted.
    pub(super) async fn end(&self) {
        let _ = timeout(MAX_END, self.with_queue(Queue::end)).await;
    }

    /// Sends the oldest request. The caller holds `send_lock`.
    async fn send_oldest(&self) -> Sent {
        let Some(entry) = self.with_queue(Queue::oldest).await.flatten() else {
            return Sent::Nothing;
        };
        let (number, header) = (entry.number, entry.header.clone());
        // If a time limit cancels this future here, the entry stays in the queue.
        let outcome = self.send(entry).await;
        match outcome {
            Outcome::Accepted(refused, message) => {
                self.ledger.add_request("taken");
                self.record_accepted(&header, refused, &message);
            }
            Outcome::Refused(message) => {
                self.ledger.add_request("refused");
                self.split_or_drop(number, &header, &message).await;
                return Sent::One;
            }
            Outcome::Failed(message) => {
                self.ledger.add_request("later");
                let accepted = self.ledger.read().requests.get("taken").copied().unwrap_or(0);
                let refused = self.with_queue(move |queue| queue.mark_failed(number, accepted));
                match refused.await.flatten() {
                    Some(number) => self.split_or_drop(number, &header, &message).await,
                    None => self.log_error(message),
                }
                return Sent::Later(None);
            }
            Outcome::Later(after, message) => {
                self.ledger.add_request("later");
                self.with_queue(Queue::retry_later).await;
                self.log_error(message);
                return Sent::Later(after);
            }
        }
        self.with_queue(move |queue| queue.remove_finished(number)).await;
        Sent::One
    }

    /// Handles a request that was refused. Replaces it in the queue with smaller requests, so that other
    /// profiles are not lost with the one that the target rejects. Drops a request that cannot be split.
    async fn split_or_drop(&self, number: u64, header: &Header, message: &str) {
        let split: fn(&Header, &[u8]) -> Option<Parts> = match &self.transport {
            Transport::Pyroscope(..) => pyroscope::split,
            Transport::Otlp(..) => otlp::profiles::split,
            Transport::Dir(_) => |_, _| None,
        };
        let is_split = self.with_queue(move |queue| queue.split(number, split)).await;
        if is_split == Some(true) {
            return;
        }
        self.ledger.add_dropped(reason::REFUSED, header.samples);
        self.with_queue(move |queue| queue.remove_finished(number)).await;
        let values = json!({"target": self.address.to_string(), "samples": header.samples});
        log::warn!(
            dropped:serde = values;
            "{}: dropped {} samples: {message}", self.address, header.samples
        );
    }

    /// Counts a request that the target has accepted, except for `refused` of its profiles.
    fn record_accepted(&self, header: &Header, refused: u64, message: &str) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if !mem::take(&mut *errors).is_empty() {
            log::info!("{}: delivery works again", self.address);
        }
        drop(errors);
        // The answer does not say which profiles were refused. Their number of samples is therefore estimated
        // from their share of the profiles, and rounded up.
        let refused_samples = match header.profiles {
            0 => 0,
            all => {
                let share = u128::from(header.samples) * u128::from(refused.min(all));
                u64::try_from(share.div_ceil(u128::from(all))).unwrap_or(header.samples)
            }
        };
        if refused > 0 || !message.is_empty() {
            log::warn!("{}: rejected {refused} records: {message}", self.address);
        }
        if refused_samples > 0 {
            self.ledger.add_dropped(reason::PARTLY_REFUSED, refused_samples);
        }
        self.ledger.add_delivered(header.samples - refused_samples);
    }

    /// Logs why a target does not accept requests. Each error is logged once until the target accepts a
    /// request.
    fn log_error(&self, error: String) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if errors.len() < MAX_ERRORS && !errors.contains(&error) {
            log::warn!("{}: {error}; retrying, new data is queued", self.address);
            errors.insert(error);
        }
    }

    async fn send(&self, entry: Entry) -> Outcome {
        match &self.transport {
            Transport::Pyroscope(target, url) => pyroscope::send(target, url, entry.body).await,
            Transport::Otlp(target, url, is_grpc) => {
                otlp::send(target, url, *is_grpc, entry.header.kind, entry.body).await
            }
            Transport::Dir(path) => {
                // The disk may be slow, and other tasks need this thread.
                let path = path.clone();
                let sent =
                    spawn_blocking(move || dir::send(&path, &entry.header, &entry.body)).await;
                sent.unwrap_or_else(|error| Outcome::Later(None, error.to_string()))
            }
        }
    }

    /// Calls `run` with the queue in a helper thread, because the disk may be slow, and the tasks for other targets and
    /// for signals need this thread. Returns `None` if the runtime is ending or `run` has panicked.
    async fn with_queue<T: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Queue) -> T + Send + 'static,
    ) -> Option<T> {
        let queue = Arc::clone(&self.queue);
        spawn_blocking(move || run(&mut lock(&queue))).await.ok()
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Result of an attempt.
enum Sent {
    /// The queue is empty, or the runtime is ending.
    Nothing,
    /// A request was delivered, split or dropped.
    One,
    /// The request must be sent again, after this time if the target gave one.
    Later(Option<Duration>),
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn network_thread_does_not_wait_for_the_queue() {
        let folder = tempfile::tempdir().unwrap();
        let net = Net::start().unwrap();
        let options = Options::new(format!("dir={}", folder.path().display()).parse().unwrap());
        let sender = Sender::open(&net, &options, folder.path(), retry::Limits::default());
        let sender = Arc::new(sender.unwrap());
        // A thread that writes to a disk that hangs holds the lock.
        let writing = lock(&sender.queue);
        let task = Arc::clone(&sender);
        net.spawn(async move { task.run().await });
        let (done, is_done) = mpsc::channel();
        net.spawn(async move { _ = done.send(()) });
        assert!(is_done.recv_timeout(Duration::from_secs(30)).is_ok());
        drop(writing);
    }
}

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
    time::{sleep, timeout_at},
};

use crate::{
    net::Net,
    push::{
        client::{Outcome, Target},
        dir,
        ledger::{Ledger, reason},
        otlp, pyroscope,
        queue::{Entry, Head, Parts, Queue},
        retry::{self, Backoff},
        target::{Address, Options},
    },
};

/// Maximum number of different errors that are logged between two accepted requests.
const MAX_ERRORS: usize = 10;

/// A target with its queue and state.
#[derive(Debug)]
pub struct Sender {
    way: Transport,
    address: Address,
    metrics: bool,
    queue: Arc<Mutex<Queue>>,
    ledger: Arc<Ledger>,
    retry: retry::Limits,
    /// Notified when a request was queued.
    news: Notify,
    /// Set at shutdown: the task sends nothing more.
    ends: AtomicBool,
    /// Lock that allows one request at a time.
    turn: tokio::sync::Mutex<()>,
    /// Errors of the target since it last accepted a request. Each is logged once, at most [`MAX_ERRORS`] of them.
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
    /// Opens a target and its queue, which is below a directory.
    pub(super) fn open(
        net: &Net,
        options: &Options,
        folder: &Path,
        retry: retry::Limits,
    ) -> Result<Self> {
        let ledger = Arc::new(Ledger::new(&options.to.to_string()));
        // The network thread reads the files, with the same rights that it has when it reads them again.
        let target = |url: &Url| {
            let (options, url) = (options.clone(), url.clone());
            let target = net.run(move || Target::new(&options, &url));
            target.unwrap_or_else(|| bail!("the network thread has ended"))
        };
        let way = match &options.to {
            Address::Pyroscope(url) => Transport::Pyroscope(target(url)?, url.clone()),
            Address::OtlpHttp(url) => Transport::Otlp(target(url)?, url.clone(), false),
            Address::OtlpGrpc(url) => Transport::Otlp(target(url)?, url.clone(), true),
            Address::Dir(path) => Transport::Dir(path.clone()),
        };
        let folder = folder.join(options.to.folder());
        let queue = Queue::open(&folder, options.queue_size, Arc::clone(&ledger))?;
        Ok(Self {
            way,
            address: options.to.clone(),
            metrics: options.metrics
                && matches!(options.to, Address::OtlpHttp(_) | Address::OtlpGrpc(_)),
            queue: Arc::new(Mutex::new(queue)),
            ledger,
            retry,
            news: Notify::new(),
            ends: AtomicBool::new(false),
            turn: tokio::sync::Mutex::new(()),
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

    /// Returns whether the target takes metrics, too.
    pub fn takes_metrics(&self) -> bool {
        self.metrics
    }

    /// Adds a request to the queue.
    pub fn hand_in(&self, head: Head, body: Vec<u8>) {
        self.queue().push(head, body);
        self.news.notify_one();
    }

    /// Sends queued requests until [`Self::flush`]. The caller of that also ends this task.
    pub(super) async fn run(&self) {
        let mut backoff = Backoff::new(self.retry);
        while !self.ends.load(Ordering::Relaxed) {
            let wait = match self.send_oldest().await {
                Sent::Nothing => {
                    self.news.notified().await;
                    continue;
                }
                Sent::One => {
                    backoff.reset();
                    continue;
                }
                Sent::Later(asked) => backoff.wait(asked),
            };
            sleep(wait).await;
        }
    }

    /// Sends queued requests without waiting for retries, and ends the task. Requests that were not sent by
    /// `until`, and those after the first failure, stay in the queue on disk; those that are only in memory
    /// are dropped and counted.
    pub(super) async fn flush(&self, until: Instant) {
        self.ends.store(true, Ordering::Relaxed);
        let all = async { while matches!(self.send_oldest().await, Sent::One) {} };
        let _ = timeout_at(until.into(), all).await;
        self.queue().end();
    }

    async fn send_oldest(&self) -> Sent {
        let _turn = self.turn.lock().await;
        let Some(entry) = self.queue().oldest() else { return Sent::Nothing };
        let (number, head) = (entry.number, entry.head.clone());
        let bytes = entry.body.len() as u64;
        // If a time limit cancels this future here, the entry stays in the queue.
        let outcome = self.send(entry).await;
        match outcome {
            Outcome::Taken(refused, words) => {
                self.ledger.request("taken");
                self.taken(&head, bytes, refused, &words);
            }
            Outcome::Refused(words) => {
                self.ledger.request("refused");
                self.refuse(number, &head, &words).await;
                return Sent::One;
            }
            Outcome::Failed(words) => {
                self.ledger.request("later");
                let taken = self.ledger.read().requests.get("taken").copied().unwrap_or(0);
                let refused = self.queue().failed(number, taken);
                match refused {
                    Some(number) => self.refuse(number, &head, &words).await,
                    None => self.log_error(words),
                }
                return Sent::Later(None);
            }
            Outcome::Later(after, words) => {
                self.ledger.request("later");
                self.queue().later();
                self.log_error(words);
                return Sent::Later(after);
            }
        }
        self.queue().done(number);
        Sent::One
    }

    /// Handles a request that was refused: sends its content in smaller parts, so that a profile that the
    /// target does not accept harms no other one. A part that cannot be split further is dropped.
    async fn refuse(&self, number: u64, head: &Head, words: &str) {
        let split: fn(&Head, &[u8]) -> Option<Parts> = match &self.way {
            Transport::Pyroscope(..) => pyroscope::split,
            Transport::Otlp(..) => otlp::profiles::split,
            Transport::Dir(_) => |_, _| None,
        };
        let queue = Arc::clone(&self.queue);
        // The disk may be slow, and other tasks need this thread.
        let is_split = spawn_blocking(move || lock(&queue).split(number, split)).await;
        if is_split.unwrap_or(false) {
            return;
        }
        self.ledger.give_up(reason::REFUSED, 1, head.samples);
        self.queue().done(number);
        let values = json!({"target": self.address.to_string(), "samples": head.samples});
        log::warn!(
            dropped:serde = values;
            "{}: dropped {} samples: {words}", self.address, head.samples
        );
    }

    /// Counts a request that the target has accepted, except for `refused` of its profiles.
    fn taken(&self, head: &Head, bytes: u64, refused: u64, words: &str) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if !mem::take(&mut *errors).is_empty() {
            log::info!("{}: delivery works again", self.address);
        }
        drop(errors);
        // The answer does not say which profiles were refused, so their share of the samples is counted, rounded up.
        let refused_samples = match head.profiles {
            0 => 0,
            all => {
                let share = u128::from(head.samples) * u128::from(refused.min(all));
                u64::try_from(share.div_ceil(u128::from(all))).unwrap_or(head.samples)
            }
        };
        if refused > 0 || !words.is_empty() {
            log::warn!("{}: rejected {refused} records: {words}", self.address);
        }
        if refused_samples > 0 {
            self.ledger.give_up(reason::PARTLY, 1, refused_samples);
        }
        self.ledger.deliver(head.samples - refused_samples, bytes);
    }

    /// Logs why a target does not accept requests, once until it accepts one.
    fn log_error(&self, error: String) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if errors.len() < MAX_ERRORS && !errors.contains(&error) {
            log::warn!("{}: {error}; retrying, new data is queued", self.address);
            errors.insert(error);
        }
    }

    async fn send(&self, entry: Entry) -> Outcome {
        match &self.way {
            Transport::Pyroscope(target, url) => pyroscope::send(target, url, entry.body).await,
            Transport::Otlp(target, url, is_grpc) => {
                otlp::send(target, url, *is_grpc, entry.head.kind, entry.body).await
            }
            Transport::Dir(path) => {
                // The disk may be slow, and other tasks need this thread.
                let path = path.clone();
                let sent = spawn_blocking(move || dir::send(&path, &entry.head, &entry.body)).await;
                sent.unwrap_or_else(|error| Outcome::Later(None, error.to_string()))
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Result of an attempt.
enum Sent {
    /// The queue is empty.
    Nothing,
    /// A request was delivered, split or dropped.
    One,
    /// The request must be sent again, after this time if the target gave one.
    Later(Option<Duration>),
}

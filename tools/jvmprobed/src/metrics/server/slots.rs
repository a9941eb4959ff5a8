//! Connection slots. If none is free, a new connection replaces the one that has waited for its client for
//! the longest time.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use tokio::sync::Notify;

/// The connections that one listener serves at a time.
#[derive(Debug)]
pub struct Slots {
    max: usize,
    used: Mutex<UsedSlots>,
    /// Notified when a slot becomes free, or its connection may be closed.
    changed: Notify,
}

#[derive(Debug, Default)]
struct UsedSlots {
    next: u64,
    by_number: BTreeMap<u64, State>,
}

#[derive(Debug)]
struct State {
    /// Time of the latest of these events: the connection was accepted, or an answer was begun or completed.
    since: Instant,
    /// Whether an answer is being made. The connection then waits for the server and not for the client.
    is_answering: bool,
    close: Arc<Notify>,
}

/// A slot that a connection holds. Dropping this value frees the slot, unless another connection has taken
/// it.
#[derive(Debug)]
pub struct Slot {
    number: u64,
    slots: Arc<Slots>,
    close: Arc<Notify>,
}

/// Keeps a connection from being closed while its answer is being made.
#[derive(Debug)]
pub struct Answering(Arc<Slot>);

impl Slots {
    /// Creates `max` free slots.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, used: Mutex::default(), changed: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, UsedSlots> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot. If none is free, closes the connection that has waited for its client for the longest
    /// time. If answers are being made on all connections, waits for one to finish.
    pub async fn take(self: &Arc<Self>) -> Slot {
        loop {
            if let Some(slot) = self.try_take(Instant::now()) {
                return slot;
            }
            self.changed.notified().await;
        }
    }

    fn try_take(self: &Arc<Self>, now: Instant) -> Option<Slot> {
        let mut used = self.lock();
        if used.by_number.len() >= self.max {
            let waiting = used.by_number.iter().filter(|(_, state)| !state.is_answering);
            let (&oldest, _) = waiting.min_by_key(|(_, state)| state.since)?;
            used.by_number.remove(&oldest)?.close.notify_one();
        }
        let (number, close) = (used.next, Arc::<Notify>::default());
        used.next += 1;
        let state = State { since: now, is_answering: false, close: Arc::clone(&close) };
        used.by_number.insert(number, state);
        Some(Slot { number, slots: Arc::clone(self), close })
    }
}

impl Slot {
    /// Completes when another connection has taken the slot.
    pub async fn closed(&self) {
        self.close.notified().await;
    }

    /// Keeps the connection from being closed until the returned value is dropped.
    pub fn answering(self: &Arc<Self>) -> Answering {
        self.set(true);
        Answering(Arc::clone(self))
    }

    fn set(&self, is_answering: bool) {
        if let Some(state) = self.slots.lock().by_number.get_mut(&self.number) {
            (state.is_answering, state.since) = (is_answering, Instant::now());
        }
        self.slots.changed.notify_one();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.lock().by_number.remove(&self.number);
        self.slots.changed.notify_one();
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn oldest_unanswered_connection_loses_its_slot_when_full() {
        let slots = Slots::new(2);
        let now = Instant::now();
        let first = Arc::new(slots.try_take(now).unwrap());
        let second = Arc::new(slots.try_take(now + Duration::from_secs(1)).unwrap());
        let numbers = || slots.lock().by_number.keys().copied().collect::<Vec<_>>();
        let answering = first.answering();
        let third = slots.try_take(now + Duration::from_secs(2)).unwrap();
        assert_eq!(numbers(), [first.number, third.number]);
        // Dropping `second` frees no slot, because `third` has taken its slot.
        drop(second);
        assert_eq!(numbers(), [first.number, third.number]);
        let third = Arc::new(third);
        let other = third.answering();
        assert!(slots.try_take(now + Duration::from_secs(3)).is_none());
        drop(answering);
        assert!(slots.try_take(now + Duration::from_secs(4)).is_some());
        drop((other, third));
        assert!(numbers().len() < 2);
    }
}

//! Idle timeout: releases per-file resources ten seconds after their last user has gone.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    time::{Duration, Instant},
};

/// Time for which resources of an unused file are kept. Short programs often run one after another, so the next user
/// tends to come soon.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time at which each unused file lost its last user.
#[derive(Debug)]
pub struct Idle<F>(HashMap<F, Instant>);

impl<F> Default for Idle<F> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<F: Clone + Eq + Hash> Idle<F> {
    /// Removes from `held` the resources of files that have been missing in `used` for ten seconds, and
    /// returns these resources.
    pub fn release<T>(
        &mut self,
        held: &mut HashMap<F, T>,
        used: impl IntoIterator<Item = F>,
        now: Instant,
    ) -> Vec<T> {
        if held.is_empty() {
            return Vec::new();
        }
        let used: HashSet<_> = used.into_iter().collect();
        self.0.retain(|file, _| !used.contains(file));
        let released = held.extract_if(|file, _| {
            !used.contains(file) && now >= *self.0.entry(file.clone()).or_insert(now) + IDLE_TIMEOUT
        });
        let released = released.map(|(_, what)| what).collect();
        self.0.retain(|file, _| held.contains_key(file));
        released
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_drops_files_unused_for_ten_seconds() {
        let (a, b) = ("a", "b");
        let mut attached = HashMap::from([(a, ()), (b, ())]);
        let mut idle = Idle::default();
        let begin = Instant::now();
        idle.release(&mut attached, [a, b], begin);
        idle.release(&mut attached, [a], begin);
        assert_eq!(attached.len(), 2);
        // `b` is used again in between.
        idle.release(&mut attached, [a, b], begin + IDLE_TIMEOUT / 2);
        idle.release(&mut attached, [a], begin + IDLE_TIMEOUT);
        assert_eq!(attached.len(), 2);
        assert_eq!(idle.release(&mut attached, [a], begin + IDLE_TIMEOUT * 2), [()]);
        assert_eq!(attached.keys().collect::<Vec<_>>(), [&a]);
        assert!(idle.0.is_empty());
    }
}

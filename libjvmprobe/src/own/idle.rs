//! What is held for files, and needed no more: let go after a while.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    time::{Duration, Instant},
};

/// The next process with a file often comes soon after the last: short programs, one after the
/// other.
const KEPT: Duration = Duration::from_secs(10);

/// Since when a file is not used.
#[derive(Debug)]
pub struct Idle<F>(HashMap<F, Instant>);

impl<F> Default for Idle<F> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<F: Copy + Eq + Hash> Idle<F> {
    /// Takes out what is held for files that were not used for ten seconds.
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
        let released = held.extract_if(|&file, _| {
            !used.contains(&file) && now >= *self.0.entry(file).or_insert(now) + KEPT
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
    fn what_is_not_used_is_let_go_after_a_while() {
        let (a, b) = ("a", "b");
        let mut attached = HashMap::from([(a, ()), (b, ())]);
        let mut idle = Idle::default();
        let begin = Instant::now();
        idle.release(&mut attached, [a, b], begin);
        idle.release(&mut attached, [a], begin);
        assert_eq!(attached.len(), 2);
        // Used again in between.
        idle.release(&mut attached, [a, b], begin + KEPT / 2);
        idle.release(&mut attached, [a], begin + KEPT);
        assert_eq!(attached.len(), 2);
        assert_eq!(idle.release(&mut attached, [a], begin + KEPT * 2), [()]);
        assert_eq!(attached.keys().collect::<Vec<_>>(), [&a]);
        assert!(idle.0.is_empty());
    }
}

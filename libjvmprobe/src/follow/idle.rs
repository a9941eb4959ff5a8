//! Attachments to files that no JVM runs any more.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    time::{Duration, Instant},
};

/// The next JVM of a file often comes soon after the last: short programs, one after the other.
const KEPT: Duration = Duration::from_secs(10);

/// Since when no JVM runs a file.
#[derive(Debug)]
pub struct Idle<F>(HashMap<F, Instant>);

impl<F> Default for Idle<F> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<F: Copy + Eq + Hash> Idle<F> {
    /// Lets go of what is attached to files that no JVM has run for ten seconds.
    pub fn release<T>(
        &mut self,
        attached: &mut HashMap<F, T>,
        used: impl IntoIterator<Item = F>,
        now: Instant,
    ) {
        if attached.is_empty() {
            return;
        }
        let used: HashSet<_> = used.into_iter().collect();
        self.0.retain(|file, _| !used.contains(file));
        attached.retain(|&file, _| {
            used.contains(&file) || now < *self.0.entry(file).or_insert(now) + KEPT
        });
        self.0.retain(|file, _| attached.contains_key(file));
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
        idle.release(&mut attached, [a], begin + KEPT * 2);
        assert_eq!(attached.keys().collect::<Vec<_>>(), [&a]);
        assert!(idle.0.is_empty());
    }
}

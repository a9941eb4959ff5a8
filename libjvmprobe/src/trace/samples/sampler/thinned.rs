//! Quantities of thinned events that have not become part of a sample.

use std::collections::HashMap;

use super::Samples;
use crate::trace::samples::session::{Count, NOT_WALKED, SampleKey};

/// Distributes `rest` over the samples of the same event and label, in proportion to their values, because these
/// samples are a random choice of all events. If there are no such samples, the quantity stays without a stack.
pub(crate) fn distribute(samples: &mut Samples, rest: Vec<(SampleKey, Count)>) {
    let mut alike: HashMap<(u32, u64), Vec<&mut Count>> = HashMap::new();
    for (key, count) in samples.iter_mut().filter(|(key, _)| key.user != NOT_WALKED) {
        alike.entry((key.event, key.label)).or_default().push(count);
    }
    let mut alone = Vec::new();
    for (key, Count { samples, value }) in rest {
        let Some(counts) = alike.get_mut(&(key.event, key.label)) else {
            alone.push((key, Count { samples, value }));
            continue;
        };
        let all: u128 = counts.iter().map(|count| u128::from(count.value)).sum();
        let mut left = value;
        for count in counts.iter_mut() {
            let share = u128::from(value) * u128::from(count.value) / all.max(1);
            let share = u64::try_from(share).unwrap_or(u64::MAX).min(left);
            count.value = count.value.saturating_add(share);
            left -= share;
        }
        // The remainder of the division goes to the first sample.
        if let Some(first) = counts.first_mut() {
            first.value = first.value.saturating_add(left);
        }
    }
    for (key, count) in alone {
        *samples.entry(key).or_default() += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_preserves_the_sum_and_the_proportions() {
        let key = |user, label| SampleKey { user, label, ..SampleKey::of(7) };
        let count = |value| Count { samples: 1, value };
        let mut samples =
            Samples::from([(key(1, 5), count(60)), (key(3, 5), count(30)), (key(1, 9), count(8))]);
        let rest = |label, value| (key(NOT_WALKED, label), Count { samples: 0, value });
        distribute(&mut samples, vec![rest(5, 31), rest(6, 2)]);
        let value = |user, label| samples[&key(user, label)].value;
        assert_eq!(value(1, 5) + value(3, 5), 121);
        assert!((80..=82).contains(&value(1, 5)), "{}", value(1, 5));
        assert_eq!((value(1, 9), value(NOT_WALKED, 6)), (8, 2));
    }
}

//! Splits the allocations of a class among its stacks.
//!
//! Reading TLABs shows how much a class allocates, but not from where, because objects in the heap have no
//! stack. The objects that begin TLABs were sampled with their stacks. These objects are assigned to their
//! stacks, and the class's other bytes in TLABs are split in proportion to the bytes that these objects
//! represent. Each object outside of TLABs was recorded with its own stack, and is added unchanged. The bytes
//! of the parts sum up to the class's bytes exactly; rounding neither adds nor drops any. A part whose bytes
//! are rounded to 0 is omitted with its objects.

use std::collections::HashMap;

use crate::trace::allocations::{
    stacks::{StackId, UNSAMPLED},
    tally::{Allocated, Count},
};

/// Allocations of a class from one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackShare {
    /// The stack.
    pub stack: StackId,
    /// Bytes.
    pub bytes: u64,
    /// Objects.
    pub objects: u64,
}

/// Returns the parts of a class, largest first. If no object of the class was sampled at the begin of a TLAB,
/// the bytes of the class in TLABs go to [`UNSAMPLED`].
pub(crate) fn split(class: &Allocated, counts: &HashMap<StackId, Count>) -> Vec<StackShare> {
    let mut counts: Vec<_> = counts.iter().collect();
    // A fixed order keeps the rounding the same from one table to the next.
    counts.sort_unstable_by_key(|(stack, _)| **stack);
    let outside_bytes: Vec<_> = counts.iter().map(|(_, count)| count.outside_bytes).collect();
    let outside: Vec<_> = counts.iter().map(|(_, count)| count.outside).collect();
    let outside_bytes = at_most(class.rounded_bytes(), outside_bytes);
    let outside = at_most(class.rounded_objects(), outside);
    let bytes = class.rounded_bytes().saturating_sub(outside_bytes.iter().sum());
    let objects = class.rounded_objects().saturating_sub(outside.iter().sum());

    let by_bytes = weights(bytes, counts.iter().map(|(_, count)| count.tlab_bytes()));
    let by_objects = weights(objects, counts.iter().map(|(_, count)| count.tlab_objects()));
    let has_samples = by_bytes.iter().any(|&weight| weight > 0.0);
    let (bytes_of, objects_of) = (apportion(bytes, &by_bytes), apportion(objects, &by_objects));
    let mut parts: Vec<_> = counts
        .iter()
        .zip(bytes_of.into_iter().zip(objects_of))
        .zip(outside_bytes.into_iter().zip(outside))
        .map(|(((stack, _), (bytes, objects)), (outside_bytes, outside))| StackShare {
            stack: **stack,
            bytes: bytes + outside_bytes,
            objects: objects + outside,
        })
        .filter(|part| part.bytes > 0)
        .collect();
    if !has_samples && bytes > 0 {
        parts.push(StackShare { stack: UNSAMPLED, bytes, objects });
    }
    parts.sort_by_key(|part| (std::cmp::Reverse(part.bytes), part.stack));
    parts
}

/// Returns the weights by which stacks share `total`. Each part consists of what is known, and of the estimate of the
/// rest, which is scaled to add up to `total`.
fn weights(total: u64, parts: impl Iterator<Item = (f64, f64)> + Clone) -> Vec<f64> {
    let known: f64 = parts.clone().map(|(known, _)| known).sum();
    let estimated: f64 = parts.clone().map(|(_, estimated)| estimated).sum();
    let scale = if estimated > 0.0 { (total as f64 - known).max(0.0) / estimated } else { 0.0 };
    parts.map(|(known, estimated)| known + estimated * scale).collect()
}

/// Returns the counts, scaled down to sum up to `max` if their sum is larger.
fn at_most(max: u64, counts: Vec<u64>) -> Vec<u64> {
    if counts.iter().sum::<u64>() <= max {
        return counts;
    }
    apportion(max, &counts.iter().map(|&count| count as f64).collect::<Vec<_>>())
}

/// Returns whole numbers that are proportional to `weights` and sum up to `total`. All of them are 0 if the
/// sum of the weights is 0.
pub(crate) fn apportion(total: u64, weights: &[f64]) -> Vec<u64> {
    let sum: f64 = weights.iter().sum();
    let (mut so_far, mut given) = (0.0, 0);
    let part = |weight: &f64| {
        so_far += weight;
        let edge = if sum > 0.0 { (total as f64 * (so_far / sum)).round() as u64 } else { 0 };
        let part = edge.clamp(given, total) - given;
        given += part;
        part
    };
    weights.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trace::allocations::tally::Key;

    fn class(bytes: f64, objects: f64) -> Allocated {
        let key = Key { class: "A".into(), tid: 0 };
        Allocated { key, bytes, objects, count: Count::default() }
    }

    fn sampled(bytes: u64, objects: f64) -> Count {
        Count {
            samples: 1,
            bytes,
            first_objects: objects,
            first_bytes: bytes as f64,
            ..Count::default()
        }
    }

    fn share((stack, bytes, objects): (StackId, u64, u64)) -> StackShare {
        StackShare { stack, bytes, objects }
    }

    fn outside(bytes: u64) -> Count {
        Count { outside: 1, outside_bytes: bytes, ..Count::default() }
    }

    #[test]
    fn tlab_bytes_are_split_in_proportion_to_samples() {
        let counts = HashMap::from([(7, sampled(300, 30.0)), (8, sampled(100, 10.0))]);
        let parts = split(&class(1000.0, 50.0), &counts);
        let expected = [(7, 750, 38), (8, 250, 12)];
        assert_eq!(parts, expected.map(share));
    }

    #[test]
    fn objects_that_began_tlabs_stay_with_their_stack() {
        let count = |first_bytes, other_bytes| Count {
            samples: 1,
            first_objects: 1.0,
            first_bytes,
            other_objects: other_bytes / 10.0,
            other_bytes,
            ..Count::default()
        };
        let counts = HashMap::from([(7, count(800.0, 0.0)), (8, count(10.0, 400.0))]);
        let parts = split(&class(1010.0, 22.0), &counts);
        let expected = [(7, 800, 1), (8, 210, 21)];
        assert_eq!(parts, expected.map(share));
    }

    #[test]
    fn bytes_outside_tlabs_stay_with_their_stack() {
        let counts = HashMap::from([(7, sampled(300, 3.0)), (8, outside(5000))]);
        let parts = split(&class(5900.0, 10.0), &counts);
        let expected = [(8, 5000, 1), (7, 900, 9)];
        assert_eq!(parts, expected.map(share));
    }

    #[test]
    fn bytes_without_samples_are_unsampled() {
        let part = StackShare { stack: UNSAMPLED, bytes: 64, objects: 4 };
        assert_eq!(split(&class(64.0, 4.0), &HashMap::new()), [part]);
        let parts = split(&class(80.0, 5.0), &HashMap::from([(8, outside(16))]));
        assert_eq!(parts, [part, StackShare { stack: 8, bytes: 16, objects: 1 }]);
    }

    #[test]
    fn exact_counts_are_not_redistributed() {
        let exact = |samples, bytes| Count { samples, bytes, ..Count::default() };
        let counts = HashMap::from([(7, exact(3, 72)), (8, exact(1, 40))]);
        let parts = split(&class(112.0, 4.0), &counts);
        let expected = [(7, 72, 3), (8, 40, 1)];
        assert_eq!(parts, expected.map(share));
    }

    proptest! {
        #[test]
        fn parts_sum_to_the_bytes_of_the_class(
            bytes in 0_u64..1 << 50,
            objects in 0_u64..1 << 40,
            weights in prop::collection::vec((0_u64..1 << 40, 0_u64..1 << 20), 0..50),
        ) {
            let count = |&(weight, outside): &(u64, u64)| Count {
                outside: u64::from(outside > 0),
                outside_bytes: outside,
                ..sampled(weight, weight as f64 / 24.0)
            };
            let counts: HashMap<_, _> = (3..).zip(weights.iter().map(count)).collect();
            let outside_bytes: u64 = counts.values().map(|c| c.outside_bytes).sum();
            let outside: u64 = counts.values().map(|c| c.outside).sum();
            let bytes = bytes + outside_bytes;
            let parts = split(&class(bytes as f64, (objects + outside) as f64), &counts);
            prop_assert_eq!(parts.iter().map(|p| p.bytes).sum::<u64>(), bytes);
        }

        #[test]
        fn parts_of_exact_counts_equal_the_counts(bytes in prop::collection::vec(1_u64..1 << 40, 1..50)) {
            let exact = |&bytes: &u64| Count { samples: bytes, bytes, ..Count::default() };
            let counts: HashMap<_, _> = (3..).zip(bytes.iter().map(exact)).collect();
            let sum = bytes.iter().sum::<u64>() as f64;
            for part in split(&class(sum, sum), &counts) {
                prop_assert_eq!(part.bytes, counts[&part.stack].bytes);
                prop_assert_eq!(part.objects, counts[&part.stack].bytes);
            }
        }
    }
}

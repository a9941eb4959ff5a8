//! Finds deadlocks: cycles of threads that each wait for a lock of the next one.

use std::{
    collections::{BTreeMap, HashSet},
    hash::Hash,
};

/// Returns the cycles in `waits`, which contains for each waiting thread the owner of the lock that it waits
/// for. A cycle is a deadlock only if all its entries were true at the same time. Each cycle begins with the
/// thread that has the lowest value. Each thread waits for the next one, and the last one for the first.
pub(super) fn cycles<T: Copy + Ord + Hash>(waits: &BTreeMap<T, T>) -> Vec<Vec<T>> {
    let (mut visited, mut cycles) = (HashSet::new(), Vec::new());
    for &start in waits.keys() {
        // Each thread waits for at most one lock, so a path has no branches.
        let (mut path, mut thread) = (Vec::new(), start);
        while visited.insert(thread) {
            path.push(thread);
            match waits.get(&thread) {
                Some(&owner) => thread = owner,
                None => break,
            }
        }
        let begin = path.iter().position(|&member| member == thread);
        if let Some(begin) = begin.filter(|_| waits.contains_key(&thread)) {
            let mut cycle = path.split_off(begin);
            let lowest = (0..cycle.len()).min_by_key(|&at| cycle.get(at).copied());
            cycle.rotate_left(lowest.unwrap_or(0));
            cycles.push(cycle);
        }
    }
    cycles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cycle_is_found_once_without_the_threads_that_wait_for_it() {
        let waits = [(9, 7), (7, 2), (2, 7), (3, 2), (5, 5), (6, 1)].into();
        assert_eq!(cycles(&waits), [vec![2, 7], vec![5]]);
        let waits = [(4, 8), (8, 6), (6, 4)].into();
        assert_eq!(cycles(&waits), [[4, 8, 6]]);
        assert!(cycles::<u32>(&[(1, 2), (2, 3)].into()).is_empty());
    }
}

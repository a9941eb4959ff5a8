//! Hash maps keyed by numbers from a target, mostly addresses.
//!
//! The standard hasher would take more time than all other work on such a key, and there are
//! millions of keys. This hasher has random seeds, so a target cannot choose keys that collide.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;

/// A map keyed by numbers.
pub(super) type NumberMap<K, V> = HashMap<K, V, RandomState>;
/// A set of numbers.
pub(super) type NumberSet<K> = HashSet<K, RandomState>;

//! Results of searches for symbols, shared by all users of a file.
//!
//! The registry and each tracer search a libjvm.so for symbols. The cache belongs to the process's `LibJvm`, so that each
//! search is made once for all of them. If the symbols come from a file in the root of the process, processes with the same
//! file share it.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{
    Vaddr,
    elf::symbols::Symbol,
    sys::{
        budget::{Reservation, Share},
        reading_cost, thread_cpu_time,
    },
};

/// Maximum number of results kept. The tools search for about 100 names.
const MAX_RESULTS: usize = 1000;

/// A search.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// For a name that begins with this text.
    Name { is_dynamic: bool, text: Box<str> },
    /// For a name with this prefix at an address.
    At { address: u64, prefix: Box<str> },
}

impl Key {
    pub(super) fn name(is_dynamic: bool, text: &str) -> Self {
        Self::Name { is_dynamic, text: text.into() }
    }

    pub(super) fn at(address: Vaddr, prefix: &str) -> Self {
        Self::At { address: address.0, prefix: prefix.into() }
    }

    fn text(&self) -> &str {
        match self {
            Self::Name { text, .. } => text,
            Self::At { prefix, .. } => prefix,
        }
    }
}

/// Results of searches.
#[derive(Debug, Default)]
pub(crate) struct Lookups(Mutex<Results>);

#[derive(Debug, Default)]
struct Results {
    found: HashMap<Key, Option<Symbol>>,
    reserved: Reservation,
}

impl Results {
    /// Caches a result, unless the tenant's share of memory is used up.
    fn insert(&mut self, key: Key, symbol: Option<Symbol>) {
        if self.found.len() >= MAX_RESULTS {
            self.found.clear();
            self.reserved.release();
        }
        let name = symbol.as_ref().map_or(0, |symbol| symbol.name.len());
        if self.reserved.reserve(size_of::<(Key, Symbol)>() + key.text().len() + name) {
            self.found.insert(key, symbol);
        }
    }
}

impl Lookups {
    /// Makes an empty cache whose memory is reserved in this share.
    pub(crate) fn within(share: &Share) -> Self {
        let reserved = Reservation::within(share);
        Self(Mutex::new(Results { found: HashMap::new(), reserved }))
    }

    /// Returns a result, from the cache or by a search.
    pub(super) fn get_or_search(
        &self,
        key: Key,
        share: &Share,
        search: impl FnOnce() -> Option<Symbol>,
    ) -> Option<Symbol> {
        self.get_or_search_all(&[key], share, |_| vec![search()]).pop().flatten()
    }

    /// Returns the results for these keys. `search` gets the indices of the keys that are not in the cache, and returns
    /// their results. The tenant is charged for the CPU time that the search takes.
    pub(super) fn get_or_search_all(
        &self,
        keys: &[Key],
        share: &Share,
        search: impl FnOnce(&[usize]) -> Vec<Option<Symbol>>,
    ) -> Vec<Option<Symbol>> {
        let cached: Vec<_> = {
            let results = self.lock();
            keys.iter().map(|key| results.found.get(key).cloned()).collect()
        };
        let is_missing = |&i: &usize| cached[i].is_none();
        let missing: Vec<_> = (0..keys.len()).filter(is_missing).collect();
        let mut all: Vec<_> = cached.into_iter().map(Option::flatten).collect();
        if missing.is_empty() {
            return all;
        }
        let begin = thread_cpu_time();
        let found = search(&missing);
        reading_cost::charge(share.tenant(), thread_cpu_time().saturating_sub(begin));
        let mut results = self.lock();
        for (i, symbol) in missing.into_iter().zip(found) {
            all[i].clone_from(&symbol);
            results.insert(keys[i].clone(), symbol);
        }
        all
    }

    fn lock(&self) -> MutexGuard<'_, Results> {
        // Each insertion is one step, so the map is consistent even after a panic in another thread.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::budget::Budget;

    #[test]
    fn each_search_is_made_once() {
        let lookups = Lookups::default();
        let keys = ["a", "b", "c"].map(|text| Key::name(false, text));
        let symbol = |name: &str| Some(Symbol { name: name.into(), value: Vaddr(1), size: 0 });
        let share = Share::default();
        let first = lookups.get_or_search_all(&keys[..2], &share, |missing| {
            assert_eq!(missing, [0, 1]);
            vec![symbol("abc"), None]
        });
        assert_eq!(first, [symbol("abc"), None]);
        let second = lookups.get_or_search_all(&keys, &share, |missing| {
            assert_eq!(missing, [2]);
            vec![symbol("c")]
        });
        assert_eq!(second, [symbol("abc"), None, symbol("c")]);
        let cached = lookups.get_or_search(Key::name(false, "c"), &share, || unreachable!());
        assert_eq!(cached, symbol("c"));
        assert_eq!(lookups.get_or_search(Key::name(true, "c"), &share, || None), None);
    }

    #[test]
    fn results_beyond_the_share_of_memory_are_not_kept() {
        let budget = Budget::of(10_000);
        let lookups = Lookups::within(&budget.share(&"t".into()));
        for i in 0..200 {
            lookups.get_or_search(Key::name(false, &i.to_string()), &Share::default(), || None);
        }
        let kept = lookups.lock().found.len();
        assert!((1..100).contains(&kept) && budget.held() <= 5000, "{kept}");
        drop(lookups);
        assert_eq!(budget.held(), 0);
    }
}

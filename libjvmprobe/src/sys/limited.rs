//! Detail that a tenant did not get because it exceeded its share, or because its files, threads or memory exceed a
//! limit. All code that drops such detail counts it here; the daemon publishes the counts as
//! `jvmprobed_limited_total{reason,tenant}` and logs them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Maximum number of pairs of reason and tenant between two calls of [`take`]. Further tenants are counted as
/// [`OTHERS`].
const MAX_PAIRS: usize = 1000;
/// Name under which tenants beyond [`MAX_PAIRS`] are counted.
const OTHERS: &str = "other";

/// Number of dropped items, by reason and tenant.
pub type Counts = BTreeMap<(&'static str, Arc<str>), u64>;

static COUNTS: Mutex<Counts> = Mutex::new(BTreeMap::new());

/// Counts detail that a tenant did not get. `reason` names the kind of detail or the limited resource in one word, as
/// the metric's label shows it.
pub fn add(reason: &'static str, tenant: &Arc<str>, count: u64) {
    if count > 0 {
        add_to(&mut COUNTS.lock().unwrap_or_else(PoisonError::into_inner), reason, tenant, count);
    }
}

/// Returns the counts since the last call.
pub fn take() -> Counts {
    std::mem::take(&mut COUNTS.lock().unwrap_or_else(PoisonError::into_inner))
}

fn add_to(counts: &mut Counts, reason: &'static str, tenant: &Arc<str>, count: u64) {
    let mut key = (reason, Arc::clone(tenant));
    if counts.len() >= MAX_PAIRS && !counts.contains_key(&key) {
        key.1 = OTHERS.into();
    }
    let sum = counts.entry(key).or_default();
    *sum = sum.saturating_add(count);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_beyond_the_limit_are_counted_together() {
        let mut counts = Counts::new();
        for number in 0..MAX_PAIRS + 10 {
            add_to(&mut counts, "symbols", &format!("pod/{number}").into(), 2);
        }
        add_to(&mut counts, "symbols", &"pod/0".into(), 1);
        assert_eq!(counts.len(), MAX_PAIRS + 1);
        assert_eq!(counts[&("symbols", OTHERS.into())], 20);
        assert_eq!(counts[&("symbols", "pod/0".into())], 3);
    }
}

//! Time that files and memory of each tenant's processes take to read.
//!
//! A process determines how long it takes to read: it may have a file with a million symbols, and start again every
//! second. So a tenant whose processes take long to read has to wait: on average, at most one eleventh of the time is
//! spent on reading them, and about as much on all such tenants together. The registry reads further processes of the tenant
//! later. Other tenants are not affected.
//!
//! Reads of ordinary JVMs are fast, and the wait begins only after [`ALLOWANCE`].

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// After a slow or failed read, nothing is read for this many times the duration of the read, times the number of tenants that
/// wait.
pub(crate) const PAUSE_FACTOR: u32 = 10;
/// Time that a tenant may use without a wait.
const ALLOWANCE: Duration = Duration::from_secs(1);
/// Maximum time that one read adds to the wait.
const MAX_PAUSE: Duration = Duration::from_secs(3600);
/// Maximum number of tenants that are recorded. Beyond it, the one that has used the least time is dropped.
const MAX_TENANTS: usize = 10_000;

static COSTS: Mutex<Option<Costs>> = Mutex::new(None);

/// Charges a tenant for time that was spent on its files or processes.
pub(crate) fn charge(tenant: &Arc<str>, took: Duration) {
    with(|costs| costs.charge(tenant, took, Instant::now()));
}

/// Returns the time until which nothing further of a tenant is to be read; `None` if it need not wait.
pub(crate) fn wait_until(tenant: &str) -> Option<Instant> {
    with(|costs| costs.wait_until(tenant, Instant::now()))
}

fn with<T>(act: impl FnOnce(&mut Costs) -> T) -> T {
    // Each change is complete before the lock is released, even if another thread panics.
    act(COSTS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// For each tenant, the time at which it will have paid for all reads: [`PAUSE_FACTOR`] times their durations.
/// Code that must not delay other reads of the tenant has its own.
#[derive(Debug, Default)]
pub(crate) struct Costs(HashMap<Arc<str>, Instant>);

impl Costs {
    pub(crate) fn charge(&mut self, tenant: &Arc<str>, took: Duration, now: Instant) {
        if self.0.len() >= MAX_TENANTS && !self.0.contains_key(tenant) {
            self.0.retain(|_, paid| *paid > now);
            if self.0.len() >= MAX_TENANTS {
                let first = self.0.iter().min_by_key(|(_, paid)| **paid);
                let first = first.map(|(tenant, _)| Arc::clone(tenant));
                first.map(|tenant| self.0.remove(&tenant));
            }
        }
        let waiting = self.0.keys().filter(|tenant| self.wait_until(tenant, now).is_some()).count();
        let waiting = u32::try_from(waiting).unwrap_or(u32::MAX).max(1);
        let paid = self.0.entry(Arc::clone(tenant)).or_insert(now);
        *paid = (*paid).max(now) + (took * PAUSE_FACTOR).saturating_mul(waiting).min(MAX_PAUSE);
    }

    pub(crate) fn wait_until(&self, tenant: &str, now: Instant) -> Option<Instant> {
        let until = self.0.get(tenant)?.checked_sub(ALLOWANCE * PAUSE_FACTOR)?;
        (until > now).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_waits_ten_times_as_long_as_its_reads_took() {
        let (mut costs, now) = (Costs::default(), Instant::now());
        let [slow, quick] = ["slow", "quick"].map(Arc::from);
        for _ in 0..10 {
            assert_eq!(costs.wait_until("slow", now), None);
            costs.charge(&slow, ALLOWANCE / 10, now);
            costs.charge(&quick, ALLOWANCE / 1000, now);
        }
        costs.charge(&slow, Duration::from_secs(1), now);
        assert_eq!(costs.wait_until("slow", now), Some(now + Duration::from_secs(10)));
        assert_eq!(costs.wait_until("slow", now + Duration::from_secs(10)), None);
        assert_eq!(costs.wait_until("quick", now), None);
        // At most one eleventh of the time is spent, however often the tenant starts a process.
        let (mut at, mut spent) = (now, Duration::ZERO);
        while at < now + Duration::from_secs(1000) {
            match costs.wait_until("slow", at) {
                Some(until) => at = until,
                None => {
                    costs.charge(&slow, Duration::from_millis(300), at);
                    spent += Duration::from_millis(300);
                    at += Duration::from_millis(300);
                }
            }
        }
        assert!(spent < Duration::from_secs(1000 / 10 + 2), "{spent:?}");
    }

    #[test]
    fn many_slow_tenants_together_take_a_tenth_of_the_time() {
        let (mut costs, mut now) = (Costs::default(), Instant::now());
        let tenants: Vec<Arc<str>> = (0..20).map(|n| n.to_string().into()).collect();
        let (begin, mut spent) = (now, vec![Duration::ZERO; tenants.len()]);
        while now < begin + Duration::from_secs(10_000) {
            let ready = |n: &usize| costs.wait_until(&tenants[*n], now).is_none();
            let took = Duration::from_millis(300);
            if let Some(n) = (0..tenants.len()).filter(ready).min_by_key(|&n| spent[n]) {
                costs.charge(&tenants[n], took, now);
                spent[n] += took;
            }
            now += took;
        }
        let all: Duration = spent.iter().sum();
        assert!((0.05..0.12).contains(&(all.as_secs_f64() / 10_000.0)), "{all:?}");
        let (least, most) = (spent.iter().min().unwrap(), spent.iter().max().unwrap());
        assert!(*most < *least * 2, "{spent:?}");
    }

    #[test]
    fn number_of_tenants_is_limited() {
        let (mut costs, now) = (Costs::default(), Instant::now());
        costs.charge(&"slow".into(), Duration::from_secs(9), now);
        for i in 0..MAX_TENANTS + 10 {
            costs.charge(&format!("{i}").into(), Duration::from_millis(1), now);
        }
        assert_eq!(costs.0.len(), MAX_TENANTS);
        assert!(costs.wait_until("slow", now).is_some());
    }
}

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

/// After a slow or failed read, nothing is read for this many times the duration of the read.
pub(crate) const PAUSE_FACTOR: u32 = 10;
/// Time that a tenant may use without a wait.
const ALLOWANCE: Duration = Duration::from_secs(1);
/// Time that all tenants together may use before the wait of those that take long is multiplied by their number.
const ALLOWANCE_OF_ALL: Duration = Duration::from_secs(20);
/// Maximum time that this adds to a wait for each read.
const MAX_PAUSE: Duration = Duration::from_secs(3600);
/// Time from which on a tenant counts as one that takes long to read.
const QUICK: Duration = Duration::from_millis(200);
/// Time for which a tenant that has paid still counts as such.
const SLOW_TIME: Duration = Duration::from_secs(60);
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

/// Costs of each tenant, and of all. Code that must not delay other reads of the tenant has its own.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    tenants: HashMap<Arc<str>, Cost>,
    /// Time at which all reads of all tenants will be paid for.
    all_paid: Option<Instant>,
}

/// Cost of one tenant.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// Time at which it will have paid for all reads.
    paid: Instant,
    /// Time until which it counts as a tenant that takes long to read.
    slow_until: Option<Instant>,
}

impl Costs {
    pub(crate) fn charge(&mut self, tenant: &Arc<str>, took: Duration, now: Instant) {
        if self.tenants.len() >= MAX_TENANTS && !self.tenants.contains_key(tenant) {
            self.tenants.retain(|_, cost| cost.paid > now);
            if self.tenants.len() >= MAX_TENANTS {
                let first = self.tenants.iter().min_by_key(|(_, cost)| cost.paid);
                let first = first.map(|(tenant, _)| Arc::clone(tenant));
                first.map(|tenant| self.tenants.remove(&tenant));
            }
        }
        let pause = took * PAUSE_FACTOR;
        let is_exceeded =
            self.all_paid.is_some_and(|paid| paid > now + ALLOWANCE_OF_ALL * PAUSE_FACTOR);
        self.all_paid = Some(self.all_paid.map_or(now, |paid| paid.max(now)) + pause);
        let is_slow = |cost: &&Cost| cost.slow_until.is_some_and(|until| until > now);
        let slow = match is_exceeded {
            true => {
                u32::try_from(self.tenants.values().filter(is_slow).count()).unwrap_or(1).max(1)
            }
            false => 1,
        };
        let unpaid = Cost { paid: now, slow_until: None };
        let cost = self.tenants.entry(Arc::clone(tenant)).or_insert(unpaid);
        cost.paid = cost.paid.max(now) + pause;
        if cost.paid > now + QUICK * PAUSE_FACTOR {
            cost.paid += (pause.saturating_mul(slow) - pause).min(MAX_PAUSE);
            cost.slow_until = Some(cost.paid + SLOW_TIME);
        }
    }

    pub(crate) fn wait_until(&self, tenant: &str, now: Instant) -> Option<Instant> {
        let until = self.tenants.get(tenant)?.paid.checked_sub(ALLOWANCE * PAUSE_FACTOR)?;
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
        assert!((0.08..0.11).contains(&(all.as_secs_f64() / 10_000.0)), "{all:?}");
        let (least, most) = (spent.iter().min().unwrap(), spent.iter().max().unwrap());
        assert!(*most < *least * 2, "{spent:?}");
        // A tenant whose JVMs are read quickly does not wait.
        for _ in 0..3 {
            costs.charge(&"quick".into(), Duration::from_millis(30), now);
            assert_eq!(costs.wait_until("quick", now), None);
        }
    }

    #[test]
    fn number_of_tenants_is_limited() {
        let (mut costs, now) = (Costs::default(), Instant::now());
        costs.charge(&"slow".into(), Duration::from_secs(9), now);
        for i in 0..MAX_TENANTS + 10 {
            costs.charge(&format!("{i}").into(), Duration::from_millis(1), now);
        }
        assert_eq!(costs.tenants.len(), MAX_TENANTS);
        assert!(costs.wait_until("slow", now).is_some());
    }
}

//! Memory that data of targets may take, shared fairly among tenants.
//!
//! Each table has its own limit, but a hundred JVMs have a hundred tables, and a tenant may start a thousand JVMs.
//! Code whose data grows with a target's files, threads or behavior therefore reserves the estimated memory here first,
//! in the name of the target's tenant ([`tenant_of`](crate::process::cgroup)), and counts what it drops for lack of it
//! ([`limited`](super::limited)). Memory of BPF maps counts, too: the kernel charges it to this process's control group.
//!
//! # The rule
//! 1. All tenants together hold at most `max` bytes.
//! 2. A tenant may take at most half of what the other tenants leave free, so that a tenant that starts later gets
//!    memory at once; or an equal share, if that much is free.
//! 3. A tenant whose request was rejected counts as short of memory for `SHORT_TIME`. In that time, max-min fairness
//!    determines each tenant's share from what the tenants hold and lack, and `Share::excess` tells those above their
//!    share how much to drop.
//!
//! So data that lives as long as its target (unwind tables, mappings) needs an owner that calls `Share::excess`
//! periodically. Data that is held during one operation only (symbol tables, a thread dump) does not.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use super::fair_share;

/// Time for which a tenant whose request was rejected counts as short of memory.
const SHORT_TIME: Duration = Duration::from_secs(30);
/// Number of bytes that data of targets may take in a process that does not call [`set_process_limit`].
const DEFAULT_PROCESS_LIMIT: usize = 512 << 20;

/// Memory, in bytes, that is shared by tenants. Clones share it; the default is unlimited.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Mutex<Pool>>);

#[derive(Debug)]
struct Pool {
    max: usize,
    held: usize,
    tenants: HashMap<Arc<str>, Account>,
}

/// Memory of one tenant.
#[derive(Debug, Default)]
struct Account {
    held: usize,
    /// Number of bytes that the last rejected request asked for, and its time.
    rejected: Option<(usize, Instant)>,
}

impl Account {
    /// Returns the number of bytes that the tenant holds or lacks.
    fn need(&self, now: Instant) -> usize {
        self.held.saturating_add(self.lack(now))
    }

    fn lack(&self, now: Instant) -> usize {
        let is_short = |&(_, at): &(usize, Instant)| now.saturating_duration_since(at) < SHORT_TIME;
        self.rejected.filter(is_short).map_or(0, |(bytes, _)| bytes)
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::of(usize::MAX)
    }
}

impl Budget {
    /// Makes a budget of `max` bytes.
    pub fn of(max: usize) -> Self {
        Self(Arc::new(Mutex::new(Pool { max, held: 0, tenants: HashMap::new() })))
    }

    /// Returns the budget of this process: all data of targets that has no budget of its own.
    pub fn of_process() -> Self {
        static PROCESS: OnceLock<Budget> = OnceLock::new();
        PROCESS.get_or_init(|| Self::of(DEFAULT_PROCESS_LIMIT)).clone()
    }

    /// Returns a tenant's share of the budget.
    pub fn share(&self, tenant: &Arc<str>) -> Share {
        Share { budget: self.clone(), tenant: Arc::clone(tenant) }
    }

    /// Returns the number of bytes that all tenants hold.
    pub fn held(&self) -> usize {
        self.lock().held
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        // Each change is complete before the lock is released, even if another thread panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sets the number of bytes that data of targets may take in this process. Reserved memory stays reserved.
pub fn set_process_limit(max: usize) {
    Budget::of_process().lock().max = max;
}

impl Pool {
    /// Returns the maximum number of bytes that each tenant may hold: infinity if no tenant is short of memory.
    fn fair_share(&self, now: Instant) -> f64 {
        fair_share(self.tenants.values().map(|account| account.need(now) as f64), self.max as f64)
    }

    fn reserve(&mut self, tenant: &Arc<str>, bytes: usize, now: Instant) -> bool {
        // One share is left for a tenant that starts later.
        let is_new = !self.tenants.contains_key(tenant);
        let shares = self.tenants.len() + usize::from(is_new) + 1;
        let account = self.tenants.entry(Arc::clone(tenant)).or_default();
        let left_by_others = self.max.saturating_sub(self.held - account.held);
        let wanted = account.held.saturating_add(bytes);
        let is_granted = wanted <= (left_by_others / 2).max(left_by_others.min(self.max / shares));
        if is_granted {
            account.held += bytes;
            // A smaller grant does not satisfy the tenant's need.
            account.rejected = account.rejected.filter(|&(rejected, _)| rejected > bytes);
            self.held += bytes;
        } else {
            account.rejected = Some((bytes, now));
        }
        is_granted
    }

    fn release(&mut self, tenant: &Arc<str>, bytes: usize, now: Instant) {
        self.held -= bytes;
        if let Some(account) = self.tenants.get_mut(tenant) {
            account.held -= bytes;
        }
        self.tenants.retain(|_, account| account.held > 0 || account.lack(now) > 0);
    }

    fn excess(&self, tenant: &Arc<str>, now: Instant) -> usize {
        let held = self.tenants.get(tenant).map_or(0, |account| account.held);
        let share = self.fair_share(now);
        // A share that is infinite becomes `usize::MAX`.
        held.saturating_sub(share as usize)
    }
}

/// One tenant's share of a budget. The default is unlimited.
#[derive(Clone, Debug)]
pub struct Share {
    budget: Budget,
    tenant: Arc<str>,
}

impl Default for Share {
    fn default() -> Self {
        Budget::default().share(&"".into())
    }
}

impl Share {
    /// Returns the tenant.
    pub(crate) fn tenant(&self) -> &Arc<str> {
        &self.tenant
    }

    /// Returns the number of bytes that the tenant should release, because it holds more than its share and another
    /// tenant is short of memory; 0 if there is no such tenant.
    pub(crate) fn excess(&self) -> usize {
        self.budget.lock().excess(&self.tenant, Instant::now())
    }
}

/// Memory reserved for one table. Returned to the budget when dropped.
#[derive(Debug, Default)]
pub struct Reservation {
    share: Share,
    bytes: usize,
}

impl Reservation {
    /// Makes an empty reservation.
    pub fn within(share: &Share) -> Self {
        Self { share: share.clone(), bytes: 0 }
    }

    /// Reserves `bytes` more. Returns `false` if the budget or the tenant's share does not suffice.
    #[must_use]
    pub fn reserve(&mut self, bytes: usize) -> bool {
        let Share { budget, tenant } = &self.share;
        let is_reserved = budget.lock().reserve(tenant, bytes, Instant::now());
        self.bytes += if is_reserved { bytes } else { 0 };
        is_reserved
    }

    /// Returns the tenant for which memory is reserved.
    pub(crate) fn tenant(&self) -> &Arc<str> {
        &self.share.tenant
    }

    /// Returns the reserved number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the complete reservation to the budget.
    pub(crate) fn release(&mut self) {
        let Share { budget, tenant } = &self.share;
        budget.lock().release(tenant, std::mem::take(&mut self.bytes), Instant::now());
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reservation(budget: &Budget, tenant: &str) -> Reservation {
        Reservation::within(&budget.share(&tenant.into()))
    }

    #[test]
    fn returned_and_dropped_reservations_free_the_budget() {
        let budget = Budget::of(100);
        let mut one = reservation(&budget, "a");
        assert!(one.reserve(50) && one.reserve(0) && !one.reserve(1));
        one.release();
        assert!(one.reserve(40) && reservation(&budget, "b").reserve(30));
        drop(one);
        assert_eq!(budget.held(), 0);
        // The default is unlimited.
        assert!(Reservation::default().reserve(1 << 40));
    }

    #[test]
    fn tenant_holds_half_of_what_others_leave_free_or_an_equal_share() {
        let budget = Budget::of(1000);
        let mut of_a: Vec<_> = (0..200).map(|_| reservation(&budget, "a")).collect();
        assert_eq!(of_a.iter_mut().filter_map(|one| one.reserve(10).then_some(())).count(), 50);
        let mut of_b: Vec<_> = (0..200).map(|_| reservation(&budget, "b")).collect();
        assert_eq!(of_b.iter_mut().filter_map(|one| one.reserve(10).then_some(())).count(), 33);
        assert!(!of_a[199].reserve(1));
        drop(of_b);
        assert!(!of_a[199].reserve(1) && reservation(&budget, "b").reserve(250));
    }

    #[test]
    fn tenants_above_their_share_have_excess_while_another_is_short() {
        let budget = Budget::of(1000);
        let hold = |tenant: &str, bytes| {
            let mut one = reservation(&budget, tenant);
            assert!(one.reserve(bytes), "{tenant}");
            one
        };
        let held = [hold("a", 500), hold("b", 250), hold("c", 125)];
        let excess = |held: &Reservation| held.share.excess();
        assert!(held.iter().all(|one| excess(one) == 0));
        let mut late = reservation(&budget, "d");
        assert!(!late.reserve(200));
        // 200 are needed by d and 125 by c, so 675 are left for a and b, of which b needs only 250.
        assert_eq!(held.each_ref().map(excess), [75, 0, 0]);
        drop(held);
        assert!(late.reserve(200));
    }

    #[test]
    fn a_tenant_alone_has_no_excess_and_accounts_are_removed() {
        let budget = Budget::of(100);
        let mut one = reservation(&budget, "a");
        assert!(one.reserve(50) && !one.reserve(1000));
        assert_eq!(one.share.excess(), 0);
        drop(one);
        let soon = Instant::now() + SHORT_TIME;
        let mut pool = budget.lock();
        pool.release(&"a".into(), 0, soon);
        assert!(pool.tenants.is_empty());
    }
}

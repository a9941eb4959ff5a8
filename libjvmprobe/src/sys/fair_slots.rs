//! Slots of which there is a limited number, shared fairly by tenants.
//!
//! A tenant may take all free slots. If there are none, a tenant takes a slot from the tenant that holds the most, if that
//! tenant keeps at least as many as the other one then has. So the number of slots of each tenant approaches max-min
//! fairness, in whatever order the tenants come and however many they are, and no slot moves to and fro.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    sync::Arc,
};

/// Slots by the key of their holder.
#[derive(Debug)]
pub struct FairSlots<K> {
    max: usize,
    /// Tenant of each holder, and the number of its admission.
    holders: HashMap<K, (Arc<str>, u64)>,
    /// Holders of each tenant, the latest one last. Tenants without slots have no entry.
    tenants: BTreeMap<Arc<str>, BTreeMap<u64, K>>,
    admissions: u64,
}

/// Answer to a request for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission<K> {
    /// The holder has a slot, from this request or an earlier one.
    Granted,
    /// The holder has a slot, which this other holder has lost.
    Replaced(K),
    /// The tenant has its share of the slots already.
    Refused,
}

impl<K: Clone + Eq + Hash> FairSlots<K> {
    /// Makes `max` slots.
    pub fn new(max: usize) -> Self {
        Self { max, holders: HashMap::new(), tenants: BTreeMap::new(), admissions: 0 }
    }

    /// Gives a holder a slot, if its tenant's share allows it.
    pub fn admit(&mut self, key: K, tenant: &Arc<str>) -> Admission<K> {
        if self.contains(&key) {
            return Admission::Granted;
        }
        let mut replaced = None;
        if self.holders.len() >= self.max {
            let own = self.tenants.get(tenant).map_or(0, BTreeMap::len);
            let largest = self.tenants.values().max_by_key(|held| held.len());
            // The latest holder loses its slot, because data of the others covers more time.
            let latest =
                largest.filter(|held| held.len() > own + 1).and_then(BTreeMap::last_key_value);
            let Some(latest) = latest.map(|(_, key)| key.clone()) else {
                return Admission::Refused;
            };
            self.release(&latest);
            replaced = Some(latest);
        }
        self.admissions += 1;
        self.tenants.entry(Arc::clone(tenant)).or_default().insert(self.admissions, key.clone());
        self.holders.insert(key, (Arc::clone(tenant), self.admissions));
        replaced.map_or(Admission::Granted, Admission::Replaced)
    }

    /// Frees the slot of a holder, if it has one. Returns its tenant.
    pub fn release(&mut self, key: &K) -> Option<Arc<str>> {
        let (tenant, admission) = self.holders.remove(key)?;
        if let Some(held) = self.tenants.get_mut(&tenant) {
            held.remove(&admission);
            if held.is_empty() {
                self.tenants.remove(&tenant);
            }
        }
        Some(tenant)
    }

    /// Returns whether a holder has a slot.
    pub fn contains(&self, key: &K) -> bool {
        self.holders.contains_key(key)
    }

    /// Returns whether all slots are taken.
    pub fn is_full(&self) -> bool {
        self.holders.len() >= self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(slots: &mut FairSlots<u32>, tenant: &str, keys: std::ops::Range<u32>) -> usize {
        let admitted = keys.filter(|&key| slots.admit(key, &tenant.into()) != Admission::Refused);
        admitted.count()
    }

    fn held(slots: &FairSlots<u32>, tenant: &str) -> usize {
        slots.tenants.get(tenant).map_or(0, BTreeMap::len)
    }

    #[test]
    fn late_tenant_gets_its_share_from_those_that_hold_more() {
        let mut slots = FairSlots::new(100);
        // A tenant alone may take all slots.
        assert_eq!(admit(&mut slots, "a", 0..200), 100);
        assert_eq!(admit(&mut slots, "late", 1000..1200), 50);
        assert_eq!((held(&slots, "a"), held(&slots, "late")), (50, 50));
        // The latest holders lose their slots.
        assert!(slots.contains(&49) && !slots.contains(&50));
        assert_eq!(admit(&mut slots, "a", 200..300), 0);
        // A tenant that needs less than its share leaves the rest to the others.
        assert_eq!(admit(&mut slots, "small", 2000..2002), 2);
        assert_eq!((held(&slots, "a"), held(&slots, "late")), (49, 49));
    }

    #[test]
    fn many_tenants_of_an_attacker_leave_the_share_of_the_next_one() {
        let mut slots = FairSlots::new(500);
        for tenant in 0..20 {
            admit(&mut slots, &format!("t{tenant}"), tenant * 1000..tenant * 1000 + 600);
        }
        assert_eq!(admit(&mut slots, "victim", 50_000..50_010), 10);
        assert_eq!(admit(&mut slots, "victim", 51_000..51_100), 13);
        assert_eq!(held(&slots, "victim"), 23);
        for round in 0..3 {
            for tenant in 0..20 {
                admit(&mut slots, &format!("t{tenant}"), 60_000 + round..60_001 + round);
            }
            assert_eq!((held(&slots, "victim"), slots.holders.len()), (23, 500));
        }
    }

    #[test]
    fn repeated_admission_takes_one_slot_and_release_frees_it() {
        let mut slots = FairSlots::new(1);
        assert_eq!(slots.admit(7, &"a".into()), Admission::Granted);
        assert_eq!(slots.admit(7, &"a".into()), Admission::Granted);
        assert_eq!(slots.admit(8, &"b".into()), Admission::Refused);
        assert_eq!(slots.release(&7), Some("a".into()));
        assert_eq!(slots.release(&7), None);
        assert!(slots.tenants.is_empty() && !slots.is_full());
        assert_eq!(slots.admit(8, &"b".into()), Admission::Granted);
    }
}

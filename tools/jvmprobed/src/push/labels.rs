//! Labels of JVMs at receivers: limits how many new ones the JVMs of a tenant choose.
//!
//! A receiver keeps a series for each combination of labels, and a JVM chooses its service name and most other attributes.
//! So a tenant may cause a limited number of new service names and of new sets of other attributes per hour
//! ([`Hourly`]). What was sent lately is not new, so a tenant whose JVMs have the same labels causes one of each.

use std::{
    borrow::Cow,
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Instant,
};

use libjvmprobe::{jvms::is_of_host, sys::limited};

use crate::{
    hourly::{Hourly, REFILL},
    identity::RESTARTS_ATTRIBUTE,
    window::Identity,
};

/// Name and attribute values that replace those beyond the limit.
const OTHER: &str = "other";
/// The attribute for the name of a JVM.
const NAME: &str = "service.name";
/// Maximum number of names and sets that are remembered. Beyond it, those that were sent longest ago are forgotten.
const MAX_REMEMBERED: usize = 20_000;

static LABELS: LazyLock<Mutex<Labels>> = LazyLock::new(Mutex::default);

/// Returns the identity as it is sent: without the name or the attributes that the JVM has chosen, if its tenant's JVMs have
/// chosen too many.
pub fn limited(identity: &Identity) -> Cow<'_, Identity> {
    LABELS.lock().unwrap_or_else(PoisonError::into_inner).limited(identity, Instant::now())
}

#[derive(Debug, Default)]
struct Labels {
    hasher: RandomState,
    /// Hashes of tenant and name, and of tenant and set of attributes, each with the time when it was sent last.
    sent: HashMap<u64, Instant>,
    new: Hourly,
}

impl Labels {
    fn limited<'a>(&mut self, identity: &'a Identity, now: Instant) -> Cow<'a, Identity> {
        let tenant = identity.tenant();
        let is_chosen = |key: &str| !is_of_host(key) && key != NAME && key != RESTARTS_ATTRIBUTE;
        let chosen: Vec<_> = identity.attributes.iter().filter(|(key, _)| is_chosen(key)).collect();
        let name = self.hasher.hash_one((&tenant, &identity.name));
        let set = self.hasher.hash_one((&tenant, chosen));
        let is_name_sent = self.may_send(name, &tenant, now);
        let is_set_sent = self.may_send(set, &tenant, now);
        if is_name_sent && is_set_sent {
            return Cow::Borrowed(identity);
        }
        limited::add("labels", &tenant, 1);
        let mut sent = identity.clone();
        if !is_name_sent {
            sent.name = OTHER.into();
            sent.attributes.insert(NAME.into(), OTHER.into());
        }
        if !is_set_sent {
            sent.attributes.retain(|key, _| !is_chosen(key));
        }
        Cow::Owned(sent)
    }

    /// Returns whether a name or a set of attributes may be sent.
    fn may_send(&mut self, hash: u64, tenant: &Arc<str>, now: Instant) -> bool {
        if let Some(at) = self.sent.get_mut(&hash) {
            *at = now;
            return true;
        }
        let is_sent = self.new.take(tenant, now);
        if is_sent {
            self.make_space(now);
            self.sent.insert(hash, now);
        }
        is_sent
    }

    fn make_space(&mut self, now: Instant) {
        if self.sent.len() < MAX_REMEMBERED {
            return;
        }
        self.sent.retain(|_, at| now.saturating_duration_since(*at) < REFILL);
        if self.sent.len() < MAX_REMEMBERED {
            return;
        }
        let mut times: Vec<_> = self.sent.values().copied().collect();
        times.sort_unstable();
        let middle = times[times.len() / 2];
        self.sent.retain(|_, at| *at > middle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hourly::BURST;

    fn identity(tenant: &str, name: &str, instance: usize) -> Identity {
        let attributes = [
            ("systemd.unit", tenant),
            ("service.name", name),
            ("service.instance.id", &*instance.to_string()),
        ];
        let attributes = attributes.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Identity { name: name.into(), attributes: attributes.into(), ..Identity::default() }
    }

    #[test]
    fn labels_that_a_tenant_chooses_are_limited() {
        let (mut labels, now) = (Labels::default(), Instant::now());
        let first = identity("a.service", "shop", 0);
        assert_eq!(*labels.limited(&first, now), first);
        for instance in 0..2 * BURST as usize {
            labels.limited(&identity("a.service", "shop", instance), now);
        }
        let late = identity("a.service", "shop", 9999);
        let sent = labels.limited(&late, now);
        let keys: Vec<_> = sent.attributes.keys().map(String::as_str).collect();
        assert_eq!((&*sent.name, keys), ("shop", vec!["service.name", "systemd.unit"]));
        let renamed = identity("a.service", "name", 1);
        let sent = labels.limited(&renamed, now);
        assert_eq!((&*sent.name, &*sent.attributes["service.name"]), (OTHER, OTHER));
        assert_eq!(sent.attributes["service.instance.id"], "1");
        // Labels that were sent are sent again, and other tenants have their own limit.
        assert_eq!(*labels.limited(&first, now), first);
        let other = identity("b.service", "shop", 9999);
        assert_eq!(*labels.limited(&other, now), other);
    }

    #[test]
    fn number_of_remembered_labels_is_bounded() {
        let (mut labels, mut now) = (Labels::default(), Instant::now());
        for number in 0..MAX_REMEMBERED {
            now += std::time::Duration::from_millis(1);
            labels.limited(&identity(&(number / 200).to_string(), "shop", number), now);
            assert!(labels.sent.len() <= MAX_REMEMBERED);
        }
    }
}

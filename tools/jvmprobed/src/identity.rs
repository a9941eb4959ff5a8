//! Identity of JVMs. The name and the attributes are detected on the host, and the rules may change the name.
//! The number of restarts is added as an attribute.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
};

use libjvmprobe::jvms::{JvmIdentity, RUNTIME, Select};

use crate::{
    config::{Action, Rule},
    window::Identity,
};

/// Attribute with the number of restarts. This is the number of JVMs of the same name that have ended.
const RESTARTS_ATTRIBUTE: &str = "jvmprobe.restarts";

/// The attribute for the namespace of a pod.
const NAMESPACE: &str = "k8s.namespace.name";

/// Maximum number of names whose restarts are remembered.
const MAX_NAMES: usize = 4096;

/// The configured rules. Both the registry and [`Identities`] apply them.
#[derive(Debug, Default)]
pub struct Rules(RwLock<Vec<Rule>>);

impl Rules {
    /// Creates the set of rules.
    pub fn new(rules: Vec<Rule>) -> Self {
        Self(RwLock::new(rules))
    }

    /// Replaces the rules. JVMs that are already known keep their identity.
    pub fn set(&self, rules: Vec<Rule>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = rules;
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Rule>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Select for Rules {
    fn selects(&self, detected: &JvmIdentity, is_read: bool) -> Option<bool> {
        let rules = self.read();
        let mut names = rules.iter().flat_map(|rule| rule.when.keys());
        if !is_read && names.any(|name| RUNTIME.contains(&name.as_str())) {
            return None;
        }
        let JvmIdentity { name, started_ns, attributes, .. } = detected.clone();
        let mut identity = Identity { pid: 0, started_ns, name, attributes };
        Some(apply(&rules, &mut identity))
    }
}

/// Assigns identities to JVMs.
#[derive(Debug, Default)]
pub struct Identities {
    rules: Arc<Rules>,
    /// By name: number of processes that have ended, and the value of `clock` when the name was last used.
    ended: HashMap<String, (u64, u64)>,
    clock: u64,
}

impl Identities {
    /// Assigns identities by these rules.
    pub fn new(rules: Arc<Rules>) -> Self {
        Self { rules, ..Self::default() }
    }

    /// Returns the identity of a JVM that was found; `None` if the rules drop it.
    pub fn identify(&mut self, pid: u32, detected: JvmIdentity) -> Option<Arc<Identity>> {
        let JvmIdentity { name, started_ns, attributes, claimed_namespace } = detected;
        let mut identity = Identity { pid, started_ns, name, attributes };
        apply(&self.rules.read(), &mut identity).then_some(())?;
        // The claimed namespace is added after the rules have been applied, so that no rule can match it.
        // Otherwise a container that claims another namespace could escape the rules for its own namespace,
        // or match those for the other one.
        if let Some(namespace) = claimed_namespace {
            identity.attributes.insert(NAMESPACE.into(), namespace);
        }
        let restarts = self.restarts_of(&identity.name).to_string();
        identity.attributes.insert(RESTARTS_ATTRIBUTE.into(), restarts);
        Some(identity.into())
    }

    /// Records that a JVM has ended, so that the next one of its name counts as a restart.
    pub fn ended(&mut self, identity: &Identity) {
        self.restarts_of(&identity.name);
        if let Some((ended, _)) = self.ended.get_mut(&identity.name) {
            *ended += 1;
        }
    }

    /// Returns the number of ended JVMs of this name. If there are too many names, the least recently used
    /// one is removed.
    fn restarts_of(&mut self, name: &str) -> u64 {
        self.clock += 1;
        if let Some((ended, at)) = self.ended.get_mut(name) {
            *at = self.clock;
            return *ended;
        }
        if self.ended.len() >= MAX_NAMES {
            let oldest = self.ended.iter().min_by_key(|(_, (_, at))| *at);
            if let Some(name) = oldest.map(|(name, _)| name.clone()) {
                self.ended.remove(&name);
            }
        }
        self.ended.insert(name.to_owned(), (0, self.clock));
        0
    }
}

/// Applies the rules one after the other, and renames the JVM if they say so. Returns whether the JVM is traced.
fn apply(rules: &[Rule], identity: &mut Identity) -> bool {
    const NAME: &str = "service.name";
    let has_selection = rules.iter().any(|rule| rule.action == Action::Select);
    let mut is_selected = false;
    for rule in rules {
        let value = |key: &String| identity.attributes.get(key).map_or("", String::as_str);
        if !rule.when.iter().all(|(key, pattern)| pattern.0.is_match(value(key))) {
            continue;
        }
        match (rule.action, &rule.to) {
            (Action::Drop, _) => return false,
            (Action::Select, _) => is_selected = true,
            (Action::Rename, None) => {}
            (Action::Rename, Some(to)) => {
                let mut name = String::new();
                match rule.when.get(NAME).and_then(|pattern| pattern.0.captures(&identity.name)) {
                    Some(groups) => groups.expand(to, &mut name),
                    None => name.clone_from(to),
                }
                identity.name.clone_from(&name);
                identity.attributes.insert(NAME.into(), name);
            }
        }
    }
    is_selected || !has_selection
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn detected(name: &str, namespace: &str) -> JvmIdentity {
        let attributes = [("service.name", name), ("k8s.namespace.name", namespace)];
        let attributes = attributes.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let attributes = attributes.into();
        JvmIdentity { name: name.into(), started_ns: 1, attributes, claimed_namespace: None }
    }

    #[test]
    fn rules_rename_drop_and_select() {
        let config = Config::parse(
            r#"
            [[rule]]
            action = "rename"
            when = { "service.name" = "^com\\.example\\.(\\w+)$" }
            to = "shop-$1"
            [[rule]]
            action = "drop"
            when = { "service.name" = "^shop-test$" }
            [[rule]]
            action = "rename"
            when = { "k8s.namespace.name" = "^batch$" }
            to = "batch"
            [[rule]]
            action = "select"
            when = { "k8s.namespace.name" = "^(prod|batch)$", "service.name" = "^[^x]" }
            "#,
        );
        let mut identities = Identities::new(Rules::new(config.unwrap().rules).into());
        let mut identify = |name, namespace| {
            let identity = identities.identify(7, detected(name, namespace))?;
            assert_eq!(identity.attributes.get("service.name"), Some(&identity.name));
            Some(identity.name.clone())
        };
        assert_eq!(identify("com.example.web", "prod").as_deref(), Some("shop-web"));
        assert_eq!(identify("com.example.test", "prod"), None);
        assert_eq!(identify("anything", "batch").as_deref(), Some("batch"));
        assert_eq!(identify("x", "prod"), None);
        assert_eq!(identify("web", "dev"), None);
    }

    #[test]
    fn claimed_namespace_is_a_label_but_matches_no_rule() {
        let config = Config::parse(
            "[[rule]]\naction = \"drop\"\nwhen = { \"k8s.namespace.name\" = \"^batch$\" }",
        );
        let mut identities = Identities::new(Rules::new(config.unwrap().rules).into());
        let claims =
            JvmIdentity { claimed_namespace: Some("batch".into()), ..JvmIdentity::default() };
        let identity = identities.identify(7, claims).unwrap();
        assert_eq!(identity.attributes[NAMESPACE], "batch");
        assert!(identities.identify(8, detected("shop", "batch")).is_none());
    }

    #[test]
    fn restarts_are_counted_for_a_bounded_number_of_names() {
        let mut identities = Identities::default();
        let restarts = |identity: &Identity| identity.attributes[RESTARTS_ATTRIBUTE].clone();
        let first = identities.identify(1, detected("shop", "")).unwrap();
        // A second JVM beside a running one is not a restart.
        let second = identities.identify(2, detected("shop", "")).unwrap();
        assert_eq!((restarts(&first), restarts(&second)), ("0".into(), "0".into()));
        identities.ended(&first);
        let third = identities.identify(3, detected("shop", "")).unwrap();
        assert_eq!(restarts(&third), "1");
        for number in 0..2 * MAX_NAMES {
            identities.identify(4, detected(&format!("job-{number}"), ""));
        }
        assert_eq!(identities.ended.len(), MAX_NAMES);
    }
}

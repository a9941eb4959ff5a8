//! Who a JVM is to those who look: as it is found, as the rules have it, and how often it was started
//! again.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
};

use libjvmprobe::follow::{RUNTIME, Select, Who};

use crate::{
    config::{Action, Rule},
    window::Identity,
};

/// The name of the attribute that tells how often a JVM of this name was started again.
const RESTARTS: &str = "jvmprobe.restarts";

/// The attribute for the namespace of a pod.
const NAMESPACE: &str = "k8s.namespace.name";

/// So many names are remembered.
const MAX_NAMES: usize = 4096;

/// The rules, which the registry asks, too.
#[derive(Debug, Default)]
pub struct Rules(RwLock<Vec<Rule>>);

impl Rules {
    /// These rules.
    pub fn new(rules: Vec<Rule>) -> Self {
        Self(RwLock::new(rules))
    }

    /// Other rules, from now on: who is known stays who it is.
    pub fn set(&self, rules: Vec<Rule>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = rules;
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Rule>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Select for Rules {
    fn wants(&self, who: &Who, is_read: bool) -> Option<bool> {
        let rules = self.read();
        let mut names = rules.iter().flat_map(|rule| rule.when.keys());
        if !is_read && names.any(|name| RUNTIME.contains(&name.as_str())) {
            return None;
        }
        let Who { name, started_ns, attributes, .. } = who.clone();
        let mut identity = Identity { pid: 0, started_ns, name, attributes };
        Some(apply(&rules, &mut identity))
    }
}

/// Tells who JVMs are.
#[derive(Debug, Default)]
pub struct Identities {
    rules: Arc<Rules>,
    /// How many processes of a name have ended, and when one was last heard of.
    ended: HashMap<String, (u64, u64)>,
    clock: u64,
}

impl Identities {
    /// With these rules.
    pub fn new(rules: Arc<Rules>) -> Self {
        Self { rules, ..Self::default() }
    }

    /// Who a JVM is that has come; `None` where the rules leave it alone.
    pub fn came(&mut self, pid: u32, who: Who) -> Option<Arc<Identity>> {
        let Who { name, started_ns, attributes, claimed_namespace } = who;
        let mut identity = Identity { pid, started_ns, name, attributes };
        apply(&self.rules.read(), &mut identity).then_some(())?;
        // A label, of which rules know nothing: a container that names another namespace gets neither
        // rid of its profiles nor into another one's rules.
        if let Some(namespace) = claimed_namespace {
            identity.attributes.insert(NAMESPACE.into(), namespace);
        }
        let restarts = self.heard_of(&identity.name).to_string();
        identity.attributes.insert(RESTARTS.into(), restarts);
        Some(identity.into())
    }

    /// It has ended: the next one of its name is another start.
    pub fn ended(&mut self, identity: &Identity) {
        self.heard_of(&identity.name);
        if let Some((ended, _)) = self.ended.get_mut(&identity.name) {
            *ended += 1;
        }
    }

    /// How many of a name have ended. The one that was not heard of for the longest time is forgotten
    /// where there are too many.
    fn heard_of(&mut self, name: &str) -> u64 {
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

/// Renames a JVM as the rules have it, one after the other. Whether it is taken.
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

    fn who(name: &str, namespace: &str) -> Who {
        let attributes = [("service.name", name), ("k8s.namespace.name", namespace)];
        let attributes = attributes.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let attributes = attributes.into();
        Who { name: name.into(), started_ns: 1, attributes, claimed_namespace: None }
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
        let mut came = |name, namespace| {
            let identity = identities.came(7, who(name, namespace))?;
            assert_eq!(identity.attributes.get("service.name"), Some(&identity.name));
            Some(identity.name.clone())
        };
        assert_eq!(came("com.example.web", "prod").as_deref(), Some("shop-web"));
        assert_eq!(came("com.example.test", "prod"), None);
        assert_eq!(came("anything", "batch").as_deref(), Some("batch"));
        assert_eq!(came("x", "prod"), None);
        assert_eq!(came("web", "dev"), None);
    }

    #[test]
    fn a_namespace_that_a_pod_claims_is_a_label_and_matches_no_rule() {
        let config = Config::parse(
            "[[rule]]\naction = \"drop\"\nwhen = { \"k8s.namespace.name\" = \"^batch$\" }",
        );
        let mut identities = Identities::new(Rules::new(config.unwrap().rules).into());
        let claims = Who { claimed_namespace: Some("batch".into()), ..Who::default() };
        let identity = identities.came(7, claims).unwrap();
        assert_eq!(identity.attributes[NAMESPACE], "batch");
        assert!(identities.came(8, who("shop", "batch")).is_none());
    }

    #[test]
    fn starts_are_counted_and_names_are_bounded() {
        let mut identities = Identities::default();
        let restarts = |identity: &Identity| identity.attributes[RESTARTS].clone();
        let first = identities.came(1, who("shop", "")).unwrap();
        // Another one beside it is none.
        let second = identities.came(2, who("shop", "")).unwrap();
        assert_eq!((restarts(&first), restarts(&second)), ("0".into(), "0".into()));
        identities.ended(&first);
        let third = identities.came(3, who("shop", "")).unwrap();
        assert_eq!(restarts(&third), "1");
        for number in 0..2 * MAX_NAMES {
            identities.came(4, who(&format!("job-{number}"), ""));
        }
        assert_eq!(identities.ended.len(), MAX_NAMES);
    }
}

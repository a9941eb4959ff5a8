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
pub const RESTARTS_ATTRIBUTE: &str = "jvmprobe.restarts";

/// The attribute for the name of a JVM.
const NAME: &str = "service.name";

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

    /// Returns the identity of a JVM that was found. The registry has selected it by the same rules.
    pub fn identify(&mut self, pid: u32, detected: JvmIdentity) -> Arc<Identity> {
        let JvmIdentity { name, started_ns, attributes, .. } = detected.clone();
        let mut identity = Identity { pid, started_ns, name, attributes };
        let _ = apply(&self.rules.read(), &mut identity);
        // Claims are added after the rules have been applied, so that no rule can match them. Otherwise a
        // container that claims another namespace, for example, could escape the rules for its own namespace,
        // or match those for the other one.
        add_claims(&mut identity, &detected);
        self.set_restarts(&mut identity);
        identity.into()
    }

    /// Returns the identity of a JVM with the claims that have become known since it was identified; `None` if there are
    /// none.
    pub fn update(&mut self, known: &Identity, detected: &JvmIdentity) -> Option<Arc<Identity>> {
        let mut identity = known.clone();
        add_claims(&mut identity, detected);
        (identity != *known).then_some(())?;
        if identity.name != known.name {
            self.set_restarts(&mut identity);
        }
        Some(identity.into())
    }

    fn set_restarts(&mut self, identity: &mut Identity) {
        let restarts = self.restarts_of(&identity.name).to_string();
        identity.attributes.insert(RESTARTS_ATTRIBUTE.into(), restarts);
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

/// Adds what a JVM claims, except where an attribute is known already. A claimed name replaces a name that comes from the
/// jar or the main class, unless a rule has changed it.
fn add_claims(identity: &mut Identity, detected: &JvmIdentity) {
    for (key, value) in &detected.claimed {
        if key != NAME {
            identity.attributes.entry(key.clone()).or_insert_with(|| value.clone());
        } else if !detected.is_name_set && identity.name == detected.name {
            identity.name.clone_from(value);
            identity.attributes.insert(NAME.into(), value.clone());
        }
    }
}

/// Applies the rules one after the other, and renames the JVM if they say so. Returns whether the JVM is traced.
fn apply(rules: &[Rule], identity: &mut Identity) -> bool {
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
        JvmIdentity { name: name.into(), started_ns: 1, attributes, ..JvmIdentity::default() }
    }

    fn claiming(claimed: [(&str, &str); 2], detected: JvmIdentity) -> JvmIdentity {
        let claimed = claimed.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        JvmIdentity { claimed, ..detected }
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
        let rules = Arc::new(Rules::new(config.unwrap().rules));
        let mut identities = Identities::new(Arc::clone(&rules));
        let mut identify = |name, namespace| {
            rules.selects(&detected(name, namespace), true)?.then_some(())?;
            let identity = identities.identify(7, detected(name, namespace));
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
    fn claimed_attributes_are_labels_but_match_no_rule() {
        let config = Config::parse(
            "[[rule]]\naction = \"drop\"\nwhen = { \"k8s.namespace.name\" = \"^batch$\" }\n\
             [[rule]]\naction = \"drop\"\nwhen = { \"service.name\" = \"^report$\" }",
        );
        let rules = Arc::new(Rules::new(config.unwrap().rules));
        let mut identities = Identities::new(Arc::clone(&rules));
        let claims = [("k8s.namespace.name", "batch"), ("service.name", "report")];
        let unnamed = JvmIdentity { name: "Main".into(), ..JvmIdentity::default() };
        assert_eq!(rules.selects(&claiming(claims, unnamed.clone()), true), Some(true));
        let identity = identities.identify(7, claiming(claims, unnamed));
        assert_eq!(identity.attributes["k8s.namespace.name"], "batch");
        assert_eq!((&*identity.name, &*identity.attributes[NAME]), ("report", "report"));
        assert_eq!(rules.selects(&detected("shop", "batch"), true), Some(false));
        // A known namespace is not replaced.
        let identity = identities.identify(9, claiming(claims, detected("shop", "prod")));
        assert_eq!(identity.attributes["k8s.namespace.name"], "prod");
    }

    #[test]
    fn claimed_name_replaces_only_a_name_that_nobody_has_set() {
        let config = Config::parse(
            "[[rule]]\naction = \"rename\"\nwhen = { \"service.name\" = \"^a$\" }\nto = \"rule\"",
        );
        let mut identities = Identities::new(Rules::new(config.unwrap().rules).into());
        let claims = [("service.instance.id", "i"), ("service.name", "claim")];
        for (name, is_name_set, expected) in
            [("Main", false, "claim"), ("set", true, "set"), ("a", false, "rule")]
        {
            let before = JvmIdentity { is_name_set, ..detected(name, "") };
            let after = claiming(claims, before.clone());
            assert_eq!(identities.identify(7, after.clone()).name, expected);
            // The claim becomes known later.
            let known = identities.identify(7, before.clone());
            assert!(identities.update(&known, &before).is_none());
            let updated = identities.update(&known, &after).unwrap();
            assert_eq!((&*updated.name, &*updated.attributes[NAME]), (expected, expected));
            assert_eq!(updated.attributes["service.instance.id"], "i");
            assert!(identities.update(&updated, &after).is_none());
        }
    }

    #[test]
    fn restarts_are_counted_for_a_bounded_number_of_names() {
        let mut identities = Identities::default();
        let restarts = |identity: &Identity| identity.attributes[RESTARTS_ATTRIBUTE].clone();
        let first = identities.identify(1, detected("shop", ""));
        // A second JVM beside a running one is not a restart.
        let second = identities.identify(2, detected("shop", ""));
        assert_eq!((restarts(&first), restarts(&second)), ("0".into(), "0".into()));
        identities.ended(&first);
        let third = identities.identify(3, detected("shop", ""));
        assert_eq!(restarts(&third), "1");
        for number in 0..2 * MAX_NAMES {
            identities.identify(4, detected(&format!("job-{number}"), ""));
        }
        assert_eq!(identities.ended.len(), MAX_NAMES);
    }
}

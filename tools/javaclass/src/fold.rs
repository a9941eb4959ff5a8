//! Combines hidden classes with the same name and loader, because a program may create millions.

use std::collections::BTreeMap;

use crate::record::{Class, Method};

/// Maximum number of names kept; further classes share one name.
const MAX_NAMES: usize = 100_000;
/// Maximum number of methods kept for hidden classes of one name.
const MAX_METHODS: usize = 1000;
/// The name of hidden classes beyond MAX_NAMES.
const OTHERS: &str = "(other hidden classes)";

/// Hidden classes by name and loader.
#[derive(Debug, Default)]
pub struct Folded {
    classes: BTreeMap<(String, Option<String>), Class>,
}

impl Folded {
    /// Adds a class.
    pub fn add(&mut self, mut class: Class) {
        class.class = host(&class.class).to_owned();
        let key = |class: &Class| (class.class.clone(), class.loader_id.clone());
        if self.classes.len() >= MAX_NAMES && !self.classes.contains_key(&key(&class)) {
            class.class = OTHERS.into();
            (class.loader, class.loader_name, class.loader_id) = (None, None, None);
            class.list = Vec::new();
        }
        match self.classes.get_mut(&key(&class)) {
            Some(known) => join(known, class),
            None => _ = self.classes.insert(key(&class), class),
        }
    }

    /// Returns the combined classes.
    pub fn into_classes(self) -> impl Iterator<Item = Class> {
        self.classes.into_values()
    }
}

/// Drops the number of a lambda class, which it has up to JDK 20: `Main$$Lambda$14`.
fn host(name: &str) -> &str {
    match name.rsplit_once("$$Lambda$") {
        Some((host, number)) if number.bytes().all(|b| b.is_ascii_digit()) => {
            name.get(..host.len() + "$$Lambda".len()).unwrap_or(name)
        }
        _ => name,
    }
}

/// Returns the position of a class's state in the order of progress. `state` is the name used in
/// records.
fn rank(state: &str) -> usize {
    const STATES: [&str; 5] = ["loaded", "linked", "initializing", "failed", "initialized"];
    STATES.iter().position(|name| *name == state).unwrap_or(0)
}

fn join(known: &mut Class, other: Class) {
    known.classes += other.classes;
    known.bytes += other.bytes;
    let (a, b) = (&mut known.counts, other.counts);
    a.methods += b.methods;
    a.called += b.called;
    a.unknown += b.unknown;
    a.not_called += b.not_called;
    if rank(other.state) > rank(known.state) {
        known.state = other.state;
    }
    for method in other.list {
        let same = |m: &&mut Method| m.name == method.name && m.descriptor == method.descriptor;
        let has_capacity = known.list.len() < MAX_METHODS;
        match known.list.iter_mut().find(same) {
            Some(known) => join_method(known, method),
            None if has_capacity => known.list.push(method),
            None => {}
        }
    }
}

fn join_method(known: &mut Method, other: Method) {
    /// A method called in any of the classes counts as called.
    fn rank(usage: &str) -> usize {
        const USAGES: [&str; 4] = ["abstract", "not called", "unknown", "called"];
        USAGES.iter().position(|name| *name == usage).unwrap_or(0)
    }
    known.counted += other.counted;
    known.compiled |= other.compiled;
    if rank(other.usage) > rank(known.usage) {
        (known.usage, known.why) = (other.usage, other.why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_drops_the_number_of_a_lambda_class() {
        assert_eq!(host("a.B$$Lambda$14"), "a.B$$Lambda");
        assert_eq!(host("a.B$$Lambda"), "a.B$$Lambda");
        assert_eq!(host("a.B$$Lambda$x"), "a.B$$Lambda$x");
    }
}

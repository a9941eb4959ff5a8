//! Combines hidden classes with the same name and loader, because a program may create millions.

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    mem::take,
};

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
    classes: BTreeMap<(String, Option<String>), Combined>,
}

/// Hidden classes of one name and loader.
#[derive(Debug)]
struct Combined {
    /// The classes, without methods.
    class: Class,
    /// The methods without name and descriptor, each with its position, by name and descriptor.
    methods: HashMap<(String, String), (usize, Method)>,
}

impl Combined {
    fn add_methods(&mut self, methods: Vec<Method>, max: usize) {
        for mut method in methods {
            let key = (take(&mut method.name), take(&mut method.descriptor));
            let position = self.methods.len();
            match self.methods.get_mut(&key) {
                Some((_, known)) => join_method(known, method),
                None if position < max => _ = self.methods.insert(key, (position, method)),
                None => {}
            }
        }
    }

    fn into_class(self) -> Class {
        let mut methods: Vec<_> = self.methods.into_iter().collect();
        methods.sort_unstable_by_key(|(_, (position, _))| *position);
        let named = |((name, descriptor), (_, method))| Method { name, descriptor, ..method };
        Class { list: methods.into_iter().map(named).collect(), ..self.class }
    }
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
        let methods = take(&mut class.list);
        match self.classes.entry(key(&class)) {
            Entry::Occupied(known) => {
                let known = known.into_mut();
                join(&mut known.class, class);
                known.add_methods(methods, MAX_METHODS);
            }
            // All methods of the first class are kept.
            Entry::Vacant(entry) => entry
                .insert(Combined { class, methods: HashMap::new() })
                .add_methods(methods, usize::MAX),
        }
    }

    /// Returns the combined classes.
    pub fn into_classes(self) -> impl Iterator<Item = Class> {
        self.classes.into_values().map(Combined::into_class)
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
    use crate::{origin::Kind, record::MethodCounts};

    #[test]
    fn methods_of_one_name_are_combined_in_order() {
        let method = |number: usize, usage, counted| Method {
            name: format!("m{number}"),
            descriptor: "()V".into(),
            usage,
            why: None,
            counted,
            compiled: false,
        };
        let class = |list| Class {
            pid: 1,
            class: "a.B$$Lambda$14".into(),
            classes: 1,
            hidden: true,
            origin_kind: Kind::Unknown,
            origin: String::new(),
            origin_by_name: false,
            module: None,
            loader: None,
            loader_name: None,
            loader_id: None,
            state: "loaded",
            initializer: None,
            archived: false,
            redefined: None,
            bytes: 8,
            counts: MethodCounts::default(),
            list,
        };
        let mut folded = Folded::default();
        folded.add(class(vec![method(2, "not called", 0), method(1, "called", 3)]));
        folded.add(class((0..2000).map(|number| method(number, "called", 4)).collect()));
        let [class] = &folded.into_classes().collect::<Vec<_>>()[..] else { panic!() };
        assert_eq!((&*class.class, class.classes, class.bytes), ("a.B$$Lambda", 2, 16));
        let shown: Vec<_> = class.list.iter().map(|m| (&*m.name, m.usage, m.counted)).collect();
        let expected = [("m2", "called", 4), ("m1", "called", 7), ("m0", "called", 4)];
        assert_eq!((&shown[..3], shown.len()), (&expected[..], MAX_METHODS));
    }

    #[test]
    fn host_drops_the_number_of_a_lambda_class() {
        assert_eq!(host("a.B$$Lambda$14"), "a.B$$Lambda");
        assert_eq!(host("a.B$$Lambda"), "a.B$$Lambda");
        assert_eq!(host("a.B$$Lambda$x"), "a.B$$Lambda$x");
    }
}

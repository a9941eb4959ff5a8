//! A list of classes, methods and packages, and its matches in a JVM.

use std::{collections::HashMap, path::Path, sync::Arc};

use anyhow::Result;
use libjvmprobe::hotspot::loaded::{LoadedClass, State, Usage};

use crate::{
    list_line::{self, Line, Selector},
    origin::{Origin, package},
    record::{Changed, Listed},
};

/// The exit status if something on the list is in use.
pub const IN_USE: u8 = 3;

/// Usage of the class, package or method that a line names, in ascending order of certainty that it is
/// used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum LineUsage {
    #[default]
    NotLoaded,
    /// The class is loaded but has not run.
    Loaded,
    /// The class has run, but not this method.
    NotCalled,
    /// The class has run; it is unknown whether this method has.
    Unknown,
    /// The class has run.
    Initialized,
    /// The method has run.
    Called,
}

impl LineUsage {
    fn name(self) -> &'static str {
        match self {
            Self::NotLoaded => "not loaded",
            Self::Loaded => "loaded",
            Self::NotCalled => "not called",
            Self::Unknown => "unknown",
            Self::Initialized => "initialized",
            Self::Called => "called",
        }
    }
}

/// Result for a line.
#[derive(Clone, Debug, Default)]
struct Hit {
    usage: LineUsage,
    example: Option<String>,
    why: Option<&'static str>,
    classes: u64,
    origin: Option<String>,
    /// Whether any matching class has run.
    has_run: bool,
    first_loaded: Option<Box<Changed>>,
    first_initialized: Option<Box<Changed>>,
}

/// The lines of a list, indexed.
#[derive(Debug)]
pub struct Listing {
    lines: Vec<Line>,
    /// Indexes of the lines that name a class, or a method of it.
    classes: HashMap<String, Vec<usize>>,
    /// Indexes of the lines that name a package.
    packages: HashMap<String, Vec<usize>>,
}

impl Listing {
    /// Reads a list.
    pub fn read(path: &Path) -> Result<Self> {
        Ok(Self::new(list_line::read(path)?))
    }

    fn new(lines: Vec<Line>) -> Self {
        let (mut classes, mut packages) = (HashMap::new(), HashMap::new());
        for (number, line) in lines.iter().enumerate() {
            let (numbers, name) = match &line.selector {
                Selector::Class(class) | Selector::Method { class, .. } => (&mut classes, class),
                Selector::Package(package) => (&mut packages, package),
            };
            numbers.entry(name.clone()).or_insert_with(Vec::new).push(number);
        }
        Self { lines, classes, packages }
    }

    /// Returns the indexes of the lines that match a class.
    pub fn lines_of(&self, class: &str) -> Vec<usize> {
        let mut numbers = self.classes.get(class).cloned().unwrap_or_default();
        let mut next = package(class);
        while let Some(name) = next {
            numbers.extend(self.packages.get(name).into_iter().flatten());
            next = package(name);
        }
        numbers
    }

    /// Returns a line that belongs to no vulnerability.
    pub fn without_vulnerability(&self) -> Option<&str> {
        self.lines.iter().find(|line| line.vulnerability.is_none()).map(|line| &*line.text)
    }
}

/// Results for all lines in a JVM.
#[derive(Clone, Debug)]
pub struct Hits(Vec<Hit>);

impl Hits {
    /// Creates results without matches.
    pub fn new(listing: &Listing) -> Self {
        Self(vec![Hit::default(); listing.lines.len()])
    }

    /// Matches a class with the list.
    pub fn match_class(&mut self, listing: &Listing, class: &LoadedClass, origin: &Origin) {
        for number in listing.lines_of(&class.name) {
            let (Some(line), Some(hit)) = (listing.lines.get(number), self.0.get_mut(number))
            else {
                continue;
            };
            hit.classes += 1;
            hit.has_run |= class.state >= State::Initializing;
            let (usage, example, why) = usage_of(&line.selector, class);
            if usage > hit.usage || hit.example.is_none() {
                hit.usage = hit.usage.max(usage);
                (hit.example, hit.why) = (Some(example), why);
                hit.origin = Some(origin.name.clone());
            }
        }
    }

    /// Resets the numbers of matching classes before the JVM's classes are read again.
    pub fn reset_counts(&mut self) {
        self.0.iter_mut().for_each(|hit| hit.classes = 0);
    }

    /// Records a class event that the tracer observed.
    pub fn record_event(&mut self, listing: &Listing, changed: &Changed) {
        let (has_run, is_loaded) = match changed.event {
            "initialized" | "failed" => (true, true),
            event => (false, event == "loaded"),
        };
        if !is_loaded {
            return;
        }
        for number in listing.lines_of(&changed.class) {
            let (Some(line), Some(hit)) = (listing.lines.get(number), self.0.get_mut(number))
            else {
                continue;
            };
            let is_class = !matches!(line.selector, Selector::Method { .. });
            let usage =
                if has_run && is_class { LineUsage::Initialized } else { LineUsage::Loaded };
            hit.usage = hit.usage.max(usage);
            hit.has_run |= has_run;
            hit.example.get_or_insert_with(|| changed.class.clone());
            let first = if has_run { &mut hit.first_initialized } else { &mut hit.first_loaded };
            first.get_or_insert_with(|| Box::new(changed.clone()));
        }
    }

    /// Marks methods as unknown after the JVM has exited, because calls since its classes were last read are
    /// not known.
    pub fn ended(&mut self, listing: &Listing) {
        for (line, hit) in listing.lines.iter().zip(&mut self.0) {
            let is_method = matches!(line.selector, Selector::Method { .. });
            if is_method && hit.has_run && hit.usage < LineUsage::Called {
                (hit.usage, hit.why) = (LineUsage::Unknown, Some("the JVM has ended"));
            }
        }
    }

    /// Returns the results in the order of the list.
    pub fn into_listed(self, listing: &Listing, pid: u32) -> Vec<Listed> {
        let listed = |(line, hit): (&Line, Hit)| {
            // A class counts as used once its initialisation has begun, even if the initialisation failed.
            let in_use = match line.selector {
                Selector::Method { .. } => {
                    matches!(hit.usage, LineUsage::Called | LineUsage::Unknown)
                }
                _ => hit.usage >= LineUsage::NotCalled,
            };
            Listed {
                pid,
                pattern: line.text.clone(),
                vulnerability: line.vulnerability.as_ref().map(Arc::to_string),
                found: hit.usage.name(),
                in_use,
                example: hit.example,
                why: hit.why,
                classes: hit.classes,
                origin: hit.origin,
                first_loaded: hit.first_loaded,
                first_initialized: hit.first_initialized,
            }
        };
        listing.lines.iter().zip(self.0).map(listed).collect()
    }
}

/// Returns what a class contributes to a line: the usage, an example, and, if the usage is unknown, the
/// reason.
fn usage_of(selector: &Selector, class: &LoadedClass) -> (LineUsage, String, Option<&'static str>) {
    let has_run = class.state >= State::Initializing;
    let Selector::Method { name, descriptor, .. } = selector else {
        let usage = if has_run { LineUsage::Initialized } else { LineUsage::Loaded };
        return (usage, class.name.to_string(), None);
    };
    // A method that the class does not declare may be inherited; then another class has its counters.
    let inherited =
        (LineUsage::Unknown, class.name.to_string(), Some("not declared in this class"));
    let mut best = None;
    for method in &class.methods {
        let is_meant = *method.name == **name
            && descriptor.as_ref().is_none_or(|selector| *method.descriptor == **selector);
        if !is_meant {
            continue;
        }
        let (usage, why) = match method.usage {
            Usage::Called => (LineUsage::Called, None),
            Usage::Unknown(why) => (LineUsage::Unknown, Some(why.name())),
            Usage::NotCalled | Usage::Abstract if has_run => (LineUsage::NotCalled, None),
            Usage::NotCalled | Usage::Abstract => (LineUsage::Loaded, None),
        };
        if best.as_ref().is_none_or(|(known, _, _)| usage > *known) {
            let example = format!("{}#{}{}", class.name, method.name, method.descriptor);
            best = Some((usage, example, why));
        }
    }
    match best {
        Some(best) => best,
        None if has_run => inherited,
        None => (LineUsage::Loaded, class.name.to_string(), None),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use libjvmprobe::hotspot::loaded::{LoadedMethod, Why};

    use super::*;

    fn class(state: State, usages: &[(&str, Usage)]) -> LoadedClass {
        let method = |&(name, usage): &(&str, Usage)| LoadedMethod {
            name: name.into(),
            descriptor: "()V".into(),
            usage,
            counted: 0,
            is_compiled: false,
        };
        LoadedClass {
            name: "a.B".into(),
            is_hidden: false,
            loader: 0,
            state,
            initializer: None,
            module: None,
            module_location: None,
            source: None,
            has_source_read: true,
            is_archived: false,
            is_redefined: None,
            bytes: 0,
            methods: usages.iter().map(method).collect(),
        }
    }

    fn match_class(line: &str, classes: &[LoadedClass]) -> (&'static str, bool) {
        let (listing, mut hits) = listing(line);
        for class in classes {
            let kind = crate::origin::Kind::Jar;
            hits.match_class(&listing, class, &Origin { kind, name: "/a.jar".into() });
        }
        let listed = hits.into_listed(&listing, 1).remove(0);
        (listed.found, listed.in_use)
    }

    fn listing(line: &str) -> (Listing, Hits) {
        let selector = Selector::parse(line).unwrap().unwrap();
        let line = Line { text: line.to_owned(), selector, vulnerability: None };
        let listing = Listing::new(vec![line]);
        let hits = Hits::new(&listing);
        (listing, hits)
    }

    #[test]
    fn events_determine_usage_after_jvm_exit() {
        let changed = |class: &str, event| Changed {
            time: String::new(),
            ts_ns: 7,
            pid: 1,
            tid: 1,
            thread: "main".into(),
            event,
            class: class.into(),
            boot_loader: false,
            archived: None,
            duration_ns: None,
            stack: None,
        };
        for (line, class, events, expected) in [
            ("a.*", "a.b.C", &["loaded", "initialized"][..], ("initialized", true)),
            ("a.B", "a.B", &["loaded"], ("loaded", false)),
            ("a.B", "a.B", &["unloaded"], ("not loaded", false)),
            ("a.B", "a.C", &["initialized"], ("not loaded", false)),
            ("a.B#run", "a.B", &["loaded", "failed"], ("unknown", true)),
            ("a.B#run", "a.B", &["loaded"], ("loaded", false)),
        ] {
            let (listing, mut hits) = listing(line);
            for event in events {
                hits.record_event(&listing, &changed(class, event));
            }
            hits.ended(&listing);
            let listed = hits.into_listed(&listing, 1).remove(0);
            assert_eq!((listed.found, listed.in_use), expected, "{line} {class} {events:?}");
            assert_eq!(listed.first_loaded.is_some(), events[0] == "loaded");
        }
    }

    #[test]
    fn called_and_unknown_methods_count_as_in_use() {
        let unknown = Usage::Unknown(Why::Small);
        let usages = [("called", Usage::Called), ("not", Usage::NotCalled), ("small", unknown)];
        let ready = class(State::Initialized, &usages);
        for (line, found, in_use) in [
            ("a.B", "initialized", true),
            ("a.*", "initialized", true),
            ("a.C", "not loaded", false),
            ("a.B#called", "called", true),
            ("a.B#not", "not called", false),
            ("a.B#small", "unknown", true),
            ("a.B#inherited", "unknown", true),
            ("a.B#called(I)V", "unknown", true),
        ] {
            assert_eq!(match_class(line, std::slice::from_ref(&ready)), (found, in_use), "{line}");
        }
        let linked = class(State::Linked, &[("not", Usage::NotCalled)]);
        for line in ["a.B", "a.B#not", "a.B#inherited"] {
            assert_eq!(
                match_class(line, std::slice::from_ref(&linked)),
                ("loaded", false),
                "{line}"
            );
        }
        // Each of two loaders has a class of this name.
        for classes in [[linked.clone(), ready.clone()], [ready, linked]] {
            assert_eq!(match_class("a.B#called", &classes), ("called", true));
        }
    }
}

//! Decides which classes of a jar stay: those in the reports, those that the keep list or the jar's files
//! name, and all classes to which a class that stays refers.

use std::collections::HashSet;

use anyhow::{Context, Result, ensure};

use crate::{
    list_line::Selector,
    strip::{constants, jar::Jar, names::Names},
};

/// Suffixes of files that name classes: the manifest, services, configuration of frameworks.
const NAMING: [&str; 6] = [".xml", ".properties", ".json", ".yml", ".yaml", ".MF"];
/// Folders in which any file may name classes.
const NAMING_FOLDERS: [&str; 2] = ["META-INF/", "WEB-INF/"];

const MANIFEST: &str = "META-INF/MANIFEST.MF";

/// Reason why a class stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepReason {
    /// A report has it.
    Seen,
    /// The keep-list has it.
    Listed,
    /// A file of the jar names it.
    Named(String),
    /// A class that stays refers to it.
    Referred(String),
}

/// A class of a jar.
#[derive(Debug)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// Indexes of its entries: several in a multi-release jar.
    pub entries: Vec<usize>,
    /// The reason why it stays; `None` if it does not.
    pub why: Option<KeepReason>,
}

/// Decides for each class whether it stays. In a multi-release jar, either all versions of a class stay
/// or none.
pub fn decide(jar: &Jar, seen: &HashSet<String>, list: &[Selector]) -> Result<Vec<Class>> {
    let mut names = Names::default();
    let mut classes: Vec<Class> = Vec::new();
    for (number, entry) in jar.entries.iter().enumerate() {
        let Some(name) = &entry.class else { continue };
        match classes.get_mut(names.add(name)) {
            Some(known) => known.entries.push(number),
            None => {
                classes.push(Class { name: name.clone(), entries: vec![number], why: None });
            }
        }
    }
    let mut queue = Queue { classes, open: Vec::new() };
    for (number, class) in queue.classes.iter_mut().enumerate() {
        if seen.contains(&class.name) {
            class.why = Some(KeepReason::Seen);
        } else if list.iter().any(|selector| selector.matches_class(&class.name)) {
            class.why = Some(KeepReason::Listed);
        } else {
            continue;
        }
        queue.open.push(number);
    }
    ensure!(
        queue.classes.iter().any(|class| class.why == Some(KeepReason::Seen)),
        "the reports contain no class of this jar: did the program run with another jar?"
    );
    for entry in jar.entries.iter().filter(|entry| entry.class.is_none()) {
        let name = || KeepReason::Named(entry.path.clone());
        if entry.path.ends_with(".class") {
            // module-info and package-info stay, and all classes that they refer to.
            let bytes = jar.read(entry)?;
            for text in constants::texts(&bytes).into_iter().flatten() {
                names.find_in_text(text, |class| queue.keep(class, name));
            }
        } else if names_classes(&entry.path) {
            let text = jar.read(entry)?;
            let text = if entry.path == MANIFEST { unfolded(&text) } else { text };
            names.find_in_text(&text, |class| queue.keep(class, name));
        }
    }
    while let Some(number) = queue.open.pop() {
        let Some(Class { name, entries, .. }) = queue.classes.get(number) else { continue };
        let (by, entries) = (name.clone(), entries.clone());
        for entry in entries.iter().filter_map(|&entry| jar.entries.get(entry)) {
            let bytes = jar.read(entry)?;
            let texts = constants::texts(&bytes)
                .with_context(|| format!("{} is not a class file", entry.path))?;
            for text in texts {
                names.find_in_text(text, |class| {
                    queue.keep(class, || KeepReason::Referred(by.clone()))
                });
            }
        }
    }
    Ok(queue.classes)
}

/// All classes, and the indexes of those that stay and were not searched for references yet.
struct Queue {
    classes: Vec<Class>,
    open: Vec<usize>,
}

impl Queue {
    fn keep(&mut self, number: usize, why: impl FnOnce() -> KeepReason) {
        if let Some(class) = self.classes.get_mut(number)
            && class.why.is_none()
        {
            class.why = Some(why());
            self.open.push(number);
        }
    }
}

fn names_classes(path: &str) -> bool {
    !path.ends_with('/')
        && !path.ends_with(".jar")
        && (NAMING.iter().any(|end| path.ends_with(end))
            || NAMING_FOLDERS.iter().any(|folder| path.starts_with(folder)))
}

/// Joins a manifest's folded lines: they are split at 72 bytes, and a continuation begins with a space.
fn unfolded(text: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(text);
    text.replace("\r\n ", "").replace("\n ", "").into_bytes()
}

impl KeepReason {
    /// Returns the reason's name in reports and JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::Listed => "listed",
            Self::Named(_) => "named",
            Self::Referred(_) => "referred to",
        }
    }

    /// Returns the file or class that names or refers to it.
    pub fn by(&self) -> Option<&str> {
        match self {
            Self::Seen | Self::Listed => None,
            Self::Named(by) | Self::Referred(by) => Some(by),
        }
    }
}

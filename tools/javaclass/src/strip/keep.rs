//! Which classes of a jar stay: those that were seen, those that its files and a list name, and
//! all that these refer to.

use std::collections::HashSet;

use anyhow::{Context, Result, ensure};

use crate::{
    strip::{constants, jar::Jar, names::Names},
    wanted::Wanted,
};

/// Files that name classes: the manifest, services, what frameworks read.
const NAMING: [&str; 6] = [".xml", ".properties", ".json", ".yml", ".yaml", ".MF"];
/// All files in there do.
const NAMING_FOLDERS: [&str; 2] = ["META-INF/", "WEB-INF/"];

const MANIFEST: &str = "META-INF/MANIFEST.MF";

/// Why a class stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
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
    /// The entries that have it: several where there are versions of it.
    pub entries: Vec<usize>,
    /// Why it stays, if it does.
    pub why: Option<Why>,
}

/// Decides of each class. A class is the same in all its versions.
pub fn decide(jar: &Jar, seen: &HashSet<String>, list: &[Wanted]) -> Result<Vec<Class>> {
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
            class.why = Some(Why::Seen);
        } else if list.iter().any(|wanted| wanted.is_of(&class.name)) {
            class.why = Some(Why::Listed);
        } else {
            continue;
        }
        queue.open.push(number);
    }
    ensure!(
        queue.classes.iter().any(|class| class.why == Some(Why::Seen)),
        "no report has seen a class of it: is it the jar that ran?"
    );
    for entry in jar.entries.iter().filter(|entry| entry.class.is_none()) {
        let name = || Why::Named(entry.path.clone());
        if entry.path.ends_with(".class") {
            // Descriptions of modules and packages stay, and all that they refer to.
            let bytes = jar.read(entry)?;
            for text in constants::texts(&bytes).into_iter().flatten() {
                names.in_text(text, |class| queue.keep(class, name));
            }
        } else if names_classes(&entry.path) {
            let text = jar.read(entry)?;
            let text = if entry.path == MANIFEST { unfolded(&text) } else { text };
            names.in_text(&text, |class| queue.keep(class, name));
        }
    }
    while let Some(number) = queue.open.pop() {
        let Some(Class { name, entries, .. }) = queue.classes.get(number) else { continue };
        let (by, entries) = (name.clone(), entries.clone());
        for entry in entries.iter().filter_map(|&entry| jar.entries.get(entry)) {
            let bytes = jar.read(entry)?;
            let texts = constants::texts(&bytes)
                .with_context(|| format!("{} is no class file", entry.path))?;
            for text in texts {
                names.in_text(text, |class| queue.keep(class, || Why::Referred(by.clone())));
            }
        }
    }
    Ok(queue.classes)
}

/// Classes that stay, and those of them that were not looked into yet.
struct Queue {
    classes: Vec<Class>,
    open: Vec<usize>,
}

impl Queue {
    fn keep(&mut self, number: usize, why: impl FnOnce() -> Why) {
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

/// A manifest's lines are cut at 72 bytes, and go on behind a blank.
fn unfolded(text: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(text);
    text.replace("\r\n ", "").replace("\n ", "").into_bytes()
}

impl Why {
    /// As people and JSON read it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::Listed => "listed",
            Self::Named(_) => "named",
            Self::Referred(_) => "referred to",
        }
    }

    /// What names it or refers to it.
    pub fn by(&self) -> Option<&str> {
        match self {
            Self::Seen | Self::Listed => None,
            Self::Named(by) | Self::Referred(by) => Some(by),
        }
    }
}

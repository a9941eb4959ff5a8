//! Finds the first jar of the class path that has a class of a given name or, if no jar has it, the first
//! folder. The class comes from there unless a loader searches differently. This index is used if the JVM's
//! objects cannot be read.

use std::{collections::HashMap, path::Path};

use libjvmprobe::process::{Target, root::Root};

use crate::{
    jars::{
        path::{class_path, is_jar},
        zip::{self, Limits},
    },
    origin::{Kind, Origin},
};

/// Index of a JVM's class path.
#[derive(Debug, Default)]
pub struct Index {
    /// Paths of jars, and of jars within them, in order.
    jars: Vec<String>,
    /// Index into `jars`, by class.
    classes: HashMap<String, usize>,
    folders: Vec<String>,
    root: Option<Root>,
}

impl Index {
    /// Reads the central directories of the jars on a JVM's class path. Skips unreadable jars.
    pub fn read(target: &Target) -> Self {
        let mut index = Self { root: Root::open(&target.process).ok(), ..Self::default() };
        let mut limits = Limits::default();
        let path = index.root.as_ref().map(|root| class_path(target, root, &mut limits));
        for path in path.unwrap_or_default() {
            if !is_jar(&path) {
                index.folders.push(path);
                continue;
            }
            let opened = index.root.as_ref().and_then(|root| root.file(Path::new(&path)).ok());
            match opened.map(|file| zip::classes(&file, &mut limits)) {
                Some(Ok(found)) => {
                    for (inner, classes) in found {
                        index.add(&path, &inner, classes);
                    }
                }
                _ => log::debug!("skipping {path}"),
            }
        }
        index
    }

    fn add(&mut self, path: &str, inner: &str, classes: impl IntoIterator<Item = String>) {
        let number = self.jars.len();
        let jar = if inner.is_empty() { path.to_owned() } else { format!("{path}!/{inner}") };
        self.jars.push(jar);
        for class in classes {
            self.classes.entry(class).or_insert(number);
        }
    }

    /// Returns the supposed origin of a class of this name.
    pub fn find(&self, class: &str) -> Option<Origin> {
        if let Some(jar) = self.classes.get(class).and_then(|&number| self.jars.get(number)) {
            return Some(Origin { kind: Kind::Jar, name: jar.clone() });
        }
        // `..` in a name cannot lead out of the folder, because names with empty parts are excluded.
        let is_plain = class.split('.').all(|part| !part.is_empty() && !part.contains('/'));
        let file = format!("{}.class", class.replace('.', "/"));
        let has = |folder: &&String| {
            let path = Path::new(folder).join(&file);
            is_plain && self.root.as_ref().is_some_and(|root| root.file(&path).is_ok())
        };
        let folder = self.folders.iter().find(has)?;
        Some(Origin { kind: Kind::Directory, name: format!("{}/", folder.trim_end_matches('/')) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_returns_the_first_jar_that_contains_the_class() {
        let mut index = Index::default();
        index.add("/a.jar", "", ["x.Both".into(), "x.Mine".into()]);
        index.add("/b.jar", "BOOT-INF/lib/c.jar", ["x.Both".into(), "x.Other".into()]);
        let find = |class| index.find(class).map(|origin| origin.name);
        assert_eq!(find("x.Both").as_deref(), Some("/a.jar"));
        assert_eq!(find("x.Other").as_deref(), Some("/b.jar!/BOOT-INF/lib/c.jar"));
        for none in ["x.None", "", "..", "a..b", "a/b"] {
            assert_eq!(find(none), None, "{none}");
        }
    }
}

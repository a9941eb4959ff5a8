//! Classes in the jars that a JVM uses, whether loaded or not.
//!
//! | module | contents |
//! |---|---|
//! | `zip` | the classes of an archive and of archives within it |
//! | `folder` | the classes and jars of a folder |
//! | `jimage` | the classes of the JDK |
//! | `path` | the jars and folders that a JVM was started with |
//! | [`index`] | the jar that has a class of a given name |

mod folder;
pub mod index;
mod jimage;
mod path;
mod zip;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::Path,
    sync::Arc,
};

use anyhow::{Context, Result, anyhow};
use libjvmprobe::process::{Target, root::Root};

use crate::{
    origin::Kind,
    record::{Class, Unused},
};
use path::is_jar;
use zip::Limits;
pub use zip::class_of;

/// State of a class that no loader has loaded.
pub const NOT_LOADED: &str = "not loaded";

/// The classes of a JVM by name, and the jars that they come from.
#[derive(Debug, Default)]
pub struct JvmClasses {
    /// By class name: whether the initialisation of a class of this name, of any loader, has begun.
    initialized: HashMap<String, bool>,
    /// Paths of jars and folders.
    jar_paths: BTreeSet<String>,
}

impl JvmClasses {
    /// Adds a class.
    pub fn add(&mut self, class: &Class, has_run: bool) {
        if class.hidden {
            return;
        }
        *self.initialized.entry(class.class.clone()).or_default() |= has_run;
        if matches!(class.origin_kind, Kind::Jar | Kind::Directory) {
            let outer = class.origin.split("!/").next().unwrap_or_default();
            self.jar_paths.insert(outer.trim_end_matches('/').to_owned());
        }
    }
}

/// Usage of a jar's classes.
#[derive(Debug)]
pub struct Jar {
    /// Its path; the path of a jar within another one follows `!/`.
    pub path: Arc<str>,
    /// Number of classes in it.
    pub classes: u64,
    /// Its classes that are not loaded, or not initialised.
    pub unused: Vec<Unused>,
}

/// Reads the jars and folders that a JVM was started with and those that loaded classes come from,
/// and the JDK's modules if `with_jdk` is set.
pub fn read_jars(target: &Target, seen: &JvmClasses, with_jdk: bool) -> Result<Vec<Jar>> {
    let root =
        Root::open(&target.process).map_err(|why| anyhow!("cannot access its files: {why}"))?;
    let mut limits = Limits::default();
    let mut paths = seen.jar_paths.clone();
    let path = path::class_path(target, &root, &mut limits);
    paths.extend(path.into_iter().map(|path| path.trim_end_matches('/').to_owned()));
    let mut jars = Vec::new();
    for path in paths {
        let mut read = || -> Result<BTreeMap<String, BTreeSet<String>>> {
            if is_jar(&path) {
                let found = zip::classes(&root.file(path.as_ref())?, &mut limits)?;
                // Each jar within the jar is reported with the path of both.
                found.keys().try_for_each(|_| limits.count_name(&path))?;
                return Ok(found);
            }
            let classes = folder::classes(&root, &path, &mut limits)?;
            Ok(BTreeMap::from([(String::new(), classes)]))
        };
        match read() {
            Ok(found) => jars.extend(jars_in(target, &path, found, seen)),
            Err(error) => log::warn!("skipping {path}: {error:#}"),
        }
    }
    if with_jdk {
        let modules = modules(target, &root).with_context(|| "cannot read the JDK's modules")?;
        jars.extend(
            modules.into_iter().map(|(module, classes)| jar_usage(target, module, classes, seen)),
        );
    }
    Ok(jars)
}

/// Returns the classes of the JDK that a JVM runs, by module.
fn modules(target: &Target, root: &Root) -> Result<BTreeMap<String, BTreeSet<String>>> {
    // The modules are at lib/modules, libjvm.so at lib/server/libjvm.so.
    let lib = target.libjvm.target_path.parent().and_then(Path::parent);
    let path = lib.context("cannot find the directory of the JDK")?.join("modules");
    let file = root.file(&path).with_context(|| path.display().to_string())?;
    jimage::classes(&file).with_context(|| path.display().to_string())
}

fn jars_in(
    target: &Target,
    path: &str,
    found: BTreeMap<String, BTreeSet<String>>,
    seen: &JvmClasses,
) -> Vec<Jar> {
    let jar = |(inner, classes): (String, BTreeSet<String>)| {
        let path = match (inner.is_empty(), is_jar(path)) {
            (true, true) => path.to_owned(),
            (true, false) => format!("{path}/"),
            (false, _) => format!("{path}!/{inner}"),
        };
        jar_usage(target, path, classes, seen)
    };
    found.into_iter().map(jar).collect()
}

fn jar_usage(target: &Target, path: String, classes: BTreeSet<String>, seen: &JvmClasses) -> Jar {
    let count = classes.len() as u64;
    let path: Arc<str> = path.into();
    let unused = classes.into_iter().filter_map(|class| {
        let state = match seen.initialized.get(&class) {
            Some(true) => return None,
            Some(false) => "not initialized",
            None => NOT_LOADED,
        };
        Some(Unused { pid: target.pid().0, jar: Arc::clone(&path), class, state })
    });
    Jar { classes: count, unused: unused.collect(), path: Arc::clone(&path) }
}

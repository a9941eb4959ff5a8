//! The classes and jars of a folder.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Result, bail};
use libjvmprobe::process::root::{Entry, Root};

use crate::jars::{
    path::is_jar,
    zip::{Limits, class_of},
};

/// Maximum depth of folders, because links may form a cycle.
const DEPTH: usize = 32;

/// Returns the classes of a folder and its subfolders.
pub fn classes(root: &Root, path: &str, limits: &mut Limits) -> Result<BTreeSet<String>> {
    let mut classes = BTreeSet::new();
    let mut open = vec![(String::new(), 0)];
    while let Some((below, depth)) = open.pop() {
        for Entry { name, is_folder } in
            root.entries(&Path::new(path).join(&below), limits.entries)?
        {
            limits.count_entry()?;
            let inner = if below.is_empty() { name } else { format!("{below}/{name}") };
            if is_folder && depth < DEPTH {
                open.push((inner, depth + 1));
            } else if is_folder {
                bail!("{inner} is nested too deeply");
            } else {
                classes.extend(class_of(&inner));
            }
        }
    }
    Ok(classes)
}

/// Returns the jars directly in a folder.
pub fn jars(root: &Root, path: &str, limits: &mut Limits) -> Result<Vec<String>> {
    let mut jars = Vec::new();
    for Entry { name, is_folder } in root.entries(Path::new(path), limits.entries)? {
        limits.count_entry()?;
        if !is_folder && is_jar(&name) {
            jars.push(format!("{}/{name}", path.trim_end_matches('/')));
        }
    }
    jars.sort();
    Ok(jars)
}

/// Returns the folders directly in a folder.
pub fn folders(root: &Root, path: &str, limits: &mut Limits) -> Result<Vec<String>> {
    let mut folders = Vec::new();
    for Entry { name, is_folder } in root.entries(Path::new(path), limits.entries)? {
        limits.count_entry()?;
        if is_folder {
            folders.push(format!("{}/{name}", path.trim_end_matches('/')));
        }
    }
    folders.sort();
    Ok(folders)
}

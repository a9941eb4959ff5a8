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
            limits.count_name(&inner)?;
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
            let jar = format!("{}/{name}", path.trim_end_matches('/'));
            limits.count_name(&jar)?;
            jars.push(jar);
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
            let folder = format!("{}/{name}", path.trim_end_matches('/'));
            limits.count_name(&folder)?;
            folders.push(folder);
        }
    }
    folders.sort();
    Ok(folders)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use libjvmprobe::{Pid, process::Process};

    use super::*;

    #[test]
    fn long_names_consume_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..3 {
            let name = format!("{}{number}.class", "n".repeat(50));
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let root = Root::open(&Process::open(Pid(std::process::id())).unwrap()).unwrap();
        let classes = |bytes| {
            let mut limits = Limits { bytes, ..Limits::default() };
            classes(&root, dir.path().to_str().unwrap(), &mut limits)
        };
        assert_eq!(classes(1000).unwrap().len(), 3);
        assert!(classes(100).is_err());
    }
}

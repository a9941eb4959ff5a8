//! Which classes a folder has, and which jars.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Result, bail};
use libjvmprobe::process::root::{Entry, Root};

use crate::jars::{
    path::is_jar,
    zip::{Room, class_of},
};

/// Folders are not deeper within each other; links may lead round in circles.
const DEPTH: usize = 32;

/// The classes of a folder and of those below it, and the jars of the folder itself.
pub fn classes(root: &Root, path: &str, room: &mut Room) -> Result<BTreeSet<String>> {
    let mut classes = BTreeSet::new();
    let mut open = vec![(String::new(), 0)];
    while let Some((below, depth)) = open.pop() {
        for Entry { name, is_folder } in
            root.entries(&Path::new(path).join(&below), room.entries)?
        {
            room.take_entry()?;
            let inner = if below.is_empty() { name } else { format!("{below}/{name}") };
            if is_folder && depth < DEPTH {
                open.push((inner, depth + 1));
            } else if is_folder {
                bail!("{inner} is too deep");
            } else {
                classes.extend(class_of(&inner));
            }
        }
    }
    Ok(classes)
}

/// The jars of a folder.
pub fn jars(root: &Root, path: &str, room: &mut Room) -> Result<Vec<String>> {
    let mut jars = Vec::new();
    for Entry { name, is_folder } in root.entries(Path::new(path), room.entries)? {
        room.take_entry()?;
        if !is_folder && is_jar(&name) {
            jars.push(format!("{}/{name}", path.trim_end_matches('/')));
        }
    }
    jars.sort();
    Ok(jars)
}

/// The folders of a folder.
pub fn folders(root: &Root, path: &str, room: &mut Room) -> Result<Vec<String>> {
    let mut folders = Vec::new();
    for Entry { name, is_folder } in root.entries(Path::new(path), room.entries)? {
        room.take_entry()?;
        if is_folder {
            folders.push(format!("{}/{name}", path.trim_end_matches('/')));
        }
    }
    folders.sort();
    Ok(folders)
}

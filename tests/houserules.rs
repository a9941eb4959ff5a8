//! Rules that hold for all sources, and that nobody sees broken by running them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The sources of the tools and the library.
fn sources() -> Vec<PathBuf> {
    let house = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut folders = vec![house.join("libjvmprobe/src"), house.join("tools")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            match path.extension().and_then(|ending| ending.to_str()) {
                _ if path.is_dir() => folders.push(path),
                Some("rs") => found.push(path),
                _ => {}
            }
        }
    }
    assert!(found.len() > 50, "{found:?}");
    found
}

/// Lines of code with one of some texts, with their places, but for those in one source.
fn lines_with(texts: &[&str], but: &str) -> Vec<String> {
    let mut found = Vec::new();
    for path in sources().iter().filter(|path| !path.ends_with(but)) {
        for (i, line) in fs::read_to_string(path).unwrap().lines().enumerate() {
            let code = line.split("//").next().unwrap();
            if texts.iter().any(|text| code.contains(text)) {
                found.push(format!("{}:{}: {line}", path.display(), i + 1));
            }
        }
    }
    found
}

/// What a path of a target leads to is decided by whoever owns the target: see `jvm::root`.
#[test]
fn one_door_leads_into_a_targets_file_system() {
    let door = "jvm/root.rs";
    let found = lines_with(&["/root", "join(\"root\")", "/cwd", "join(\"cwd\")"], door);
    assert!(found.is_empty(), "only {door} may do this:\n{}", found.join("\n"));
    // And that one does.
    assert!(sources().iter().any(|path| path.ends_with(door)));
    assert!(!lines_with(&["/root"], "nowhere.rs").is_empty());
}

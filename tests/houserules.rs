//! Rules that apply to all sources. No other test would detect a violation of one of these rules.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Returns the sources of the tools and the library.
fn sources() -> Vec<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut folders = vec![repository.join("libjvmprobe/src"), repository.join("tools")];
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

/// Returns the lines of code that contain one of these texts, with their locations. Skips the
/// source file `except_source`.
fn lines_with(texts: &[&str], except_source: &str) -> Vec<String> {
    let mut found = Vec::new();
    for path in sources().iter().filter(|path| !path.ends_with(except_source)) {
        for (i, line) in fs::read_to_string(path).unwrap().lines().enumerate() {
            let code = line.split("//").next().unwrap();
            if texts.iter().any(|text| code.contains(text)) {
                found.push(format!("{}:{}: {line}", path.display(), i + 1));
            }
        }
    }
    found
}

/// The owner of a target controls the links in the target's file system, and thus where a path in
/// it leads. So only one module opens such paths: `process::root`.
#[test]
fn only_one_module_opens_paths_in_a_target_root() {
    let root_module = "process/root.rs";
    let found = lines_with(&["/root", "join(\"root\")", "/cwd", "join(\"cwd\")"], root_module);
    assert!(found.is_empty(), "only {root_module} may do this:\n{}", found.join("\n"));
    // The search works: if it does not skip the module, it finds such paths.
    assert!(sources().iter().any(|path| path.ends_with(root_module)));
    assert!(!lines_with(&["/root"], "nowhere.rs").is_empty());
}

/// The modules that each module of the library may use. Every use counts, except those in unit
/// tests.
const USES: [(&str, &[&str]); 14] = [
    ("cli", &["jvms", "render", "stack", "hotspot", "process", "elf", "sys", "names"]),
    ("render", &["trace", "stack", "bpf", "hotspot", "sys", "names"]),
    (
        "trace",
        &[
            "jvms",
            "stack",
            "bpf",
            "attach",
            "hotspot",
            "unwind",
            "process",
            "native_image",
            "elf",
            "sys",
            "names",
        ],
    ),
    ("jvms", &["bpf", "hotspot", "process", "sys"]),
    ("stack", &["bpf", "hotspot", "process", "native_image", "elf", "sys", "names"]),
    ("bpf", &["hotspot", "unwind", "process", "elf", "sys", "names"]),
    ("attach", &["hotspot", "process", "sys", "names"]),
    ("hotspot", &["process", "elf", "sys", "names"]),
    ("unwind", &["native_image", "elf"]),
    ("process", &["elf", "sys", "names"]),
    ("native_image", &["elf", "names"]),
    ("elf", &["sys"]),
    ("sys", &[]),
    ("names", &[]),
];

#[test]
fn modules_use_exactly_their_listed_dependencies() {
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("libjvmprobe/src");
    let is_module = |name: &str| USES.iter().any(|(module, _)| *module == name);
    let mut found = BTreeSet::new();
    for path in sources().iter().filter(|path| path.starts_with(&library)) {
        let inside = path.strip_prefix(&library).unwrap();
        let module = inside.iter().next().unwrap().to_str().unwrap();
        let is_of_tests = ["testing.rs", "fuzzing.rs"].iter().any(|name| path.ends_with(name));
        if is_of_tests || !is_module(module) {
            continue;
        }
        let text = fs::read_to_string(path).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        // Collects the modules in paths (`crate::sys::x`) and in lists (`crate::{sys::x, elf}`).
        let code: String =
            text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let used = code.split("crate::").skip(1).flat_map(used_by);
        let used = used.filter(|used| used != module && is_module(used));
        found.extend(used.map(|used| (module.to_owned(), used)));
    }
    let pairs = |(module, uses): &(&str, &[&str])| {
        uses.iter().map(|used| ((*module).to_owned(), (*used).to_owned())).collect::<Vec<_>>()
    };
    let listed: BTreeSet<_> = USES.iter().flat_map(pairs).collect();
    let new: Vec<_> = found.difference(&listed).collect();
    assert!(new.is_empty(), "not in the list: {new:?}");
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(gone.is_empty(), "in the list, but no longer used: {gone:?}");
}

/// Each module is listed above all modules that it may use, which rules out cycles.
#[test]
fn listed_module_dependencies_have_no_cycle() {
    for (i, (module, uses)) in USES.iter().enumerate() {
        let above = uses.iter().filter(|used| USES[..=i].iter().any(|(name, _)| name == *used));
        assert_eq!(above.count(), 0, "{module} uses a module that is listed above it");
    }
}

/// Returns the first segment of the path that follows `crate::`, or of each path if a list in
/// braces follows.
fn used_by(part: &str) -> Vec<String> {
    let first =
        |path: &str| path.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let Some(list) = part.strip_prefix('{') else { return vec![first(part)] };
    let (mut depth, mut at, mut used) = (0, 0, Vec::new());
    for (i, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                used.push(first(&list[at..i]));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                used.push(first(&list[at..i]));
                at = i + 1;
            }
            _ => {}
        }
    }
    used
}

#[test]
fn use_lists_are_parsed() {
    assert_eq!(used_by("sys::note;"), ["sys"]);
    assert_eq!(used_by("{Error, bpf::{a, b::{c}}, own}; x, y"), ["Error", "bpf", "own"]);
}

/// Each function for fuzzers has a fuzz target, because otherwise no fuzzer would call it. Each
/// target is listed in Cargo.toml, because otherwise it would not be built.
#[test]
fn each_fuzzing_function_has_a_fuzz_target() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let read = |path: &str| fs::read_to_string(repository.join(path)).unwrap();
    let named = |text: &str, before: &str, behind: char| -> BTreeSet<String> {
        let names = text.lines().filter_map(|line| line.strip_prefix(before)?.split_once(behind));
        names.map(|(name, _)| name.to_owned()).collect()
    };
    let offered = named(&read("libjvmprobe/src/fuzzing.rs"), "pub fn ", '(');
    let listed = named(&read("tests/fuzz/Cargo.toml"), "path = \"targets/", '.');
    let fuzzers: BTreeSet<_> = fs::read_dir(repository.join("tests/fuzz/targets"))
        .unwrap()
        .flatten()
        .map(|entry| entry.path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(fuzzers, listed);
    let called: BTreeSet<_> = fuzzers
        .iter()
        .flat_map(|name| {
            let text = read(&format!("tests/fuzz/targets/{name}.rs"));
            let calls = text.split("libjvmprobe::fuzzing::").skip(1).map(|call| {
                call.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>()
            });
            calls.collect::<Vec<_>>()
        })
        .collect();
    assert!(offered.len() > 10, "{offered:?}");
    assert_eq!(offered, called);
}

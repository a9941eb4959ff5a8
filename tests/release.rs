//! Releases: the archive, the checks before a build, paths in the tools, and GitHub's workflows.
//!
//! `make release` itself compares two complete builds, which takes too long for a test.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use jvmprobe_tests::{receiver::downloaded_path, run_beside_others, tool::binary};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn repository_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Runs a command and returns whether it succeeded, and its output.
fn run(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// Writes files with these names to `root/tree` in this order, and packs the directory.
fn archive(root: &Path, names: &[&str], mode: u32, text: &str) -> Vec<u8> {
    let (tree, archive) = (root.join("tree"), root.join("tree.tar.gz"));
    for name in names {
        let path = tree.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
    let script = repository_root().join("tests/archive");
    let mut command = Command::new(script);
    command.args([&tree, &archive]).env("SOURCE_DATE_EPOCH", "1700000000");
    let (good, said) = run(&mut command);
    assert!(good, "{said}");
    fs::read(archive).unwrap()
}

#[test]
fn archive_depends_only_on_names_and_content() {
    run_beside_others();
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [first, second, other] = folders.each_ref().map(tempfile::TempDir::path);
    let packed = archive(first, &["b/x", "a", "c"], 0o644, "text");
    assert_eq!(packed, archive(second, &["c", "a", "b/x"], 0o600, "text"));
    assert_ne!(packed, archive(other, &["c", "a", "b/x"], 0o600, "TEXT"));
    let mut list = Command::new("tar");
    list.args(["--utc", "--numeric-owner", "-tvzf"]).arg(first.join("tree.tar.gz"));
    let (good, listed) = run(&mut list);
    assert!(good, "{listed}");
    let lines: Vec<_> = listed.lines().collect();
    assert_eq!(lines.len(), 5, "{listed}");
    for (line, name) in lines.iter().zip(["tree/", "tree/a", "tree/b/", "tree/b/x", "tree/c"]) {
        assert!(line.ends_with(&format!("2023-11-14 22:13 {name}")), "{listed}");
        assert!(line.contains(" 0/0 "), "{listed}");
        assert!(["-rw-r--r--", "drwxr-xr-x"].contains(&&line[..10]), "{listed}");
    }
}

/// A repository with the files that `tests/release check` reads.
struct Repository {
    root: tempfile::TempDir,
}

impl Repository {
    fn create() -> Self {
        let root = tempfile::tempdir().unwrap();
        let pages = fs::read_dir(repository_root().join("man")).unwrap().flatten();
        let pages = pages.map(|entry| PathBuf::from("man").join(entry.file_name()));
        let pages = pages.filter(|path| path.extension().is_some_and(|section| section == "8"));
        let files = ["tests/release", "Cargo.toml", "CHANGELOG.md"].map(PathBuf::from);
        for path in pages.chain(files) {
            let to = root.path().join(&path);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(repository_root().join(&path), to).unwrap();
        }
        let repository = Self { root };
        repository.git(&["init", "-q"]);
        repository.commit();
        repository
    }

    fn git(&self, args: &[&str]) {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=test", "-c", "user.email=test@example.org"]);
        command.args(["-c", "commit.gpgSign=false", "-c", "tag.gpgSign=false"]);
        let (good, said) = run(command.args(args).current_dir(&self.root));
        assert!(good, "{said}");
    }

    fn commit(&self) {
        self.git(&["add", "."]);
        self.git(&["commit", "-q", "-m", "state"]);
    }

    /// Replaces the first line that begins with `start`, and commits the change.
    fn replace_line(&self, path: &str, start: &str, line: &str) {
        let path = self.root.path().join(path);
        let text = fs::read_to_string(&path).unwrap();
        let old = text.lines().find(|line| line.starts_with(start)).unwrap();
        fs::write(&path, text.replacen(old, line, 1)).unwrap();
        self.commit();
    }

    fn check(&self) -> (bool, String) {
        run(Command::new(self.root.path().join("tests/release")).arg("check"))
    }

    /// Checks that a release is refused with a message that contains these texts.
    fn assert_refused(&self, texts: &[&str]) {
        let (good, said) = self.check();
        assert!(!good && texts.iter().all(|text| said.contains(text)), "{texts:?}: {said}");
    }
}

#[test]
fn release_requires_clean_tree_and_equal_versions() {
    run_beside_others();
    let repository = Repository::create();
    // The versions of this repository are equal. Without a tag, the files are not a release.
    let (good, said) = repository.check();
    assert!(good && said.contains("no tag") && said.contains("trials"), "{said}");

    let stray = repository.root.path().join("stray");
    fs::write(&stray, "").unwrap();
    repository.assert_refused(&["differ from the commit", "?? stray"]);
    fs::remove_file(stray).unwrap();

    let title = format!(r#".TH JAVAGC 8 "2026-11-25" "jvmprobe {VERSION}""#);
    repository.replace_line("man/javagc.8", ".TH", &title.replace(VERSION, "0.0.1"));
    repository.assert_refused(&[VERSION, "man/javagc.8", ".TH"]);
    repository.replace_line("man/javagc.8", ".TH", &title);

    repository.replace_line("CHANGELOG.md", "## ", "## 0.0.1 - 2026-01-02");
    repository.assert_refused(&[VERSION, "CHANGELOG.md", "0.0.1"]);
    repository.replace_line("CHANGELOG.md", "## ", &format!("## {VERSION} - Unreleased"));
    assert!(repository.check().0);

    repository.git(&["tag", "v0.0.1"]);
    repository.assert_refused(&[VERSION, "v0.0.1"]);
    repository.git(&["tag", "-d", "v0.0.1"]);
    repository.git(&["tag", &format!("v{VERSION}")]);
    repository.assert_refused(&["CHANGELOG.md", "Unreleased", "date"]);
    repository.replace_line("CHANGELOG.md", "## ", &format!("## {VERSION} - 2026-01-02"));
    repository.git(&["tag", "-f", &format!("v{VERSION}")]);
    assert_eq!(repository.check(), (true, String::new()));
}

/// The names of sources in the BTF of a tool's BPF programs do not depend on the directories of the build.
#[test]
fn bpf_programs_contain_only_relative_paths() {
    run_beside_others();
    for (tool, source) in [
        ("javagc", "libjvmprobe/../bpf/javagc.bpf.c"),
        ("javaclass", "javaclass/../../bpf/javaclass.bpf.c"),
    ] {
        let bytes = fs::read(binary(tool)).unwrap();
        let texts = bytes.split(|byte| *byte == 0);
        let paths = texts.filter(|text| text.ends_with(b".bpf.c") || text.ends_with(b".bpf.h"));
        let paths: Vec<_> = paths.map(String::from_utf8_lossy).collect();
        assert!(paths.iter().any(|path| path == source), "{paths:?}");
        assert!(paths.iter().any(|path| path.ends_with("/libbpf/bpf/usdt.bpf.h")), "{paths:?}");
        assert!(!paths.iter().any(|path| path.starts_with('/')), "{paths:?}");
    }
}

/// Validates a workflow against GitHub's schema, and against one that requires time limits.
fn validate(path: &Path) -> (bool, String) {
    let mut said = String::new();
    for schema in ["vendor.github-workflows", "custom.github-workflows-require-timeout"] {
        let mut command = Command::new("python3");
        command.args(["-m", "check_jsonschema", "--builtin-schema", schema]).arg(path);
        let (good, text) = run(command.env("PYTHONPATH", downloaded_path("workflows")));
        said += &text;
        if !good {
            return (false, said);
        }
    }
    (true, said)
}

#[test]
fn workflows_are_valid_and_pin_what_they_run() {
    run_beside_others();
    let makefile = fs::read_to_string(repository_root().join("Makefile")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (name, targets) in [("ci.yml", &["lint", "test"][..]), ("release.yml", &["release"])] {
        let path = repository_root().join(".github/workflows").join(name);
        let text = fs::read_to_string(&path).unwrap();
        let (good, said) = validate(&path);
        assert!(good, "{said}");
        for wrong in [("runs-on:", "runs_on:"), ("timeout-minutes:", "name:")] {
            let path = folder.path().join(name);
            fs::write(&path, text.replacen(wrong.0, wrong.1, 1)).unwrap();
            assert!(!validate(&path).0, "the validator accepts {wrong:?}");
        }
        // By default, jobs may only read. Actions are pinned by commit, because tags can be moved.
        assert!(text.contains("\npermissions:\n  contents: read\n") && !text.contains("secrets."));
        let actions = text.lines().filter_map(|line| line.trim().strip_prefix("- uses: "));
        let commits = actions.map(|action| action.split(['@', ' ']).nth(1).unwrap());
        let commits: Vec<_> = commits.collect();
        assert_eq!(commits.len(), text.matches("uses: ").count(), "{name}: {commits:?}");
        for commit in commits {
            let is_hex = commit.chars().all(|digit| digit.is_ascii_hexdigit());
            assert!(commit.len() == 40 && is_hex, "{name}: {commit}");
        }
        let made: Vec<_> = text.lines().filter_map(|line| line.split_once("run: make ")).collect();
        assert_eq!(made.iter().map(|(_, target)| *target).collect::<Vec<_>>(), targets);
        for target in targets {
            assert!(makefile.contains(&format!("\n{target}: ")), "{target}");
        }
    }
}

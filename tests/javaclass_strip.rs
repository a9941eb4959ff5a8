//! `javaclass strip`: with the stripped jars, a program can still do everything that it did before
//! the report was made.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use cafebabe::{ParseOptions, constant_pool::ConstantPoolItem, parse_class_with_options};
use jvmprobe_tests::{
    load::{self, Load},
    programs::jars,
    run_beside_others,
    runtimes::{self, Runtime},
    tool::{Output, run},
};
use tempfile::TempDir;

/// A program that runs from jars.
struct Program {
    jars: Vec<PathBuf>,
    main: &'static str,
}

impl Program {
    fn start(&self, runtime: &Runtime, jars: &[PathBuf]) -> Load {
        let path: Vec<_> = jars.iter().map(|jar| jar.to_str().unwrap()).collect();
        let path = format!("{}:{}", path.join(":"), load::classes().display());
        Load::start_jar(runtime, "-Xmx256m", Path::new(&path), self.main)
    }

    /// Runs the load. Returns its answer, and a report of its used classes.
    fn report(&self, runtime: &Runtime, dir: &TempDir) -> (String, PathBuf) {
        let mut load = self.start(runtime, &self.jars);
        let answer = load.ask("go 3");
        let output = run("javaclass", &["-p", &load.pid().to_string(), "-j"]);
        assert!(output.status.success(), "{output:?}");
        load.quit();
        let report = dir.path().join("report.json");
        fs::write(&report, output.stdout).unwrap();
        (answer, report)
    }
}

fn strip(report: &Path, jar: &Path, more: &[&str]) -> Output {
    let (report, jar) = (report.to_str().unwrap(), jar.to_str().unwrap());
    run("javaclass", &[&["strip", "--report", report, "-j", jar], more].concat())
}

/// Returns the classes of a jar with the classes to which each refers, read by a parser that
/// javaclass does not use.
fn references(jar: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let archive = rawzip::ZipArchive::from_slice(fs::read(jar).unwrap()).unwrap();
    let mut classes = BTreeMap::new();
    let mut entries = archive.entries();
    while let Some(entry) = entries.next_entry().unwrap() {
        let path = str::from_utf8(entry.file_path().as_bytes()).unwrap().to_owned();
        let Some(name) = path.strip_suffix(".class") else { continue };
        if name.ends_with("-info") {
            continue;
        }
        let packed = archive.get_entry(entry.wayfinder()).unwrap();
        let mut bytes = Vec::new();
        let mut unpack = flate2::read::DeflateDecoder::new(packed.data());
        std::io::Read::read_to_end(&mut unpack, &mut bytes).unwrap();
        let mut options = ParseOptions::default();
        let class = parse_class_with_options(&bytes, options.parse_bytecode(false)).unwrap();
        let name =
            name.strip_prefix("META-INF/versions/").map_or(name, |n| n.split_once('/').unwrap().1);
        let referred: &mut BTreeSet<String> = classes.entry(name.to_owned()).or_default();
        for item in class.constantpool_iter() {
            match item {
                ConstantPoolItem::ClassInfo(name) => {
                    let name = name.trim_start_matches('[');
                    let inner = name.strip_prefix('L').and_then(|name| name.strip_suffix(';'));
                    referred.insert(inner.unwrap_or(name).to_owned());
                }
                ConstantPoolItem::NameAndType(of) => {
                    let parts = of.descriptor.split(';').filter_map(|part| part.split_once('L'));
                    referred.extend(parts.map(|(_, name)| name.to_owned()));
                }
                _ => {}
            }
        }
    }
    classes
}

/// Strips a program's jars, and asserts that the program gives the same answer with the stripped
/// jars.
fn check(program: &Program, runtime: &str) {
    run_beside_others();
    let runtime = runtimes::named(runtime);
    let dir = tempfile::tempdir().unwrap();
    let (answer, report) = program.report(runtime, &dir);
    let (mut small, mut all, mut left) = (Vec::new(), 0, 0);
    for jar in &program.jars {
        let before = fs::read(jar).unwrap();
        let out = dir.path().join(jar.file_name().unwrap());
        let output = strip(&report, jar, &[out.to_str().unwrap()]);
        assert_eq!(fs::read(jar).unwrap(), before, "{} has changed", jar.display());
        if !output.status.success() {
            // No class of this jar was used, so the complete jar can be removed.
            assert!(output.stderr.contains("the reports contain no class"), "{output:?}");
            continue;
        }
        let records = output.json();
        let total = records.last().unwrap();
        all += total["classes"].as_u64().unwrap();
        let (of_all, of_left) = (references(jar), references(&out));
        left += of_left.len();
        // The records agree with the contents of the stripped jar.
        for class in &records[..records.len() - 1] {
            let name = class["class"].as_str().unwrap().replace('.', "/");
            assert_eq!(class["kept"], of_left.contains_key(&name), "{class}");
        }
        assert_eq!(records.len() - 1, of_all.len(), "{}", jar.display());
        // Every class to which a remaining class refers also remains, if it was in the jar.
        for (class, referred) in &of_left {
            let lost: Vec<_> = referred
                .iter()
                .filter(|name| of_all.contains_key(*name) && !of_left.contains_key(*name))
                .collect();
            assert!(lost.is_empty(), "{class} refers to {lost:?}");
        }
        small.push(out);
    }
    println!("{} {}: {left} of {all} classes left", runtime.name, program.main);
    assert!(
        left as u64 * 50 < all * 49,
        "almost no classes were removed: {left} of {all} are left"
    );
    let mut load = program.start(runtime, &small);
    assert_eq!(load.ask("go 3"), answer, "{}", runtime.name);
    load.quit();
}

fn tomcat() -> Program {
    Program { jars: jars("tomcat"), main: "ServletLoad" }
}

fn h2() -> Program {
    Program { jars: jars("h2"), main: "SqlLoad" }
}

#[test]
fn stripped_tomcat_gives_the_same_answer() {
    check(&tomcat(), "temurin-21");
}

#[test]
fn stripped_h2_gives_the_same_answer() {
    check(&h2(), "temurin-17");
}

#[test]
#[ignore = "long: make test-all"]
fn stripped_programs_give_the_same_answer_on_other_jdks() {
    for name in ["temurin-11", "temurin-17", "temurin-25"] {
        check(&tomcat(), name);
        check(&h2(), name);
    }
}

/// Creates a jar of `tests/java` with additional files, given by path and content.
fn jar_with_files(dir: &TempDir, files: &[(&str, &str)]) -> PathBuf {
    let folder = dir.path().join("more");
    let jar = load::jar(dir.path());
    for (path, text) in files {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    if !files.is_empty() {
        let mut command = Command::new("jar");
        command.args(["--update", "--file"]).arg(&jar).arg("-C").arg(&folder).arg(".");
        assert!(command.status().unwrap().success());
    }
    jar
}

/// Writes a report with these classes.
fn report(dir: &TempDir, classes: &[&str], end: &str) -> PathBuf {
    let line = |class: &&str| {
        format!(
            r#"{{"type":"class","class":"{class}","origin":"x","state":"initialized","called":0}}"#
        ) + "\n"
    };
    let path = dir.path().join("made.json");
    let text: String = classes.iter().map(line).collect();
    let end = end.replace("COUNT", &classes.len().to_string());
    fs::write(&path, text + &end).unwrap();
    path
}

const END: &str =
    r#"{"type":"summary","classes":COUNT,"complete":true,"unreadable":0,"unloaded":0}"#;

#[test]
fn strip_keeps_classes_named_in_lists_services_and_files() {
    let dir = tempfile::tempdir().unwrap();
    let jar = jar_with_files(
        &dir,
        &[
            ("META-INF/services/java.lang.Runnable", "# of a service\nGcLoad # one\n"),
            ("conf/beans.xml", "<bean class=\"ChurnLoad\"/>"),
            ("text.txt", "CpuLoad"),
        ],
    );
    let report = report(&dir, &["WorkLoad"], END);
    let list = dir.path().join("keep");
    fs::write(&list, "StackLoad\n").unwrap();
    let out = dir.path().join("out.jar");
    let output = strip(&report, &jar, &["--keep", list.to_str().unwrap(), out.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let records = output.json();
    let why = |name: &str| {
        let class = records.iter().find(|class| class["class"] == name).unwrap();
        let word = |field: &str| class[field].as_str().unwrap_or_default().to_owned();
        (word("why"), word("by"))
    };
    let expect = |name: &str, reason: &str, by: &str| {
        assert_eq!(why(name), (reason.to_owned(), by.to_owned()), "{name}");
    };
    expect("WorkLoad", "seen", "");
    expect("StackLoad", "listed", "");
    expect("GcLoad", "named", "META-INF/services/java.lang.Runnable");
    expect("ChurnLoad", "named", "conf/beans.xml");
    expect("WorkLoad$1", "referred to", "WorkLoad");
    expect("CpuLoad", "", "");
    let left = Command::new("jar").args(["--list", "--file"]).arg(&out).output().unwrap();
    let left = String::from_utf8(left.stdout).unwrap();
    let has = |path: &str| left.lines().any(|line| line == path);
    for path in ["text.txt", "conf/beans.xml", "META-INF/MANIFEST.MF", "GcLoad.class"] {
        assert!(has(path), "no {path} in {left}");
    }
    assert!(!has("CpuLoad.class"));
}

/// A program that reads class files as data may need class files that are in no report.
#[test]
fn strip_warns_if_the_program_reads_class_files() {
    let dir = tempfile::tempdir().unwrap();
    let jar = jar_with_files(&dir, &[]);
    let out = dir.path().join("out.jar");
    for (reader, warns) in [("scala.tools.asm.ClassReader", true), ("scala.Option", false)] {
        let report = report(&dir, &["WorkLoad", reader], END);
        let output = strip(&report, &jar, &[out.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
        let line = "reads class files as data, by scala.tools.asm.ClassReader";
        assert_eq!(output.stderr.contains(line), warns, "{output:?}");
        let total = output.json().pop().unwrap();
        assert_eq!(total["readers"].as_array().unwrap().len(), usize::from(warns));
    }
}

#[test]
fn refused_strip_writes_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let jar = jar_with_files(&dir, &[]);
    let good = report(&dir, &["WorkLoad"], END);
    let before = fs::read(&jar).unwrap();
    let out = dir.path().join("out.jar");
    let name = out.to_str().unwrap();
    let refused = |report: &Path, out: &str, word: &str| {
        let output = strip(report, &jar, &[out]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stderr.contains(word), "no {word:?}: {output:?}");
        assert_eq!(fs::read(&jar).unwrap(), before);
        assert!(!dir.path().join("out.jar").exists());
    };
    let output = strip(&good, &jar, &["--warn-only"]);
    assert!(output.status.success() && !out.exists(), "{output:?}");
    assert_eq!(output.json().last().unwrap()["out"], serde_json::Value::Null);
    // The output file is the jar itself, by its path or through a link.
    refused(&good, jar.to_str().unwrap(), "itself");
    let link = dir.path().join("link.jar");
    std::os::unix::fs::symlink(&jar, &link).unwrap();
    refused(&good, link.to_str().unwrap(), "itself");
    // Reports that are incomplete, that contain no class of the jar, or that javaclass has not written.
    for (classes, end, word) in [
        (&["WorkLoad"][..], "", "truncated"),
        (&["WorkLoad"], &END.replace("COUNT", "2"), "--quiet"),
        (&["WorkLoad"], &END.replace("true", "false"), "lacks classes"),
        (&["com.acme.Other"], END, "the reports contain no class"),
        (&[], "{\"type\":\"rates\"}", "no summary"),
        (&[], "nonsense", "not a line of a javaclass -j report"),
    ] {
        refused(&report(&dir, classes, end), name, word);
    }
    let good = report(&dir, &["WorkLoad"], END);
    let signed = dir.path().join("META-INF/ACME.SF");
    fs::create_dir_all(signed.parent().unwrap()).unwrap();
    fs::write(&signed, "").unwrap();
    let copy = dir.path().join("signed.jar");
    fs::copy(&jar, &copy).unwrap();
    let mut command = Command::new("jar");
    command.args(["uf"]).arg(&copy).arg("-C").arg(dir.path()).arg("META-INF/ACME.SF");
    assert!(command.status().unwrap().success());
    let output = strip(&good, &copy, &[name]);
    assert!(output.stderr.contains("is signed") && !out.exists(), "{output:?}");
    // No file can be created in /proc, or in the folder `none`, which does not exist.
    refused(&good, "/proc/out.jar", "cannot write");
    refused(&good, dir.path().join("none/out.jar").to_str().unwrap(), "cannot write");
}

#[test]
fn strip_keeps_all_versions_of_a_class_or_none() {
    let dir = tempfile::tempdir().unwrap();
    let jar = load::jar(dir.path());
    let newer = dir.path().join("newer");
    fs::create_dir_all(&newer).unwrap();
    for class in ["CpuLoad.class", "GcLoad.class"] {
        fs::copy(load::classes().join(class), newer.join(class)).unwrap();
    }
    let mut command = Command::new("jar");
    command.args(["--update", "--file"]).arg(&jar).args(["--release", "17", "-C"]);
    assert!(command.arg(&newer).arg(".").status().unwrap().success());
    let out = dir.path().join("out.jar");
    let report = report(&dir, &["CpuLoad"], END);
    let output = strip(&report, &jar, &[out.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let left = Command::new("jar").args(["--list", "--file"]).arg(&out).output().unwrap();
    let left = String::from_utf8(left.stdout).unwrap();
    for (path, stays) in [
        ("CpuLoad.class", true),
        ("META-INF/versions/17/CpuLoad.class", true),
        ("GcLoad.class", false),
        ("META-INF/versions/17/GcLoad.class", false),
    ] {
        assert_eq!(left.lines().any(|line| line == path), stays, "{path}: {left}");
    }
}

#[test]
fn strip_accepts_merged_reports() {
    let dir = tempfile::tempdir().unwrap();
    let jar = jar_with_files(&dir, &[]);
    let one = report(&dir, &["WorkLoad"], END);
    let output = run("javaclass", &["merge", "-j", one.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let merged = dir.path().join("merged.json");
    fs::write(&merged, &output.stdout).unwrap();
    let tell = |report: &Path| strip(report, &jar, &["--warn-only"]).json();
    assert_eq!(tell(&merged), tell(&one));
    // A report without its last line is truncated.
    let cut: String = output.stdout.lines().take(1).collect();
    fs::write(&merged, cut).unwrap();
    let output = strip(&merged, &jar, &["--warn-only"]);
    assert!(output.stderr.contains("truncated"), "{output:?}");
}

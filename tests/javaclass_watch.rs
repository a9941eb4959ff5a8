//! Compares the JVM's log with the class loads and initialisations that javaclass reports while it
//! watches the JVM. Also checks the list of jar classes that are not loaded.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    process::{Command, Stdio},
};

use jvmprobe_tests::{
    load::{self, Load},
    programs, run_beside_others,
    runtimes::{self, Runtime},
    tool::{Tool, binary, run},
};
use serde_json::Value;

fn text<'a>(record: &'a Value, field: &str) -> &'a str {
    record[field].as_str().unwrap_or_else(|| panic!("no {field} in {record}"))
}

/// Counts names, after removing addresses and numbers of hidden classes.
fn count_names(names: impl Iterator<Item = String>) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for name in names {
        let name = name.split(['/', '+']).next().unwrap().to_owned();
        *counts.entry(name).or_default() += 1;
    }
    counts
}

fn loaded(log: &str) -> BTreeMap<String, u32> {
    let lines = log.lines().filter_map(|line| line.split_once(" source: "));
    count_names(lines.map(|(name, _)| name.trim().to_owned()))
}

fn initialized(log: &str) -> BTreeMap<String, u32> {
    let lines = log.lines().filter_map(|line| line.split_once("Initializing '"));
    count_names(lines.map(|(_, rest)| {
        let name = rest.split('\'').next().unwrap();
        let cut = name.find("/0x").or_else(|| name.find("+0x")).unwrap_or(name.len());
        name[..cut].replace('/', ".")
    }))
}

/// Asserts that each class in a log is reported as often as it is logged, and no other class.
fn compare(title: &str, log: &str, records: &[Value]) {
    let of = |event: &[&str]| {
        let is_meant =
            |record: &&Value| record["type"] == "change" && event.contains(&text(record, "event"));
        let mine = records.iter().filter(is_meant);
        count_names(mine.map(|record| text(record, "class").to_owned()))
    };
    let (logged, reported) = (loaded(log), of(&["loaded"]));
    assert!(logged.len() > 500, "{title}: {}", logged.len());
    assert_eq!(logged, reported, "{title}: loads");
    let (logged, reported) = (initialized(log), of(&["initialized", "failed"]));
    assert!(logged.len() > 300, "{title}: {}", logged.len());
    assert_eq!(logged, reported, "{title}: initialisations");
}

fn check(runtime: &Runtime) {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("classes.log");
    let flags = format!("-Xmx256m -Xlog:class+load,class+init:file={}:none", path.display());
    let mut load = Load::start_program(runtime, &flags, "WorkLoad");
    let pid = load.pid().to_string();
    let tool = Tool::start("javaclass", &["-p", &pid, "-j", "-w"]);
    let before = std::fs::read_to_string(&path).unwrap().len();
    load.ask("go 3");
    let log = std::fs::read_to_string(&path).unwrap();
    let log = &log[before..];
    let records = tool.interrupt().json();
    load.quit();
    compare(&runtime.name, log, &records);
    let last = records.last().unwrap();
    assert_eq!((text(last, "type"), text(last, "scope")), ("rates", "trace"));
}

#[test]
fn every_class_load_and_initialisation_is_reported() {
    for name in ["temurin-11", "temurin-17", "temurin-21", "temurin-25"] {
        check(runtimes::named(name));
    }
}

/// A command is watched from its first class on, even if it is started through a symbolic link.
#[test]
fn every_class_of_a_started_command_is_reported() {
    run_beside_others();
    for (name, flags) in [
        ("temurin-11", ""),
        ("temurin-17", "-Xshare:off"),
        ("temurin-21", ""),
        ("temurin-25", ""),
        ("temurin-25", "-Xshare:off"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (path, words) = (dir.path().join("classes.log"), dir.path().join("words"));
        std::fs::write(&words, "go 1\nquit\n").unwrap();
        let java = dir.path().join("java");
        std::os::unix::fs::symlink(&runtimes::named(name).java, &java).unwrap();
        let mut command = Command::new(binary("javaclass"));
        command.args(["-j", "-w", "--"]).arg(java).args(flags.split_ascii_whitespace());
        command.arg(format!("-Xlog:class+load,class+init:file={}:none", path.display()));
        command.arg("-cp").arg(load::classes()).arg("WorkLoad");
        let words = std::fs::File::open(words).unwrap();
        let output = Tool::spawn_reading(command, words.into()).wait();
        assert!(output.status.success(), "{name} {flags}: {output:?}");
        for word in ["tracing began late", "lost"] {
            assert!(!output.stderr.contains(word), "{name} {flags}: {}", output.stderr);
        }
        // The program's own output is mixed in. The program writes its line ends separately, so a
        // record may follow other text on its line.
        let json = output.stdout.lines().filter_map(|line| line.get(line.find('{')?..));
        let records: Vec<Value> = json.map(|line| serde_json::from_str(line).unwrap()).collect();
        let log = std::fs::read_to_string(&path).unwrap();
        compare(&format!("{name} {flags}"), &log, &records);
    }
}

/// Classes loaded as fast as possible, each with its initialisation, watched from the first one on.
#[test]
fn startup_with_20000_classes_loses_no_class() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("classes.log");
    let mut command = Command::new(binary("javaclass"));
    command.args(["-j", "-w", "--"]).arg(&runtimes::named("temurin-21").java);
    command.arg(format!("-Xlog:class+load,class+init:file={}:none:filecount=0", path.display()));
    command.arg("-cp").arg(load::classes()).args(["StartLoad", "20000"]);
    let output = Tool::spawn_reading(command, Stdio::null()).wait();
    assert!(output.status.success() && !output.stderr.contains("lost"), "{}", output.stderr);
    let json = output.stdout.lines().filter_map(|line| line.get(line.find('{')?..));
    let records: Vec<Value> = json.map(|line| serde_json::from_str(line).unwrap()).collect();
    println!("{}", output.stdout.lines().find(|line| line.starts_with("took")).unwrap());
    let log = std::fs::read_to_string(&path).unwrap();
    compare("StartLoad", &log, &records);
    assert!(loaded(&log).len() > 20_000);
}

/// A script that starts a JVM: classes are reported from the attachment on, and a message says so.
#[test]
fn jvm_started_by_a_script_is_watched_once_attached() {
    run_beside_others();
    let java = &runtimes::named("temurin-21").java;
    let script = format!("'{}' -cp {} UseLoad & wait", java.display(), load::classes().display());
    let mut command = Command::new(binary("javaclass"));
    command.args(["-w", "--", "sh", "-c", &script]);
    let output = Tool::spawn_reading(command, Stdio::null()).wait();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.contains("earlier events are missing"), "{output:?}");
}

#[test]
fn stacks_show_the_code_that_loaded_a_class() {
    run_beside_others();
    let mut load = Load::start_program(runtimes::named("temurin-21"), "", "UseLoad");
    let pid = load.pid().to_string();
    let tool = Tool::start("javaclass", &["-p", &pid, "-j", "-s"]);
    load.ask("go");
    let records = tool.interrupt().json();
    let used = records.iter().filter(|record| record["class"] == "UseLoad$Used");
    let events: Vec<_> = used.clone().map(|record| text(record, "event")).collect();
    assert_eq!(events, ["loaded", "initialized"], "{records:?}");
    for record in used {
        let stack = record["stack"].as_array().unwrap();
        let has = |method: &str| stack.iter().any(|frame| frame["method"] == method);
        assert!(has("UseLoad.everything") && has("UseLoad.main"), "{record}");
    }
}

#[test]
fn unused_lists_jar_classes_that_are_not_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let jar = load::jar(dir.path());
    for name in ["temurin-17", "temurin-25"] {
        let mut load = Load::start_jar(runtimes::named(name), "", &jar, "UseLoad");
        load.ask("go");
        let output = run("javaclass", &["-p", &load.pid().to_string(), "--unused", "-j"]);
        load.quit();
        assert!(output.status.success(), "{output:?}");
        let unused = output.json();
        let state = |class: &str| {
            let found = unused.iter().find(|record| text(record, "class") == class);
            found.map(|record| text(record, "state").to_owned())
        };
        assert_eq!(state("UseLoad$NeverLoaded").as_deref(), Some("not loaded"), "{name}");
        assert_eq!(state("UseLoad$OnlyLoaded").as_deref(), Some("not initialized"), "{name}");
        assert_eq!(state("UseLoad$Fails"), None, "{name}");
        assert_eq!(state("UseLoad"), None, "{name}");
        let path = jar.display().to_string();
        assert!(unused.iter().all(|record| text(record, "jar") == path), "{name}");
    }
}

/// The complete class path is searched, in whichever form it was given.
#[test]
fn unused_covers_folders_and_wildcard_class_paths() {
    let dir = tempfile::tempdir().unwrap();
    load::jar(dir.path());
    let all = dir.path().join("*");
    let jar = dir.path().join("tests.jar").display().to_string();
    let folder = format!("{}/", load::classes().display());
    for (path, place) in [(all.as_path(), jar), (load::classes(), folder)] {
        let mut load = Load::start_jar(runtimes::named("temurin-21"), "", path, "UseLoad");
        load.ask("go");
        let output = run("javaclass", &["-p", &load.pid().to_string(), "--unused", "-j"]);
        load.quit();
        assert!(output.status.success(), "{output:?}");
        let unused = output.json();
        let found = unused.iter().find(|record| record["class"] == "UseLoad$NeverLoaded");
        assert_eq!(text(found.unwrap(), "jar"), place);
        assert!(unused.iter().all(|record| text(record, "jar") == place), "{unused:?}");
        assert!(unused.iter().all(|record| record["class"] != "UseLoad$Used"));
    }
}

/// The JDK's own classes: each is in the `--unused` list, or its initialisation has begun.
#[test]
fn unused_with_jdk_covers_every_module_class() {
    for name in ["temurin-11", "temurin-25"] {
        let runtime = runtimes::named(name);
        let load = Load::start_program(runtime, "", "UseLoad");
        let pid = load.pid().to_string();
        let unused = run("javaclass", &["-p", &pid, "--unused", "--jdk", "-j"]);
        let loaded = run("javaclass", &["-p", &pid, "-j"]);
        load.quit();
        assert!(unused.status.success(), "{unused:?}");
        let mut reported: BTreeSet<String> = BTreeSet::new();
        for record in unused.json() {
            if !text(&record, "jar").starts_with('/') {
                reported.insert(text(&record, "class").to_owned());
            }
        }
        for class in loaded.json() {
            let has_begun = !matches!(class["state"].as_str(), None | Some("loaded" | "linked"));
            if has_begun && class["origin_kind"] == "module" {
                reported.insert(text(&class, "class").to_owned());
            }
        }
        let jar = std::fs::read(programs::classes_of(runtime)).unwrap();
        let archive = rawzip::ZipArchive::from_slice(jar).unwrap();
        let mut entries = archive.entries();
        let mut expected = BTreeSet::new();
        while let Some(entry) = entries.next_entry().unwrap() {
            let path = str::from_utf8(entry.file_path().as_bytes()).unwrap();
            let class = path.strip_suffix(".class").filter(|class| !class.ends_with("-info"));
            expected.extend(class.map(|class| class.replace('/', ".")));
        }
        assert!(expected.len() > 10_000);
        let differ: Vec<_> = expected.symmetric_difference(&reported).take(20).collect();
        assert!(differ.is_empty(), "{name}: {differ:?}");
    }
}

#[test]
fn loaders_that_only_grow_are_reported() {
    let mut load = Load::start_program(runtimes::named("temurin-21"), "", "LeakLoad");
    let pid = load.pid().to_string();
    let tool = Tool::start("javaclass", &["-p", &pid, "--by-loader", "-j", "0.3", "12"]);
    // javaclass reads the JVM's classes several times while the load creates new ones, and several
    // times later.
    let mut made = 0;
    for _ in 0..30 {
        load.ask("grow 2");
        made += 2;
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let output = tool.wait();
    assert!(output.status.success(), "{output:?}");
    let records = output.json();
    let of = |loader: &str| records.iter().rfind(|record| record["loader"] == loader).unwrap();
    let leak = of("LeakLoad$Loader");
    assert_eq!((&leak["loaders"], &leak["classes"]), (&made.into(), &made.into()), "{leak}");
    assert_eq!((&leak["only_grows"], &leak["falls"]), (&true.into(), &0.into()), "{leak}");
    assert_eq!(of("bootstrap")["only_grows"], false);
    load.quit();
}

#[test]
fn hidden_classes_of_one_kind_share_one_record() {
    let mut load = Load::start_program(runtimes::named("temurin-21"), "-Xmx256m", "LeakLoad");
    load.ask("hide 30000");
    let output = run("javaclass", &["-p", &load.pid().to_string(), "-j", "--methods"]);
    load.quit();
    assert!(output.status.success(), "{output:?}");
    let records = output.json();
    let hidden: Vec<_> =
        records.iter().filter(|record| record["class"] == "LeakLoad$Kept").collect();
    assert_eq!(hidden.len(), 1, "{hidden:?}");
    assert_eq!(hidden[0]["classes"], 30_000);
    assert_eq!(hidden[0]["method_list"].as_array().unwrap().len(), 2);
}

/// The innermost frames of the folded stacks are exactly the classes whose initialisation is in the
/// log. The page and the SVG are written, too.
#[test]
fn flame_graph_contains_every_logged_initialiser() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let (folded, page) = (dir.path().join("init.folded"), dir.path().join("init.html"));
    let (svg, log) = (dir.path().join("init.svg"), dir.path().join("log"));
    let mut load = Load::start_program(
        runtimes::named("temurin-21"),
        &format!("-Xlog:class+init:file={}:none", log.display()),
        "UseLoad",
    );
    let pid = load.pid().to_string();
    let mut args = vec!["-p", &pid, "-q"];
    for path in [&folded, &page, &svg] {
        args.extend(["-o", path.to_str().unwrap()]);
    }
    let tool = Tool::start("javaclass", &args);
    let before = std::fs::read_to_string(&log).unwrap().len();
    load.ask("go");
    let log = std::fs::read_to_string(&log).unwrap()[before..].to_owned();
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    load.quit();
    let text = std::fs::read_to_string(&folded).unwrap();
    let innermost = |line: &str| {
        let (stack, _) = line.rsplit_once(' ').unwrap();
        stack.rsplit(';').next().unwrap().to_owned()
    };
    let drawn: BTreeSet<_> = text.lines().map(innermost).collect();
    let logged: BTreeSet<_> = initialized(&log).into_keys().collect();
    assert!(logged.contains("UseLoad$Used"), "{logged:?}");
    assert_eq!(drawn, logged);
    // The picture omits frames that are too narrow to be visible.
    let [page, svg] = [page, svg].map(|path| std::fs::read_to_string(path).unwrap());
    assert!(page.contains("Class initializers") && page.contains("UseLoad"));
    assert!(svg.contains("Class initializers") && svg.contains("</svg>"));
}

/// With `--list`, javaclass reports the first load and the first initialisation of each listed
/// class, with their stacks.
#[test]
fn list_records_first_load_and_initialisation() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("list");
    let lines = "UseLoad$Used\nUseLoad$NeverLoaded\nUseLoad$Used#calledOnce\nUseLoad$OnlyLoaded\n";
    std::fs::write(&list, lines).unwrap();
    let list = list.to_str().unwrap();
    for ends in [false, true] {
        let mut load = Load::start_program(runtimes::named("temurin-21"), "", "UseLoad");
        let pid = load.pid().to_string();
        let tool = Tool::start("javaclass", &["-p", &pid, "-j", "-s", "--list", list]);
        load.ask("go");
        let output = match ends {
            true => {
                load.quit();
                tool.wait()
            }
            false => tool.interrupt(),
        };
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let records = output.json();
        // Other classes are not reported.
        let changes = records.iter().filter(|record| record["type"] == "change");
        let mut names: Vec<_> = changes.map(|record| text(record, "class")).collect();
        names.dedup();
        assert_eq!(names, ["UseLoad$Used"], "{ends}");
        let listed = |pattern: &str| {
            let found = records.iter().find(|record| record["pattern"] == pattern);
            found.unwrap_or_else(|| panic!("no {pattern} in {records:?}"))
        };
        let used = listed("UseLoad$Used");
        assert_eq!((text(used, "found"), &used["in_use"]), ("initialized", &true.into()));
        for first in ["first_loaded", "first_initialized"] {
            let stack = used[first]["stack"].as_array().unwrap();
            // Names cannot be read from a JVM that has ended.
            let is_it = |frame: &Value| ends || frame["method"] == "UseLoad.everything";
            assert!(stack.iter().any(is_it), "{used}");
        }
        assert_eq!(text(listed("UseLoad$NeverLoaded"), "found"), "not loaded");
        // This class was loaded before the trace began.
        assert_eq!(text(listed("UseLoad$OnlyLoaded"), "found"), "loaded");
        assert_eq!(listed("UseLoad$OnlyLoaded")["first_loaded"], Value::Null);
        // Whether a method was called cannot be read from a JVM that has ended.
        let method = listed("UseLoad$Used#calledOnce");
        assert_eq!(text(method, "found"), if ends { "unknown" } else { "called" });
        assert_eq!(method["in_use"], true);
    }
}

/// For each vulnerability in the list, javaclass writes whether its classes were used since the JVM
/// started, as an OpenVEX document that other tools can read.
#[test]
fn vulnerabilities_are_reported_as_openvex() {
    let dir = tempfile::tempdir().unwrap();
    let (list, vex) = (dir.path().join("list"), dir.path().join("vex.json"));
    let mut load = Load::start_program(runtimes::named("temurin-17"), "", "UseLoad");
    load.ask("go");
    let pid = load.pid().to_string();
    let args = ["-p", &pid, "--list", list.to_str().unwrap(), "--vex", vex.to_str().unwrap()];
    std::fs::write(&list, "UseLoad$Used\n").unwrap();
    let output = run("javaclass", &args);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stderr.contains("has no vulnerability") && !vex.exists(), "{output:?}");
    let lines = "[CVE-2021-1]\nUseLoad$Used\nUseLoad$NeverLoaded\n\n[CVE-2021-2]\ncom.acme.*\n";
    std::fs::write(&list, lines).unwrap();
    let output = run("javaclass", &args);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let document: Value = serde_json::from_slice(&std::fs::read(&vex).unwrap()).unwrap();
    let statements = document["statements"].as_array().unwrap();
    let said: Vec<_> = statements
        .iter()
        .map(|one| (text(&one["vulnerability"], "name"), text(one, "status_notes")))
        .collect();
    assert_eq!((said[0].0, said[1].0, said.len()), ("CVE-2021-1", "CVE-2021-2", 2));
    assert!(said[0].1.starts_with("In use") && said[0].1.contains("UseLoad$Used is initialized"));
    assert!(!said[0].1.contains("NeverLoaded"), "{}", said[0].1);
    assert!(said[1].1.starts_with("Not seen in use (evidence, not proof)"), "{}", said[1].1);
    assert!(said[1].1.contains("com.acme.* is not loaded"), "{}", said[1].1);
    for statement in statements {
        assert_eq!(text(statement, "status"), "under_investigation", "{statement}");
        assert_eq!(text(&statement["products"][0], "@id"), "pkg:generic/UseLoad");
    }
    // Validated with the schema that the OpenVEX project publishes.
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/openvex-0.2.0.schema.json");
    let script = "import json, sys, jsonschema\n\
                  schema, document = (json.load(open(path)) for path in sys.argv[1:])\n\
                  jsonschema.Draft202012Validator(schema).validate(document)\n\
                  del document['statements'][0]['status']\n\
                  assert not jsonschema.Draft202012Validator(schema).is_valid(document)\n";
    let mut python = Command::new("python3");
    python.args(["-c", script, schema]).arg(&vex);
    assert!(python.status().unwrap().success());
    // `--product` sets the product in the document. If nothing in the list is in use, the exit
    // status is 0.
    std::fs::write(&list, "[CVE-2021-2]\ncom.acme.*\n").unwrap();
    let product = ["--product", "pkg:maven/com.acme/app@1.0"];
    let output = run("javaclass", &[&args[..], &product].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(std::fs::read_to_string(&vex).unwrap().contains(product[1]));
    load.quit();
}

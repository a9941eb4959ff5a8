//! javaclass on complete programs: a database, a web server, a compiler.
//!
//! There are three kinds of runs. In a "marked" run, an agent inserts a call into each method, which
//! records the entered methods but makes all methods longer. This run does much work, so that many
//! methods are compiled. In a "probed" run, HotSpot's own probes report each entry and leave the
//! methods unchanged. The probes are slow, so this run does little work. In a "stock" run, there is
//! neither an agent nor a probe. It enters the same methods as the marked run, except for a few that
//! depend on the time of day.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::Duration,
};

use jvmprobe_tests::{
    load::{self, Load},
    programs::{self, jars},
    run_alone,
    runtimes::{self, Runtime},
    tool::{Tool, run},
};
use tempfile::TempDir;

/// A program, and how often it repeats its work.
struct Program {
    main: &'static str,
    jars: Vec<PathBuf>,
    flags: String,
    /// Prefixes of the names of its classes, separated by commas.
    classes: &'static str,
    rounds: u32,
}

fn h2() -> Program {
    let (jars, flags) = (jars("h2"), "-Xmx256m".to_owned());
    Program { main: "SqlLoad", jars, flags, classes: "org/h2/", rounds: 20 }
}

fn tomcat() -> Program {
    let (jars, flags) = (jars("tomcat"), "-Xmx256m".to_owned());
    Program { main: "ServletLoad", jars, flags, classes: "org/apache/,jakarta/", rounds: 10 }
}

/// Returns the Kotlin compiler with a file to compile in this folder.
fn kotlinc(dir: &TempDir) -> Program {
    let programs::Program { jars, args } = programs::kotlinc(dir.path(), 1);
    // The arguments after the class path and the main class.
    let flags = format!("-Xmx700m -Dcompile.args={}", args[3..].join(","));
    Program { main: "CompileLoad", jars, flags, classes: "org/jetbrains/kotlin/", rounds: 3 }
}

impl Program {
    fn start(&self, runtime: &Runtime, flags: &str) -> Load {
        let path: Vec<_> = self.jars.iter().map(|jar| jar.to_str().unwrap()).collect();
        let path = format!("{}:{}", path.join(":"), load::classes().display());
        Load::start_jar(runtime, &format!("{} {flags}", self.flags), Path::new(&path), self.main)
    }
}

/// Builds the agent's jar, whose manifest refers to the ASM library.
fn agent(dir: &TempDir) -> PathBuf {
    let library = jars("asm").remove(0);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("java/agent/EntryAgent.java");
    let (classes, manifest) = (dir.path().join("agent"), dir.path().join("manifest"));
    fs::create_dir_all(&classes).unwrap();
    let mut javac = Command::new("javac");
    javac.args(["-Xlint:-options", "--release", "11", "-cp"]).arg(&library).arg("-d").arg(&classes);
    assert!(javac.arg(source).status().unwrap().success());
    let lines = format!("Premain-Class: EntryAgent\nClass-Path: file:{}\n", library.display());
    fs::write(&manifest, lines).unwrap();
    let jar = dir.path().join("agent.jar");
    let mut command = Command::new("jar");
    command.arg("cfm").args([&jar, &manifest]).arg("-C").arg(&classes).arg(".");
    assert!(command.status().unwrap().success());
    jar
}

/// Usage and reason, by class and method with its descriptor.
type MethodUsage = BTreeMap<(String, String), (String, String)>;

fn method_usage(load: &Load) -> MethodUsage {
    let output = run("javaclass", &["-p", &load.pid().to_string(), "-j", "--methods"]);
    assert!(output.status.success(), "{output:?}");
    let mut method_usage = MethodUsage::new();
    for class in output.json() {
        for method in class["method_list"].as_array().into_iter().flatten() {
            let text = |field: &str| method[field].as_str().unwrap_or_default().to_owned();
            let class = class["class"].as_str().unwrap().to_owned();
            let method = (class, text("name") + &text("descriptor"));
            method_usage.insert(method, (text("usage"), text("why")));
        }
    }
    method_usage
}

/// Asserts that none of the entered methods is reported as not called. If `from_other_run` is set,
/// the methods were entered in another run than the reported one, and a few of them may be reported as
/// not called.
fn assert_entered_not_unused(
    title: &str,
    entered: &BTreeSet<(String, String)>,
    method_usage: &MethodUsage,
    from_other_run: bool,
) {
    let (mut called, mut unknown, mut missing) = (0, BTreeMap::<_, usize>::new(), 0);
    let mut wrong = Vec::new();
    for method in entered {
        match method_usage.get(method) {
            None => missing += 1,
            Some((usage, _)) if usage == "called" => called += 1,
            Some((usage, why)) if usage == "unknown" => *unknown.entry(why).or_default() += 1,
            Some(_) => wrong.push(method),
        }
    }
    let all: usize = unknown.values().sum();
    let percent = 100.0 * all as f64 / entered.len() as f64;
    println!(
        "{title}: {} methods entered, {called} called, {all} ({percent:.1} %) unknown {unknown:?}, \
         {missing} in classes that are not loaded in this run",
        entered.len()
    );
    if from_other_run {
        println!("{title}: {} were not called in this run: {wrong:?}", wrong.len());
    }
    let most = if from_other_run { entered.len() / 500 } else { 0 };
    assert!(wrong.len() <= most, "{title}: {} not called: {wrong:#?}", wrong.len());
    assert!(called > 1000, "{title}");
    assert!(percent < 10.0, "{title}: {unknown:?}");
    // Generated classes have other names in each run, so some may be missing.
    assert!(missing * 50 < entered.len(), "{title}: {missing} are missing");
}

fn check(program: &Program, runtime: &Runtime, flags: &str, with_probes: bool) {
    let title = format!("{} {} {flags}", runtime.name, program.main);
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("entered");
    let agent = format!(
        "{flags} -javaagent:{}={},{}",
        agent(&dir).display(),
        out.display(),
        program.classes
    );
    let mut load = program.start(runtime, &agent);
    let rounds = format!("go {}", program.rounds);
    let answer = load.ask(&rounds);
    fs::write(out.with_extension("please"), "").unwrap();
    while !out.exists() {
        sleep(Duration::from_millis(20));
    }
    let marked = method_usage(&load);
    load.quit();
    let entered: BTreeSet<_> = fs::read_to_string(&out)
        .unwrap()
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(class, method)| (class.replace('/', "."), method.to_owned()))
        .collect();
    let mut load = program.start(runtime, flags);
    assert_eq!(load.ask(&rounds), answer, "{title}");
    let stock = method_usage(&load);
    load.quit();
    assert_entered_not_unused(&format!("{title} (marked)"), &entered, &marked, false);
    assert_entered_not_unused(&format!("{title} (stock)"), &entered, &stock, true);
    if with_probes {
        let (entered, method_usage) = methods_entered_by_probes(program, runtime, flags);
        assert_entered_not_unused(&format!("{title} (probed)"), &entered, &method_usage, false);
    }
}

/// Returns the methods that the program enters in one round, according to HotSpot's probes.
fn methods_entered_by_probes(
    program: &Program,
    runtime: &Runtime,
    flags: &str,
) -> (BTreeSet<(String, String)>, MethodUsage) {
    /// Maximum length of a method name in a probe's record. Descriptors may be twice as long. Longer
    /// names and descriptors were truncated.
    const LONGEST: usize = 60;
    run_alone();
    let mut load = program.start(runtime, &format!("{flags} -XX:+DTraceMethodProbes"));
    let tracer = Tool::start("entered", &["-p", &load.pid().to_string()]);
    load.ask("go 1");
    let output = tracer.interrupt();
    assert!(output.status.success(), "{output:?}");
    let method_usage = method_usage(&load);
    load.quit();
    let beginnings: Vec<_> =
        program.classes.split(',').map(|name| name.replace('/', ".")).collect();
    let mut entered = BTreeSet::new();
    for record in output.json() {
        let text = |field: &str| record[field].as_str().unwrap().to_owned();
        let (class, method, descriptor) = (text("class"), text("method"), text("descriptor"));
        let is_whole = method.len() <= LONGEST && descriptor.len() <= 2 * LONGEST;
        // Hidden classes have addresses in their names.
        let is_meant =
            beginnings.iter().any(|name| class.starts_with(name)) && !class.contains("0x");
        if is_whole && is_meant {
            entered.insert((class, method + &descriptor));
        }
    }
    (entered, method_usage)
}

#[test]
fn no_method_entered_by_h2_is_reported_unused() {
    check(&h2(), runtimes::named("temurin-21"), "", false);
}

fn check_all(runtime: &str) {
    for flags in ["", "-Xshare:off"] {
        let dir = tempfile::tempdir().unwrap();
        for program in [h2(), tomcat(), kotlinc(&dir)] {
            // With probes, the Kotlin compiler would take an hour.
            let with_probes = program.main != "CompileLoad";
            check(&program, runtimes::named(runtime), flags, with_probes);
        }
    }
}

#[test]
#[ignore = "long: make test-all"]
fn no_entered_method_is_reported_unused_jdk_11() {
    check_all("temurin-11");
}

#[test]
#[ignore = "long: make test-all"]
fn no_entered_method_is_reported_unused_jdk_17() {
    check_all("temurin-17");
}

#[test]
#[ignore = "long: make test-all"]
fn no_entered_method_is_reported_unused_jdk_21() {
    check_all("temurin-21");
}

#[test]
#[ignore = "long: make test-all"]
fn no_entered_method_is_reported_unused_jdk_25() {
    check_all("temurin-25");
}

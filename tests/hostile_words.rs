//! Names that a target gives to itself, its threads, classes, methods and files do not reach a
//! terminal or a line of text unescaped: the output bytes are checked.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use jvmprobe_tests::{
    child_process::ChildProcess,
    load::{Load, classes},
    pprof, run_alone, run_beside_others,
    runtimes::{Runtime, named},
    tool::{self, Tool, binary},
};
use tempfile::TempDir;

/// The name of the hostile program's class and method, as the tools show it.
const CLASS: &str = r"Words\x1b\x0aBase00";
const METHOD: &str = r"work_\x1b]2owne\x07_\x0down\x0a_\u{202e}ab";
/// The name of the program's thread, truncated by the kernel to 15 bytes.
const THREAD: &str = r"\x1b]2own\x07\x0a\u{202e}x";
/// The command name of the program's process.
const COMMAND: &str = "ja\x1b]2\x07\u{202e}va";
const COMMAND_SHOWN: &str = r"ja\x1b]2\x07\u{202e}va";

/// Asserts that a text has no characters that control a terminal or are invisible.
fn assert_clean(what: &str, text: &str) {
    let is_harmful = |c: char| {
        c.is_control() && c != '\n'
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
    };
    if let Some(at) = text.find(is_harmful) {
        let around = text[..at].chars().rev().take(200).collect::<Vec<_>>();
        let around: String = around.into_iter().rev().collect();
        panic!("{what}: {:?} behind {around:?}", text[at..].chars().next());
    }
}

fn assert_output_is_clean(output: &tool::Output) {
    assert!(output.status.success(), "{output:?}");
    assert_clean("stdout", &output.stdout);
    assert_clean("stderr", &output.stderr);
}

/// A hostile program with a hostile command name.
struct Hostile {
    load: Load,
    dir: TempDir,
}

impl Hostile {
    fn start(runtime: &str, flags: &str) -> Self {
        run_alone();
        // Builds the tools and the classes now, so that the build does not run beside the load.
        binary("javaprof");
        classes();
        let dir = tempfile::tempdir().unwrap();
        let java = dir.path().join(COMMAND);
        symlink(&named(runtime).java, &java).unwrap();
        let runtime = Runtime { java, ..named(runtime).clone() };
        Self { load: Load::start_program(&runtime, flags, "WordsLoad"), dir }
    }

    fn pid(&self) -> String {
        self.load.pid().to_string()
    }

    /// Runs a tool during two seconds of the program's work.
    fn trace_for_two_seconds(&mut self, tool: &str, args: &[&str]) -> tool::Output {
        let pid = self.pid();
        let tool = Tool::start(tool, &[&["-p", &pid], args].concat());
        self.load.run(2.0);
        let output = tool.interrupt();
        assert_output_is_clean(&output);
        output
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }
}

fn assert_has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
}

#[test]
fn javaprof_escapes_control_characters() {
    run_beside_others();
    let mut hostile = Hostile::start("temurin-17", "-XX:+UseSerialGC");
    hostile.load.run(1.0);
    let method = format!("{CLASS}.{METHOD}");
    let output = hostile.trace_for_two_seconds("javaprof", &["-F", "199", "-v"]);
    assert_has(&output.stdout, &[&method]);
    let names = ["x.svg", "x.folded", "x.pb.gz", "x.json", "x.html", "x.ffprof.json"];
    let paths = names.map(|name| hostile.path(name));
    let mut args = vec!["-F", "199", "-f", "-t"];
    args.extend(paths.iter().flat_map(|path| ["-o", path]));
    let output = hostile.trace_for_two_seconds("javaprof", &args);
    assert_has(&output.stdout, &[&method, COMMAND_SHOWN, THREAD]);
    let [svg, folded, pprof, json, page, firefox] = paths;
    for path in [&page, &firefox] {
        assert_clean(path, &fs::read_to_string(path).unwrap());
    }
    for path in [&svg, &folded, &json] {
        let text = fs::read_to_string(path).unwrap();
        assert_clean(path, &text);
        let escaped = method.replace('\\', "\\\\");
        assert_has(&text, &[if path == &json { &escaped } else { &method }]);
    }
    let names: Vec<_> =
        pprof::read(Path::new(&pprof)).samples.into_iter().flat_map(|s| s.functions).collect();
    assert!(names.iter().any(|name| name.starts_with(&method)), "{names:?}");
    names.iter().for_each(|name| assert_clean(&pprof, name));
}

#[test]
fn perf_maps_escape_control_characters() {
    run_beside_others();
    let mut hostile = Hostile::start("temurin-17", "-XX:+UseSerialGC");
    hostile.load.run(1.5);
    let output = tool::run("javaprof", &["--write-maps", "-p", &hostile.pid()]);
    assert_output_is_clean(&output);
    let map = format!("/tmp/perf-{}.map", hostile.pid());
    let text = fs::read_to_string(&map).unwrap();
    fs::remove_file(&map).unwrap();
    assert_clean(&map, &text);
    assert_has(&text, &[&format!("{CLASS}.{METHOD}")]);
}

#[test]
fn names_from_the_agent_map_are_escaped() {
    run_beside_others();
    let mut hostile = Hostile::start("temurin-17", "-XX:+UseSerialGC");
    hostile.load.run(1.5);
    let args = ["-F", "199", "-f", "--stacks", "fp", "--symbols", "agent"];
    let output = hostile.trace_for_two_seconds("javaprof", &args);
    assert_has(&output.stdout, &[&format!("{CLASS}.{METHOD}")]);
}

#[test]
fn javagc_escapes_control_characters() {
    run_beside_others();
    let mut hostile = Hostile::start("temurin-21", "-XX:+UseSerialGC");
    let output = hostile.trace_for_two_seconds("javagc", &["--stack", "-v"]);
    assert_has(&output.stdout, &[&format!("{CLASS}.{METHOD}"), THREAD]);
    let output = hostile.trace_for_two_seconds("javagc", &["--stack", "-j"]);
    let of_request = |record: &serde_json::Value| {
        let request = &record["requests"][0];
        request["thread"] == THREAD
            && request["stack"]
                .as_array()
                .unwrap()
                .iter()
                .any(|frame| frame["method"].as_str().unwrap() == format!("{CLASS}.{METHOD}"))
    };
    assert!(output.json().iter().any(of_request), "{}", output.stdout);
}

#[test]
fn javaobjnew_escapes_control_characters() {
    run_beside_others();
    let mut hostile = Hostile::start("temurin-17", "-XX:+UseSerialGC");
    let method = format!("{CLASS}.{METHOD}");
    let svg = hostile.path("x.svg");
    let output = hostile.trace_for_two_seconds("javaobjnew", &["-s", "-t", "-v", "-o", &svg]);
    assert_has(&output.stdout, &[&format!(" {CLASS}\n"), &method, THREAD]);
    let text = fs::read_to_string(&svg).unwrap();
    assert_clean(&svg, &text);
    assert_has(&text, &[&method]);
    let output = hostile.trace_for_two_seconds("javaobjnew", &["-s", "-t", "-j"]);
    assert!(output.json().iter().any(|record| record["class"] == CLASS), "{}", output.stdout);
}

#[test]
fn not_a_jvm_error_escapes_the_command_name() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(COMMAND);
    symlink(fs::canonicalize("/usr/bin/python3").unwrap(), &path).unwrap();
    let other =
        ChildProcess::spawn(Command::new(&path).args(["-c", "import time; time.sleep(60)"]));
    for name in ["javaprof", "javagc", "javaobjnew"] {
        let output = tool::run(name, &["-p", &other.pid().to_string()]);
        tool::assert_refused(&output, 1, &[COMMAND_SHOWN, "not a JVM"]);
        assert_clean("stderr", &output.stderr);
    }
}

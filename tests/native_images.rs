//! GraalVM native images: javaprof profiles them, and the other tools report why they do not.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use jvmprobe_tests::{
    child_process::ChildProcess,
    programs::jars,
    run_beside_others,
    tool::{self, assert_refused},
};
use serde_json::Value;

/// Number of functions, which Closure Compiler takes about ten seconds to compile.
const FUNCTIONS: usize = 3000;

/// Writes JavaScript that has something to check and to optimize.
fn script(folder: &Path) -> PathBuf {
    let mut text = String::new();
    for n in 0..FUNCTIONS {
        let _ = write!(
            text,
            "function f{n}(a, b) {{ var s = 0; for (var i = 0; i < a; i++) {{ \
             if (i % 3 === 0) {{ s += b.length * i; }} else {{ s -= g{n}(i, b + 'x{n}'); }} }} \
             switch (s) {{ case 1: return 2; default: try {{ return s; }} catch (e) {{ return -1; }} }} }}\n\
             function g{n}(a, b) {{ var o = {{x: a, z: [1, {n}]}}; \
             return o.x + o.z.map(function(q) {{ return q * {n}; }}).length + b.length; }}\n\
             class C{n} {{ constructor(p) {{ this.p = p; }} m(q) {{ return f{n}(q, 'a'); }} }}\n"
        );
    }
    let path = folder.join("script.js");
    fs::write(&path, text).unwrap();
    path
}

fn compiler(folder: &Path) -> Command {
    let mut command = Command::new(jars("closure").remove(0));
    command.args(["-O", "SIMPLE", "--js"]).arg(script(folder)).arg("--js_output_file");
    command.arg(folder.join("out.js")).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Returns the summary of a profile, and each stack with its samples, outermost method last.
fn stacks(stdout: &str) -> (Value, Vec<(u64, Vec<Value>)>) {
    let (mut summary, mut stacks) = (Value::Null, Vec::new());
    for line in stdout.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        match record["type"].as_str().unwrap() {
            "stack" => stacks.push((
                record["samples"].as_u64().unwrap(),
                record["stack"].as_array().unwrap().clone(),
            )),
            "summary" => summary = record,
            _ => {}
        }
    }
    (summary, stacks)
}

fn method(frame: &Value) -> &str {
    frame["method"].as_str().unwrap()
}

/// Asserts that each stack of a thread leads from the image's entry point to the running method,
/// with the names, inlined methods and lines that the image itself has for exceptions.
fn assert_complete_and_named(stdout: &str, least: f64) {
    let (summary, stacks) = stacks(stdout);
    let samples: u64 = stacks.iter().map(|(samples, _)| samples).sum();
    assert!(samples > 50, "{summary}");
    // Incomplete stacks are in the C library, which is linked statically without unwind tables.
    // They are guessed, and marked as guesses.
    assert!(summary["complete"].as_f64().unwrap() > least, "{summary}");
    assert!(summary["unnamed_frames"].as_f64().unwrap() < 0.01, "{summary}");
    let entered = |(_, stack): &&(u64, Vec<Value>)| {
        let outermost = stack.last().map(method).unwrap_or_default();
        outermost.starts_with("com.oracle.svm.core.code.IsolateEnterStub.")
    };
    let whole: u64 = stacks.iter().filter(entered).map(|(samples, _)| samples).sum();
    assert!(whole as f64 > samples as f64 * least, "{whole} of {samples}");
    // Closure Compiler runs its passes in a thread that it has started, and calls them as follows.
    for (_, stack) in stacks.iter().filter(entered) {
        let names: Vec<_> = stack.iter().map(method).collect();
        let at = |name: &str| names.iter().rposition(|n| *n == name);
        if let Some(pass) = at("com.google.javascript.jscomp.PhaseOptimizer$NamedPass.process") {
            assert!(at("java.lang.Thread.run") > Some(pass), "{names:?}");
            // `PhaseOptimizer.process` calls a pass directly, or through `Loop.process`.
            let in_loop =
                names[pass + 1] == "com.google.javascript.jscomp.PhaseOptimizer$Loop.process";
            assert_eq!(
                names[pass + 1 + usize::from(in_loop)],
                "com.google.javascript.jscomp.PhaseOptimizer.process",
                "{names:?}"
            );
        }
    }
    let frames = || stacks.iter().flat_map(|(_, stack)| stack);
    let is_compiler = |f: &&Value| method(f).starts_with("com.google.javascript.");
    let lines = frames().filter(is_compiler).filter(|f| f["line"].as_u64() > Some(0));
    assert!(lines.count() > 10, "{summary}");
}

#[test]
fn native_image_stacks_are_complete_and_named() {
    run_beside_others();
    let folder = tempfile::tempdir().unwrap();
    let image = ChildProcess::spawn(&mut compiler(folder.path()));
    let pid = image.pid().to_string();
    let output = tool::run("javaprof", &["-p", &pid, "-F", "199", "-s", "--json", "4"]);
    assert!(output.status.success(), "{}", output.stderr);
    let first = output.stderr.lines().next().unwrap_or_default();
    assert!(first.contains("native image: using its own tables"), "{first}");
    assert_complete_and_named(&output.stdout, 0.95);
    for tool in ["javagc", "javaobjnew", "javaclass"] {
        let refused = tool::run(tool, &["-p", &pid]);
        assert_refused(&refused, 1, &["native image", "without a JVM to trace", "use javaprof"]);
    }
}

#[test]
fn native_image_command_is_profiled_from_its_start() {
    run_beside_others();
    let folder = tempfile::tempdir().unwrap();
    let command = compiler(folder.path());
    let mut args = vec!["-F", "199", "-s", "--json", "-d", "6", "--"];
    let program = command.get_program().to_str().unwrap().to_owned();
    let rest: Vec<_> = command.get_args().map(|arg| arg.to_str().unwrap().to_owned()).collect();
    args.push(&program);
    args.extend(rest.iter().map(String::as_str));
    let output = tool::run("javaprof", &args);
    assert!(output.status.success(), "{}", output.stderr);
    // The compiler also prints lines.
    let records = output.stdout.lines().filter(|line| line.starts_with("{\"type\""));
    // Until the program is recognized as a native image, its stacks are walked in another way.
    assert_complete_and_named(&records.collect::<Vec<_>>().join("\n"), 0.9);
}

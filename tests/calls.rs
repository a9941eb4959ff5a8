//! Profiles a large Java program and lists the impossible calls on its stacks.
//!
//! `cargo run --release -p jvmprobe-tests --example calls -- --java temurin-21`; see `USAGE`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the figures are printed")]

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use jvmprobe_tests::{
    calls::Checker,
    programs::{self, Program},
    runtimes::{self, Runtime},
    tool::{binary, run_command},
};

const USAGE: &str = "\
usage: calls [--java NAME|PATH] [--files N] [--hertz HZ] [--profile FILE] [--keep FILE]
             [--lines] [--jar JAR]... [-- ARGUMENTS OF JAVA...]
  --java NAME|PATH  a runtime of tests/runtimes, or a path of java (temurin-17)
  --files N         number of files that the Kotlin compiler compiles (10)
  --hertz HZ        samples per second (499)
  --profile FILE    check this profile (-o FILE.json --signatures) instead of recording one
  --keep FILE.json  keep the profile
  --lines           also list calls that the caller contains, but only at other lines
  --jar JAR         class path of another program; its arguments follow --";

#[derive(Default)]
struct Options {
    java: Option<String>,
    jars: Vec<PathBuf>,
    files: Option<usize>,
    hertz: Option<u64>,
    profile: Option<PathBuf>,
    keep: Option<PathBuf>,
    lines: bool,
    args: Vec<String>,
}

fn main() {
    let Some(options) = options() else {
        eprintln!("{USAGE}");
        std::process::exit(2);
    };
    let runtime = runtime(options.java.as_deref().unwrap_or("temurin-17"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = if options.args.is_empty() && options.jars.is_empty() {
        programs::kotlinc(folder.path(), options.files.unwrap_or(10))
    } else {
        Program { jars: options.jars, args: options.args }
    };
    let hertz = options.hertz.unwrap_or(499);
    let profile = options.profile.unwrap_or_else(|| {
        let file = options.keep.unwrap_or_else(|| folder.path().join("profile.json"));
        record_profile(&runtime, &program, hertz, &file);
        file
    });
    let checker = Checker::new(programs::class_path(&runtime, &program));
    let report = checker.check_file(&profile, hertz);
    println!("{}{}{}", report.details(options.lines), checker.unreadable_files(), report.summary());
}

fn record_profile(runtime: &Runtime, program: &Program, hertz: u64, file: &Path) {
    let mut command = Command::new(binary("javaprof"));
    command.args(["--signatures", "-F", &hertz.to_string(), "-o"]).arg(file).arg("--");
    command.arg(runtime.command().get_program()).args(&program.args);
    let output = run_command(command);
    assert!(output.status.success(), "{}", output.stderr);
    let quality = output.stdout.lines().find(|line| line.contains("are complete to"));
    println!(
        "{}: {}",
        runtime.name,
        quality.expect("the summary reports the share of complete stacks")
    );
}

fn options() -> Option<Options> {
    let mut options = Options::default();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--java" => options.java = Some(args.next()?),
            "--jar" => options.jars.push(args.next()?.into()),
            "--files" => options.files = Some(args.next()?.parse().ok()?),
            "--hertz" => options.hertz = Some(args.next()?.parse().ok()?),
            "--profile" => options.profile = Some(args.next()?.into()),
            "--keep" => options.keep = Some(args.next()?.into()),
            "--lines" => options.lines = true,
            "--" => options.args = args.by_ref().collect(),
            _ => return None,
        }
    }
    Some(options)
}

/// Returns a runtime by its name in `tests/runtimes`, or by the path of its `java`.
fn runtime(name: &str) -> Runtime {
    if !name.contains('/') {
        return runtimes::named(name).clone();
    }
    let name_of_folder = Path::new(name).ancestors().nth(2).and_then(Path::file_name);
    let name_of_folder = name_of_folder.expect("JDK/bin/java").to_string_lossy();
    Runtime { name: name_of_folder.into(), java: name.into(), major: 0, musl: false }
}

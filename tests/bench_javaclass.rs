//! Prints figures for javaclass: `make bench`. Nothing is asserted, because times depend on the
//! machine. Each figure is a median with its spread. `cargo bench --bench javaclass -- read watch`
//! runs only those parts.
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use std::{
    io::Read,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    bench::{run_parts, spread},
    load::{self, Load},
    run_alone,
    runtimes::named,
    tool::binary,
};

/// Number of repetitions.
const ROUNDS: usize = 7;

fn main() {
    run_alone();
    let parts: [(&str, fn()); 3] = [("read", read), ("hidden", hidden), ("watch", watch)];
    run_parts(&parts);
}

/// Runs javaclass once on the load. Returns the time from its exec to its exit, in seconds, and its peak
/// memory in MiB.
fn one_read(load: &Load) -> (f64, f64) {
    // The first call builds the tool.
    let path = binary("javaclass");
    let begin = Instant::now();
    let mut tool = Command::new(path)
        .args(["-p", &load.pid().to_string(), "-q"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("start javaclass");
    let status = format!("/proc/{}/status", tool.id());
    let mut peak = 0.0_f64;
    while tool.try_wait().expect("wait for javaclass").is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
        peak = peak.max(kib.unwrap_or(0.0) / 1024.0);
        thread::sleep(Duration::from_millis(2));
    }
    let seconds = begin.elapsed().as_secs_f64();
    let mut text = String::new();
    tool.stdout.take().expect("piped").read_to_string(&mut text).expect("UTF-8");
    assert!(text.contains("classes in "), "{text}");
    (seconds, peak)
}

/// Measures reads of JVMs with many loaders, each with one class.
fn read() {
    let mut load = Load::start_program(named("temurin-21"), "-Xmx512m", "LeakLoad");
    for more in [0, 10_000, 40_000] {
        load.ask(&format!("grow {more}"));
        let (seconds, peaks): (Vec<_>, Vec<_>) = (0..ROUNDS).map(|_| one_read(&load)).unzip();
        println!("{more} more loaders: {} s, {} MiB at most", spread(seconds), spread(peaks));
    }
    load.quit();
}

/// Measures reads of a JVM with very many hidden classes.
fn hidden() {
    let mut load = Load::start_program(named("temurin-21"), "-Xmx1g", "LeakLoad");
    for more in [100_000, 900_000] {
        load.ask(&format!("hide {more}"));
        let (seconds, peaks): (Vec<_>, Vec<_>) = (0..3).map(|_| one_read(&load)).unzip();
        println!("{more} more hidden: {} s, {} MiB at most", spread(seconds), spread(peaks));
    }
    load.quit();
}

/// Measures a start-up that loads several thousand classes, with and without javaclass.
fn watch() {
    let java = &named("temurin-21").java;
    let classes = load::classes().display().to_string();
    let words = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(words.path(), "go 1\nquit\n").expect("write");
    let program = ["-cp", classes.as_str(), "WorkLoad"];
    for (title, args) in [
        ("alone", None),
        ("-w", Some(vec!["-w"])),
        ("-s", Some(vec!["-s"])),
        ("-q", Some(vec!["-wq"])),
    ] {
        let mut seconds = Vec::new();
        for _ in 0..ROUNDS {
            let mut command = match &args {
                None => Command::new(java),
                Some(args) => {
                    let mut command = Command::new(binary("javaclass"));
                    command.args(args).arg("--").arg(java);
                    command
                }
            };
            let words = std::fs::File::open(words.path()).expect("open");
            command.args(program).stdin(words).stdout(Stdio::null()).stderr(Stdio::null());
            let begin = Instant::now();
            assert!(command.status().expect("start it").success());
            seconds.push(begin.elapsed().as_secs_f64());
        }
        println!("a start of WorkLoad, {title}: {} s", spread(seconds));
    }
}

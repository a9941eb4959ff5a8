//! Runs all tools on a JVM that continuously and randomly changes the data by which it describes
//! itself. The tools end when they are stopped, their memory is bounded, and they leave nothing
//! behind.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "measurements are printed")]

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{fake, load::Load, run_alone, runtimes::named, tool::binary};
use tempfile::TempDir;

/// Maximum time from the start of a tool to its end, including the 0.3 s that it traces.
const LIMIT: Duration = Duration::from_secs(10);
/// A round that takes longer than this is printed.
const SLOW: Duration = Duration::from_secs(2);
/// Maximum memory of a tool, in bytes; it must suffice for any data.
const MAX_MEMORY: u64 = 1 << 30;
/// Command lines of the tools.
const TOOLS: [&[&str]; 11] = [
    &["javagc", "--safepoints", "--pools", "--stack", "-j"],
    &["javaobjnew", "-s", "-t", "-j"],
    &["javaprof", "--folded", "--symbols", "hotspot"],
    &["javagc", "-v"],
    &["javaobjnew", "-v"],
    &["javaprof", "-F", "499"],
    &["javaprof", "-e", "wall", "-e", "compiles", "--folded"],
    &["javaclass", "--methods", "-j"],
    &["javaclass", "-s", "-v"],
    &["javastack", "-m", "-j"],
    &["javawait", "-v", "1", "1"],
];

/// A JVM with false data.
struct CorruptJvm {
    load: Load,
    dir: TempDir,
}

impl CorruptJvm {
    fn start(runtime: &str, seed: u64) -> Self {
        let runtime = named(runtime);
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("hostile.so");
        fake::compile("hostile.c", &["-shared", "-fPIC", "-pthread"], &library);
        let counter = dir.path().join("changes");
        let mut command = runtime.command();
        let agent = format!("-agentpath:{}={seed} 2000 {}", library.display(), counter.display());
        command.arg(agent).args(["-XX:+UseG1GC", "-Xmx64m"]);
        let mut load = Load::spawn(command);
        load.go(1e6);
        Self { load, dir }
    }

    /// Returns the number of changes that the JVM has made to its data.
    fn changes(&self) -> u64 {
        let mut count = [0; 8];
        let file = fs::File::open(self.dir.path().join("changes")).unwrap();
        file.read_exact_at(&mut count, 0).unwrap();
        u64::from_ne_bytes(count)
    }
}

/// Returns a field of a process's status in kB.
fn status(pid: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim_start_matches(':').split_ascii_whitespace().next()?.parse().ok()
}

/// Waits until a tool ends, and returns its peak memory, and whether it traced.
fn wait(child: &mut Child, limit: Duration) -> Result<(u64, bool), String> {
    let begin = Instant::now();
    let mut most = 0;
    loop {
        most = most.max(status(child.id(), "VmHWM").unwrap_or(0) << 10);
        match child.try_wait().unwrap() {
            // A message that the JVM cannot be traced is a valid end.
            Some(status) if matches!(status.code(), Some(0 | 1)) => {
                return Ok((most, status.success()));
            }
            Some(status) => return Err(format!("{status}")),
            None if most > MAX_MEMORY => {
                child.kill().unwrap();
                return Err(format!("{most} bytes of memory"));
            }
            None if begin.elapsed() > limit => {
                child.kill().unwrap();
                return Err(format!("still running after {limit:?}"));
            }
            None => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Returns the files in a folder that may belong to a tool.
fn tool_files_in(folder: &Path, pid: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.contains("jvmprobe") || name.contains(&pid.to_string()) && !name.starts_with(".java")
    };
    entries.filter(is_ours).collect()
}

fn run_tools_on_corrupt_jvm(runtime: &str, rounds: u64) {
    run_alone();
    binary("javagc");
    let jvm = CorruptJvm::start(runtime, rounds);
    let pid = jvm.load.pid();
    let before = tool_files_in(Path::new("/tmp"), pid);
    let (mut most, mut longest, mut traced) = (0, Duration::ZERO, 0);
    for round in 0..rounds {
        let args = TOOLS[(round % TOOLS.len() as u64) as usize];
        let mut target_args = vec!["-p".to_owned(), pid.to_string()];
        if round / TOOLS.len() as u64 % 2 == 1 {
            target_args = vec!["-a".into()];
            if args[0] == "javaprof" && !args.contains(&"--symbols") {
                // No requests may be sent to other JVMs.
                target_args.extend(["--symbols", "hotspot"].map(Into::into));
            }
        }
        let errors = jvm.dir.path().join("stderr");
        let begin = Instant::now();
        let mut child = Command::new(binary(args[0]))
            .args(&args[1..])
            .args(&target_args)
            // A command that reads once ends by itself.
            .args(if args.contains(&"--methods") { &[][..] } else { &["-d", "0.3"] })
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&errors).unwrap())
            .spawn()
            .unwrap();
        let ended = wait(&mut child, LIMIT);
        let said = fs::read_to_string(&errors).unwrap();
        match ended {
            Ok((memory, has_traced)) => {
                most = most.max(memory);
                traced += u64::from(has_traced);
            }
            Err(why) => panic!("round {round}, {args:?} {target_args:?}: {why}\n{said}"),
        }
        longest = longest.max(begin.elapsed());
        if begin.elapsed() > SLOW {
            println!("round {round}, {args:?} {target_args:?}: {:?}", begin.elapsed());
        }
        assert!(!said.contains("panicked"), "round {round}, {args:?} {target_args:?}: {said}");
    }
    println!(
        "{rounds} rounds, {traced} of them traced, {} changes, at most {} MiB and {longest:?}",
        jvm.changes(),
        most >> 20
    );
    // The other runs report that they cannot trace; their number depends on the random data.
    assert!(traced > rounds / 4);
    assert!(jvm.changes() > 1000);
    assert_eq!(tool_files_in(Path::new("/tmp"), pid), before);
}

#[test]
fn tools_survive_a_jvm_that_corrupts_its_data() {
    // Each command line in `TOOLS` runs once for this JVM and once for all JVMs.
    run_tools_on_corrupt_jvm("temurin-17", 20);
}

#[test]
#[ignore = "takes long: make test-all"]
fn tools_survive_a_thousand_traces_of_corrupt_jvms() {
    for runtime in ["temurin-11", "temurin-17", "temurin-21", "temurin-25"] {
        run_tools_on_corrupt_jvm(runtime, 252);
    }
}

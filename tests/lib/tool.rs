//! Starts the project's tools and reads their output.

use std::{
    collections::HashSet,
    fs,
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::OnceLock,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Timeout for a tool to end. Even on the slowest machine, only a hang takes that long.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the path of a tool's binary. The first call builds all tools from the current sources,
/// because cargo does not know that these tests need them. If `TOOLS_ARE_BUILT` is set, as by `make test`, no
/// call does.
///
/// # Panics
/// If it cannot be built.
pub fn binary(name: &str) -> PathBuf {
    static BUILT: OnceLock<()> = OnceLock::new();
    let test = std::env::current_exe().expect("own path");
    let dir = test.parent().and_then(|deps| deps.parent()).expect("target/PROFILE/deps/TEST");
    BUILT.get_or_init(|| {
        if std::env::var_os("TOOLS_ARE_BUILT").is_some() {
            return;
        }
        // The profile that this test was built with.
        let profile = match dir.file_name().and_then(|name| name.to_str()) {
            None | Some("debug") => "dev",
            Some(profile) => profile,
        };
        let args = ["build", "--quiet", "--workspace", "--bins", "--profile", profile];
        let mut cargo = Command::new(env!("CARGO"));
        // cargo sets these variables for this test. If the build inherited them, build scripts that
        // depend on them would run again.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
                cargo.env_remove(&*name);
            }
        }
        let cargo = cargo.args(args).status();
        assert!(cargo.expect("run cargo").success(), "build the tools");
    });
    dir.join(name)
}

/// A running tool; killed when dropped.
pub struct Tool {
    child: Guard,
    stdout: JoinHandle<String>,
    stderr: JoinHandle<String>,
}

/// Kills its process when dropped, if that still runs.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // It has already ended if the test passed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Output and exit status of a tool.
#[derive(Debug)]
pub struct Output {
    /// Standard output.
    pub stdout: String,
    /// Standard error from the start, including the lines that [`Tool::start`] has waited for.
    pub stderr: String,
    /// Exit status.
    pub status: ExitStatus,
}

impl Output {
    /// Parses standard output as JSON lines.
    ///
    /// # Panics
    /// If a line is no JSON object.
    pub fn json(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        self.stdout.lines().map(parse).collect()
    }
}

/// Asserts that a tool has traced a `GcLoad` and reports its collections, allocations or code.
///
/// # Panics
/// If it has not.
pub fn assert_traced(tool: &str, output: &Output) {
    assert!(output.status.success(), "{tool}: {output:?}");
    let word = match tool {
        "javagc" => "G1 Evacuation Pause",
        "javaobjnew" => "byte[]",
        _ => "GcLoad.",
    };
    assert!(output.stdout.contains(word), "{tool}: {output:?}");
}

/// Asserts that a tool refused to run: this exit status, nothing on stdout, and all of `words` on
/// stderr. For status 1, stderr has exactly one line.
///
/// # Panics
/// If the output is different.
pub fn assert_refused(output: &Output, status: i32, words: &[&str]) {
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    if status == 1 {
        assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
        let tool = output.stderr.split_once(": ").map(|(tool, _)| tool);
        assert!(
            matches!(
                tool,
                Some(
                    "javaclass"
                        | "javagc"
                        | "javaobjnew"
                        | "javaprof"
                        | "javastack"
                        | "javawait"
                        | "jvmprobed"
                )
            ),
            "{}",
            output.stderr
        );
    }
    // Each OS error occurs only once in the message.
    let causes: Vec<_> =
        output.stderr.split("(os error ").skip(1).map(|s| s.split(')').next()).collect();
    let distinct: HashSet<_> = causes.iter().collect();
    assert_eq!(causes.len(), distinct.len(), "{}", output.stderr);
    for word in words {
        assert!(output.stderr.contains(word), "no {word:?} in {}", output.stderr);
    }
}

impl Tool {
    /// Starts a tool and waits until it prints that it is tracing.
    ///
    /// # Panics
    /// If it ends instead.
    pub fn start(name: &str, args: &[&str]) -> Self {
        let mut command = Command::new(binary(name));
        command.args(args);
        Self::spawn(command)
    }

    /// Starts a tool with a prepared command and waits until it prints that it is tracing.
    ///
    /// # Panics
    /// If it ends instead of tracing.
    pub fn spawn(command: Command) -> Self {
        Self::spawn_reading(command, Stdio::null())
    }

    /// Starts a tool with a prepared command and this stdin. A pipe stays open until the tool has
    /// ended.
    ///
    /// # Panics
    /// If it ends instead of tracing.
    pub fn spawn_reading(mut command: Command, stdin: Stdio) -> Self {
        let mut child = command
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start the tool");
        let mut out = child.stdout.take().expect("piped");
        let stdout = thread::spawn(move || {
            let mut text = String::new();
            out.read_to_string(&mut text).expect("output is UTF-8");
            text
        });
        let mut err = BufReader::new(child.stderr.take().expect("piped"));
        let mut stderr_text = String::new();
        while !stderr_text.contains("Hit Ctrl-C to end") {
            if err.read_line(&mut stderr_text).expect("messages are UTF-8") == 0 {
                panic!("the tool ended instead of tracing: {stderr_text}");
            }
        }
        let stderr = thread::spawn(move || {
            err.read_to_string(&mut stderr_text).expect("messages are UTF-8");
            stderr_text
        });
        Self { child: Guard(child), stdout, stderr }
    }

    /// Returns its process ID.
    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Sends it a signal, for example SIGINT.
    ///
    /// # Panics
    /// If it has already ended.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.0.id()).ok().and_then(Pid::from_raw).expect("a pid");
        kill_process(pid, signal).expect("the tool still runs");
    }

    /// Ends it by SIGINT, as Ctrl-C does.
    ///
    /// # Panics
    /// If it does not end within `TIMEOUT`.
    pub fn interrupt(self) -> Output {
        self.signal(Signal::INT);
        self.wait()
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    /// If it does not end within `TIMEOUT`.
    pub fn wait(mut self) -> Output {
        let status = wait(&mut self.child.0);
        // A child process of the tool may still hold the pipes; closing stdin lets it end.
        drop(self.child.0.stdin.take());
        Output {
            stdout: self.stdout.join().expect("reader"),
            stderr: self.stderr.join().expect("reader"),
            status,
        }
    }
}

/// Returns a command that runs a tool as on a kernel without BTF: /sys/kernel/btf is hidden by a
/// mount.
pub fn without_btf(name: &str, args: &[&str]) -> Command {
    let hide = "if [ -d /sys/kernel/btf ]; then mount -t tmpfs none /sys/kernel/btf; fi";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &format!("set -e; {hide}; exec \"$@\""), "sh"]);
    command.arg(binary(name)).args(args);
    command
}

/// Runs a tool that ends by itself, and returns its output.
///
/// # Panics
/// If it does not start.
pub fn run(name: &str, args: &[&str]) -> Output {
    let mut command = Command::new(binary(name));
    command.args(args);
    run_command(command)
}

/// Runs a tool with a prepared command until it ends, and returns its output.
///
/// # Panics
/// If it does not start, or its output is not UTF-8.
pub fn run_command(mut command: Command) -> Output {
    let output = command.stdin(Stdio::null()).output().expect("start the tool");
    Output {
        stdout: String::from_utf8(output.stdout).expect("output is UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("messages are UTF-8"),
        status: output.status,
    }
}

/// Returns name, state and kernel stack of each thread of a process, which shows what a hanging
/// tool waits for.
fn threads_of(pid: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let read = |task: &fs::DirEntry, name| fs::read_to_string(task.path().join(name));
    let describe = |task: fs::DirEntry| {
        let status = read(&task, "status").unwrap_or_default();
        let fields =
            status.lines().filter(|line| line.starts_with("Name") || line.starts_with("State"));
        let fields: Vec<_> = fields.collect();
        format!("{}\n{}", fields.join(" "), read(&task, "stack").unwrap_or_default())
    };
    tasks.map(describe).collect()
}

fn wait(child: &mut Child) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("wait for the tool") {
            return status;
        }
        if begin.elapsed() > TIMEOUT.mul_f64(crate::slowness()) {
            let threads = threads_of(child.id());
            let _ = child.kill();
            panic!("the tool did not end within {TIMEOUT:?}\n{threads}");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

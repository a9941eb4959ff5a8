//! Java loads under our command.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::OnceLock,
};

use tempfile::TempDir;

use crate::runtimes::Runtime;

/// Frames of their own for all of `CpuLoad`'s methods, and frame pointers.
pub const FRAMES: &str = "-XX:+PreserveFramePointer -XX:+UseSerialGC -XX:CompileCommand=quiet \
                          -XX:CompileCommand=dontinline,CpuLoad.work \
                          -XX:CompileCommand=dontinline,CpuLoad.small \
                          -XX:CompileCommand=dontinline,CpuLoad.medium \
                          -XX:CompileCommand=dontinline,CpuLoad.large \
                          -XX:CompileCommand=dontinline,CpuLoad.deep";

/// The folder with the compiled classes of `tests/java`.
///
/// # Panics
/// Where there is no compiler or it fails.
pub fn classes() -> &'static Path {
    static CLASSES: OnceLock<TempDir> = OnceLock::new();
    CLASSES
        .get_or_init(|| {
            let dir = tempfile::tempdir().expect("a temporary folder");
            // For JVMs under other users, too.
            let readable = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(dir.path(), readable).expect("chmod");
            let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("java");
            let files = std::fs::read_dir(sources).expect("tests/java").flatten().map(|f| f.path());
            let files = files.filter(|f| f.extension().is_some_and(|e| e == "java"));
            // Two of them run in JDK 8, too.
            let is_old = |f: &PathBuf| f.ends_with("GcLoad.java") || f.ends_with("CpuLoad.java");
            let (old, new): (Vec<_>, Vec<_>) = files.partition(is_old);
            compile("8", &old, dir.path());
            compile("11", &new, dir.path());
            dir
        })
        .path()
}

/// Numbers that a load answers with, `NAME=NUMBER`, by name.
///
/// # Panics
/// Where a value is no number.
pub fn numbers(answer: &str) -> HashMap<String, u64> {
    let pairs = answer.split_whitespace().filter_map(|word| word.split_once('='));
    pairs.map(|(name, number)| (name.into(), number.parse().expect("a number"))).collect()
}

fn compile(release: &str, files: &[PathBuf], to: &Path) {
    let mut javac = Command::new("javac");
    javac.args(["-Xlint:-options", "--release", release, "-d"]).arg(to).args(files);
    let status = javac.status().expect("run javac (tests/setup installs it)");
    assert!(status.success(), "javac failed");
}

/// A running load with its log; killed when dropped.
pub struct Load {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    dir: TempDir,
}

impl Load {
    /// Starts a JVM that waits for commands.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start(runtime: &Runtime, flags: &str) -> Self {
        Self::start_program(runtime, flags, "GcLoad")
    }

    /// The same with another program of `tests/java` than `GcLoad`.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start_program(runtime: &Runtime, flags: &str, program: &str) -> Self {
        let mut command = runtime.command();
        command.args(flags.split_ascii_whitespace());
        Self::spawn_program(command, program, runtime.major)
    }

    /// The same, with a `java` command that is set up already.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn spawn(command: Command) -> Self {
        Self::spawn_program(command, "GcLoad", 11)
    }

    /// The same with another program, for a JDK of this number.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn spawn_program(mut command: Command, program: &str, major: u32) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let log = dir.path().join("log");
        if major == 8 {
            command.args(["-XX:+PrintGC", "-XX:+PrintGCTimeStamps"]);
            command.arg(format!("-Xloggc:{}", log.display()));
        } else {
            // timenanos is CLOCK_MONOTONIC, which our events are stamped with.
            let log = log.display();
            command.arg(format!("-Xlog:gc*,safepoint=debug:file={log}:timenanos,tags"));
        }
        let has_heap = command.get_args().any(|arg| arg.to_string_lossy().starts_with("-Xmx"));
        command.args((!has_heap).then_some("-Xmx64m"));
        let mut child = command
            .args(["-XX:ParallelGCThreads=2", "-XX:ConcGCThreads=1"])
            .arg("-cp")
            .arg(classes())
            .arg(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start java");
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut load = Self { child, stdin, stdout, dir };
        load.expect("ready");
        load
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs the load and waits for its end.
    ///
    /// # Panics
    /// Where the JVM has died.
    pub fn run(&mut self, seconds: f64) {
        self.say(&format!("go {seconds}"));
        self.done();
    }

    /// Waits for the end of a load that was started, and returns what it says of itself.
    ///
    /// # Panics
    /// Where the JVM has died.
    pub fn done(&mut self) -> String {
        self.expect("done")
    }

    /// Starts the load without waiting for its end.
    ///
    /// # Panics
    /// Where the JVM has died.
    pub fn go(&mut self, seconds: f64) {
        self.say(&format!("go {seconds}"));
    }

    /// Gives a command of the program's own, waits until it is done and returns what it says
    /// of itself.
    ///
    /// # Panics
    /// Where the JVM has died.
    pub fn ask(&mut self, command: &str) -> String {
        self.say(command);
        self.done()
    }

    /// Ends the JVM in good order, so that its log is complete.
    ///
    /// # Panics
    /// Where it has ended otherwise.
    pub fn quit(mut self) -> String {
        self.say("quit");
        let status = self.child.wait().expect("wait for java");
        assert!(status.success(), "java: {status}");
        std::fs::read_to_string(self.log_file()).expect("the log is UTF-8")
    }

    /// Kills the JVM.
    ///
    /// # Panics
    /// Where it is gone already.
    pub fn kill(&mut self) {
        self.child.kill().expect("kill java");
        self.child.wait().expect("wait for java");
    }

    /// What it has logged so far.
    ///
    /// # Panics
    /// Where there is no log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).expect("the log is UTF-8")
    }

    fn log_file(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    fn say(&mut self, command: &str) {
        writeln!(self.stdin, "{command}").expect("java reads commands");
    }

    fn expect(&mut self, word: &str) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("java answers");
        assert!(line.starts_with(word), "java said {line:?} for {word:?}");
        line
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // Already gone where the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! Java load programs that a test starts and controls through stdin and stdout.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::OnceLock,
};

use tempfile::TempDir;

use crate::runtimes::Runtime;

/// JVM flags that keep `CpuLoad`'s methods from being inlined, so that each has a frame of its own,
/// and that preserve frame pointers.
pub const FRAMES: &str = "-XX:+PreserveFramePointer -XX:+UseSerialGC -XX:CompileCommand=quiet \
                          -XX:CompileCommand=dontinline,CpuLoad.work \
                          -XX:CompileCommand=dontinline,CpuLoad.small \
                          -XX:CompileCommand=dontinline,CpuLoad.medium \
                          -XX:CompileCommand=dontinline,CpuLoad.large \
                          -XX:CompileCommand=dontinline,CpuLoad.deep";

/// JVM flag of `GcLoad`: its threads use most of a processor.
pub const BUSY_GC_LOAD: &str = "-Dgcload.pause=1";

/// JVM flags of `VirtualLoad`: enough carriers for all its threads, because in JDK 21, a virtual thread that
/// holds a monitor or waits for one keeps its carrier, and the export that its `ThreadFlock` needs.
pub const VIRTUAL: &str = "-Djdk.virtualThreadScheduler.parallelism=20 \
                           --add-exports=java.base/jdk.internal.misc=ALL-UNNAMED";

/// Subfolder of the compiled classes that contains `StackLoad` in a version for JDK 8.
const OF_JDK_8: &str = "jdk-8";

/// Returns a folder with the compiled classes of `tests/java`. A test may add classes to it.
///
/// # Panics
/// If there is no compiler or it fails.
pub fn classes() -> &'static Path {
    static CLASSES: OnceLock<TempDir> = OnceLock::new();
    CLASSES
        .get_or_init(|| {
            let dir = tempfile::tempdir().expect("a temporary folder");
            // The classes are copied, because JVMs of other users read them, too, and those users
            // have no access to the build folder.
            let readable = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(dir.path(), readable).expect("chmod");
            let found = std::fs::read_dir(compiled()).expect("classes").flatten();
            for class in found.filter(|entry| entry.path().is_file()) {
                std::fs::copy(class.path(), dir.path().join(class.file_name())).expect("copy");
            }
            dir
        })
        .path()
}

/// Creates a jar of the compiled classes of `tests/java` in a folder.
///
/// # Panics
/// If it cannot be made.
pub fn jar(dir: &Path) -> PathBuf {
    let jar = dir.join("tests.jar");
    let mut command = Command::new("jar");
    command.args(["--create", "--file"]).arg(&jar).arg("-C").arg(classes()).arg(".");
    assert!(command.status().expect("run jar (tests/setup installs it)").success(), "jar failed");
    jar
}

/// Returns the folder of the compiled classes, which all test binaries share. It is next to the
/// binaries' folder, and its name is a hash of the sources.
fn compiled() -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("java");
    let files = std::fs::read_dir(sources).expect("tests/java").flatten().map(|f| f.path());
    let mut files: Vec<_> = files.filter(|f| f.extension().is_some_and(|e| e == "java")).collect();
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in &files {
        (file, std::fs::read(file).expect("a source")).hash(&mut hasher);
    }
    let test = std::env::current_exe().expect("own path");
    let build = test.parent().expect("target/PROFILE/deps/TEST").join("../java");
    let done = build.join(format!("{:016x}", hasher.finish()));
    if !done.exists() {
        std::fs::create_dir_all(&build).expect("target is ours");
        // Compiled elsewhere and renamed when complete, because other test binaries may run at the
        // same time.
        let new = tempfile::tempdir_in(&build).expect("a temporary folder");
        // These run on JDK 8, too.
        let old = [
            "AllocLoad.java",
            "AskLoad.java",
            "CpuLoad.java",
            "GcLoad.java",
            "HoldLoad.java",
            "IntrinsicLoad.java",
            "LockLoad.java",
            "LongNameLoad.java",
        ];
        let is_old = |f: &PathBuf| old.iter().any(|name| f.ends_with(name));
        let (old, others): (Vec<_>, Vec<_>) = files.into_iter().partition(is_old);
        compile(&["--release", "8"], &old, new.path());
        compile(&["--release", "11"], &others, new.path());
        // Compiled without `--release 8`, which would reject methods that JDK 8 lacks. StackLoad contains
        // calls of such methods, and makes these calls only on later JDKs.
        let is_stack = |f: &PathBuf| {
            f.file_name().is_some_and(|name| name.to_string_lossy().starts_with("Stack"))
        };
        let stacks: Vec<_> = others.into_iter().filter(is_stack).collect();
        compile(&["-source", "8", "-target", "8"], &stacks, &new.path().join(OF_JDK_8));
        // The rename fails if another process was faster; its classes are the same.
        let _ = std::fs::rename(new.path(), &done);
    }
    done
}

/// Parses the `NAME=NUMBER` pairs of a load's answer.
///
/// # Panics
/// If a value is no number.
pub fn numbers(answer: &str) -> HashMap<String, u64> {
    let pairs = answer.split_whitespace().filter_map(|word| word.split_once('='));
    pairs.map(|(name, number)| (name.into(), number.parse().expect("a number"))).collect()
}

fn compile(options: &[&str], files: &[PathBuf], to: &Path) {
    let mut javac = Command::new("javac");
    javac.arg("-Xlint:-options").args(options).arg("-d").arg(to).args(files);
    let status = javac.status().expect("run javac (tests/setup installs it)");
    assert!(status.success(), "javac failed");
}

/// A running load program and its GC log. The JVM is killed when this is dropped.
pub struct Load {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    dir: TempDir,
}

impl Load {
    /// Starts a JVM with `GcLoad`, which waits for commands.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(runtime: &Runtime, flags: &str) -> Self {
        Self::start_program(runtime, flags, "GcLoad")
    }

    /// Starts a JVM with a program of `tests/java`.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_program(runtime: &Runtime, flags: &str, program: &str) -> Self {
        let mut command = runtime.command();
        command.args(flags.split_ascii_whitespace());
        Self::spawn_program(command, program, runtime.major)
    }

    /// Starts `GcLoad` with a prepared `java` command.
    ///
    /// # Panics
    /// If it does not start.
    pub fn spawn(command: Command) -> Self {
        Self::spawn_program(command, "GcLoad", 11)
    }

    /// Starts a program of `tests/java` with a prepared `java` command of a JDK of this major
    /// version.
    ///
    /// # Panics
    /// If it does not start.
    pub fn spawn_program(command: Command, program: &str, major: u32) -> Self {
        match program {
            "StackLoad" if major == 8 => {
                Self::spawn_from(command, &compiled().join(OF_JDK_8), program, major)
            }
            _ => Self::spawn_from(command, classes(), program, major),
        }
    }

    /// Starts a program of `tests/java` from a jar that contains its classes.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_jar(runtime: &Runtime, flags: &str, jar: &Path, program: &str) -> Self {
        let mut command = runtime.command();
        command.args(flags.split_ascii_whitespace());
        Self::spawn_from(command, jar, program, runtime.major)
    }

    fn spawn_from(mut command: Command, class_path: &Path, program: &str, major: u32) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let log = dir.path().join("log");
        if major == 8 {
            command.args(["-XX:+PrintGC", "-XX:+PrintGCTimeStamps"]);
            command.arg(format!("-Xloggc:{}", log.display()));
        } else {
            // `timenanos` is CLOCK_MONOTONIC, the clock of our events' timestamps.
            let log = log.display();
            command.arg(format!("-Xlog:gc*,safepoint=debug:file={log}:timenanos,tags"));
        }
        let has_heap = command.get_args().any(|arg| arg.to_string_lossy().starts_with("-Xmx"));
        command.args((!has_heap).then_some("-Xmx64m"));
        let mut child = command
            .args(["-XX:ParallelGCThreads=2", "-XX:ConcGCThreads=1"])
            .arg("-cp")
            .arg(class_path)
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

    /// Returns its process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lowers the priority of the JVM's threads, and so of those that they start. The JVM then uses only CPU time that
    /// the tests running beside it do not need.
    ///
    /// # Panics
    /// If the JVM has died.
    #[must_use]
    pub fn in_background(self) -> Self {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("its threads");
        let names = tasks.flatten().map(|task| task.file_name());
        let ids =
            names.filter_map(|name| rustix::process::Pid::from_raw(name.to_str()?.parse().ok()?));
        for id in ids {
            // A thread may have ended.
            let _ = rustix::process::setpriority_process(Some(id), 19);
        }
        self
    }

    /// Runs the load for this time and waits until it is done.
    ///
    /// # Panics
    /// If the JVM has died.
    pub fn run(&mut self, seconds: f64) {
        self.go(seconds);
        self.done();
    }

    /// Waits until a started load is done, and returns its answer.
    ///
    /// # Panics
    /// If the JVM has died.
    pub fn done(&mut self) -> String {
        self.expect("done")
    }

    /// Starts the load without waiting until it is done.
    ///
    /// # Panics
    /// If the JVM has died.
    pub fn go(&mut self, seconds: f64) {
        self.send(&format!("go {}", seconds * crate::slowness()));
    }

    /// Sends a command that is specific to the program, waits until it is done, and returns the
    /// answer.
    ///
    /// # Panics
    /// If the JVM has died.
    pub fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.done()
    }

    /// Ends the JVM by its `quit` command, so that its log is complete, and returns the log.
    ///
    /// # Panics
    /// If its exit status is not 0.
    pub fn quit(mut self) -> String {
        self.send("quit");
        let status = self.child.wait().expect("wait for java");
        assert!(status.success(), "java: {status}");
        std::fs::read_to_string(self.log_file()).expect("the log is UTF-8")
    }

    /// Kills the JVM.
    ///
    /// # Panics
    /// If it is gone already.
    pub fn kill(&mut self) {
        self.child.kill().expect("kill java");
        self.child.wait().expect("wait for java");
    }

    /// Waits until the JVM has ended, for example by a signal.
    ///
    /// # Panics
    /// If that fails.
    pub fn wait(&mut self) {
        self.child.wait().expect("wait for java");
    }

    /// Returns what the JVM has logged so far.
    ///
    /// # Panics
    /// If there is no log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).expect("the log is UTF-8")
    }

    fn log_file(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Sends a command without waiting until it is done.
    ///
    /// # Panics
    /// If the JVM has died.
    pub fn send(&mut self, command: &str) {
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
        // It may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! A process that fires HotSpot's probes faster than any JVM, to test the limits of the tools. It
//! is compiled from `tests/fixtures`.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::Arc,
};

use tempfile::TempDir;

/// The process; killed when dropped.
pub struct Fake {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    dir: Arc<TempDir>,
}

/// Compiles the library with the probes as `libjvm.so` in a folder.
///
/// # Panics
/// If there is no C compiler.
pub fn build_library(dir: &Path) -> PathBuf {
    let library = dir.join("libjvm.so");
    compile("probes.c", &["-shared", "-fPIC", "-fno-builtin"], &library);
    library
}

/// Compiles a program of `tests/fixtures`.
///
/// # Panics
/// If there is no C compiler.
pub fn compile(source: &str, flags: &[&str], out: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(source);
    let status = Command::new("cc").args(["-O2", "-o"]).arg(out).args(flags).arg(source).status();
    assert!(status.expect("run cc (tests/setup installs it)").success(), "cc failed");
}

impl Fake {
    /// Starts a process that waits for commands.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        build_library(dir.path());
        compile("fire.c", &[], &dir.path().join("fire"));
        Self::start_in(Arc::new(dir))
    }

    /// Starts another process that maps the same library.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start_another(&self) -> Self {
        Self::start_in(Arc::clone(&self.dir))
    }

    fn start_in(dir: Arc<TempDir>) -> Self {
        let mut child = Command::new(dir.path().join("fire"))
            .arg(dir.path().join("libjvm.so"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start it");
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut fake = Self { child, stdin, stdout, dir };
        fake.answer("ready");
        fake
    }

    /// Returns its process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fires this number of stops at this rate per second, and returns the seconds that it took.
    ///
    /// # Panics
    /// If it has died.
    pub fn fire(&mut self, count: u64, rate: f64) -> f64 {
        writeln!(self.stdin, "{count} {rate}").expect("it reads commands");
        let answer = self.answer("fired");
        answer.trim().rsplit(' ').next().and_then(|s| s.parse().ok()).expect("seconds")
    }

    fn answer(&mut self, word: &str) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it answers");
        assert!(line.starts_with(word), "{line:?}");
        line
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

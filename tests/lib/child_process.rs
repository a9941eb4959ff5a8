//! Processes other than load programs: sleepers, busy shells, and any other command that a test
//! starts.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

/// A child process that is killed when dropped.
#[derive(Debug)]
pub struct ChildProcess(pub Child);

impl ChildProcess {
    /// Starts a command.
    ///
    /// # Panics
    /// If it does not start.
    pub fn spawn(command: &mut Command) -> Self {
        Self(command.spawn().unwrap_or_else(|e| panic!("start {command:?}: {e}")))
    }

    /// Returns its process ID.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // It may already have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a process that loads a library, waits for a line on its standard input, and then ends.
///
/// # Panics
/// If it does not start.
pub fn loader(library: &Path) -> ChildProcess {
    let script = "import ctypes,sys\n\
        library=ctypes.CDLL(sys.argv[1])\n\
        print('loaded',flush=True)\n\
        sys.stdin.readline()";
    let mut command = Command::new("python3");
    command.args(["-c", script]).arg(library).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = ChildProcess::spawn(&mut command);
    let mut line = String::new();
    let stdout = child.0.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut line).expect("python answers");
    assert_eq!(line, "loaded\n", "python3 -c {script}");
    child
}

/// Starts a process that sleeps.
pub fn sleeper() -> ChildProcess {
    ChildProcess::spawn(Command::new("sleep").arg("60"))
}

/// Starts a busy process that is not a JVM.
pub fn busy_shell() -> ChildProcess {
    ChildProcess::spawn(Command::new("sh").args(["-c", "while :; do :; done"]))
}

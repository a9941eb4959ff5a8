//! Processes that unit tests treat as JVMs.

use std::{
    io::Write,
    process::{Child, Command, Stdio},
    time::Duration,
};

use crate::{
    Pid, Result,
    elf::testing::Library,
    hotspot::HotSpot,
    jvms::Arrival,
    process::{Fate, LibJvm, Process, Target},
};

/// A shell process that waits for a line on stdin, and then execs another program.
pub(super) struct WaitingShell(Child);

impl WaitingShell {
    pub(super) fn new() -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "read -r word; exec sleep 1000"]).stdin(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    pub(super) fn pid(&self) -> Pid {
        Pid(self.0.id())
    }

    /// Makes a target of it, as if it ran `library` as its libjvm.so.
    pub(super) fn target(&self, library: &Library) -> Target {
        let process = Process::open(self.pid()).unwrap();
        Target { process: process.into(), libjvm: LibJvm::of_file(&library.path()).unwrap() }
    }

    pub(super) fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Makes the process exec another program, and waits until it has.
    pub(super) fn exec(&mut self) {
        let process = Process::open(self.pid()).unwrap();
        self.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
        while process.fate() == Fate::Alive {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for WaitingShell {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A library that stands in for a libjvm.so.
pub(super) fn library() -> Library {
    Library::build(".data\n", &[])
}

/// Makes the arrival of a process, as if it ran `library` as its libjvm.so.
pub(super) fn arrival(
    process: &WaitingShell,
    library: &Library,
    hotspot: Result<HotSpot>,
) -> Arrival {
    Arrival::new(process.target(library), hotspot)
}

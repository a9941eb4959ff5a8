//! Processes that are no load of ours: sleepers, busy shells, whatever a test starts.

use std::process::{Child, Command};

/// A child process that is killed when dropped.
#[derive(Debug)]
pub struct Other(pub Child);

impl Other {
    /// Starts a command.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn spawn(command: &mut Command) -> Self {
        Self(command.spawn().unwrap_or_else(|e| panic!("start {command:?}: {e}")))
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // Already gone where the test went well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that does nothing.
pub fn sleeper() -> Other {
    Other::spawn(Command::new("sleep").arg("60"))
}

/// A process that is busy and no JVM.
pub fn busy_shell() -> Other {
    Other::spawn(Command::new("sh").args(["-c", "while :; do :; done"]))
}

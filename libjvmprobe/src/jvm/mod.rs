//! What a JVM process is.
//!
//! | module | what it knows |
//! |---|---|
//! | [`process`] | a process as /proc tells of it; whether it still is the same |
//! | [`libjvm`] | which libjvm.so it runs, opened exactly |
//! | [`memory`] | reading its memory |
//! | [`root`] | the one door into its file system |
//! | [`identity`] | acting as its user |
//! | [`attach`] | HotSpot's attach protocol: commands to a running JVM |
//! | [`agent`] | our JVMTI agent, loaded for a moment |
//! | [`perfdata`] | HotSpot's performance data (`hsperfdata`) |
//! | [`scan`] | all JVMs of the machine |

pub mod agent;
pub mod attach;
pub mod identity;
pub mod libjvm;
pub mod memory;
pub mod perfdata;
pub mod process;
pub mod root;
pub mod scan;

pub use libjvm::{FileId, LibJvm};
pub use process::{Fate, Process};

use crate::{Pid, Result};

/// A JVM: found, named, checked.
#[derive(Debug)]
pub struct Target {
    /// The process.
    pub process: Process,
    /// Its libjvm.so.
    pub libjvm: LibJvm,
}

impl Target {
    /// Looks up a process and checks that it is a JVM that can be traced.
    ///
    /// # Errors
    /// Those of [`Process::open`] and [`LibJvm::find`].
    pub fn open(pid: Pid) -> Result<Self> {
        let process = Process::open(pid)?;
        let libjvm = LibJvm::find(pid, &process.comm)?;
        Ok(Self { process, libjvm })
    }

    /// Its process number.
    pub fn pid(&self) -> Pid {
        self.process.pid
    }
}

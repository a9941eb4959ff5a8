//! A process, and whether it is a JVM's.
//!
//! | module | what it knows |
//! |---|---|
//! | `pid` | a process as /proc tells of it; whether it still is the same |
//! | `libjvm` | which libjvm.so it runs, opened exactly |
//! | `file_id` | which file it is, in whichever container |
//! | [`launcher`] | the launcher's command line |
//! | [`cgroup`] | the container, pod or service that its control groups tell |
//! | [`service`] | what who runs it calls it |
//! | [`code`] | the files that it has mapped as code |
//! | `memory` | reading its memory |
//! | `reader` | child processes that read for us and may get stuck |
//! | [`root`] | the one door into its file system |
//! | [`identity`] | acting as its user |
//! | `scan` | all JVMs of the machine |

pub mod cgroup;
pub mod code;
mod file_id;
pub mod identity;
pub mod launcher;
pub(crate) mod libjvm;
pub(crate) mod maps;
pub mod memory;
pub(crate) mod pid;
pub(crate) mod reader;
pub mod root;
pub(crate) mod scan;
pub mod service;

pub use file_id::FileId;
pub use libjvm::LibJvm;
pub use pid::{Fate, Process};
pub use reader::start_readers;

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
    /// Those of [`Process::open`] and `LibJvm::find`.
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

//! A process: its identity, files, memory, and whether it runs a JVM.
//!
//! | module | contents |
//! |---|---|
//! | `pid` | a process in /proc, and whether it still runs the same program |
//! | `libjvm` | the libjvm.so that it runs: finds and opens exactly the mapped file |
//! | `file_id` | identity of a file across containers |
//! | `file_system` | whether the content of its files may be read without a reader |
//! | [`freeze`] | stopping it for a short time |
//! | [`launcher`] | the launcher's command line |
//! | [`cgroup`] | container, pod or service, and tenant, from control groups |
//! | `cgroup_folders` | owners of control groups |
//! | [`service`] | service name and attributes that its operator has set |
//! | `context` | resource attributes that it publishes in its memory |
//! | [`code`] | files that it has mapped as code |
//! | `memory` | reading its memory |
//! | `core_file` | core files: memory, threads and files of a process that has ended |
//! | [`blocking_call`] | the system call in which a thread waits, and for which file |
//! | [`resources`] | its processors and file descriptors |
//! | [`os_threads`] | its threads as the kernel describes them |
//! | `populated` | page tables that reads create in it |
//! | `reader` | child processes that make reads which may get stuck |
//! | `reader_wait` | how long the answer of a reader is awaited |
//! | [`root`] | the only access to its file system |
//! | [`identity`] | acting as its user |
//! | `scan` | all JVMs of the machine |
//! | `sockets` | addresses of TCP sockets |
//! | `thread_variables` | thread-local variables that its files export |

pub mod blocking_call;
pub mod cgroup;
mod cgroup_folders;
pub mod code;
pub(crate) mod context;
pub(crate) mod core_file;
mod file_id;
pub(crate) mod file_system;
pub mod freeze;
pub mod identity;
pub mod launcher;
pub(crate) mod libjvm;
pub(crate) mod maps;
pub mod memory;
pub mod os_threads;
pub(crate) mod pid;
mod populated;
pub(crate) mod present;
pub(crate) mod reader;
mod reader_wait;
pub mod resources;
pub mod root;
pub(crate) mod scan;
pub mod service;
mod sockets;
pub(crate) mod thread_variables;

pub use file_id::FileId;
pub use libjvm::LibJvm;
pub(crate) use pid::exists;
pub use pid::{CpuTime, Fate, Process};
pub use reader::start_readers;

use std::sync::Arc;

use procfs::process::MemoryMap;

use crate::{Pid, Result};

/// A process that runs a libjvm.so according to its list of mappings. Nothing of it is opened yet: neither its memory
/// nor that file.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    /// The process.
    pub(crate) process: Arc<Process>,
    /// First mapping of libjvm.so.
    mapping: MemoryMap,
}

impl Candidate {
    /// Looks up a process and checks that it is a JVM.
    ///
    /// # Errors
    /// Returns the errors of [`Process::open`] and `LibJvm::find`.
    pub(crate) fn find(pid: Pid) -> Result<Self> {
        let process = Process::open(pid)?;
        let mapping = LibJvm::find(pid, &process.comm)?;
        Ok(Self { process: Arc::new(process), mapping })
    }

    /// Opens its libjvm.so.
    ///
    /// # Errors
    /// Returns the errors of `LibJvm::open`.
    pub(crate) fn open(&self) -> Result<Target> {
        let libjvm = LibJvm::open(&self.process, &self.mapping)?;
        Ok(Target { process: Arc::clone(&self.process), libjvm })
    }
}

/// A process that was checked to be a JVM, and its libjvm.so.
#[derive(Debug)]
pub struct Target {
    /// The process.
    pub process: Arc<Process>,
    /// Its libjvm.so.
    pub libjvm: LibJvm,
}

impl Target {
    /// Looks up a process and checks that it is a JVM that can be traced.
    ///
    /// # Errors
    /// Returns the errors of [`Process::open`], `LibJvm::find` and `LibJvm::open`.
    pub fn open(pid: Pid) -> Result<Self> {
        Candidate::find(pid)?.open()
    }

    /// Returns its PID.
    pub fn pid(&self) -> Pid {
        self.process.pid
    }
}

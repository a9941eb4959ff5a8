//! The one error type: what failed, on which target, and what helps.

use std::{io, path::PathBuf};

use crate::units::{Addr, Pid};

/// Shorthand for results of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, worded for the person who has to act on it.
///
/// `Display` gives one line: what is wrong and, after a colon or semicolon, what
/// to do. Tools print it behind their name and add an exit code.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No process has this number.
    #[error("no process {pid}; list JVMs with `jps -l` or `pgrep -a java`")]
    NoSuchProcess {
        /// The number asked for.
        pid: Pid,
    },
    /// The number belongs to a thread, not to a process.
    #[error("{pid} is a thread of process {tgid}; use `-p {tgid}`")]
    ThreadId {
        /// The number asked for.
        pid: Pid,
        /// The process that the thread belongs to.
        tgid: Pid,
    },
    /// The process has ended and waits for its parent.
    #[error("process {pid} is a zombie: it has ended and only waits for its parent to notice")]
    Zombie {
        /// The process.
        pid: Pid,
    },
    /// The process maps no JVM.
    #[error("process {pid} ({comm}) is no JVM: it maps no libjvm.so; list JVMs with `jps -l`")]
    NotAJvm {
        /// The process.
        pid: Pid,
        /// Its command name.
        comm: String,
    },
    /// The JVM is Eclipse OpenJ9, which has none of HotSpot's probes or tables.
    #[error("process {pid} runs Eclipse OpenJ9; only HotSpot (OpenJDK) JVMs can be traced")]
    OpenJ9 {
        /// The process.
        pid: Pid,
    },
    /// The program is a GraalVM native image: Java code, compiled beforehand, without a JVM.
    #[error("process {pid} is a GraalVM native image, in which there is no JVM to trace")]
    NativeImage {
        /// The process.
        pid: Pid,
    },
    /// The JVM is built for another machine architecture (under emulation, for example).
    #[error(
        "process {pid} runs a JVM for {theirs}, this tool is built for {ours}; use a build for {theirs}"
    )]
    ForeignArch {
        /// The process.
        pid: Pid,
        /// The JVM's architecture.
        theirs: String,
        /// Our own.
        ours: &'static str,
    },
    /// The JVM cannot be attached to, or refuses a command.
    #[error("cannot attach to process {pid}: {why}")]
    Attach {
        /// The process.
        pid: Pid,
        /// Why, and what would help.
        why: String,
    },
    /// The kernel refuses for lack of rights.
    #[error("not permitted to {what}: {missing}; run as root (sudo)")]
    Permission {
        /// What was tried.
        what: String,
        /// The missing capability or setting.
        missing: String,
    },
    /// The kernel lacks a feature.
    #[error("this kernel cannot {what}; {hint}")]
    Kernel {
        /// What is missing.
        what: String,
        /// What would help.
        hint: String,
    },
    /// A library has neither the probes nor the symbols that are needed.
    #[error("{path} has no {what}; {hint}", path = path.display())]
    NoProbes {
        /// The file.
        path: PathBuf,
        /// The missing probes or symbols.
        what: String,
        /// What would help.
        hint: String,
    },
    /// An ELF file is malformed or truncated.
    #[error("malformed ELF file: {what}")]
    Elf {
        /// What is wrong and where.
        what: String,
    },
    /// HotSpot's tables (`gHotSpotVMStructs` and friends) are missing or implausible.
    #[error("HotSpot's vmStructs: {what}")]
    Layout {
        /// The missing field or the implausible value, and what is lost without it.
        what: String,
    },
    /// HotSpot's performance data are missing or implausible.
    #[error("HotSpot's performance data: {what}")]
    PerfData {
        /// What is wrong.
        what: String,
    },
    /// The target's memory could not be read.
    #[error("cannot read {len} bytes of the target's memory at {addr}: {source}")]
    Memory {
        /// Where.
        addr: Addr,
        /// How much.
        len: usize,
        /// Why.
        source: io::Error,
    },
    /// A file could not be opened or read.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried, with the path.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// A file's name tells no format that a profile can be written in.
    #[error(
        "{path}: the name tells the format; use .svg, .folded, .pb.gz or .json",
        path = path.display()
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// libbpf or the kernel's BPF system refused.
    #[error("cannot {what}: {source:#}")]
    Bpf {
        /// What was tried.
        what: String,
        /// Why.
        source: libbpf_rs::Error,
    },
}

impl Error {
    /// Wraps an I/O error with what was tried, for example `open /proc/1/maps`.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }

    /// A malformed ELF file.
    pub(crate) fn elf(what: impl Into<String>) -> Self {
        Self::Elf { what: what.into() }
    }

    /// A missing or implausible entry of vmStructs.
    pub(crate) fn layout(what: impl Into<String>) -> Self {
        Self::Layout { what: what.into() }
    }
}

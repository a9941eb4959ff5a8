//! The one error type: what failed, on which target, and what helps.

use std::{io, path::PathBuf};

use crate::units::{Addr, Pid};

/// Shorthand for results of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, worded for the person who has to act on it.
///
/// `Display` gives one line: what is wrong and why and, after a colon or semicolon, what
/// to do. Tools print it behind their name and add an exit code. The cause stands in that
/// line, so it is no `source()` as well: who prints the chain of errors would say it twice.
/// (To thiserror, a field `source` is one, and a field `r#source` is none.)
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
    /// No JVM has such a name.
    #[error(
        "no JVM runs whose main class, jar, service or container matches `{name}`; without a \
             target, the tool lists those that run"
    )]
    NoMatch {
        /// What was asked for.
        name: String,
    },
    /// The process maps no JVM.
    #[error("process {pid} ({comm}) is no JVM: it maps no libjvm.so; list JVMs with `jps -l`")]
    NotAJvm {
        /// The process.
        pid: Pid,
        /// Its command name.
        comm: String,
    },
    /// The process maps a libjvm.so and runs no JVM.
    #[error(
        "process {pid} ({comm}) is no JVM: it has libjvm.so mapped and has made no JVM with it; \
         list JVMs with `jps -l`"
    )]
    NoVm {
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
    #[error(
        "process {pid} is a GraalVM native image, in which there is no JVM to trace; javaprof \
             profiles it, and its own option -XX:+PrintGC tells of collections"
    )]
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
    /// Nothing has this name.
    #[error("there is no {what}{like}", like = like(near))]
    Unknown {
        /// What was asked for.
        what: String,
        /// Those whose names are like it.
        near: Vec<String>,
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
    /// A file that the user has named has no symbols that can be used.
    #[error("--symbols-from {path}: {why}", path = path.display())]
    Symbols {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// Something that is there in a shape, or a version, that we have no way with.
    #[error("{what}")]
    Unsupported {
        /// What it is, whose, and what works instead.
        what: String,
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
        r#source: io::Error,
    },
    /// A file could not be opened or read.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried, with the path.
        what: String,
        /// Why.
        r#source: io::Error,
    },
    /// A file's name tells no format that a profile can be written in.
    #[error(
        "{path}: the name tells the format; use {known}",
        path = path.display()
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// The formats that there are, by how names end.
        known: String,
    },
    /// libbpf or the kernel's BPF system refused.
    #[error("cannot {what}: {source:#}")]
    Bpf {
        /// What was tried.
        what: String,
        /// Why.
        r#source: libbpf_rs::Error,
    },
}

fn like(near: &[String]) -> String {
    match near {
        [] => String::new(),
        near => format!("; like it are {}", near.join(", ")),
    }
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

    /// Memory at which nothing is mapped.
    pub(crate) fn not_mapped(addr: Addr, len: usize) -> Self {
        Self::Memory { addr, len, source: io::Error::from_raw_os_error(libc::EFAULT) }
    }

    /// A missing or implausible entry of vmStructs.
    pub(crate) fn layout(what: impl Into<String>) -> Self {
        Self::Layout { what: what.into() }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    /// As tools print it: the chain of errors in one line.
    fn in_one_line(error: &Error) -> String {
        let mut line = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            line = format!("{line}: {error}");
            cause = error.source();
        }
        line
    }

    #[test]
    fn a_cause_is_said_once() {
        let missing = || io::Error::from_raw_os_error(2);
        let bpf = libbpf_rs::Error::from_raw_os_error(2);
        for error in [
            Error::io("open /x", missing()),
            Error::Memory { addr: Addr(4096), len: 8, source: missing() },
            Error::Bpf { what: "load".into(), source: bpf },
        ] {
            let line = in_one_line(&error);
            assert_eq!(line.matches("No such file or directory").count(), 1, "{line}");
            assert_eq!(line.matches("os error").count(), 1, "{line}");
        }
    }
}

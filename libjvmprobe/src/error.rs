//! The error type of the library: what failed, for which target, and what helps.

use std::{io, path::PathBuf};

use crate::units::{Addr, Pid};

/// Shorthand for results of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// All errors, worded for the user who has to act on them.
///
/// `Display` prints one line: what is wrong and why and, after a colon or semicolon, what to do. Tools print it after
/// their name and set an exit status. The line contains the cause. Therefore `source()` does not return the
/// cause: a program that prints the chain of errors would otherwise print it twice. (thiserror treats a field
/// `source` as the source, but not a field `r#source`.)
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No process has this PID.
    #[error("there is no process {pid}; run this tool without a target to list JVMs")]
    NoSuchProcess {
        /// The requested PID.
        pid: Pid,
    },
    /// The number belongs to a thread, not to a process.
    #[error("{pid} is a thread of process {tgid}; use `-p {tgid}`")]
    ThreadId {
        /// The requested number.
        pid: Pid,
        /// The process that the thread belongs to.
        tgid: Pid,
    },
    /// The process has ended and waits for its parent.
    #[error("process {pid} is a zombie: it has exited, and its parent has not reaped it yet")]
    Zombie {
        /// The process.
        pid: Pid,
    },
    /// The first thread of the process has ended, so that the kernel shows neither its mappings nor its files.
    #[error(
        "the first thread of process {pid} has ended, although other threads run; such a process cannot be \
         examined"
    )]
    FirstThreadEnded {
        /// The process.
        pid: Pid,
        /// A thread that runs.
        running: Pid,
    },
    /// No running JVM matches the requested name.
    #[error(
        "no running JVM has a main class, jar, service or container that matches `{name}`; run \
         this tool without a target to list JVMs"
    )]
    NoMatch {
        /// The requested name.
        name: String,
    },
    /// No JVM runs in the requested container.
    #[error(
        "no JVM runs in the container {container}; run this tool without a target to list JVMs"
    )]
    NoJvmInContainer {
        /// The requested ID.
        container: String,
    },
    /// The process is not one of the JVMs in the requested container.
    #[error("process {pid} is not a JVM in the container {container}; its JVMs are {}", list(jvms))]
    NotInContainer {
        /// The requested PID.
        pid: Pid,
        /// The requested container.
        container: String,
        /// The JVMs that run in the container.
        jvms: Vec<Pid>,
    },
    /// The process has not mapped a JVM's library.
    #[error(
        "process {pid} ({comm}) is not a JVM: it has not mapped libjvm.so; run this tool without a \
         target to list JVMs"
    )]
    NotAJvm {
        /// The process.
        pid: Pid,
        /// Its command name.
        comm: String,
    },
    /// The process has mapped libjvm.so, but does not run a JVM.
    #[error(
        "process {pid} ({comm}) is not a JVM: it has mapped libjvm.so, but has not created a JVM; \
         run this tool without a target to list JVMs"
    )]
    NoVm {
        /// The process.
        pid: Pid,
        /// Its command name.
        comm: String,
    },
    /// The JVM is Eclipse OpenJ9, which has neither HotSpot's probes nor its tables.
    #[error("process {pid} runs Eclipse OpenJ9; only HotSpot (OpenJDK) JVMs can be traced")]
    OpenJ9 {
        /// The process.
        pid: Pid,
    },
    /// The process has mapped its libjvm.so so often that attaching to it would delay the tracing of other JVMs.
    #[error(
        "process {pid} has {count} mappings of its libjvm.so, and each of them lengthens every attachment; at most {max} \
         are accepted"
    )]
    TooManyMappings {
        /// The process.
        pid: Pid,
        /// Number of its mappings.
        count: usize,
        /// Maximum number.
        max: usize,
    },
    /// Processes have mapped a location of a file so often that a probe must not be attached in all of them. Callers attach it
    /// in each process that they trace.
    #[error("the file has too many mappings to attach in all processes")]
    Crowded,
    /// Processes have mapped a location of a file so often that no probe must be attached to it, because no process of the host
    /// can fork while the kernel visits the mappings.
    #[error(
        "the code to be probed has more than {max} mappings in all processes, so each attachment would keep the processes of \
         the host from forking for a while; to find who maps it, run: grep -c libjvm.so /proc/[0-9]*/maps"
    )]
    MappedTooOften {
        /// Maximum number of mappings.
        max: u64,
    },
    /// The program is a GraalVM native image: Java code compiled ahead of time, without a JVM.
    #[error(
        "process {pid} is a GraalVM native image without a JVM to trace; use javaprof to profile \
         it, or its own option -XX:+PrintGC to log collections"
    )]
    NativeImage {
        /// The process.
        pid: Pid,
    },
    /// The JVM is built for another machine architecture (under emulation, for example).
    #[error(
        "process {pid} runs a JVM for {theirs}, but this tool is built for {ours}; use a build for \
         {theirs}"
    )]
    ForeignArch {
        /// The process.
        pid: Pid,
        /// The JVM's architecture.
        theirs: String,
        /// Architecture of this tool.
        ours: &'static str,
    },
    /// The JVM cannot be attached to, or rejects a command.
    #[error("cannot attach to process {pid}: {why}")]
    Attach {
        /// The process.
        pid: Pid,
        /// Reason and remedy.
        why: String,
    },
    /// The kernel denies an operation for lack of privileges.
    #[error("not permitted to {what}: {missing}; run as root (sudo)")]
    Permission {
        /// The attempted operation.
        what: String,
        /// The missing capability or setting.
        missing: String,
    },
    /// The kernel lacks a feature.
    #[error("this kernel cannot {what}; {hint}")]
    Kernel {
        /// The missing feature.
        what: String,
        /// A remedy.
        hint: String,
    },
    /// This tool is defective, for example because its BPF object lacks a program.
    #[error("cannot {what}; this is a bug in this tool, please report it")]
    Defect {
        /// The attempted operation.
        what: String,
    },
    /// A name is unknown.
    #[error("there is no {what}{like}", like = like(near))]
    Unknown {
        /// Kind of thing and requested name.
        what: String,
        /// Similar known names.
        near: Vec<String>,
    },
    /// A library has neither the required probes nor the required symbols.
    #[error("{path} has no {what}; {hint}", path = path.display())]
    NoProbes {
        /// The file.
        path: PathBuf,
        /// The missing probes or symbols.
        what: String,
        /// A remedy.
        hint: String,
    },
    /// A file specified by the user has no usable symbols.
    #[error("--symbols-from {path}: {why}", path = path.display())]
    Symbols {
        /// The file.
        path: PathBuf,
        /// Reason.
        why: String,
    },
    /// Something exists in a form or version that is not supported.
    #[error("{what}")]
    Unsupported {
        /// The unsupported thing, its owner, and what works instead.
        what: String,
    },
    /// A core file cannot be read.
    #[error("{path}: {why}", path = path.display())]
    Core {
        /// The file.
        path: PathBuf,
        /// Reason and remedy.
        why: String,
    },
    /// An ELF file is malformed or truncated.
    #[error("malformed ELF file: {what}")]
    Elf {
        /// The defect and its location.
        what: String,
    },
    /// HotSpot's tables (`gHotSpotVMStructs` and friends) are missing or implausible.
    #[error("HotSpot's vmStructs: {what}")]
    Layout {
        /// The missing field or the implausible value, and what does not work without it.
        what: String,
    },
    /// HotSpot's performance data is missing or implausible.
    #[error("HotSpot's performance data: {what}")]
    PerfData {
        /// The defect.
        what: String,
    },
    /// The target's memory could not be read.
    #[error("cannot read {len} bytes of the target's memory at {addr}: {source}")]
    Memory {
        /// Address.
        addr: Addr,
        /// Number of bytes.
        len: usize,
        /// Reason.
        r#source: io::Error,
    },
    /// A system call or file operation failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// The attempted operation, with the path.
        what: String,
        /// Reason.
        r#source: io::Error,
    },
    /// The extension of an output file's name belongs to no known profile format.
    #[error(
        "{path}: unknown file name extension; use {known}",
        path = path.display()
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// Known formats, with their extensions.
        known: String,
    },
    /// libbpf or the kernel's BPF subsystem reported an error.
    #[error("cannot {what}: {source:#}")]
    Bpf {
        /// The attempted operation.
        what: String,
        /// Reason.
        r#source: libbpf_rs::Error,
    },
}

fn like(near: &[String]) -> String {
    match near {
        [] => String::new(),
        near => format!("; similar names: {}", near.join(", ")),
    }
}

/// Returns PIDs for a message: `12, 13`.
fn list(pids: &[Pid]) -> String {
    pids.iter().map(Pid::to_string).collect::<Vec<_>>().join(", ")
}

impl Error {
    /// Wraps an I/O error with the attempted operation, for example `open /proc/1/maps`.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }

    /// Makes the error for a malformed ELF file.
    pub(crate) fn elf(what: impl Into<String>) -> Self {
        Self::Elf { what: what.into() }
    }

    /// Makes the error for memory that is not mapped.
    pub(crate) fn not_mapped(addr: Addr, len: usize) -> Self {
        Self::Memory { addr, len, source: io::Error::from_raw_os_error(libc::EFAULT) }
    }

    /// Makes the error for a missing or implausible entry of vmStructs.
    pub(crate) fn layout(what: impl Into<String>) -> Self {
        Self::Layout { what: what.into() }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    /// Formats the chain of errors in one line, as tools print it.
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
    fn error_chain_prints_the_os_error_once() {
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

//! `jvmprobed remote`: runs a tool for a user on another machine, as kubectl-jvm(8) does with `kubectl exec -i`.
//!
//! Standard input is the connection to the user: input, or its end, ends the tool like Ctrl-C. So the tool ends even if
//! the connection breaks. The files that the tool writes are in a file system of their own, which the kernel removes
//! with the last process that uses it. At the end, the regular files are sent as a tar archive.

mod tar;

use std::{
    env,
    ffi::OsString,
    fs, io,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::{
    event::pause,
    fd::AsFd,
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    process::{
        Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, set_parent_process_death_signal,
    },
    thread::{UnshareFlags, unshare_unsafe},
};

use crate::args::Remote;

/// Mount point of the file system. Container runtimes provide this directory even in images without any other, and it
/// is writable even if the root file system is not.
const DIR: &str = "/dev/shm";
/// Options of the file system.
const MOUNT_DATA: &std::ffi::CStr = c"mode=700,size=256m";

/// Signals that end the tool, each with the time to wait for its effect. A second signal ends a tool immediately.
const SIGNALS: [(Signal, Duration); 3] = [
    (Signal::INT, Duration::from_secs(60)),
    (Signal::TERM, Duration::from_secs(5)),
    (Signal::KILL, Duration::ZERO),
];

/// Runs `jvmprobed remote`. Returns the exit status of the tool; 128 plus the signal's number if a signal has ended it.
///
/// # Errors
/// A line for the user.
pub fn run(args: &Remote) -> Result<ExitCode> {
    if args.idle {
        loop {
            pause();
        }
    }
    let mut command = tool(&args.command)?;
    enter_private_dir().with_context(|| format!("cannot mount a temporary directory at {DIR}"))?;
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    end_with_input(&child).context("cannot watch the tool")?;
    let status = child.wait().context("cannot wait for the tool")?;
    if let Some(mark) = &args.files {
        send_files(mark).context("cannot send the files")?;
    }
    Ok(exit_code(status))
}

/// Mounts an empty file system that only this thread and its child processes see, and makes it the current directory.
fn enter_private_dir() -> io::Result<()> {
    // SAFETY: no memory, descriptor table or thread state depends on the mount namespace.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS)? };
    // Otherwise, the mount could propagate to other namespaces.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("jvmprobe", DIR, "tmpfs", flags, MOUNT_DATA)?;
    env::set_current_dir(DIR)
}

/// Returns the command that runs one of the tools that are installed beside this program. The kernel reports this
/// program's path only in the mount namespace in which it was started.
fn tool(command: &[OsString]) -> Result<Command> {
    let Some((tool, arguments)) = command.split_first() else { bail!("no tool was specified") };
    if Path::new(tool).file_name() != Some(tool) {
        bail!("{} is not the name of a tool", tool.display());
    }
    let own = env::current_exe().context("cannot find the directory of the tools")?;
    let mut command = Command::new(own.with_file_name(tool));
    command.args(arguments).stdin(Stdio::null());
    // SAFETY: between fork and exec, only one system call is made.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?));
    }
    Ok(command)
}

/// Starts a thread that ends the process as soon as something can be read from standard input, including its end.
fn end_with_input(child: &Child) -> io::Result<()> {
    // The descriptor still refers to this process when its PID is used again.
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    thread::Builder::new().spawn(move || {
        // An error also means that the connection has ended.
        let _ = rustix::io::read(io::stdin().as_fd(), &mut [0; 1]);
        for (signal, patience) in SIGNALS {
            // Fails if the process has ended. Then this program ends, and the thread with it.
            let _ = pidfd_send_signal(&pidfd, signal);
            thread::sleep(patience);
        }
    })?;
    Ok(())
}

/// Sends the files in the current directory on standard error: a line with `mark`, then a tar archive. Sends nothing
/// if there are no files. The receiver chooses a mark that does not occur in messages.
fn send_files(mark: &str) -> Result<()> {
    let mut paths: Vec<_> =
        fs::read_dir(".")?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    // Links are not followed, because they could lead to any file of the node.
    paths.retain(|path| path.symlink_metadata().is_ok_and(|meta| meta.is_file()));
    paths.sort();
    if paths.is_empty() {
        return Ok(());
    }
    let mut out = io::BufWriter::new(io::stderr());
    tar::write(&mut out, mark, &paths)
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| Some(status.signal()? + 128));
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_is_that_of_the_tool_or_tells_the_signal() {
        for (raw, code) in [(0, 0), (3 << 8, 3), (9, 137), (130 << 8, 130)] {
            assert_eq!(exit_code(ExitStatus::from_raw(raw)), ExitCode::from(code), "{raw}");
        }
    }

    #[test]
    fn only_tools_beside_this_program_can_be_started() {
        for bad in [&[][..], &["/bin/true"], &["../true"], &[".."], &["x/"]] {
            let command: Vec<_> = bad.iter().map(OsString::from).collect();
            let error = tool(&command).unwrap_err().to_string();
            assert!(error.contains("tool"), "{bad:?}: {error}");
        }
    }
}

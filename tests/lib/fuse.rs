//! A FUSE server that stops answering, and JVMs with memory that is mapped from its file.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "reasons for skipping are printed")]

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use rustix::{
    mount::{UnmountFlags, unmount},
    process::{Pid, Signal, kill_process},
};
use tempfile::TempDir;

use crate::{child_process::ChildProcess, fake::compile, load::Load, runtimes::named};

/// A FUSE server with one file. When it ends, all processes that wait for an answer continue.
pub struct Server {
    server: ChildProcess,
    dir: TempDir,
}

impl Server {
    /// Starts a server for a file. Returns `None` if the kernel has no FUSE.
    pub fn start(content: &Path) -> Option<Self> {
        if !Path::new("/dev/fuse").exists() {
            println!("skipped: there is no /dev/fuse");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let (program, mounted) = (dir.path().join("fuse"), dir.path().join("mounted"));
        compile("fuse.c", &[], &program);
        fs::create_dir(&mounted).unwrap();
        let mut command = Command::new(program);
        command.arg(&mounted).arg(content).stdout(Stdio::piped());
        let mut server = ChildProcess::spawn(&mut command);
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "mounted\n");
        Some(Self { server, dir })
    }

    /// Returns the path of the file in the mounted folder.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("mounted/libjvm.so")
    }

    /// Makes the server stop answering.
    pub fn stop_answering(&self) {
        self.signal(Signal::USR1);
    }

    /// Makes the server delay each answer by 0.9 seconds.
    pub fn slow_down(&self) {
        self.signal(Signal::USR2);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.server.pid()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        // Gives the server time to handle the signal.
        thread::sleep(Duration::from_millis(100));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.server.0.kill();
        let _ = self.server.0.wait();
        let _ = unmount(self.dir.path().join("mounted"), UnmountFlags::DETACH);
    }
}

/// A process that has loaded a library from an overlay above a FUSE file system, both mounted in a user namespace of its own.
pub struct BelowOverlay {
    server: Pid,
    process: ChildProcess,
    _dir: TempDir,
}

impl BelowOverlay {
    /// Starts the server and the process. Returns `None` if the kernel has no FUSE, or does not allow such mounts.
    pub fn start(library: &Path) -> Option<Self> {
        if !Path::new("/dev/fuse").exists() {
            println!("skipped: there is no /dev/fuse");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let (program, mounted) = (dir.path().join("fuse"), dir.path().join("mounted"));
        compile("fuse.c", &[], &program);
        fs::create_dir(&mounted).unwrap();
        let script = "mount -t tmpfs none \"$2\" && mkdir \"$2/f\" \"$2/l\" \"$2/o\" || exit 1\n\
            \"$1\" \"$2/f\" \"$3\" >/dev/null & echo $!\n\
            while ! [ -e \"$2/f/libjvm.so\" ]; do sleep 0.05; done\n\
            mount -t overlay -o \"lowerdir=$2/f:$2/l\" none \"$2/o\" || exit 1\n\
            exec python3 -c 'import ctypes,sys; library=ctypes.CDLL(sys.argv[1]); \
                print(\"loaded\",flush=True); sys.stdin.readline()' \"$2/o/libjvm.so\"";
        let mut command = Command::new("unshare");
        command.args(["-Urm", "sh", "-c", script, "sh"]).args([&program, &mounted]).arg(library);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = ChildProcess::spawn(&mut command);
        let lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
        let lines: Vec<_> = lines.map_while(Result::ok).take(2).collect();
        let server = lines.first().and_then(|line| Pid::from_raw(line.parse().ok()?));
        let Some(server) = server else {
            println!("skipped: file systems cannot be mounted in a user namespace");
            return None;
        };
        let started = Self { server, process, _dir: dir };
        if lines.len() < 2 {
            println!("skipped: an overlay above FUSE cannot be mounted");
            return None;
        }
        Some(started)
    }

    /// Returns the PID of the process that has loaded the library.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Makes the server stop answering.
    pub fn stop_answering(&self) {
        kill_process(self.server, Signal::USR1).unwrap();
        // Gives the server time to handle the signal.
        thread::sleep(Duration::from_millis(100));
    }
}

impl Drop for BelowOverlay {
    fn drop(&mut self) {
        // The server ends first. Otherwise the exiting process would wait for its answers.
        let _ = kill_process(self.server, Signal::KILL);
    }
}

/// Starts a JVM whose table of fields (vmStructs) is mapped from the server's file. `prepare` may
/// change the command.
pub fn hostile_jvm(server: &Server, dir: &Path, prepare: impl FnOnce(&mut Command)) -> Load {
    let agent = dir.join("fuse_pages.so");
    compile("fuse_pages.c", &["-shared", "-fPIC"], &agent);
    let mut command = named("temurin-17").command();
    command.arg(format!("-agentpath:{}={}", agent.display(), server.file().display()));
    command.args(["-XX:+UseSerialGC", "-Xmx64m"]);
    prepare(&mut command);
    Load::spawn(command)
}

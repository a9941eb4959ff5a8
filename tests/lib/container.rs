//! A JVM in a container: in mount and PID namespaces of its own, with another root directory, another
//! UID, and its own /tmp.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{ChildStdin, ChildStdout, Command, Stdio},
};

use tempfile::TempDir;

use crate::{cgroup::Cgroup, child_process::ChildProcess, load::classes, runtimes::Runtime};

const SCRIPT: &str = r#"
    set -e
    mkdir -p "$ROOT"/{proc,tmp,lib,lib64,usr,bin,dev,jre,classes,log}
    if [ -n "$READ_ONLY" ]; then
        mount --bind "$ROOT" "$ROOT"
        mount -o remount,bind,ro "$ROOT"
    fi
    for d in lib lib64 usr bin dev; do mount --rbind /$d "$ROOT"/$d; done
    mount --bind "$HOME_OF_JRE" "$ROOT"/jre
    mount --bind "$CLASSES" "$ROOT"/classes
    if [ -n "$TMP_LINK" ]; then
        rmdir "$ROOT"/tmp
        mkdir -p "$ROOT$TMP_FOLDER"
        chmod 1777 "$ROOT$TMP_FOLDER"
        ln -s "$TMP_LINK" "$ROOT"/tmp
    else
        mount -t tmpfs none "$ROOT"/tmp
        chmod 1777 "$ROOT"/tmp
    fi
    if [ -n "$TMP_OPTIONS" ]; then mount -o remount,"$TMP_OPTIONS" "$ROOT"/tmp; fi
    mount -t proc none "$ROOT"/proc
    exec chroot --userspec=12345:12345 "$ROOT" /jre/bin/java "$@"
"#;

/// The container; killed when dropped.
pub struct Container {
    _shell: ChildProcess,
    java: u32,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// ID that the container engine gave the container; empty without an engine.
    id: String,
    _dir: TempDir,
}

impl Container {
    /// Starts a program of `tests/java` in a container.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(runtime: &Runtime, flags: &[&str], program: &str) -> Self {
        Self::start_with_tmp(runtime, flags, program, "")
    }

    /// Starts a program in a container whose /tmp is a tmpfs with these mount options, for example
    /// `ro` or `size=4k`.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_with_tmp(runtime: &Runtime, flags: &[&str], program: &str, tmp: &str) -> Self {
        Self::start_with(runtime, flags, program, &[("TMP_OPTIONS", tmp)])
    }

    /// Starts a program in a container whose /tmp is a symbolic link to `link`. `folder` is created
    /// in the container.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_with_link(runtime: &Runtime, program: &str, link: &str, folder: &str) -> Self {
        Self::start_with(runtime, &[], program, &[("TMP_LINK", link), ("TMP_FOLDER", folder)])
    }

    /// Starts a program in a container of a Kubernetes pod, which has this control group. Its root file system and
    /// its /tmp are read-only.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_in_pod(runtime: &Runtime, flags: &[&str], program: &str, cgroup: &Cgroup) -> Self {
        let options = [("READ_ONLY", "1"), ("TMP_OPTIONS", "ro")];
        Self::start_with_cgroup(runtime, flags, program, &options, Some(cgroup))
    }

    fn start_with(
        runtime: &Runtime,
        flags: &[&str],
        program: &str,
        options: &[(&str, &str)],
    ) -> Self {
        Self::start_with_cgroup(runtime, flags, program, options, None)
    }

    fn start_with_cgroup(
        runtime: &Runtime,
        flags: &[&str],
        program: &str,
        options: &[(&str, &str)],
        cgroup: Option<&Cgroup>,
    ) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        let home = runtime.java.parent().and_then(Path::parent).expect("bin/java");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "bash", "-c", SCRIPT]);
        command.arg("container").arg("-Xmx64m").args(flags).args(["-cp", "/classes", program]);
        command.env("ROOT", dir.path().join("root"));
        command.env("HOME_OF_JRE", home).env("CLASSES", classes());
        command.envs(options.iter().copied());
        if let Some(cgroup) = cgroup {
            cgroup.enter(&mut command);
        }
        let mut shell = ChildProcess::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let stdin = shell.0.stdin.take().expect("piped");
        let mut stdout = BufReader::new(shell.0.stdout.take().expect("piped"));
        // The JVM is process 1 in its own PID namespace. In ours it is the shell's child.
        assert_eq!(line(&mut stdout), "ready 1\n");
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", shell.pid()));
        let children = children.expect("/proc/PID/task/TID/children");
        let java = children.split_ascii_whitespace().next().and_then(|pid| pid.parse().ok());
        Self {
            java: java.expect("the container's process"),
            _shell: shell,
            stdin,
            stdout,
            id: String::new(),
            _dir: dir,
        }
    }

    /// Starts a program of `tests/java` in a podman container without an image.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_in_podman(runtime: &Runtime, program: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let root = dir.path().join("root");
        let mine =
            ["proc", "dev", "sys", "etc", "run", "tmp", "usr", "lib", "lib64", "jre", "classes"];
        for folder in mine {
            fs::create_dir_all(root.join(folder)).expect("a folder of the container");
        }
        let java = runtime.java.canonicalize().expect("a path without links");
        let home = java.ancestors().nth(2).expect("bin/java");
        let (number, id) = (dir.path().join("pid"), dir.path().join("id"));
        let mut command = Command::new("podman");
        // crun does not support the hybrid cgroup hierarchy of some machines. The ulimits are low,
        // because podman cannot set a limit above our own.
        command.args(["--runtime", "runc", "run", "--rm", "-i", "--network=none"]);
        command.args(["--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096", "--pidfile"]);
        command.arg(&number).arg("--cidfile").arg(&id);
        let ours = ["/usr", "/lib", "/lib64"].map(|path| (Path::new(path), path));
        for (from, to) in ours.into_iter().chain([(home, "/jre"), (classes(), "/classes")]) {
            command.arg("-v").arg(format!("{}:{to}:ro", from.display()));
        }
        command.arg("--rootfs").arg(&root).args(["/jre/bin/java", "-Xmx64m"]);
        command.args(["-XX:+UseSerialGC", "-cp", "/classes", program]);
        let mut shell = ChildProcess::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let stdin = shell.0.stdin.take().expect("piped");
        let mut stdout = BufReader::new(shell.0.stdout.take().expect("piped"));
        assert_eq!(line(&mut stdout), "ready 1\n");
        let java = fs::read_to_string(number).expect("podman writes the PID file");
        let java = java.trim().parse().expect("a number");
        let id =
            fs::read_to_string(id).expect("podman writes the container ID file").trim().to_owned();
        Self { java, _shell: shell, stdin, stdout, id, _dir: dir }
    }

    /// Returns podman's ID of the container.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the JVM's process ID in the host's PID namespace.
    pub fn pid(&self) -> u32 {
        self.java
    }

    /// Runs the load for this time and waits until it is done.
    ///
    /// # Panics
    /// If the JVM has died.
    pub fn run(&mut self, seconds: f64) {
        self.ask(&format!("go {seconds}"));
    }

    /// Sends a command to the program and waits until it is done.
    ///
    /// # Panics
    /// If the JVM has died.
    pub fn ask(&mut self, command: &str) {
        writeln!(self.stdin, "{command}").expect("java reads commands");
        let answer = line(&mut self.stdout);
        assert!(answer.starts_with("done"), "java said {answer:?}");
    }
}

fn line(from: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("java answers");
    line
}

//! A JVM in a user namespace, with its own /tmp that was mounted there.

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{ChildStdin, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use tempfile::TempDir;

use crate::{child_process::ChildProcess, load::classes, runtimes::Runtime};

/// Mapping of user IDs between the namespace and the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// Only user 12345 is mapped, to the namespace's root.
    RootOnly,
    /// Only user 12345 is mapped, to the namespace's root; with its own PID namespace.
    RootOnlyAndPids,
    /// Only user 12345 is mapped, to the namespace's user 1234.
    Other,
    /// A range that root has mapped, as container engines do; the JVM's user is not the namespace's
    /// root.
    Range,
    /// No mapping, and no /tmp of its own.
    Nothing,
}

/// Script that all mappings share. It ends with `$INSIDE`, the script of one mapping.
const OUTSIDE: &str = r#"
    set -e
    mount -t tmpfs none /mnt
    mkdir /mnt/jre /mnt/classes
    mount --bind "$HOME_OF_JRE" /mnt/jre
    mount --bind "$CLASSES" /mnt/classes
    user="setpriv --reuid=12345 --regid=12345 --clear-groups"
    eval "$INSIDE"
"#;
const START: &str = r#"mount -t tmpfs none /tmp; chmod 1777 /tmp; cd /tmp; exec $JAVA"#;
const ROOT_ONLY: &str = r#"exec $user unshare --user --map-root-user --mount sh -ec "$START""#;
const ROOT_ONLY_AND_PIDS: &str = r#"exec $user unshare --user --map-root-user --mount --pid \
    --fork --kill-child --mount-proc sh -ec "$START""#;
const OTHER: &str = r#"exec $user unshare --user --map-user=1234 --map-group=1234 --keep-caps \
    --mount sh -ec "$START""#;
const RANGE: &str = r#"
    JAVA="setpriv --reuid=5 --regid=5 --clear-groups $JAVA"
    exec 3<&0
    unshare --user --keep-caps sh -ec '
        until grep -q . /proc/self/gid_map; do sleep 0.01; done
        exec setpriv --reuid=0 --regid=0 --clear-groups unshare --mount sh -ec "$START"
    ' <&3 &
    until echo "0 100000 65536" >/proc/$!/uid_map; do sleep 0.01; done 2>/dev/null
    echo "0 100000 65536" >/proc/$!/gid_map
    exec 3<&- <&-
    wait
"#;
const NOTHING: &str = r#"cd /; exec $user unshare --user $JAVA"#;

impl Mapping {
    fn script(self) -> &'static str {
        match self {
            Self::RootOnly => ROOT_ONLY,
            Self::RootOnlyAndPids => ROOT_ONLY_AND_PIDS,
            Self::Other => OTHER,
            Self::Range => RANGE,
            Self::Nothing => NOTHING,
        }
    }

    /// Returns the JVM's user ID on the host.
    pub fn uid(self) -> u32 {
        if self == Self::Range { 100_005 } else { 12_345 }
    }
}

/// The JVM. It ends when this is dropped.
pub struct Namespaced {
    shell: ChildProcess,
    stdin: ChildStdin,
    java: u32,
    dir: TempDir,
}

impl Namespaced {
    /// Starts a program of `tests/java` in a user namespace.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(runtime: &Runtime, mapping: Mapping, flags: &str, program: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        let home = runtime.java.parent().and_then(Path::parent).expect("bin/java");
        let output = fs::File::create(dir.path().join("output")).expect("a file");
        // The namespace's own /tmp hides ours, so the runtime and the classes are mounted below
        // /mnt.
        let java = format!("/mnt/jre/bin/java -Xmx64m {flags} -cp /mnt/classes {program}");
        let mut command = Command::new("unshare");
        command.args(["--mount", "bash", "-c", OUTSIDE]);
        command.env("HOME_OF_JRE", home).env("CLASSES", classes());
        command.env("START", START).env("JAVA", java).env("INSIDE", mapping.script());
        command.stdin(Stdio::piped()).stderr(output.try_clone().expect("a file")).stdout(output);
        let mut shell = ChildProcess::spawn(&mut command);
        let stdin = shell.0.stdin.take().expect("piped");
        let mut found = Self { shell, stdin, java: 0, dir };
        found.wait_for("ready");
        // Each process from the shell down to the JVM's parent has exactly one child, and the JVM has none.
        found.java = found.shell.pid();
        while let Some(child) = only_child(found.java) {
            found.java = child;
        }
        found
    }

    /// Returns the JVM's process ID in the host's PID namespace.
    pub fn pid(&self) -> u32 {
        self.java
    }

    /// Returns the process ID that it has in its own PID namespace.
    ///
    /// # Panics
    /// If it has ended.
    pub fn ns_pid(&self) -> u32 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.java));
        let status = status.expect("it runs");
        let line = status.lines().find(|l| l.starts_with("NStgid:")).expect("proc_pid_status(5)");
        line.rsplit('\t').next().and_then(|pid| pid.parse().ok()).expect("a number")
    }

    /// Returns the path of its /tmp.
    pub fn tmp(&self) -> PathBuf {
        format!("/proc/{}/root/tmp", self.java).into()
    }

    /// Runs the load for this time and waits until it is done.
    ///
    /// # Panics
    /// If the JVM has died.
    pub fn run(&mut self, seconds: f64) {
        let before = self.output().matches("done").count();
        writeln!(self.stdin, "go {seconds}").expect("java reads commands");
        while self.output().matches("done").count() == before {
            self.check();
        }
    }

    /// Returns everything that it has printed so far.
    ///
    /// # Panics
    /// If its output cannot be read, or is not UTF-8.
    pub fn output(&self) -> String {
        fs::read_to_string(self.dir.path().join("output")).expect("its output is UTF-8")
    }

    fn wait_for(&mut self, word: &str) {
        while !self.output().contains(word) {
            self.check();
        }
    }

    fn check(&mut self) {
        sleep(Duration::from_millis(10));
        let ended = self.shell.0.try_wait().expect("wait for it");
        assert!(ended.is_none(), "{ended:?}: {}", self.output());
    }
}

fn only_child(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_ascii_whitespace().next()?.parse().ok()
}

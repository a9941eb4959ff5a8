//! A Kubernetes cluster of one node: `tests/apiserver`, which runs commands in local containers, and the real kubectl.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{child_process::ChildProcess, manifests::deployer_path, tool::binary};

/// The node's name.
pub const NODE: &str = "node-1";

/// Timeout for processes in pods to end. Even on the slowest machine, only a hang takes that long.
const TIMEOUT: Duration = Duration::from_secs(60);

fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").to_owned()
}

/// Returns the capabilities of jvmprobed's pods in the manifest of the DaemonSet.
///
/// # Panics
/// If the manifest does not list them.
pub fn daemon_capabilities() -> Vec<String> {
    let path = repository_root().join("tools/jvmprobed/deploy/kubernetes/daemonset.yaml");
    let manifest = fs::read_to_string(path).expect("the manifest");
    let list = manifest.lines().find_map(|line| line.trim().strip_prefix("add: ["));
    let list = list.and_then(|list| list.strip_suffix(']')).expect("capabilities");
    list.split(", ").map(str::to_owned).collect()
}

/// Returns a pod of jvmprobed on a node.
pub fn daemon_pod(node: &str) -> Value {
    let security = json!({
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"], "add": daemon_capabilities()},
    });
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("jvmprobed-on-{node}"),
            "namespace": "jvmprobe",
            "labels": {"app.kubernetes.io/name": "jvmprobed"},
        },
        "spec": {
            "nodeName": node,
            "hostPID": true,
            "containers": [{"name": "jvmprobed", "securityContext": security}],
        },
        "status": {"phase": "Running"},
    })
}

/// Returns a pod named `shop` in the namespace `prod`, with the names and IDs of its containers.
pub fn application_pod(uid: &str, containers: &[(&str, &str)]) -> Value {
    let status = |(name, id): &(&str, &str)| {
        json!({
            "name": name,
            "containerID": format!("containerd://{id}"),
            "state": {"running": {"startedAt": "2026-11-26T12:00:00Z"}},
            "lastState": {},
        })
    };
    let names: Vec<_> = containers.iter().map(|(name, _)| json!({"name": name})).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "shop", "namespace": "prod", "uid": uid},
        "spec": {"nodeName": NODE, "containers": names},
        "status": {
            "phase": "Running",
            "containerStatuses": containers.iter().map(status).collect::<Vec<_>>(),
        },
    })
}

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    server: ChildProcess,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    dir: TempDir,
}

impl Drop for Cluster {
    /// Ends the server and all pods that are left.
    fn drop(&mut self) {
        if writeln!(self.input, "end").is_ok() {
            let _ = self.server.0.wait();
        }
    }
}

impl Cluster {
    /// Starts a cluster with these pods and workloads. Their namespaces exist.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(objects: &[Value]) -> Self {
        let (pods, workloads): (Vec<_>, Vec<_>) =
            objects.iter().partition(|object| object["kind"] == "Pod");
        let dir = tempfile::tempdir().expect("a temporary folder");
        for name in ["root", "state", "tools", "laptop", "tmp", "home", "bin"] {
            fs::create_dir(dir.path().join(name)).expect("a folder");
        }
        let path = |name: &str| dir.path().join(name);
        for tool in
            ["javagc", "javaprof", "javaobjnew", "javaclass", "javastack", "javawait", "jvmprobed"]
        {
            let (from, to) = (binary(tool), path("tools").join(tool));
            fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop)).expect("a copy");
        }
        let plugin = path("bin").join("kubectl-jvm");
        let from = binary("kubectl-jvm");
        fs::hard_link(&from, &plugin)
            .or_else(|_| fs::copy(&from, &plugin).map(drop))
            .expect("a copy");
        let config = json!({
            "pods": pods, "workloads": workloads, "tools": path("tools"), "state": path("state"), "root": path("root"),
        });
        fs::write(path("config.json"), config.to_string()).expect("a file");
        let mut command = Command::new("python3");
        command
            .arg(repository_root().join("tests/apiserver/apiserver.py"))
            .arg(path("config.json"));
        let mut server = ChildProcess::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let input = server.0.stdin.take().expect("piped");
        let mut output = BufReader::new(server.0.stdout.take().expect("piped"));
        let ready = line(&mut output);
        let port = ready.trim_end().strip_prefix("ready ").expect("a port");
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
            "users": [{"name": "jane", "user": {"token": "token"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "jane"}}],
            "current-context": "test",
        });
        fs::write(path("kubeconfig"), kubeconfig.to_string()).expect("a file");
        Self { server, input, output, dir }
    }

    /// Returns the directory that pods see as /var/lib/jvmprobe.
    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// Returns the home directory of [`plugin`](Self::plugin).
    pub fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// Returns the current directory of [`plugin`](Self::plugin).
    pub fn laptop(&self) -> PathBuf {
        self.dir.path().join("laptop")
    }

    /// Returns a command that runs `kubectl jvm` with these arguments, in an empty directory.
    ///
    /// # Panics
    /// If PATH is not set.
    pub fn plugin(&self, args: &[&str]) -> Command {
        let old = std::env::var("PATH").expect("PATH");
        let kubectl = deployer_path("kubectl");
        let folder = kubectl.parent().expect("a file in a folder");
        let mut command = Command::new(&kubectl);
        command.arg("jvm").args(args).current_dir(self.laptop());
        let own = self.dir.path().join("bin");
        let path = [&own, folder].map(|path| path.display().to_string()).join(":");
        command.env("PATH", format!("{path}:{old}"));
        command.env("KUBECONFIG", self.dir.path().join("kubeconfig"));
        command.env("TMPDIR", self.dir.path().join("tmp")).env("HOME", self.home());
        command.env_remove("KUBECTL_JVM_IMAGE").stdin(Stdio::null());
        command
    }

    /// Replaces jvmprobed in pods by a shell script. `archive` is a file that the script sees as `/usr/sbin/archive`.
    ///
    /// # Panics
    /// If the files cannot be written.
    pub fn replace_jvmprobed(&self, script: &str, archive: &[u8]) {
        let tools = self.dir.path().join("tools");
        for program in ["sh", "cat"] {
            fs::copy(Path::new("/bin").join(program), tools.join(program)).expect("a copy");
        }
        fs::write(tools.join("archive"), archive).expect("a file");
        // The file may be a link to the program.
        let path = tools.join("jvmprobed");
        fs::remove_file(&path).expect("a file");
        fs::write(&path, format!("#!/usr/sbin/sh\n{script}\n")).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("chmod");
    }

    /// Sends the server a command: see the head of the script.
    ///
    /// # Panics
    /// If it does not confirm the command.
    pub fn send(&mut self, command: &str) {
        assert_eq!(self.ask(command), "done\n", "{command}");
    }

    /// Returns the manifests of all pods that were created.
    ///
    /// # Panics
    /// If the server does not answer.
    pub fn created_pods(&mut self) -> Vec<Value> {
        self.state()["created"].as_array().expect("an array").clone()
    }

    /// Asserts that no created pod is left, that all processes in pods end, and that no temporary file is left.
    ///
    /// # Panics
    /// If something is left.
    pub fn assert_nothing_is_left(&mut self) {
        let begin = Instant::now();
        loop {
            let state = self.state();
            assert_eq!(state["pods"], json!([]));
            if state["processes"] == json!([]) {
                break;
            }
            assert!(begin.elapsed() < TIMEOUT, "these processes have not ended: {state}");
            thread::sleep(Duration::from_millis(20));
        }
        for name in ["tmp", "root"] {
            let mut left = fs::read_dir(self.dir.path().join(name)).expect("a folder").flatten();
            assert!(left.next().is_none(), "{name} is not empty");
        }
    }

    fn state(&mut self) -> Value {
        serde_json::from_str(&self.ask("state")).expect("JSON")
    }

    fn ask(&mut self, command: &str) -> String {
        writeln!(self.input, "{command}").expect("the server runs");
        line(&mut self.output)
    }
}

fn line(from: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("the server answers");
    line
}

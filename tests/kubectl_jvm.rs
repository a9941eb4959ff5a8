//! The kubectl plugin, with the real kubectl, a stand-in for the API server, and JVMs in containers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, ChildStderr, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    cgroup::Cgroup,
    cluster::{Cluster, NODE, application_pod, daemon_capabilities, daemon_pod},
    container::Container,
    load::Load,
    receiver::downloaded_path,
    run_beside_others,
    runtimes::named,
    tool::{self, Output},
    windows::{SECOND, synthetic_window},
};
use jvmprobed::store::Store;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::{Value, json};

/// Timeout for the plugin to end. Even on the slowest machine, only a hang takes that long.
const TIMEOUT: Duration = Duration::from_secs(60);

const UID: &str = "0f3b1c5e-86a2-4b0f-9d3e-2b9a0c1d2e3f";
const ID: &str = "fedcba987654fedcba987654fedcba987654fedcba987654fedcba9876543210";
/// ID of a container that does not exist on this machine.
const OTHER_ID: &str = "0123456789ab0123456789ab0123456789ab0123456789ab0123456789abcdef";

/// Starts a JVM in a container with the ID [`ID`].
fn start_jvm() -> (Container, Cgroup) {
    let cgroup = Cgroup::of_container(UID, ID).unwrap();
    let flags = ["-XX:+UseSerialGC", "-Xlog:disable"];
    (Container::start_in_pod(named("temurin-21"), &flags, "GcLoad", &cgroup), cgroup)
}

/// Starts a cluster with the pod `shop`, and jvmprobed on its node and on another one.
fn cluster_with_daemon() -> Cluster {
    let pod = application_pod(UID, &[("app", ID)]);
    Cluster::start(&[pod, daemon_pod("node-0"), daemon_pod(NODE)])
}

fn cluster_without_daemon() -> Cluster {
    Cluster::start(&[application_pod(UID, &[("app", ID)]), daemon_pod("node-0")])
}

/// Runs the plugin with this command and the pod `shop`.
fn run(cluster: &Cluster, command: &str, args: &[&str]) -> Output {
    let args = [&[command, "shop", "-n", "prod"], args].concat();
    tool::run_command(cluster.plugin(&args))
}

/// Runs the plugin while the program in a JVM works. Otherwise like [`run`].
fn run_with_load(jvm: &mut Container, cluster: &Cluster, command: &str, args: &[&str]) -> Output {
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                jvm.run(0.2);
            }
        });
        let output = run(cluster, command, args);
        has_ended.store(true, Ordering::Relaxed);
        output
    })
}

/// Asserts the exit status and that stderr contains all of `texts`.
fn assert_fails(output: &Output, status: i32, texts: &[&str]) {
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    for text in texts {
        assert!(output.stderr.contains(text), "no {text:?} in {}", output.stderr);
    }
}

/// Returns the PIDs of the pauses in javagc's JSON.
fn pids_of_pauses(records: &[Value]) -> Vec<u64> {
    let pauses = records.iter().filter(|record| record["type"] == "pause");
    pauses.map(|record| record["pid"].as_u64().unwrap()).collect()
}

#[test]
fn tools_trace_the_jvm_of_the_pod_in_the_daemon_pod() {
    run_beside_others();
    let (mut jvm, _cgroup) = start_jvm();
    // This JVM is not in the container, so it must not be traced.
    let mut other = Load::start(named("temurin-21"), "-XX:+UseSerialGC");
    let mut cluster = cluster_with_daemon();
    other.go(3.0);
    let output = run_with_load(&mut jvm, &cluster, "gc", &["--", "-j", "-d", "1"]);
    assert!(output.status.success(), "{output:?}");
    let pids = pids_of_pauses(&output.json());
    assert!(!pids.is_empty(), "{output:?}");
    assert!(pids.iter().all(|pid| *pid == u64::from(jvm.pid())), "{}: {output:?}", jvm.pid());
    assert!(output.stderr.contains("running javagc in pod jvmprobed-on-node-1"), "{output:?}");

    let output = run(&cluster, "stack", &[]);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.contains("GcLoad.main"), "{output:?}");
    assert!(!output.stdout.contains(&other.pid().to_string()), "{output:?}");

    // With -p, the plugin traces the JVM of the container, but no other process.
    let own = jvm.pid().to_string();
    let output = run(&cluster, "stack", &["--", "-p", &own]);
    assert!(output.status.success(), "{output:?}");
    let output = run(&cluster, "stack", &["--", "-p", &other.pid().to_string()]);
    let message = format!("is not a JVM in the container {ID}; its JVMs are {own}");
    assert_fails(&output, 1, &[&message]);
    assert!(!output.stderr.contains("exit code"), "{output:?}");
    // The exit status is that of the tool.
    assert_fails(&run(&cluster, "stack", &["--", "--nonsense"]), 2, &["--nonsense"]);
    assert_fails(&run(&cluster, "gc", &["--", "-a"]), 2, &["cannot be used with"]);
    assert_eq!(cluster.created_pods(), [] as [Value; 0]);
    cluster.assert_nothing_is_left();
    other.done();
}

#[test]
fn debug_pod_is_created_with_exactly_the_needed_rights_and_deleted() {
    run_beside_others();
    let (mut jvm, _cgroup) = start_jvm();
    let mut cluster = cluster_without_daemon();
    let args = ["--image", "registry.example/jvmprobe:1", "--deadline", "90", "--"];
    let options = ["-F", "499", "-d", "1", "-o", "cpu.html", "-o", "cpu.folded"];
    let args = [&args[..], &options].concat();
    let output = run_with_load(&mut jvm, &cluster, "prof", &args);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.contains("GcLoad."), "{output:?}");
    let read = |name: &str| fs::read_to_string(cluster.laptop().join(name)).unwrap();
    let html = read("cpu.html");
    assert!(html.starts_with("<!DOCTYPE html>") && html.trim_end().ends_with("</html>"));
    let folded = read("cpu.folded");
    assert!(folded.contains(";GcLoad."), "{folded}");

    let [mut pod] = cluster.created_pods().try_into().unwrap();
    assert_matches_schema(&pod);
    let name = pod["metadata"]["name"].take();
    let name = name.as_str().unwrap();
    assert!(name.starts_with("kubectl-jvm-") && name.len() > 20, "{name}");
    let expected = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": null,
            "namespace": "jvmprobe",
            "labels": {"app.kubernetes.io/name": "kubectl-jvm"},
        },
        "spec": {
            "nodeName": NODE,
            "hostPID": true,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": 90,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": "jvmprobed",
                "image": "registry.example/jvmprobe:1",
                "command": ["/usr/sbin/jvmprobed", "remote", "--idle"],
                "resources": {
                    "requests": {"cpu": "20m", "memory": "100Mi"},
                    "limits": {"memory": "512Mi"},
                },
                "securityContext": {
                    "privileged": false,
                    "runAsUser": 0,
                    "readOnlyRootFilesystem": true,
                    "allowPrivilegeEscalation": true,
                    "capabilities": {"drop": ["ALL"], "add": daemon_capabilities()},
                    "seccompProfile": {"type": "RuntimeDefault"},
                    "appArmorProfile": {"type": "Unconfined"},
                },
            }],
        },
    });
    assert_eq!(pod, expected);
    cluster.assert_nothing_is_left();

    // A pod that cannot start is deleted, too.
    cluster.send("fail ImagePullBackOff");
    let output = run(&cluster, "gc", &["--image", "registry.example/nothing"]);
    assert_fails(&output, 1, &["cannot start on node node-1", "ImagePullBackOff"]);
    cluster.assert_nothing_is_left();
}

/// Asserts that Kubernetes' own schema accepts a manifest.
fn assert_matches_schema(manifest: &Value) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("manifest.yaml");
    // JSON is YAML, too.
    fs::write(&path, manifest.to_string()).unwrap();
    let mut validator = Command::new("python3");
    validator.args(["-m", "kubernetes_validate", "--strict"]).arg(&path);
    let output = validator.env("PYTHONPATH", downloaded_path("kubernetes")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// A running plugin in its own process group, as a shell starts it in a terminal.
struct Session {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl Session {
    /// Starts the plugin and waits until the tool is tracing.
    fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut text = String::new();
        while !text.contains("Hit Ctrl-C to end") {
            assert_ne!(stderr.read_line(&mut text).unwrap(), 0, "it has ended: {text}");
        }
        Self { child, stderr }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits until it has ended. Its output fits into the pipes.
    fn end(mut self) -> Output {
        let begin = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            if begin.elapsed() > TIMEOUT {
                let _ = kill_process_group(self.pid(), Signal::KILL);
                panic!("the plugin has not ended");
            }
            thread::sleep(Duration::from_millis(10));
        }
        let mut stderr = String::new();
        let mut stdout = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        self.stderr.read_to_string(&mut stderr).unwrap();
        Output { stdout, stderr, status: self.child.wait().unwrap() }
    }
}

#[test]
fn signals_end_the_trace_normally_and_delete_the_pod() {
    run_beside_others();
    let (_jvm, _cgroup) = start_jvm();
    let mut cluster = cluster_without_daemon();
    let args = ["gc", "shop", "-n", "prod", "--image", "registry.example/jvmprobe:1"];
    // A terminal sends SIGINT to the whole group, other programs send SIGTERM to the plugin.
    let ctrl_c = |pid| kill_process_group(pid, Signal::INT).unwrap();
    let terminate = |pid| kill_process(pid, Signal::TERM).unwrap();
    let ends: [&dyn Fn(Pid); 2] = [&ctrl_c, &terminate];
    for end in ends {
        let session = Session::start(cluster.plugin(&args));
        end(session.pid());
        let output = session.end();
        assert!(output.status.success(), "{output:?}");
        assert!(output.stdout.contains("No pauses") || output.stdout.contains("GC"), "{output:?}");
        cluster.assert_nothing_is_left();
    }
    assert_eq!(cluster.created_pods().len(), ends.len());

    // The reader of the results has ended.
    let mut command = cluster.plugin(&[&args[..], &["--", "-d", "1"]].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(child.stdout.take());
    child.wait().unwrap();
    cluster.assert_nothing_is_left();
}

#[test]
fn killed_plugin_leaves_no_tool_behind() {
    run_beside_others();
    let (_jvm, _cgroup) = start_jvm();
    let mut cluster = cluster_with_daemon();
    let session = Session::start(cluster.plugin(&["gc", "shop", "-n", "prod"]));
    kill_process_group(session.pid(), Signal::KILL).unwrap();
    assert!(!session.end().status.success());
    cluster.assert_nothing_is_left();
}

/// Makes a tar archive. Its first argument is a directory outside of the one to which it is extracted. Only the last file
/// is one that the user has asked for.
const HOSTILE_ARCHIVE: &str = r#"
import io, sys, tarfile
home, archive = sys.argv[1], tarfile.open(fileobj=sys.stdout.buffer, mode="w|")
def add(name, kind=tarfile.REGTYPE, link="", data=b"evil"):
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, link, 0o777
    member.size = len(data) if kind == tarfile.REGTYPE else 0
    archive.addfile(member, io.BytesIO(data))
add("../escaped")
add("../../home/escaped")
add(home + "/absolute")
add("directory", tarfile.SYMTYPE, home)
add("directory/through")
add("symbolic.html", tarfile.SYMTYPE, home + "/secret")
add("hard.html", tarfile.LNKTYPE, home + "/secret")
add("fifo.html", tarfile.FIFOTYPE)
add(".profile")
add("unwanted.html")
add("cpu.html", data=b"a profile")
archive.close()
"#;

#[test]
fn hostile_archive_changes_only_the_files_that_were_asked_for() {
    run_beside_others();
    let mut cluster = cluster_with_daemon();
    fs::write(cluster.home().join("secret"), "a secret").unwrap();
    let mut archive = Command::new("python3");
    let archive = archive.args(["-c", HOSTILE_ARCHIVE]).arg(cluster.home()).output().unwrap();
    assert!(archive.status.success(), "{archive:?}");
    // The arguments are: remote --files MARK.
    cluster.replace_jvmprobed(
        "echo \"$3\" >&2\nexec /usr/sbin/cat /usr/sbin/archive >&2",
        &archive.stdout,
    );
    let files = ["symbolic.html", "hard.html", "fifo.html", "cpu.html"];
    let options: Vec<_> = files.iter().flat_map(|file| ["-o", file]).collect();
    let output = run(&cluster, "prof", &[&["--"], &options[..]].concat());
    assert_fails(&output, 1, &["copied cpu.html", "not copied", "unwanted.html"]);
    let names = |folder: PathBuf| {
        let entries = fs::read_dir(folder).unwrap().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(names(cluster.laptop()), ["cpu.html"]);
    assert_eq!(fs::read_to_string(cluster.laptop().join("cpu.html")).unwrap(), "a profile");
    let mut home = names(cluster.home());
    // kubectl's cache
    home.retain(|name| name != ".kube");
    assert_eq!(home, ["secret"]);
    assert_eq!(fs::read_to_string(cluster.home().join("secret")).unwrap(), "a secret");
    cluster.assert_nothing_is_left();
}

#[test]
fn each_refusal_names_the_missing_right() {
    run_beside_others();
    let image = ["--image", "registry.example/jvmprobe:1"];
    for (right, namespace) in [
        ("get pods", "prod"),
        ("list pods", "jvmprobe"),
        ("create pods", "jvmprobe"),
        ("create pods/exec", "jvmprobe"),
        ("delete pods", "jvmprobe"),
    ] {
        let mut cluster = cluster_without_daemon();
        cluster.send(&format!("forbid {right}"));
        let output = run(&cluster, "gc", &image);
        let message = format!("kubectl-jvm: you may not {right} in namespace {namespace}; ask for");
        assert_fails(&output, 1, &["orbidden", &message]);
        assert_eq!(output.stderr.matches("you may not").count(), 1, "{output:?}");
        if right == "delete pods" {
            let left = "is left in namespace jvmprobe; it ends within 3600 seconds";
            assert_fails(&output, 1, &[left]);
        } else {
            cluster.assert_nothing_is_left();
        }
    }
    let mut cluster = cluster_without_daemon();
    cluster.send("restrict jvmprobe");
    let output = run(&cluster, "gc", &image);
    let label = "pod-security.kubernetes.io/enforce=privileged";
    assert_fails(&output, 1, &["violates PodSecurity", label, "--node-namespace"]);
    assert!(!output.stderr.contains("you may not"), "{output:?}");
    let output = run(&cluster, "gc", &["--node-namespace", "nowhere", image[0], image[1]]);
    assert_fails(&output, 1, &["namespaces \"nowhere\" not found"]);
    cluster.assert_nothing_is_left();
}

#[test]
fn pod_and_container_must_be_unambiguous() {
    run_beside_others();
    let mut pod = application_pod(UID, &[("app", OTHER_ID), ("proxy", ID)]);
    let cluster = Cluster::start(&[pod.clone(), daemon_pod(NODE)]);
    let output = run(&cluster, "gc", &[]);
    assert_fails(&output, 1, &["pod shop has several containers: app, proxy; choose one with -c"]);
    let output = run(&cluster, "gc", &["-c", "web"]);
    assert_fails(&output, 1, &["pod shop has no container web; it has: app, proxy"]);
    let none = format!("no JVM runs in the container {OTHER_ID}");
    assert_fails(&run(&cluster, "gc", &["-c", "app"]), 1, &[&none]);
    let gone = cluster.plugin(&["gc", "gone", "-n", "prod"]);
    assert_fails(&tool::run_command(gone), 1, &["pods \"gone\" not found"]);
    for (args, message) in [
        (&["gc"][..], "required arguments were not provided"),
        (&["gcc", "shop"], "invalid value 'gcc' for '<COMMAND>'"),
        (&["gc", "shop", "-d", "1"], "to pass '-d' as a value, use '-- -d'"),
        (&["gc", "shop\n"], "expected a DNS subdomain"),
        (&["gc", "shop", "-n", "--all"], "unexpected argument '--all'"),
        (&["prof", "shop", "--", "-o", "/tmp/x.html"], "a file name without a directory"),
    ] {
        assert_fails(&tool::run_command(cluster.plugin(args)), 2, &[message]);
    }
    let output = tool::run_command(cluster.plugin(&["--help"]));
    assert!(
        output.status.success() && output.stdout.contains("kubectl jvm COMMAND POD"),
        "{output:?}"
    );

    // The annotation names the default container. This container is not running.
    pod["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/default-container": "app"});
    pod["status"]["containerStatuses"][0]["state"] = json!({"waiting": {"reason": "Crashed"}});
    let cluster = Cluster::start(&[pod, daemon_pod("node-0")]);
    assert_fails(&run(&cluster, "gc", &[]), 1, &["container app of pod shop is not running"]);
    let no_daemon = "no pod of jvmprobed runs on node node-1 in namespace jvmprobe";
    assert_fails(&run(&cluster, "gc", &["-c", "proxy"]), 1, &[no_daemon, "--image"]);
    assert_fails(&run(&cluster, "show", &[]), 1, &[no_daemon, "show needs its recorded data"]);
}

/// Returns a pod like [`application_pod`] with an annotation.
fn annotated_pod(annotation: &str, value: &str) -> Value {
    let mut pod = application_pod(UID, &[("app", ID)]);
    pod["metadata"]["annotations"] = json!({annotation: value});
    pod
}

/// Asserts that stderr has no control characters.
fn assert_printable(output: &Output) {
    let is_harmful = |c: char| c.is_control() && c != '\n';
    assert!(!output.stderr.contains(is_harmful), "{:?}", output.stderr);
    assert!(output.stderr.len() < 10_000, "{} bytes", output.stderr.len());
}

#[test]
fn annotations_cannot_forge_the_node_or_the_debug_pod() {
    run_beside_others();
    // These texts forged fields of a shell script that read lines. In the first one, a carriage return is a line break
    // of YAML only, and a byte order mark at the start of the parser's buffer hides the character before the mapping.
    let spec = json!({
        "nodeName": "control-plane-0",
        "hostPID": true,
        "containers": [{"name": "x", "image": "evil", "securityContext": {"privileged": true}}],
    });
    let privileged =
        format!("app\nnode x\"\r\"spec\":\r#{}\u{feff}\r_{spec}\r\"status\":\r#", "n".repeat(300));
    let other_node = format!("zz\nnode victim-node\ncontainer zz 1 containerd://{OTHER_ID}");
    let default = "kubectl.kubernetes.io/default-container";
    for value in [&privileged, &other_node] {
        let pod = annotated_pod(default, value);
        let mut cluster = Cluster::start(&[pod, daemon_pod(NODE), daemon_pod("victim-node")]);
        for args in [&["--debug-pod", "--image", "registry.example/jvmprobe:1"][..], &[]] {
            let output = run(&cluster, "stack", args);
            let message = format!("the annotation {default} is \"");
            assert_fails(&output, 1, &[&message, "\\x0anode ", "choose a container with -c"]);
            assert_printable(&output);
        }
        // No process has been started in a pod.
        assert_eq!(cluster.created_pods(), [] as [Value; 0]);
        cluster.assert_nothing_is_left();

        let mirror = "kubernetes.io/config.mirror";
        let cluster = Cluster::start(&[annotated_pod(mirror, value), daemon_pod(NODE)]);
        let output = run(&cluster, "show", &[]);
        assert_fails(&output, 1, &[&format!("the annotation {mirror} is \"")]);
        assert_printable(&output);
    }
}

/// The values of all fields, and the arguments that follow from them, are tested by the unit tests of the plugin.
#[test]
fn hostile_values_of_the_cluster_are_named_and_refused() {
    run_beside_others();
    let hostile = ["--kubeconfig=/tmp/x", "../../x", "x\"\r\nhostNetwork: true", "x;\u{1b}[2J\0"];
    for (field, pointer) in [
        ("spec.nodeName", "/spec/nodeName"),
        ("metadata.name", "/metadata/name"),
        ("spec.containers.name", "/spec/containers/0/name"),
        ("status.containerStatuses.containerID", "/status/containerStatuses/0/containerID"),
    ] {
        for value in hostile {
            let mut pod = application_pod(UID, &[("app", ID)]);
            pod["metadata"]["labels"] = json!({"app": "shop"});
            *pod.pointer_mut(pointer).unwrap() = json!(value);
            let mut cluster = Cluster::start(&[pod, daemon_pod(NODE)]);
            let args = ["gc", "-l", "app=shop", "-n", "prod", "--debug-pod", "--image", "x"];
            let output = tool::run_command(cluster.plugin(&args));
            assert_fails(&output, 1, &[&format!("{field} is \""), "but expected "]);
            assert_printable(&output);
            assert_eq!(cluster.created_pods(), [] as [Value; 0]);
        }
    }
    // The status of the debug pod.
    let mut cluster = cluster_without_daemon();
    cluster.send("fail ErrImagePull\u{1b}[2J");
    let output = run(&cluster, "gc", &["--image", "x\ny: z"]);
    assert_fails(&output, 1, &["cannot start on node node-1", "ErrImagePull\\x1b[2J"]);
    assert_printable(&output);
    let [pod] = cluster.created_pods().try_into().unwrap();
    assert_eq!(pod["spec"]["containers"][0]["image"], "x\ny: z");
    cluster.assert_nothing_is_left();
}

#[test]
fn labels_and_workloads_select_a_pod() {
    run_beside_others();
    let labelled = |name: &str, time: &str, container: &str| {
        let mut pod = application_pod(UID, &[(container, OTHER_ID)]);
        pod["metadata"]["name"] = json!(name);
        pod["metadata"]["labels"] = json!({"app": "shop"});
        pod["metadata"]["creationTimestamp"] = json!(time);
        pod
    };
    let deployment = |name: &str, labels: Value| {
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": "prod"},
            "spec": {"selector": {"matchLabels": labels}},
        })
    };
    let cluster = Cluster::start(&[
        labelled("shop-b", "2026-11-26T13:00:00Z", "b"),
        labelled("shop-a", "2026-11-26T12:00:00Z", "a"),
        deployment("shop", json!({"app": "shop"})),
        deployment("evil", json!({"app": "shop,b=c\n"})),
        deployment("none", json!({"app": "none"})),
        daemon_pod(NODE),
    ]);
    let run = |args: &[&str]| {
        tool::run_command(cluster.plugin(&[&["gc"], args, &["-n", "prod"]].concat()))
    };
    let none = format!("no JVM runs in the container {OTHER_ID}");
    // The oldest one has a container named a.
    let using = "shop has 2 running pods; using the oldest one, shop-a";
    assert_fails(&run(&["deploy/shop", "-c", "a"]), 1, &[using, &none]);
    assert_fails(&run(&["deployment.apps/shop", "-c", "b"]), 1, &["shop-a has no container b"]);
    let several = "2 running pods have these labels: shop-b, shop-a; name one of them";
    assert_fails(&run(&["-l", "app=shop"]), 1, &[several]);
    assert_fails(&run(&["-l", "app=other"]), 1, &["no running pod has these labels"]);
    assert_fails(&run(&["deploy/none"]), 1, &["no running pod has the labels of none"]);
    assert_fails(&run(&["deploy/gone"]), 1, &["deployments.apps \"gone\" not found"]);
    let output = run(&["deploy/evil"]);
    assert_fails(&output, 1, &["a value of spec.selector.matchLabels is \"shop,b=c\\x0a\""]);
    assert_printable(&output);

    let only = Cluster::start(&[labelled("shop-b", "2026-11-26T13:00:00Z", "b"), daemon_pod(NODE)]);
    let args = ["gc", "-l", "app=shop", "-n", "prod"];
    assert_fails(&tool::run_command(only.plugin(&args)), 1, &[&none]);
}

#[test]
fn show_selects_the_jvms_of_the_pod() {
    run_beside_others();
    let pod = application_pod(UID, &[("app", ID), ("proxy", OTHER_ID)]);
    let mut cluster = Cluster::start(&[pod, daemon_pod(NODE)]);
    let now = jiff::Timestamp::now().as_second().unsigned_abs();
    let mut store =
        Store::open(&cluster.state_dir(), Duration::from_secs(86_400), 1 << 30).unwrap();
    // Window 3 has two JVMs. Only the first one is in the pod.
    let mut window = synthetic_window(now - 120, 3);
    assert_eq!(window.jvms.len(), 2);
    let attributes = &mut Arc::make_mut(&mut window.jvms[0].identity).attributes;
    attributes.insert("k8s.pod.uid".into(), UID.into());
    attributes.insert("container.id".into(), ID.into());
    assert_eq!(window.end_ns - window.begin_ns, 15 * SECOND);
    store.put(window);
    drop(store);
    for args in [&["--", "--gc"][..], &["-c", "app", "--", "--gc"]] {
        let output = run(&cluster, "show", args);
        assert!(output.status.success(), "{output:?}");
        assert!(output.stdout.contains("shop") && !output.stdout.contains("batch"), "{output:?}");
    }
    let output = run(&cluster, "show", &["-c", "proxy", "--", "--gc"]);
    assert!(!output.stdout.contains("batch") && !output.stdout.contains("shop"), "{output:?}");
    let output = run(&cluster, "show", &["--", "-o", "cpu.svg"]);
    assert!(output.status.success(), "{output:?}");
    let svg = fs::read_to_string(cluster.laptop().join("cpu.svg")).unwrap();
    assert!(svg.contains("shop.Main.run"), "{svg}");
    assert_eq!(fs::read_dir(cluster.laptop()).unwrap().count(), 1);
    cluster.assert_nothing_is_left();
}

#[test]
fn man_page_documents_every_option() {
    run_beside_others();
    let mut command = Command::new(tool::binary("kubectl-jvm"));
    command.arg("--help");
    let help = tool::run_command(command).stdout;
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../man/kubectl-jvm.8");
    let man = fs::read_to_string(page).unwrap().replace('\\', "");
    let words = help.split(|c: char| c.is_whitespace() || c == ',');
    let options: Vec<_> = words.filter(|word| word.starts_with("--") && word.len() > 3).collect();
    assert!(options.len() > 8, "{options:?}");
    for option in options {
        assert!(man.contains(option), "{option} is not in the man page");
    }
    let mut lint = Command::new("mandoc");
    let lint = lint.args(["-T", "lint", "-W", "warning"]).arg(page).output();
    let lint = lint.expect("mandoc (tests/setup installs it)");
    assert!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stdout));
}

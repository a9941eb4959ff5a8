//! Deployment of jvmprobed: the service, packages, the image. `jvmprobed_chart.rs` tests the manifests for Kubernetes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    sync::Once,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use jvmprobe_tests::{
    container::Container,
    load::{Load, classes},
    run_alone, run_beside_others,
    runtimes::named,
    tool::{Tool, binary},
    windows::synthetic_window,
};
use jvmprobed::store::Store;

fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn deploy_path(path: &str) -> PathBuf {
    repository_root().join("tools/jvmprobed/deploy").join(path)
}

/// Returns the names of capabilities in a text, without `CAP_`.
fn capabilities(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_uppercase() && c != '_');
    words.filter_map(|word| word.strip_prefix("CAP_")).map(str::to_owned).collect()
}

#[test]
fn unit_pod_and_man_page_list_the_same_capabilities() {
    run_beside_others();
    let unit = fs::read_to_string(deploy_path("systemd/jvmprobed.service")).unwrap();
    let line = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    let wanted = capabilities(line("CapabilityBoundingSet="));
    assert!(wanted.contains("BPF") && wanted.len() > 5, "{wanted:?}");

    let pod = fs::read_to_string(deploy_path("kubernetes/daemonset.yaml")).unwrap();
    let added = pod.lines().find_map(|line| line.trim().strip_prefix("add: [")).unwrap();
    let added: BTreeSet<String> =
        added.trim_end_matches(']').split(", ").map(str::to_owned).collect();
    assert_eq!(added, wanted);
    assert!(pod.contains("drop: [ALL]") && pod.contains("privileged: false"), "{pod}");

    let pages = ["man/jvmprobed.8", "man/jvmprobed-push.inc"];
    let man = pages
        .iter()
        .find_map(|page| fs::read_to_string(repository_root().join(page)).ok())
        .unwrap();
    assert_eq!(capabilities(&man), wanted);
}

/// systemd's own check, which prints what is wrong in a unit.
#[test]
fn systemd_accepts_the_unit_and_its_sandbox() {
    run_beside_others();
    let folder = tempfile::tempdir().unwrap();
    let unit = fs::read_to_string(deploy_path("systemd/jvmprobed.service")).unwrap();
    // Neither the program nor its man page is installed.
    let unit = unit.replace("/usr/sbin/jvmprobed", "/bin/true").replace("man:jvmprobed(8)", "");
    let verify = |text: &str| {
        let path = folder.path().join("jvmprobed.service");
        fs::write(&path, text).unwrap();
        let output = Command::new("systemd-analyze").arg("verify").arg(&path).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        // systemd-analyze also reports on other units of this machine.
        said.lines().filter(|line| line.contains("jvmprobed")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(verify(&unit), "");
    let wrong = verify(&unit.replace("ProtectSystem=strict", "ProtectSystem=strictly"));
    assert!(wrong.contains("strictly"), "{wrong}");
    // The unit grants no additional privileges.
    assert!(!unit.contains("AmbientCapabilities"));
    for line in ["NoNewPrivileges=yes", "ProtectSystem=strict", "Type=notify"] {
        assert!(unit.lines().any(|l| l == line), "{line}");
    }
    assert!(unit.lines().any(|line| line.starts_with("MemoryMax=")));
    assert!(!unit.contains("@debug"), "ptrace is allowed");
    // The threshold of 36 is an exposure of 3.6; higher values mean a weaker sandbox. The unit had
    // 3.8 before PrivateDevices and the narrower system call filter.
    let path = folder.path().join("jvmprobed.service");
    fs::write(&path, &unit).unwrap();
    let mut security = Command::new("systemd-analyze");
    security.args(["security", "--offline=true", "--threshold=36"]).arg(&path);
    let output = security.output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{said}");
    // Kubernetes' probes use the listener that clients of the metrics cannot keep busy.
    let pod = fs::read_to_string(deploy_path("kubernetes/daemonset.yaml")).unwrap();
    assert_eq!(pod.matches("port: health}").count(), 3, "{pod}");
}

/// Returns all files of a root, except those that change by themselves.
fn files(root: &Path) -> BTreeSet<String> {
    let output = Command::new("find")
        .arg(root)
        .args(["-xdev", "-path", "*/var/lib/dpkg", "-prune", "-o", "-path", "*/var/log", "-prune"])
        .args(["-o", "-path", "*/var/cache", "-prune", "-o", "-printf", "%P\n"])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn run(command: &mut Command) -> String {
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{command:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail, and returns its message.
fn fails(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{command:?}");
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

/// Returns the packages that `make packages` has written: the .deb and the .rpm.
fn packages() -> [PathBuf; 2] {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        _ = run(Command::new("make").arg("-C").arg(repository_root()).arg("packages"))
    });
    let all = fs::read_dir(repository_root().join("target/packages")).unwrap();
    let all: Vec<_> = all.map(|entry| entry.unwrap().path()).collect();
    ["deb", "rpm"].map(|wanted| {
        let found = all.iter().find(|path| path.extension().is_some_and(|e| e == wanted));
        found.unwrap().clone()
    })
}

/// Installs a minimal Debian with some additional packages into a root.
fn debian(root: &Path, suite: &str, include: &str) {
    // The mirrors of this machine's own sources.
    let mirrors = run(Command::new("apt-get").args(["indextargets", "--format", "$(REPO_URI)"]));
    let mirror = mirrors.lines().find(|uri| uri.trim_end_matches('/').ends_with("/debian"));
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.arg("--variant=minbase");
    if !include.is_empty() {
        debootstrap.arg(format!("--include={include}"));
    }
    run(debootstrap.arg(suite).arg(root).args(mirror));
}

const TOOLS: [&str; 5] = ["javagc", "javaprof", "javaobjnew", "javaclass", "jvmprobed"];

/// Checks everything that a package has installed in a root directory, with `chroot` into that
/// directory.
fn check_installed_package(root: &Path) {
    let inside = |words: &[&str]| {
        let mut command = Command::new("chroot");
        command.arg(root).args(words);
        command
    };
    for tool in TOOLS {
        assert!(run(&mut inside(&[&format!("/usr/sbin/{tool}"), "--version"])).starts_with(tool));
        let completions = format!("usr/share/bash-completion/completions/{tool}");
        assert!(root.join(&completions).exists(), "{completions}");
    }
    // Without stored windows, `show` fails. After windows have been stored, it prints them.
    let said = fails(&mut inside(&["/usr/sbin/jvmprobed", "show"]));
    assert!(said.contains("/var/lib/jvmprobe") && said.lines().count() == 1, "{said}");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let dir = root.join("var/lib/jvmprobe");
    let mut store = Store::open(&dir, Duration::from_secs(86_400), 1 << 30).unwrap();
    (0..4).for_each(|at| _ = store.put(synthetic_window(now - 60, at)));
    drop(store);
    let table = run(&mut inside(&["/usr/sbin/jvmprobed", "show", "--jvm", "shop"]));
    assert!(table.contains("shop.Main.run"), "{table}");
    // The packaged configuration is valid, and the unit is disabled.
    let config =
        ["/usr/sbin/jvmprobed", "--config", "/etc/jvmprobe/jvmprobed.toml", "--dir", "/dev/null/x"];
    let said = fails(&mut inside(&config));
    assert!(said.contains("/dev/null/x") && said.lines().count() == 1, "{said}");
    let unit = "usr/lib/systemd/system/jvmprobed.service";
    let links = root.join("etc/systemd/system/multi-user.target.wants/jvmprobed.service");
    assert!(root.join(unit).exists() && !links.exists());
    // Everything that the unit refers to exists: systemd has no complaint about it.
    let verify = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--root"])
        .arg(root)
        .arg("jvmprobed.service")
        .output()
        .unwrap();
    let said = String::from_utf8([verify.stdout, verify.stderr].concat()).unwrap();
    // A minimal root lacks systemd's own units, and /bin/kill, with which the unit reloads the daemon.
    let of_ours: Vec<_> = said
        .lines()
        .filter(|line| line.contains("jvmprobed"))
        .filter(|line| !line.contains("not found") && !line.contains("/bin/kill"))
        .collect();
    assert!(of_ours.is_empty(), "{said}");
}

/// The .deb in a minimal Debian.
#[test]
#[ignore = "long: make test-all"]
fn purging_the_deb_leaves_no_files() {
    run_alone();
    let [deb, _] = packages();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    debian(&root, "stable", "");
    let before = files(&root);
    fs::copy(deb, root.join("tmp/jvmprobe.deb")).unwrap();
    let inside = |words: &[&str]| run(Command::new("chroot").arg(&root).args(words));
    inside(&["dpkg", "-i", "/tmp/jvmprobe.deb"]);
    check_installed_package(&root);
    // After a removal, stored windows and configuration remain; after a purge, nothing does.
    inside(&["dpkg", "--remove", "jvmprobe"]);
    assert!(root.join("var/lib/jvmprobe").exists() && root.join("etc/jvmprobe").exists());
    assert!(!root.join("usr/sbin/jvmprobed").exists());
    inside(&["dpkg", "--purge", "jvmprobe"]);
    fs::remove_file(root.join("tmp/jvmprobe.deb")).unwrap();
    assert_eq!(files(&root), before);
}

/// The .rpm in a folder that has only a shell.
#[test]
#[ignore = "long: make test-all"]
fn removing_the_rpm_leaves_no_files() {
    run_alone();
    let [_, rpm] = packages();
    let listed = run(Command::new("rpm").arg("-qlp").arg(&rpm));
    let wanted = ["/usr/lib/systemd/system/jvmprobed.service", "/etc/jvmprobe/jvmprobed.toml"];
    let tools = TOOLS.map(|tool| format!("/usr/sbin/{tool}"));
    for path in wanted.into_iter().chain(tools.iter().map(|path| &**path)) {
        assert!(listed.lines().any(|line| line == path), "{path}: {listed}");
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    // The package's scripts need a shell, `rm` and `rmdir`.
    fs::create_dir_all(root.join("bin")).unwrap();
    for name in ["sh", "rm", "rmdir"] {
        fs::copy("/bin/busybox", root.join("bin").join(name)).unwrap();
    }
    for folder in ["proc", "dev", "var/lib"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    // The scripts redirect output to /dev/null.
    fs::write(root.join("dev/null"), "").unwrap();
    let with = |words: &[&str]| {
        let mut command = Command::new("rpm");
        // With `--root`, rpm uses the package database in that directory.
        run(command.arg("--root").arg(&root).args(words))
    };
    with(&["--nodeps", "--ignoresize", "-i", rpm.to_str().unwrap()]);
    let before = files(&root);
    check_installed_package(&root);
    assert!(with(&["-q", "jvmprobe"]).starts_with("jvmprobe-"));
    with(&["--nodeps", "-e", "jvmprobe"]);
    let left: Vec<_> = files(&root).into_iter().filter(|path| path.contains("jvmprobe")).collect();
    assert!(left.is_empty() && before.iter().any(|path| path.contains("jvmprobe")), "{left:?}");
}

/// A program that is killed by its process ID when the test ends.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a condition holds.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(90), "{what}");
        thread::sleep(Duration::from_millis(200));
    }
}

/// Returns a podman command that works here: crun does not support the hybrid cgroup hierarchy of
/// some machines, and limits cannot be raised above our own.
fn podman_run() -> Command {
    let mut command = Command::new("podman");
    command.args(["--runtime", "runc", "run", "--rm", "--network=none"]);
    command.args(["--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"]);
    command
}

/// The image as the DaemonSet runs it: with exactly the unit's capabilities, a read-only file
/// system, and the host's PID namespace.
#[test]
#[ignore = "long: make test-all"]
fn container_image_traces_jvms_of_the_host() {
    run_alone();
    run(Command::new("make").arg("-C").arg(repository_root()).arg("image"));
    let unit = fs::read_to_string(deploy_path("systemd/jvmprobed.service")).unwrap();
    let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (state, id) = (folder.path().join("state"), folder.path().join("id"));
    fs::create_dir(&state).unwrap();
    let mut load = Load::start(named("temurin-21"), "-XX:+UseSerialGC");
    let mut command = podman_run();
    command.args(["--pid=host", "--read-only", "--cap-drop=all", "--cidfile"]).arg(&id);
    command.args(capabilities(line).iter().map(|name| format!("--cap-add={name}")));
    command.arg("-v").arg(format!("{}:/var/lib/jvmprobe", state.display()));
    command.args(["localhost/jvmprobe", "-F", "99"]).stderr(Stdio::piped());
    let mut daemon = KilledOnDrop(command.spawn().unwrap());
    load.go(60.0);
    let windows = || {
        let names = fs::read_dir(&state).unwrap().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with("15s-")).count()
    };
    wait_until("two windows", || windows() >= 2);
    let id = fs::read_to_string(&id).unwrap();
    run(Command::new("podman").args(["--runtime", "runc", "stop", "-t", "10", id.trim()]));
    let mut said = String::new();
    daemon.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(daemon.0.wait().unwrap().success(), "{said}");
    assert!(said.lines().any(|line| line.contains("Tracing all JVMs")), "{said}");
    let show = |args: &[&str]| {
        run(Command::new(binary("jvmprobed")).args(["show", "--dir"]).arg(&state).args(args))
    };
    let table = show(&["--jvm", "GcLoad"]);
    assert!(table.contains("GcLoad.allocate"), "{table} {said}");
    let pauses = show(&["--gc", "-j", "--jvm", "GcLoad"]);
    assert!(pauses.contains(&format!("\"pid\":{},", load.pid())), "{pauses}");
    let classes = show(&["--alloc", "--jvm", "GcLoad"]);
    assert!(classes.contains("byte[]"), "{classes}");
    load.kill();
}

/// The installed unit under a systemd of its own: it becomes ready, reloads, stays alive and stops
/// as systemd requires, in its sandbox and with a JVM beside it.
#[test]
#[ignore = "long: make test-all"]
fn service_starts_reloads_and_stops_under_systemd() {
    run_alone();
    let [deb, _] = packages();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    // A version of systemd that still supports control groups of version 1.
    debian(&root, "bookworm", "systemd,procps");
    fs::copy(deb, root.join("tmp/jvmprobe.deb")).unwrap();
    run(Command::new("chroot").arg(&root).args(["dpkg", "-i", "/tmp/jvmprobe.deb"]));
    let java = named("temurin-21").java.canonicalize().unwrap();
    let home = java.ancestors().nth(2).unwrap();
    let name = format!("jvmprobe-test-{}", process::id());
    let mut command = podman_run();
    command.args(["--privileged", "--systemd=always", "--name", &name]);
    command.arg("-v").arg(format!("{}:/jre:ro", home.display()));
    command.arg("-v").arg(format!("{}:/classes:ro", classes().display()));
    command.arg("--rootfs").arg(&root).arg("/lib/systemd/systemd");
    let mut systemd = KilledOnDrop(command.stdout(Stdio::null()).spawn().unwrap());
    let exec = |words: &[&str]| {
        let mut command = Command::new("podman");
        command.args(["--runtime", "runc", "exec", "-i", &name]).args(words);
        command
    };
    let is = |words: &[&str], wanted: &str| {
        let output = exec(words).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim() == wanted
    };
    wait_until("systemd", || is(&["systemctl", "is-system-running"], "running"));
    // The service is disabled until the administrator enables it.
    assert!(is(&["systemctl", "is-enabled", "jvmprobed"], "disabled"));
    assert!(is(&["systemctl", "is-active", "jvmprobed"], "inactive"));
    let mut load =
        exec(&["/jre/bin/java", "-Xmx64m", "-XX:+UseSerialGC", "-cp", "/classes", "GcLoad"]);
    let mut load = KilledOnDrop(load.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap());
    let mut asks = load.0.stdin.take().unwrap();
    writeln!(asks, "go 60").unwrap();
    let journal = || run(&mut exec(&["journalctl", "-u", "jvmprobed", "-o", "cat"]));
    // The command returns when the daemon has reported that it is ready.
    let started = exec(&["systemctl", "enable", "--now", "jvmprobed"]).status().unwrap();
    assert!(started.success(), "{}", journal());
    let show = |property: &str| {
        run(&mut exec(&["systemctl", "show", "jvmprobed", "-p", property, "--value"]))
            .trim()
            .to_owned()
    };
    assert_eq!((show("ActiveState"), show("SubState")), ("active".into(), "running".into()));
    assert!(journal().contains("Tracing all JVMs on this host"), "{}", journal());
    assert!(show("StatusText").contains("JVMs"), "{}", show("StatusText"));
    // The process cannot gain privileges, and its system calls are filtered.
    let status = run(&mut exec(&["cat", &format!("/proc/{}/status", show("MainPID"))]));
    assert!(status.contains("NoNewPrivs:\t1\n") && status.contains("Seccomp:\t2\n"), "{status}");
    assert!(exec(&["systemctl", "reload", "jvmprobed"]).status().unwrap().success());
    // A reload is a signal, so the command returns before the daemon has handled it.
    wait_until("the configuration to be read again", || {
        journal().contains("reloaded the configuration")
    });
    wait_until("a window", || show("StatusText").contains("1 window"));
    let stopped = exec(&["systemctl", "stop", "jvmprobed"]).status().unwrap();
    assert!(stopped.success() && show("Result") == "success", "{}", journal());
    let table = run(&mut exec(&["jvmprobed", "show", "--jvm", "GcLoad"]));
    assert!(table.contains("GcLoad.allocate"), "{table} {}", journal());
    let pauses = run(&mut exec(&["jvmprobed", "show", "--gc", "--jvm", "GcLoad"]));
    assert!(pauses.contains("System.gc()"), "{pauses}");
    drop((asks, load));
    run(Command::new("podman").args(["--runtime", "runc", "stop", "-t", "10", &name]));
    systemd.0.wait().unwrap();
}

#[test]
#[ignore = "long: make test-all"]
fn jvms_in_podman_are_labelled_with_container_ids() {
    run_alone();
    let loads =
        ["temurin-17", "temurin-21"].map(|name| Container::start_in_podman(named(name), "GcLoad"));
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let args = ["--config", "/dev/null", "--listen", &free, "--dir", store.to_str().unwrap()];
    let tool = Tool::start("jvmprobed", &args);
    let mut metrics = String::new();
    let mut stream = TcpStream::connect(&free).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    stream.read_to_string(&mut metrics).unwrap();
    assert!(tool.interrupt().status.success());
    let ids: BTreeSet<_> = loads.iter().map(Container::id).collect();
    assert_eq!(ids.len(), 2);
    for load in &loads {
        let pid = format!("pid=\"{}\"", load.pid());
        let info = metrics
            .lines()
            .find(|line| line.starts_with("jvmprobe_jvm_info{") && line.contains(&pid))
            .unwrap_or_else(|| panic!("{metrics}"));
        assert!(info.contains("jvm=\"GcLoad\""), "{info}");
        assert_eq!(load.id().len(), 64);
        assert!(info.contains(&format!("container_id=\"{}\"", load.id())), "{info}");
    }
}

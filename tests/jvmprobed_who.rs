//! The identity of a JVM in jvmprobed, which comes from the operator's settings, the control group
//! and the host.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "reasons for skipping are printed")]

use std::{fs, net::TcpListener, process::Command};

use jvmprobe_tests::{
    load::Load,
    pod::Pod,
    run_alone, run_beside_others,
    runtimes::named,
    scrape,
    tool::{Tool, binary},
};
use libjvmprobe::{Pid, hotspot::HotSpot, jvms::JvmIdentity, process::Target};
use rustix::process::Signal;

/// Returns the identity of a JVM.
fn identity(load: &Load) -> JvmIdentity {
    let target = Target::open(Pid(load.pid())).unwrap();
    let hotspot = HotSpot::read(&target).unwrap();
    let mut identity = JvmIdentity::of(&target.process).unwrap();
    identity.add_runtime(&hotspot);
    identity
}

#[test]
fn jvm_name_comes_from_its_otel_environment() {
    run_beside_others();
    let runtime = named("temurin-21");
    let mut command = runtime.command();
    command
        .env("OTEL_SERVICE_NAME", "shop")
        .env("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=a%20b,service.version=1")
        .env("SECRET", "hunter2")
        .arg("-Dspring.application.name=other");
    let load = Load::spawn(command);
    let before = std::time::SystemTime::now();
    let identity = identity(&load);
    let attribute = |key: &str| identity.attributes.get(key).map_or("", String::as_str);
    assert_eq!((&*identity.name, attribute("service.name")), ("shop", "shop"));
    assert_eq!((attribute("service.namespace"), attribute("service.version")), ("a b", "1"));
    assert_eq!(attribute("process.pid"), load.pid().to_string());
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(attribute("host.name"), host.trim());
    assert_eq!(attribute("process.executable.name"), "java");
    assert!(attribute("process.runtime.version").starts_with("21."), "{identity:?}");
    assert!(attribute("process.runtime.name").contains("Runtime Environment"), "{identity:?}");
    assert!(attribute("jvm.main").ends_with("GcLoad"), "{identity:?}");
    assert!(!format!("{identity:?}").contains("hunter2"), "{identity:?}");
    // The JVM was started just now.
    let started = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(identity.started_ns);
    let ago = before.duration_since(started).unwrap();
    assert!(ago.as_secs() < 120, "{ago:?}");
}

/// The log has one message about a libjvm.so without probes, however many JVMs run this file, and none about
/// JVMs that a rule drops.
#[test]
fn missing_probes_are_logged_once_per_libjvm_file() {
    run_alone();
    let dir = tempfile::tempdir().unwrap();
    let bare = named("temurin-21").bare(dir.path());
    let rules = dir.path().join("rules.toml");
    let drop = "[[rule]]\naction = \"drop\"\nwhen = { \"service.name\" = \"^left-alone$\" }\n";
    fs::write(&rules, drop).unwrap();
    let taken = [(); 3].map(|()| Load::start(&bare, "-XX:+UseSerialGC"));
    // This JVM runs another file, which would cause a message of its own.
    let folder = dir.path().join("other");
    fs::create_dir(&folder).unwrap();
    let other = named("temurin-17").bare(&folder);
    let dropped = Load::start(&other, "-XX:+UseSerialGC -Dotel.service.name=left-alone");
    let mut command = Command::new(binary("jvmprobed"));
    command.args(["--listen", "127.0.0.1:0", "--dir"]).arg(dir.path().join("store"));
    command.arg("--config").arg(&rules);
    let daemon = Tool::spawn(command);
    daemon.signal(Signal::TERM);
    let said = daemon.wait().stderr;
    let about = |load: &Load| said.matches(&format!("process {}", load.pid())).count();
    for line in ["not tracing process", "from the JVM's own counters", "not recording the code"] {
        assert_eq!(said.matches(line).count(), 1, "{line}: {said}");
    }
    assert_eq!(taken.iter().map(about).sum::<usize>(), 3, "{said}");
    assert_eq!(about(&dropped), 0, "{said}");
    assert!(said.contains("Tracing all JVMs on this host, 3 now"), "{said}");
}

/// In a UTS namespace of its own, as in a container, the daemon reports the host's name.
#[test]
fn host_name_is_that_outside_the_daemon_container() {
    run_beside_others();
    let load = Load::start(named("temurin-21"), "-XX:+UseSerialGC");
    let outside = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for (node, expected) in [("", outside.trim()), ("node-7", "node-7")] {
        if node.is_empty() && fs::File::open("/proc/1/ns/uts").is_err() {
            println!("not tested without NODE_NAME: the namespaces of PID 1 cannot be opened here");
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let mut command = Command::new("unshare");
        command.args(["--uts", "sh", "-c", "hostname inside; exec \"$0\" \"$@\""]);
        command.arg(binary("jvmprobed")).args(["--config", "/dev/null", "--listen", &listen]);
        command.arg("--dir").arg(dir.path().join("store")).env("NODE_NAME", node);
        let daemon = Tool::spawn(command);
        let metrics = scrape::get(&listen);
        let of = format!("pid=\"{}\"", load.pid());
        let is_info = |line: &&str| line.starts_with("jvmprobe_jvm_info{") && line.contains(&of);
        let info = metrics.lines().find(is_info).unwrap_or_else(|| panic!("{metrics}"));
        assert!(info.contains(&format!("host_name=\"{expected}\"")), "{info}");
        daemon.signal(Signal::TERM);
        assert!(daemon.wait().status.success());
    }
}

/// The JVM is in a control group like that of a container. Nothing else of a container is needed.
#[test]
fn container_id_is_read_from_the_control_group() {
    run_beside_others();
    let pod = match Pod::create() {
        Ok(pod) => pod,
        Err(error) => {
            println!("NOT TESTED: no control groups: {error}");
            return;
        }
    };
    let mut load = Load::start(named("temurin-21"), "-XX:+UseSerialGC");
    pod.add(load.pid());
    let identity = identity(&load);
    let attribute = |key: &str| identity.attributes.get(key).map_or("", String::as_str);
    let container = (attribute("container.id"), attribute("container.runtime"));
    assert_eq!(container, (&*pod.container_id, "cri-o"));
    let of_pod = (attribute("k8s.pod.uid"), attribute("k8s.pod.qos_class"));
    assert_eq!(of_pod, (&*pod.uid, "Guaranteed"));
    load.kill();
}

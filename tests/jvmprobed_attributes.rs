//! The attributes of a JVM in a pod, as an OTLP receiver gets them: what the host knows, what the daemon's environment
//! sets, and what the JVM claims in its environment and in a process context.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "reasons for skipping are printed")]

use std::{fs, net::TcpListener, path::Path, process::Command};

use jvmprobe_tests::{
    fake,
    load::Load,
    pod::Pod,
    receiver::Receiver,
    run_beside_others,
    runtimes::named,
    scrape,
    tool::{Tool, binary},
};
use rustix::process::Signal;
use serde_json::Value;

/// Returns a field of a protobuf message with bytes, of at most 16,383 bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let size = [bytes.len() as u8 | 0x80, (bytes.len() >> 7) as u8];
    [&[number << 3 | 2], &size[..], bytes].concat()
}

/// Returns a process context with these attributes, and with a list that is left out.
fn process_context(attributes: &[(&str, &str)]) -> Vec<u8> {
    let pair = |(key, value): &(&str, &str)| {
        let value = field(1, value.as_bytes());
        field(1, &[field(1, key.as_bytes()), field(2, &value)].concat())
    };
    let list = field(5, &field(1, &field(1, b"-Dpassword=hunter2")));
    let list = field(1, &[field(1, b"process.command_args"), field(2, &list)].concat());
    let all: Vec<_> = attributes.iter().map(pair).chain([list]).collect();
    field(1, &all.concat())
}

/// Starts a JVM that publishes a process context.
fn start_jvm(dir: &Path) -> Load {
    let library = dir.join("context.so");
    fake::compile("process_context.c", &["-shared", "-fPIC"], &library);
    let context = dir.join("context");
    let published = process_context(&[
        ("service.name", "shop"),
        ("service.instance.id", "627cc493-f310-47de-96bd-71410b7dec09"),
        ("service.version", "2-of-context"),
        ("k8s.pod.name", "usurped-pod"),
        ("k8s.pod.uid", "00000000-0000-0000-0000-000000000000"),
        ("container.id", "usurped-container"),
        ("container.image.name", "registry.example/shop"),
        ("host.name", "usurped-host"),
        ("process.command_line", "java -Dpassword=hunter2"),
        ("telemetry.sdk.name", "opentelemetry"),
    ]);
    fs::write(&context, published).unwrap();
    let mut command = named("temurin-21").command();
    let claims = "service.version=1-of-environment,k8s.namespace.name=usurped,\
                  k8s.statefulset.name=claimed,deployment.environment.name=claimed";
    command.env("OTEL_RESOURCE_ATTRIBUTES", claims);
    command.env("LD_PRELOAD", library).env("CONTEXT", context).env("PASSWORD", "hunter2");
    command.args(["-XX:+UseSerialGC", "-Dpassword=hunter2"]);
    Load::spawn(command)
}

/// Returns the distinct resources of received profiles and metrics that have this PID.
fn resources(requests: &[Value], pid: u32) -> Vec<&Value> {
    let parts = requests.iter().flat_map(|request| [&request["profiles"], &request["metrics"]]);
    let all = parts.filter_map(Value::as_array).flatten().map(|part| &part["resource"]);
    let mut distinct = Vec::new();
    for resource in all.filter(|resource| resource["process.pid"] == pid) {
        if !distinct.contains(&resource) {
            distinct.push(resource);
        }
    }
    distinct
}

#[test]
fn otlp_resource_has_what_the_host_knows_and_then_what_the_jvm_claims() {
    run_beside_others();
    let pod = match Pod::create() {
        Ok(pod) => pod,
        Err(error) => {
            println!("NOT TESTED: no control groups: {error}");
            return;
        }
    };
    let dir = tempfile::tempdir().unwrap();
    let mut load = start_jvm(dir.path());
    let pid = load.pid();
    pod.add(pid);
    let logs = dir.path().join("log");
    pod.create_logs(&logs, ("prod", "shop-5d78c9869d-x7k2p"), &["app", "sidecar"]);

    let receiver = Receiver::start(None);
    // Only this JVM is in a pod of this Deployment, which its name shows.
    let config = dir.path().join("config");
    let rule = "action = \"select\"\nwhen = { \"k8s.deployment.name\" = \"^shop$\", \
                \"k8s.pod.uid\" = \"UID\" }\n";
    let options = "[take]\nallocation = false\nfrequency = 199\n";
    fs::write(&config, format!("{options}[[rule]]\n{}", rule.replace("UID", &pod.uid))).unwrap();
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut command = Command::new("unshare");
    // Only the daemon sees these directories.
    command.args(["--mount", "sh", "-c", "mount --bind \"$LOGS\" /var/log && exec \"$0\" \"$@\""]);
    command.arg(binary("jvmprobed")).arg("--config").arg(config).args(["--listen", &listen]);
    command.arg("--dir").arg(dir.path().join("store")).args(["--max-cpu", "200"]);
    command.arg("--push").arg(format!("otlp=http://127.0.0.1:{}", receiver.http));
    command.env("LOGS", &logs).env("NODE_NAME", "node-7");
    let own = "cloud.provider=aws,cloud.region=eu-west-1,deployment.environment.name=prod,\
               k8s.pod.name=jvmprobed-1,service.namespace=monitoring";
    command.env("OTEL_RESOURCE_ATTRIBUTES", own);
    let daemon = Tool::spawn(command);
    load.go(2.0);
    let metrics = scrape::get(&listen);
    daemon.signal(Signal::TERM);
    let output = daemon.wait();
    assert!(output.status.success(), "{output:?}");
    let requests = receiver.requests();
    let text = serde_json::to_string(&requests).unwrap();
    assert!(!text.contains("hunter2") && !text.contains("usurped"), "{text}");

    let all = resources(&requests, pid);
    assert!(requests.iter().any(|request| request["profiles"].is_array()), "{text}");
    let [resource] = all[..] else { panic!("{all:?}") };
    for (key, expected) in [
        ("container.id", &*pod.container_id),
        ("container.runtime.name", "cri-o"),
        ("container.image.name", "registry.example/shop"),
        ("cloud.provider", "aws"),
        ("cloud.region", "eu-west-1"),
        ("deployment.environment.name", "prod"),
        ("host.name", "node-7"),
        ("k8s.container.name", "app"),
        ("k8s.deployment.name", "shop"),
        ("k8s.namespace.name", "prod"),
        ("k8s.node.name", "node-7"),
        ("k8s.pod.name", "shop-5d78c9869d-x7k2p"),
        ("k8s.pod.uid", &pod.uid),
        ("k8s.replicaset.name", "shop-5d78c9869d"),
        ("k8s.statefulset.name", "claimed"),
        ("os.type", "linux"),
        ("process.executable.name", "java"),
        ("service.instance.id", "627cc493-f310-47de-96bd-71410b7dec09"),
        ("service.name", "shop"),
        ("service.version", "1-of-environment"),
    ] {
        assert_eq!(resource[key], expected, "{key}: {resource}");
    }
    let uid = rustix::process::getuid().as_raw();
    assert_eq!(resource["process.user.id"], uid);
    let created: jiff::Timestamp =
        resource["process.creation.time"].as_str().unwrap().parse().unwrap();
    assert!(jiff::Timestamp::now().duration_since(created).as_secs() < 3600, "{created}");
    assert!(resource["process.command"].as_str().unwrap().ends_with("bin/java"), "{resource}");
    assert!(resource["host.arch"].is_string(), "{resource}");
    for absent in ["process.owner", "telemetry.sdk.name", "service.namespace"] {
        assert!(resource[absent].is_null(), "{absent}: {resource}");
    }

    // The daemon's own resource has all attributes of its environment.
    let is_own = |resource: &&Value| resource["service.name"] == "jvmprobed";
    let points = requests.iter().filter_map(|request| request["metrics"].as_array()).flatten();
    let own = points.map(|point| &point["resource"]).find(is_own).unwrap();
    for (key, expected) in [
        ("cloud.region", "eu-west-1"),
        ("host.name", "node-7"),
        ("k8s.pod.name", "jvmprobed-1"),
        ("service.namespace", "monitoring"),
    ] {
        assert_eq!(own[key], expected, "{own}");
    }

    let is_info = |line: &&str| line.starts_with("jvmprobe_jvm_info{");
    let info: Vec<_> = metrics.lines().filter(is_info).collect();
    let [info] = info[..] else { panic!("{metrics}") };
    for label in [
        "jvm=\"shop\"",
        "k8s_container_name=\"app\"",
        "k8s_deployment_name=\"shop\"",
        "k8s_node_name=\"node-7\"",
        "cloud_region=\"eu-west-1\"",
    ] {
        assert!(info.contains(label), "{label}: {info}");
    }
}

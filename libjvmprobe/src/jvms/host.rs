//! Attributes of this host, which all its JVMs share: name, ID, processor, operating system, node and cloud.
//!
//! Sources: OpenTelemetry's semantic conventions (host, os, k8s.node, cloud), machine-id(5), os-release(5).

use std::{
    collections::BTreeMap, env, fs, os::fd::AsFd, path::Path, process, sync::OnceLock, thread,
};

use rustix::{
    system::uname,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::{
    Pid,
    jvms::{cloud, pod},
    process::{
        Process,
        root::{Root, text},
        service::{Attributes, bounded, resource_attributes},
    },
};

/// Environment variable of this process with attributes of the host: "Resource SDK" in OpenTelemetry's specification.
const CONFIGURED: &str = "OTEL_RESOURCE_ATTRIBUTES";
/// Environment variable of this process with the name of its Kubernetes node, which our manifest sets.
const NODE: &str = "NODE_NAME";
/// Beginnings of the names of attributes that describe this process and not its host.
const OWN: [&str; 6] = ["container.", "jvm.", "process.", "service.", "systemd.", "telemetry."];
/// Maximum size of a file about the host in bytes.
const MAX_FILE: u64 = 64 << 10;

/// Returns the attributes of this host. Those in this process's `OTEL_RESOURCE_ATTRIBUTES` override those that are
/// detected. The first call reads files of PID 1, so it needs the right to read processes of other users.
pub fn host_attributes() -> &'static Attributes {
    static ATTRIBUTES: OnceLock<Attributes> = OnceLock::new();
    ATTRIBUTES.get_or_init(|| {
        let mut attributes = detected();
        let configured = configured_attributes().iter().filter(|(key, _)| is_of_host(key));
        attributes.extend(configured.map(|(key, value)| (key.clone(), value.clone())));
        attributes
    })
}

/// Returns the attributes in this process's `OTEL_RESOURCE_ATTRIBUTES`.
pub fn configured_attributes() -> &'static Attributes {
    static CONFIGURED_ATTRIBUTES: OnceLock<Attributes> = OnceLock::new();
    CONFIGURED_ATTRIBUTES.get_or_init(|| {
        let text = env::var(CONFIGURED).unwrap_or_default();
        resource_attributes(&text).unwrap_or_else(|| {
            log::warn!("ignoring {CONFIGURED}: expected KEY=VALUE,KEY=VALUE");
            Attributes::new()
        })
    })
}

/// Returns whether an attribute describes the host, and not this process or its pod.
fn is_of_host(key: &str) -> bool {
    match key.strip_prefix("k8s.") {
        Some(rest) => rest.starts_with("node.") || rest.starts_with("cluster."),
        None => !OWN.iter().any(|begin| key.starts_with(begin)),
    }
}

fn detected() -> Attributes {
    let file = |path: &str, max: u64| file_of_host(Path::new(path), max);
    let os_release = file("/etc/os-release", MAX_FILE).unwrap_or_default();
    let os_release = parse_os_release(&os_release);
    let os = |key: &str| os_release.get(key).cloned().unwrap_or_default();
    let mut attributes = Attributes::new();
    for (key, value) in [
        ("host.arch", architecture(&uname().machine().to_string_lossy()).to_owned()),
        (
            "host.id",
            file("/etc/machine-id", MAX_FILE)
                .filter(|text| is_machine_id(text))
                .unwrap_or_default(),
        ),
        ("host.name", host_name().to_owned()),
        ("k8s.node.name", env::var(NODE).unwrap_or_default()),
        ("os.description", os("PRETTY_NAME")),
        ("os.name", os("NAME")),
        ("os.type", "linux".to_owned()),
        ("os.version", os("VERSION_ID")),
    ] {
        let value = bounded(&value);
        if !value.is_empty() {
            attributes.insert(key.to_owned(), value);
        }
    }
    let dmi =
        |field: &str| fs::read_to_string(format!("/sys/class/dmi/id/{field}")).unwrap_or_default();
    let instance_data = file(cloud::INSTANCE_DATA, cloud::MAX_INSTANCE_DATA);
    // The ID of a cloud's instance replaces the ID of the machine.
    attributes.extend(cloud::attributes(dmi, instance_data.as_deref()));
    attributes
}

/// Returns the text of a file of the host: of PID 1, or of this process if that of PID 1 cannot be opened. In a
/// container that shares the host's PID namespace, PID 1 sees the host's files, and this process does not.
pub(super) fn file_of_host(path: &Path, max: u64) -> Option<String> {
    let root = root_of(Pid(1)).or_else(|| root_of(Pid(process::id())))?;
    text(&root.file(path).ok()?, max).ok()
}

/// Returns the attributes of a pod of this host, from the kubelet's directories as this process or else PID 1 sees them.
pub(super) fn pod_attributes(uid: &str, container_id: Option<&str>) -> Option<Attributes> {
    let mut roots = [process::id(), 1].into_iter().filter_map(|pid| root_of(Pid(pid)));
    roots.find_map(|root| pod::attributes(&root, Path::new(pod::LOGS), uid, container_id))
}

fn root_of(pid: Pid) -> Option<Root> {
    Root::open(&Process::open(pid).ok()?).ok()
}

/// Returns whether a machine ID is set. An image that has not booted yet may have another text, see machine-id(5).
fn is_machine_id(text: &str) -> bool {
    let id = text.trim();
    id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Parses os-release(5): lines with `KEY=VALUE`, where the value may be in quotes.
fn parse_os_release(text: &str) -> BTreeMap<&str, String> {
    let pairs = text.lines().filter_map(|line| line.trim().split_once('='));
    let unquoted = |value: &str| {
        let inner = ['"', '\''].iter().find_map(|&c| value.strip_prefix(c)?.strip_suffix(c));
        // Within quotes, a backslash precedes a special character.
        inner.unwrap_or(value).replace('\\', "")
    };
    pairs.map(|(key, value)| (key, unquoted(value))).collect()
}

/// Returns the value of `host.arch` for a machine name of uname(2).
fn architecture(machine: &str) -> &str {
    match machine {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "ppc64le" => "ppc64",
        other => other,
    }
}

/// Returns the name of this host: the value of `NODE_NAME` in our environment, which the daemon's Kubernetes
/// manifest sets. If it is not set, returns the host name that PID 1 sees. In a container that shares the
/// host's PID namespace, PID 1 is a process of the host and sees the name of the host. If PID 1's host name
/// cannot be read, returns the host name that this process sees.
pub fn host_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let node = env::var(NODE).ok().filter(|name| !name.is_empty());
        let name = node.or_else(|| thread::spawn(name_of_init).join().ok().flatten());
        let own = || uname().nodename().to_string_lossy().into_owned();
        bounded(&name.unwrap_or_else(own))
    })
}

/// Returns the host name in the UTS namespace of PID 1. Must run in a thread of its own, because the thread
/// stays in that namespace.
fn name_of_init() -> Option<String> {
    let namespace = fs::File::open("/proc/1/ns/uts").ok()?;
    let kind = Some(LinkNameSpaceType::HostNameAndNISDomainName);
    move_into_link_name_space(namespace.as_fd(), kind).ok()?;
    Some(uname().nodename().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_attributes_of_the_daemon_are_not_those_of_jvms() {
        for (key, expected) in [
            ("cloud.region", true),
            ("deployment.environment.name", true),
            ("host.name", true),
            ("k8s.cluster.name", true),
            ("k8s.node.name", true),
            ("team", true),
            ("k8s.pod.name", false),
            ("k8s.daemonset.name", false),
            ("k8s.nodes", false),
            ("service.name", false),
            ("container.id", false),
            ("process.pid", false),
        ] {
            assert_eq!(is_of_host(key), expected, "{key}");
        }
    }

    #[test]
    fn os_release_values_are_unquoted() {
        let text = "# comment\nNAME=\"Debian GNU/Linux\"\nVERSION_ID='13'\nID=debian\nPRETTY_NAME=\"a \\\"b\\\"\"\n";
        let all = parse_os_release(text);
        assert_eq!(all["NAME"], "Debian GNU/Linux");
        assert_eq!((&*all["VERSION_ID"], &*all["ID"]), ("13", "debian"));
        assert_eq!(all["PRETTY_NAME"], "a \"b\"");
    }

    #[test]
    fn host_has_a_name_a_processor_and_a_system() {
        let attributes = host_attributes();
        assert_eq!(attributes["os.type"], "linux");
        assert_eq!(attributes["host.name"], host_name());
        assert!(!attributes["host.arch"].is_empty());
        let name = file_of_host(Path::new("/etc/os-release"), MAX_FILE);
        assert_eq!(
            attributes.contains_key("os.description"),
            name.is_some_and(|text| text.contains("PRETTY_NAME="))
        );
    }
}

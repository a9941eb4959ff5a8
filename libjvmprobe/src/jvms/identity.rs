//! Identity of a JVM as attributes of OpenTelemetry's semantic conventions.
//!
//! Attributes observed from outside override those that a JVM sets in its own environment. The attributes in
//! [`TRUSTED_ATTRIBUTES`] are never read from the environment. Container, pod and unit, for example, are
//! derived from control groups, because a process cannot choose its control group.

use std::{
    fs,
    io::{self, Read},
    os::fd::AsFd,
    path::Path,
    sync::OnceLock,
    thread,
};

use procfs::{boot_time_secs, ticks_per_second};
use rustix::{
    system::uname,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::{
    Error, Result,
    hotspot::HotSpot,
    process::{
        Process,
        cgroup::Container,
        reader::ProcFile,
        root::{self, Root},
        service::{Attributes, Service, bounded},
    },
};

/// Maximum number of bytes read of an environment and of a control group file.
const MAX_BYTES: u64 = 2 << 20;

/// Attributes that a JVM cannot set itself.
const TRUSTED_ATTRIBUTES: [&str; 11] = [
    "container.id",
    "container.runtime",
    "host.name",
    "k8s.namespace.name",
    "k8s.pod.name",
    "k8s.pod.qos_class",
    "k8s.pod.uid",
    "process.executable.name",
    "process.executable.path",
    "process.pid",
    "systemd.unit",
];

/// The attributes that JVMs most often set themselves, and those that are derived from a JVM's arguments.
const UNTRUSTED_ATTRIBUTES: [&str; 7] = [
    "deployment.environment",
    "deployment.environment.name",
    "jvm.main",
    "service.instance.id",
    "service.name",
    "service.namespace",
    "service.version",
];

/// Attributes that require reading the JVM's memory.
pub const RUNTIME: [&str; 4] = [
    "process.runtime.name",
    "process.runtime.version",
    "process.runtime.description",
    "jvm.gc.name",
];

/// Returns the names of all attributes that are detected, and of those that programs set most often.
pub fn known_attributes() -> impl Iterator<Item = &'static str> {
    TRUSTED_ATTRIBUTES.into_iter().chain(RUNTIME).chain(UNTRUSTED_ATTRIBUTES)
}

/// Folder in which the kubelet keeps a subfolder for each pod of its node, named NAMESPACE_NAME_UID (kubernetes,
/// pkg/kubelet/kuberuntime/helpers.go: BuildPodLogsDirectory). Containers cannot write there.
const PODS: &str = "/var/log/pods";
/// Maximum number of entries of [`PODS`] that are searched.
const MAX_PODS: usize = 10_000;

/// File in a container that holds its Kubernetes namespace.
const NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Identity of a JVM. It stays the same as long as the process runs the same program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JvmIdentity {
    /// `service.name`.
    pub name: String,
    /// Start time of the process, in nanoseconds since 1970.
    pub started_ns: u64,
    /// All attributes, by the names of the conventions.
    pub attributes: Attributes,
    /// Namespace of its pod, read from a file in the container if the host does not show the namespace. This
    /// value is not trusted: it may be displayed, but no decision may depend on it.
    pub claimed_namespace: Option<String>,
}

impl JvmIdentity {
    /// Identifies a JVM from outside: by its arguments, its environment and its control groups. Attributes that cannot
    /// be read are left out.
    ///
    /// # Errors
    /// [`Error::Io`] if the process's memory does not answer within a second. The attributes are then unknown, so that
    /// no rule must be applied to them.
    pub fn of(process: &Process) -> Result<Self> {
        let arguments = unless_slow(process, process.arguments())?;
        let service = Service::of(&arguments, &bytes_of(process, "environ")?);
        let container = Container::parse(&String::from_utf8_lossy(&bytes_of(process, "cgroup")?));
        let mut attributes = service.attributes;
        attributes
            .retain(|key, _| !TRUSTED_ATTRIBUTES.contains(&key.as_str()) && key != "jvm.gc.name");
        let pod = container.pod.as_deref().and_then(|uid| pod_of(Path::new(PODS), uid));
        let claimed_namespace = match (&container.pod, &pod) {
            (Some(_), None) => namespace(process).map(|name| bounded(&name)),
            _ => None,
        };
        let mut add = |key: &str, value: &str| {
            if !value.is_empty() {
                attributes.insert(key.into(), bounded(value));
            }
        };
        add("service.name", &service.name);
        add("host.name", host_name());
        add("container.id", container.container.as_deref().unwrap_or_default());
        add("container.runtime", container.runtime.unwrap_or_default());
        add("k8s.pod.uid", container.pod.as_deref().unwrap_or_default());
        add("k8s.pod.qos_class", container.qos.unwrap_or_default());
        if let Some((namespace, name)) = &pod {
            add("k8s.namespace.name", namespace);
            add("k8s.pod.name", name);
        }
        add("systemd.unit", &container.service.map(|name| name + ".service").unwrap_or_default());
        add("process.pid", &process.pid.to_string());
        let executable = fs::read_link(format!("/proc/{}/exe", process.pid)).unwrap_or_default();
        add("process.executable.path", &executable.to_string_lossy());
        let name = executable.file_name().unwrap_or_default();
        add("process.executable.name", &name.to_string_lossy());
        add("jvm.main", if service.main.is_empty() { &process.comm } else { &service.main });
        let started_ns = started(process.start_ticks);
        Ok(Self { name: service.name, started_ns, attributes, claimed_namespace })
    }

    /// Adds the runtime's name and version and the collector, which were read from the JVM's memory.
    pub fn add_runtime(&mut self, hotspot: &HotSpot) {
        let (name, version) = runtime(&hotspot.version);
        let values = [name, version, &hotspot.version, hotspot.collector.name()];
        for (key, value) in RUNTIME.into_iter().zip(values) {
            if !value.is_empty() {
                self.attributes.insert(key.into(), bounded(value));
            }
        }
    }
}

/// Returns the content of a file in /proc/PID, at most [`MAX_BYTES`]; empty if it cannot be read.
fn bytes_of(process: &Process, name: &str) -> Result<Vec<u8>> {
    let read = || {
        let mut bytes = Vec::new();
        ProcFile::open(process.pid, name)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    unless_slow(process, read())
}

/// Returns what was read, or the default value if it cannot be read; an error if the process does not answer.
fn unless_slow<T: Default>(process: &Process, read: io::Result<T>) -> Result<T> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            Err(Error::io(format!("read the attributes of process {}", process.pid), error))
        }
        other => Ok(other.unwrap_or_default()),
    }
}

/// Returns the name of this host: the value of `NODE_NAME` in our environment, which the daemon's Kubernetes
/// manifest sets. If it is not set, returns the host name that PID 1 sees. In a container that shares the
/// host's PID namespace, PID 1 is a process of the host and sees the name of the host. If PID 1's host name
/// cannot be read, returns the host name that this process sees.
pub fn host_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let node = std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
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

/// Returns the namespace and the name of a pod, found by the UID in the name of its kubelet folder.
fn pod_of(folder: &Path, uid: &str) -> Option<(String, String)> {
    let entries = fs::read_dir(folder).ok()?.flatten().take(MAX_PODS);
    entries.into_iter().find_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        // Neither a namespace nor the name of a pod contains an underscore.
        let (rest, of) = name.rsplit_once('_')?;
        let (namespace, pod) = rest.split_once('_').filter(|_| of == uid)?;
        Some((namespace.to_owned(), pod.to_owned()))
    })
}

/// Returns the namespace from the file [`NAMESPACE`] in the container.
fn namespace(process: &Process) -> Option<String> {
    /// Maximum length of a DNS label.
    const MAX_LABEL: u64 = 63;
    let file = Root::open(process).ok()?.file(Path::new(NAMESPACE)).ok()?;
    root::text(&file, MAX_LABEL).ok()
}

/// Derives `java.runtime.name` and `java.runtime.version` from the name and version of the virtual machine,
/// such as `OpenJDK 64-Bit Server VM 17.0.15+6`.
fn runtime(version: &str) -> (&'static str, &str) {
    let name = match version {
        _ if version.starts_with("OpenJDK") => "OpenJDK Runtime Environment",
        _ if version.starts_with("Java HotSpot") => "Java(TM) SE Runtime Environment",
        _ => "",
    };
    (name, version.rsplit(' ').next().unwrap_or_default())
}

/// Converts the start time of a process from ticks since boot to nanoseconds since 1970, accurate to one
/// second. Adds the boot time that the kernel reports, because it is the same in every call. A boot time
/// calculated as the difference of two clocks would vary.
fn started(ticks: u64) -> u64 {
    let since_boot = u128::from(ticks) * 1_000_000_000 / u128::from(ticks_per_second().max(1));
    let boot = u128::from(boot_time_secs().unwrap_or(0)) * 1_000_000_000;
    u64::try_from(boot + since_boot).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vm_name_maps_to_runtime_name_and_version() {
        let name = "OpenJDK Runtime Environment";
        assert_eq!(runtime("OpenJDK 64-Bit Server VM 17.0.15+6"), (name, "17.0.15+6"));
        assert_eq!(runtime("").0, "");
    }

    #[test]
    fn pod_names_are_read_from_the_kubelet_directory() {
        let folder = tempfile::tempdir().unwrap();
        let uid = "0f3b1c5e-86a2-4b0f-9d3e-2b9a0c1d2e3f";
        for name in [format!("prod_shop-0_{uid}"), "kube-system_dns_1234".into(), "x".into()] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        assert_eq!(pod_of(folder.path(), uid), Some(("prod".into(), "shop-0".into())));
        assert_eq!(pod_of(folder.path(), "1234"), Some(("kube-system".into(), "dns".into())));
        assert_eq!(pod_of(folder.path(), "shop-0"), None);
        assert_eq!(pod_of(Path::new("/nowhere"), uid), None);
    }

    #[test]
    fn attributes_that_are_not_answered_in_time_are_an_error() {
        let own = Process::open(crate::Pid(std::process::id())).unwrap();
        let failed = |kind: io::ErrorKind| Err::<Vec<u8>, _>(kind.into());
        assert!(unless_slow(&own, failed(io::ErrorKind::TimedOut)).is_err());
        let unreadable = unless_slow(&own, failed(io::ErrorKind::PermissionDenied));
        assert_eq!(unreadable.unwrap(), Vec::<u8>::new());
        assert!(!bytes_of(&own, "environ").unwrap().is_empty());
    }

    #[test]
    fn process_start_time_is_past_and_constant() {
        let own = Process::open(crate::Pid(std::process::id())).unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let age = now.as_nanos() - u128::from(started(own.start_ticks));
        assert!(age < 3600 * 1_000_000_000, "{age}");
        let first = started(own.start_ticks);
        assert!((0..100).all(|_| started(own.start_ticks) == first), "{first}");
    }
}

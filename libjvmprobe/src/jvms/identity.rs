//! Identity of a JVM as attributes of OpenTelemetry's semantic conventions.
//!
//! Attributes observed from outside override those that a JVM claims: in its environment, or in the process context that
//! it publishes in its memory. A JVM cannot set the attributes in [`HOST_ATTRIBUTES`] and [`CLAIMABLE_ATTRIBUTES`].
//! Container, pod and unit, for example, are derived from control groups, of which names count only as far as root has
//! given them: see [`cgroup`]. A claim of one of the [`CLAIMABLE_ATTRIBUTES`] that the host does not know is kept apart, for display only: see
//! [`JvmIdentity::claimed`].

use std::{
    fs,
    io::{self, Read},
    path::Path,
};

use jiff::Timestamp;
use procfs::{boot_time_secs, ticks_per_second};

use crate::{
    Error, Result,
    hotspot::HotSpot,
    jvms::host::{file_of_host, host_attributes, pod_attributes},
    process::{
        Process, cgroup, context,
        reader::ProcFile,
        root::{self, Root},
        service::{Attributes, Service, bounded},
    },
};

/// Maximum number of bytes read of an environment.
const MAX_BYTES: u64 = 2 << 20;

/// Maximum size of the attributes that a JVM sets in its arguments and environment, and of those that it claims, in
/// bytes after escaping. Programs use less than one kilobyte. The daemon stores and sends the attributes with every
/// window.
const MAX_ATTRIBUTE_BYTES: usize = 16 << 10;

/// Attributes that a JVM can neither set itself nor claim. Limited resources are divided by container, pod and unit, so
/// their IDs are among these attributes.
const HOST_ATTRIBUTES: [&str; 22] = [
    "container.id",
    "container.runtime",
    "container.runtime.name",
    "host.arch",
    "host.id",
    "host.name",
    "host.type",
    "jvmprobe.tenant",
    "k8s.pod.qos_class",
    "k8s.pod.uid",
    "os.description",
    "os.name",
    "os.type",
    "os.version",
    "process.creation.time",
    "process.executable.name",
    "process.executable.path",
    "process.owner",
    "process.pid",
    "process.user.id",
    "process.vpid",
    "systemd.unit",
];

/// Attributes that a JVM cannot set itself, but may claim for display if the host does not know them.
const CLAIMABLE_ATTRIBUTES: [&str; 13] = [
    "cloud.account.id",
    "cloud.availability_zone",
    "cloud.platform",
    "cloud.provider",
    "cloud.region",
    "k8s.container.name",
    "k8s.cronjob.name",
    "k8s.deployment.name",
    "k8s.job.name",
    "k8s.namespace.name",
    "k8s.node.name",
    "k8s.pod.name",
    "k8s.replicaset.name",
];

/// Beginnings of the names of attributes that are not adopted from a process context: command lines, which may contain
/// secrets, attributes that the host knows, and the SDK of the program, which does not send our data.
const NOT_OF_CONTEXT: [&str; 9] = [
    "container.id",
    "container.runtime",
    "host.",
    "jvm.",
    "jvmprobe.",
    "os.",
    "process.",
    "systemd.",
    "telemetry.",
];

/// The attributes that JVMs most often set themselves, and those that are derived from a JVM's arguments.
const UNTRUSTED_ATTRIBUTES: [&str; 8] = [
    "deployment.environment",
    "deployment.environment.name",
    "jvm.main",
    "process.command",
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
    HOST_ATTRIBUTES
        .into_iter()
        .chain(CLAIMABLE_ATTRIBUTES)
        .chain(RUNTIME)
        .chain(UNTRUSTED_ATTRIBUTES)
}

/// File in a container that holds its Kubernetes namespace.
const NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Identity of a JVM. It stays the same as long as the process runs the same program, but more may become known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JvmIdentity {
    /// `service.name`.
    pub name: String,
    /// Whether an argument or a variable sets the name. If not, the name is that of the jar or main class.
    pub is_name_set: bool,
    /// Start time of the process, in nanoseconds since 1970.
    pub started_ns: u64,
    /// All attributes, by the names of the conventions.
    pub attributes: Attributes,
    /// Attributes that only the JVM or its container claims: those of its process context, and trusted attributes that
    /// the host does not know. They may be displayed, but no decision may depend on them.
    pub claimed: Attributes,
    /// Whether the JVM's process context was read.
    pub has_context: bool,
    /// Number of attributes that were dropped because the JVM sets or claims more than `MAX_ATTRIBUTE_BYTES`.
    pub dropped_attributes: u64,
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
        let mut service = Service::of(&arguments, &bytes_of(process, "environ")?);
        service.attributes.retain(|key, _| !imitates_host(key));
        let dropped_attributes = limit(&mut service.attributes);
        let container = cgroup::of(process.pid);
        let started_ns = started(process.start_ticks);
        let (mut claimed, mut attributes): (Attributes, Attributes) =
            service.attributes.into_iter().partition(|(key, _)| is_trusted(key));
        claimed.retain(|key, _| may_be_claimed(key, container.pod.is_some()));
        attributes.remove("jvm.gc.name");
        attributes.extend(host_attributes().clone());
        let container_id = container.container.as_deref();
        if let Some(uid) = &container.pod {
            attributes.extend(pod_attributes(uid, container_id).unwrap_or_default());
            if !attributes.contains_key("k8s.namespace.name") {
                let mounted = namespace(process).map(|name| bounded(&name));
                claimed.extend(mounted.map(|name| ("k8s.namespace.name".to_owned(), name)));
            }
        }
        let mut add = |key: &str, value: &str| {
            if !value.is_empty() {
                attributes.insert(key.into(), bounded(value));
            }
        };
        add("service.name", &service.name);
        add("container.id", container_id.unwrap_or_default());
        for key in ["container.runtime", "container.runtime.name"] {
            add(key, container.runtime.unwrap_or_default());
        }
        add("k8s.pod.uid", container.pod.as_deref().unwrap_or_default());
        add("k8s.pod.qos_class", container.qos.unwrap_or_default());
        if container_id.is_none() {
            // User IDs in containers have other names.
            add("process.owner", &user_name(process.uid).unwrap_or_default());
        }
        // Pod, container and unit have attributes of their own.
        if container.user.is_some() || !container.path.is_empty() {
            add("jvmprobe.tenant", &container.tenant());
        }
        add("systemd.unit", &container.service.map(|name| name + ".service").unwrap_or_default());
        add("process.pid", &process.pid.to_string());
        add("process.user.id", &process.uid.to_string());
        if process.ns_pid.0 != process.pid.0 {
            add("process.vpid", &process.ns_pid.0.to_string());
        }
        add("process.creation.time", &time_of(started_ns));
        add("process.command", command(&arguments));
        let executable = fs::read_link(format!("/proc/{}/exe", process.pid)).unwrap_or_default();
        add("process.executable.path", &executable.to_string_lossy());
        let name = executable.file_name().unwrap_or_default();
        add("process.executable.name", &name.to_string_lossy());
        add("jvm.main", if service.main.is_empty() { &process.comm } else { &service.main });
        claimed.retain(|key, _| !attributes.contains_key(key));
        let Service { name, is_name_set, .. } = service;
        Ok(Self {
            name,
            is_name_set,
            started_ns,
            attributes,
            claimed,
            has_context: false,
            dropped_attributes,
        })
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

    /// Reads the process context of the JVM and adds its attributes as claims, unless an earlier call has. Returns whether
    /// the JVM has published a context so far. It may publish one later, when an agent starts.
    pub fn read_context(&mut self, process: &Process) -> bool {
        if !self.has_context
            && let Some(context) = context::read(process)
        {
            self.has_context = true;
            self.add_claims(context);
        }
        self.has_context
    }

    fn add_claims(&mut self, context: Attributes) {
        for (key, value) in context {
            let is_in_pod = self.attributes.contains_key("k8s.pod.uid");
            let is_refused = NOT_OF_CONTEXT.iter().any(|begin| key.starts_with(begin))
                || imitates_host(&key)
                || !may_be_claimed(&key, is_in_pod);
            // The name is the only attribute for which a claim can replace a value, see `is_name_set`.
            if !is_refused && (key == "service.name" || !self.attributes.contains_key(&key)) {
                self.claimed.entry(key).or_insert(value);
            }
        }
        self.dropped_attributes += limit(&mut self.claimed);
    }
}

/// Drops attributes until the remaining ones have at most [`MAX_ATTRIBUTE_BYTES`]. Those that name the service or the pod
/// are kept in preference to others. Returns the number of dropped attributes.
fn limit(attributes: &mut Attributes) -> u64 {
    let (mut left, before) = (MAX_ATTRIBUTE_BYTES, attributes.len());
    let is_name = |key: &str| key.starts_with("service.") || key.starts_with("k8s.");
    for of_names in [true, false] {
        attributes.retain(|key, value| {
            if is_name(key) != of_names {
                return true;
            }
            let rest = left.checked_sub(key.len() + value.len());
            left = rest.unwrap_or(left);
            rest.is_some()
        });
    }
    (before - attributes.len()) as u64
}

/// Returns whether only the host determines an attribute: a JVM can neither set it nor claim it, nor choose it in another
/// way, for example by the path of its program.
pub fn is_of_host(key: &str) -> bool {
    HOST_ATTRIBUTES.contains(&key) && !key.starts_with("process.executable.")
}

/// Returns whether a receiver could confuse an attribute that a JVM has chosen with one that only the host determines, or with
/// a label of its own. Receivers replace dots and other characters by underscores, and some ignore the case.
pub fn imitates_host(key: &str) -> bool {
    let is_same = |known: &str| known != key && label_of(known).eq(label_of(key));
    let own = |beginning: &str| label_of(beginning).eq(label_of(key).take(beginning.len()));
    let host = host_attributes().keys().map(String::as_str);
    let mut known =
        HOST_ATTRIBUTES.into_iter().chain(CLAIMABLE_ATTRIBUTES).chain(RUNTIME).chain(host);
    own("__") || (own("jvmprobe.") && !is_trusted(key)) || known.any(is_same)
}

/// Returns the characters of the label that receivers make of an attribute's name.
fn label_of(key: &str) -> impl Iterator<Item = char> {
    key.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
}

/// Returns whether a JVM cannot set an attribute itself.
fn is_trusted(key: &str) -> bool {
    HOST_ATTRIBUTES.contains(&key) || CLAIMABLE_ATTRIBUTES.contains(&key)
}

/// Returns whether a JVM may claim an attribute. Only a JVM in a pod may claim a name of the pod, its container or its
/// controllers.
fn may_be_claimed(key: &str, is_in_pod: bool) -> bool {
    let is_claimable = CLAIMABLE_ATTRIBUTES.contains(&key)
        && (is_in_pod || !key.starts_with("k8s.") || key == "k8s.node.name");
    is_claimable || !is_trusted(key)
}

/// Returns the program's name in a command line without its arguments, which may contain secrets. A program can overwrite
/// its command line, so a text with spaces is left out.
fn command(arguments: &[String]) -> &str {
    let command = arguments.first().map_or("", String::as_str);
    if command.contains(char::is_whitespace) { "" } else { command }
}

/// Returns the name of a user of the host.
pub(crate) fn user_name(uid: u32) -> Option<String> {
    const MAX_PASSWD: u64 = 1 << 20;
    let passwd = file_of_host(Path::new("/etc/passwd"), MAX_PASSWD)?;
    user_in(&passwd, uid).map(str::to_owned)
}

/// Returns the name of a user in the format of passwd(5).
fn user_in(passwd: &str, uid: u32) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

/// Returns a time in the format of RFC 3339.
fn time_of(unix_ns: u64) -> String {
    let time = Timestamp::from_nanosecond(unix_ns.into());
    time.map(|time| format!("{time:.3}")).unwrap_or_default()
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

    fn attributes<const N: usize>(all: [(&str, &str); N]) -> Attributes {
        all.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
    }

    #[test]
    fn claims_neither_override_nor_name_what_identifies_a_tenant() {
        let known = attributes([
            ("k8s.pod.name", "shop-0"),
            ("k8s.pod.uid", "0f3b"),
            ("service.name", "Main"),
            ("service.version", "1"),
        ]);
        let mut identity = JvmIdentity { attributes: known.clone(), ..JvmIdentity::default() };
        identity.claimed = attributes([("k8s.node.name", "of-environment")]);
        identity.add_claims(attributes([
            ("container.id", "1234"),
            ("host.name", "other"),
            ("k8s.deployment.name", "shop"),
            ("k8s.node.name", "of-context"),
            ("k8s.pod.name", "other"),
            ("k8s.pod.uid", "1234"),
            ("process.command_line", "java -Dpassword=hunter2"),
            ("process.runtime.name", "other"),
            ("service.instance.id", "i-1"),
            ("service.name", "shop"),
            ("service.version", "2"),
            ("systemd.unit", "other.service"),
            ("telemetry.sdk.name", "opentelemetry"),
        ]));
        assert_eq!(identity.attributes, known);
        let expected = attributes([
            ("k8s.deployment.name", "shop"),
            ("k8s.node.name", "of-environment"),
            ("service.instance.id", "i-1"),
            ("service.name", "shop"),
        ]);
        assert_eq!(identity.claimed, expected);
    }

    #[test]
    fn excessive_attributes_are_dropped_and_counted() {
        let all = |count: usize| -> Attributes {
            (0..count).map(|i| (format!("{i:03}"), bounded(&"\u{1}".repeat(1024)))).collect()
        };
        // Escaping makes these values four times as long.
        let mut own = all(128);
        own.insert("service.name".into(), "shop".into());
        assert_eq!((limit(&mut own), own.len()), (125, 4));
        assert!(own.contains_key("service.name"));
        let mut identity = JvmIdentity { dropped_attributes: 125, ..JvmIdentity::default() };
        identity.add_claims(all(4));
        assert_eq!((identity.dropped_attributes, identity.claimed.len()), (126, 3));
    }

    #[test]
    fn only_jvms_in_pods_claim_names_of_pods() {
        for (key, in_pod, elsewhere) in [
            ("k8s.namespace.name", true, false),
            ("k8s.deployment.name", true, false),
            ("k8s.node.name", true, true),
            ("cloud.region", true, true),
            ("service.version", true, true),
            ("k8s.pod.uid", false, false),
            ("container.id", false, false),
            ("systemd.unit", false, false),
            ("os.type", false, false),
        ] {
            let may = [true, false].map(|is_in_pod| may_be_claimed(key, is_in_pod));
            assert_eq!(may, [in_pod, elsewhere], "{key}");
        }
    }

    #[test]
    fn other_spellings_of_host_attributes_are_refused() {
        for key in [
            "container_id",
            "K8s.Pod.UID",
            "k8s-pod-uid",
            "k8s_namespace_name",
            "systemd_unit",
            "jvmprobe_tenant",
            "jvmprobe.restarts",
            "process_runtime_name",
            "__session_id__",
            "__name__",
            "._x",
        ] {
            assert!(imitates_host(key), "{key}");
            let mut identity = JvmIdentity::default();
            identity.add_claims(attributes([(key, "victim"), ("team", "a")]));
            assert_eq!(identity.claimed, attributes([("team", "a")]));
        }
        for key in ["container.id", "k8s.pod.name", "service_version", "team", "_x", "app.id"] {
            assert!(!imitates_host(key), "{key}");
        }
    }

    #[test]
    fn command_has_no_arguments() {
        let of = |text: &str| command(&[text.to_owned(), "-Dpassword=x".to_owned()]).to_owned();
        assert_eq!(of("/opt/jdk/bin/java"), "/opt/jdk/bin/java");
        assert_eq!((of("java -Dpassword=x"), command(&[])), (String::new(), ""));
    }

    #[test]
    fn user_is_found_by_its_number() {
        let passwd = "root:x:0:0::/:/bin/sh\nodd\nshop:x:1000:0::/:/bin/false\n";
        assert_eq!(user_in(passwd, 0), Some("root"));
        assert_eq!(user_in(passwd, 1000), Some("shop"));
        assert_eq!(user_in(passwd, 100), None);
    }

    #[test]
    fn creation_time_is_in_rfc_3339() {
        assert_eq!(time_of(1_700_558_734_853_000_000), "2023-11-21T09:25:34.853Z");
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

//! Window: the data recorded from all JVMs in one interval. The store keeps windows, and push targets receive them.

use std::{collections::BTreeMap, sync::Arc};

use libjvmprobe::{stack::profile::Profile, trace::pauses::record::Record};
use serde::{Deserialize, Serialize};

use crate::thread_dump::ThreadDump;

/// Data of all JVMs in one interval.
#[derive(Debug, Default)]
pub struct Window {
    /// Begin, in nanoseconds since 1970.
    pub begin_ns: u64,
    /// End, in nanoseconds since 1970.
    pub end_ns: u64,
    /// Recorded data, one entry for each JVM that has run in the interval.
    pub jvms: Vec<JvmData>,
    /// For each configured measure that was not collected for a part of the window, to save resources: the
    /// length of that part in nanoseconds, by the name of the measure.
    pub left_out: BTreeMap<String, u64>,
    /// CPU time of the host's processors; `None` if it is unknown for a part of the window.
    pub host_ticks: Option<HostTicks>,
}

/// CPU time of all processors of the host, in the kernel's ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct HostTicks {
    /// Time in which they were not idle.
    pub busy: u64,
    /// Time in which they were busy or idle.
    pub total: u64,
}

impl HostTicks {
    /// Returns the sum with those of another period.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let (busy, total) =
            (self.busy.saturating_add(other.busy), self.total.saturating_add(other.total));
        Self { busy, total }
    }
}

/// Data recorded from one JVM in one interval.
#[derive(Debug, Default)]
pub struct JvmData {
    /// The JVM's identity.
    pub identity: Arc<Identity>,
    /// Profiles, one for each measure that is collected ([`Profile::measure`]): CPU time, allocation, off-CPU
    /// time. Each has its own begin and duration.
    pub profiles: Vec<Profile>,
    /// Pauses, safepoints, collector cycles, losses and sums of stops. As JSON, each is a line as `javagc -j`
    /// prints it.
    pub pauses: Vec<Record>,
    /// Thread dumps, taken because the JVM has a deadlock or makes no progress.
    pub dumps: Vec<ThreadDump>,
    /// CPU time that the JVM's process used in the interval, in nanoseconds, as counted by the kernel. CPU
    /// time before the JVM was found is not included. `None` if the CPU time of a part of the interval is
    /// unknown, for example because the process ended in it.
    pub cpu_ns: Option<u64>,
    /// Part of `cpu_ns` in the kernel. `None` in windows of earlier versions.
    pub system_cpu_ns: Option<u64>,
}

/// Identity of a JVM. It stays the same as long as the process runs the same program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Identity {
    /// PID in the host's PID namespace.
    pub pid: u32,
    /// Start time, in nanoseconds since 1970. Distinguishes processes that had the same PID.
    pub started_ns: u64,
    /// `service.name`: the human-readable name.
    pub name: String,
    /// Further attributes, named by OpenTelemetry's semantic conventions: `process.runtime.version`,
    /// `container.id`, `k8s.pod.uid`, ...
    pub attributes: BTreeMap<String, String>,
}

impl Identity {
    /// Returns the tenant: `pod/UID`, `container/ID`, `user/UID`, `unit/NAME`, `cgroup/PATH`, or `host`. Limited resources
    /// are divided among tenants. The tenant is derived from the control group, which a process cannot choose.
    pub fn tenant(&self) -> Arc<str> {
        if let Some(tenant) = self.attributes.get(TENANT) {
            return tenant.as_str().into();
        }
        let found =
            TENANT_KINDS.iter().find_map(|(kind, key)| Some((kind, self.attributes.get(*key)?)));
        found.map_or_else(|| "host".into(), |(kind, id)| format!("{kind}/{id}").into())
    }

    /// Returns the length of the identity as JSON, in bytes.
    pub fn json_size(&self) -> usize {
        // Identities consist of numbers and strings, so serializing them does not fail.
        serde_json::to_vec(self).map_or(0, |json| json.len())
    }

    /// Returns the identity with only the attributes that determine the tenant.
    #[must_use]
    pub fn without_details(&self) -> Self {
        let mut identity = self.clone();
        let is_of_tenant =
            |key: &str| key == TENANT || TENANT_KINDS.iter().any(|&(_, of)| key == of);
        identity.attributes.retain(|key, _| is_of_tenant(key));
        identity
    }
}

/// Attribute of tenants that are neither pod, container nor unit.
const TENANT: &str = "jvmprobe.tenant";

/// Kinds of tenants, each with the attribute that identifies the tenant. The first one that a JVM has counts.
const TENANT_KINDS: [(&str, &str); 3] =
    [("pod", "k8s.pod.uid"), ("container", "container.id"), ("unit", "systemd.unit")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_is_that_of_the_control_group() {
        let tenant = |attributes: &[(&str, &str)]| {
            let attributes = attributes.iter().map(|&(key, value)| (key.into(), value.into()));
            let identity = Identity { attributes: attributes.collect(), ..Identity::default() };
            assert_eq!(identity.tenant(), identity.without_details().tenant());
            identity.tenant().to_string()
        };
        assert_eq!(tenant(&[("host.name", "a")]), "host");
        assert_eq!(tenant(&[("systemd.unit", "a.service")]), "unit/a.service");
        let of_user = [("systemd.unit", "user@5.service"), ("jvmprobe.tenant", "user/5")];
        assert_eq!(tenant(&of_user), "user/5");
        assert_eq!(tenant(&[("container.id", "1"), ("k8s.pod.uid", "2")]), "pod/2");
    }
}

//! What was taken of all JVMs in a window of time: what the store keeps, and what is pushed.

use std::{collections::BTreeMap, sync::Arc};

use libjvmprobe::{stack::profile::Profile, take::pauses::record::Record};
use serde::{Deserialize, Serialize};

/// A window of time.
#[derive(Debug, Default)]
pub struct Window {
    /// When it began, in nanoseconds since 1970.
    pub begin_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// What was taken, one of each JVM that has run in it.
    pub jvms: Vec<Taken>,
    /// For how long something was left out that is taken else, to save: nanoseconds, by the name of
    /// its measure.
    pub left_out: BTreeMap<String, u64>,
}

/// What was taken of a JVM in a window of time.
#[derive(Debug, Default)]
pub struct Taken {
    /// Whose it is.
    pub who: Arc<Identity>,
    /// One of each kind that is taken, see [`Profile::measure`]: processor time, allocation,
    /// time off the processor. Each has its begin and its duration.
    pub profiles: Vec<Profile>,
    /// Pauses, safepoints, cycles, losses and sums of stops; as JSON, they are lines of javagc(8).
    pub pauses: Vec<Record>,
    /// CPU time of its process in nanoseconds, by the kernel's account; `None` where it is not known of the whole
    /// window. That of a process which ends is known up to the window before.
    pub cpu_ns: Option<u64>,
}

/// Who a JVM is. It stays the same as long as the process runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Identity {
    /// Its process, as this host numbers it.
    pub pid: u32,
    /// When it was started, in nanoseconds since 1970: tells it from another one that had the
    /// same number.
    pub started_ns: u64,
    /// `service.name`: what a person calls it.
    pub name: String,
    /// What it is known by beyond that, by OpenTelemetry's semantic conventions:
    /// `process.runtime.version`, `container.id`, `k8s.pod.uid`, ...
    pub attributes: BTreeMap<String, String>,
}

impl Identity {
    /// Returns the tenant that it shares its part of limited resources with: `pod/UID`, `container/ID`,
    /// `unit/NAME`, or `host`. Control groups tell it, which a process cannot choose.
    pub fn tenant(&self) -> Arc<str> {
        let kinds =
            [("pod", "k8s.pod.uid"), ("container", "container.id"), ("unit", "systemd.unit")];
        let found = kinds.iter().find_map(|(kind, key)| Some((kind, self.attributes.get(*key)?)));
        found.map_or_else(|| "host".into(), |(kind, id)| format!("{kind}/{id}").into())
    }
}

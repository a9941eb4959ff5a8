//! Pyroscope's push API.
//!
//! Source: "Server HTTP API" in Pyroscope's documentation, `/push.v1.PusherService/Push`. It uses the Connect
//! protocol: a POST of an unframed protobuf message (`application/proto`). The message is that of Pyroscope's
//! api/push/v1/push.proto. The type of a profile is given by the label `__name__` and by the sample and
//! period types of the pprof data in the message, for example `process_cpu:cpu:nanoseconds:cpu:nanoseconds`
//! and `memory:alloc_space:bytes:space:bytes`.
//!
//! Pyroscope validates each series of a request, and answers with one error for the complete request. Its
//! pkg/validation limits the names of labels and of sample types, the number and length of labels, and the
//! size of a profile. Requests are built within the limits that are known in advance. If Pyroscope refuses a
//! request nevertheless, the request is split.

use std::collections::BTreeMap;

use libjvmprobe::{
    jvms::{imitates_host, known_attributes},
    render::formats::pprof,
    stack::profile::{Measure, Profile, Sample},
};
use prost::Message;
use reqwest::Url;

use crate::{
    push::{
        client::{Outcome, Target, with_path},
        labels::limited,
        queue::{Header, MAX_PARTS, Parts},
        retry::random_bytes,
        samples,
    },
    window::{Identity, Window},
};

/// A request is closed when the profiles in it exceed this size, in bytes. Receivers accept a few megabytes.
const TARGET_SIZE: usize = 1 << 20;
/// Maximum number of labels. Pyroscope accepts 30 label names.
const MAX_LABELS: usize = 28;
/// Attributes that are no labels. Pyroscope creates a series for each combination of labels, so attributes that differ
/// for each process, and those that only describe the host in more detail, would cost more than they are worth.
const NO_LABELS: [&str; 18] = [
    "cloud.account.id",
    "cloud.platform",
    "container.runtime.name",
    "host.arch",
    "host.id",
    "host.type",
    "jvmprobe.restarts",
    "jvmprobe.tenant",
    "os.description",
    "os.name",
    "os.type",
    "os.version",
    "process.command",
    "process.command_line",
    "process.creation.time",
    "process.pid",
    "process.user.id",
    "process.vpid",
];
/// Service name that is sent for a JVM without a name, because Pyroscope requires a service name.
const UNKNOWN: &str = "unknown_service:java";
/// Maximum length of a label's value, in bytes. Longer values are cut.
const MAX_VALUE: usize = 1024;

#[derive(Clone, PartialEq, Message)]
struct PushRequest {
    #[prost(message, repeated, tag = "1")]
    series: Vec<Series>,
}

#[derive(Clone, PartialEq, Message)]
struct Series {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<RawSample>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct RawSample {
    #[prost(bytes = "vec", tag = "1")]
    raw_profile: Vec<u8>,
    /// A random UUID.
    #[prost(string, tag = "2")]
    id: String,
}

/// Encodes a window as requests.
pub fn requests(window: &Window) -> Parts {
    let mut all = Vec::new();
    let mut open = PushRequest { series: Vec::new() };
    let mut header = Header { time_ns: window.end_ns, ..Header::default() };
    let mut size = 0;
    let profiles =
        window.jvms.iter().flat_map(|jvm| jvm.profiles.iter().map(|p| (&*jvm.identity, p)));
    for (identity, profile) in profiles.filter(|(_, profile)| !profile.samples.is_empty()) {
        let mut raw_profile = Vec::new();
        if pprof::write_unlabelled(&[&by_stack(profile)], &mut raw_profile).is_err() {
            // Writing to memory does not fail.
            continue;
        }
        size += raw_profile.len();
        header.profiles += 1;
        header.samples += samples(profile);
        header.parts.push(samples(profile));
        let samples = vec![RawSample { raw_profile, id: random_uuid() }];
        open.series.push(Series { labels: labels(identity, &profile.measure), samples });
        if size > TARGET_SIZE || header.parts.len() >= MAX_PARTS {
            all.push((header.clone(), open.encode_to_vec()));
            open.series.clear();
            header.parts.clear();
            (header.profiles, header.samples, size) = (0, 0, 0);
        }
    }
    if !open.series.is_empty() {
        all.push((header, open.encode_to_vec()));
    }
    all
}

/// Splits a request into one request for each profile. Returns `None` if it has only one profile.
pub fn split(header: &Header, body: &[u8]) -> Option<Parts> {
    let request = PushRequest::decode(body).ok()?;
    if header.parts.len() < 2 || request.series.len() != header.parts.len() {
        return None;
    }
    let parts = request.series.into_iter().zip(&header.parts).map(|(series, &samples)| {
        let request = PushRequest { series: vec![series] };
        (header.part(&[samples], 1), request.encode_to_vec())
    });
    Some(parts.collect())
}

/// Sends a request.
pub async fn send(target: &Target, base: &Url, body: Vec<u8>) -> Outcome {
    let url = with_path(base, "push.v1.PusherService/Push");
    let headers = [("content-type", "application/proto"), ("connect-protocol-version", "1")];
    target.send(url, &headers, body, |_| None).await
}

/// Returns the profile with its samples merged by stack. Threads are left out, because Pyroscope would create
/// a series for each thread name or number.
fn by_stack(profile: &Profile) -> Profile {
    // Names of sample types must not contain dashes.
    let measure = match &profile.measure {
        Measure::Events(name) => Measure::Events(sanitized(name).into()),
        Measure::Elapsed(name) => Measure::Elapsed(sanitized(name).into()),
        other => other.clone(),
    };
    let mut merged = Profile::of(measure);
    (merged.hertz, merged.duration_ns) = (profile.hertz, profile.duration_ns);
    merged.begin_unix_ns = profile.begin_unix_ns;
    let mut by_stack = BTreeMap::<&[u32], (u64, u64)>::new();
    for sample in &profile.samples {
        let (count, occurrences) = by_stack.entry(&sample.stack).or_default();
        *count = count.saturating_add(sample.count);
        *occurrences = occurrences.saturating_add(sample.occurrences);
    }
    // The frames are interned in the order of the original profile, so each frame keeps its number.
    for frame in profile.frames() {
        merged.intern(frame.clone());
    }
    merged.samples = by_stack
        .into_iter()
        .map(|(stack, (count, occurrences))| Sample {
            command: "".into(),
            count,
            occurrences,
            ..Sample::of(0, "".into(), 0, stack.to_vec())
        })
        .collect();
    merged
}

/// Returns the labels of a series. Dots in attribute names become underscores.
fn labels(identity: &Identity, measure: &Measure) -> Vec<Label> {
    let identity = &*limited(identity);
    let name = match measure {
        Measure::Time => "process_cpu".to_owned(),
        Measure::Allocation => "memory".to_owned(),
        other => sanitized(other.name()),
    };
    let mut all = BTreeMap::from([
        ("__name__".to_owned(), name),
        (
            "service_name".to_owned(),
            cut(if identity.name.is_empty() { UNKNOWN } else { &identity.name }),
        ),
        ("source".to_owned(), "jvmprobed".to_owned()),
    ]);
    let is_no_label = |name: &str| NO_LABELS.iter().any(|no| sanitized(no) == sanitized(name));
    let others = identity.attributes.iter().filter(|(name, value)| {
        !name.is_empty() && !value.is_empty() && !is_no_label(name) && !imitates_host(name)
    });
    // Known attributes come first, so that others that a JVM sets itself do not displace them.
    let (known, others): (Vec<_>, Vec<_>) =
        others.partition(|(name, _)| known_attributes().any(|known| known == *name));
    for (name, value) in known.into_iter().chain(others) {
        if all.len() < MAX_LABELS {
            all.entry(sanitized(name)).or_insert_with(|| cut(value));
        }
    }
    all.into_iter().map(|(name, value)| Label { name, value }).collect()
}

/// Returns a name that Prometheus's data model allows: letters, digits and underscores, and no digit first.
fn sanitized(name: &str) -> String {
    let prefix = if name.starts_with(|c: char| c.is_ascii_digit()) { "_" } else { "" };
    let rest = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
    prefix.chars().chain(rest).take(128).collect()
}

fn cut(value: &str) -> String {
    let end = (0..=MAX_VALUE.min(value.len())).rev().find(|&end| value.is_char_boundary(end));
    value[..end.unwrap_or(0)].to_owned()
}

/// Returns a random UUID: RFC 9562, version 4. A profile that is sent again keeps its UUID.
fn random_uuid() -> String {
    uuid::Builder::from_random_bytes(random_bytes()).into_uuid().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_imitate_labels_of_the_host_are_no_labels() {
        let all = [
            ("container_id", "victim"),
            ("k8s-pod-uid", "victim"),
            ("jvmprobe_tenant", "victim"),
            ("process_command_line", "victim"),
            ("__session_id__", "victim"),
            ("k8s.pod.uid", "own"),
            ("team", "a"),
        ];
        let attributes = all.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let identity = Identity { name: "shop".into(), attributes, ..Identity::default() };
        let labels = labels(&identity, &Measure::Time);
        let labels: Vec<_> = labels.iter().map(|l| (&*l.name, &*l.value)).collect();
        let expected = [
            ("__name__", "process_cpu"),
            ("k8s_pod_uid", "own"),
            ("service_name", "shop"),
            ("source", "jvmprobed"),
            ("team", "a"),
        ];
        assert_eq!(labels, expected);
    }

    #[test]
    fn label_names_are_valid_and_label_count_is_bounded() {
        let mut identity = Identity { name: "x".repeat(5000), ..Identity::default() };
        for i in 0..100 {
            identity.attributes.insert(format!("k8s.pod.label-{i}"), "v".into());
        }
        identity.attributes.insert("0day.é".into(), "v".into());
        for known in ["systemd.unit", "process.pid", "os.type"] {
            identity.attributes.insert(known.into(), "u".into());
        }
        let labels = labels(&identity, &Measure::Elapsed("off-cpu".into()));
        assert_eq!(labels.len(), MAX_LABELS);
        let value =
            |name: &str| labels.iter().find(|label| label.name == name).unwrap().value.clone();
        assert_eq!((value("__name__"), value("service_name").len()), ("off_cpu".into(), MAX_VALUE));
        let is_word = |name: &str| {
            name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
                && !name.starts_with(|c: char| c.is_ascii_digit())
        };
        assert_eq!((value("_0day__"), value("systemd_unit")), ("v".into(), "u".into()));
        assert!(!labels.iter().any(|label| matches!(&*label.name, "process_pid" | "os_type")));
        assert!(labels.iter().all(|label| is_word(&label.name)), "{labels:?}");
    }
}

//! Pyroscope's push API.
//!
//! Source: "Server HTTP API" in Pyroscope's documentation, `/push.v1.PusherService/Push`: the
//! Connect protocol, so a POST of a message as it is (`application/proto`). The message is that of
//! Pyroscope's api/push/v1/push.proto. A profile's type is told by the label `__name__` and by
//! sample and period types of the pprof in it: `process_cpu:cpu:nanoseconds:cpu:nanoseconds`,
//! `memory:alloc_space:bytes:space:bytes`.

use std::collections::BTreeMap;

use libjvmprobe::{
    render::formats::pprof,
    stack::profile::{Measure, Profile, Sample},
};
use prost::Message;
use reqwest::Url;

use crate::{
    push::{
        client::{Outcome, Target, below},
        queue::Head,
        retry::random_bytes,
        samples,
    },
    window::{Identity, Window},
};

/// A request is closed when it is longer than this; receivers take a few megabytes.
const ENOUGH: usize = 1 << 20;
/// Pyroscope takes 30 names of labels.
const MAX_LABELS: usize = 28;
/// And so long a value.
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
    /// A UUID.
    #[prost(string, tag = "2")]
    id: String,
}

/// A window as requests.
pub fn requests(window: &Window) -> Vec<(Head, Vec<u8>)> {
    let mut all = Vec::new();
    let mut open = PushRequest { series: Vec::new() };
    let mut head = Head { time_ns: window.end_ns, ..Head::default() };
    let mut size = 0;
    let profiles = window.jvms.iter().flat_map(|jvm| jvm.profiles.iter().map(|p| (&*jvm.who, p)));
    for (who, profile) in profiles.filter(|(_, profile)| !profile.samples.is_empty()) {
        let mut raw_profile = Vec::new();
        if pprof::write_unlabelled(&[&by_stack(profile)], &mut raw_profile).is_err() {
            // Writing to memory does not fail.
            continue;
        }
        size += raw_profile.len();
        head.profiles += 1;
        head.samples += samples(profile);
        let samples = vec![RawSample { raw_profile, id: uuid() }];
        open.series.push(Series { labels: labels(who, &profile.measure), samples });
        if size > ENOUGH {
            all.push((head.clone(), open.encode_to_vec()));
            open.series.clear();
            (head.profiles, head.samples, size) = (0, 0, 0);
        }
    }
    if !open.series.is_empty() {
        all.push((head, open.encode_to_vec()));
    }
    all
}

/// Sends a request.
pub async fn send(target: &Target, base: &Url, body: Vec<u8>) -> Outcome {
    let url = below(base, "push.v1.PusherService/Push");
    let headers = [("content-type", "application/proto"), ("connect-protocol-version", "1")];
    target.send(url, &headers, body, |_| None).await
}

/// The same profile by stack alone: Pyroscope makes a series of each value of a label, and a
/// thread's name or number would be one.
fn by_stack(profile: &Profile) -> Profile {
    let mut merged = Profile::of(profile.measure.clone());
    (merged.hertz, merged.duration_ns) = (profile.hertz, profile.duration_ns);
    merged.begin_unix_ns = profile.begin_unix_ns;
    let mut by_stack = BTreeMap::<&[u32], (u64, u64)>::new();
    for sample in &profile.samples {
        let (count, things) = by_stack.entry(&sample.stack).or_default();
        *count = count.saturating_add(sample.count);
        *things = things.saturating_add(sample.things);
    }
    // Each frame gets the number that it had.
    for frame in profile.frames() {
        merged.intern(frame.clone());
    }
    merged.samples = by_stack
        .into_iter()
        .map(|(stack, (count, things))| Sample {
            pid: 0,
            command: "".into(),
            thread: "".into(),
            tid: 0,
            cpu: None,
            stack: stack.to_vec(),
            complete: true,
            guessed: false,
            unsure: false,
            count,
            things,
            times: Vec::new(),
        })
        .collect();
    merged
}

/// What a series is known by: the name of a label has no dots, and what changes with each process
/// is left out.
fn labels(who: &Identity, measure: &Measure) -> Vec<Label> {
    let name = match measure {
        Measure::Time => "process_cpu".to_owned(),
        Measure::Allocation => "memory".to_owned(),
        other => word(other.name()),
    };
    let mut all = BTreeMap::from([
        ("__name__".to_owned(), name),
        ("service_name".to_owned(), cut(&who.name)),
        ("source".to_owned(), "jvmprobed".to_owned()),
    ]);
    let others = who.attributes.iter().filter(|(name, value)| {
        !value.is_empty() && !matches!(name.as_str(), "process.pid" | "process.command_line")
    });
    for (name, value) in others {
        if all.len() < MAX_LABELS {
            all.entry(word(name)).or_insert_with(|| cut(value));
        }
    }
    all.into_iter().map(|(name, value)| Label { name, value }).collect()
}

fn word(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(128).collect()
}

fn cut(value: &str) -> String {
    let end = (0..=MAX_VALUE.min(value.len())).rev().find(|&end| value.is_char_boundary(end));
    value[..end.unwrap_or(0)].to_owned()
}

/// A random one: RFC 9562, version 4. It stays with the profile when it is sent again.
fn uuid() -> String {
    let mut bytes = random_bytes::<16>();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_uuids() {
        let id = uuid();
        assert_eq!((id.len(), &id[14..15]), (36, "4"), "{id}");
        assert_ne!(id, uuid());
    }

    #[test]
    fn labels_are_words_and_few() {
        let mut who = Identity { name: "x".repeat(5000), ..Identity::default() };
        for i in 0..100 {
            who.attributes.insert(format!("k8s.pod.label-{i}"), "v".into());
        }
        let labels = labels(&who, &Measure::Elapsed("off-cpu".into()));
        assert_eq!(labels.len(), MAX_LABELS);
        let value =
            |name: &str| labels.iter().find(|label| label.name == name).unwrap().value.clone();
        assert_eq!((value("__name__"), value("service_name").len()), ("off_cpu".into(), MAX_VALUE));
        let is_word = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        assert!(labels.iter().all(|label| is_word(&label.name)), "{labels:?}");
    }
}

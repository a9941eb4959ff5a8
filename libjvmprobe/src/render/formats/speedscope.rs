//! speedscope's JSON, with one profile per thread.
//!
//! Source: speedscope.app/file-format-schema.json.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use serde::Serialize;

use crate::render::formats::Format;
use crate::{
    names::clean,
    stack::{
        Kind,
        profile::{self, FrameId, Measure, Profile},
    },
};

/// Entry of the format table.
pub const FORMAT: Format = Format {
    ending: ".json",
    name: "speedscope",
    draws_differences: false,
    holds_several: true,
    shows_times: false,
    has_span_labels: false,
    write: |profiles, _, to| {
        let profiles: Vec<_> = profiles.iter().map(|titled| titled.profile).collect();
        write(&profiles, to)
    },
};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: &'static str,
    shared: Shared<'a>,
    profiles: Vec<Thread>,
}

#[derive(Serialize)]
struct Shared<'a> {
    frames: Vec<Frame<'a>>,
}

#[derive(Serialize)]
struct Frame<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    /// Our own extension; viewers ignore unknown fields.
    kind: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Thread {
    r#type: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    /// Stacks, outermost frame first.
    samples: Vec<Vec<FrameId>>,
    weights: Vec<u64>,
}

/// Writes profiles.
///
/// # Errors
/// Returns the errors of the writer.
pub fn write(profiles: &[&Profile], mut to: impl Write) -> io::Result<()> {
    let mut frames = Vec::new();
    let mut threads = Vec::new();
    for profile in profiles {
        let first = FrameId::try_from(frames.len()).unwrap_or(FrameId::MAX);
        frames.extend(profile.frames().iter().map(|frame| Frame {
            name: &frame.name,
            file: frame.file.as_deref().or(frame.module.as_deref()),
            line: (frame.line > 0).then_some(frame.line),
            kind: kind(frame.kind),
        }));
        threads.extend(threads_of(profile, first, profiles.len() > 1));
    }
    let is_allocation = profiles.iter().any(|profile| profile.measure == Measure::Allocation);
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        exporter: if is_allocation { "javaobjnew" } else { "javaprof" },
        shared: Shared { frames },
        profiles: threads,
    };
    to.write_all(clean::json(&serde_json::to_string(&file)?).as_bytes())?;
    to.flush()
}

/// Returns the threads of a profile. Its frames start at index `first` in the file. With `is_named`, the names begin
/// with the measure.
fn threads_of(profile: &Profile, first: FrameId, is_named: bool) -> Vec<Thread> {
    let (unit, weight_of_one) = match profile.measure {
        Measure::Time => ("nanoseconds", 1_000_000_000 / profile.hertz.max(1)),
        Measure::Allocation => ("bytes", 1),
        Measure::Events(_) => ("none", 1),
        Measure::Elapsed(_) => ("nanoseconds", 1),
    };
    let mut threads: BTreeMap<(u32, u32), Thread> = BTreeMap::new();
    for sample in &profile.samples {
        let thread = threads.entry((sample.pid, sample.tid)).or_insert_with(|| Thread {
            r#type: "sampled",
            name: match is_named {
                true => format!("{}: {}", profile.measure.name(), name(sample)),
                false => name(sample),
            },
            unit,
            start_value: 0,
            end_value: 0,
            samples: Vec::new(),
            weights: Vec::new(),
        });
        let weight = sample.count.saturating_mul(weight_of_one);
        thread.end_value = thread.end_value.saturating_add(weight);
        thread.samples.push(sample.stack.iter().map(|id| id.saturating_add(first)).collect());
        thread.weights.push(weight);
    }
    threads.into_values().collect()
}

/// Returns the word for a kind of code.
fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Java => "java",
        Kind::Inlined => "inlined",
        Kind::Interpreted => "interpreted",
        Kind::Stub => "stub",
        Kind::Jvm => "jvm",
        Kind::Native => "native",
        Kind::Kernel => "kernel",
        Kind::Class => "class",
        Kind::Unknown => "unknown",
    }
}

/// Returns the name of a thread's profile: command and PID, and the thread if threads are kept apart. A group of threads
/// has a name, but no thread ID.
fn name(sample: &profile::Sample) -> String {
    let command = format!("{} {}", sample.command, sample.pid);
    match (&*sample.thread, sample.tid) {
        ("", 0) => command,
        (thread, 0) => format!("{command} {thread}"),
        (thread, tid) => format!("{command} {thread}-{tid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_measures_share_one_file() {
        let cpu = crate::render::formats::folded::tests::profile();
        let mut faults = crate::render::formats::folded::tests::profile();
        faults.measure = Measure::Events("page-faults".into());
        let mut bytes = Vec::new();
        write(&[&cpu, &faults], &mut bytes).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let names: Vec<_> = (0..4).map(|i| json["profiles"][i]["name"].clone()).collect();
        assert_eq!(names[0], "cpu: java 12 worker;1-13");
        assert_eq!(names[2], "page-faults: java 12 worker;1-13");
        assert_eq!(json["profiles"][2]["samples"], serde_json::json!([[3, 4]]));
        assert_eq!(
            (&json["profiles"][2]["unit"], &json["profiles"][2]["endValue"]),
            (&"none".into(), &2.into())
        );
        assert_eq!(json["shared"]["frames"].as_array().unwrap().len(), 6);
    }
}

//! speedscope's JSON, one profile a thread.
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

/// The row of the table.
pub const FORMAT: Format = Format {
    ending: ".json",
    name: "speedscope",
    draws_differences: false,
    write: |profile, _, to| write(profile, to),
};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: &'static str,
    shared: Shared<'a>,
    profiles: Vec<Thread<'a>>,
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
    /// Of our own: viewers skip what they do not know.
    kind: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Thread<'a> {
    r#type: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    /// Outermost frame first.
    samples: Vec<&'a [FrameId]>,
    weights: Vec<u64>,
}

/// Writes a profile.
///
/// # Errors
/// Those of the writer.
pub fn write(profile: &Profile, mut to: impl Write) -> io::Result<()> {
    let frames = profile.frames().iter().map(|frame| Frame {
        name: &frame.name,
        file: frame.file.as_deref().or(frame.module.as_deref()),
        line: (frame.line > 0).then_some(frame.line),
        kind: kind(frame.kind),
    });
    let (unit, weight_of_one, exporter) = match profile.measure {
        Measure::Time => ("nanoseconds", 1_000_000_000 / profile.hertz.max(1), "javaprof"),
        Measure::Allocation => ("bytes", 1, "javaobjnew"),
    };
    let mut threads: BTreeMap<(u32, u32), Thread<'_>> = BTreeMap::new();
    for sample in &profile.samples {
        let thread = threads.entry((sample.pid, sample.tid)).or_insert_with(|| Thread {
            r#type: "sampled",
            name: name(sample),
            unit,
            start_value: 0,
            end_value: 0,
            samples: Vec::new(),
            weights: Vec::new(),
        });
        let weight = sample.count.saturating_mul(weight_of_one);
        thread.end_value = thread.end_value.saturating_add(weight);
        thread.samples.push(&sample.stack);
        thread.weights.push(weight);
    }
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        exporter,
        shared: Shared { frames: frames.collect() },
        profiles: threads.into_values().collect(),
    };
    to.write_all(clean::json(&serde_json::to_string(&file)?).as_bytes())?;
    to.flush()
}

/// What kind of code a frame runs, in one word.
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

/// The command, its number, and the thread where threads are kept apart.
fn name(sample: &profile::Sample) -> String {
    let command = format!("{} {}", sample.command, sample.pid);
    match sample.tid {
        0 => command,
        tid => format!("{command} {}-{tid}", sample.thread),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_weigh_bytes() {
        let mut profile = crate::render::formats::folded::tests::profile();
        profile.measure = Measure::Allocation;
        let mut bytes = Vec::new();
        write(&profile, &mut bytes).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json["profiles"][1]["unit"], "bytes");
        assert_eq!(json["profiles"][1]["endValue"], 4);
    }

    #[test]
    fn each_thread_is_a_profile() {
        let mut bytes = Vec::new();
        write(&crate::render::formats::folded::tests::profile(), &mut bytes).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json["shared"]["frames"][1]["name"], "a.Main.run");
        assert_eq!(json["shared"]["frames"][1]["line"], 7);
        assert_eq!(json["shared"]["frames"][1]["kind"], "inlined");
        assert_eq!(json["profiles"].as_array().unwrap().len(), 2);
        let thread = &json["profiles"][1];
        assert_eq!(thread["samples"], serde_json::json!([[0, 1], [0, 2]]));
        assert_eq!(thread["endValue"], 4 * (1_000_000_000_u64 / 99));
    }
}

//! pprof's format: a gzipped protocol buffer.
//!
//! Source: github.com/google/pprof, proto/profile.proto. Only fields that are written are declared, with the numbers in
//! that file.

use std::{
    borrow::Cow,
    collections::{HashMap, hash_map::Entry},
    io::{self, Write},
};

use flate2::{Compression, write::GzEncoder};
use prost::Message;

use crate::{
    render::formats::Format,
    stack::{
        Frame,
        profile::{self, Measure, Profile},
    },
};

/// Entry of the format table.
pub const FORMAT: Format = Format {
    ending: ".pb.gz",
    name: "pprof",
    draws_differences: false,
    holds_several: true,
    shows_times: false,
    has_span_labels: true,
    write: |profiles, _, to| {
        let profiles: Vec<_> = profiles.iter().map(|titled| titled.profile).collect();
        write(&profiles, to)
    },
};

#[derive(Clone, PartialEq, Message)]
struct Proto {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    /// Locations, innermost first.
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
    #[prost(int64, tag = "3")]
    num: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

#[derive(Default)]
struct Strings {
    ids: HashMap<String, i64>,
    table: Vec<String>,
}

impl Strings {
    fn id(&mut self, text: &str) -> i64 {
        if let Some(&id) = self.ids.get(text) {
            return id;
        }
        let id = int(self.table.len() as u64);
        self.ids.insert(text.to_owned(), id);
        self.table.push(text.to_owned());
        id
    }
}

fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Writes profiles, with labels for command, thread, pid, tid, cpu, `trace_id` and `span_id`. Each measure has two values, for
/// example the number of samples and the CPU time that they represent, or objects and bytes. The values have
/// the names that Go and others use. In the samples of one measure, the values of the other measures are 0.
///
/// # Errors
/// Returns the errors of the writer.
pub fn write(profiles: &[&Profile], to: impl Write) -> io::Result<()> {
    write_gzip(&proto(profiles, true), to)
}

/// Writes profiles without labels, for databases that create a series for each value of a label.
///
/// # Errors
/// Returns the errors of the writer.
pub fn write_unlabelled(profiles: &[&Profile], to: impl Write) -> io::Result<()> {
    write_gzip(&proto(profiles, false), to)
}

/// Encodes and compresses.
fn write_gzip(proto: &Proto, to: impl Write) -> io::Result<()> {
    let mut gzip = GzEncoder::new(to, Compression::default());
    gzip.write_all(&proto.encode_to_vec())?;
    gzip.finish()?.flush()
}

/// Returns the labels of a sample, as key, text and number. Allocations have no CPU, and a thread only if threads are
/// kept apart.
fn labels<'a>(
    profile: &Profile,
    sample: &'a profile::Sample,
) -> impl Iterator<Item = (&'static str, Cow<'a, str>, u32)> {
    let is_of_time = profile.measure != Measure::Allocation;
    let has_thread = is_of_time || sample.tid != 0;
    let text = |text: &'a str| Cow::Borrowed(text);
    let of_span = sample.span.into_iter().flat_map(|span| {
        [("trace_id", Cow::Owned(span.trace()), 0), ("span_id", Cow::Owned(span.span()), 0)]
    });
    [
        (true, ("command", text(&sample.command), 0)),
        (has_thread, ("thread", text(&sample.thread), 0)),
        (true, ("pid", text(""), sample.pid)),
        (has_thread, ("tid", text(""), sample.tid)),
        (is_of_time && sample.cpu.is_some(), ("cpu", text(""), sample.cpu.unwrap_or(0))),
    ]
    .into_iter()
    .filter_map(|(wanted, label)| wanted.then_some(label))
    .chain(of_span)
}

/// Returns the two values of a measure: name and unit of each. The last one is what viewers show by default.
fn values(measure: &Measure) -> [(String, &'static str); 2] {
    let name = measure.name();
    match measure {
        Measure::Time => [("samples".into(), "count"), (name.into(), "nanoseconds")],
        Measure::Allocation => [("alloc_objects".into(), "count"), ("alloc_space".into(), "bytes")],
        Measure::Events(_) => [(format!("{name}_samples"), "count"), (name.into(), "count")],
        Measure::Elapsed(_) => [(format!("{name}_times"), "count"), (name.into(), "nanoseconds")],
    }
}

fn proto(profiles: &[&Profile], labelled: bool) -> Proto {
    let mut strings = Strings::default();
    // The format requires the empty string first.
    strings.id("");
    let mut code = Code::default();
    let mut sample = Vec::new();
    // For each profile, the index of its measure. Profiles of the same measure share an index.
    let mut measures: Vec<&Measure> = Vec::new();
    let columns: Vec<_> = profiles
        .iter()
        .map(|profile| {
            let known = measures.iter().position(|measure| **measure == profile.measure);
            known.unwrap_or_else(|| {
                measures.push(&profile.measure);
                measures.len() - 1
            })
        })
        .collect();
    for (&profile, &at) in profiles.iter().zip(&columns) {
        let locations: Vec<_> =
            profile.frames().iter().map(|frame| code.location(frame, &mut strings)).collect();
        let period = period(profile);
        sample.extend(profile.samples.iter().map(|sample| {
            let mut label = |key: &str, text: &str, num: u32| Label {
                key: strings.id(key),
                str: if text.is_empty() { 0 } else { strings.id(text) },
                num: num.into(),
            };
            let mut value = vec![0; 2 * measures.len()];
            let (occurrences, total) = match profile.measure {
                Measure::Time => (sample.count, sample.count.saturating_mul(period)),
                _ => (sample.occurrences, sample.count),
            };
            value[2 * at] = int(occurrences);
            value[2 * at + 1] = int(total);
            let labels = labels(profile, sample).filter(|_| labelled);
            Sample {
                location_id: sample.stack.iter().rev().map(|&id| locations[id as usize]).collect(),
                value,
                label: labels.map(|(key, text, num)| label(key, &text, num)).collect(),
            }
        }));
    }
    let sample_type: Vec<_> = measures
        .iter()
        .flat_map(|measure| values(measure))
        .map(|(kind, unit)| ValueType { r#type: strings.id(&kind), unit: strings.id(unit) })
        .collect();
    let cpu = measures.iter().position(|&measure| *measure == Measure::Time);
    let of_cpu = cpu.and_then(|at| profiles.get(columns.iter().position(|&c| c == at)?));
    let first = profiles.first();
    let (period_type, period) = match (cpu, first.map(|profile| &profile.measure)) {
        (Some(at), _) => {
            (Some(sample_type[2 * at + 1]), of_cpu.map_or(0, |profile| int(period(profile))))
        }
        // The type is that of Go's heap profiles. The period is one byte, because the values need no scaling:
        // they are estimates of all allocations already.
        (None, Some(Measure::Allocation)) => {
            let (kind, unit) = (strings.id("space"), strings.id("bytes"));
            (Some(ValueType { r#type: kind, unit }), 1)
        }
        (None, Some(Measure::Elapsed(_))) => (Some(sample_type[1]), 1),
        _ => (None, 0),
    };
    Proto {
        period_type,
        period,
        sample_type,
        sample,
        location: code.location,
        function: code.function,
        string_table: strings.table,
        time_nanos: first.map_or(0, |profile| int(profile.begin_unix_ns)),
        duration_nanos: first.map_or(0, |profile| int(profile.duration_ns)),
    }
}

/// Frames as locations and functions, each stored once.
#[derive(Default)]
struct Code<'a> {
    known: HashMap<&'a Frame, u64>,
    location: Vec<Location>,
    function: Vec<Function>,
}

impl<'a> Code<'a> {
    fn location(&mut self, frame: &'a Frame, strings: &mut Strings) -> u64 {
        let id = self.location.len() as u64 + 1;
        let entry = match self.known.entry(frame) {
            Entry::Occupied(known) => return *known.get(),
            Entry::Vacant(new) => new,
        };
        entry.insert(id);
        let file = frame.file.as_deref().or(frame.module.as_deref()).unwrap_or("");
        let (name, filename) = (strings.id(&frame.name), strings.id(file));
        self.function.push(Function { id, name, system_name: name, filename });
        let line = vec![Line { function_id: id, line: frame.line.into() }];
        self.location.push(Location { id, line });
        id
    }
}

/// Returns the time between two CPU samples in nanoseconds.
fn period(profile: &Profile) -> u64 {
    1_000_000_000 / profile.hertz.max(1)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;
    use crate::stack::span::SpanContext;

    #[test]
    fn allocations_have_objects_and_bytes() {
        let mut profile = crate::render::formats::folded::tests::profile();
        profile.measure = Measure::Allocation;
        profile.samples[0].occurrences = 7;
        let proto = proto(&[&profile], true);
        let text = |id: i64| proto.string_table[usize::try_from(id).unwrap()].as_str();
        let types: Vec<_> =
            proto.sample_type.iter().map(|t| (text(t.r#type), text(t.unit))).collect();
        assert_eq!(types, [("alloc_objects", "count"), ("alloc_space", "bytes")]);
        assert_eq!(proto.sample[0].value, [7, 2]);
        assert!(!proto.sample[0].label.is_empty());
        assert!(super::proto(&[&profile], false).sample.iter().all(|s| s.label.is_empty()));
        let period_type = proto.period_type.map(|t| (text(t.r#type), text(t.unit)));
        assert_eq!((period_type, proto.period), (Some(("space", "bytes")), 1));
    }

    #[test]
    fn several_measures_share_one_file() {
        let cpu = crate::render::formats::folded::tests::profile();
        let mut waits = crate::render::formats::folded::tests::profile();
        waits.measure = Measure::Elapsed("off-cpu".into());
        waits.samples[0].occurrences = 1;
        let proto = proto(&[&cpu, &waits], true);
        let text = |id: i64| proto.string_table[usize::try_from(id).unwrap()].as_str();
        let types: Vec<_> = proto.sample_type.iter().map(|t| text(t.r#type)).collect();
        assert_eq!(types, ["samples", "cpu", "off-cpu_times", "off-cpu"]);
        let period = 1_000_000_000 / 99;
        assert_eq!(proto.sample[0].value, [2, 2 * period, 0, 0]);
        assert_eq!(proto.sample[3].value, [0, 0, 1, 2]);
        // Code that both profiles have is stored once.
        assert_eq!(proto.sample[3].location_id, [2, 1]);
        assert_eq!(proto.period, period);
    }

    #[test]
    fn written_profile_decodes_with_frames_and_labels() {
        let mut bytes = Vec::new();
        let mut profile = crate::render::formats::folded::tests::profile();
        profile.samples[0].span = SpanContext::new([0xab; 16], [1; 8]);
        write(&[&profile], &mut bytes).unwrap();
        let mut raw = Vec::new();
        GzDecoder::new(&bytes[..]).read_to_end(&mut raw).unwrap();
        let proto = Proto::decode(&raw[..]).unwrap();
        let text = |id: i64| proto.string_table[usize::try_from(id).unwrap()].as_str();
        assert_eq!(text(0), "");
        assert_eq!(proto.sample.len(), 3);
        let first = &proto.sample[0];
        assert_eq!(first.value, [2, 2 * (1_000_000_000 / 99)]);
        let leaf = &proto.location[first.location_id[0] as usize - 1];
        let function = &proto.function[leaf.line[0].function_id as usize - 1];
        assert_eq!((text(function.name), text(function.filename)), ("a.Main.run", "Main.java"));
        assert_eq!(leaf.line[0].line, 7);
        let labels: Vec<_> =
            first.label.iter().map(|l| (text(l.key), text(l.str), l.num)).collect();
        assert!(labels.contains(&("tid", "", 13)), "{labels:?}");
        assert!(labels.contains(&("thread", "worker;1", 0)), "{labels:?}");
        assert!(labels.contains(&("trace_id", &*"ab".repeat(16), 0)), "{labels:?}");
        assert!(labels.contains(&("span_id", "0101010101010101", 0)), "{labels:?}");
        assert_eq!(proto.sample[1].label.len(), labels.len() - 2);
    }
}

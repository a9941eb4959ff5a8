//! pprof's format: a gzipped protocol buffer.
//!
//! Source: github.com/google/pprof, proto/profile.proto. Only the fields that are
//! written are declared; numbers are those of that file.

use std::{
    collections::HashMap,
    io::{self, Write},
};

use flate2::{Compression, write::GzEncoder};
use prost::Message;

use crate::render::formats::Format;
use crate::stack::profile::{self, Measure, Profile};

/// The row of the table.
pub const FORMAT: Format = Format {
    ending: ".pb.gz",
    name: "pprof",
    draws_differences: false,
    write: |profile, _, to| write(profile, to),
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
    /// Innermost first.
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

/// Writes a profile, with labels for pid, tid, thread and cpu: counts and processor time;
/// or objects and bytes of allocations, named as Go and others name them.
///
/// # Errors
/// Those of the writer.
pub fn write(profile: &Profile, to: impl Write) -> io::Result<()> {
    let mut gzip = GzEncoder::new(to, Compression::default());
    gzip.write_all(&proto(profile).encode_to_vec())?;
    gzip.finish()?.flush()
}

/// What a sample is labelled with: allocations are not kept apart by processor, and by thread
/// only if wanted.
fn labels<'a>(
    profile: &Profile,
    sample: &'a profile::Sample,
) -> impl Iterator<Item = (&'static str, &'a str, u32)> {
    let is_of_time = profile.measure == Measure::Time;
    let has_thread = is_of_time || sample.tid != 0;
    [
        (true, ("command", &*sample.command, 0)),
        (has_thread, ("thread", &*sample.thread, 0)),
        (true, ("pid", "", sample.pid)),
        (has_thread, ("tid", "", sample.tid)),
        (is_of_time && sample.cpu.is_some(), ("cpu", "", sample.cpu.unwrap_or(0))),
    ]
    .into_iter()
    .filter_map(|(wanted, label)| wanted.then_some(label))
}

fn proto(profile: &Profile) -> Proto {
    let mut strings = Strings::default();
    // The format wants the empty string first.
    strings.id("");
    let mut function = Vec::new();
    let mut location = Vec::new();
    for (frame, id) in profile.frames().iter().zip(1..) {
        let file = frame.file.as_deref().or(frame.module.as_deref()).unwrap_or("");
        let (name, filename) = (strings.id(&frame.name), strings.id(file));
        function.push(Function { id, name, system_name: name, filename });
        location
            .push(Location { id, line: vec![Line { function_id: id, line: frame.line.into() }] });
    }
    let period = 1_000_000_000 / profile.hertz.max(1);
    let sample = profile.samples.iter().map(|sample| {
        let mut label = |key: &str, text: &str, num: u32| Label {
            key: strings.id(key),
            str: if text.is_empty() { 0 } else { strings.id(text) },
            num: num.into(),
        };
        Sample {
            location_id: sample.stack.iter().rev().map(|&id| u64::from(id) + 1).collect(),
            value: match profile.measure {
                Measure::Time => vec![int(sample.count), int(sample.count.saturating_mul(period))],
                Measure::Allocation => vec![int(sample.objects), int(sample.count)],
            },
            label: labels(profile, sample).map(|(key, text, num)| label(key, text, num)).collect(),
        }
    });
    let sample = sample.collect();
    let mut value =
        |r#type: &str, unit: &str| ValueType { r#type: strings.id(r#type), unit: strings.id(unit) };
    // What is shown if nothing else is asked for comes last.
    let (sample_type, period_type) = match profile.measure {
        Measure::Time => (
            vec![value("samples", "count"), value("cpu", "nanoseconds")],
            Some(value("cpu", "nanoseconds")),
        ),
        Measure::Allocation => {
            (vec![value("alloc_objects", "count"), value("alloc_space", "bytes")], None)
        }
    };
    Proto {
        sample_type,
        sample,
        location,
        function,
        string_table: strings.table,
        time_nanos: int(profile.begin_unix_ns),
        duration_nanos: int(profile.duration_ns),
        period_type,
        period: if period_type.is_some() { int(period) } else { 0 },
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn allocations_have_objects_and_bytes() {
        let mut profile = crate::render::formats::folded::tests::profile();
        profile.measure = Measure::Allocation;
        profile.samples[0].objects = 7;
        let proto = proto(&profile);
        let text = |id: i64| proto.string_table[usize::try_from(id).unwrap()].as_str();
        let types: Vec<_> =
            proto.sample_type.iter().map(|t| (text(t.r#type), text(t.unit))).collect();
        assert_eq!(types, [("alloc_objects", "count"), ("alloc_space", "bytes")]);
        assert_eq!(proto.sample[0].value, [7, 2]);
        assert_eq!((proto.period_type, proto.period), (None, 0));
    }

    #[test]
    fn what_is_written_can_be_read_again() {
        let mut bytes = Vec::new();
        write(&crate::render::formats::folded::tests::profile(), &mut bytes).unwrap();
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
    }
}

//! pprof's format: a gzipped protocol buffer.
//!
//! Source: github.com/google/pprof, proto/profile.proto. Only the fields that are
//! written are declared; numbers are those of that file. [`kept`] adds fields of its
//! own, with numbers that nobody else reads: they are empty otherwise, and are not written.

use std::{
    collections::{HashMap, hash_map::Entry},
    io::{self, Write},
};

use flate2::{Compression, write::GzEncoder};
use prost::Message;

use crate::{
    render::formats::{Format, kept},
    stack::{
        Frame,
        profile::{self, Measure, Profile},
    },
};

/// The row of the table.
pub const FORMAT: Format = Format {
    ending: ".pb.gz",
    name: "pprof",
    draws_differences: false,
    holds_several: true,
    shows_times: false,
    write: |profiles, _, to| {
        let profiles: Vec<_> = profiles.iter().map(|titled| titled.profile).collect();
        write(&profiles, to)
    },
};

#[derive(Clone, PartialEq, Message)]
pub(super) struct Proto {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub(super) sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    pub(super) location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    pub(super) function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    pub(super) string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
    /// What is known of each profile beyond its samples.
    #[prost(message, repeated, tag = "1000")]
    pub(super) part: Vec<Part>,
}

/// See [`kept`].
#[derive(Clone, PartialEq, Message)]
pub(super) struct Part {
    /// 0 for processor time, 1 for allocation, 2 for events, 3 for time that goes by.
    #[prost(uint32, tag = "1")]
    pub(super) measure: u32,
    /// That of the events, or of what time goes by at.
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(uint64, tag = "3")]
    pub(super) hertz: u64,
    #[prost(uint64, tag = "4")]
    pub(super) duration_ns: u64,
    #[prost(uint64, tag = "5")]
    pub(super) begin_unix_ns: u64,
    #[prost(uint64, tag = "6")]
    pub(super) slot_ns: u64,
    #[prost(uint64, tag = "7")]
    pub(super) lost: u64,
    #[prost(uint64, tag = "8")]
    pub(super) folded: u64,
    /// Whose it is: a number that the reader knows.
    #[prost(uint32, tag = "9")]
    pub(super) owner: u32,
    /// Which pair of values of a sample is its own.
    #[prost(uint32, tag = "10")]
    pub(super) column: u32,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Sample {
    /// Innermost first.
    #[prost(uint64, repeated, tag = "1")]
    pub(super) location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    pub(super) value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub(super) label: Vec<Label>,
    /// Of which [`Part`] it is.
    #[prost(uint32, tag = "1000")]
    pub(super) part: u32,
    /// How good its stack is.
    #[prost(uint32, tag = "1001")]
    pub(super) marks: u32,
    /// Slots of time, each as how many it is behind the one before ...
    #[prost(uint32, repeated, tag = "1002")]
    pub(super) slot: Vec<u32>,
    /// ... and how much there was in each.
    #[prost(uint64, repeated, tag = "1003")]
    pub(super) in_slot: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Label {
    #[prost(int64, tag = "1")]
    pub(super) key: i64,
    #[prost(int64, tag = "2")]
    pub(super) str: i64,
    #[prost(int64, tag = "3")]
    pub(super) num: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Location {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(message, repeated, tag = "4")]
    pub(super) line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Line {
    #[prost(uint64, tag = "1")]
    pub(super) function_id: u64,
    #[prost(int64, tag = "2")]
    pub(super) line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Function {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(int64, tag = "2")]
    pub(super) name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    pub(super) filename: i64,
    /// What kind of code it is.
    #[prost(uint32, tag = "1000")]
    pub(super) kind: u32,
    /// The file that native code comes from; none for 0, and one more than the string's number.
    #[prost(int64, tag = "1001")]
    pub(super) module: i64,
    /// Whether `filename` is a source file.
    #[prost(bool, tag = "1002")]
    pub(super) has_file: bool,
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

/// Writes profiles, with labels for pid, tid, thread and cpu. Each has two values: how many samples
/// and what they stand for, or objects and bytes, named as Go and others name them; those of the
/// other profiles are 0 then.
///
/// # Errors
/// Those of the writer.
pub fn write(profiles: &[&Profile], to: impl Write) -> io::Result<()> {
    zip(&proto(&plain(profiles), true), to)
}

/// Writes profiles without labels, for stores that make a series of each value of a label.
///
/// # Errors
/// Those of the writer.
pub fn write_unlabelled(profiles: &[&Profile], to: impl Write) -> io::Result<()> {
    zip(&proto(&plain(profiles), false), to)
}

fn plain<'a>(profiles: &[&'a Profile]) -> Vec<Owned<'a>> {
    profiles.iter().map(|&profile| Owned { profile, owner: None }).collect()
}

/// Writes the bytes.
pub(super) fn zip(proto: &Proto, to: impl Write) -> io::Result<()> {
    let mut gzip = GzEncoder::new(to, Compression::default());
    gzip.write_all(&proto.encode_to_vec())?;
    gzip.finish()?.flush()
}

/// A profile, and where it is kept to be read again, whose it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owned<'a> {
    pub(super) profile: &'a Profile,
    pub(super) owner: Option<(u32, &'a str)>,
}

/// What a sample is labelled with: allocations are not kept apart by processor, and by thread
/// only if wanted, unless they are read again.
fn labels<'a>(
    Owned { profile, owner }: Owned<'a>,
    sample: &'a profile::Sample,
) -> impl Iterator<Item = (&'static str, &'a str, u32)> {
    let is_of_time = profile.measure != Measure::Allocation || owner.is_some();
    let has_thread = is_of_time || sample.tid != 0;
    [
        (true, ("command", &*sample.command, 0)),
        (has_thread, ("thread", &*sample.thread, 0)),
        (true, ("pid", "", sample.pid)),
        (has_thread, ("tid", "", sample.tid)),
        (is_of_time && sample.cpu.is_some(), ("cpu", "", sample.cpu.unwrap_or(0))),
        (owner.is_some(), ("service.name", owner.map_or("", |owner| owner.1), 0)),
    ]
    .into_iter()
    .filter_map(|(wanted, label)| wanted.then_some(label))
}

/// The two values of a measure: type and unit of each. What is shown if nothing else is asked for
/// comes last.
fn values(measure: &Measure) -> [(String, &'static str); 2] {
    let name = measure.name();
    match measure {
        Measure::Time => [("samples".into(), "count"), (name.into(), "nanoseconds")],
        Measure::Allocation => [("alloc_objects".into(), "count"), ("alloc_space".into(), "bytes")],
        Measure::Events(_) => [(format!("{name}_samples"), "count"), (name.into(), "count")],
        Measure::Elapsed(_) => [(format!("{name}_times"), "count"), (name.into(), "nanoseconds")],
    }
}

pub(super) fn proto(profiles: &[Owned<'_>], labelled: bool) -> Proto {
    let mut strings = Strings::default();
    // The format wants the empty string first.
    strings.id("");
    let mut code = Code::default();
    let mut sample = Vec::new();
    // Profiles of one measure have their values in the same place.
    let mut measures: Vec<&Measure> = Vec::new();
    let columns: Vec<_> = profiles
        .iter()
        .map(|Owned { profile, .. }| {
            let known = measures.iter().position(|measure| **measure == profile.measure);
            known.unwrap_or_else(|| {
                measures.push(&profile.measure);
                measures.len() - 1
            })
        })
        .collect();
    let mut part = Vec::new();
    for (owned, &at) in profiles.iter().zip(&columns) {
        let Owned { profile, owner } = *owned;
        let number = u32::try_from(part.len()).unwrap_or(u32::MAX);
        part.extend(owner.map(|(owner, _)| kept::part(profile, owner, at)));
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
            let (few, all) = match profile.measure {
                Measure::Time => (sample.count, sample.count.saturating_mul(period)),
                _ => (sample.things, sample.count),
            };
            value[2 * at] = int(few);
            value[2 * at + 1] = int(all);
            let labels = labels(*owned, sample).filter(|_| labelled);
            let written = Sample {
                location_id: sample.stack.iter().rev().map(|&id| locations[id as usize]).collect(),
                value,
                label: labels.map(|(key, text, num)| label(key, text, num)).collect(),
                ..Sample::default()
            };
            if owner.is_some() { kept::sample(sample, number, written) } else { written }
        }));
    }
    let sample_type: Vec<_> = measures
        .iter()
        .flat_map(|measure| values(measure))
        .map(|(kind, unit)| ValueType { r#type: strings.id(&kind), unit: strings.id(unit) })
        .collect();
    if part.is_empty() {
        code.function.iter_mut().for_each(kept::forget);
    }
    let cpu = measures.iter().position(|&measure| *measure == Measure::Time);
    let of_cpu =
        cpu.and_then(|at| Some(profiles.get(columns.iter().position(|&c| c == at)?)?.profile));
    let first = profiles.first().map(|owned| owned.profile);
    let (period_type, period) = match (cpu, first.map(|profile| &profile.measure)) {
        (Some(at), _) => {
            (Some(sample_type[2 * at + 1]), of_cpu.map_or(0, |profile| int(period(profile))))
        }
        // As Go's heap profiles have it. What is written is the estimate of all, not what was
        // sampled: each byte stands for itself.
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
        part,
    }
}

/// Frames as locations and functions, each once.
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
        self.function.push(Function {
            id,
            name,
            system_name: name,
            filename,
            kind: kept::number(frame.kind),
            module: frame.module.as_deref().map_or(0, |module| strings.id(module) + 1),
            has_file: frame.file.is_some(),
        });
        let line = vec![Line { function_id: id, line: frame.line.into() }];
        self.location.push(Location { id, line });
        id
    }
}

/// Nanoseconds between two samples of processor time.
fn period(profile: &Profile) -> u64 {
    1_000_000_000 / profile.hertz.max(1)
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
        profile.samples[0].things = 7;
        let proto = proto(&[Owned { profile: &profile, owner: None }], true);
        let text = |id: i64| proto.string_table[usize::try_from(id).unwrap()].as_str();
        let types: Vec<_> =
            proto.sample_type.iter().map(|t| (text(t.r#type), text(t.unit))).collect();
        assert_eq!(types, [("alloc_objects", "count"), ("alloc_space", "bytes")]);
        assert_eq!(proto.sample[0].value, [7, 2]);
        assert!(!proto.sample[0].label.is_empty());
        assert!(
            super::proto(&[Owned { profile: &profile, owner: None }], false)
                .sample
                .iter()
                .all(|s| s.label.is_empty())
        );
        let period_type = proto.period_type.map(|t| (text(t.r#type), text(t.unit)));
        assert_eq!((period_type, proto.period), (Some(("space", "bytes")), 1));
    }

    #[test]
    fn several_measures_stand_in_one_file() {
        let cpu = crate::render::formats::folded::tests::profile();
        let mut waits = crate::render::formats::folded::tests::profile();
        waits.measure = Measure::Elapsed("off-cpu".into());
        waits.samples[0].things = 1;
        let both = [&cpu, &waits].map(|profile| Owned { profile, owner: None });
        let proto = proto(&both, true);
        let text = |id: i64| proto.string_table[usize::try_from(id).unwrap()].as_str();
        let types: Vec<_> = proto.sample_type.iter().map(|t| text(t.r#type)).collect();
        assert_eq!(types, ["samples", "cpu", "off-cpu_times", "off-cpu"]);
        let period = 1_000_000_000 / 99;
        assert_eq!(proto.sample[0].value, [2, 2 * period, 0, 0]);
        assert_eq!(proto.sample[3].value, [0, 0, 1, 2]);
        // Code of both stands there once.
        assert_eq!(proto.sample[3].location_id, [2, 1]);
        assert_eq!(proto.period, period);
    }

    #[test]
    fn what_is_written_can_be_read_again() {
        let mut bytes = Vec::new();
        write(&[&crate::render::formats::folded::tests::profile()], &mut bytes).unwrap();
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

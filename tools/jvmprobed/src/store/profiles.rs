//! Profiles of a window as a file: serde records in postcard's encoding, compressed with gzip.
//!
//! | value, in this order | meaning |
//! |---|---|
//! | list of strings | each text once; records refer to it by position in this list |
//! | list of `FrameRecord` | each frame of all profiles once |
//! | list of [`SpanContext`] | each trace context of all samples once |
//! | list of profiles | each a `ProfileHeader` and a list of samples |
//!
//! A sample is a `SampleRecord`, a list of positions of frames, outermost first, and a list of time slots. A
//! list is the number of its elements, then the elements. Encoding: postcard.jamesmunns.com/wire-format.
//!
//! A file is read as if an attacker had written it: its size and the memory for its content are bounded, and
//! each position in a list is checked.

use std::{
    hash::Hash,
    io::{self, Read, Write},
    mem::take,
    sync::Arc,
};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use indexmap::IndexSet;
use libjvmprobe::stack::{
    Frame, Kind,
    profile::{FrameId, Measure, Profile, Sample},
    span::SpanContext,
    times::merge_slots,
};
use serde::{Deserialize, Serialize};

/// Maximum size of a file before compression, in bytes.
const MAX_BYTES: usize = 64 << 20;
/// Approximate maximum memory for the content of a file, in bytes.
const MAX_MEMORY: usize = 128 << 20;
/// Maximum memory of a shared string in addition to its text, in bytes.
const STRING: usize = 64;

/// A [`Frame`], with positions of its texts in the list of strings.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize)]
struct FrameRecord {
    kind: Kind,
    name: u32,
    module: Option<u32>,
    file: Option<u32>,
    line: u32,
}

/// A [`Profile`] without frames and samples.
#[derive(Deserialize, Serialize)]
struct ProfileHeader {
    /// Position of the JVM in the window.
    jvm: u32,
    measure: Measure,
    hertz: u64,
    duration_ns: u64,
    begin_unix_ns: u64,
    slot_ns: u64,
    lost: u64,
    folded: u64,
}

/// A [`Sample`] without stack and time slots. Command and thread are positions in the list of strings, and `span` is one in
/// the list of contexts.
#[derive(Deserialize, Serialize)]
struct SampleRecord {
    pid: u32,
    command: u32,
    thread: u32,
    tid: u32,
    cpu: Option<u32>,
    complete: bool,
    guessed: bool,
    unsure: bool,
    count: u64,
    things: u64,
    span: Option<u32>,
}

/// Returns the memory of a frame, in bytes; `None` if one of its positions is not in the list of strings.
fn frame_size(frame: &FrameRecord, strings: &[impl AsRef<str>]) -> Option<usize> {
    let texts = [Some(frame.name), frame.module, frame.file];
    texts.into_iter().flatten().try_fold(size_of::<Frame>(), |size, text| {
        Some(size + strings.get(text as usize)?.as_ref().len())
    })
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Writes profiles, each with the position of its JVM in the window.
///
/// # Errors
/// Errors of the writer; [`io::ErrorKind::InvalidData`] if [`read`](fn@read) would refuse the file as too large.
pub fn write(profiles: &[(u32, &Profile)], to: impl Write) -> io::Result<()> {
    let mut gzip = GzEncoder::new(to, Compression::default());
    gzip.write_all(&encode(profiles)?)?;
    gzip.finish()?.flush()
}

/// Reads profiles in the order in which they were written. Frames that are in no sample are dropped.
///
/// # Errors
/// Errors of the reader; [`io::ErrorKind::InvalidData`] for content that [`write`](fn@write) does not produce.
pub fn read(from: impl Read) -> io::Result<Vec<(u32, Profile)>> {
    let mut bytes = Vec::new();
    GzDecoder::new(from).take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MAX_BYTES {
        return Err(invalid("its profiles are too large"));
    }
    decode(&bytes).ok_or_else(|| invalid("its profiles are damaged or too large"))
}

/// Returns the content of a file with these profiles, before compression.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] if [`decode`] would refuse it as too large.
pub fn encode<'a>(profiles: &[(u32, &'a Profile)]) -> io::Result<Vec<u8>> {
    let (mut strings, mut frames) = (IndexSet::<&'a str>::new(), IndexSet::new());
    let mut contexts = IndexSet::new();
    // Profiles are encoded to a second buffer, because the lists of strings and frames are complete only
    // after the last profile.
    let mut rest = Vec::new();
    put(&mut rest, profiles.len())?;
    for &(jvm, profile) in profiles {
        let Profile { hertz, duration_ns, begin_unix_ns, slot_ns, lost, folded, .. } = *profile;
        let measure = profile.measure.clone();
        let header = ProfileHeader {
            jvm,
            measure,
            hertz,
            duration_ns,
            begin_unix_ns,
            slot_ns,
            lost,
            folded,
        };
        put(&mut rest, (header, profile.samples.len()))?;
        let mut record = |frame: &'a Frame| FrameRecord {
            kind: frame.kind,
            name: position(&mut strings, &frame.name),
            module: frame.module.as_deref().map(|module| position(&mut strings, module)),
            file: frame.file.as_deref().map(|file| position(&mut strings, file)),
            line: frame.line,
        };
        let positions: Vec<_> =
            profile.frames().iter().map(|frame| position(&mut frames, record(frame))).collect();
        for sample in &profile.samples {
            let record = SampleRecord {
                pid: sample.pid,
                command: position(&mut strings, &sample.command),
                thread: position(&mut strings, &sample.thread),
                tid: sample.tid,
                cpu: sample.cpu,
                complete: sample.complete,
                guessed: sample.guessed,
                unsure: sample.unsure,
                count: sample.count,
                things: sample.occurrences,
                span: sample.span.map(|span| position(&mut contexts, span)),
            };
            let stack: Vec<_> = sample.stack.iter().map(|&id| positions[id as usize]).collect();
            put(&mut rest, (record, stack, &sample.times))?;
        }
    }
    let (strings, frames) = (Vec::from_iter(strings), Vec::from_iter(frames));
    let contexts = Vec::from_iter(contexts);
    let sizes = profiles.iter().map(|(_, profile)| size_of::<Profile>() + profile.size());
    let frame_sizes = frames.iter().flat_map(|frame| frame_size(frame, &strings));
    let positions = frames.len() * size_of::<(u32, FrameId)>();
    let memory = sizes.sum::<usize>()
        + frame_sizes.sum::<usize>()
        + positions
        + STRING * strings.len()
        + size_of::<SpanContext>() * contexts.len();
    let mut bytes = Vec::new();
    put(&mut bytes, &strings)?;
    put(&mut bytes, &frames)?;
    put(&mut bytes, &contexts)?;
    if memory > MAX_MEMORY || bytes.len() + rest.len() > MAX_BYTES {
        return Err(invalid("the profiles are too large"));
    }
    bytes.append(&mut rest);
    Ok(bytes)
}

/// Appends a value.
fn put(bytes: &mut Vec<u8>, value: impl Serialize) -> io::Result<()> {
    let longer = postcard::to_extend(&value, take(bytes));
    *bytes = longer.map_err(|e| invalid(&e.to_string()))?;
    Ok(())
}

/// Returns the position of an element, and adds the element if it is new.
fn position<T: Eq + Hash>(set: &mut IndexSet<T>, element: T) -> u32 {
    // The limit on memory allows far fewer than 2^32 elements.
    u32::try_from(set.insert_full(element).0).unwrap_or(u32::MAX)
}

/// Decodes a file after decompression. Returns the profiles with the positions of their JVMs; `None` if the
/// file is damaged or its content would take too much memory.
pub fn decode(bytes: &[u8]) -> Option<Vec<(u32, Profile)>> {
    let mut reader = Reader { bytes, memory: MAX_MEMORY };
    let strings: Vec<&str> = reader.list(STRING)?;
    let strings: Vec<Arc<str>> = strings.into_iter().map(Into::into).collect();
    let records: Vec<FrameRecord> = reader.list(0)?;
    let mut frames = Vec::new();
    for record in records {
        reader.reserve(frame_size(&record, &strings)?)?;
        let text = |at: Option<u32>| at.map(|at| &strings[at as usize]);
        let frame = Frame::new(record.kind, Arc::clone(text(Some(record.name))?));
        let frame = match text(record.module) {
            Some(module) => frame.of_module(module),
            None => frame,
        };
        frames.push(frame.at(text(record.file).cloned(), record.line));
    }
    let contexts: Vec<SpanContext> = reader.list(0)?;
    let mut profiles = Vec::new();
    reader.reserve(frames.len() * size_of::<(u32, FrameId)>())?;
    let mut ids = vec![(0, 0); frames.len()];
    for number in 1..=reader.value()? {
        reader.reserve(size_of::<Profile>())?;
        profiles.push(reader.profile(number, &strings, &frames, &contexts, &mut ids)?);
    }
    reader.bytes.is_empty().then_some(profiles)
}

/// Decoder of the remaining bytes.
struct Reader<'a> {
    bytes: &'a [u8],
    /// Memory that decoded values may still take, in bytes.
    memory: usize,
}

impl<'a> Reader<'a> {
    fn value<T: Deserialize<'a>>(&mut self) -> Option<T> {
        let (value, rest) = postcard::take_from_bytes(self.bytes).ok()?;
        self.bytes = rest;
        Some(value)
    }

    /// Decodes a list, and reserves at least `size` bytes of memory for each element.
    fn list<T: Deserialize<'a>>(&mut self, size: usize) -> Option<Vec<T>> {
        let length: usize = self.value()?;
        self.reserve(length.checked_mul(size.max(size_of::<T>()))?)?;
        (0..length).map(|_| self.value()).collect()
    }

    fn reserve(&mut self, bytes: usize) -> Option<()> {
        self.memory = self.memory.checked_sub(bytes)?;
        Some(())
    }

    /// Decodes a profile. `ids` has a frame of one of the profiles so far, and the number of that profile, for each
    /// position in the list of frames.
    fn profile(
        &mut self,
        number: u32,
        strings: &[Arc<str>],
        frames: &[Frame],
        contexts: &[SpanContext],
        ids: &mut [(u32, FrameId)],
    ) -> Option<(u32, Profile)> {
        let (header, samples): (ProfileHeader, usize) = self.value()?;
        let mut profile = Profile::of(header.measure);
        (profile.hertz, profile.duration_ns) = (header.hertz, header.duration_ns);
        (profile.begin_unix_ns, profile.slot_ns) = (header.begin_unix_ns, header.slot_ns);
        (profile.lost, profile.folded) = (header.lost, header.folded);
        for _ in 0..samples {
            self.reserve(size_of::<Sample>())?;
            let record: SampleRecord = self.value()?;
            let mut stack: Vec<u32> = self.list(0)?;
            for frame in &mut stack {
                let (of, id) = ids.get_mut(*frame as usize)?;
                if *of != number {
                    // A profile holds each frame in a list and in a map.
                    self.reserve(2 * size_of::<Frame>())?;
                    (*of, *id) = (number, profile.intern(frames.get(*frame as usize)?.clone()));
                }
                *frame = *id;
            }
            let mut times = self.list(0)?;
            // Functions that cut or join profiles rely on the order of time slots.
            merge_slots(&mut times);
            let text = |at: u32| strings.get(at as usize).cloned();
            profile.samples.push(Sample {
                pid: record.pid,
                command: text(record.command)?,
                thread: text(record.thread)?,
                tid: record.tid,
                cpu: record.cpu,
                stack,
                complete: record.complete,
                guessed: record.guessed,
                unsure: record.unsure,
                count: record.count,
                occurrences: record.things,
                times,
                span: match record.span {
                    Some(at) => Some(*contexts.get(at as usize)?),
                    None => None,
                },
            });
        }
        Some((header.jvm, profile))
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn frames() -> impl Strategy<Value = Frame> {
        let name = "[a-cä<>.]{0,4}";
        (0..Kind::ALL.len(), name, proptest::option::of(name), proptest::option::of(name), 0..9_u32)
            .prop_map(|(kind, name, module, file, line)| {
                let frame = Frame::new(Kind::ALL[kind], name);
                let frame = match module {
                    Some(module) => frame.of_module(&module.into()),
                    None => frame,
                };
                frame.at(file.map(Into::into), line)
            })
    }

    prop_compose! {
        fn samples()(
            (pid, tid, cpu) in (1..9_u32, 0..9_u32, proptest::option::of(0..3_u32)),
            (command, thread) in ("[a-b]{0,2}", "[a-b]{0,2}"),
            frames in vec(frames(), 0..6),
            (complete, guessed, unsure) in any::<(bool, bool, bool)>(),
            (count, things) in any::<(u64, u64)>(),
            mut times in vec((0..u32::MAX, 1..99_u64), 0..5),
            id in proptest::option::of(0..3_u8),
        ) -> (Sample, Vec<Frame>) {
            let span = id.and_then(|id| SpanContext::new([id; 16], [7; 8]));
            merge_slots(&mut times);
            let (command, thread) = (command.into(), thread.into());
            let stack = Vec::new();
            let sample = Sample { pid, command, thread, tid, cpu, stack, complete, guessed, unsure,
                count, occurrences: things, times, span };
            (sample, frames)
        }
    }

    prop_compose! {
        fn profiles()(
            measure in prop_oneof![
                Just(Measure::Time), Just(Measure::Allocation),
                "[a-b]{1,2}".prop_map(|name| Measure::Events(name.into())),
                "[a-b]{1,2}".prop_map(|name| Measure::Elapsed(name.into())),
            ],
            samples in vec(samples(), 0..8),
            (hertz, duration_ns, begin_unix_ns) in any::<(u64, u64, u64)>(),
            (slot_ns, lost, folded) in any::<(u64, u64, u64)>(),
        ) -> Profile {
            let mut profile = Profile::of(measure);
            for (mut sample, frames) in samples {
                sample.stack = frames.into_iter().map(|frame| profile.intern(frame)).collect();
                profile.samples.push(sample);
            }
            (profile.hertz, profile.duration_ns) = (hertz, duration_ns);
            (profile.begin_unix_ns, profile.slot_ns) = (begin_unix_ns, slot_ns);
            (profile.lost, profile.folded) = (lost, folded);
            profile
        }
    }

    /// Returns the content of a profile, with frames in place of their numbers.
    fn content(profile: &Profile) -> impl PartialEq + std::fmt::Debug {
        let samples = profile.samples.iter().map(|sample| {
            let stack = sample.stack.iter().map(|&id| profile.frame(id).clone());
            (stack.collect::<Vec<_>>(), Sample { stack: Vec::new(), ..sample.clone() })
        });
        let of = (profile.hertz, profile.duration_ns, profile.begin_unix_ns, profile.slot_ns);
        let samples: Vec<_> = samples.collect();
        (profile.measure.clone(), of, (profile.lost, profile.folded), samples)
    }

    fn numbered(profiles: &[Profile]) -> Vec<(u32, &Profile)> {
        (7..).zip(profiles).collect()
    }

    proptest! {
        #[test]
        fn written_profiles_read_back_unchanged(profiles in vec(profiles(), 0..4)) {
            let mut bytes = Vec::new();
            write(&numbered(&profiles), &mut bytes).unwrap();
            let again = read(&bytes[..]).unwrap();
            prop_assert_eq!(again.len(), profiles.len());
            for ((jvm, was), (number, is)) in numbered(&profiles).into_iter().zip(again) {
                prop_assert_eq!(jvm, number);
                prop_assert_eq!(content(was), content(&is));
            }
        }

        #[test]
        fn damaged_files_are_rejected_or_decoded(
            profiles in vec(profiles(), 1..3),
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..9),
            length in any::<prop::sample::Index>(),
        ) {
            let mut bytes = encode(&numbered(&profiles)).unwrap();
            // A truncated file is refused.
            prop_assert!(decode(&bytes[..length.index(bytes.len())]).is_none());
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Some(read) = decode(&bytes) {
                let read: Vec<_> = read.iter().map(|(jvm, profile)| (*jvm, profile)).collect();
                prop_assert!(encode(&read).is_ok());
            }
        }
    }

    /// A change of the encoding needs another version of the store: see [`crate::store::folder::VERSION`].
    #[test]
    fn encoding_matches_the_format_version() {
        let mut profile = Profile::of(Measure::Elapsed("off-cpu".into()));
        (profile.hertz, profile.slot_ns) = (19, 1 << 30);
        let mut sample = Sample {
            pid: 7,
            command: "java".into(),
            thread: "main".into(),
            tid: 300,
            cpu: Some(1),
            stack: Vec::new(),
            complete: true,
            guessed: false,
            unsure: true,
            count: 3,
            occurrences: 2,
            times: vec![(1, 2), (5, 1)],
            span: SpanContext::new([1; 16], [2; 8]),
        };
        for kind in Kind::ALL {
            let frame = Frame::new(kind, "f").of_module(&"m".into()).at(Some("s".into()), 9);
            sample.stack.push(profile.intern(frame));
        }
        profile.samples.push(sample);
        let frame = |kind: u8| [kind, 0, 1, 1, 1, 2, 9];
        let frames: Vec<_> = (0..9).flat_map(frame).collect();
        let expected: [&[u8]; 8] = [
            b"\x05\x01f\x01m\x01s\x04java\x04main\x09",
            &frames,
            &[1],
            &[1; 16],
            &[2; 8],
            b"\x01\x06\x03\x07off-cpu\x13\x00\x00\x80\x80\x80\x80\x04\x00\x00\x01",
            b"\x07\x03\x04\xac\x02\x01\x01\x01\x00\x01\x03\x02\x01\x00",
            b"\x09\x00\x01\x02\x03\x04\x05\x06\x07\x08\x02\x01\x02\x05\x01",
        ];
        assert_eq!(encode(&[(6, &profile)]).unwrap(), expected.concat());
        for (number, measure) in [Measure::Time, Measure::Allocation, Measure::Events("a".into())]
            .into_iter()
            .enumerate()
        {
            let bytes = encode(&[(0, &Profile::of(measure))]).unwrap();
            assert_eq!(usize::from(bytes[5]), number, "{bytes:?}");
        }
    }

    #[test]
    fn files_that_need_too_much_memory_are_refused() {
        // 70 MB of zeros, in 70 kB.
        let mut bytes = Vec::new();
        let mut zip = GzEncoder::new(&mut bytes, Compression::fast());
        (0..70).for_each(|_| zip.write_all(&vec![0; 1 << 20]).unwrap());
        zip.finish().unwrap();
        assert_eq!(read(&bytes[..]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read(&b"\x1f\x8b"[..]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        // Empty strings, which take one byte each in the file.
        let strings = |number: usize| {
            let mut bytes = Vec::new();
            put(&mut bytes, vec![""; number]).unwrap();
            // No frames, no contexts, and no profiles.
            bytes.extend([0, 0, 0]);
            decode(&bytes).is_some()
        };
        assert!(strings(1000) && !strings(1 + MAX_MEMORY / STRING));
        // A number of samples that exceeds the remaining bytes.
        let mut bytes = encode(&[(0, &Profile::default())]).unwrap();
        assert!(decode(&bytes).is_some());
        *bytes.last_mut().unwrap() = 1;
        assert!(decode(&bytes).is_none());
        // A file that could not be read again is not written.
        let mut profile = Profile::default();
        let mut sample = |slots: usize| {
            profile.samples = vec![Sample {
                command: "".into(),
                count: 1,
                times: vec![(0, 1); slots],
                ..Sample::of(1, "".into(), 1, Vec::new())
            }];
            encode(&[(0, &profile)]).map(|bytes| decode(&bytes).is_some())
        };
        assert!(sample(1000).unwrap());
        assert_eq!(sample(MAX_MEMORY / 16).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}

//! Profiles that are read again: pprof's format, with what it has no fields for in fields of its
//! own. Other readers skip these, as protocol buffers have it.
//!
//! What is read is foreign: it is bounded, and each number in it is checked.

use std::{
    collections::{HashMap, hash_map::Entry},
    io::{self, Read, Write},
    sync::Arc,
};

use flate2::read::GzDecoder;
use prost::Message;

use crate::{
    render::formats::pprof::{self, Function, Label, Owned, Part, Proto},
    stack::{
        Frame, Kind,
        profile::{FrameId, Measure, Profile, Sample},
        times::{Times, add_up},
    },
};

/// A profile that is kept, and whose it is.
#[derive(Debug)]
pub struct Kept<P> {
    /// A number that the reader knows.
    pub owner: u32,
    /// What its owner is called: other tools show samples by that.
    pub name: Arc<str>,
    /// The profile.
    pub profile: P,
}

/// So many bytes are read of a file, when it is not compressed any more.
const MAX_BYTES: u64 = 64 << 20;

/// So many samples, functions, locations and strings.
const MAX_ITEMS: usize = 1 << 20;

/// The kinds of code by number: a number means the same forever.
const KINDS: [Kind; 9] = [
    Kind::Java,
    Kind::Inlined,
    Kind::Interpreted,
    Kind::Stub,
    Kind::Jvm,
    Kind::Native,
    Kind::Kernel,
    Kind::Class,
    Kind::Unknown,
];

/// That of a kind.
pub(super) fn number(kind: Kind) -> u32 {
    let at = KINDS.iter().position(|known| *known == kind);
    at.and_then(|at| u32::try_from(at).ok()).unwrap_or(0)
}

/// What is known of a profile beyond its samples.
pub(super) fn part(profile: &Profile, owner: u32, column: usize) -> Part {
    let (measure, name) = match &profile.measure {
        Measure::Time => (0, ""),
        Measure::Allocation => (1, ""),
        Measure::Events(name) => (2, &**name),
        Measure::Elapsed(name) => (3, &**name),
    };
    Part {
        measure,
        name: name.to_owned(),
        hertz: profile.hertz,
        duration_ns: profile.duration_ns,
        begin_unix_ns: profile.begin_unix_ns,
        slot_ns: profile.slot_ns,
        lost: profile.lost,
        folded: profile.folded,
        owner,
        column: u32::try_from(column).unwrap_or(u32::MAX),
    }
}

/// Adds what pprof has no fields for.
pub(super) fn sample(sample: &Sample, part: u32, written: pprof::Sample) -> pprof::Sample {
    let marks = [sample.complete, sample.guessed, sample.unsure];
    let bits = marks.iter().zip([1, 2, 4]).map(|(&is, bit)| if is { bit } else { 0 });
    let mut before = 0;
    let slot = sample.times.iter().map(|&(slot, _)| {
        // In order, as `Sample::times` is; what is not is read as what it is all the same.
        let step = slot.wrapping_sub(before);
        before = slot;
        step
    });
    let slot = slot.collect();
    let in_slot = sample.times.iter().map(|&(_, count)| count).collect();
    pprof::Sample { part, marks: bits.sum(), slot, in_slot, ..written }
}

/// Takes back what is of use to this reader alone.
pub(super) fn forget(function: &mut Function) {
    (function.kind, function.module, function.has_file) = (0, 0, false);
}

/// Writes profiles, in the order that they are read again.
///
/// # Errors
/// Those of the writer; [`io::ErrorKind::InvalidData`] where they are more than would be read again.
pub fn write(profiles: &[Kept<&Profile>], to: impl Write) -> io::Result<()> {
    let owned = profiles.iter().map(|kept| {
        let owner = Some((kept.owner, &*kept.name));
        Owned { profile: kept.profile, owner }
    });
    let proto = pprof::proto(&owned.collect::<Vec<_>>(), true);
    let items = [proto.sample.len(), proto.string_table.len(), 2 * proto.location.len()];
    if proto.encoded_len() as u64 > MAX_BYTES || items.iter().sum::<usize>() + 64 > MAX_ITEMS {
        return Err(invalid("too large"));
    }
    pprof::zip(&proto, to)
}

/// Reads profiles again. Frames that no sample refers to are not there any more.
///
/// # Errors
/// Those of the reader; [`io::ErrorKind::InvalidData`] for what [`write`](fn@write) has not written.
pub fn read(from: impl Read) -> io::Result<Vec<Kept<Profile>>> {
    let mut bytes = Vec::new();
    GzDecoder::new(from).take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(invalid("too large"));
    }
    if items(&bytes).is_none_or(|items| items > MAX_ITEMS) {
        return Err(invalid("too many samples, or none of pprof's files"));
    }
    let proto = Proto::decode(&bytes[..]).map_err(|e| invalid(&e.to_string()))?;
    drop(bytes);
    Reader::new(&proto).and_then(Reader::read).ok_or_else(|| invalid("a number in it is wrong"))
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("no profile that could be read: {why}"))
}

/// How many fields a message has: each may become much larger than it is here. `None` for what is
/// no message. Source: protobuf.dev, "Encoding".
fn items(mut bytes: &[u8]) -> Option<usize> {
    let mut count = 0_usize;
    while !bytes.is_empty() {
        let length = match varint(&mut bytes)? & 7 {
            0 => {
                varint(&mut bytes)?;
                0
            }
            1 => 8,
            2 => usize::try_from(varint(&mut bytes)?).ok()?,
            5 => 4,
            _ => return None,
        };
        bytes = bytes.get(length..)?;
        count += 1;
    }
    Some(count)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// What numbers in a file stand for.
struct Reader<'a> {
    proto: &'a Proto,
    strings: Vec<Arc<str>>,
    frames: HashMap<u64, Frame>,
}

impl<'a> Reader<'a> {
    fn new(proto: &'a Proto) -> Option<Self> {
        let strings = proto.string_table.iter().map(|text| text.as_str().into()).collect();
        let mut reader = Self { proto, strings, frames: HashMap::new() };
        let functions: HashMap<_, _> = proto.function.iter().map(|f| (f.id, f)).collect();
        for location in &proto.location {
            let [line] = &location.line[..] else { return None };
            let frame = reader.frame(functions.get(&line.function_id)?, line.line)?;
            reader.frames.insert(location.id, frame);
        }
        Some(reader)
    }

    fn text(&self, id: i64) -> Option<&Arc<str>> {
        self.strings.get(usize::try_from(id).ok()?)
    }

    fn frame(&self, function: &Function, line: i64) -> Option<Frame> {
        let kind = *KINDS.get(function.kind as usize)?;
        let frame = Frame::new(kind, Arc::clone(self.text(function.name)?));
        let frame = match function.module {
            0 => frame,
            id => frame.of_module(self.text(id.checked_sub(1)?)?),
        };
        let file = if function.has_file { Some(self.text(function.filename)?) } else { None };
        Some(frame.at(file.cloned(), u32::try_from(line).ok()?))
    }

    fn read(self) -> Option<Vec<Kept<Profile>>> {
        let of_part = |part: &Part| {
            let name = || Arc::<str>::from(part.name.as_str());
            let mut profile = Profile::of(match part.measure {
                0 => Measure::Time,
                1 => Measure::Allocation,
                2 => Measure::Events(name()),
                3 => Measure::Elapsed(name()),
                _ => return None,
            });
            profile.hertz = part.hertz;
            profile.duration_ns = part.duration_ns;
            profile.begin_unix_ns = part.begin_unix_ns;
            profile.slot_ns = part.slot_ns;
            profile.lost = part.lost;
            profile.folded = part.folded;
            Some(Kept { owner: part.owner, name: "".into(), profile })
        };
        let mut all = self.proto.part.iter().map(of_part).collect::<Option<Vec<_>>>()?;
        let mut ids: HashMap<(u32, u64), FrameId> = HashMap::new();
        for written in &self.proto.sample {
            let part = self.proto.part.get(written.part as usize)?;
            let kept = all.get_mut(written.part as usize)?;
            let sample = self.sample(written, part, &mut kept.profile, &mut ids)?;
            kept.profile.samples.push(sample);
            if kept.name.is_empty() {
                kept.name = self.label(&written.label, "service.name")?.0;
            }
        }
        Some(all)
    }

    /// A label's text and number.
    fn label(&self, labels: &[Label], key: &str) -> Option<(Arc<str>, i64)> {
        let label =
            labels.iter().find(|label| self.text(label.key).is_some_and(|k| **k == *key))?;
        Some((Arc::clone(self.text(label.str)?), label.num))
    }

    fn sample(
        &self,
        written: &pprof::Sample,
        part: &Part,
        profile: &mut Profile,
        ids: &mut HashMap<(u32, u64), FrameId>,
    ) -> Option<Sample> {
        let mut stack = Vec::with_capacity(written.location_id.len());
        for &location in written.location_id.iter().rev() {
            stack.push(match ids.entry((written.part, location)) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => {
                    *new.insert(profile.intern(self.frames.get(&location)?.clone()))
                }
            });
        }
        let value = |at: usize| -> Option<u64> {
            let at = (part.column as usize).checked_mul(2)?.checked_add(at)?;
            u64::try_from(*written.value.get(at)?).ok()
        };
        // Of processor time, the second value is made of the first one.
        let (count, things) = match profile.measure {
            Measure::Time => (value(0)?, 0),
            _ => (value(1)?, value(0)?),
        };
        let (mut times, mut slot): (Times, u32) = (Vec::new(), 0);
        for (&step, &count) in written.slot.iter().zip(&written.in_slot) {
            slot = slot.wrapping_add(step);
            times.push((slot, count));
        }
        add_up(&mut times);
        let text = |key: &str| Some(self.label(&written.label, key)?.0);
        let number = |key: &str| u32::try_from(self.label(&written.label, key)?.1).ok();
        Some(Sample {
            pid: number("pid")?,
            command: text("command")?,
            thread: text("thread")?,
            tid: number("tid")?,
            cpu: number("cpu"),
            stack,
            complete: written.marks & 1 != 0,
            guessed: written.marks & 2 != 0,
            unsure: written.marks & 4 != 0,
            count,
            things,
            times,
        })
    }
}

/// What a fuzzer begins with: two profiles, before they are compressed.
#[cfg(feature = "fuzzing")]
pub(crate) fn seed() -> Vec<u8> {
    let mut profile = Profile::default();
    (profile.hertz, profile.slot_ns) = (19, 1 << 30);
    let module = "libc.so.6".into();
    let native = Frame::new(Kind::Native, "read").of_module(&module).at(Some("read.c".into()), 7);
    let stack = [Frame::new(Kind::Java, "a.Main.main"), native].map(|f| profile.intern(f)).to_vec();
    let text = || Arc::<str>::from("java");
    profile.samples.push(Sample {
        pid: 7,
        command: text(),
        thread: text(),
        tid: 8,
        cpu: Some(1),
        stack,
        complete: true,
        guessed: false,
        unsure: true,
        count: 3,
        things: 0,
        times: vec![(1, 2), (5, 1)],
    });
    let alloc = Profile::of(Measure::Allocation);
    let all = [&profile, &alloc].map(|profile| Owned { profile, owner: Some((0, "shop")) });
    pprof::proto(&all, true).encode_to_vec()
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn frames() -> impl Strategy<Value = Frame> {
        let name = "[a-cä<>.]{0,4}";
        (0..KINDS.len(), name, proptest::option::of(name), proptest::option::of(name), 0..9_u32)
            .prop_map(|(kind, name, module, file, line)| {
                let frame = Frame::new(KINDS[kind], name);
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
            (count, things) in (0..1_u64 << 50, 0..1_u64 << 50),
            mut times in vec((0..u32::MAX, 1..99_u64), 0..5),
        ) -> (Sample, Vec<Frame>) {
            add_up(&mut times);
            let (command, thread) = (command.into(), thread.into());
            let stack = Vec::new();
            let sample = Sample { pid, command, thread, tid, cpu, stack, complete, guessed, unsure,
                count, things, times };
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
                if profile.measure == Measure::Time {
                    sample.things = 0;
                }
                profile.samples.push(sample);
            }
            (profile.hertz, profile.duration_ns) = (hertz, duration_ns);
            (profile.begin_unix_ns, profile.slot_ns) = (begin_unix_ns, slot_ns);
            (profile.lost, profile.folded) = (lost, folded);
            profile
        }
    }

    /// All of a profile, with frames in place of their numbers.
    fn all_of(profile: &Profile) -> impl PartialEq + std::fmt::Debug {
        let samples = profile.samples.iter().map(|sample| {
            let stack = sample.stack.iter().map(|&id| profile.frame(id).clone());
            (stack.collect::<Vec<_>>(), Sample { stack: Vec::new(), ..sample.clone() })
        });
        let of = (profile.hertz, profile.duration_ns, profile.begin_unix_ns, profile.slot_ns);
        let samples: Vec<_> = samples.collect();
        (profile.measure.clone(), of, (profile.lost, profile.folded), samples)
    }

    proptest! {
        #[test]
        fn what_is_kept_is_read_again(profiles in vec(profiles(), 0..4)) {
            let kept = |(profile, owner)| Kept { owner, name: "shop".into(), profile };
            let written: Vec<_> = profiles.iter().zip(7..).map(kept).collect();
            let mut bytes = Vec::new();
            write(&written, &mut bytes).unwrap();
            let again = read(&bytes[..]).unwrap();
            prop_assert_eq!(again.len(), profiles.len());
            for ((was, is), owner) in profiles.iter().zip(again).zip(7..) {
                prop_assert_eq!(is.owner, owner);
                prop_assert_eq!(all_of(was), all_of(&is.profile));
            }
        }

        #[test]
        fn whatever_is_changed_is_refused_or_read(
            profile in profiles(),
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..9),
        ) {
            let kept = Owned { profile: &profile, owner: Some((0, "")) };
            let mut bytes = pprof::proto(&[kept], true).encode_to_vec();
            for (at, byte) in changes.iter().filter(|_| !bytes.is_empty()).collect::<Vec<_>>() {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            if let Ok(proto) = Proto::decode(&bytes[..]) {
                let _ = Reader::new(&proto).and_then(Reader::read);
            }
            let _ = items(&bytes);
        }
    }

    #[test]
    fn what_is_too_large_is_refused() {
        // 70 MB of nothing, in 70 kB.
        let mut bytes = Vec::new();
        let mut zip = flate2::write::GzEncoder::new(&mut bytes, flate2::Compression::fast());
        (0..70).for_each(|_| zip.write_all(&vec![0; 1 << 20]).unwrap());
        zip.finish().unwrap();
        assert_eq!(read(&bytes[..]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read(&b"\x1f\x8b"[..]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        // A million samples of two bytes.
        assert_eq!(items(&[0x12, 0].repeat(MAX_ITEMS + 1)), Some(MAX_ITEMS + 1));
    }
}

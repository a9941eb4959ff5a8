//! Events of a profile.
//!
//! A profile has a count for each thread, stack and time slot. The events of a thread in a slot are spread evenly over
//! that slot, in no particular order. Events without a slot are spread over the time of the profile.

use std::{
    io::{self, Write},
    ops::Range,
};

use super::{
    encode::Buffer,
    names::{MethodName, class_name},
    pools::{FrameKey, NONE, Pools, STATE_DEFAULT, STATE_RUNNABLE, STATE_SLEEPING, Thread},
    recording::Recording,
    types::{
        ACTIVE_SETTING, ALLOCATION_SAMPLE, CLASS_DEFINE, COMPILATION, COMPILER, DEOPTIMIZATION,
        DEOPTIMIZATION_ACTION, DEOPTIMIZATION_REASON, EVENT_SAMPLE, EXCEPTION_THROW,
        EXECUTION_SAMPLE, THREAD_START, Type, WALL_CLOCK_SAMPLE,
    },
};
use crate::stack::{
    Kind,
    profile::{FrameId, Measure, Profile, Sample},
    waiting::{ASLEEP, BLOCKED, IDLE, RUNNABLE, SHORT},
};

/// Maximum number of events of one profile that are written one by one. If more events of the program were counted,
/// each event in the file represents several of them.
const MAX_SINGLE: u64 = 1_000_000;

/// Maximum number of samples of CPU time in one profile. Each is an event, and no honest profile has as many.
const MAX_CPU: u64 = 1_000_000_000;

/// Samples per second, for profiles of wall-clock time without a sampling rate.
const HERTZ: u64 = 100;

/// Meaning of a profile's counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// An event for each sample.
    Cpu,
    /// An event for each thread, stack and time slot, with its nanoseconds.
    Wall {
        /// Whether stacks are those of waiting threads, unless their innermost frame says otherwise.
        waits: bool,
    },
    /// An event for each thread, stack and time slot, with its bytes.
    Allocation,
    /// Compilations.
    Compilation,
    /// Occurrences of something, with the type of their events.
    Occurrences(&'static Type),
}

impl PartialEq for Type {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Type {}

impl Shape {
    fn of(profile: &Profile) -> Self {
        match &profile.measure {
            Measure::Time => Self::Cpu,
            Measure::Allocation => Self::Allocation,
            Measure::Elapsed(name) => match &**name {
                "compiles" => Self::Compilation,
                "wall" => Self::Wall { waits: false },
                // As javaprof, jvmprobed and javawait name them.
                "off-cpu" | "wait" | "waits" => Self::Wall { waits: true },
                _ => Self::Occurrences(&EVENT_SAMPLE),
            },
            Measure::Events(name) => Self::Occurrences(match &**name {
                "exceptions" => &EXCEPTION_THROW,
                "classes" => &CLASS_DEFINE,
                // The profile of a thread dump has the same name, but no classes of started threads.
                "threads" if profile.samples.iter().any(|s| labels(profile, s) > 0) => {
                    &THREAD_START
                }
                "deopt" => &DEOPTIMIZATION,
                _ => &EVENT_SAMPLE,
            }),
        }
    }

    fn event(self) -> &'static Type {
        match self {
            Self::Cpu => &EXECUTION_SAMPLE,
            Self::Wall { .. } => &WALL_CLOCK_SAMPLE,
            Self::Allocation => &ALLOCATION_SAMPLE,
            Self::Compilation => &COMPILATION,
            Self::Occurrences(of) => of,
        }
    }

    /// Returns the number of events for a count.
    fn events(self, count: u64, is_single: bool) -> u64 {
        match self {
            Self::Cpu => count,
            Self::Occurrences(of) if *of != EVENT_SAMPLE && is_single => count,
            _ => 1,
        }
    }
}

/// Count of a sample in a time slot.
struct Entry {
    /// Number of the slot, counted from 1; 0 for counts without a slot.
    slot: u64,
    /// Position of the thread in the sorted list of threads.
    thread: u32,
    /// Position of the sample.
    sample: u32,
    count: u64,
}

/// Encodes the samples of a profile. The encoded form contains keys of one chunk, and is made again for the next one.
struct Encoder<'a> {
    profile: &'a Profile,
    shape: Shape,
    chunk: u64,
    /// Positions of the profile's frames in the list of the chunk's frames.
    frames: Vec<Option<FrameKey>>,
    /// Fields of the samples' events, except for times and counts, and where those of each sample are.
    fields: Buffer,
    ranges: Vec<Option<Range<usize>>>,
}

impl<'a> Encoder<'a> {
    fn new(profile: &'a Profile, shape: Shape) -> Self {
        Self {
            profile,
            shape,
            // No chunk has this number, so that the first sample starts a list of the right length.
            chunk: u64::MAX,
            frames: Vec::new(),
            fields: Buffer::default(),
            ranges: Vec::new(),
        }
    }

    /// Returns the fields of a sample's events, with keys of this chunk.
    fn fields(&mut self, chunk: u64, number: u32, pools: &mut Pools) -> &[u8] {
        if self.chunk != chunk {
            self.chunk = chunk;
            self.frames.clear();
            self.frames.resize(self.profile.frames().len(), None);
            self.fields.clear();
            self.ranges.clear();
            self.ranges.resize(self.profile.samples.len(), None);
        }
        let number = number as usize;
        let range = match &self.ranges[number] {
            Some(range) => range.clone(),
            None => {
                let begin = self.fields.len();
                self.encode(&self.profile.samples[number], pools);
                let range = begin..self.fields.len();
                self.ranges[number] = Some(range.clone());
                range
            }
        };
        &self.fields.bytes()[range]
    }

    /// Returns the positions of a stack's frames, innermost frame first.
    fn stack(&mut self, stack: &[FrameId], pools: &mut Pools) -> Vec<FrameKey> {
        let key = |&id: &FrameId| {
            let frame = self.profile.frame(id);
            *self.frames[id as usize].get_or_insert_with(|| pools.frame(frame))
        };
        stack.iter().rev().map(key).collect()
    }

    /// Encodes the fields behind the start time that are equal in all events of a sample.
    fn encode(&mut self, sample: &Sample, pools: &mut Pools) {
        let Self { profile, shape, .. } = *self;
        let labels = match shape {
            Shape::Allocation | Shape::Occurrences(_) => labels(profile, sample),
            _ => 0,
        };
        let frames = &sample.stack[..sample.stack.len() - labels];
        let label = sample.stack.get(frames.len()).map(|&id| &*profile.frame(id).name);
        let frames = match shape {
            // This type has labels in its stacks, because no field contains them.
            Shape::Occurrences(of) if *of == EVENT_SAMPLE => &sample.stack,
            Shape::Allocation | Shape::Occurrences(_) => java_part(profile, frames),
            _ => frames,
        };
        let keys = self.stack(frames, pools);
        let innermost = keys.first().map(|&key| pools.frame_value(key));
        let class = |pools: &mut Pools| match label {
            Some(class) => pools.class(&class_name(class)),
            None => NONE,
        };
        let thread = thread(sample, pools);
        let to = &mut self.fields;
        to.number(thread);
        to.number(pools.stack(&keys));
        match shape {
            Shape::Cpu => to.number(STATE_DEFAULT),
            Shape::Wall { waits } => to.number(state(profile, sample, waits)),
            Shape::Allocation => to.number(class(pools)),
            Shape::Occurrences(of) if *of == EVENT_SAMPLE => to.text(profile.measure.name()),
            Shape::Occurrences(of) if *of == EXCEPTION_THROW => {
                to.no_text();
                to.number(class(pools));
            }
            Shape::Occurrences(of) if *of == CLASS_DEFINE => to.number(class(pools)),
            Shape::Occurrences(of) if *of == THREAD_START => {
                to.number(thread);
                to.number(class(pools));
            }
            Shape::Occurrences(of) if *of == DEOPTIMIZATION => {
                to.number(innermost.map_or(NONE, |frame| frame.method));
                to.number(innermost.map_or(0, |frame| frame.line.into()));
                let label = label.unwrap_or("unknown");
                let (reason, action) = label
                    .strip_suffix(')')
                    .and_then(|label| label.split_once(" ("))
                    .unwrap_or((label, "unknown"));
                to.number(pools.name(DEOPTIMIZATION_REASON, reason));
                to.number(pools.name(DEOPTIMIZATION_ACTION, action));
            }
            Shape::Occurrences(_) | Shape::Compilation => {}
        }
    }
}

impl<W: Write> Recording<W> {
    /// Adds the samples of a profile.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn profile(&mut self, profile: &Profile) -> io::Result<()> {
        let shape = Shape::of(profile);
        if profile.samples.is_empty() {
            return Ok(());
        }
        let total = profile.samples.iter().fold(0_u64, |sum, s| sum.saturating_add(s.count));
        if shape == Shape::Cpu && total > MAX_CPU {
            let error =
                format!("the profile has {total} samples, more than a recording can contain");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        self.settings(profile, shape)?;
        if shape == Shape::Compilation {
            return profile
                .samples
                .iter()
                .try_for_each(|sample| self.compilations(profile, sample));
        }
        let is_single = total <= MAX_SINGLE;
        let hertz = if profile.hertz == 0 { HERTZ } else { profile.hertz };
        let interval_ns = (1_000_000_000 / hertz).max(1);
        let mut encoder = Encoder::new(profile, shape);
        // Time of each sample that is not contained in the number of its wall-clock samples yet, in nanoseconds.
        let mut rest_ns = vec![interval_ns / 2; profile.samples.len()];
        let entries = entries(profile);
        for group in entries.chunk_by(|a, b| (a.slot, a.thread) == (b.slot, b.thread)) {
            let period = period(profile, group[0].slot);
            let all = group.iter().map(|entry| shape.events(entry.count, is_single)).sum();
            let mut number = 0;
            for entry in group {
                let events = shape.events(entry.count, is_single);
                let weight = entry.count / events.max(1);
                for _ in 0..events {
                    let start = spread(period, number, all);
                    number += 1;
                    let chunk = self.chunk;
                    self.event(shape.event(), (start, start), |pools, to| {
                        to.raw(encoder.fields(chunk, entry.sample, pools));
                        match shape {
                            Shape::Wall { .. } => {
                                let rest_ns = &mut rest_ns[entry.sample as usize];
                                *rest_ns = rest_ns.saturating_add(weight);
                                let samples = *rest_ns / interval_ns;
                                *rest_ns %= interval_ns;
                                to.number(samples.min(i32::MAX as u64));
                                to.number(weight);
                            }
                            Shape::Allocation | Shape::Occurrences(_) => to.number(weight),
                            Shape::Cpu | Shape::Compilation => {}
                        }
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Adds the settings by which readers interpret a profile.
    fn settings(&mut self, profile: &Profile, shape: Shape) -> io::Result<()> {
        let interval_ns = 1_000_000_000 / profile.hertz.max(1);
        let settings: &[(&str, String)] = match shape {
            Shape::Cpu | Shape::Wall { .. } if profile.hertz > 0 => {
                &[("enabled", "true".into()), ("period", format!("{interval_ns} ns"))]
            }
            _ => &[("enabled", "true".into())],
        };
        let start = profile.begin_unix_ns;
        settings.iter().try_for_each(|(name, value)| {
            self.event(&ACTIVE_SETTING, (start, start), |_, to| {
                to.number(shape.event().id.0);
                to.text(name);
                to.text(value);
            })
        })
    }

    /// Adds the compilations of a sample. If the sample is the sum of several, each gets the same part of the time.
    fn compilations(&mut self, profile: &Profile, sample: &Sample) -> io::Result<()> {
        let slots = sample.times.iter().map(|&(slot, _)| u64::from(slot) + 1);
        let slots = slots.filter(|_| profile.slot_ns > 0);
        let (first, last) = (slots.clone().min().unwrap_or(0), slots.max().unwrap_or(0));
        let (begin_ns, _) = period(profile, first);
        let (_, end_ns) = period(profile, last);
        let count = sample.occurrences.clamp(1, MAX_SINGLE);
        let duration_ns = sample.count / count;
        (0..count).try_for_each(|number| {
            let step = end_ns.saturating_sub(begin_ns) / count;
            let start = begin_ns.saturating_add(step.saturating_mul(number));
            let end = start.saturating_add(duration_ns);
            self.event(&COMPILATION, (start, end), |pools, to| {
                to.number(duration_ns);
                to.raw(compilation(profile, sample, pools).bytes());
            })
        })
    }
}

/// Returns the counts of all samples, sorted by slot, thread and sample.
fn entries(profile: &Profile) -> Vec<Entry> {
    let thread = |sample: &Sample| (sample.pid, sample.tid);
    let mut threads: Vec<_> = profile.samples.iter().map(thread).collect();
    threads.sort_unstable();
    threads.dedup();
    let mut entries = Vec::new();
    // Profiles have far fewer than 2^32 samples, because these are in memory.
    for (number, sample) in (0..).zip(&profile.samples) {
        let thread = threads.partition_point(|other| *other < thread(sample)) as u32;
        let mut rest = sample.count;
        let mut add = |slot: u64, count: u64| {
            if count > 0 {
                entries.push(Entry { slot, thread, sample: number, count });
            }
        };
        if profile.slot_ns > 0 {
            for &(slot, count) in &sample.times {
                // The counts per slot of a sample never exceed its count, unless a profile is damaged.
                let count = count.min(rest);
                rest -= count;
                add(u64::from(slot) + 1, count);
            }
        }
        add(0, rest);
    }
    entries.sort_unstable_by_key(|entry| (entry.slot, entry.thread, entry.sample));
    entries
}

/// Returns begin and end of a slot, counted from 1, or of the profile, in nanoseconds since 1970.
fn period(profile: &Profile, slot: u64) -> (u64, u64) {
    let begin = profile.begin_unix_ns;
    match slot.checked_sub(1) {
        Some(slot) => {
            let begin = begin.saturating_add(profile.slot_ns.saturating_mul(slot));
            (begin, begin.saturating_add(profile.slot_ns))
        }
        None => (begin, begin.saturating_add(profile.duration_ns)),
    }
}

/// Returns the time of one of `all` events that are spread evenly over a period.
fn spread((begin, end): (u64, u64), number: u64, all: u64) -> u64 {
    let length = end.saturating_sub(begin);
    let (position, all) = (2 * number + 1, 2 * all.max(1));
    let part = match length.checked_mul(position) {
        Some(product) => product / all,
        None => {
            let part = u128::from(length) * u128::from(position) / u128::from(all);
            u64::try_from(part).unwrap_or(0)
        }
    };
    begin.saturating_add(part)
}

/// Encodes the fields of a compilation behind its duration. Its labels are the compiler with its tier, and the method.
fn compilation(profile: &Profile, sample: &Sample, pools: &mut Pools) -> Buffer {
    let mut to = Buffer::default();
    to.number(thread(sample, pools));
    let labels = labels(profile, sample).min(2);
    let mut labels =
        sample.stack[sample.stack.len() - labels..].iter().rev().map(|&id| profile.frame(id));
    let method = labels.next().map(|frame| MethodName::of_java(&frame.name));
    let how = labels.next().map_or("", |frame| &*frame.name);
    let without = |how, mark| match str::strip_suffix(how, mark) {
        Some(how) => (how, true),
        None => (how, false),
    };
    let (how, is_failed) = without(how, " (failed)");
    let (how, is_osr) = without(how, " (OSR)");
    let (compiler, tier) = how.split_once(" tier ").unwrap_or((how, ""));
    to.number(pools.name(COMPILER, compiler));
    to.number(method.map_or(NONE, |method| pools.method(method)));
    to.number(tier.parse::<u8>().unwrap_or(0).into());
    to.boolean(!is_failed);
    to.boolean(is_osr);
    to
}

/// Returns the key of a sample's thread.
fn thread(sample: &Sample, pools: &mut Pools) -> u64 {
    // Allocations have no thread, unless threads are kept apart.
    if sample.tid == 0 {
        return NONE;
    }
    let &Sample { pid, tid, .. } = sample;
    let thread = Thread { pid, tid, name: sample.thread.clone(), virtual_thread: 0 };
    pools.thread(thread, &sample.command)
}

/// Returns the stack without the innermost frames that the JDK's events do not have: native code and, for throwables, the
/// method that records their stack. Stacks without Java code are complete.
fn java_part<'a>(profile: &Profile, stack: &'a [FrameId]) -> &'a [FrameId] {
    let is_kept = |&id: &FrameId| {
        let frame = profile.frame(id);
        frame.is_java() && &*frame.name != "java.lang.Throwable.fillInStackTrace"
    };
    stack.iter().rposition(is_kept).map_or(stack, |last| &stack[..=last])
}

/// Returns the number of innermost frames that are labels.
fn labels(profile: &Profile, sample: &Sample) -> usize {
    let is_label = |id: &&FrameId| profile.frame(**id).kind == Kind::Class;
    sample.stack.iter().rev().take_while(is_label).count()
}

/// Returns the state of a thread in a profile of wall-clock time.
fn state(profile: &Profile, sample: &Sample, waits: bool) -> u64 {
    let innermost = sample.stack.last().map_or("", |&id| &*profile.frame(id).name);
    let is_waiting = [BLOCKED, IDLE, SHORT, ASLEEP, RUNNABLE].contains(&innermost);
    // In the daemon's wall-clock profiles, a label in brackets says what the thread does.
    let is_labelled = sample.stack.last().is_some_and(|&id| profile.frame(id).kind == Kind::Class);
    let is_waiting = is_waiting || waits || is_labelled && innermost != "[on CPU]";
    if is_waiting { STATE_SLEEPING } else { STATE_RUNNABLE }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::Frame;

    /// Returns a profile of one stack with this count.
    fn profile(measure: Measure, count: u64) -> Profile {
        let mut profile = Profile::of(measure);
        let stack = vec![profile.intern(Frame::new(Kind::Java, "a.B.c"))];
        profile.samples.push(Sample { count, ..Sample::of(1, "main".into(), 1, stack) });
        profile
    }

    /// Returns the size of a recording of this profile.
    fn size(profile: &Profile) -> usize {
        let mut bytes = Vec::new();
        let mut recording = Recording::new(&mut bytes);
        recording.profile(profile).unwrap();
        recording.finish().unwrap();
        bytes.len()
    }

    #[test]
    fn more_than_a_million_occurrences_are_one_event() {
        let exceptions = |count| size(&profile(Measure::Events("exceptions".into()), count));
        assert!(exceptions(MAX_SINGLE) > 5_000_000);
        assert!(exceptions(MAX_SINGLE + 1) < 20_000);
    }

    #[test]
    fn implausible_number_of_samples_is_an_error() {
        let profile = profile(Measure::Time, MAX_CPU + 1);
        let error = Recording::new(Vec::new()).profile(&profile).unwrap_err();
        assert!(error.to_string().contains("1000000001 samples"), "{error}");
    }

    #[test]
    fn events_are_spread_evenly_over_their_slot() {
        let at = |number| spread((100, 200), number, 4);
        assert_eq!([0, 1, 2, 3].map(at), [112, 137, 162, 187]);
        assert_eq!(spread((5, 5), 0, 0), 5);
    }

    #[test]
    fn native_code_at_the_innermost_end_is_left_out() {
        let mut profile = Profile::default();
        let frames = [
            (Kind::Native, "start_thread"),
            (Kind::Java, "a.B.c"),
            (Kind::Inlined, "java.lang.Throwable.fillInStackTrace"),
            (Kind::Jvm, "JVM_FillInStackTrace"),
        ];
        let stack = frames.map(|(kind, name)| profile.intern(Frame::new(kind, name)));
        assert_eq!(java_part(&profile, &stack), &stack[..2]);
        assert_eq!(java_part(&profile, &stack[..1]), &stack[..1]);
    }
}

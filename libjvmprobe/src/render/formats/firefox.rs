//! Firefox Profiler's JSON (profiler.firefox.com), with samples in order of time if their times are known. Otherwise
//! they follow one another without gaps, as in speedscope's format.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Write},
    time::Duration,
};

use fx::{
    CategoryColor, CategoryPairHandle, CpuDelta, FrameInfo, ThreadHandle, Timestamp, WeightType,
};
use fxprof_processed_profile as fx;

use crate::{
    names::clean,
    render::formats::{Format, TitledProfile, wrong_profile_count},
    stack::{
        Kind,
        profile::{FrameId, Measure, Profile, Sample},
        timeline::slots_per_written_slot,
    },
};

/// Entry of the format table.
pub const FORMAT: Format = Format {
    ending: ".ffprof.json",
    name: "Firefox Profiler",
    draws_differences: false,
    holds_several: false,
    shows_times: true,
    has_span_labels: false,
    write: |profiles, _, to| {
        let [titled] = profiles else { return Err(wrong_profile_count()) };
        write(titled, to)
    },
};

/// A category for each kind of code.
const CATEGORIES: [(Kind, &str, CategoryColor); 9] = [
    (Kind::Java, "Java, compiled", CategoryColor::Green),
    (Kind::Inlined, "Java, inlined", CategoryColor::LightBlue),
    (Kind::Interpreted, "Java, interpreted", CategoryColor::LightGreen),
    (Kind::Stub, "Stubs", CategoryColor::Blue),
    (Kind::Jvm, "JVM", CategoryColor::Yellow),
    (Kind::Native, "Native", CategoryColor::Red),
    (Kind::Kernel, "Kernel", CategoryColor::Orange),
    (Kind::Class, "Classes", CategoryColor::Purple),
    (Kind::Unknown, "Unknown", CategoryColor::Gray),
];

/// The output profile while it is being built.
struct Builder<'a> {
    from: &'a Profile,
    to: fx::Profile,
    categories: HashMap<Kind, CategoryPairHandle>,
    /// By process, thread and name: the handle, and the end of the last sample in nanoseconds.
    threads: HashMap<(u32, u32, &'a str), (ThreadHandle, u64)>,
    processes: HashMap<u32, fx::ProcessHandle>,
}

/// Writes a profile.
fn write(titled: &TitledProfile<'_>, mut to: impl Write) -> io::Result<()> {
    let profile = titled.profile;
    let begin = Duration::from_nanos(profile.begin_unix_ns);
    let reference = fx::ReferenceTimestamp::from_duration_since_unix_epoch(begin);
    let interval = fx::SamplingInterval::from_nanos(interval_ns(profile));
    let mut made = fx::Profile::new(&clean::line(&titled.title.title), reference, interval);
    made.set_symbolicated(true);
    let categories = CATEGORIES.map(|(kind, name, colour)| {
        (kind, CategoryPairHandle::from(made.add_category(name, colour)))
    });
    let mut builder = Builder {
        from: profile,
        to: made,
        categories: categories.into(),
        threads: HashMap::new(),
        processes: HashMap::new(),
    };
    // Samples with known times are added at these times; all others follow one another at the end of their
    // thread.
    let factor = slots_per_written_slot(profile);
    let slot_ns = profile.slot_ns.saturating_mul(factor.into());
    let (mut timed, mut untimed) = (BTreeMap::new(), BTreeMap::new());
    for sample in &profile.samples {
        let thread_stack = (sample.pid, sample.tid, &*sample.thread, &*sample.stack);
        let mut rest = sample.count;
        for &(slot, count) in &sample.times {
            let row = timed.entry((slot / factor, thread_stack)).or_insert((sample, 0_u64));
            row.1 = row.1.saturating_add(count);
            rest = rest.saturating_sub(count);
        }
        if rest > 0 {
            let row = untimed.entry(thread_stack).or_insert((sample, 0_u64));
            row.1 = row.1.saturating_add(rest);
        }
    }
    for ((slot, _), (sample, count)) in timed {
        builder.add(sample, count, Some(u64::from(slot).saturating_mul(slot_ns)));
    }
    for (sample, count) in untimed.into_values() {
        builder.add(sample, count, None);
    }
    to.write_all(clean::json(&serde_json::to_string(&builder.to)?).as_bytes())?;
    to.flush()
}

/// Returns the assumed interval between two samples in nanoseconds: the sampling interval of CPU time; for
/// other measures, one millisecond.
fn interval_ns(profile: &Profile) -> u64 {
    match profile.measure {
        Measure::Time => 1_000_000_000 / profile.hertz.max(1),
        _ => 1_000_000,
    }
}

impl<'a> Builder<'a> {
    /// Adds a sample at the time `at_ns`; without one, after the last sample of its thread.
    fn add(&mut self, sample: &'a Sample, count: u64, at_ns: Option<u64>) {
        let (thread, end) = self.thread(sample);
        let at_ns = at_ns.unwrap_or(end);
        let frames: Vec<_> = sample.stack.iter().map(|&id| self.frame(id)).collect();
        let stack = self.to.intern_stack_frames(thread, frames.into_iter());
        let mut weight = match self.from.measure {
            // In the format, weights that are times are whole milliseconds.
            Measure::Elapsed(_) => count.saturating_add(500_000) / 1_000_000,
            _ => count,
        };
        // Weights above i32::MAX are split into several samples.
        while weight > 0 {
            let part = i32::try_from(weight).unwrap_or(i32::MAX);
            let at = Timestamp::from_nanos_since_reference(at_ns);
            self.to.add_sample(thread, at, stack, CpuDelta::ZERO, part);
            weight -= u64::from(part.unsigned_abs());
        }
        let duration_ns = match self.from.measure {
            Measure::Elapsed(_) => count,
            Measure::Time => count.saturating_mul(interval_ns(self.from)),
            _ => interval_ns(self.from),
        };
        let key = (sample.pid, sample.tid, &*sample.thread);
        if let Some((_, end)) = self.threads.get_mut(&key) {
            *end = at_ns.saturating_add(duration_ns);
        }
    }

    fn thread(&mut self, sample: &'a Sample) -> (ThreadHandle, u64) {
        let key = (sample.pid, sample.tid, &*sample.thread);
        if let Some(known) = self.threads.get(&key) {
            return *known;
        }
        let start = Timestamp::from_nanos_since_reference(0);
        let to = &mut self.to;
        let command = clean::name(&sample.command);
        let process = self
            .processes
            .entry(sample.pid)
            .or_insert_with(|| to.add_process(&command, sample.pid, start));
        let thread = to.add_thread(*process, sample.tid, start, sample.tid == sample.pid);
        to.set_thread_name(thread, &clean::name(&sample.thread));
        to.set_thread_samples_weight_type(
            thread,
            match self.from.measure {
                Measure::Time | Measure::Events(_) => WeightType::Samples,
                Measure::Allocation => WeightType::Bytes,
                Measure::Elapsed(_) => WeightType::TracingMs,
            },
        );
        self.threads.insert(key, (thread, 0));
        (thread, 0)
    }

    fn frame(&mut self, id: FrameId) -> FrameInfo {
        let frame = self.from.frame(id);
        let category_pair = self.categories.get(&frame.kind).copied();
        FrameInfo {
            frame: fx::Frame::Label(self.to.intern_string(&frame.name)),
            category_pair: category_pair.unwrap_or(fx::CategoryHandle::OTHER.into()),
            flags: fx::FrameFlags::empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::render::formats::{flamegraph::Title, folded::tests::profile};

    fn json(profile: &Profile) -> Value {
        let mut bytes = Vec::new();
        let titled = TitledProfile { profile, title: Title::default(), bands: Vec::new() };
        write(&titled, &mut bytes).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    fn weights(thread: &Value) -> Vec<i64> {
        thread["samples"]["weight"]
            .as_array()
            .unwrap()
            .iter()
            .map(|w| w.as_i64().unwrap())
            .collect()
    }

    #[test]
    fn samples_are_grouped_by_thread() {
        let json = json(&profile());
        let threads = json["threads"].as_array().unwrap();
        let mut all: Vec<_> = threads.iter().map(weights).collect();
        all.sort();
        assert_eq!(all, [vec![2], vec![3, 1]]);
        assert_eq!(threads[0]["samples"]["weightType"], "samples");
        let text = json.to_string();
        assert!(text.contains("a.Main.run") && text.contains("Java, inlined"), "{text}");
    }

    #[test]
    fn samples_have_the_times_of_the_profile() {
        let mut profile = profile();
        (profile.begin_unix_ns, profile.slot_ns) = (7_000_000_000, 20_000_000);
        profile.samples[0].times = vec![(50, 2)];
        let json = json(&profile);
        let threads = json["threads"].as_array().unwrap();
        let timed = threads.iter().find(|thread| weights(thread) == [2]).unwrap();
        assert_eq!(timed["samples"]["timeDeltas"][0], 1000.0, "{}", timed["samples"]);
        assert_eq!(json["meta"]["startTime"], 7000.0);
    }

    #[test]
    fn byte_counts_above_4_gib_are_complete() {
        let mut profile = profile();
        profile.measure = Measure::Allocation;
        profile.samples.truncate(1);
        profile.samples[0].count = 5 << 30;
        let json = json(&profile);
        let thread = &json["threads"][0];
        assert_eq!(weights(thread).iter().sum::<i64>(), 5 << 30);
        assert_eq!(thread["samples"]["weightType"], "bytes");
    }
}

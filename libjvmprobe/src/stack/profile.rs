//! Profiles: samples with named stacks, as they are rendered.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::Arc,
};

use foldhash::fast::RandomState;
use serde::{Deserialize, Serialize};

use crate::stack::{
    Frame, Kind,
    span::SpanContext,
    times::{self, Times, merge_slots},
};

/// Index into `Profile::frames`.
pub type FrameId = u32;

/// Quantity that a profile counts. Stored profiles contain the position of a variant, so new variants must be appended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum Measure {
    /// CPU time: a sample represents one sampling interval.
    #[default]
    Time,
    /// Allocation: the unit of counts is bytes.
    Allocation,
    /// Events with this name: the unit of counts is events.
    Events(Arc<str>),
    /// Elapsed time of activities with this name: the unit of counts is nanoseconds.
    Elapsed(Arc<str>),
}

impl Measure {
    /// Returns its short name for lists of several measures.
    pub fn name(&self) -> &str {
        match self {
            Self::Time => "cpu",
            Self::Allocation => "alloc",
            Self::Events(name) | Self::Elapsed(name) => name,
        }
    }

    /// Returns the unit of counts.
    pub fn unit(&self) -> &str {
        match self {
            Self::Time => "samples",
            Self::Allocation => "bytes",
            Self::Events(name) => name,
            Self::Elapsed(_) => "ns",
        }
    }
}

/// Equal samples, with their number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The process.
    pub pid: u32,
    /// Command name of the process.
    pub command: Arc<str>,
    /// Thread name: the complete one of a Java thread if it could be read, else at most 15 bytes (`comm`).
    pub thread: Arc<str>,
    /// Thread ID.
    pub tid: u32,
    /// CPU number; `None` if samples of several CPUs were merged.
    pub cpu: Option<u32>,
    /// Frames, outermost first: user code, then the kernel.
    pub stack: Vec<FrameId>,
    /// Whether the walk reached the entry function of the thread without a guess.
    pub complete: bool,
    /// Whether the stack is incomplete because a step of the walk was a guess.
    pub guessed: bool,
    /// Whether inlined methods may be missing.
    pub unsure: bool,
    /// Count, in the unit of the profile's [`Measure`].
    pub count: u64,
    /// Number of allocated objects, waits or sampled events that `count` sums up; 0 for CPU time.
    pub occurrences: u64,
    /// Count per time slot: see [`Profile::slot_ns`].
    pub times: Times,
    /// Trace context that the thread had published.
    pub span: Option<SpanContext>,
}

impl Sample {
    /// Makes a sample of a thread of a JVM whose stack is complete, on any CPU, with a count of 0.
    pub fn of(pid: u32, thread: Arc<str>, tid: u32, stack: Vec<FrameId>) -> Self {
        Self {
            pid,
            command: "java".into(),
            thread,
            tid,
            cpu: None,
            stack,
            complete: true,
            guessed: false,
            unsure: false,
            count: 0,
            occurrences: 0,
            times: Times::new(),
            span: None,
        }
    }
}

/// Frame shown instead of stacks that were dropped to save memory.
pub(crate) const FOLDED: &str = "[stacks beyond --max-memory]";

/// Process, thread, CPU, marks (complete, guessed, unsure), thread name, trace context and stack.
type Key = (u32, u32, Option<u32>, (bool, bool, bool), Arc<str>, Option<SpanContext>, Vec<FrameId>);

fn size_of_sample(sample: &Sample) -> usize {
    size_of::<Sample>() + size_of_val(&*sample.stack) + size_of_val(&*sample.times)
}

/// Returns the approximate size of a frame in bytes. The frame is stored twice: in the list and in the hash table.
pub(crate) fn size_of_frame(frame: &Frame) -> usize {
    size_of::<Frame>() + frame.size()
}

/// A profile. Each distinct frame is stored once.
#[derive(Debug, Default)]
pub struct Profile {
    frames: Vec<Frame>,
    ids: HashMap<Frame, FrameId, RandomState>,
    /// Samples, in no particular order.
    pub samples: Vec<Sample>,
    /// Quantity that the profile counts.
    pub measure: Measure,
    /// Sampling rate in samples per second.
    pub hertz: u64,
    /// Duration of the sampling in nanoseconds.
    pub duration_ns: u64,
    /// Begin of the sampling, in nanoseconds since 1970.
    pub begin_unix_ns: u64,
    /// Length of a time slot in nanoseconds. The first slot begins with the profile. 0 if the times of the samples are
    /// unknown.
    pub slot_ns: u64,
    /// Number of samples that the kernel side could not deliver.
    pub lost: u64,
    /// Number of samples (for allocation, of bytes) whose stacks were dropped to save memory: see
    /// [`Profile::fold`].
    pub folded: u64,
    /// Number of samples (for allocation, of bytes) whose trace contexts were dropped: see
    /// [`Profile::limit_spans`].
    pub without_span: u64,
}

/// Returns the number of samples that a merged sample consists of; for allocation, the number of bytes.
fn samples_of(measure: &Measure, sample: &Sample) -> u64 {
    match measure {
        Measure::Time | Measure::Allocation => sample.count,
        Measure::Events(_) | Measure::Elapsed(_) => sample.occurrences,
    }
}

impl Profile {
    /// Makes a profile without samples.
    pub fn of(measure: Measure) -> Self {
        Self { measure, ..Self::default() }
    }

    /// Returns the number of a frame, which is added if it is new.
    pub fn intern(&mut self, frame: Frame) -> FrameId {
        if let Some(&id) = self.ids.get(&frame) {
            return id;
        }
        // Frames come from sampled addresses, so there are far fewer than 2^32.
        let id = FrameId::try_from(self.frames.len()).unwrap_or(FrameId::MAX);
        self.frames.push(frame.clone());
        self.ids.insert(frame, id);
        id
    }

    /// Returns a frame by its number.
    ///
    /// # Panics
    /// If this profile has no frame of this number.
    pub fn frame(&self, id: FrameId) -> &Frame {
        &self.frames[id as usize]
    }

    /// Returns all frames; a [`FrameId`] is an index into them.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Returns the sum of all counts.
    pub fn total(&self) -> u64 {
        self.samples.iter().map(|sample| sample.count).sum()
    }

    /// Returns the number of samples, which may differ from the sum of counts; for allocation, the number of
    /// bytes.
    pub fn sampled(&self) -> u64 {
        self.samples.iter().map(|sample| samples_of(&self.measure, sample)).sum()
    }

    /// Splits the profile by process, and merges samples of different CPUs. Losses cannot be attributed to a process
    /// and are left out.
    pub fn by_process(self) -> Vec<(u32, Self)> {
        let mut parts = HashMap::<u32, (Self, HashMap<FrameId, FrameId>)>::new();
        for mut sample in self.samples {
            let (part, ids) = parts.entry(sample.pid).or_default();
            for id in &mut sample.stack {
                let frame = &self.frames[*id as usize];
                *id = *ids.entry(*id).or_insert_with(|| part.intern(frame.clone()));
            }
            part.samples.push(sample);
        }
        let parts = parts.into_iter().map(|(pid, (part, _))| {
            let Self { frames, ids, samples, .. } = part;
            let mut part = Self {
                frames,
                ids,
                samples,
                measure: self.measure.clone(),
                hertz: self.hertz,
                duration_ns: self.duration_ns,
                begin_unix_ns: self.begin_unix_ns,
                slot_ns: self.slot_ns,
                ..Self::default()
            };
            part.merge(false);
            (pid, part)
        });
        parts.collect()
    }

    /// Keeps the samples that have a frame for which `wanted` is true; without `keep`, drops these and keeps the
    /// others.
    pub fn retain(&mut self, wanted: impl Fn(&Frame) -> bool, keep: bool) {
        let passes: Vec<_> = self.frames.iter().map(wanted).collect();
        self.samples.retain(|s| s.stack.iter().any(|&id| passes[id as usize]) == keep);
    }

    /// Returns the approximate size of its samples and frames in bytes.
    pub fn size(&self) -> usize {
        let samples = self.samples.iter().map(size_of_sample).sum::<usize>();
        samples + self.frames.iter().map(size_of_frame).sum::<usize>()
    }

    /// Merges samples with equal process, thread, stack, trace context and marks; with `processors`, their CPU must be equal, too.
    pub fn merge(&mut self, processors: bool) {
        let mut known: HashMap<Key, usize> = HashMap::with_capacity(self.samples.len());
        let mut kept: Vec<Sample> = Vec::new();
        for mut sample in std::mem::take(&mut self.samples) {
            sample.cpu = sample.cpu.filter(|_| processors);
            let Sample { pid, tid, cpu, complete, guessed, unsure, span, .. } = sample;
            let marks = (complete, guessed, unsure);
            let stack = std::mem::take(&mut sample.stack);
            let key = (pid, tid, cpu, marks, Arc::clone(&sample.thread), span, stack);
            match known.entry(key) {
                Entry::Occupied(at) => {
                    let same = &mut kept[*at.get()];
                    same.count = same.count.saturating_add(sample.count);
                    same.occurrences = same.occurrences.saturating_add(sample.occurrences);
                    same.times.append(&mut sample.times);
                }
                Entry::Vacant(new) => {
                    new.insert(kept.len());
                    kept.push(sample);
                }
            }
        }
        for ((.., stack), at) in known {
            kept[at].stack = stack;
        }
        kept.iter_mut().for_each(|sample| merge_slots(&mut sample.times));
        self.samples = kept;
    }

    /// Makes time slots longer. Returns `false` if they have the maximum length already.
    fn coarsen(&mut self) -> bool {
        let Some(factor) = times::factor_to_next_length(self.slot_ns) else { return false };
        self.slot_ns = self.slot_ns.saturating_mul(factor.into());
        self.samples.iter_mut().for_each(|sample| times::coarsen(&mut sample.times, factor));
        true
    }

    /// Makes time slots longer until the counts per slot take at most `max` bytes.
    fn shrink_times(&mut self, max: usize) {
        let size = |samples: &[Sample]| -> usize {
            samples.iter().map(|sample| size_of_val(&*sample.times)).sum()
        };
        while self.slot_ns > 0 && size(&self.samples) > max && self.coarsen() {}
    }

    /// Adds the samples of another profile of the same measure.
    pub fn absorb(&mut self, other: Self) {
        if self.samples.is_empty() {
            *self = other;
            return;
        }
        let mut other = other;
        // The slots of both profiles once had the same length, and grow by the same steps. So the shorter
        // slots reach the length of the longer ones.
        while self.slot_ns > 0 && self.slot_ns < other.slot_ns && self.coarsen() {}
        while other.slot_ns > 0 && other.slot_ns < self.slot_ns && other.coarsen() {}
        let ids: Vec<_> = other.frames.into_iter().map(|frame| self.intern(frame)).collect();
        self.samples.extend(other.samples.into_iter().map(|mut sample| {
            sample.stack.iter_mut().for_each(|id| *id = ids[*id as usize]);
            sample
        }));
        self.folded = self.folded.saturating_add(other.folded);
        self.without_span = self.without_span.saturating_add(other.without_span);
    }

    /// Reduces the size to at most `max` bytes: merges equal samples, then those that differ only in the CPU, then
    /// drops trace contexts, then makes time slots longer, then drops stacks.
    pub fn shrink(&mut self, max: usize) {
        self.merge(true);
        if self.size() > max {
            self.merge(false);
        }
        if self.size() > max {
            self.limit_spans(0);
        }
        if self.size() > max {
            self.shrink_times(max / 4);
        }
        // Folds to half of the maximum. Otherwise, folding would be necessary again after a few new samples.
        if self.size() > max {
            self.fold(max / 2);
        }
    }

    /// Keeps at most `max` trace contexts, those with the largest counts. Samples of the others are kept without a
    /// context, and counted in `without_span`.
    pub fn limit_spans(&mut self, max: usize) {
        let mut counts: HashMap<SpanContext, u64> = HashMap::new();
        for sample in &self.samples {
            if let Some(span) = sample.span {
                let count = counts.entry(span).or_default();
                *count = count.saturating_add(sample.count);
            }
        }
        if counts.len() <= max {
            return;
        }
        let mut spans: Vec<_> = counts.into_iter().map(|(span, count)| (count, span)).collect();
        spans.sort_unstable_by(|a, b| b.cmp(a));
        let kept: HashSet<_> = spans.into_iter().take(max).map(|(_, span)| span).collect();
        for sample in &mut self.samples {
            if sample.span.is_some_and(|span| !kept.contains(&span)) {
                sample.span = None;
                self.without_span =
                    self.without_span.saturating_add(samples_of(&self.measure, sample));
            }
        }
        // Samples that differed only in their context are equal now.
        self.merge(true);
    }

    /// Reduces the size to at most `max` bytes as far as possible: drops the stacks of the samples with the
    /// smallest counts, beginning with a count of 1. The sum of these counts is kept per process, with the
    /// frame `FOLDED` as stack. Unused frames are dropped, too.
    pub fn fold(&mut self, max: usize) {
        let mut max_folded_count = 1_u64;
        while self.size() > max && self.samples.len() > 1 {
            let folded = self.intern(Frame::new(Kind::Unknown, FOLDED));
            let mut by_process: HashMap<(u32, Arc<str>), (u64, u64)> = HashMap::new();
            let mut times: HashMap<(u32, Arc<str>), Times> = HashMap::new();
            let before = self.samples.len();
            self.samples.retain(|sample| {
                let is_folded = sample.count <= max_folded_count || sample.stack == [folded];
                if is_folded {
                    let of = by_process.entry((sample.pid, Arc::clone(&sample.command)));
                    let (count, occurrences) = of.or_default();
                    *count = count.saturating_add(sample.count);
                    *occurrences = occurrences.saturating_add(sample.occurrences);
                    let of = times.entry((sample.pid, Arc::clone(&sample.command))).or_default();
                    of.extend(&sample.times);
                    let is_new = sample.stack != [folded];
                    self.folded += if is_new { samples_of(&self.measure, sample) } else { 0 };
                }
                !is_folded
            });
            // If the processes alone take too much space, they are merged into one.
            if by_process.len() * size_of::<Sample>() > max / 4 {
                let add = |a: (u64, u64), b: (u64, u64)| {
                    (a.0.saturating_add(b.0), a.1.saturating_add(b.1))
                };
                let all = by_process.drain().fold((0, 0), |sum, (_, more)| add(sum, more));
                by_process.insert((0, "[many]".into()), all);
                let all = times.drain().flat_map(|(_, times)| times).collect();
                times.insert((0, "[many]".into()), all);
            }
            for ((pid, command), (count, occurrences)) in by_process {
                let mut times = times.remove(&(pid, Arc::clone(&command))).unwrap_or_default();
                merge_slots(&mut times);
                self.samples.push(Sample {
                    pid,
                    thread: Arc::clone(&command),
                    command,
                    tid: pid,
                    cpu: None,
                    stack: vec![folded],
                    complete: true,
                    guessed: false,
                    unsure: false,
                    count,
                    occurrences,
                    times,
                    span: None,
                });
            }
            self.drop_frames();
            if self.samples.len() >= before && max_folded_count > u64::MAX / 2 {
                break;
            }
            max_folded_count = max_folded_count.saturating_mul(2);
        }
    }

    /// Drops unused frames.
    fn drop_frames(&mut self) {
        let frames = std::mem::take(&mut self.frames);
        self.ids.clear();
        let mut renumbered = vec![None; frames.len()];
        let mut samples = std::mem::take(&mut self.samples);
        for id in samples.iter_mut().flat_map(|sample| &mut sample.stack) {
            let at = *id as usize;
            let new = *renumbered[at].get_or_insert_with(|| self.intern(frames[at].clone()));
            *id = new;
        }
        self.samples = samples;
    }

    /// Returns the number of frames that are code without a name, weighted by the samples' counts. Frames that are not
    /// code, for example `[idle]`, do not count.
    pub fn unnamed_frames(&self) -> u64 {
        let is_unnamed = |id: &FrameId| {
            let frame = self.frame(*id);
            frame.kind == Kind::Unknown && frame.name.starts_with("[unknown")
        };
        let of = |s: &Sample| {
            let unnamed = s.stack.iter().filter(|id| is_unnamed(id)).count() as u64;
            s.count.saturating_mul(unnamed)
        };
        self.samples.iter().map(of).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(pid: u32, cpu: u32, stack: &[FrameId], count: u64) -> Sample {
        Sample {
            pid,
            command: "java".into(),
            thread: "main".into(),
            tid: pid,
            cpu: Some(cpu),
            stack: stack.to_vec(),
            complete: true,
            guessed: false,
            unsure: false,
            count,
            occurrences: 0,
            times: Vec::new(),
            span: None,
        }
    }

    fn profile(samples: Vec<Sample>, frames: u32) -> Profile {
        let mut profile = Profile::default();
        for i in 0..frames {
            profile.intern(Frame::new(Kind::Java, format!("Some.method{i}")));
        }
        profile.samples = samples;
        profile
    }

    #[test]
    fn merge_combines_equal_samples() {
        let all = || {
            let a = sample(1, 0, &[0, 1], 2);
            vec![a.clone(), sample(1, 3, &[0, 1], 3), sample(1, 0, &[1], 5), a]
        };
        let counts = |profile: &Profile| {
            let mut counts: Vec<_> = profile.samples.iter().map(|s| (s.cpu, s.count)).collect();
            counts.sort_unstable();
            counts
        };
        let mut by_processor = profile(all(), 2);
        by_processor.merge(true);
        assert_eq!(counts(&by_processor), [(Some(0), 4), (Some(0), 5), (Some(3), 3)]);
        let mut all = profile(all(), 2);
        all.merge(false);
        assert_eq!(counts(&all), [(None, 5), (None, 7)]);
        assert!(all.samples.iter().all(|s| !s.stack.is_empty()));
    }

    #[test]
    fn absorb_adds_the_samples_of_another_profile() {
        let mut first = profile(vec![sample(1, 0, &[0, 1], 2)], 2);
        let mut second = Profile::default();
        for name in ["Other.method", "Some.method1"] {
            second.intern(Frame::new(Kind::Java, name));
        }
        second.samples = vec![sample(1, 0, &[0, 1], 3)];
        second.folded = 1;
        first.absorb(second);
        let names = |sample: &Sample| -> Vec<_> {
            sample.stack.iter().map(|&id| first.frame(id).name.to_string()).collect()
        };
        assert_eq!(names(&first.samples[0]), ["Some.method0", "Some.method1"]);
        assert_eq!(names(&first.samples[1]), ["Other.method", "Some.method1"]);
        assert_eq!((first.frames().len(), first.total(), first.folded), (3, 5, 1));
    }

    #[test]
    fn fold_drops_the_rarest_stacks_but_no_samples() {
        let many = (0..1000).map(|i| sample(1 + i % 3, 0, &[i, i + 1], 1));
        let hot = sample(1, 0, &[7, 8], 500);
        let mut profile = profile(many.chain([hot]).collect(), 1001);
        let total = profile.total();
        profile.fold(10_000);
        assert!(profile.size() <= 10_000, "{}", profile.size());
        assert_eq!(profile.total(), total);
        assert_eq!(profile.folded, 1000);
        let hot = profile.samples.iter().find(|s| s.count == 500).expect("it is kept");
        let name = |at: usize| profile.frame(hot.stack[at]).name.to_string();
        assert_eq!((name(0), name(1)), ("Some.method7".into(), "Some.method8".into()));
        // A second time, without new samples: nothing is counted twice.
        profile.fold(10_000);
        assert_eq!((profile.total(), profile.folded), (total, 1000));
        profile.fold(1);
        assert_eq!((profile.total(), profile.folded), (total, 1500));
    }

    #[test]
    fn spans_are_merged_separately_and_limited_to_the_largest() {
        let span = |n: u8| SpanContext::new([n; 16], [n; 8]);
        let with = |n, count| Sample { span: span(n), ..sample(1, 0, &[0], count) };
        let all = vec![with(1, 5), with(2, 3), with(1, 1), with(3, 4), sample(1, 0, &[0], 7)];
        let mut profile = profile(all, 1);
        let spans = |profile: &Profile| {
            let mut spans: Vec<_> = profile.samples.iter().map(|s| (s.span, s.count)).collect();
            spans.sort_unstable();
            spans
        };
        profile.merge(true);
        assert_eq!(spans(&profile), [(None, 7), (span(1), 6), (span(2), 3), (span(3), 4)]);
        profile.limit_spans(2);
        assert_eq!(spans(&profile), [(None, 10), (span(1), 6), (span(3), 4)]);
        profile.shrink(profile.size() - 1);
        assert_eq!((spans(&profile), profile.without_span), (vec![(None, 20)], 13));
    }

    #[test]
    fn fold_combines_all_processes_if_they_exceed_the_size_limit() {
        let many = (0..10_000).map(|pid| sample(pid, 0, &[0], 1));
        let mut profile = profile(many.collect(), 1);
        profile.fold(20_000);
        assert!(profile.size() <= 20_000, "{}", profile.size());
        assert_eq!(profile.total(), 10_000);
    }
}

//! Makes named profiles from samples.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use crate::{
    hotspot::thread_names::CompleteNames,
    stack::{
        Frame, Kind, Stack, WalkEnd,
        java_frames::LocationNames,
        name::{JavaNames, KernelNames, NativeNames},
        namer::{NamedStack, name_stack},
        profile::{FrameId, Measure, Profile, Sample, size_of_frame},
    },
    trace::samples::{
        events::{EventKind, EventSpec, labels::Labels},
        idle::{IDLE, is_idle},
        process::Named,
        sampler::{About, Samples, Stacks},
        session::{ASLEEP, Count, NOT_WALKED, OVER_SHARE, SampleKey},
        waits::{ASLEEP_NAME, Part},
    },
};

/// Builder of one profile per event. Samples are added process by process.
pub(crate) struct Naming {
    events: Vec<EventSpec>,
    profiles: Vec<Profile>,
    slot_ns: u64,
    kernel: KernelNames,
    signatures: bool,
    /// Whether waits for work are shown with their stacks.
    shows_idle: bool,
    /// Approximate size of the profiles, in bytes.
    size: usize,
    lost_stacks: u64,
    /// Number of events whose class could not be read, by the event's index.
    without_class: BTreeMap<usize, u64>,
}

/// Frame in place of a class that could not be read.
const UNKNOWN_CLASS: &str = "[unknown class]";

impl Naming {
    /// Creates empty profiles. `signatures`: names methods with their parameters. `shows_idle`: shows the stacks of
    /// idle threads. `slot_ns`: see [`Profile::slot_ns`].
    pub(crate) fn new(
        events: Vec<EventSpec>,
        signatures: bool,
        shows_idle: bool,
        slot_ns: u64,
    ) -> Self {
        let kernel = KernelNames::default();
        let profiles = empty(&events, slot_ns);
        Self {
            events,
            profiles,
            slot_ns,
            kernel,
            signatures,
            shows_idle,
            size: 0,
            lost_stacks: 0,
            without_class: BTreeMap::new(),
        }
    }

    /// Names the samples of a process and adds them to the profiles. Without `named`, the command's name is taken
    /// from a sample, and user frames have no names.
    pub(crate) fn add(&mut self, named: Option<Named>, samples: &Samples, stacks: &Stacks) {
        let mut namer = self.namer(named, samples);
        for (key, count) in samples {
            self.add_sample(&mut namer, key, count, stacks);
        }
    }

    /// Makes the namer for the samples of a process. Without `named`, the command's name is taken from a sample, and user
    /// frames have no names.
    pub(crate) fn namer(&self, named: Option<Named>, samples: &Samples) -> Namer {
        match named {
            Some(named) => Namer::of(named, self.signatures),
            None => {
                let first = samples.keys().next();
                Namer::without_sources(first.map_or("", |key| key.comm.as_str()).into())
            }
        }
    }

    /// Names a sample and adds it to the profiles.
    pub(crate) fn add_sample(
        &mut self,
        namer: &mut Namer,
        key: &SampleKey,
        count: &Count,
        stacks: &Stacks,
    ) {
        let number = key.event as usize;
        // The kernel side sends no other event numbers.
        let (Some(event), Some(profile)) = (self.events.get(number), self.profiles.get_mut(number))
        else {
            return;
        };
        let known_frames = profile.frames().len();
        let missing = match key.user {
            NOT_WALKED | OVER_SHARE => Some("[not walked]"),
            ASLEEP => Some(ASLEEP_NAME),
            _ => None,
        };
        let is_lost = |id: u64| id != 0 && !stacks.contains_key(&id);
        if missing.is_none() && (is_lost(key.user) || is_lost(key.kernel)) {
            self.lost_stacks += count.samples;
        }
        let nothing = Stack::default();
        let user = stacks.get(&key.user).unwrap_or(&nothing);
        let (end, known) = WalkEnd::from_code(key.user_end);
        let named = namer.user(profile, key, user, known);
        // There is no user part for a kernel thread, or if user stacks are not wanted.
        let has_user_part = end != WalkEnd::Nothing;
        let is_at_entry = end == WalkEnd::Entry && known.is_none();
        let complete = named.complete || is_at_entry || !has_user_part;
        let unsure = named.unsure;
        let mut stack = named.frames.clone();
        if let Some(kernel_stack) = stacks.get(&key.kernel) {
            let mut frames = self.kernel.stack(kernel_stack.addresses());
            if event.has_waits() {
                cut_switch(&mut frames);
            }
            stack.extend(frames.into_iter().rev().map(|frame| profile.intern(frame)));
        }
        // If no user part is expected, the stack may stay empty. The sample then counts for the command
        // alone.
        if stack.is_empty() && has_user_part {
            stack.push(profile.intern(Frame::new(Kind::Unknown, "[unknown]")));
        }
        if let Some(missing) = missing {
            stack.push(profile.intern(Frame::new(Kind::Unknown, missing)));
        }
        if event.has_waits() {
            let part = Part::of(key.label);
            let is_wait = part != Part::Sampled && part != Part::OnCpu;
            if is_wait && !self.shows_idle && is_idle(stack.iter().map(|&id| profile.frame(id))) {
                stack = vec![profile.intern(Frame::new(Kind::Unknown, IDLE))];
            } else if let Some(name) = part.name().filter(|_| key.user != ASLEEP) {
                stack.push(profile.intern(Frame::new(Kind::Unknown, name)));
            }
        }
        for frame in namer.label(event, key.label) {
            stack.push(profile.intern(frame));
        }
        if matches!(event.what, EventKind::Java(java) if java.reads_classes() && key.label == 0) {
            stack.push(profile.intern(Frame::new(Kind::Class, UNKNOWN_CLASS)));
            *self.without_class.entry(number).or_default() += count.value;
        }
        let (count, occurrences) = match profile.measure {
            Measure::Time => (count.samples, 0),
            _ => (count.value, count.samples),
        };
        let new_frames = profile.frames().get(known_frames..).unwrap_or_default();
        self.size += new_frames.iter().map(size_of_frame).sum::<usize>();
        self.size += size_of::<Sample>() + size_of_val(&*stack);
        profile.samples.push(Sample {
            pid: key.pid,
            command: Arc::clone(&namer.command),
            thread: namer.thread(key),
            tid: key.tid,
            cpu: Some(key.cpu),
            stack,
            complete,
            guessed: known.is_some() && !complete,
            unsure,
            count,
            occurrences,
            times: times_of(profile, self.slot_ns, key.slot, count),
            span: key.span,
        });
    }

    /// Returns the approximate size of the profiles, in bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Shrinks the profiles to a total of about `max` bytes.
    pub(crate) fn shrink(&mut self, max: usize) {
        self.size = shrink(&mut self.profiles, max);
    }

    /// Returns the number of events so far whose class could not be read, by the event's name.
    pub(crate) fn without_class(&self) -> impl Iterator<Item = (&str, u64)> {
        let named =
            |(number, count): (&usize, &u64)| Some((&*self.events.get(*number)?.name, *count));
        self.without_class.iter().filter_map(named)
    }

    /// Returns the number of samples so far whose stack was lost because a buffer or map was full.
    pub(crate) fn lost_stacks(&self) -> u64 {
        self.lost_stacks
    }

    /// Takes the profiles so far, with the figures of `about`, and begins new ones.
    pub(crate) fn take(&mut self, about: &About) -> Vec<Profile> {
        self.size = 0;
        let mut profiles = std::mem::replace(&mut self.profiles, empty(&self.events, self.slot_ns));
        for profile in &mut profiles {
            about.describe(profile);
            // Samples that differ only in their time slot are merged into one sample with several times.
            if self.slot_ns > 0 {
                profile.merge(true);
            }
        }
        profiles
    }
}

/// Returns an empty profile for each event.
pub(crate) fn empty(events: &[EventSpec], slot_ns: u64) -> Vec<Profile> {
    let profile = |event: &EventSpec| {
        let mut profile = Profile::of(event.measure());
        profile.slot_ns = slot_ns;
        profile
    };
    events.iter().map(profile).collect()
}

/// Shrinks the largest profiles until all of them take about `max` bytes. Returns their size in bytes.
pub(crate) fn shrink(profiles: &mut [Profile], max: usize) -> usize {
    let share = max / profiles.len().max(1);
    let mut size: usize = profiles.iter().map(Profile::size).sum();
    for profile in profiles {
        let own = profile.size();
        if size > max && own > share {
            profile.shrink(share);
            size = size - own + profile.size();
        }
    }
    size
}

/// Splits a count over time slots, as (slot, count). `slot` is the one in which the sample ended, in slots of
/// `slot_ns`. A count of elapsed nanoseconds may span earlier slots as well. The profile's slots may be
/// longer than `slot_ns` by now.
fn times_of(profile: &Profile, slot_ns: u64, slot: u32, count: u64) -> Vec<(u32, u64)> {
    let longer = profile.slot_ns.checked_div(slot_ns).unwrap_or(1).max(1);
    let slot = u32::try_from(u64::from(slot) / longer).unwrap_or(u32::MAX);
    match (profile.slot_ns, &profile.measure) {
        (0, _) => Vec::new(),
        (length, Measure::Elapsed(_)) => {
            let earlier = (count / length).min(slot.into());
            let first = slot - u32::try_from(earlier).unwrap_or(slot);
            let mut times: Vec<_> = (first + 1..=slot).map(|slot| (slot, length)).collect();
            times.push((first, count.saturating_sub(earlier.saturating_mul(length))));
            times.retain(|(_, count)| *count > 0);
            times
        }
        _ => vec![(slot, count)],
    }
}

/// Removes the frames of the context switch and of our BPF program, which do not explain the wait. The stack
/// of a thread that was found asleep does not have these frames. Without them, a stack recorded at a context
/// switch and the stack of a thread that was found asleep are equal if both threads wait in the same way.
fn cut_switch(frames: &mut Vec<Frame>) {
    if let Some(at) = frames.iter().position(|frame| &*frame.name == "__schedule") {
        let has_caller = frames.get(at + 1).is_some_and(|frame| &*frame.name == "schedule");
        frames.drain(..=at + usize::from(has_caller));
    }
}

/// A named user stack.
struct UserStack {
    /// Outermost frame first.
    frames: Vec<FrameId>,
    complete: bool,
    unsure: bool,
}

/// Names the stacks of one process.
pub(crate) struct Namer {
    command: Arc<str>,
    sources: Option<(JavaNames, NativeNames)>,
    java_names: Option<LocationNames>,
    labels: Labels,
    threads: CompleteNames,
    /// Cache of named stacks, by event, stack and epoch.
    known: HashMap<(u32, u64, u64), UserStack>,
}

impl Namer {
    fn of(named: Named, signatures: bool) -> Self {
        let native = NativeNames::new(named.maps, named.symbols);
        let java = JavaNames::new(named.code, signatures);
        Self {
            command: named.command,
            sources: Some((java, native)),
            java_names: named.java_names,
            labels: named.labels,
            threads: named.threads,
            known: HashMap::new(),
        }
    }

    /// Creates a namer for a process of which nothing is known.
    fn without_sources(command: Arc<str>) -> Self {
        Self {
            command,
            sources: None,
            java_names: None,
            labels: Labels::default(),
            threads: CompleteNames::default(),
            known: HashMap::new(),
        }
    }

    /// Names a stack. After the first `known` frames, the walker's steps were guesses.
    fn user(
        &mut self,
        profile: &mut Profile,
        key: &SampleKey,
        stack: &Stack,
        known: Option<usize>,
    ) -> &UserStack {
        let (sources, java_names) = (&mut self.sources, self.java_names.as_ref());
        let epoch = key.epoch;
        self.known.entry((key.event, key.user, epoch)).or_insert_with(|| {
            let NamedStack { frames, complete, unsure, .. } =
                name_stack(stack, known, java_names, |addr, frames| {
                    sources.as_mut().is_some_and(|(java, native)| {
                        java.name(addr, epoch, frames) || native.name(addr, frames)
                    })
                });
            let frames = frames.into_iter().map(|frame| profile.intern(frame)).collect();
            UserStack { frames, complete, unsure }
        })
    }

    /// Returns the name of the sampled thread: the complete one if it is known.
    fn thread(&self, key: &SampleKey) -> Arc<str> {
        self.threads.get(key.tid, &key.comm).map_or_else(|| key.comm.as_str().into(), Arc::clone)
    }

    /// Returns the frames of a sample's label, outermost first.
    fn label(&self, event: &EventSpec, label: u64) -> Vec<Frame> {
        match &event.what {
            EventKind::Java(java) if label != 0 => self.labels.frames(*java, label),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::{
        Addr,
        stack::{
            java_frames,
            raw::{RawFrame, RawStack},
        },
        trace::samples::session::Count,
    };

    fn key(user: u64, kernel: u64) -> SampleKey {
        SampleKey { user, kernel, ..SampleKey::of(7) }
    }

    fn times(samples: u64) -> Count {
        Count { samples, value: 0 }
    }

    /// Stack number 3: one frame without a name.
    fn stacks() -> Stacks {
        let frames = vec![RawFrame::Code { addr: Addr(0x10), compile_id: 0 }];
        Stacks::from([(3, java_frames::without_names(&RawStack { target: 7, unloads: 0, frames }))])
    }

    fn wall() -> EventSpec {
        EventSpec { name: "wall".into(), what: EventKind::Wall, rate: None }
    }

    /// Returns the only sample of an event, and the names of its frames, outermost first.
    fn single_sample(event: EventSpec, key: SampleKey) -> (Sample, Vec<String>) {
        let mut naming = Naming::new(vec![event], false, false, 0);
        naming.add(None, &Samples::from([(key, times(1))]), &stacks());
        let profile = naming.take(&About::default()).remove(0);
        let [sample] = &profile.samples[..] else { panic!("{:?}", profile.samples) };
        let names = sample.stack.iter().map(|&id| profile.frame(id).name.to_string());
        (sample.clone(), names.collect())
    }

    #[test]
    fn each_event_has_its_own_profile_and_unit() {
        let mut naming = Naming::new(vec![EventSpec::cpu(), wall()], false, false, 0);
        let of = |event| SampleKey { event, ..key(3, 0) };
        let count = Count { samples: 2, value: 500 };
        // The last one is of an unknown event.
        let samples = Samples::from([(of(0), count), (of(1), count), (of(2), count)]);
        naming.add(None, &samples, &stacks());
        let profiles = naming.take(&About::default());
        let counts = |profile: &Profile| -> Vec<_> {
            profile.samples.iter().map(|sample| (sample.count, sample.occurrences)).collect()
        };
        assert_eq!(profiles.iter().map(counts).collect::<Vec<_>>(), [[(2, 0)], [(500, 2)]]);
        assert_eq!(profiles[1].measure, Measure::Elapsed("wall".into()));
    }

    #[test]
    fn size_includes_new_frames() {
        let mut naming = Naming::new(vec![EventSpec::cpu()], false, false, 0);
        let samples = Samples::from([(key(3, 0), times(1))]);
        naming.add(None, &samples, &stacks());
        let first = naming.size();
        naming.add(None, &samples, &stacks());
        let second = naming.size() - first;
        assert!(first >= second + 2 * size_of::<Frame>(), "{first} {second}");
    }

    #[test]
    fn profiles_are_empty_after_they_are_returned() {
        let mut naming = Naming::new(vec![EventSpec::cpu()], false, false, 0);
        naming.add(None, &Samples::from([(key(3, 0), times(1))]), &stacks());
        assert!(naming.size() > 0);
        let about = About { hertz: 99, lost: 4, ..About::default() };
        let profile = naming.take(&about).remove(0);
        assert_eq!((profile.samples.len(), profile.hertz, profile.lost), (1, 99, 4));
        assert_eq!(naming.size(), 0);
        assert!(naming.take(&about).iter().all(|profile| profile.samples.is_empty()));
    }

    #[test]
    fn stack_reaching_the_entry_without_guesses_is_complete() {
        let marks = |user_end| {
            let (sample, _) = single_sample(EventSpec::cpu(), SampleKey { user_end, ..key(3, 0) });
            (sample.complete, sample.guessed)
        };
        let [nothing, unreadable, entry] = [0, 2, 5];
        // The stack of a kernel thread is complete without a user part.
        assert_eq!(marks(nothing), (true, false));
        assert_eq!(marks(entry), (true, false));
        assert_eq!(marks(unreadable), (false, false));
        // From the second frame on, the walk was a guess.
        assert_eq!(marks(entry | 1 << 8), (false, true));
    }

    #[test]
    fn missing_stack_is_named_by_its_reason() {
        let names = |event, user, user_end| {
            single_sample(
                event,
                SampleKey { user_end, label: Part::Blocked as u64, ..key(user, 0) },
            )
            .1
        };
        assert_eq!(names(EventSpec::cpu(), NOT_WALKED, 0), ["[not walked]"]);
        assert_eq!(names(EventSpec::cpu(), OVER_SHARE, 0), ["[not walked]"]);
        // It is unknown where the thread waits, and whether it waits for a processor.
        assert_eq!(names(wall(), ASLEEP, 0), [ASLEEP_NAME]);
        assert_eq!(names(EventSpec::cpu(), 0, 1), ["[unknown]"]);
        assert!(names(EventSpec::cpu(), 0, 0).is_empty());
    }

    #[test]
    fn wait_stack_ends_with_the_kind_of_wait() {
        let names =
            |part: Part| single_sample(wall(), SampleKey { label: part as u64, ..key(3, 0) }).1;
        let sampled = names(Part::Sampled);
        for part in [Part::Blocked, Part::Runnable, Part::Short] {
            let (last, rest) =
                names(part).split_last().map(|(l, r)| (l.clone(), r.to_vec())).unwrap();
            assert_eq!((Some(last.as_str()), rest), (part.name(), sampled.clone()));
        }
    }

    #[test]
    fn context_switch_frames_are_removed() {
        let cut = |names: &[&'static str]| -> Vec<_> {
            let mut frames =
                names.iter().map(|&name| Frame::new(Kind::Kernel, name)).collect::<Vec<_>>();
            cut_switch(&mut frames);
            frames.iter().map(|frame| frame.name.to_string()).collect()
        };
        let bpf_frames = ["bpf_prog", "trace_call", "__schedule"];
        assert_eq!(cut(&[&bpf_frames[..], &["schedule", "futex_wait"]].concat()), ["futex_wait"]);
        // A preempted thread does not leave the processor by schedule().
        assert_eq!(
            cut(&[&bpf_frames[..], &["preempt_schedule", "x"]].concat()),
            ["preempt_schedule", "x"]
        );
        assert_eq!(cut(&["do_page_fault"]), ["do_page_fault"]);
    }

    #[test]
    fn largest_profiles_are_folded_to_the_size_limit() {
        let of = |samples: u32| {
            let mut profile = Profile::default();
            for i in 0..samples {
                let stack = vec![profile.intern(Frame::new(Kind::Java, format!("a.A.m{i}")))];
                let name: Arc<str> = "x".into();
                profile.samples.push(Sample {
                    command: Arc::clone(&name),
                    count: 1,
                    ..Sample::of(7, name, 7, stack)
                });
            }
            profile
        };
        let mut profiles = [of(10), of(10_000)];
        let small = profiles[0].size();
        let max = 4 * small;
        assert!(shrink(&mut profiles, max) <= max + small);
        assert_eq!((profiles[0].folded, profiles[0].samples.len()), (0, 10));
        assert!(profiles[1].folded > 9_000, "{}", profiles[1].folded);
        // Only stacks are lost, no counts.
        assert_eq!(profiles[1].total(), 10_000);
        // Profiles within the limit stay unchanged.
        let mut profiles = [of(10)];
        assert_eq!(shrink(&mut profiles, max), small);
        assert_eq!(profiles[0].folded, 0);
    }

    #[test]
    fn samples_with_lost_stacks_are_counted() {
        // In this order: no stack lost, sample without stacks, user stack lost, kernel stack lost.
        let samples = Samples::from([
            (key(3, 0), times(1)),
            (key(0, 0), times(2)),
            (key(5, 0), times(4)),
            (key(3, 9), times(8)),
        ]);
        let mut naming = Naming::new(vec![EventSpec::cpu()], false, false, 0);
        naming.add(None, &samples, &stacks());
        assert_eq!(naming.lost_stacks(), 12);
    }
}

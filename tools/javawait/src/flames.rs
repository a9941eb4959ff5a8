//! Waits as a profile for the output files: the stack of the waiting thread, a separator, and the stack of the thread that
//! ended the wait, innermost frame first.

use std::collections::HashMap;

use libjvmprobe::{
    Pid, Result,
    bpf::clock,
    render::{
        files::Files,
        formats::{FormatOptions, TitledProfile, flamegraph::Title},
        units::span,
    },
    stack::{
        Frame, Kind,
        profile::{FrameId, Measure, Profile, Sample},
    },
    trace::waits::{Relation, ThreadName, UnmountedReading, Wait},
};

use crate::args::Args;

/// Maximum size of the profile in bytes.
const MAX_BYTES: usize = 128 << 20;

/// Name of the thread of all virtual threads that are not mounted.
const UNMOUNTED: &str = "unmounted virtual threads";

/// Number of waits, and approximate number of bytes added for them, after which the size of the profile is checked.
const CHECK_EVERY: u64 = 1024;
const CHECK_EVERY_BYTES: usize = 8 << 20;

/// Maximum number of time slots of a wait. Slots of 20 ms then cover the first 46 hours.
const MAX_SLOTS: usize = MAX_BYTES / size_of::<(u32, u64)>();

/// The profile, and where each of its samples is.
#[derive(Debug)]
pub struct Flames {
    profile: Profile,
    /// Number of waits added since the size was checked, and approximate number of bytes added for them.
    added: u64,
    added_bytes: usize,
    /// Index of the sample with a stack, by process, thread and stack.
    samples: HashMap<(u32, u32, Vec<FrameId>), usize>,
    /// Begin of the trace on `CLOCK_MONOTONIC`, in nanoseconds.
    begin_ns: u64,
}

impl Flames {
    /// Makes an empty profile. `slot_ns` is the length of its time slots, 0 for none.
    pub fn new(slot_ns: u64, begin_ns: u64) -> Self {
        let mut profile = Profile::of(Measure::Elapsed("waits".into()));
        profile.slot_ns = slot_ns;
        Self { profile, added: 0, added_bytes: 0, samples: HashMap::new(), begin_ns }
    }

    /// Adds a wait.
    pub fn add(&mut self, wait: &Wait) {
        let mut frames: Vec<Frame> = wait.stack.iter().cloned().collect();
        frames.extend(wait.kernel_stack.iter().cloned());
        let label = |text: String| Frame::new(Kind::Class, text);
        frames.push(label(format!("[{}]", wait.kind.name())));
        if let Some(holder) = &wait.holder {
            let how = if holder.relation == Relation::Held { "held by" } else { "woken by" };
            frames.push(label(format!("[{how} {}]", holder.thread.name)));
            frames.extend(holder.stack.iter().rev().cloned());
        }
        let slots = slots((wait.begin_ns, wait.end_ns), self.begin_ns, self.profile.slot_ns);
        self.add_time(&wait.thread, frames, (wait.length_ns(), 1), slots);
    }

    /// Adds the virtual threads that waited without a carrier. `with_idle`: also those that wait for work.
    pub fn add_unmounted(&mut self, reading: &UnmountedReading, with_idle: bool) {
        let period = (reading.since_ns, reading.at_ns);
        for group in reading.groups.iter().filter(|group| with_idle || !group.is_idle) {
            let mut frames = group.stack.to_vec();
            frames.push(Frame::new(Kind::Class, format!("[{}]", group.kind.name())));
            let mut slots = slots(period, self.begin_ns, self.profile.slot_ns);
            slots.iter_mut().for_each(|(_, ns)| *ns = ns.saturating_mul(group.threads));
            let length = period.1.saturating_sub(period.0).saturating_mul(group.threads);
            let thread = ThreadName {
                pid: Pid(reading.pid),
                tid: 0,
                name: UNMOUNTED.into(),
                virtual_thread: None,
            };
            // These are no single waits.
            self.add_time(&thread, frames, (length, 0), slots);
        }
    }

    /// Adds `length` nanoseconds, and a number of waits, of a thread with a stack, distributed over time slots.
    fn add_time(
        &mut self,
        thread: &ThreadName,
        frames: Vec<Frame>,
        (length, waits): (u64, u64),
        slots: Vec<(u32, u64)>,
    ) {
        self.added += 1;
        self.added_bytes += size_of::<Sample>() + size_of_val(&*slots);
        let stack: Vec<_> = frames.into_iter().map(|frame| self.profile.intern(frame)).collect();
        let key = (thread.pid.0, thread.tid, stack);
        let at = *self.samples.entry(key.clone()).or_insert(self.profile.samples.len());
        if at == self.profile.samples.len() {
            self.profile.samples.push(Sample::of(
                thread.pid.0,
                thread.name.clone(),
                thread.tid,
                key.2,
            ));
        }
        if let Some(sample) = self.profile.samples.get_mut(at) {
            sample.count = sample.count.saturating_add(length);
            sample.occurrences += waits;
            sample.times.extend(slots);
        }
        if self.added >= CHECK_EVERY || self.added_bytes >= CHECK_EVERY_BYTES {
            (self.added, self.added_bytes) = (0, 0);
            if self.profile.size() > MAX_BYTES {
                self.profile.shrink(MAX_BYTES / 2);
                self.samples.clear();
            }
        }
    }

    /// Returns the profile of a trace of `duration_ns` nanoseconds.
    pub fn finish(mut self, duration_ns: u64) -> Profile {
        self.profile.merge(true);
        self.profile.duration_ns = duration_ns;
        self.profile.begin_unix_ns = clock::unix_ns(self.begin_ns);
        self.profile
    }
}

/// Writes the profile to the output files. `what` names the JVMs.
pub fn write(files: Files, profile: Profile, what: &str, args: &Args) -> Result<()> {
    let seconds = profile.duration_ns as f64 / 1e9;
    let title = Title {
        title: format!("Waits of {what}"),
        subtitle: Some(format!("{} in {seconds:.1} s", span(profile.total()))),
    };
    let titled = TitledProfile { profile: &profile, title, bands: Vec::new() };
    let options = FormatOptions { threads: args.threads, ..FormatOptions::default() };
    files.write(&[titled], &options)
}

/// Splits a period over time slots of `slot_ns` nanoseconds: each slot with the time in it, at most [`MAX_SLOTS`]. Returns
/// none if there are no slots.
fn slots((begin, end): (u64, u64), begin_ns: u64, slot_ns: u64) -> Vec<(u32, u64)> {
    if slot_ns == 0 {
        return Vec::new();
    }
    let (from, to) = (begin.saturating_sub(begin_ns), end.saturating_sub(begin_ns));
    let slot = |at: u64| u32::try_from(at / slot_ns).unwrap_or(u32::MAX);
    let within = |slot: u32| {
        let start = u64::from(slot).saturating_mul(slot_ns);
        to.min(start.saturating_add(slot_ns)).saturating_sub(from.max(start))
    };
    let slots = (slot(from)..=slot(to)).take(MAX_SLOTS).map(|slot| (slot, within(slot)));
    slots.filter(|(_, ns)| *ns > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_waits_do_not_exceed_the_maximum_size() {
        const HOUR: u64 = 3_600_000_000_000;
        let mut flames = Flames::new(20_000_000, 0);
        let thread = ThreadName { pid: Pid(1), tid: 1, name: "main".into(), virtual_thread: None };
        for number in 0..52 {
            let slots = slots((0, HOUR), 0, flames.profile.slot_ns);
            let frame = Frame::new(Kind::Class, number.to_string());
            flames.add_time(&thread, vec![frame], (HOUR, 1), slots);
            assert!(flames.profile.size() < MAX_BYTES + CHECK_EVERY_BYTES + (4 << 20), "{number}");
        }
        assert_eq!(slots((0, u64::MAX), 0, 1).len(), MAX_SLOTS);
    }
}

//! Profile of class initialisations: the time and duration of each, nested in the initialisation that
//! caused it.
//!
//! An initialiser may run the initialisers of other classes, and the JVM reports each initialisation
//! when it ends. So if one initialisation of a thread begins later than another and is reported
//! earlier, it was nested in the other.

use std::{collections::HashMap, sync::Arc};

use libjvmprobe::stack::{
    Frame, Kind,
    profile::{FrameId, Measure, Profile, Sample},
    times::Times,
};

/// Maximum number of initialisations kept.
const MAX_INITS: u64 = 1_000_000;
/// Minimum length of a time slot.
const SLOT_NS: u64 = 1_000_000;
/// Approximate maximum number of time slots, each of 16 bytes. If initialisations take longer, time slots become longer.
const MAX_SLOTS: u64 = 1 << 20;
/// Maximum depth of nested initialisers.
const MAX_DEPTH: usize = 1024;

/// Profile of the initialisations of all JVMs.
pub struct Inits {
    profile: Profile,
    begin: u64,
    count: u64,
    threads: HashMap<(u32, u32), Thread>,
}

#[derive(Default)]
struct Thread {
    name: Arc<str>,
    /// Initialisations that are not nested in another one so far, in order of time.
    roots: Vec<Init>,
}

struct Init {
    class: FrameId,
    begin: u64,
    end: u64,
    inner: Vec<Self>,
}

impl Inits {
    /// Creates a profile. `begin` is its begin on `CLOCK_MONOTONIC`, and `begin_unix_ns` the same time
    /// since 1970, both in nanoseconds.
    pub fn new(begin: u64, begin_unix_ns: u64) -> Self {
        let mut profile = Profile::default();
        profile.measure = Measure::Elapsed("init".into());
        profile.begin_unix_ns = begin_unix_ns;
        Self { profile, begin, count: 0, threads: HashMap::new() }
    }

    /// Adds an initialisation of a class by a thread, which ended at `end` and took `ns` nanoseconds.
    pub fn add(&mut self, (pid, tid): (u32, u32), thread: &str, class: &str, end: u64, ns: u64) {
        // Time before tracing began does not count.
        let begin = end.saturating_sub(ns).max(self.begin);
        if ns == 0 || self.count >= MAX_INITS {
            self.profile.lost += u64::from(ns > 0);
            return;
        }
        self.count += 1;
        let class = self.profile.intern(Frame::new(Kind::Class, class));
        let thread_inits = self.threads.entry((pid, tid)).or_default();
        thread_inits.name = thread.into();
        let first = thread_inits.roots.partition_point(|init| init.begin < begin);
        let inner = thread_inits.roots.split_off(first);
        // Initialisations of a thread are nested or disjoint, unless a process executes the probes by itself.
        let begin = thread_inits.roots.last().map_or(begin, |last| begin.max(last.end));
        thread_inits.roots.push(Init { class, begin, end, inner });
    }

    /// Returns the profile, which ends at `now`.
    pub fn into_profile(mut self, now: u64) -> Profile {
        self.profile.duration_ns = now.saturating_sub(self.begin);
        let mut threads: Vec<_> = self.threads.drain().collect();
        threads.sort_by_key(|(ids, _)| *ids);
        let roots = threads.iter().flat_map(|(_, thread)| &thread.roots);
        let times = roots.map(|init| init.end.saturating_sub(init.begin));
        let total = times.fold(0, u64::saturating_add);
        let slot_ns = slot_length(total);
        self.profile.slot_ns = slot_ns;
        for ((pid, tid), Thread { name, roots }) in threads {
            let mut open: Vec<_> = roots.into_iter().map(|init| (Vec::new(), init)).collect();
            while let Some((mut stack, init)) = open.pop() {
                let Init { class, begin, end, inner } = init;
                stack.push(class);
                // Self time is the time outside of nested initialisations.
                let mut times = Times::new();
                let mut from = begin;
                for inner in &inner {
                    slots(
                        slot_ns,
                        &mut times,
                        from.saturating_sub(self.begin),
                        inner.begin.saturating_sub(self.begin),
                    );
                    from = from.max(inner.end);
                }
                slots(
                    slot_ns,
                    &mut times,
                    from.saturating_sub(self.begin),
                    end.saturating_sub(self.begin),
                );
                self.profile.samples.push(Sample {
                    count: times.iter().map(|(_, ns)| ns).sum(),
                    occurrences: 1,
                    times,
                    ..Sample::of(pid, Arc::clone(&name), tid, stack.clone())
                });
                if stack.len() < MAX_DEPTH {
                    open.extend(inner.into_iter().map(|init| (stack.clone(), init)));
                }
            }
        }
        self.profile
    }
}

/// Returns the length of time slots for initialisations that take this long in total.
fn slot_length(total_ns: u64) -> u64 {
    let mut slot_ns = SLOT_NS;
    while total_ns / slot_ns > MAX_SLOTS {
        slot_ns *= 2;
    }
    slot_ns
}

/// Adds an interval to the time slots that it spans.
fn slots(slot_ns: u64, times: &mut Times, begin: u64, end: u64) {
    let mut at = begin;
    while at < end {
        let slot = at / slot_ns;
        let until = end.min((slot + 1) * slot_ns);
        let slot = u32::try_from(slot).unwrap_or(u32::MAX);
        match times.last_mut() {
            Some((last, ns)) if *last == slot => *ns += until - at,
            _ => times.push((slot, until - at)),
        }
        at = until;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn nested_initialisation_is_child_of_its_cause() {
        let mut inits = Inits::new(100 * MS, 0);
        let mut add = |tid, class, begin: u64, end: u64| {
            inits.add((1, tid), "main", class, (100 + end) * MS, (end - begin) * MS);
        };
        add(1, "B", 2, 4);
        add(2, "X", 3, 9);
        add(1, "C", 5, 6);
        add(1, "A", 1, 8);
        add(1, "D", 8, 9);
        let profile = inits.into_profile(120 * MS);
        let mut actual: Vec<_> = profile
            .samples
            .iter()
            .map(|sample| {
                let name = |id: &FrameId| profile.frames()[*id as usize].name.to_string();
                let stack: Vec<_> = sample.stack.iter().map(name).collect();
                (sample.tid, stack.join(";"), sample.count / MS)
            })
            .collect();
        actual.sort();
        let expected = [(1, "A", 4), (1, "A;B", 2), (1, "A;C", 1), (1, "D", 1), (2, "X", 6)];
        assert_eq!(actual, expected.map(|(tid, stack, ms)| (tid, stack.to_owned(), ms)));
        let a = profile.samples.iter().find(|sample| sample.count == 4 * MS).unwrap();
        assert_eq!(a.times, [(1, MS), (4, MS), (6, MS), (7, MS)]);
    }

    #[test]
    fn long_initialisations_have_longer_time_slots() {
        let (mut inits, hour) = (Inits::new(0, 0), 3_600_000 * MS);
        for tid in 1..=2 {
            inits.add((1, tid), "main", "Main", hour, hour);
        }
        let profile = inits.into_profile(hour);
        assert_eq!(profile.slot_ns, 8 * MS);
        let slots: usize = profile.samples.iter().map(|sample| sample.times.len()).sum();
        assert!(slots as u64 <= MAX_SLOTS, "{slots}");
        assert!(profile.samples.iter().all(|sample| sample.count == hour));
    }

    #[test]
    fn impossible_durations_are_clamped_to_the_trace() {
        let mut inits = Inits::new(100, 0);
        inits.add((1, 1), "t", "A", 50, 10);
        inits.add((1, 1), "t", "B", 200, u64::MAX);
        inits.add((1, 1), "t", "C", 0, 0);
        assert!(inits.into_profile(0).samples.iter().all(|sample| sample.count <= 100));
    }
}

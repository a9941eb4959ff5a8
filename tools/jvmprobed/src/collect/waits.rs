//! Adds up the waits of Java threads: by window, JVM, kind and stack.
//!
//! A wait belongs to the window in which it ended. The tracer reports a wait later than that, because it first has to
//! find out whether the thread only woke up for an instant and goes on waiting. A window is therefore complete some
//! seconds after its end: see [`DELAY_NS`].
//!
//! A wait may represent others of the same tenant that were not recorded. They count like waits with the same stack.
//!
//! Waits of threads that have no work, for example of the workers of a pool, are left out.

use std::{
    collections::{BTreeMap, HashMap},
    mem::take,
    sync::Arc,
    time::Duration,
};

use libjvmprobe::{
    bpf::clock::{monotonic_ns, unix_ns},
    stack::{
        Frame, Kind as FrameKind,
        profile::{FrameId, Measure, Profile, Sample},
    },
    trace::waits::{Kind, Wait},
};

use crate::{metrics::figures::Waited, stops::share_of};

/// Name of the measure.
pub const WAIT: &str = "wait";
/// Time, in nanoseconds, after the end of a window at which its waits are delivered. By then, the tracer has reported all of them.
pub const DELAY_NS: u64 = 4_000_000_000;

/// Waits of all JVMs, by window.
#[derive(Debug)]
pub struct Waits {
    /// Begin of the first window, on `CLOCK_MONOTONIC` in nanoseconds.
    first_ns: u64,
    /// Length of a window in nanoseconds.
    window_ns: u64,
    /// Time at which the recording began, on `CLOCK_MONOTONIC` in nanoseconds.
    began_ns: u64,
    /// Approximate maximum memory in bytes.
    max_bytes: usize,
    /// Memory of all JVMs in bytes.
    bytes: usize,
    /// The windows, by number and PID.
    windows: BTreeMap<(u64, u32), JvmWaits>,
}

/// Waits of one JVM in one window, to be delivered.
#[derive(Debug)]
pub struct Delivered {
    /// A time within the window, on `CLOCK_MONOTONIC` in nanoseconds.
    pub at_ns: u64,
    /// PID of the JVM.
    pub pid: u32,
    /// The waits by thread, stack and kind.
    pub profile: Profile,
    /// The waits by kind.
    pub kinds: Vec<Waited>,
}

impl Waits {
    /// Starts without waits. The first window began at `first_ns` on `CLOCK_MONOTONIC`.
    pub fn new(first_ns: u64, window: Duration, max_bytes: usize) -> Self {
        let window_ns = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX).max(1);
        let began_ns = monotonic_ns();
        Self { first_ns, window_ns, began_ns, max_bytes, bytes: 0, windows: BTreeMap::new() }
    }

    /// Adds a wait that has ended.
    pub fn add(&mut self, wait: &Wait) {
        if wait.is_idle || wait.is_in_progress {
            return;
        }
        let window = wait.end_ns.saturating_sub(self.first_ns) / self.window_ns;
        let jvm = self.windows.entry((window, wait.thread.pid.0)).or_default();
        let before = jvm.bytes;
        jvm.add(wait);
        self.bytes = (self.bytes + jvm.bytes).saturating_sub(before);
        if self.bytes > self.max_bytes {
            self.make_space();
        }
    }

    /// Shrinks each JVM to an equal share of the memory. The new size is at most three quarters of the maximum, so that
    /// this function is called rarely.
    fn make_space(&mut self) {
        let sizes = self.windows.values().map(|jvm| jvm.bytes);
        let share = share_of(sizes, self.max_bytes / 4 * 3);
        self.windows.values_mut().filter(|jvm| jvm.bytes > share).for_each(|jvm| jvm.shrink(share));
        self.bytes = self.windows.values().map(|jvm| jvm.bytes).sum();
    }

    /// Removes and returns the waits of all windows that had ended at `time_ns` on `CLOCK_MONOTONIC`.
    pub fn take_ended(&mut self, time_ns: u64) -> Vec<Delivered> {
        let current = time_ns.saturating_sub(self.first_ns) / self.window_ns;
        let rest = self.windows.split_off(&(current, 0));
        let ended = std::mem::replace(&mut self.windows, rest);
        self.deliver(ended)
    }

    /// Removes and returns all waits.
    pub fn take_all(&mut self) -> Vec<Delivered> {
        let all = take(&mut self.windows);
        self.deliver(all)
    }

    fn deliver(&mut self, windows: BTreeMap<(u64, u32), JvmWaits>) -> Vec<Delivered> {
        self.bytes = self.windows.values().map(|jvm| jvm.bytes).sum();
        let now = monotonic_ns();
        let deliver = |((window, pid), jvm): ((u64, u32), JvmWaits)| {
            let begin_ns = self.first_ns.saturating_add(window.saturating_mul(self.window_ns));
            let end_ns = begin_ns.saturating_add(self.window_ns).min(now);
            let begin_ns = begin_ns.max(self.began_ns).min(end_ns);
            let JvmWaits { mut profile, kinds, .. } = jvm;
            profile.begin_unix_ns = unix_ns(begin_ns);
            profile.duration_ns = end_ns - begin_ns;
            let kinds = kinds.into_values().collect();
            Delivered { at_ns: begin_ns.midpoint(end_ns), pid, profile, kinds }
        };
        windows.into_iter().map(deliver).collect()
    }
}

/// Waits of one JVM in one window.
#[derive(Debug)]
struct JvmWaits {
    kinds: BTreeMap<Kind, Waited>,
    profile: Profile,
    /// Index of the sample of a thread with a stack.
    samples: HashMap<(u32, Vec<FrameId>), usize>,
    /// Frame IDs of the tracer's stacks, by address. The stack is kept, so that no other one gets its address.
    stacks: HashMap<usize, (Arc<[Frame]>, Vec<FrameId>)>,
    /// Approximate memory in bytes.
    bytes: usize,
}

impl Default for JvmWaits {
    fn default() -> Self {
        Self {
            kinds: BTreeMap::new(),
            profile: Profile::of(Measure::Elapsed(WAIT.into())),
            samples: HashMap::new(),
            stacks: HashMap::new(),
            bytes: 0,
        }
    }
}

impl JvmWaits {
    fn add(&mut self, wait: &Wait) {
        let ns = wait.length_ns().saturating_add(wait.others.ns);
        let times = wait.others.times.saturating_add(1);
        let waited = Waited { kind: wait.kind.name(), times: 0, ns: 0 };
        let sum = self.kinds.entry(wait.kind).or_insert(waited);
        sum.times = sum.times.saturating_add(times);
        sum.ns = sum.ns.saturating_add(ns);

        let frames_before = self.profile.frames().len();
        let mut stack = self.frame_ids(&wait.stack);
        let label = Frame::new(FrameKind::Class, format!("[{}]", wait.kind.name()));
        let inner = wait.kernel_stack.iter().cloned().chain([label]);
        stack.extend(inner.map(|frame| self.profile.intern(frame)));
        // A frame is stored twice, see `Profile::size`. The names are estimated.
        let frames = self.profile.frames().len() - frames_before;
        self.bytes += frames * (2 * size_of::<Frame>() + 64);

        let next = self.profile.samples.len();
        let stack_bytes = size_of_val(&*stack);
        let at = *self.samples.entry((wait.thread.tid, stack.clone())).or_insert(next);
        if at == next {
            self.bytes +=
                2 * stack_bytes + size_of::<Sample>() + size_of::<(u32, Vec<u32>, usize)>();
            self.profile.samples.push(Sample::of(
                wait.thread.pid.0,
                Arc::clone(&wait.thread.name),
                wait.thread.tid,
                stack,
            ));
        }
        if let Some(sample) = self.profile.samples.get_mut(at) {
            sample.count = sample.count.saturating_add(ns);
            sample.occurrences = sample.occurrences.saturating_add(times);
        }
    }

    /// Returns the frame IDs of a stack of the tracer, which uses one `Arc` for all waits with this stack.
    fn frame_ids(&mut self, stack: &Arc<[Frame]>) -> Vec<FrameId> {
        let address = stack.as_ptr().addr();
        if let Some((_, ids)) = self.stacks.get(&address) {
            return ids.clone();
        }
        let ids: Vec<_> = stack.iter().map(|frame| self.profile.intern(frame.clone())).collect();
        self.bytes += size_of_val(&**stack) + size_of_val(&*ids) + size_of::<(usize, Vec<u32>)>();
        self.stacks.insert(address, (Arc::clone(stack), ids.clone()));
        ids
    }

    /// Drops the stacks with the least waiting time until at most about `max` bytes are used. The sums by kind and the
    /// total of the profile stay exact.
    fn shrink(&mut self, max: usize) {
        self.stacks = HashMap::new();
        // A half is for the index of samples.
        self.profile.shrink(max / 2);
        let keys = self.profile.samples.iter().map(|sample| (sample.tid, sample.stack.clone()));
        self.samples = keys.zip(0..).collect();
        self.bytes = self.profile.size();
    }
}

#[cfg(test)]
mod tests {
    use libjvmprobe::{
        Pid,
        trace::waits::{Awaited, Others, ThreadName},
    };

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const WINDOW: Duration = Duration::from_secs(15);

    fn wait(pid: u32, kind: Kind, end_ns: u64, ns: u64, stack: &Arc<[Frame]>) -> Wait {
        Wait {
            thread: ThreadName {
                pid: Pid(pid),
                tid: pid,
                name: "main".into(),
                virtual_thread: None,
            },
            kind,
            awaited: Awaited::default(),
            begin_ns: end_ns - ns,
            end_ns,
            run_queue_ns: 0,
            was_throttled: false,
            is_unseen: false,
            is_in_progress: false,
            is_idle: false,
            pinned_by: None,
            stack: Arc::clone(stack),
            kernel_stack: [Frame::new(FrameKind::Kernel, "futex_wait")].into(),
            holder: None,
            others: Others::default(),
        }
    }

    fn stack(name: &str) -> Arc<[Frame]> {
        [Frame::new(FrameKind::Java, "app.Main.main"), Frame::new(FrameKind::Java, name)].into()
    }

    fn waited(kind: Kind, times: u64, ns: u64) -> Waited {
        Waited { kind: kind.name(), times, ns }
    }

    #[test]
    fn wait_belongs_to_the_window_in_which_it_ended() {
        let first_ns = monotonic_ns() - 100 * SECOND;
        let mut waits = Waits { began_ns: first_ns, ..Waits::new(first_ns, WINDOW, 1 << 20) };
        let own = stack("app.Main.lock");
        // It lasts for three windows and ends one nanosecond before the end of the third one.
        waits.add(&wait(1, Kind::Monitor, first_ns + 45 * SECOND - 1, 40 * SECOND, &own));
        waits.add(&wait(1, Kind::Monitor, first_ns + 45 * SECOND, 3, &own));
        assert!(waits.take_ended(first_ns + 45 * SECOND - 1).is_empty());
        let [third] = &waits.take_ended(first_ns + 45 * SECOND)[..] else { panic!() };
        assert_eq!(third.kinds, [waited(Kind::Monitor, 1, 40 * SECOND)]);
        assert!((30 * SECOND..45 * SECOND).contains(&(third.at_ns - first_ns)));
        let [fourth] = &waits.take_all()[..] else { panic!() };
        assert_eq!(fourth.kinds, [waited(Kind::Monitor, 1, 3)]);
        assert!((45 * SECOND..60 * SECOND).contains(&(fourth.at_ns - first_ns)));
        assert_eq!((waits.take_all().len(), waits.bytes), (0, 0));
    }

    #[test]
    fn waits_are_added_up_by_kind_and_stack_without_idle_ones() {
        let first_ns = monotonic_ns() - SECOND;
        let mut waits = Waits::new(first_ns, WINDOW, 1 << 20);
        let [a, b] = ["app.Main.a", "app.Main.b"].map(stack);
        for (kind, stack, ns) in
            [(Kind::Park, &a, 5), (Kind::Park, &a, 7), (Kind::Park, &b, 1), (Kind::Sleep, &a, 3)]
        {
            waits.add(&wait(1, kind, first_ns + 9, ns, stack));
        }
        // Two waits may have equal stacks at different addresses.
        waits.add(&wait(1, Kind::Park, first_ns + 9, 2, &stack("app.Main.a")));
        waits.add(&Wait { is_idle: true, ..wait(1, Kind::Park, first_ns + 9, 4, &a) });
        waits.add(&Wait { is_in_progress: true, ..wait(1, Kind::Park, first_ns + 9, 4, &a) });
        let [of_jvm] = &waits.take_all()[..] else { panic!() };
        assert_eq!(of_jvm.kinds, [waited(Kind::Park, 4, 15), waited(Kind::Sleep, 1, 3)]);
        let profile = &of_jvm.profile;
        let line = |sample: &Sample| {
            let names: Vec<_> = sample.stack.iter().map(|&id| &*profile.frame(id).name).collect();
            (names.join(";"), sample.count, sample.occurrences)
        };
        let mut lines: Vec<_> = profile.samples.iter().map(line).collect();
        lines.sort();
        let line = |rest: &str, ns, times| {
            let [method, kind] = rest.split(' ').collect::<Vec<_>>()[..] else { panic!() };
            (format!("app.Main.main;app.Main.{method};futex_wait;[{kind}]"), ns, times)
        };
        assert_eq!(lines, [line("a park", 14, 3), line("a sleep", 3, 1), line("b park", 1, 1)]);
    }

    #[test]
    fn waits_that_were_left_out_count_with_the_stack_of_the_recorded_one() {
        let first_ns = monotonic_ns() - SECOND;
        let mut waits = Waits::new(first_ns, WINDOW, 1 << 20);
        let own = stack("app.Main.a");
        let others = Others { times: 9, ns: 70 };
        waits.add(&Wait { others, ..wait(1, Kind::Park, first_ns + 9, 5, &own) });
        let [of_jvm] = &waits.take_all()[..] else { panic!() };
        assert_eq!(of_jvm.kinds, [waited(Kind::Park, 10, 75)]);
        assert_eq!((of_jvm.profile.total(), of_jvm.profile.sampled()), (75, 10));
    }

    #[test]
    fn memory_is_bounded_and_a_jvm_within_its_share_is_complete() {
        let first_ns = monotonic_ns() - SECOND;
        let mut waits = Waits::new(first_ns, WINDOW, 1 << 20);
        let quiet = stack("app.Main.quiet");
        for i in 0..20_000_u64 {
            let noisy = stack(&format!("app.Storm.call{i}"));
            waits.add(&wait(1, Kind::Park, first_ns + 9, 1 + i % 7, &noisy));
            if i.is_multiple_of(100) {
                waits.add(&wait(2, Kind::Sleep, first_ns + 9, 1, &quiet));
            }
            assert!(waits.bytes <= waits.max_bytes);
        }
        let [noisy, quiet] = &waits.take_all()[..] else { panic!() };
        let total: u64 = (0..20_000).map(|i| 1 + i % 7).sum();
        assert_eq!(noisy.kinds, [waited(Kind::Park, 20_000, total)]);
        assert_eq!((noisy.profile.total(), noisy.profile.sampled()), (total, 20_000));
        assert!(noisy.profile.folded > 0 && noisy.profile.size() <= 1 << 20);
        assert_eq!((quiet.profile.samples.len(), quiet.profile.total()), (1, 200));
    }
}

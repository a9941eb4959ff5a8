//! Waits of threads: makes samples from the kernel side's entry of each thread.
//!
//! The kernel side counts a wait with its stack when the wait ends. Two sums are read from the entries instead: each
//! thread's running time, and its short waits. Waits that are still in progress at the end of the trace are read from
//! the entries, too, and the stacks of these threads are walked by [`crate::trace::asleep`]. Together, the times of a thread add up to
//! the elapsed time.

use std::collections::{HashMap, HashSet};

use crate::{
    Pid,
    bpf::{clock, offcpu::Thread},
    process::{os_threads::tids, pid::thread_name},
    stack::waiting,
    trace::{
        asleep::SleepingThread,
        samples::{
            sampler::Samples,
            session::{self, ASLEEP, Count, SampleKey, Session},
        },
    },
};

/// Part of a thread's time that a sample of the wait event represents: `LABEL_*` of bpf/javaprof.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A sample of the running thread. Such samples have no label.
    Sampled = 0,
    /// Time from leaving the processor until being woken.
    Blocked,
    /// Time in which the thread could run but had no processor, after it was woken or preempted.
    Runnable,
    /// Waits shorter than the minimum, summed per thread.
    Short,
    /// Running time, summed per thread.
    OnCpu,
}

impl Part {
    const ALL: [Self; 5] = [Self::Sampled, Self::Blocked, Self::Runnable, Self::Short, Self::OnCpu];

    /// Returns the part that a sample's label represents.
    pub(super) fn of(label: u64) -> Self {
        Self::ALL.into_iter().find(|part| part.label() == label).unwrap_or(Self::Sampled)
    }

    fn label(self) -> u64 {
        self as u64
    }

    /// Returns the frame that is appended to the stack of a sample of this part.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Sampled => None,
            Self::Blocked => Some(waiting::BLOCKED),
            Self::Runnable => Some(waiting::RUNNABLE),
            Self::Short => Some(waiting::SHORT),
            Self::OnCpu => Some("[runs, not sampled]"),
        }
    }
}

/// Frame shown for a thread that was asleep at the end of the trace and whose stack is unknown.
pub(crate) const ASLEEP_NAME: &str = waiting::ASLEEP;

/// Sums of a thread at the last reading: running time and time of short waits in nanoseconds, and the number
/// of short waits.
#[derive(Clone, Copy, Debug, Default)]
struct LastSums {
    on_ns: u64,
    short_ns: u64,
    shorts: u64,
}

/// Reader of the waits.
pub(super) struct Waits {
    /// Index of the event that has the waits.
    event: u32,
    /// Whether the event is wall-clock time, which includes running time.
    is_wall: bool,
    /// Start of the trace on the kernel's monotonic clock, in nanoseconds.
    began: u64,
    /// Sums at the last reading, by process and thread.
    seen: HashMap<(u32, u32), LastSums>,
    /// Times at which processes were added during the trace, by PID.
    added: HashMap<u32, u64>,
    /// Length of a time slot: see [`crate::stack::profile::Profile::slot_ns`].
    slot_ns: u64,
}

type Counted = (SampleKey, Count);

impl Waits {
    /// Starts counting waits.
    pub(super) fn begin(session: &mut Session, event: u32, is_wall: bool, slot_ns: u64) -> Self {
        let began = clock::monotonic_ns();
        session::begin_waits(session, began);
        Self { event, is_wall, began, seen: HashMap::new(), added: HashMap::new(), slot_ns }
    }

    /// Returns the time slot that contains the time `now`.
    fn slot(&self, now: u64) -> u32 {
        let slot = now.saturating_sub(self.began).checked_div(self.slot_ns).unwrap_or(0);
        u32::try_from(slot).unwrap_or(u32::MAX)
    }

    /// Records that a process is added to the trace now.
    pub(super) fn add(&mut self, pid: u32) {
        self.added.insert(pid, clock::monotonic_ns());
    }

    /// Forgets a process that has ended or runs another program now.
    pub(super) fn forget(&mut self, session: &Session, pid: u32) {
        self.added.remove(&pid);
        self.seen.retain(|(of, _), _| *of != pid);
        session::forget_threads(session, pid);
    }

    fn key(&self, thread: &Thread, comm: String, part: Part) -> SampleKey {
        SampleKey {
            tid: thread.tid,
            comm,
            event: self.event,
            label: part.label(),
            ..SampleKey::of(thread.tgid)
        }
    }

    /// Returns the growth of each thread's sums since the last reading.
    pub(super) fn collect(&mut self, session: &Session, now: u64) -> Vec<Counted> {
        let threads = session::threads(session);
        threads.iter().flat_map(|thread| self.sums(thread, now)).collect()
    }

    fn sums(&mut self, thread: &Thread, now: u64) -> Vec<Counted> {
        let slot = self.slot(now);
        let seen = self.seen.entry((thread.tgid, thread.tid)).or_default();
        // The current run is included; otherwise a thread that never leaves the processor would have no running time.
        let runs = if thread.is_off_cpu == 0 { now.saturating_sub(thread.since) } else { 0 };
        let on_ns = thread.on_ns.saturating_add(runs).max(seen.on_ns);
        let now = LastSums { on_ns, short_ns: thread.short_ns, shorts: thread.shorts };
        let before = std::mem::replace(seen, now);
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let shorts = since(now.shorts, before.shorts);
        let comm = session::comm(thread);
        let sum = |part, samples, value| {
            let count = Count { samples, value };
            let key = || SampleKey { slot, ..self.key(thread, comm.clone(), part) };
            (value > 0).then(|| (key(), count))
        };
        let on = sum(Part::OnCpu, 0, since(now.on_ns, before.on_ns));
        let short = sum(Part::Short, shorts, since(now.short_ns, before.short_ns));
        on.into_iter().chain(short).collect()
    }

    /// When a thread ends, the kernel side counts its complete sums. Subtracts from such a sum the part that
    /// was read earlier.
    pub(super) fn subtract_seen(&mut self, key: &SampleKey, count: &mut Count) {
        let of = (key.pid, key.tid);
        let Some(seen) = self.seen.get_mut(&of) else { return };
        let before = match Part::of(key.label) {
            Part::OnCpu => std::mem::take(&mut seen.on_ns),
            Part::Short => std::mem::take(&mut seen.short_ns),
            _ => return,
        };
        count.value = count.value.saturating_sub(before);
        if seen.on_ns == 0 && seen.short_ns == 0 {
            self.seen.remove(&of);
        }
    }

    /// Returns the last growth of each thread's sums, and the waits in progress at the end of the trace. A
    /// thread without an entry and without samples has slept the whole time, so one wait is returned for it. `asleep` are
    /// the threads that slept at the end.
    pub(super) fn finish(
        &mut self,
        session: &Session,
        now: u64,
        pids: impl Iterator<Item = u32>,
        samples: &HashMap<u32, Samples>,
        asleep: &[SleepingThread],
    ) -> Vec<Counted> {
        let asleep: HashMap<_, _> = asleep.iter().map(|found| (found.thread, found)).collect();
        let threads = session::threads(session);
        let mut counted = Vec::new();
        let mut known = HashSet::new();
        for thread in &threads {
            known.insert((thread.tgid, thread.tid));
            counted.extend(self.sums(thread, now));
            let found = asleep.get(&(thread.tgid, thread.tid));
            let found = found.filter(|found| found.since == thread.since);
            for (key, count) in self.waits_in_progress(thread, now) {
                counted.push((with_sleeping_stack(session, key, found.copied()), count));
            }
        }
        for pid in pids {
            let is_sampled =
                |key: &&SampleKey| key.event == self.event && Part::of(key.label) == Part::Sampled;
            let keys = samples.get(&pid).into_iter().flat_map(Samples::keys);
            let ran_tids: HashSet<_> = keys.filter(is_sampled).map(|key| key.tid).collect();
            for tid in tids(Pid(pid)) {
                // A thread that ran the whole time has no entry; its samples represent that time.
                if known.contains(&(pid, tid)) || ran_tids.contains(&tid) {
                    continue;
                }
                let thread = Thread { tgid: pid, tid, ..Thread::default() };
                let comm = thread_name(Pid(pid), tid).unwrap_or_default();
                let slot = self.slot(now);
                let key = SampleKey { slot, ..self.key(&thread, comm, Part::Blocked) };
                let found = asleep.get(&(pid, tid)).copied();
                let since = self.added.get(&pid).copied().unwrap_or(0).max(self.began);
                let value = now.saturating_sub(since);
                let key = with_sleeping_stack(session, key, found);
                counted.push((key, Count { samples: 1, value }));
            }
        }
        counted
    }

    fn waits_in_progress(&self, thread: &Thread, now: u64) -> Vec<Counted> {
        let comm = session::comm(thread);
        let count = |value| Count { samples: 1, value };
        let lasts = now.saturating_sub(thread.since);
        if thread.is_off_cpu == 0 {
            return Vec::new();
        }
        let blocked = match thread.woken {
            0 => lasts,
            woken => woken.saturating_sub(thread.since).min(lasts),
        };
        let parts = [(Part::Blocked, blocked), (Part::Runnable, lasts - blocked)];
        let parts = parts.into_iter().filter(|(_, ns)| *ns > 0);
        let slot = self.slot(now);
        let key = |part| SampleKey { slot, ..self.key(thread, comm.clone(), part) };
        parts.map(|(part, ns)| (key(part), count(ns))).collect()
    }

    /// Distributes the running time of each thread over its samples, if the event is wall-clock time; otherwise
    /// removes the running times. If a thread has no samples, its running time stays a sum without a stack.
    /// If a thread has samples but no running time, each sample represents 1/`hertz` seconds.
    pub(super) fn distribute_running_time(&self, samples: &mut Samples, hertz: u64) {
        let is_ours = |key: &SampleKey| key.event == self.event;
        if !self.is_wall {
            samples.retain(|key, _| !is_ours(key) || Part::of(key.label) != Part::OnCpu);
            return;
        }
        // Running time in nanoseconds and number of samples of each thread.
        let mut threads: HashMap<u32, (u64, u64)> = HashMap::new();
        for (key, count) in samples.iter().filter(|(key, _)| is_ours(key)) {
            let (ran, sampled) = threads.entry(key.tid).or_default();
            match Part::of(key.label) {
                Part::OnCpu => *ran += count.value,
                Part::Sampled => *sampled += count.samples,
                _ => {}
            }
        }
        samples.retain(|key, count| {
            if !is_ours(key) {
                return true;
            }
            let (ran, sampled) = threads.get(&key.tid).copied().unwrap_or_default();
            match Part::of(key.label) {
                Part::OnCpu => sampled == 0,
                Part::Sampled => {
                    let each = match ran {
                        0 => u128::from(count.samples) * 1_000_000_000 / u128::from(hertz.max(1)),
                        ran => u128::from(ran) * u128::from(count.samples) / u128::from(sampled),
                    };
                    count.value = u64::try_from(each).unwrap_or(u64::MAX);
                    true
                }
                _ => true,
            }
        });
    }
}

/// Adds to a key the stacks of the thread if it was found asleep.
fn with_sleeping_stack(
    session: &Session,
    key: SampleKey,
    found: Option<&SleepingThread>,
) -> SampleKey {
    match found {
        None => SampleKey { user: ASLEEP, ..key },
        Some(&SleepingThread { user, user_end, kernel, .. }) => {
            let epoch = session::epoch(session, key.pid.into());
            SampleKey { user, user_end, kernel, epoch, ..key }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(is_wall: bool) -> Waits {
        Waits {
            event: 1,
            is_wall,
            began: 0,
            seen: HashMap::new(),
            added: HashMap::new(),
            slot_ns: 0,
        }
    }

    fn key(part: Part) -> SampleKey {
        SampleKey { event: 1, label: part.label(), ..SampleKey::of(7) }
    }

    fn value(value: u64) -> Count {
        Count { samples: 1, value }
    }

    #[test]
    fn thread_sums_are_reported_once() {
        let mut waits = waits(true);
        let mut thread =
            Thread { tgid: 7, tid: 7, on_ns: 10, short_ns: 5, shorts: 2, ..Thread::default() };
        thread.is_off_cpu = 1;
        assert_eq!(waits.sums(&thread, 50).len(), 2);
        assert!(waits.sums(&thread, 60).is_empty());
        // It has run since 60.
        (thread.is_off_cpu, thread.since) = (0, 60);
        let sums = waits.sums(&thread, 63);
        assert_eq!(sums, [(key(Part::OnCpu), Count { samples: 0, value: 3 })]);
        (thread.is_off_cpu, thread.on_ns) = (1, 14);
        let sums = waits.sums(&thread, 70);
        assert_eq!(sums, [(key(Part::OnCpu), Count { samples: 0, value: 1 })]);
        // The thread has ended: the kernel side has counted the whole sum, part of which was read before.
        let mut all = value(20);
        waits.subtract_seen(&key(Part::OnCpu), &mut all);
        assert_eq!(all.value, 6);
        let mut again = value(3);
        waits.subtract_seen(&key(Part::OnCpu), &mut again);
        assert_eq!(again.value, 3, "another thread with the same ID");
    }

    #[test]
    fn samples_are_weighted_by_their_threads_run_time() {
        let other = SampleKey { cpu: 1, ..key(Part::Sampled) };
        let all = || {
            Samples::from([
                (key(Part::OnCpu), value(9_000)),
                (key(Part::Sampled), Count { samples: 1, value: 0 }),
                (other.clone(), Count { samples: 2, value: 0 }),
                (key(Part::Blocked), value(1_000)),
            ])
        };
        let mut wall = all();
        waits(true).distribute_running_time(&mut wall, 99);
        assert_eq!(wall.len(), 3);
        assert_eq!((wall[&key(Part::Sampled)].value, wall[&other].value), (3_000, 6_000));
        let mut off = all();
        waits(false).distribute_running_time(&mut off, 99);
        assert!(!off.contains_key(&key(Part::OnCpu)));
        // The thread ran too briefly to be sampled.
        let mut unsampled = Samples::from([(key(Part::OnCpu), value(5))]);
        waits(true).distribute_running_time(&mut unsampled, 99);
        assert_eq!(unsampled[&key(Part::OnCpu)].value, 5);
    }

    #[test]
    fn ongoing_wait_is_counted_up_to_the_end() {
        let away =
            Thread { tgid: 7, tid: 7, since: 100, is_off_cpu: 1, woken: 140, ..Thread::default() };
        let parts = waits(true).waits_in_progress(&away, 150);
        let parts: Vec<_> =
            parts.iter().map(|(key, count)| (Part::of(key.label), count.value)).collect();
        assert_eq!(parts, [(Part::Blocked, 40), (Part::Runnable, 10)]);
        assert!(waits(true).waits_in_progress(&Thread { is_off_cpu: 0, ..away }, 150).is_empty());
    }
}

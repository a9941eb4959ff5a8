//! Totals of one JVM: turns the kernel side's growing counters into what was allocated in the whole trace and
//! in the current interval.

use std::collections::{HashMap, HashSet};

use crate::{
    Addr, Pid,
    bpf::clock,
    hotspot::{
        thread_names::{ThreadNames, is_cut},
        threads::ThreadBytes,
    },
    sys::budget::Share,
    trace::allocations::{
        Options,
        counters::Counted,
        event::{ClassId, ONE, slot_bytes, tally},
        record,
        split::StackShare,
        stacks::{self, StackId},
        tally::{Allocated, Count, Key, OTHER, Totals},
        time_slots::TimeSlots,
    },
};

/// Maximum number of truncated thread names that are completed per call.
const MAX_COMPLETED: usize = 256;

/// Totals of a JVM, and the readings of the kernel side's counters that they are based on.
pub(crate) struct JvmTotals {
    pid: Pid,
    options: Options,
    thread_names: HashMap<u32, String>,
    /// The kernel side's counters when they were last read.
    seen: HashMap<SeenKey, tally>,
    seen_others: tally,
    /// Bytes of each thread when the threads were last read.
    in_flight: HashMap<ThreadKey, InFlight>,
    /// Time slots of the counted allocations, if they are kept.
    pub(crate) time_slots: Option<TimeSlots>,
    /// Totals of the whole trace, and of the interval.
    spans: [Span; 2],
    memory: Share,
}

/// Maximum number of threads whose names are kept: more than a JVM runs at the same time in practice. Other
/// threads are shown as `?`.
const MAX_THREADS: usize = 1 << 16;

/// Key of a counter of the kernel side, without the JVM's key: class, stack and thread.
pub(crate) type SeenKey = (ClassId, u64, u32);

/// Bytes that a thread has allocated.
#[derive(Clone, Copy, Debug, Default)]
struct InFlight {
    /// All bytes.
    allocated: u64,
    /// Bytes that no sample represents; negative if samples represent more than the thread has allocated.
    bytes: i64,
}

/// A thread: its JavaThread and, once it has had an event, its thread ID.
type ThreadKey = (Addr, Option<u64>);

/// Totals since a time.
#[derive(Debug, Default)]
struct Span {
    begin_ns: u64,
    totals: Totals,
}

const TRACE: usize = 0;
const INTERVAL: usize = 1;

/// The period that a table covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole trace.
    Trace,
    /// The current interval, which begins at the previous report.
    Interval,
}

/// Allocations of a JVM in a period.
pub struct Table {
    /// The totals.
    pub summary: record::Summary,
    /// All classes, in no particular order.
    pub rows: Vec<Row>,
}

/// Allocations of a class.
pub struct Row {
    /// The class's total.
    pub class: record::Class,
    /// The parts of that total by stack, largest first; empty if stacks are not walked.
    pub parts: Vec<StackShare>,
}

impl JvmTotals {
    /// Creates empty totals.
    pub(crate) fn new(pid: Pid, options: Options, memory: Share, begin_ns: u64) -> Self {
        let span = || Span { begin_ns, totals: Totals::within(&memory) };
        Self {
            pid,
            options,
            thread_names: HashMap::new(),
            seen: HashMap::new(),
            seen_others: tally::default(),
            in_flight: HashMap::new(),
            time_slots: (options.slot_ns > 0 && options.keeps_whole_trace)
                .then(|| TimeSlots::new(options.slot_ns)),
            spans: [span(), span()],
            memory,
        }
    }

    /// Returns the totals that are kept: those of the interval and, with `keeps_whole_trace`, those of the
    /// whole trace.
    fn spans(&mut self) -> &mut [Span] {
        let first = if self.options.keeps_whole_trace { TRACE } else { INTERVAL };
        &mut self.spans[first..]
    }

    /// Records a thread's name.
    pub(crate) fn name_thread(&mut self, tid: u32, name: String) {
        insert_name(&mut self.thread_names, tid, name);
    }

    /// Replaces truncated thread names by complete ones that have been read since.
    pub(crate) fn complete_names(&mut self, threads: &mut ThreadNames) {
        let cut = self.thread_names.iter_mut().filter(|(_, name)| is_cut(name));
        for (tid, name) in cut.take(MAX_COMPLETED) {
            *name = threads.of(*tid, std::mem::take(name));
        }
    }

    /// Returns the increase of a kernel-side counter since it was last read; `None` if it is unchanged.
    pub(crate) fn increase(&mut self, key: SeenKey, now: &tally) -> Option<Count> {
        let before = self.seen.insert(key, *now).unwrap_or_default();
        let increase = difference(&before, now);
        (increase != Count::default()).then_some(increase)
    }

    /// Adds allocations of a class from a stack.
    pub(crate) fn add(&mut self, row: &Key, stack: StackId, count: &Count) {
        let by_stack = self.options.by_stack;
        for span in self.spans() {
            span.totals.add(row, count);
            if by_stack {
                span.totals.add_stack(row, stack, count);
            }
        }
    }

    /// Adds the bytes that the kernel side counted for a class and a stack in one time slot.
    pub(crate) fn add_slot_bytes(
        &mut self,
        row: &Key,
        stack: StackId,
        slot: u32,
        counted: slot_bytes,
    ) {
        if let Some(time_slots) = &mut self.time_slots {
            time_slots.add(row, stack, slot, counted);
        }
    }

    /// Adds the increase of the kernel side's counter of allocations for which its map had no free entry.
    pub(crate) fn add_others(&mut self, now: &tally) {
        let before = std::mem::replace(&mut self.seen_others, *now);
        let increase = difference(&before, now);
        if increase != Count::default() {
            self.add(&Key { class: OTHER.into(), tid: 0 }, stacks::OTHER, &increase);
        }
    }

    /// Adds the contents of a thread's full TLAB, by class.
    pub(crate) fn add_tlab(&mut self, tid: u32, found: &[(Key, Count)]) {
        for span in self.spans() {
            for (row, count) in found {
                span.totals.add(row, count);
            }
            span.totals.add_read(tid);
        }
    }

    /// Updates the bytes in flight, which no sample represents yet. `threads` has the number of bytes that
    /// each live thread has allocated, as counted by the JVM. `counted` has the kernel side's state of each
    /// thread. Returns the entries of `counted` whose threads have ended.
    pub(crate) fn update_in_flight<'a>(
        &mut self,
        threads: &[ThreadBytes],
        counted: &[&'a Counted],
    ) -> Vec<&'a Counted> {
        // There are two entries with the same address if a JavaThread reuses the address of one whose end was
        // not recorded. The entry with the more recent event belongs to the live thread.
        let mut last = HashMap::<Addr, &Counted>::new();
        for &one in counted.iter().filter(|one| !one.has_ended) {
            let known = last.entry(one.thread).or_insert(one);
            if known.last < one.last {
                *known = one;
            }
        }
        let mut in_flight = HashMap::with_capacity(threads.len());
        let mut live = HashSet::new();
        // A thread whose end was just recorded may still be in `threads`.
        let ended = counted.iter().filter(|one| one.has_ended);
        let ended: HashSet<_> = ended.map(|one| (one.thread, one.bytes)).collect();
        for thread in threads.iter().filter(|t| !ended.contains(&(t.thread, t.allocated))) {
            // If a listed thread has allocated fewer bytes than `counted` has for its address, it is a new
            // thread at that address and has had no event yet.
            let known = last.get(&thread.thread).filter(|known| known.bytes <= thread.allocated);
            let bytes =
                difference_of(thread.allocated, known.map_or(0, |known| known.represented_bytes));
            let key = (thread.thread, known.and_then(|known| known.tid));
            let before = self.take_in_flight(key);
            self.add_in_flight(key.1, bytes.saturating_sub(before.bytes));
            in_flight.insert(key, InFlight { allocated: thread.allocated, bytes });
            live.insert(key);
        }
        // Threads that have ended, or that are missing from `threads` this time.
        let others = counted.iter().copied().filter(|one| !live.contains(&(one.thread, one.tid)));
        for one in others.clone() {
            let key = (one.thread, one.tid);
            let before = self.take_in_flight(key);
            let allocated = one.bytes.max(before.allocated);
            let bytes = difference_of(allocated, one.represented_bytes);
            self.add_in_flight(one.tid, bytes.saturating_sub(before.bytes));
            in_flight.insert(key, InFlight { allocated, bytes });
        }
        self.in_flight = in_flight;
        let listed: HashSet<_> = threads.iter().map(|thread| thread.thread).collect();
        others.filter(|one| one.has_ended || !listed.contains(&one.thread)).collect()
    }

    /// Removes and returns what a thread had allocated when the threads were last read.
    fn take_in_flight(&mut self, (thread, tid): ThreadKey) -> InFlight {
        let before = self.in_flight.remove(&(thread, tid));
        // Until its first event, the thread was stored without its ID.
        before.or_else(|| self.in_flight.remove(&(thread, None))).unwrap_or_default()
    }

    fn add_in_flight(&mut self, tid: Option<u64>, increase: i64) {
        let tid = tid.filter(|_| self.options.by_thread).unwrap_or(0);
        for span in self.spans() {
            span.totals.add_in_flight(u32::try_from(tid).unwrap_or(0), increase);
        }
    }

    /// Forgets the kernel-side counters that were read and the threads' names, because the kernel side starts
    /// again from zero.
    pub(crate) fn forget_seen(&mut self) {
        self.seen.clear();
        self.thread_names.clear();
    }

    /// Counts lost events.
    pub(crate) fn lost(&mut self, events: u64) {
        for span in self.spans() {
            span.totals.lost += events;
        }
    }

    /// Returns the table of a period; `jvm` is the JVM's version.
    pub(crate) fn table(&self, jvm: Option<&str>, scope: Scope, now_ns: u64) -> Table {
        let span = &self.spans[if scope == Scope::Trace { TRACE } else { INTERVAL }];
        let Options { by_thread, by_stack, exact, .. } = self.options;
        let all = if exact { span.totals.exact() } else { span.totals.estimate() };
        let duration_ns = now_ns.saturating_sub(span.begin_ns).max(1);
        let seconds = duration_ns as f64 / 1e9;
        let count = |of: fn(&Count) -> u64| all.iter().map(|a| of(&a.count)).sum::<u64>();
        let bytes: u64 = all.iter().map(Allocated::rounded_bytes).sum();
        let (tlabs, read) = span.totals.tlabs();
        let sampled = |n| (!exact).then_some(n);
        let time = clock::rfc3339(now_ns);
        let is_other = |a: &&Allocated| &*a.key.class == OTHER;
        let parts: Vec<_> = match by_stack {
            true => all.iter().map(|class| span.totals.split(class)).collect(),
            false => vec![Vec::new(); all.len()],
        };
        let with_stacks = |n| by_stack.then_some(n);
        let bytes_of = |id| {
            let parts = parts.iter().flatten().filter(|part| part.stack == id);
            parts.map(|part| part.bytes).sum::<u64>()
        };
        let distinct: HashSet<_> = parts.iter().flatten().map(|part| part.stack).collect();
        let summary = record::Summary {
            time: time.clone(),
            ts_ns: now_ns,
            pid: self.pid.0,
            jvm: jvm.filter(|version| !version.is_empty()).map(Into::into),
            scope: if scope == Scope::Trace { "trace" } else { "interval" },
            duration_ns,
            bytes,
            objects: all.iter().map(Allocated::rounded_objects).sum(),
            estimated: !exact,
            bytes_per_second: bytes as f64 / seconds,
            classes: all.len() as u64,
            other_bytes: all.iter().filter(is_other).map(Allocated::rounded_bytes).sum(),
            stacks: with_stacks(distinct.len() as u64),
            other_stack_bytes: with_stacks(bytes_of(stacks::OTHER)),
            unsampled_bytes: with_stacks(bytes_of(stacks::UNSAMPLED)),
            tlabs: sampled(tlabs),
            tlabs_read: sampled(read),
            outside_objects: sampled(count(|c| c.outside)),
            outside_bytes: sampled(count(|c| c.outside_bytes)),
            humongous_objects: count(|c| c.humongous),
            humongous_bytes: count(|c| c.humongous_bytes),
            lost: span.totals.lost,
        };
        let pid = self.pid.0;
        let class = |a: Allocated| record::Class {
            time: time.clone(),
            pid,
            tid: by_thread.then_some(a.key.tid),
            thread: by_thread.then(|| self.thread_name(a.key.tid)),
            class: a.key.class.to_string(),
            bytes: a.rounded_bytes(),
            objects: a.rounded_objects(),
            estimated: !exact,
            bytes_per_second: a.bytes / seconds,
            share: if bytes > 0 { a.bytes / bytes as f64 } else { 0.0 },
            average_bytes: if a.objects > 0.0 { a.bytes / a.objects } else { 0.0 },
            outside_objects: sampled(a.count.outside),
            outside_bytes: sampled(a.count.outside_bytes),
            humongous_objects: a.count.humongous,
            humongous_bytes: a.count.humongous_bytes,
        };
        let rows = all.into_iter().zip(parts);
        let rows = rows.map(|(a, parts)| Row { class: class(a), parts }).collect();
        Table { summary, rows }
    }

    /// Starts the next interval.
    pub(crate) fn next_interval(&mut self, now_ns: u64) {
        let excess = self.spans[INTERVAL].totals.excess();
        let mut totals = Totals::within(&self.memory);
        excess.into_iter().for_each(|(tid, bytes)| totals.add_in_flight(tid, bytes));
        self.spans[INTERVAL] = Span { begin_ns: now_ns, totals };
    }

    fn thread_name(&self, tid: u32) -> String {
        self.thread_names.get(&tid).cloned().unwrap_or_else(|| "?".into())
    }
}

/// Inserts or replaces a thread's name, up to `MAX_THREADS` names.
fn insert_name(names: &mut HashMap<u32, String>, tid: u32, name: String) {
    if names.len() < MAX_THREADS || names.contains_key(&tid) {
        names.insert(tid, name);
    }
}

fn difference_of(bytes: u64, represented_bytes: u64) -> i64 {
    bytes.wrapping_sub(represented_bytes).cast_signed()
}

fn difference(before: &tally, now: &tally) -> Count {
    Count {
        samples: now.samples.saturating_sub(before.samples),
        bytes: now.bytes.saturating_sub(before.bytes),
        first_objects: now.first_objects.saturating_sub(before.first_objects) as f64 / ONE as f64,
        first_bytes: now.first_bytes.saturating_sub(before.first_bytes) as f64,
        other_objects: now.other_objects.saturating_sub(before.other_objects) as f64 / ONE as f64,
        other_bytes: now.other_bytes.saturating_sub(before.other_bytes) as f64,
        outside: now.outside.saturating_sub(before.outside),
        outside_bytes: now.outside_bytes.saturating_sub(before.outside_bytes),
        humongous: now.humongous.saturating_sub(before.humongous),
        humongous_bytes: now.humongous_bytes.saturating_sub(before.humongous_bytes),
        ..Count::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn totals(options: Options) -> JvmTotals {
        JvmTotals::new(Pid(7), options, Share::default(), 0)
    }

    const PLAIN: Options = Options::NONE;

    fn row(class: &str, tid: u32) -> Key {
        Key { class: class.into(), tid }
    }

    fn seen(symbol: u64, stack: u64, tid: u32) -> SeenKey {
        (ClassId { symbol, tail: 0, len: 1 }, stack, tid)
    }

    /// Objects outside of TLABs, which are counted one by one.
    fn outside(objects: u64, bytes: u64) -> tally {
        tally { outside: objects, outside_bytes: bytes, ..tally::default() }
    }

    /// An object that began a TLAB.
    fn sampled(bytes: u64) -> Count {
        let first_bytes = bytes as f64;
        Count { samples: 1, bytes, first_objects: 1.0, first_bytes, ..Count::default() }
    }

    fn thread(addr: u64, allocated: u64) -> ThreadBytes {
        ThreadBytes { thread: Addr(addr), allocated }
    }

    fn counted(addr: u64, bytes: u64) -> Counted {
        let (target, tid, thread) = (7, Some(addr), Addr(addr));
        Counted { target, tid, thread, bytes, represented_bytes: bytes, has_ended: false, last: 1 }
    }

    /// Class, thread, objects and bytes of each row, sorted.
    fn rows(table: &Table) -> Vec<(&str, Option<u32>, u64, u64)> {
        let classes = table.rows.iter().map(|row| &row.class);
        let mut rows: Vec<_> =
            classes.map(|c| (c.class.as_str(), c.tid, c.objects, c.bytes)).collect();
        rows.sort_unstable();
        rows
    }

    #[test]
    fn increase_is_relative_to_the_previous_reading() {
        let mut totals = totals(PLAIN);
        let increase = totals.increase(seen(1, 0, 0), &outside(2, 64)).unwrap();
        assert_eq!((increase.outside, increase.outside_bytes), (2, 64));
        assert_eq!(totals.increase(seen(1, 0, 0), &outside(2, 64)), None);
        let increase = totals.increase(seen(1, 0, 0), &outside(3, 96)).unwrap();
        assert_eq!((increase.outside, increase.outside_bytes), (1, 32));
        // Another class, stack or thread has a counter of its own.
        for other in [seen(2, 0, 0), seen(1, 5, 0), seen(1, 0, 9)] {
            assert_eq!(totals.increase(other, &outside(1, 32)).unwrap().outside, 1);
        }
    }

    #[test]
    fn restarted_counters_count_from_zero() {
        let mut totals = totals(PLAIN);
        totals.increase(seen(1, 0, 0), &outside(5, 64)).unwrap();
        totals.forget_seen();
        assert_eq!(totals.increase(seen(1, 0, 0), &outside(2, 32)).unwrap().outside, 2);
    }

    #[test]
    fn trace_table_is_empty_if_only_intervals_count() {
        let mut totals = totals(Options { keeps_whole_trace: false, slot_ns: 1000, ..PLAIN });
        totals.add(&row("A", 0), 0, &Count { outside: 1, outside_bytes: 16, ..Count::default() });
        assert!(rows(&totals.table(None, Scope::Trace, 1)).is_empty());
        assert_eq!(rows(&totals.table(None, Scope::Interval, 1)), [("A", None, 1, 16)]);
        assert!(totals.time_slots.is_none());
    }

    #[test]
    fn interval_table_has_new_counts_and_trace_table_has_all() {
        let mut totals = totals(PLAIN);
        let count = |outside, outside_bytes| Count { outside, outside_bytes, ..Count::default() };
        totals.add(&row("A", 0), 0, &count(2, 64));
        totals.next_interval(1000 * MS);
        totals.add(&row("B", 0), 0, &count(1, 16));
        totals.lost(3);
        let interval = totals.table(None, Scope::Interval, 1500 * MS);
        assert_eq!(rows(&interval), [("B", None, 1, 16)]);
        assert_eq!(interval.summary.duration_ns, 500 * MS);
        assert_eq!(interval.summary.bytes_per_second, 32.0);
        totals.next_interval(1500 * MS);
        let trace = totals.table(Some("17.0.9"), Scope::Trace, 2000 * MS);
        assert_eq!(rows(&trace), [("A", None, 2, 64), ("B", None, 1, 16)]);
        let summary = trace.summary;
        assert_eq!((summary.duration_ns, summary.bytes, summary.lost), (2000 * MS, 80, 3));
        assert_eq!((summary.scope, summary.jvm.as_deref()), ("trace", Some("17.0.9")));
        assert_eq!(totals.table(None, Scope::Interval, 2000 * MS).summary.lost, 0);
    }

    #[test]
    fn counts_without_map_space_form_one_row() {
        let mut totals = totals(Options { by_stack: true, ..PLAIN });
        totals.add_others(&outside(2, 48));
        totals.add_others(&outside(2, 48));
        totals.add_others(&outside(3, 64));
        let table = totals.table(None, Scope::Trace, 1);
        assert_eq!(rows(&table), [(OTHER, None, 3, 64)]);
        assert_eq!((table.summary.other_bytes, table.summary.other_stack_bytes), (64, Some(64)));
    }

    #[test]
    fn bytes_not_yet_sampled_are_counted_once() {
        let mut totals = totals(PLAIN);
        let sum = |totals: &JvmTotals| totals.table(None, Scope::Trace, 1).summary.bytes;
        // Samples represent 300 of 1000 bytes.
        let of = counted(1, 300);
        assert!(totals.update_in_flight(&[thread(1, 1000)], &[&of]).is_empty());
        assert_eq!(sum(&totals), 700);
        // Nothing has happened since.
        totals.update_in_flight(&[thread(1, 1000)], &[&of]);
        assert_eq!(sum(&totals), 700);
        // A sample represents some of these bytes now, so they are no longer in flight.
        let of = counted(1, 900);
        totals.add(&row("A", 0), 0, &sampled(600));
        totals.update_in_flight(&[thread(1, 1000)], &[&of]);
        assert_eq!(sum(&totals), 700);
        // A thread without a sample: all of its bytes count.
        totals.update_in_flight(&[thread(1, 1000), thread(2, 50)], &[&of]);
        assert_eq!(sum(&totals), 750);
    }

    #[test]
    fn sample_between_reading_counters_and_threads_is_counted_once() {
        let sum = |totals: &JvmTotals| totals.table(None, Scope::Interval, 1).summary.bytes;
        let mut totals = totals(PLAIN);
        // The sample represents 60,000 bytes, but its thread has allocated only 1,000.
        let of = Counted { represented_bytes: 60_000, ..counted(1, 1000) };
        totals.update_in_flight(&[thread(1, 1000)], &[&of]);
        assert_eq!(sum(&totals), 0);
        totals.next_interval(1);
        let sample = sampled(60_000);
        totals.add(&row("A", 0), 0, &sample);
        totals.update_in_flight(&[thread(1, 1500)], &[&of]);
        assert_eq!(sum(&totals), 1500);
    }

    #[test]
    fn ended_thread_has_the_larger_of_last_reading_and_samples() {
        let sum = |totals: &JvmTotals| totals.table(None, Scope::Trace, 1).summary.bytes;
        // The thread ends after another sample, or without one.
        for (more, expected) in [(500, 1100), (0, 1000)] {
            let mut totals = totals(PLAIN);
            totals.add(&row("A", 0), 0, &sampled(600));
            totals.update_in_flight(&[thread(1, 1000)], &[&counted(1, 600)]);
            totals.add(&row("A", 0), 0, &sampled(more));
            for _ in 0..2 {
                totals.update_in_flight(&[], &[&counted(1, 600 + more)]);
                assert_eq!(sum(&totals), expected);
            }
        }
        // The samples represent more than the thread has allocated.
        let mut totals = totals(PLAIN);
        totals.add(&row("A", 0), 0, &sampled(1600));
        let of = |bytes, represented_bytes| Counted { represented_bytes, ..counted(1, bytes) };
        totals.update_in_flight(&[thread(1, 1000)], &[&of(600, 1600)]);
        assert_eq!(sum(&totals), 1000);
        totals.add(&row("A", 0), 0, &sampled(300));
        totals.update_in_flight(&[], &[&of(1200, 1900)]);
        assert_eq!(sum(&totals), 1200);
    }

    #[test]
    fn thread_end_event_gives_the_exact_bytes() {
        let sum = |totals: &JvmTotals| totals.table(None, Scope::Trace, 1).summary.bytes;
        let of =
            |bytes, has_ended| Counted { represented_bytes: 900, has_ended, ..counted(1, bytes) };
        let ended = of(1200, true);
        // The samples represent 900 bytes; the thread had 1,000 at the previous reading, and 1,200 at its end.
        let mut totals = totals(PLAIN);
        let sample = sampled(900);
        totals.add(&row("A", 0), 0, &sample);
        totals.update_in_flight(&[thread(1, 1000)], &[&of(800, false)]);
        assert_eq!(sum(&totals), 1000);
        // The second time, the thread is no longer listed.
        for threads in [&[thread(1, 1200)][..], &[]] {
            let gone = totals.update_in_flight(threads, &[&ended]).len();
            assert_eq!((sum(&totals), gone), (1200, 1));
        }
        // A new thread at the same address, which has no event of its own yet.
        let gone = totals.update_in_flight(&[thread(1, 30)], &[&ended]).len();
        assert_eq!((sum(&totals), gone), (1230, 1));
        // A thread whose only event is its end; it was listed before.
        let mut totals = self::totals(PLAIN);
        totals.update_in_flight(&[thread(1, 500)], &[]);
        totals.update_in_flight(&[], &[&Counted { represented_bytes: 0, ..of(700, true) }]);
        assert_eq!(sum(&totals), 700);
    }

    #[test]
    fn new_thread_at_reused_address_is_counted_separately() {
        let sum = |totals: &JvmTotals| totals.table(None, Scope::Trace, 1).summary.bytes;
        let old = Counted { represented_bytes: 99_000, ..counted(1, 120) };
        let new = Counted { tid: Some(2), last: 2, ..counted(1, 100) };
        for both in [[&old, &new], [&new, &old]] {
            let mut totals = totals(PLAIN);
            // The samples of the old thread represent more than the 120 bytes that it has allocated.
            let sample = sampled(99_000);
            totals.add(&row("A", 0), 0, &sample);
            assert!(totals.update_in_flight(&[thread(1, 150)], &both).is_empty());
            assert_eq!(sum(&totals), 120 + 50);
        }
        // A new thread without an event yet.
        let mut totals = totals(PLAIN);
        totals.update_in_flight(&[thread(1, 30)], &[&counted(1, 100)]);
        assert_eq!(sum(&totals), 30);
    }

    #[test]
    fn temporarily_unlisted_thread_is_counted_once() {
        let mut totals = totals(PLAIN);
        let of = Counted { represented_bytes: 200, ..counted(1, 600) };
        for threads in [&[thread(1, 1000)][..], &[], &[thread(1, 1000)], &[]] {
            totals.update_in_flight(threads, &[&of]);
            assert_eq!(totals.table(None, Scope::Trace, 1).summary.bytes, 800);
        }
    }

    #[test]
    fn ended_threads_are_returned() {
        let mut totals = totals(PLAIN);
        let (one, other) = (counted(1, 10), counted(2, 20));
        let ended = totals.update_in_flight(&[thread(2, 20)], &[&one, &other]);
        assert_eq!(ended.iter().map(|c| c.thread).collect::<Vec<_>>(), [Addr(1)]);
    }

    #[test]
    fn by_thread_option_writes_separate_rows_per_thread() {
        let mut totals = totals(Options { by_thread: true, ..PLAIN });
        totals.name_thread(1, "main".into());
        let count = Count { outside: 1, outside_bytes: 16, ..Count::default() };
        totals.add(&row("A", 1), 0, &count);
        totals.add(&row("A", 2), 0, &count);
        let table = totals.table(None, Scope::Trace, 1);
        assert_eq!(rows(&table), [("A", Some(1), 1, 16), ("A", Some(2), 1, 16)]);
        let name = |tid| {
            let row = table.rows.iter().find(|row| row.class.tid == Some(tid)).unwrap();
            row.class.thread.as_deref().unwrap()
        };
        assert_eq!((name(1), name(2)), ("main", "?"));
    }

    #[test]
    fn by_stack_option_splits_bytes_among_stacks() {
        let count = |outside_bytes| Count { outside: 1, outside_bytes, ..Count::default() };
        for by_stack in [false, true] {
            let mut totals = totals(Options { by_stack, ..PLAIN });
            totals.add(&row("A", 0), 5, &count(16));
            totals.add(&row("A", 0), 6, &count(48));
            let table = totals.table(None, Scope::Trace, 1);
            let parts: Vec<_> = table.rows[0].parts.iter().map(|p| (p.stack, p.bytes)).collect();
            let expected = [(6, 48), (5, 16)];
            assert_eq!(parts, if by_stack { &expected[..] } else { &[] });
            assert_eq!(table.summary.stacks, by_stack.then_some(2));
            assert_eq!(table.rows[0].class.bytes, 64);
        }
    }

    #[test]
    fn summary_counts_sampled_and_read_tlabs() {
        let mut totals = totals(PLAIN);
        let begun = Count { samples: 20, bytes: 2000, ..Count::default() };
        totals.add(&row("A", 0), 0, &begun);
        let read = Count { read_objects: 5.0, read_bytes: 80.0, ..Count::default() };
        totals.add_tlab(0, &[(row("B", 0), read)]);
        let summary = totals.table(None, Scope::Trace, 1).summary;
        assert_eq!((summary.tlabs, summary.tlabs_read), (Some(20), Some(1)));
        assert!(summary.estimated);
    }

    #[test]
    fn exact_counts_are_not_marked_as_estimated() {
        let mut totals = totals(Options { exact: true, ..PLAIN });
        totals.add(&row("A", 0), 0, &Count { samples: 3, bytes: 72, ..Count::default() });
        let table = totals.table(None, Scope::Trace, 1);
        assert_eq!(rows(&table), [("A", None, 3, 72)]);
        assert!(!table.summary.estimated);
        assert_eq!((table.summary.tlabs, table.rows[0].class.outside_objects), (None, None));
    }

    #[test]
    fn number_of_thread_names_is_limited() {
        let mut names = HashMap::new();
        for tid in 0..2 * MAX_THREADS as u32 {
            insert_name(&mut names, tid, "a".into());
        }
        insert_name(&mut names, 7, "b".into());
        assert_eq!((names.len(), names[&7].as_str()), (MAX_THREADS, "b"));
    }
}

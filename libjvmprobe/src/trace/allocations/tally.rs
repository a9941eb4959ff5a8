//! Adds up counters, and estimates the bytes and objects of each class.
//!
//! Three things are known exactly: the bytes that each thread has allocated (HotSpot's own count), each object
//! outside of TLABs, and each object that began a TLAB. There is one exception: if a daemon traces a JVM that
//! allocates too fast, these objects are only sampled. The other objects in TLABs are estimated. The best estimate
//! comes from the TLABs that were read, each weighted by the inverse of its sampling probability. If too few were
//! read, the estimate comes from the objects that began TLABs: `count_first` in bpf/javaobjnew.bpf.c estimates how
//! many other objects of its class each of them represents. The object that began a TLAB is not counted when the
//! TLAB is read, because it may be much larger than all others: HotSpot adds its size to that of the TLAB.

use std::{collections::HashMap, sync::Arc};

use crate::{
    sys::budget::{self, Reservation},
    trace::allocations::{
        split::{StackShare, split},
        stacks::{self, StackId},
    },
};

/// Minimum number of TLABs that must have been read for an estimate that is based on their contents. Fewer
/// are sufficient if they are at least half of all TLABs begun.
const MIN_TLABS_READ: u64 = 16;
/// Maximum number of rows with counts of their own: pairs of a class and a thread. The stacks of all these
/// rows together have the same limit.
const MAX_ROWS: usize = 1 << 18;

/// Approximate memory of a row, in bytes.
const ROW: usize = 2 * (size_of::<Key>() + size_of::<Count>());

/// Class name of the row that sums up everything beyond the limits.
pub(crate) const OTHER: &str = "(other)";
/// Class name of the row for bytes in TLABs if nothing was sampled, so that their classes are unknown.
const UNSAMPLED: &str = "(not sampled)";

/// Key of a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// Name of the class.
    pub(crate) class: Arc<str>,
    /// Thread ID; 0 if threads are not counted separately.
    pub(crate) tid: u32,
}

/// Counts of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Count {
    /// Objects that began a TLAB; with `--exact`, all objects.
    pub(crate) samples: u64,
    /// Bytes that the samples represent; with `--exact`, their own size.
    pub(crate) bytes: u64,
    /// Number of objects that began a TLAB. Equals `samples` unless only a sample is counted.
    pub(crate) first_objects: f64,
    /// Bytes of the objects that began a TLAB.
    pub(crate) first_bytes: f64,
    /// Number of other objects in TLABs, as estimated from those that began one.
    pub(crate) other_objects: f64,
    /// Bytes of the other objects in TLABs, as estimated from those that began one.
    pub(crate) other_bytes: f64,
    /// Objects outside of TLABs.
    pub(crate) outside: u64,
    /// Bytes of the objects outside of TLABs.
    pub(crate) outside_bytes: u64,
    /// Humongous objects among those that were counted.
    pub(crate) humongous: u64,
    /// Bytes of the humongous objects.
    pub(crate) humongous_bytes: u64,
    /// Objects in TLABs that were read, except the first of each, weighted by the number of TLABs that their
    /// TLAB represents.
    pub(crate) read_objects: f64,
    /// Bytes of the objects in TLABs that were read, with the same weight.
    pub(crate) read_bytes: f64,
}

impl Count {
    /// Returns this count with its part outside of TLABs (and the humongous part) scaled by `factor`, if that
    /// is less than 1.
    fn with_outside(&self, factor: f64) -> Self {
        let part = |count: u64| if factor < 1.0 { (count as f64 * factor) as u64 } else { count };
        Self {
            outside: part(self.outside),
            outside_bytes: part(self.outside_bytes),
            humongous: part(self.humongous),
            humongous_bytes: part(self.humongous_bytes),
            ..*self
        }
    }

    /// Returns the bytes and the number of the objects in TLABs that did not begin one: those that were read, or
    /// the estimate from those that began one.
    fn others(&self, is_read: bool) -> (f64, f64) {
        match is_read {
            true => (self.read_bytes, self.read_objects),
            false => (self.other_bytes, self.other_objects),
        }
    }

    /// Whether each sample represents only itself, which is the case with `--exact`.
    fn is_exact(&self) -> bool {
        self.first_objects == 0.0
    }

    /// Bytes in TLABs of the objects that began one, and of the other objects that these represent.
    pub(crate) fn tlab_bytes(&self) -> (f64, f64) {
        (if self.is_exact() { self.bytes as f64 } else { self.first_bytes }, self.other_bytes)
    }

    /// Like [`Count::tlab_bytes`], but numbers of objects.
    pub(crate) fn tlab_objects(&self) -> (f64, f64) {
        (if self.is_exact() { self.samples as f64 } else { self.first_objects }, self.other_objects)
    }

    fn add(&mut self, other: &Self) {
        self.samples += other.samples;
        self.bytes += other.bytes;
        self.first_objects += other.first_objects;
        self.first_bytes += other.first_bytes;
        self.other_objects += other.other_objects;
        self.other_bytes += other.other_bytes;
        self.outside += other.outside;
        self.outside_bytes += other.outside_bytes;
        self.humongous += other.humongous;
        self.humongous_bytes += other.humongous_bytes;
        self.read_objects += other.read_objects;
        self.read_bytes += other.read_bytes;
    }
}

/// Allocations of one key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Allocated {
    /// Class and thread.
    pub(crate) key: Key,
    /// Estimated bytes.
    pub(crate) bytes: f64,
    /// Estimated objects.
    pub(crate) objects: f64,
    /// The counts that the estimate is based on.
    pub(crate) count: Count,
}

impl Allocated {
    /// Bytes, rounded for output.
    pub(crate) fn rounded_bytes(&self) -> u64 {
        self.bytes.round() as u64
    }

    /// Objects, rounded for output.
    pub(crate) fn rounded_objects(&self) -> u64 {
        self.objects.round() as u64
    }
}

/// TLABs of one thread, or of all threads if they are not counted separately.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    /// Bytes in TLABs that no sample represents yet. Negative if the samples of the period represent more bytes
    /// than were allocated in it.
    in_flight: i64,
    /// TLABs that were read.
    read: u64,
}

/// Totals of a period.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    counts: HashMap<Key, Count>,
    /// Counts by stack, without the contents of TLABs that were read.
    stacks: HashMap<Key, HashMap<StackId, Count>>,
    stack_rows: usize,
    groups: HashMap<u32, Group>,
    reserved: Reservation,
    /// Events that the kernel side could not count or send.
    pub(crate) lost: u64,
}

impl Totals {
    /// Creates empty totals whose memory is limited by `share`.
    pub(crate) fn within(share: &budget::Share) -> Self {
        Self { reserved: Reservation::within(share), ..Self::default() }
    }

    /// Adds counts to a row. Beyond the limits they go to the row `OTHER`.
    pub(crate) fn add(&mut self, key: &Key, count: &Count) {
        if let Some(known) = self.counts.get_mut(key) {
            known.add(count);
            return;
        }
        let key = if self.counts.len() < MAX_ROWS && self.reserved.reserve(ROW) {
            key.clone()
        } else {
            Key { class: OTHER.into(), tid: 0 }
        };
        self.counts.entry(key).or_default().add(count);
    }

    /// Adds counts to a stack of a row. The caller has passed the same counts to [`Totals::add`].
    pub(crate) fn add_stack(&mut self, key: &Key, stack: StackId, count: &Count) {
        let other = Key { class: OTHER.into(), tid: 0 };
        let key = if self.counts.contains_key(key) { key } else { &other };
        let stacks = self.stacks.entry(key.clone()).or_default();
        let is_kept = stacks.contains_key(&stack)
            || (self.stack_rows < MAX_ROWS && self.reserved.reserve(ROW));
        let stack = if is_kept { stack } else { stacks::OTHER };
        let before = stacks.len();
        stacks.entry(stack).or_default().add(count);
        self.stack_rows += stacks.len() - before;
    }

    /// Splits the bytes and objects of a class, from [`Totals::exact`] or [`Totals::estimate`], among its
    /// stacks.
    pub(crate) fn split(&self, class: &Allocated) -> Vec<StackShare> {
        match self.stacks.get(&class.key) {
            Some(counts) => split(class, counts),
            None => split(class, &HashMap::new()),
        }
    }

    /// Adds bytes in TLABs that no sample represents yet.
    pub(crate) fn add_in_flight(&mut self, tid: u32, bytes: i64) {
        self.groups.entry(tid).or_default().in_flight += bytes;
    }

    /// Returns each thread whose samples represent more bytes than it has allocated, with the difference as a
    /// negative number. The counters of the samples are read before the state of the threads. A sample that
    /// occurs between these readings already reduces the bytes in flight, but the bytes that it represents
    /// are added in the next interval. The caller therefore carries the difference over to the next interval.
    pub(crate) fn excess(&self) -> Vec<(u32, i64)> {
        let in_flight = self.groups.iter().map(|(&tid, group)| (tid, group.in_flight));
        let mut sums: HashMap<u32, i64> = in_flight.collect();
        for (key, count) in &self.counts {
            *sums.entry(key.tid).or_default() += (count.bytes + count.outside_bytes).cast_signed();
        }
        sums.into_iter().filter(|(_, bytes)| *bytes < 0).collect()
    }

    /// Counts a TLAB that was read.
    pub(crate) fn add_read(&mut self, tid: u32) {
        self.groups.entry(tid).or_default().read += 1;
    }

    /// Returns the number of TLABs that were begun, and the number that were read.
    pub(crate) fn tlabs(&self) -> (u64, u64) {
        let begun = self.counts.values().map(|count| count.samples).sum();
        (begun, self.groups.values().map(|group| group.read).sum())
    }

    /// Returns the totals of a trace in which every object was counted, so that nothing is estimated.
    pub(crate) fn exact(&self) -> Vec<Allocated> {
        let exact = |(key, count): (&Key, &Count)| Allocated {
            key: key.clone(),
            bytes: count.bytes as f64,
            objects: count.samples as f64,
            count: *count,
        };
        self.counts.iter().map(exact).collect()
    }

    /// Returns the estimated totals.
    pub(crate) fn estimate(&self) -> Vec<Allocated> {
        let mut sums: HashMap<u32, Count> = HashMap::new();
        for (key, count) in &self.counts {
            sums.entry(key.tid).or_default().add(count);
        }
        for &tid in self.groups.keys() {
            sums.entry(tid).or_default();
        }
        let shares: HashMap<u32, Share> =
            sums.iter().map(|(&tid, sum)| (tid, self.share(tid, sum))).collect();
        let allocated = |(key, count): (&Key, &Count)| {
            let share = &shares[&key.tid];
            let count = count.with_outside(share.outside);
            let (bytes, objects) = count.others(share.is_read);
            Allocated {
                key: key.clone(),
                bytes: count.first_bytes * share.first
                    + bytes * share.other
                    + count.outside_bytes as f64,
                objects: count.first_objects * share.first
                    + objects * share.other
                    + count.outside as f64,
                count,
            }
        };
        let unknown = |(&tid, share): (&u32, &Share)| {
            let key = Key { class: UNSAMPLED.into(), tid };
            Allocated { key, bytes: share.unknown, objects: 0.0, count: Count::default() }
        };
        let all = self.counts.iter().map(allocated).chain(shares.iter().map(unknown));
        all.filter(|allocated| allocated.bytes > 0.0).collect()
    }

    /// Returns how a group's bytes in TLABs are shared among its classes. `sum` is the sum of its counts.
    fn share(&self, tid: u32, sum: &Count) -> Share {
        let group = self.groups.get(&tid).copied().unwrap_or_default();
        let (bytes, outside) =
            (sum.bytes as f64 + group.in_flight as f64, sum.outside_bytes as f64);
        let part = |bytes: f64, sum: f64| if sum > 0.0 { bytes / sum } else { 0.0 };
        let outside = if bytes < 0.0 { part(outside + bytes, outside).max(0.0) } else { 1.0 };
        let bytes = bytes.max(0.0);
        let is_read =
            sum.read_bytes > 0.0 && (group.read >= MIN_TLABS_READ || group.read * 2 >= sum.samples);
        let first_bytes = sum.first_bytes * part(bytes, sum.bytes as f64).min(1.0);
        let first_bytes = first_bytes.min(bytes);
        let (other_bytes, _) = sum.others(is_read);
        let first = part(first_bytes, sum.first_bytes);
        let other = part(bytes - first_bytes, other_bytes);
        let unknown = if other_bytes > 0.0 { 0.0 } else { bytes - first_bytes };
        Share { first, other, is_read, unknown, outside }
    }
}

/// How bytes in TLABs are shared among classes.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// Factor for the objects that began TLABs; at most 1.
    first: f64,
    /// Factor for the other objects in TLABs.
    other: f64,
    /// Whether these other objects are those that were read.
    is_read: bool,
    /// Bytes of which no class is known.
    unknown: f64,
    /// Factor for objects outside of TLABs. Less than 1 if sampled objects outside of TLABs represent more bytes
    /// than the threads have allocated.
    outside: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(class: &str) -> Key {
        Key { class: class.into(), tid: 0 }
    }

    fn find(all: &[Allocated], class: &str) -> (f64, f64) {
        let found = all.iter().find(|a| &*a.key.class == class);
        found.map_or((0.0, 0.0), |a| (a.bytes, a.objects))
    }

    /// Objects that began TLABs, and other objects that they represent.
    fn begun(samples: u64, first_bytes: f64, other_objects: f64, other_bytes: f64) -> Count {
        Count {
            samples,
            bytes: (first_bytes + other_bytes) as u64,
            first_objects: samples as f64,
            first_bytes,
            other_objects,
            other_bytes,
            ..Count::default()
        }
    }

    fn read(read_objects: f64, read_bytes: f64) -> Count {
        Count { read_objects, read_bytes, ..Count::default() }
    }

    fn with_reads() -> Totals {
        let mut totals = Totals::default();
        (0..MIN_TLABS_READ).for_each(|_| totals.add_read(0));
        totals
    }

    #[test]
    fn without_tlab_reads_objects_that_begin_tlabs_represent_the_others() {
        let mut totals = Totals::default();
        totals.add(&key("A"), &begun(3, 30.0, 27.0, 270.0));
        totals.add(&key("B"), &begun(1, 100.0, 0.0, 0.0));
        totals.add_in_flight(0, 27);
        let outside = Count { outside: 1, outside_bytes: 5000, ..Count::default() };
        totals.add(&key("B"), &outside);
        let all = totals.estimate();
        // The bytes in flight belong to the objects that did not begin a TLAB.
        let (bytes, objects) = find(&all, "A");
        assert!((bytes - 327.0).abs() < 1e-6 && (objects - 32.7).abs() < 1e-6, "{bytes} {objects}");
        assert_eq!(find(&all, "B"), (5100.0, 2.0));
    }

    #[test]
    fn enough_tlab_reads_replace_the_estimate_from_first_objects() {
        let mut totals = with_reads();
        totals.add(&key("A"), &begun(20, 100.0, 90.0, 900.0));
        totals.add(&key("A"), &read(2.0, 20.0));
        totals.add(&key("B"), &read(1.0, 80.0));
        let all = totals.estimate();
        assert_eq!(find(&all, "A"), (100.0 + 180.0, 20.0 + 18.0));
        assert_eq!(find(&all, "B"), (720.0, 9.0));
    }

    #[test]
    fn large_first_object_of_a_tlab_is_counted_once() {
        let mut totals = with_reads();
        totals.add(&key("A"), &begun(19, 190.0, 481.0, 4810.0));
        totals.add(&key("B"), &begun(1, 5000.0, 0.0, 0.0));
        totals.add(&key("A"), &read(10.0, 100.0));
        let all = totals.estimate();
        assert_eq!((find(&all, "A"), find(&all, "B")), ((5000.0, 500.0), (5000.0, 1.0)));
        // The samples represent four times the bytes that the threads have allocated.
        totals.add_in_flight(0, -7500);
        let all = totals.estimate();
        assert_eq!((find(&all, "A"), find(&all, "B")), ((1250.0, 125.0), (1250.0, 0.25)));
    }

    #[test]
    fn estimates_do_not_exceed_the_allocated_bytes() {
        let mut totals = Totals::default();
        totals.add(&key("A"), &begun(1, 100.0, 0.0, 0.0));
        for class in ["A", "B"] {
            let outside = Count { outside: 40, outside_bytes: 4000, ..Count::default() };
            totals.add(&key(class), &outside);
            totals.add_stack(&key(class), 7, &outside);
        }
        // The counts sum up to 8100 bytes, but only 2000 were allocated.
        totals.add_in_flight(0, -6100);
        let all = totals.estimate();
        assert_eq!((find(&all, "A"), find(&all, "B")), ((1000.0, 10.0), (1000.0, 10.0)));
        for class in &all {
            assert_eq!(totals.split(class), [StackShare { stack: 7, bytes: 1000, objects: 10 }]);
        }
    }

    #[test]
    fn bytes_without_samples_are_unsampled() {
        let mut totals = Totals::default();
        totals.add_in_flight(0, 40);
        assert_eq!(find(&totals.estimate(), UNSAMPLED), (40.0, 0.0));
    }

    #[test]
    fn stacks_beyond_the_limit_are_folded() {
        let mut totals = Totals::default();
        let one = Count { samples: 1, bytes: 8, ..Count::default() };
        for stack in 3..3 + MAX_ROWS as StackId + 10 {
            totals.add(&key("A"), &one);
            totals.add_stack(&key("A"), stack, &one);
        }
        let parts = totals.split(&totals.exact()[0]);
        assert_eq!(parts.len(), MAX_ROWS + 1);
        assert_eq!(parts[0], StackShare { stack: stacks::OTHER, bytes: 80, objects: 10 });
        assert_eq!(parts.iter().map(|p| p.bytes).sum::<u64>(), 8 * (MAX_ROWS as u64 + 10));
    }

    #[test]
    fn classes_beyond_the_limit_are_folded() {
        let mut totals = Totals::default();
        let one = Count { samples: 1, bytes: 8, ..Count::default() };
        for i in 0..MAX_ROWS + 1000 {
            totals.add(&key(&i.to_string()), &one);
        }
        assert_eq!(find(&totals.exact(), OTHER), (8000.0, 1000.0));
        assert_eq!(totals.exact().len(), MAX_ROWS + 1);
    }
}

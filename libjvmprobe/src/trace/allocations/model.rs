//! Model of one JVM: its totals, and the names of its classes, threads and stacks.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use crate::{
    Addr, Error, Pid, Result,
    bpf::{clock, records::text, walker::Walker},
    hotspot::{
        HotSpot, classes::ClassLayout, objects::Objects, thread_names::ThreadNames,
        threads::ThreadArray,
    },
    stack::{namer::Namers, raw::RawStack},
    sys::budget::Share,
    trace::allocations::{
        Options,
        counters::Counted,
        event::{ClassId, Name, large_event, layout, slot_bytes, tally, tally_key, tlab_event},
        jvm_totals::{JvmTotals, Scope, Table},
        names::Names,
        record,
        stacks::{self, Stacks},
        tally::{Count, Key},
        time_slots::TimeSlots,
    },
};

/// A JVM whose allocations are traced.
pub struct Jvm {
    pid: Pid,
    classes: ClassLayout,
    /// Reads TLABs; `None` if the layout of objects is unknown, or if every object is counted.
    objects: Option<Objects>,
    /// Time spent on TLABs that could not be read within [`SLOW`].
    slow_time: Duration,
    began: Instant,
    collections_at: Option<Addr>,
    names: Names,
    threads: ThreadNames,
    /// The array of threads of the last reading of what they have allocated.
    thread_array: ThreadArray,
    /// The JVM's stacks, if they are walked.
    pub(crate) stacks: Option<Stacks>,
    totals: JvmTotals,
    exact: bool,
    /// Instance sizes by the Symbol of the class's name, for JDKs whose probe does not report sizes reliably.
    sizes: Option<HashMap<Addr, u64>>,
    sizes_are_fresh: bool,
}

/// Time after which a TLAB that could not be read counts as slow. A TLAB of some megabytes takes a few milliseconds.
const SLOW: Duration = Duration::from_millis(300);
/// Slow TLABs of a JVM may take this time at once, and a tenth of elapsed time in the long run, so that this JVM does not
/// delay the others. The TLABs beyond that are not read.
const SLOW_AT_ONCE: Duration = Duration::from_secs(3);
const SLOW_PART: u32 = 10;

/// First JDK whose probe reports the correct size of every object.
const FIRST_WITH_SIZES: u32 = 21;

impl Jvm {
    /// Starts the model of a JVM.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming what is missing.
    pub(crate) fn new(
        pid: Pid,
        hotspot: &HotSpot,
        options: Options,
        stacks: Option<Stacks>,
        memory: &Share,
    ) -> Result<Self> {
        Ok(Self {
            classes: hotspot.class_layout()?,
            objects: match options.exact {
                true => None,
                false => ok_or_log(pid, "the layout of its objects", hotspot.objects()),
            },
            slow_time: Duration::ZERO,
            began: Instant::now(),
            collections_at: ok_or_log(
                pid,
                "the counter of its collections",
                hotspot.collections_at(),
            ),
            pid,
            names: Names::default(),
            threads: ThreadNames::new(hotspot),
            thread_array: ThreadArray::default(),
            stacks,
            totals: JvmTotals::new(pid, options, memory.clone(), clock::monotonic_ns()),
            exact: options.exact,
            sizes: None,
            sizes_are_fresh: false,
        })
    }

    /// Records the names of a class and a thread.
    pub(crate) fn record_names(&mut self, name: Name) {
        if !name.text.is_empty() {
            self.names.insert(name.class, &name.text);
        }
        if name.tid != 0 {
            self.totals.name_thread(name.tid, self.threads.of(name.tid, name.comm));
        }
    }

    /// Returns the record of a large object. Returns `None` if the reported size differs from the instance
    /// size of the class, because the reported size is then wrong.
    pub(crate) fn large(
        &mut self,
        hotspot: &HotSpot,
        large: &large_event,
    ) -> Option<record::Large> {
        let class = self.names.name_of_id((&large.class).into(), Some((hotspot, &self.classes)));
        if self.exact && hotspot.major < FIRST_WITH_SIZES {
            let size = self.size_of(hotspot, Addr(large.class.symbol), &class);
            if size.is_some_and(|size| size != large.size) {
                return None;
            }
        }
        Some(record::Large {
            time: clock::rfc3339(large.ts_ns),
            ts_ns: large.ts_ns,
            pid: self.pid.0,
            tid: large.tid,
            thread: self.threads.of(large.tid, text(&large.comm)),
            class: class.to_string(),
            bytes: large.size,
            humongous: large.humongous != 0,
            stack: self.stacks.as_mut().filter(|stacks| stacks.can_be_named()).map(|stacks| {
                let id = stacks.id_of(large.stack);
                stacks.frames(id).iter().map(Into::into).collect()
            }),
        })
    }

    /// Reads a full TLAB that represents `weight` TLABs. Ignores the TLAB if the JVM's count of collections
    /// has changed since the TLAB was filled, because a collection may have moved its objects.
    pub(crate) fn read_tlab(&mut self, hotspot: &HotSpot, tlab: &tlab_event, weight: f64) {
        let Some(objects) = &mut self.objects else { return };
        let begin = Instant::now();
        if self.slow_time > SLOW_AT_ONCE + begin.duration_since(self.began) / SLOW_PART {
            return;
        }
        let counts = hotspot.count_objects(objects, Addr(tlab.start), tlab.size);
        let counts = match counts.map(Vec::from_iter) {
            Ok(counts) => counts,
            Err(error) => {
                if begin.elapsed() >= SLOW {
                    self.slow_time += begin.elapsed();
                    log::debug!("process {}: slow TLAB: {error}", self.pid);
                }
                return;
            }
        };
        // The count of collections has 32 bits.
        let is_untouched = self
            .collections_at
            .is_none_or(|at| hotspot.u32_at(at).ok() == Some(tlab.collections as u32));
        if !is_untouched {
            return;
        }
        // The thread ID has 32 bits.
        let tid = tlab.tid as u32;
        let mut found = Vec::new();
        for (klass, count) in counts {
            let Some(class) = self.names.name_of_klass(klass, hotspot, &self.classes) else {
                continue;
            };
            let count = Count {
                read_objects: count.objects as f64 * weight,
                read_bytes: count.bytes as f64 * weight,
                ..Count::default()
            };
            found.push((Key { class, tid }, count));
        }
        self.totals.add_tlab(tid, &found);
    }

    /// Adds the increase of a kernel-side counter.
    pub(crate) fn add_tally(&mut self, hotspot: &HotSpot, key: &tally_key, now: &tally) {
        let class = ClassId::from(&key.class);
        let Some(mut increase) = self.totals.increase((class, key.stack, key.tid), now) else {
            return;
        };
        let symbol = Addr(class.symbol);
        let class = self.names.name_of_id(class, Some((hotspot, &self.classes)));
        if self.exact
            && hotspot.major < FIRST_WITH_SIZES
            && let Some(size) = self.size_of(hotspot, symbol, &class)
        {
            correct(&mut increase, size, hotspot.humongous_bytes());
        }
        let stack = self.stacks.as_mut().map_or(stacks::UNKNOWN, |s| s.id_of(key.stack));
        self.totals.add(&Key { class, tid: key.tid }, stack, &increase);
    }

    /// Adds the bytes that the kernel side counted for a class in one time slot.
    pub(crate) fn add_slot_bytes(
        &mut self,
        hotspot: &HotSpot,
        key: &tally_key,
        counted: slot_bytes,
    ) {
        let class = ClassId::from(&key.class);
        let class = self.names.name_of_id(class, Some((hotspot, &self.classes)));
        let stack = self.stacks.as_mut().map_or(stacks::UNKNOWN, |s| s.id_of(key.stack));
        self.totals.add_slot_bytes(&Key { class, tid: key.tid }, stack, key.slot, counted);
    }

    /// Limits the memory for time slots to about `max` bytes.
    pub(crate) fn shrink_time_slots(&mut self, max: usize) {
        if let Some(time_slots) = &mut self.totals.time_slots {
            time_slots.shrink(max);
        }
    }

    /// Time slots of the allocations, if they are kept.
    pub(crate) fn time_slots(&self) -> Option<&TimeSlots> {
        self.totals.time_slots.as_ref()
    }

    /// Returns the instance size of a class, unless its objects differ in size.
    fn size_of(&mut self, hotspot: &HotSpot, symbol: Addr, class: &str) -> Option<u64> {
        // Objects of java.lang.Class, which the runtime allocates, differ in size.
        if class.ends_with(']') || class == "java.lang.Class" {
            return None;
        }
        let is_known = self.sizes.as_ref().is_some_and(|sizes| sizes.contains_key(&symbol));
        // The sizes are read at most once per reading of the kernel side's counters. A second attempt would
        // not find the class either, because the class has been unloaded.
        if !is_known && !self.sizes_are_fresh {
            let sizes = hotspot.instance_sizes();
            self.sizes = ok_or_log(self.pid, "the size of its objects", sizes);
            self.sizes_are_fresh = true;
        }
        self.sizes.as_ref()?.get(&symbol).copied()
    }

    /// Starts a reading of the kernel side's counters. The caller calls this before it passes the first
    /// counter.
    pub(crate) fn begin_reading(&mut self) {
        self.sizes_are_fresh = false;
    }

    /// Adds the increase of the kernel side's counter of allocations for which its map had no free entry.
    pub(crate) fn add_others(&mut self, now: &tally) {
        self.totals.add_others(now);
    }

    /// Updates the bytes in flight (allocated, but not represented by a sample yet) from the kernel side's
    /// state of the threads. Returns the states of threads that have ended.
    pub(crate) fn update_in_flight<'a>(
        &mut self,
        hotspot: &HotSpot,
        counted: &[&'a Counted],
    ) -> Vec<&'a Counted> {
        // The threads are read after `counted`, so a thread that has started in between is in `threads` only.
        let threads = hotspot.thread_bytes(&mut self.thread_array);
        let what = "the allocation of its threads";
        let Some(threads) = ok_or_log(self.pid, what, threads) else { return Vec::new() };
        self.totals.update_in_flight(&threads, counted)
    }

    /// Counts lost events.
    pub(crate) fn lost(&mut self, events: u64) {
        self.totals.lost(events);
    }

    /// Names and keeps a new stack.
    pub(crate) fn take_stack(
        &mut self,
        hotspot: &HotSpot,
        number: u64,
        raw: &RawStack,
        namers: &mut Namers,
        walker: &mut Walker,
    ) -> Result<()> {
        match &mut self.stacks {
            Some(stacks) => stacks.take(number, raw, hotspot, namers, walker),
            None => Ok(()),
        }
    }

    /// Completes the truncated names of threads.
    pub(crate) fn name_threads(&mut self) {
        self.totals.complete_names(&mut self.threads);
    }

    /// Returns the table of a period.
    pub(crate) fn table(&self, hotspot: Option<&HotSpot>, scope: Scope, now_ns: u64) -> Table {
        let version = hotspot.map(|hotspot| hotspot.version.as_str());
        let mut table = self.totals.table(version, scope, now_ns);
        if let (Some(stacks), Some(number)) = (&self.stacks, &mut table.summary.stacks) {
            let parts = table.rows.iter().flat_map(|row| &row.parts);
            let distinct: HashSet<_> = parts.map(|part| stacks.base(part.stack)).collect();
            *number = distinct.len() as u64;
        }
        table
    }

    /// Returns the number of stacks, and whether a stack could not be kept.
    pub(crate) fn stacks_kept(&self) -> (usize, bool) {
        self.stacks.as_ref().map_or((0, false), |stacks| (stacks.count(), stacks.is_full()))
    }

    /// Forgets the names, stacks and counters read so far, because the kernel side has removed its counters
    /// and stacks. It counts from zero again, and sends names and stacks again when they occur.
    pub(crate) fn reset(&mut self) {
        self.totals.forget_seen();
        self.names = Names::default();
        if let Some(stacks) = &mut self.stacks {
            stacks.clear();
        }
    }

    /// Begins the next interval.
    pub(crate) fn next_interval(&mut self, now_ns: u64) {
        self.totals.next_interval(now_ns);
        if let Some(objects) = &mut self.objects {
            objects.forget_classes();
        }
    }
}

/// Returns the value, or `None` after an error, which is printed with `-v`.
fn ok_or_log<T>(pid: Pid, what: &str, read: Result<T>) -> Option<T> {
    if let Err(error) = &read {
        log::debug!("process {pid}: {what} is unknown: {error}");
    }
    read.ok()
}

/// Returns the layout that the kernel side needs to read a JVM. `walks` is whether stacks can be walked.
///
/// # Errors
/// [`crate::Error::Layout`] naming what is missing.
pub(crate) fn kernel_layout(hotspot: &HotSpot, walks: bool) -> Result<layout> {
    let (classes, threads) = (hotspot.class_layout()?, hotspot.thread_layout()?);
    if threads.tlab_top != threads.tlab_start + 8 {
        let what =
            "the start and top of a TLAB are not adjacent; this JDK version is not supported";
        return Err(Error::Layout { what: what.into() });
    }
    Ok(layout {
        thread_allocated: threads.allocated,
        tlab: threads.tlab_start,
        desired_tlab_size: threads.desired_tlab_size,
        probe_precedes_tlab: threads.probe_precedes_tlab.into(),
        klass_name: classes.klass_name,
        symbol_length: classes.symbol_length,
        symbol_body: classes.symbol_body,
        collections: hotspot.collections_at().map_or(0, |at| at.0),
        humongous: hotspot.humongous_bytes().unwrap_or(0),
        walks: walks.into(),
    })
}

/// Corrects the bytes and humongous objects of a class. Up to JDK 20 the interpreter does not pass the size
/// of the object to the probe, which then reports an arbitrary number. All objects of a class that is not an
/// array class have the same `size`, which is stored in the class. Objects larger than `max` are humongous.
fn correct(count: &mut Count, size: u64, max: Option<u64>) {
    count.bytes = count.samples * size;
    if max.is_none_or(|max| size <= max) {
        (count.humongous, count.humongous_bytes) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreter_sizes_are_replaced_by_the_class_size() {
        let reported = Count {
            samples: 3,
            bytes: 1 << 40,
            humongous: 3,
            humongous_bytes: 1 << 40,
            ..Count::default()
        };
        for (size, max, humongous) in [(24, Some(512), 0), (24, None, 0), (1024, Some(512), 3)] {
            let mut count = reported;
            correct(&mut count, size, max);
            assert_eq!((count.bytes, count.humongous), (3 * size, humongous));
        }
    }
}

//! What one JVM has allocated so far.

use std::collections::{HashMap, HashSet};

use libjvmprobe::{
    Addr, Error, Pid, Result,
    bpf::{clock, walker::Walker},
    hotspot::{HotSpot, classes::ClassLayout, objects::Objects},
    own::remark,
    stack::{native::Files, raw::RawStack},
};

use crate::{
    counters::Counted,
    event::{ClassId, Large, Name, Tlab, layout, tally, tally_key},
    names::Names,
    record,
    split::Part,
    stacks::{self, Stacks},
    tally::{Allocated, Count, Key, OTHER, Totals},
};

/// A JVM under observation.
pub struct Jvm {
    pid: Pid,
    classes: ClassLayout,
    /// Reads TLABs; `None` where it is unknown how.
    objects: Option<Objects>,
    collections_at: Option<Addr>,
    names: Names,
    thread_names: HashMap<u32, String>,
    /// Where stacks are wanted.
    pub stacks: Option<Stacks>,
    /// The kernel side's counters at the last look.
    seen: HashMap<SeenKey, tally>,
    seen_others: tally,
    /// Bytes in TLABs that belonged to no sample at the last look, by thread.
    in_flight: HashMap<Addr, u64>,
    by_thread: bool,
    exact: bool,
    /// Of objects by the Symbol of the class's name, where the probe does not tell.
    sizes: Option<HashMap<Addr, u64>>,
    sizes_are_fresh: bool,
    /// Of the whole trace, and of the interval.
    spans: [Span; 2],
}

/// Names of so many threads are kept: more than live at a time. Others are `?`.
const MAX_THREADS: usize = 1 << 16;

/// A key of the kernel side, without the JVM's.
type SeenKey = (ClassId, u64, u32);

/// What was counted since when.
#[derive(Debug, Default)]
struct Span {
    begin_ns: u64,
    totals: Totals,
}

/// The first JDK whose probe tells the size of every object.
const FIRST_WITH_SIZES: u32 = 21;

const TRACE: usize = 0;
const INTERVAL: usize = 1;

/// What a table is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole trace.
    Trace,
    /// The time since the last table.
    Interval,
}

/// What was allocated in a time.
pub struct Table {
    /// The totals.
    pub summary: record::Summary,
    /// All classes, in no order.
    pub rows: Vec<Row>,
}

/// What a class has allocated.
pub struct Row {
    /// All of it.
    pub class: record::Class,
    /// By stack, largest first; none where stacks are not wanted.
    pub parts: Vec<Part>,
}

/// What to keep apart and how to count.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Keep threads apart.
    pub by_thread: bool,
    /// Every object is counted.
    pub exact: bool,
}

impl Jvm {
    /// Starts observing.
    ///
    /// # Errors
    /// [`libjvmprobe::Error::Layout`] naming what is missing.
    pub fn new(
        pid: Pid,
        hotspot: &HotSpot,
        options: Options,
        stacks: Option<Stacks>,
    ) -> Result<Self> {
        let begin_ns = clock::monotonic_ns();
        let span = || Span { begin_ns, totals: Totals::default() };
        Ok(Self {
            classes: hotspot.class_layout()?,
            objects: match options.exact {
                true => None,
                false => known(pid, "what is in its TLABs", hotspot.objects()),
            },
            collections_at: known(pid, "how often it has collected", hotspot.collections_at()),
            pid,
            names: Names::default(),
            thread_names: HashMap::new(),
            stacks,
            seen: HashMap::new(),
            seen_others: tally::default(),
            in_flight: HashMap::new(),
            by_thread: options.by_thread,
            exact: options.exact,
            sizes: None,
            sizes_are_fresh: false,
            spans: [span(), span()],
        })
    }

    /// Takes the names of a class and a thread.
    pub fn told(&mut self, name: Name) {
        if !name.text.is_empty() {
            self.names.told(name.class, &name.text);
        }
        if name.tid != 0 {
            keep(&mut self.thread_names, name.tid, name.comm);
        }
    }

    /// Takes a large object; `None` where it is none after all.
    pub fn large(&mut self, hotspot: &HotSpot, large: Large) -> Option<record::Large> {
        let class = self.names.of_id(large.class, Some((hotspot, &self.classes)));
        if self.exact && hotspot.major < FIRST_WITH_SIZES {
            let size = self.size_of(hotspot, Addr(large.class.symbol), &class);
            if size.is_some_and(|size| size != large.bytes) {
                return None;
            }
        }
        Some(record::Large {
            time: clock::rfc3339(large.ts_ns),
            ts_ns: large.ts_ns,
            pid: self.pid.0,
            tid: large.tid,
            thread: large.comm,
            class: class.to_string(),
            bytes: large.bytes,
            humongous: large.humongous,
            stack: self.stacks.as_ref().filter(|stacks| stacks.are_known()).map(|stacks| {
                stacks.frames(stacks.id_of(large.stack)).iter().map(Into::into).collect()
            }),
        })
    }

    /// Reads a full TLAB, one of `stands_for` like it. One that a collection has reached
    /// by now is left out.
    pub fn read_tlab(&mut self, hotspot: &HotSpot, tlab: &Tlab, stands_for: f64) {
        let Some(objects) = &mut self.objects else { return };
        let counts = match hotspot.count_objects(objects, Addr(tlab.start), tlab.size) {
            Ok(counts) => counts.collect::<Vec<_>>(),
            Err(_) => return,
        };
        let is_untouched =
            self.collections_at.is_none_or(|at| hotspot.u32_at(at).ok() == Some(tlab.collections));
        if !is_untouched {
            return;
        }
        for (klass, found) in counts {
            let Some(class) = self.names.of_klass(klass, hotspot, &self.classes) else {
                continue;
            };
            let count = Count {
                read_objects: found.objects as f64 * stands_for,
                read_bytes: found.bytes as f64 * stands_for,
                ..Count::default()
            };
            self.add(&Key { class, tid: tlab.tid }, &count);
        }
        for span in &mut self.spans {
            span.totals.add_read(tlab.tid);
        }
    }

    fn add(&mut self, key: &Key, count: &Count) {
        for span in &mut self.spans {
            span.totals.add(key, count);
        }
    }

    /// Takes the kernel side's counters of a class.
    pub fn take(&mut self, hotspot: &HotSpot, key: &tally_key, now: &tally) {
        let class = ClassId::from(&key.class);
        let before = self.seen.insert((class, key.stack, key.tid), *now).unwrap_or_default();
        let mut more = difference(&before, now);
        if more == Count::default() {
            return;
        }
        let symbol = Addr(class.symbol);
        let class = self.names.of_id(class, Some((hotspot, &self.classes)));
        if self.exact && hotspot.major < FIRST_WITH_SIZES {
            self.correct(hotspot, &mut more, symbol, &class);
        }
        let row = Key { class, tid: key.tid };
        self.add(&row, &more);
        if let Some(stacks) = &self.stacks {
            let stack = stacks.id_of(key.stack);
            for span in &mut self.spans {
                span.totals.add_stack(&row, stack, &more);
            }
        }
    }

    /// Up to JDK 20 the interpreter does not say how large an object is that it allocates;
    /// what the probe tells is then by chance. All objects of a class that is no array are
    /// of one size, which the class knows.
    fn correct(&mut self, hotspot: &HotSpot, count: &mut Count, symbol: Addr, class: &str) {
        let Some(size) = self.size_of(hotspot, symbol, class) else { return };
        count.bytes = count.samples * size;
        if hotspot.humongous_bytes().is_none_or(|most| size <= most) {
            (count.humongous, count.humongous_bytes) = (0, 0);
        }
    }

    /// The size of a class's objects where all have the same.
    fn size_of(&mut self, hotspot: &HotSpot, symbol: Addr, class: &str) -> Option<u64> {
        // The runtime allocates Class objects, which differ in size.
        if class.ends_with(']') || class == "java.lang.Class" {
            return None;
        }
        let is_known = self.sizes.as_ref().is_some_and(|sizes| sizes.contains_key(&symbol));
        // A class that is gone by now is not found by looking again and again.
        if !is_known && !self.sizes_are_fresh {
            let sizes = hotspot.instance_sizes();
            self.sizes = known(self.pid, "the sizes of its objects", sizes);
            self.sizes_are_fresh = true;
        }
        self.sizes.as_ref()?.get(&symbol).copied()
    }

    /// To be called before counters are taken.
    pub fn begin_collection(&mut self) {
        self.sizes_are_fresh = false;
    }

    /// Takes the kernel side's counters of classes that found no room.
    pub fn take_others(&mut self, now: &tally) {
        let before = std::mem::replace(&mut self.seen_others, *now);
        let more = difference(&before, now);
        if more != Count::default() {
            let row = Key { class: OTHER.into(), tid: 0 };
            self.add(&row, &more);
            if self.stacks.is_some() {
                for span in &mut self.spans {
                    span.totals.add_stack(&row, stacks::OTHER, &more);
                }
            }
        }
    }

    /// Takes up to where the bytes of its threads are attributed. Returns those that have
    /// ended.
    pub fn take_threads<'a>(
        &mut self,
        hotspot: &HotSpot,
        counted: &[&'a Counted],
    ) -> Vec<&'a Counted> {
        // In this order: a thread that is new by now is not among the former.
        let threads = hotspot.thread_bytes();
        let what = "what its threads have allocated";
        let Some(threads) = known(self.pid, what, threads) else { return Vec::new() };
        let known: HashMap<Addr, &Counted> = counted.iter().map(|&c| (c.thread, c)).collect();
        let mut in_flight = HashMap::with_capacity(threads.len());
        for thread in &threads {
            let counted = known.get(&thread.thread);
            let bytes = thread.allocated.saturating_sub(counted.map_or(0, |c| c.bytes));
            let before = self.in_flight.get(&thread.thread).copied().unwrap_or(0);
            let more = bytes.cast_signed().saturating_sub(before.cast_signed());
            let tid = counted.filter(|_| self.by_thread).and_then(|c| c.tid).unwrap_or(0);
            for span in &mut self.spans {
                span.totals.add_in_flight(u32::try_from(tid).unwrap_or(0), more);
            }
            in_flight.insert(thread.thread, bytes);
        }
        self.in_flight = in_flight;
        let live: HashSet<Addr> = threads.iter().map(|t| t.thread).collect();
        counted.iter().filter(|c| !live.contains(&c.thread)).copied().collect()
    }

    /// So many events were lost.
    pub fn lost(&mut self, events: u64) {
        for span in &mut self.spans {
            span.totals.lost += events;
        }
    }

    /// Takes a stack that is new.
    pub fn take_stack(
        &mut self,
        hotspot: &HotSpot,
        number: u64,
        raw: &RawStack,
        files: &mut Files,
        walker: &mut Walker,
    ) -> Result<()> {
        match &mut self.stacks {
            Some(stacks) => stacks.take(number, raw, hotspot, files, walker),
            None => Ok(()),
        }
    }

    /// What was allocated.
    pub fn table(&self, hotspot: Option<&HotSpot>, scope: Scope, now_ns: u64) -> Table {
        let span = &self.spans[if scope == Scope::Trace { TRACE } else { INTERVAL }];
        let all = if self.exact { span.totals.exact() } else { span.totals.estimate() };
        let duration_ns = now_ns.saturating_sub(span.begin_ns).max(1);
        let seconds = duration_ns as f64 / 1e9;
        let count = |of: fn(&Count) -> u64| all.iter().map(|a| of(&a.count)).sum::<u64>();
        let bytes: u64 = all.iter().map(Allocated::rounded_bytes).sum();
        let (tlabs, read) = span.totals.tlabs();
        let sampled = |n| (!self.exact).then_some(n);
        let time = clock::rfc3339(now_ns);
        let is_other = |a: &&Allocated| &*a.key.class == OTHER;
        let parts: Vec<_> = match self.stacks {
            Some(_) => all.iter().map(|class| span.totals.split(class)).collect(),
            None => vec![Vec::new(); all.len()],
        };
        let with_stacks = |n| self.stacks.as_ref().map(|_| n);
        let bytes_of = |id| {
            let parts = parts.iter().flatten().filter(|part| part.stack == id);
            parts.map(|part| part.bytes).sum::<u64>()
        };
        let distinct: HashSet<_> = parts.iter().flatten().map(|part| part.stack).collect();
        let summary = record::Summary {
            time: time.clone(),
            ts_ns: now_ns,
            pid: self.pid.0,
            jvm: hotspot.map(|h| h.version.clone()).filter(|v| !v.is_empty()),
            scope: if scope == Scope::Trace { "trace" } else { "interval" },
            duration_ns,
            bytes,
            objects: all.iter().map(Allocated::rounded_objects).sum(),
            estimated: !self.exact,
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
            tid: self.by_thread.then_some(a.key.tid),
            thread: self.by_thread.then(|| self.thread_name(a.key.tid)),
            class: a.key.class.to_string(),
            bytes: a.rounded_bytes(),
            objects: a.rounded_objects(),
            estimated: !self.exact,
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

    /// Begins the next interval.
    pub fn next_interval(&mut self, now_ns: u64) {
        self.spans[INTERVAL] = Span { begin_ns: now_ns, totals: Totals::default() };
        if let Some(objects) = &mut self.objects {
            objects.forget_classes();
        }
    }

    fn thread_name(&self, tid: u32) -> String {
        self.thread_names.get(&tid).cloned().unwrap_or_else(|| "?".into())
    }
}

/// What could be read, for what cannot be is done without; `-v` tells why.
fn known<T>(pid: Pid, what: &str, read: Result<T>) -> Option<T> {
    if let Err(error) = &read {
        remark(|| format!("process {pid}: {what} is unknown: {error}"));
    }
    read.ok()
}

/// What the kernel side reads of a JVM, and whether it walks its stacks.
///
/// # Errors
/// [`libjvmprobe::Error::Layout`] naming what is missing.
pub fn kernel_layout(hotspot: &HotSpot, walks: bool) -> Result<layout> {
    let (classes, threads) = (hotspot.class_layout()?, hotspot.thread_layout()?);
    if threads.tlab_top != threads.tlab_start + 8 {
        let what = "the start and top of a TLAB are apart, in a version newer than is known";
        return Err(Error::Layout { what: what.into() });
    }
    Ok(layout {
        thread_allocated: threads.allocated,
        tlab: threads.tlab_start,
        klass_name: classes.klass_name,
        symbol_length: classes.symbol_length,
        symbol_body: classes.symbol_body,
        collections: hotspot.collections_at().map_or(0, |at| at.0),
        humongous: hotspot.humongous_bytes().unwrap_or(0),
        walks: walks.into(),
    })
}

/// Keeps a thread's name, if there is room.
fn keep(names: &mut HashMap<u32, String>, tid: u32, name: String) {
    if names.len() < MAX_THREADS || names.contains_key(&tid) {
        names.insert(tid, name);
    }
}

fn difference(before: &tally, now: &tally) -> Count {
    Count {
        samples: now.samples.saturating_sub(before.samples),
        bytes: now.bytes.saturating_sub(before.bytes),
        objects: now.objects.saturating_sub(before.objects) as f64 / 256.0,
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

    #[test]
    fn so_many_threads_have_names() {
        let mut names = HashMap::new();
        for tid in 0..2 * MAX_THREADS as u32 {
            keep(&mut names, tid, "a".into());
        }
        keep(&mut names, 7, "b".into());
        assert_eq!((names.len(), names[&7].as_str()), (MAX_THREADS, "b"));
    }
}

//! What one JVM has allocated so far.

use std::collections::HashMap;

use crate::{
    Addr, Error, Pid, Result,
    bpf::{clock, walker::Walker},
    hotspot::{HotSpot, classes::ClassLayout, objects::Objects, thread_names::ThreadNames},
    own::{budget::Budget, remark},
    stack::{native::Files, raw::RawStack},
    take::allocations::{
        Options,
        books::{Books, Scope, Table},
        counters::Counted,
        event::{ClassId, Large, Name, Tlab, layout, tally, tally_key},
        moments::{Hit, Moments},
        names::Names,
        record,
        stacks::{self, Stacks},
        tally::{Count, Key},
    },
};

/// A JVM under observation.
pub struct Jvm {
    pid: Pid,
    classes: ClassLayout,
    /// Reads TLABs; `None` where it is unknown how.
    objects: Option<Objects>,
    collections_at: Option<Addr>,
    names: Names,
    threads: ThreadNames,
    /// Where stacks are wanted.
    pub(crate) stacks: Option<Stacks>,
    books: Books,
    exact: bool,
    /// Of objects by the Symbol of the class's name, where the probe does not tell.
    sizes: Option<HashMap<Addr, u64>>,
    sizes_are_fresh: bool,
}

/// The first JDK whose probe tells the size of every object.
const FIRST_WITH_SIZES: u32 = 21;

impl Jvm {
    /// Starts observing.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming what is missing.
    pub(crate) fn new(
        pid: Pid,
        hotspot: &HotSpot,
        options: Options,
        stacks: Option<Stacks>,
        budget: &Budget,
    ) -> Result<Self> {
        Ok(Self {
            classes: hotspot.class_layout()?,
            objects: match options.exact {
                true => None,
                false => known(pid, "what is in its TLABs", hotspot.objects()),
            },
            collections_at: known(pid, "how often it has collected", hotspot.collections_at()),
            pid,
            names: Names::default(),
            threads: ThreadNames::new(hotspot),
            stacks,
            books: Books::new(pid, options, budget.clone(), clock::monotonic_ns()),
            exact: options.exact,
            sizes: None,
            sizes_are_fresh: false,
        })
    }

    /// Takes the names of a class and a thread.
    pub(crate) fn told(&mut self, name: Name) {
        if !name.text.is_empty() {
            self.names.told(name.class, &name.text);
        }
        if name.tid != 0 {
            self.books.name_thread(name.tid, self.threads.of(name.tid, name.comm));
        }
    }

    /// Takes a large object; `None` where it is none after all.
    pub(crate) fn large(&mut self, hotspot: &HotSpot, large: Large) -> Option<record::Large> {
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
            thread: self.threads.of(large.tid, large.comm),
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
    pub(crate) fn read_tlab(&mut self, hotspot: &HotSpot, tlab: &Tlab, stands_for: f64) {
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
        let mut found = Vec::new();
        for (klass, count) in counts {
            let Some(class) = self.names.of_klass(klass, hotspot, &self.classes) else {
                continue;
            };
            let count = Count {
                read_objects: count.objects as f64 * stands_for,
                read_bytes: count.bytes as f64 * stands_for,
                ..Count::default()
            };
            found.push((Key { class, tid: tlab.tid }, count));
        }
        self.books.add_tlab(tlab.tid, &found);
    }

    /// Takes the kernel side's counters of a class.
    pub(crate) fn take(&mut self, hotspot: &HotSpot, key: &tally_key, now: &tally) {
        let class = ClassId::from(&key.class);
        let Some(mut more) = self.books.more((class, key.stack, key.tid), now) else { return };
        let symbol = Addr(class.symbol);
        let class = self.names.of_id(class, Some((hotspot, &self.classes)));
        if self.exact
            && hotspot.major < FIRST_WITH_SIZES
            && let Some(size) = self.size_of(hotspot, symbol, &class)
        {
            correct(&mut more, size, hotspot.humongous_bytes());
        }
        let stack = self.stacks.as_ref().map_or(stacks::UNKNOWN, |s| s.id_of(key.stack));
        self.books.add(&Key { class, tid: key.tid }, stack, &more);
    }

    /// Takes when the kernel side counted something of a class.
    pub(crate) fn take_hit(&mut self, hotspot: &HotSpot, key: &tally_key, hit: Hit) {
        let class = ClassId::from(&key.class);
        let class = self.names.of_id(class, Some((hotspot, &self.classes)));
        let stack = self.stacks.as_ref().map_or(stacks::UNKNOWN, |s| s.id_of(key.stack));
        self.books.add_hit(&Key { class, tid: key.tid }, stack, key.slot, hit);
    }

    /// Keeps about so many bytes of when it has allocated something.
    pub(crate) fn shrink_moments(&mut self, max: usize) {
        if let Some(moments) = &mut self.books.moments {
            moments.shrink(max);
        }
    }

    /// When it has allocated what, where that is wanted.
    pub(crate) fn moments(&self) -> Option<&Moments> {
        self.books.moments.as_ref()
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
    pub(crate) fn begin_collection(&mut self) {
        self.sizes_are_fresh = false;
    }

    /// Takes the kernel side's counters of classes that found no room.
    pub(crate) fn take_others(&mut self, now: &tally) {
        self.books.take_others(now);
    }

    /// Takes up to where the bytes of its threads are attributed. Returns those that have ended.
    pub(crate) fn take_threads<'a>(
        &mut self,
        hotspot: &HotSpot,
        counted: &[&'a Counted],
    ) -> Vec<&'a Counted> {
        // In this order: a thread that is new by now is not among the former.
        let threads = hotspot.thread_bytes();
        let what = "what its threads have allocated";
        let Some(threads) = known(self.pid, what, threads) else { return Vec::new() };
        self.books.take_threads(&threads, counted)
    }

    /// So many events were lost.
    pub(crate) fn lost(&mut self, events: u64) {
        self.books.lost(events);
    }

    /// Takes a stack that is new.
    pub(crate) fn take_stack(
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

    /// Finds whole names of threads that were not found before.
    pub(crate) fn name_threads(&mut self) {
        self.books.complete_names(&mut self.threads);
    }

    /// What was allocated.
    pub(crate) fn table(&self, hotspot: Option<&HotSpot>, scope: Scope, now_ns: u64) -> Table {
        self.books.table(hotspot.map(|hotspot| hotspot.version.as_str()), scope, now_ns)
    }

    /// How many stacks it has, and whether there was no room for one.
    pub(crate) fn stacks_kept(&self) -> (usize, bool) {
        self.stacks.as_ref().map_or((0, false), |stacks| (stacks.count(), stacks.is_full()))
    }

    /// Forgets names, stacks and counters that it has seen: the kernel side tells all anew.
    pub(crate) fn begin_anew(&mut self) {
        self.books.forget_seen();
        self.names = Names::default();
        if let Some(stacks) = &mut self.stacks {
            stacks.clear();
        }
    }

    /// Begins the next interval.
    pub(crate) fn next_interval(&mut self, now_ns: u64) {
        self.books.next_interval(now_ns);
        if let Some(objects) = &mut self.objects {
            objects.forget_classes();
        }
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
/// [`crate::Error::Layout`] naming what is missing.
pub(crate) fn kernel_layout(hotspot: &HotSpot, walks: bool) -> Result<layout> {
    let (classes, threads) = (hotspot.class_layout()?, hotspot.thread_layout()?);
    if threads.tlab_top != threads.tlab_start + 8 {
        let what = "the start and top of a TLAB are apart, in a version newer than is known";
        return Err(Error::Layout { what: what.into() });
    }
    Ok(layout {
        thread_allocated: threads.allocated,
        tlab: threads.tlab_start,
        told_first: threads.told_first.into(),
        klass_name: classes.klass_name,
        symbol_length: classes.symbol_length,
        symbol_body: classes.symbol_body,
        collections: hotspot.collections_at().map_or(0, |at| at.0),
        humongous: hotspot.humongous_bytes().unwrap_or(0),
        walks: walks.into(),
    })
}

/// Up to JDK 20 the interpreter does not say how large an object is that it allocates; what the
/// probe tells is then by chance. All objects of a class that is no array are of one `size`,
/// which the class knows. Those larger than `most` are humongous.
fn correct(count: &mut Count, size: u64, most: Option<u64>) {
    count.bytes = count.samples * size;
    if most.is_none_or(|most| size <= most) {
        (count.humongous, count.humongous_bytes) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_interpreter_says_of_sizes_is_corrected() {
        let told = Count {
            samples: 3,
            bytes: 1 << 40,
            humongous: 3,
            humongous_bytes: 1 << 40,
            ..Count::default()
        };
        for (size, most, humongous) in [(24, Some(512), 0), (24, None, 0), (1024, Some(512), 3)] {
            let mut count = told;
            correct(&mut count, size, most);
            assert_eq!((count.bytes, count.humongous), (3 * size, humongous));
        }
    }
}

//! Current sizes in a JVM: its code cache, its heap, and the number of its loaded classes.
//!
//! The number of classes comes from the JVM's performance data, like that of `jstat -class` and JMX
//! (hotspot/share/services/classLoadingService.cpp). If a JVM has none (`-XX:-UsePerfData`), the classes in
//! its lists are counted, which takes longer.

use std::time::Instant;

use crate::{
    Addr, Error, Result,
    hotspot::{HotSpot, code::fill, loaded, perfdata::PerfData},
    process::memory::Memory,
};

pub use crate::hotspot::code::Fill;

/// Addresses of the class counters in performance data.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClassCounts {
    loaded: Option<Addr>,
    unloaded: Option<Addr>,
    /// The counters of classes from a CDS archive. `loaded` and `unloaded` do not include these classes.
    archived: Option<Addr>,
    archived_unloaded: Option<Addr>,
}

impl ClassCounts {
    /// Locates the counters in performance data that begin at `base`.
    pub(super) fn of(base: Addr, data: &PerfData) -> Self {
        let at = |name: &str| base.checked_add(data.offset(name)? as u64);
        Self {
            loaded: at("java.cls.loadedClasses"),
            unloaded: at("java.cls.unloadedClasses"),
            archived: at("java.cls.sharedLoadedClasses"),
            archived_unloaded: at("java.cls.sharedUnloadedClasses"),
        }
    }

    /// Returns the address of the counter of unloaded classes.
    pub(super) fn unloads(&self) -> Option<Addr> {
        self.unloaded
    }

    /// Returns the number of loaded classes; `None` if the JVM does not count them.
    fn read(&self, memory: &Memory) -> Result<Option<u64>> {
        let totals = self.totals(memory)?;
        Ok(totals.map(|(loaded, unloaded)| loaded.saturating_sub(unloaded)))
    }

    /// Returns the numbers of classes that were loaded and unloaded since the JVM started; `None` if the JVM does not count
    /// them.
    fn totals(&self, memory: &Memory) -> Result<Option<(u64, u64)>> {
        let Some(loaded) = self.loaded else { return Ok(None) };
        // The words are read in this order. The counters of unloaded classes are first, so a class that is
        // unloaded meanwhile still counts. In the other order, the result could be too low.
        let counters = [self.unloaded, self.archived_unloaded, Some(loaded), self.archived];
        let addrs: Vec<_> = counters.into_iter().flatten().collect();
        let mut words = memory.words(&addrs)?.into_iter();
        let [unloaded, archived_unloaded, loaded, archived] = counters.map(|at| match at {
            Some(at) => words.next().flatten().ok_or_else(|| Error::not_mapped(at, 8)),
            None => Ok(0),
        });
        let totals =
            (loaded?.saturating_add(archived?), unloaded?.saturating_add(archived_unloaded?));
        Ok(Some(totals))
    }
}

/// Addresses of the counters in performance data that hold the committed heap size: one for each generation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeapCounters([Option<Addr>; 2]);

impl HeapCounters {
    /// Locates the counters in performance data that begin at `base`.
    pub(super) fn of(base: Addr, data: &PerfData) -> Self {
        let at = |generation: usize| {
            let name = format!("sun.gc.generation.{generation}.capacity");
            base.checked_add(data.offset(&name)? as u64)
        };
        Self([at(0), at(1)])
    }

    fn read(&self, memory: &Memory) -> Option<u64> {
        let addrs: Vec<_> = self.0.into_iter().flatten().collect();
        let sizes: Vec<u64> = memory.words(&addrs).ok()?.into_iter().flatten().collect();
        (!sizes.is_empty()).then(|| sizes.into_iter().fold(0, u64::saturating_add))
    }
}

impl HotSpot {
    /// Returns the committed size of the heap as `jstat -gccapacity` prints it, and its maximum, in bytes;
    /// `None` for each that is unknown.
    pub fn heap_size(&self) -> (Option<u64>, Option<u64>) {
        (self.heap_counters.read(&self.memory), self.max_heap)
    }

    /// Returns the used and maximum size of its code cache.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the field that is missing or implausible, [`Error::Memory`] if the JVM has exited.
    pub fn code_cache(&self) -> Result<Fill> {
        fill::read(&self.memory, &self.layout)
    }

    /// Returns the numbers of classes that were loaded and unloaded since the JVM started; `None` if the JVM does not count
    /// them.
    pub fn class_totals(&self) -> Option<(u64, u64)> {
        self.class_counts.totals(&self.memory).ok()?
    }

    /// Returns the number of processors that `-XX:ActiveProcessorCount` sets, if any.
    pub fn configured_processors(&self) -> Option<u64> {
        self.configured_processors
    }

    /// Whether the JVM counts its classes itself, so that [`Self::loaded_classes`] costs next to nothing.
    pub fn counts_classes(&self) -> bool {
        self.class_counts.loaded.is_some()
    }

    /// Returns the number of loaded classes, without array classes.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for JDK 8 without performance data; [`Error::Layout`] naming the missing
    /// field, or if the class lists changed or are too long; [`Error::Memory`] if the JVM has exited.
    pub fn loaded_classes(&self) -> Result<u64> {
        self.loaded_classes_until(None)
    }

    /// Returns the result of [`Self::loaded_classes`]; fails if the lists cannot be counted before `until`.
    ///
    /// # Errors
    /// The errors of [`Self::loaded_classes`]; [`Error::Layout`] if time ran out.
    pub fn loaded_classes_until(&self, until: Option<Instant>) -> Result<u64> {
        if let Some(count) = self.class_counts.read(&self.memory)? {
            return Ok(count);
        }
        if self.layout.is_jdk_8() {
            let what =
                "cannot count the classes of JDK 8 without performance data (-XX:-UsePerfData)";
            return Err(Error::Unsupported { what: what.into() });
        }
        loaded::count(&self.memory, &self.layout, until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pid, hotspot::testing::own_memory};

    #[test]
    fn loaded_class_count_excludes_unloaded_classes() {
        let numbers: Box<[u64; 4]> = Box::new([500, 30, 700, 7]);
        let at = |i: usize| Some(Addr(std::ptr::from_ref(&numbers[i]) as u64));
        let all = ClassCounts {
            loaded: at(0),
            unloaded: at(1),
            archived: at(2),
            archived_unloaded: at(3),
        };
        let memory = own_memory();
        assert_eq!(all.read(&memory).unwrap(), Some(1163));
        assert_eq!(ClassCounts { archived: None, ..all }.read(&memory).unwrap(), Some(463));
        assert_eq!(ClassCounts::default().read(&memory).unwrap(), None);
        let lies = ClassCounts { loaded: at(1), unloaded: at(0), ..ClassCounts::default() };
        assert_eq!(lies.read(&memory).unwrap(), Some(0));
        let gone = ClassCounts { loaded: Some(Addr(8)), ..all };
        assert!(gone.read(&Memory::open(Pid(std::process::id())).unwrap()).is_err());
    }
}

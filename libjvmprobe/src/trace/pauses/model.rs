//! Model of one JVM: its records, and the totals of its stops and cycles.

use std::{cell::RefCell, collections::HashMap};

use crate::{
    bpf::clock,
    hotspot::{Collector, HotSpot, operations::Collections},
    trace::pauses::{
        assemble::Assembler,
        counted::Collected,
        event::Event,
        record::{Record, Stop},
        summary::{JvmName, Totals},
    },
};

/// A JVM whose collections are traced.
pub struct Jvm {
    pid: u32,
    assembler: Assembler,
    /// Totals since the last report, or since the JVM was admitted if there was no report yet. `None` if no
    /// totals are kept.
    totals: Option<Totals>,
    /// Time at which the JVM was admitted. Stops that began earlier are ignored, because a part of their events
    /// is missing.
    admitted_ns: u64,
    operations: Operations,
}

/// Maximum number of operations whose names are cached. HotSpot has about a hundred operations.
const MAX_OPERATIONS: usize = 512;

/// Names of operations, by number and by vtable. Each is looked up once.
#[derive(Default)]
pub(super) struct Operations {
    pub(super) numbered: RefCell<HashMap<u64, Option<String>>>,
    pub(super) vtables: RefCell<HashMap<u64, Option<String>>>,
}

/// The JVM that an event came from.
pub(super) struct JvmFacts<'a> {
    pub(super) pid: u32,
    /// The JVM as it was last read; `None` if it cannot be read (yet).
    pub(super) hotspot: Option<&'a HotSpot>,
    pub(super) operations: &'a Operations,
}

impl Jvm {
    /// Starts the model of a JVM at `admitted_ns`.
    pub(crate) fn new(
        pid: u32,
        totals: Option<Totals>,
        admitted_ns: u64,
        keep_pools: bool,
    ) -> Self {
        let (assembler, operations) = (Assembler::new(keep_pools), Operations::default());
        Self { pid, assembler, totals, admitted_ns, operations }
    }

    /// Processes an event. If the event completes a record, adds that record to the totals and returns it.
    pub(crate) fn process_event(
        &mut self,
        event: &Event,
        hotspot: Option<&HotSpot>,
    ) -> Option<Record> {
        if matches!(event, Event::Stop(stop) if stop.begin_ns < self.admitted_ns) {
            return None;
        }
        let facts = JvmFacts { pid: self.pid, hotspot, operations: &self.operations };
        let record = self.assembler.process_event(event, &facts)?;
        if let Some(totals) = &mut self.totals {
            totals.add(&record);
        }
        Some(record)
    }

    /// Returns the record of a stop or of collections that are known from counters alone, and adds it to the
    /// totals. `cause` is the cause of the last collection.
    pub(crate) fn count(
        &mut self,
        found: Collected,
        cause: Option<String>,
        hotspot: &HotSpot,
    ) -> Record {
        let collections = found.collections.into_iter().fold(0, u64::saturating_add);
        let is_gc = collections > 0;
        let cause = cause.and_then(|cause| counted_cause(cause, found.collections, hotspot));
        let is_mark = cause.as_deref().is_some_and(|cause| cause.starts_with("CMS "));
        let stop = Stop {
            time: clock::rfc3339(found.begin_ns),
            ts_ns: found.begin_ns,
            pid: self.pid,
            collector: hotspot.collector.name().into(),
            cause,
            full: found.collections[1] > u64::from(is_mark),
            collections,
            operations: u32::try_from(collections).unwrap_or(u32::MAX).max(1),
            ttsp_ns: found.ttsp_ns,
            pause_ns: is_gc.then_some(found.pause_ns),
            // If the duration of the stop is unknown, this is the duration of the collections, which is a
            // lower bound.
            stopped_ns: found.stopped_ns.unwrap_or(found.pause_ns),
            ..Stop::default()
        };
        if let Some(totals) = &mut self.totals {
            totals.stop(&stop);
        }
        if is_gc { Record::Pause(stop) } else { Record::Safepoint(stop) }
    }

    /// Counts lost events.
    pub(crate) fn lost(&mut self, events: u64) {
        if let Some(totals) = &mut self.totals {
            totals.lost(events);
        }
    }

    /// Returns the totals up to now, if they are kept.
    pub(crate) fn summary(&self, hotspot: Option<&HotSpot>, now_ns: u64) -> Option<Record> {
        let totals = self.totals.as_ref()?;
        let name = JvmName {
            pid: self.pid,
            collector: hotspot.map_or(Collector::Unknown, |h| h.collector).name().into(),
            version: hotspot.map(|h| h.version.clone()),
        };
        let frees_in_pauses = hotspot.is_some_and(|h| !h.collector.is_concurrent());
        Some(Record::Summary(Box::new(totals.summary(now_ns, &name, frees_in_pauses))))
    }

    /// Starts the next interval.
    pub(crate) fn next_interval(&mut self, now_ns: u64) {
        self.totals = self.totals.as_ref().map(|totals| totals.next(now_ns));
    }
}

impl JvmFacts<'_> {
    /// Short name of its collector.
    pub(super) fn collector(&self) -> &'static str {
        self.hotspot.map_or(Collector::Unknown, |h| h.collector).name()
    }

    /// Returns the name of an operation by its number in the JVM's own list.
    pub(super) fn operation_named(&self, op_type: u64) -> Option<String> {
        cached(&self.operations.numbered, op_type, || self.hotspot?.operation_named(op_type))
    }

    /// Returns the name of the operation that has this C++ vtable, for a libjvm.so without probes.
    pub(super) fn operation_of(&self, vtable: u64) -> Option<String> {
        cached(&self.operations.vtables, vtable, || self.hotspot?.operation_of(vtable))
    }

    /// Returns the collections of an operation, from two readings of the JVM's own counters.
    pub(super) fn collections(
        &self,
        op: Option<&str>,
        before: &[u64; 4],
        after: &[u64; 4],
    ) -> Collections {
        self.hotspot.map_or_else(Collections::default, |h| h.collections(op, before, after))
    }

    /// Whether an operation with this number of collections allocates between its last collection and its
    /// end. If so, the heap at the end of the operation differs from the heap after the collection.
    pub(super) fn allocates_after_collection(&self, op: Option<&str>, collections: u64) -> bool {
        self.hotspot.is_some_and(|h| h.allocates_after_collection(op, collections))
    }

    /// Whether an operation is a pause although no collection was seen in it.
    pub(super) fn is_pause(&self, op: Option<&str>) -> bool {
        self.hotspot.is_some_and(|h| h.is_pause(op))
    }
}

/// Returns the cause of counted collections, given the last cause that the JVM recorded; `collections` is their
/// number by kind.
fn counted_cause(cause: String, collections: [u64; 3], hotspot: &HotSpot) -> Option<String> {
    match collections {
        // Pauses of concurrent marking do not set a cause.
        [0, 0, _] => None,
        // Parallel sets the cause Ergonomics for the full collection, and then restores the cause of the
        // operation. The counters are read after that, so `cause` is the cause of the operation.
        [0, _, _] if cause == "Allocation Failure" && hotspot.has_ergonomics() => {
            Some("Ergonomics".into())
        }
        _ => Some(cause),
    }
}

fn cached(
    known: &RefCell<HashMap<u64, Option<String>>>,
    key: u64,
    look_up: impl FnOnce() -> Option<String>,
) -> Option<String> {
    let mut known = known.borrow_mut();
    if known.len() >= MAX_OPERATIONS && !known.contains_key(&key) {
        return None;
    }
    known.entry(key).or_insert_with(look_up).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_operation_lookups_is_limited() {
        let known = RefCell::default();
        let mut looked_up = 0;
        for key in 0..100_000 {
            let name = cached(&known, key, || {
                looked_up += 1;
                Some(key.to_string())
            });
            assert_eq!(name.is_some(), key < MAX_OPERATIONS as u64);
        }
        assert_eq!((looked_up, known.borrow().len()), (MAX_OPERATIONS, MAX_OPERATIONS));
        assert_eq!(cached(&known, 7, || None).as_deref(), Some("7"));
    }
}

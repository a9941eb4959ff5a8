//! Events of garbage collections and safepoints.
//!
//! The JVM's own numbers of collections and safepoints are unknown. Those in the recording count from its beginning.

use std::{
    collections::HashMap,
    io::{self, Write},
};

use super::{
    recording::Recording,
    types::{
        GARBAGE_COLLECTION, GC_CAUSE, GC_HEAP_SUMMARY, GC_NAME, GC_PHASE_PAUSE, GC_WHEN,
        OLD_COLLECTION, SAFEPOINT_BEGIN, SAFEPOINT_END, SAFEPOINT_SYNCHRONIZATION, Type,
        UNKNOWN_INT, VM_OPERATION, VM_OPERATION_EVENT, YOUNG_COLLECTION,
    },
};
use crate::{
    hotspot::description,
    trace::pauses::record::{Cycle, NO_OPERATION, Record, Stop},
};

/// Numbers of the last collection and safepoint, and concurrent cycles that have not ended.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    collections: u32,
    safepoints: u64,
    /// The concurrent cycle of each process that had pauses since its last cycle ended.
    cycles: HashMap<u32, OpenCycle>,
}

/// A concurrent cycle whose end is not known yet.
#[derive(Clone, Copy, Debug)]
struct OpenCycle {
    id: u32,
    sum_ns: u64,
    longest_ns: u64,
}

/// A collection or a cycle.
struct Collection<'a> {
    id: u32,
    span: (u64, u64),
    name: &'a str,
    is_young: bool,
    cause: Option<&'a str>,
    sum_ns: u64,
    longest_ns: u64,
    heap_before: Option<u64>,
    heap_after: Option<u64>,
}

impl<W: Write> Recording<W> {
    /// Adds a pause, a safepoint or a concurrent cycle that began at `begin_ns`, in nanoseconds since 1970, or the JVM that a
    /// summary of this time is about. Other records have no events.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn pause(&mut self, record: &Record, begin_ns: u64) -> io::Result<()> {
        match record {
            Record::Pause(stop) => {
                self.safepoint(stop, begin_ns)?;
                self.collection_pause(stop, begin_ns)
            }
            Record::Safepoint(stop) => self.safepoint(stop, begin_ns),
            Record::Cycle(cycle) => self.cycle(cycle, begin_ns),
            Record::Summary(summary) => {
                let jvm = summary.jvm.as_deref().map(description::product).unwrap_or_default();
                self.jvm(&jvm.of_process(summary.pid), begin_ns)
            }
            Record::Lost(_) | Record::Limited(_) => Ok(()),
        }
    }

    fn safepoint(&mut self, stop: &Stop, begin_ns: u64) -> io::Result<()> {
        let operation = stop.op.as_deref();
        self.stop(begin_ns, stop.ttsp_ns, stop.stopped_ns, operation)
    }

    /// Adds a stop of the application: its safepoint, and the VM operation that it was made for.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn stop(
        &mut self,
        begin_ns: u64,
        ttsp_ns: Option<u64>,
        stopped_ns: u64,
        operation: Option<&str>,
    ) -> io::Result<()> {
        self.numbers.safepoints += 1;
        let id = self.numbers.safepoints;
        let end_ns = begin_ns.saturating_add(stopped_ns);
        let ready_ns = begin_ns.saturating_add(ttsp_ns.unwrap_or(0)).min(end_ns);
        self.event(&SAFEPOINT_BEGIN, (begin_ns, ready_ns), |_, to| {
            to.number(ready_ns - begin_ns);
            to.number(id);
            to.number(UNKNOWN_INT);
            to.number(UNKNOWN_INT);
        })?;
        let mut event = |of: &Type, start: u64, end: u64| {
            self.event(of, (start, end), |_, to| {
                to.number(end - start);
                to.number(id);
            })
        };
        if ttsp_ns.is_some() {
            event(&SAFEPOINT_SYNCHRONIZATION, begin_ns, ready_ns)?;
        }
        event(&SAFEPOINT_END, end_ns, end_ns)?;
        let Some(operation) = operation.filter(|name| !name.is_empty() && *name != NO_OPERATION)
        else {
            return Ok(());
        };
        self.event(&VM_OPERATION_EVENT, (ready_ns, end_ns), |pools, to| {
            to.number(end_ns - ready_ns);
            to.number(pools.name(VM_OPERATION, operation));
            to.boolean(true);
            to.number(id);
        })
    }

    fn collection_pause(&mut self, stop: &Stop, begin_ns: u64) -> io::Result<()> {
        let ttsp_ns = stop.ttsp_ns.unwrap_or(0).min(stop.stopped_ns);
        let begin_ns = begin_ns.saturating_add(ttsp_ns);
        let pause_ns = stop.pause_ns.unwrap_or(stop.stopped_ns - ttsp_ns);
        let span = (begin_ns, begin_ns.saturating_add(pause_ns));
        let is_of_cycle = is_of_cycle(stop);
        let id = if is_of_cycle {
            let next = self.numbers.collections + 1;
            let cycle = self.numbers.cycles.entry(stop.pid).or_insert_with(|| {
                self.numbers.collections = next;
                OpenCycle { id: next, sum_ns: 0, longest_ns: 0 }
            });
            cycle.sum_ns = cycle.sum_ns.saturating_add(pause_ns);
            cycle.longest_ns = cycle.longest_ns.max(pause_ns);
            cycle.id
        } else {
            self.numbers.collections += 1;
            let collection = Collection {
                id: self.numbers.collections,
                span,
                name: collection_name(&stop.collector, stop.full),
                is_young: !stop.full,
                cause: stop.cause.as_deref(),
                sum_ns: pause_ns,
                longest_ns: pause_ns,
                heap_before: stop.heap_before,
                heap_after: stop.heap_after,
            };
            self.collection(&collection)?;
            collection.id
        };
        // A cycle has several pauses, which their operations distinguish.
        let name = stop.op.as_deref().filter(|_| is_of_cycle).unwrap_or("GC Pause");
        self.event(&GC_PHASE_PAUSE, span, |_, to| {
            to.number(pause_ns);
            to.number(id.into());
            to.text(name);
        })
    }

    fn cycle(&mut self, cycle: &Cycle, begin_ns: u64) -> io::Result<()> {
        let open = self.numbers.cycles.remove(&cycle.pid).unwrap_or_else(|| {
            self.numbers.collections += 1;
            OpenCycle { id: self.numbers.collections, sum_ns: 0, longest_ns: 0 }
        });
        let name = cycle_name(cycle);
        self.collection(&Collection {
            id: open.id,
            span: (begin_ns, begin_ns.saturating_add(cycle.duration_ns)),
            name,
            is_young: name.contains("Minor"),
            cause: cycle.cause.as_deref(),
            sum_ns: open.sum_ns,
            longest_ns: open.longest_ns,
            heap_before: cycle.heap_before,
            heap_after: cycle.heap_after,
        })
    }

    fn collection(&mut self, collection: &Collection<'_>) -> io::Result<()> {
        let &Collection { id, span, name, is_young, cause, sum_ns, longest_ns, .. } = collection;
        let duration_ns = span.1 - span.0;
        self.event(&GARBAGE_COLLECTION, span, |pools, to| {
            to.number(duration_ns);
            to.number(id.into());
            to.number(pools.name(GC_NAME, name));
            to.number(pools.name(GC_CAUSE, cause.unwrap_or("unknown")));
            to.number(sum_ns);
            to.number(longest_ns);
        })?;
        let generation = if is_young { &YOUNG_COLLECTION } else { &OLD_COLLECTION };
        self.event(generation, span, |_, to| {
            to.number(duration_ns);
            to.number(id.into());
        })?;
        let heaps = [
            (span.0, "Before GC", collection.heap_before),
            (span.1, "After GC", collection.heap_after),
        ];
        for (at, when, used) in heaps {
            let Some(used) = used else { continue };
            self.event(&GC_HEAP_SUMMARY, (at, at), |pools, to| {
                to.number(id.into());
                to.number(pools.name(GC_WHEN, when));
                to.number(used);
            })?;
        }
        Ok(())
    }
}

/// Returns whether a pause is a part of a concurrent cycle instead of a collection of its own.
fn is_of_cycle(stop: &Stop) -> bool {
    let op = stop.op.as_deref().unwrap_or_default();
    match &*stop.collector {
        // Up to JDK 20, both pauses of G1's concurrent marking have the same operation, `CGC_Operation`.
        "G1" => ["G1PauseRemark", "G1PauseCleanup", "CGC_Operation"].contains(&op),
        "CMS" => op.starts_with("CMS_"),
        "ZGC" | "GenZGC" => true,
        "Shenandoah" | "GenShen" => !stop.full,
        _ => false,
    }
}

/// Returns the JDK's name of a collection (hotspot/share/gc/shared/gcName.hpp).
fn collection_name(collector: &str, is_full: bool) -> &str {
    match (collector, is_full) {
        ("Serial", false) => "DefNew",
        ("Serial" | "CMS", true) => "SerialOld",
        ("Parallel", false) => "ParallelScavenge",
        ("Parallel", true) => "ParallelOld",
        ("CMS", false) => "ParNew",
        ("G1", false) => "G1New",
        ("G1", true) => "G1Full",
        ("GenShen", _) => "Shenandoah",
        _ => collector,
    }
}

/// Returns the JDK's name of a cycle. ZGC's memory managers are named like its collections.
fn cycle_name(cycle: &Cycle) -> &str {
    match &*cycle.collector {
        "G1" => "G1Old",
        "CMS" => "ConcurrentMarkSweep",
        "ZGC" => "Z",
        "GenZGC" => cycle.op.strip_suffix(" Cycles").unwrap_or(&cycle.op),
        "GenShen" => "Shenandoah",
        collector => collector,
    }
}

//! Assembles events into records: assigns memory pools to collections, and pairs begin and end events of
//! cycles.

use std::collections::{HashMap, VecDeque};

use crate::{
    bpf::{clock, records::text},
    hotspot::operations::Collections,
    trace::pauses::{
        cpu_wait,
        event::{self, Event, operation, pool_event, state_event, stop_event},
        model::JvmFacts,
        record::{Cycle, Pool, Record, Stop},
    },
};

/// Maximum number of open cycles, and of pools of one stop or cycle. No JVM has more. A larger number means
/// that end events were lost.
const MAX_OPEN: usize = 64;

/// Assembles the events of one JVM.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    /// Last events of pools in stops. Those before the begin of a stop belong to a stop that was lost or ignored.
    stop_pools: VecDeque<pool_event>,
    /// Open cycles, by thread ID and memory manager.
    cycles: HashMap<(u64, String), OpenCycle>,
    keep_pools: bool,
}

#[derive(Debug)]
struct OpenCycle {
    op: String,
    begin_ns: u64,
    heap_before: Option<u64>,
    cause: Option<String>,
    pools: Vec<Pool>,
}

impl Assembler {
    /// Creates an assembler; `keep_pools` adds the memory pools to the records.
    pub(crate) fn new(keep_pools: bool) -> Self {
        Self { keep_pools, ..Self::default() }
    }

    /// Processes the next event; returns the record that it completes.
    pub(crate) fn process_event(&mut self, event: &Event, jvm: &JvmFacts<'_>) -> Option<Record> {
        match event {
            Event::Stop(stop) => Some(self.stop(stop, jvm)),
            Event::Pool(pool) => self.pool(pool, jvm),
            Event::Cycle(cycle) => self.cycle(cycle, jvm),
            // The pause that a request belongs to has not ended yet.
            Event::Request(_) | Event::Stack(..) => None,
            // Sent only for JVMs that nothing is attached to; the tracer evaluates it.
            Event::Counted(_) => None,
        }
    }

    fn stop(&mut self, e: &stop_event, jvm: &JvmFacts<'_>) -> Record {
        let pairs = u64::from(e.gc_pairs);
        let mut stop = Stop {
            time: clock::rfc3339(e.begin_ns),
            ts_ns: e.begin_ns,
            pid: jvm.pid,
            collector: jvm.collector().into(),
            op: None,
            cause: None,
            full: false,
            collections: 0,
            operations: e.ops,
            ttsp_ns: (e.op_ns != 0).then(|| e.op_ns.saturating_sub(e.begin_ns)),
            pause_ns: None,
            stopped_ns: e.end_ns.saturating_sub(e.begin_ns),
            heap_before: None,
            heap_after: None,
            cpu_wait_ns: cpu_wait::of_stop(e.cpu_wait_ns, e.workers, jvm.collector()),
            throttled_periods: event::known(e.throttled_periods),
            pools: None,
            requests: Vec::new(),
        };
        let mut pools = Vec::new();
        for event in self.stop_pools.drain(..).filter(|event| event.at.ts_ns >= e.begin_ns) {
            note_pool(&mut pools, &event, text(&event.manager));
        }
        if pairs == 0 {
            stop.op = operation_name(e, &e.op, jvm);
            if !jvm.is_pause(stop.op.as_deref()) {
                return Record::Safepoint(stop);
            }
            stop.cause = event::cause(&e.cause, &e.last_cause);
            stop.collections = 1;
            // The time from the first operation to the end of the stop.
            stop.pause_ns = Some(e.end_ns.saturating_sub(e.op_ns.max(e.begin_ns)));
            stop.pools = self.keep_pools.then_some(pools);
            return Record::Pause(stop);
        }
        stop.op = operation_name(e, &e.gc_op, jvm);
        let op = stop.op.as_deref();
        let counted = match e.gauged {
            0 => Collections::default(),
            _ => jvm.collections(op, &e.before, &e.after),
        };
        if counted.count == Some(0) {
            return Record::Safepoint(stop);
        }
        let count = counted.count.unwrap_or(0);
        let allocates_after_collection = jvm.allocates_after_collection(op, count);
        stop.cause = event::cause(&e.cause, &e.last_cause);
        // The USDT probe reports Shenandoah's full collections as full, but the function that is used in
        // builds without this probe does not.
        stop.full = counted.is_full.unwrap_or(e.full != 0) || op == Some("ShenandoahFullGC");
        stop.collections = count.max(pairs).max(e.collections.into());
        stop.pause_ns = Some(e.gc_ns);
        stop.heap_before = event::known(e.heap_before);
        stop.heap_after =
            event::known(if allocates_after_collection { e.heap_at_gc_end } else { e.heap_after });
        stop.pools = self.keep_pools.then_some(pools);
        Record::Pause(stop)
    }

    fn pool(&mut self, e: &pool_event, jvm: &JvmFacts<'_>) -> Option<Record> {
        let manager = text(&e.manager);
        if !is_cycle(&manager) {
            if !self.keep_pools {
                return None;
            }
            if self.stop_pools.len() >= 2 * MAX_OPEN {
                self.stop_pools.pop_front();
            }
            self.stop_pools.push_back(*e);
            return None;
        }
        let key = (e.at.tid, manager);
        if e.at.end == 0 {
            if self.cycles.len() >= MAX_OPEN {
                self.cycles.clear();
            }
            let begin = || OpenCycle::begin(&key.1, &e.at);
            let cycle = self.cycles.entry(key.clone()).or_insert_with(begin);
            note_pool(&mut cycle.pools, e, key.1);
            return None;
        }
        let cycle = self.cycles.get_mut(&key)?;
        note_pool(&mut cycle.pools, e, key.1.clone());
        if cycle.pools.iter().any(|pool| pool.after.is_none()) {
            return None;
        }
        let cycle = self.cycles.remove(&key)?;
        Some(self.finish(cycle, &e.at, jvm))
    }

    fn cycle(&mut self, e: &state_event, jvm: &JvmFacts<'_>) -> Option<Record> {
        // CMS sends such events for each of its phases (with a thread ID), and for its cycle (without one).
        if jvm.collector() == "CMS" && e.tid != 0 {
            return None;
        }
        let key = (e.tid, String::new());
        if e.end != 0 {
            let cycle = self.cycles.remove(&key)?;
            return Some(self.finish(cycle, e, jvm));
        }
        let mut cycle = OpenCycle::begin("Concurrent Cycle", e);
        // The CMS thread starts a cycle by itself, so the JVM's cause is still that of the previous collection.
        cycle.cause.take_if(|_| jvm.collector() == "CMS");
        self.cycles.insert(key, cycle);
        None
    }

    fn finish(&self, cycle: OpenCycle, end: &state_event, jvm: &JvmFacts<'_>) -> Record {
        let is_ended_early = cycle.op == ZGC_OF_JDK_11;
        Record::Cycle(Cycle {
            time: clock::rfc3339(cycle.begin_ns),
            ts_ns: cycle.begin_ns,
            pid: jvm.pid,
            collector: jvm.collector().into(),
            op: cycle.op,
            cause: cycle.cause,
            duration_ns: end.ts_ns.saturating_sub(cycle.begin_ns),
            heap_before: cycle.heap_before,
            // JDK 11's ZGC reports the end of a cycle before it frees memory.
            heap_after: event::known(end.heap_used).filter(|_| !is_ended_early),
            pools: (self.keep_pools && !cycle.pools.is_empty()).then_some(cycle.pools),
        })
    }
}

impl OpenCycle {
    fn begin(op: &str, at: &state_event) -> Self {
        Self {
            op: op.into(),
            begin_ns: at.ts_ns,
            heap_before: event::known(at.heap_used),
            cause: event::cause(&at.cause, &at.last_cause),
            pools: Vec::new(),
        }
    }
}

/// Whether a memory manager is that of a concurrent cycle. ZGC and Shenandoah report their pools once for a
/// whole cycle, under managers whose names end in "Cycles"; JDK 11's ZGC has one manager for everything.
fn is_cycle(manager: &str) -> bool {
    manager.ends_with("Cycles") || manager == ZGC_OF_JDK_11
}

/// Memory manager of JDK 11's ZGC, whose "cycle" ends when relocation starts.
const ZGC_OF_JDK_11: &str = "ZGC";

/// Adds a pool at its begin event, or completes it at its end event.
fn note_pool(pools: &mut Vec<Pool>, e: &pool_event, manager: String) {
    let name = text(&e.pool);
    if let Some(pool) = pools.iter_mut().find(|p| p.manager == manager && p.pool == name) {
        // If this is a second collection inside the stop, the used bytes before the first one are kept.
        if e.at.end != 0 {
            pool.after = Some(e.used);
            pool.committed = e.committed;
        }
    } else if e.at.end == 0 && pools.len() < MAX_OPEN {
        pools.push(Pool {
            manager,
            pool: name,
            before: e.used,
            after: None,
            committed: e.committed,
            max: event::known(e.max),
        });
    }
}

/// Returns the operation's name as the JVM logs it, if the JVM's list of operations can be read. Otherwise,
/// if the event has the operation's vtable, returns the name that belongs to that vtable; without a vtable,
/// returns the name that the probe reports. For Shenandoah, the probe's name differs from the logged one.
fn operation_name(stop: &stop_event, op: &operation, jvm: &JvmFacts<'_>) -> Option<String> {
    let named = event::known(stop.op_type).and_then(|op_type| jvm.operation_named(op_type));
    if named.is_some() {
        return named;
    }
    if op.vtable != 0 {
        return jvm.operation_of(op.vtable);
    }
    Some(text(&op.name)).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Addr, hotspot::testing::FakeJvm, trace::pauses::model::Operations};

    /// A JVM with counters of collections. The names of two of its operations are cached.
    fn jvm() -> JvmFacts<'static> {
        let mut hotspot = FakeJvm::new("UseSerialGC").hotspot();
        hotspot.gauge.counters = [Some(Addr(8)), Some(Addr(16)), None, None];
        hotspot.gauge.op_shows_collection = true;
        let operations = Operations::default();
        operations.numbered.borrow_mut().insert(3, Some("ZMarkStart".into()));
        operations.vtables.borrow_mut().insert(0x10, Some("Named".into()));
        let (hotspot, operations) = (Box::leak(Box::new(hotspot)), Box::leak(Box::new(operations)));
        JvmFacts { pid: 7, hotspot: Some(hotspot), operations }
    }

    fn chars<T: From<u8> + Default + Copy>(text: &str) -> [T; 64] {
        let mut field = [T::default(); 64];
        for (to, from) in field.iter_mut().zip(text.bytes()) {
            *to = from.into();
        }
        field
    }

    fn stop() -> stop_event {
        stop_event {
            begin_ns: 100,
            op_ns: 130,
            end_ns: 900,
            ops: 1,
            op_type: u64::MAX,
            ..Default::default()
        }
    }

    #[test]
    fn stop_counts_two_collections_of_one_operation() {
        let event = stop_event {
            gc_pairs: 1,
            gc_ns: 600,
            gauged: 1,
            before: [4, 1, 0, 0],
            after: [5, 2, 0, 0],
            heap_before: 50,
            heap_after: 20,
            heap_at_gc_end: u64::MAX,
            ..stop()
        };
        let record = Assembler::default().process_event(&Event::Stop(Box::new(event)), &jvm());
        let Some(Record::Pause(stop)) = record else { panic!("{record:?}") };
        assert_eq!((stop.collections, stop.full), (2, true));
        assert_eq!((stop.ttsp_ns, stop.pause_ns, stop.stopped_ns), (Some(30), Some(600), 800));
        assert_eq!((stop.heap_before, stop.heap_after), (Some(50), None));
    }

    #[test]
    fn heap_after_excludes_allocations_after_the_collection() {
        let event = stop_event {
            gc_pairs: 1,
            gauged: 1,
            after: [1, 0, 0, 0],
            heap_after: 30,
            heap_at_gc_end: 20,
            ..stop()
        };
        let record = Assembler::default().process_event(&Event::Stop(Box::new(event)), &jvm());
        let Some(Record::Pause(stop)) = record else { panic!("{record:?}") };
        assert_eq!(stop.heap_after, Some(20));
    }

    #[test]
    fn counters_decide_if_a_full_collection_ran() {
        let jvm = jvm();
        let process = |after| {
            let event = stop_event { gc_pairs: 1, gauged: 1, full: 1, after, ..stop() };
            Assembler::default().process_event(&Event::Stop(Box::new(event)), &jvm)
        };
        for (after, expected) in [([1, 0, 0, 0], false), ([1, 1, 0, 0], true)] {
            let Some(Record::Pause(stop)) = process(after) else { panic!("no pause") };
            assert_eq!(stop.full, expected);
        }
        let Some(Record::Safepoint(stop)) = process([0; 4]) else { panic!("a pause") };
        assert_eq!((stop.collections, stop.pause_ns, stop.full), (0, None, false));
    }

    #[test]
    fn a_stop_without_collection_is_a_safepoint_named_by_its_vtable() {
        let mut event = stop();
        event.op.vtable = 0x10;
        let record = Assembler::default().process_event(&Event::Stop(Box::new(event)), &jvm());
        let Some(Record::Safepoint(stop)) = record else { panic!("{record:?}") };
        assert_eq!(stop.op.as_deref(), Some("Named"));
        assert_eq!((stop.pause_ns, stop.collections), (None, 0));
    }

    #[test]
    fn operation_type_overrides_vtable_and_marks_a_pause() {
        let mut event = stop();
        event.op.vtable = 0x10;
        event.op_type = 3;
        let record = Assembler::default().process_event(&Event::Stop(Box::new(event)), &jvm());
        let Some(Record::Pause(stop)) = record else { panic!("{record:?}") };
        assert_eq!(stop.op.as_deref(), Some("ZMarkStart"));
        assert_eq!((stop.collections, stop.pause_ns, stop.heap_after), (1, Some(770), None));
    }

    fn pool(manager: &str, name: &str, end: u64, ts_ns: u64, used: u64) -> Event {
        Event::Pool(Box::new(pool_event {
            at: state_event { end, ts_ns, heap_used: used, ..Default::default() },
            used,
            manager: chars::<u8>(manager).map(|b| b as _),
            pool: chars::<u8>(name).map(|b| b as _),
            ..Default::default()
        }))
    }

    #[test]
    fn a_cycle_ends_with_its_last_pool() {
        let jvm = jvm();
        let mut cycles = Assembler::new(true);
        let manager = "ZGC Minor Cycles";
        assert!(cycles.process_event(&pool(manager, "Young", 0, 10, 90), &jvm).is_none());
        assert!(cycles.process_event(&pool(manager, "Old", 0, 11, 5), &jvm).is_none());
        assert!(cycles.process_event(&pool(manager, "Young", 1, 50, 20), &jvm).is_none());
        let record = cycles.process_event(&pool(manager, "Old", 1, 51, 6), &jvm);
        let Some(Record::Cycle(cycle)) = record else { panic!("{record:?}") };
        assert_eq!((cycle.ts_ns, cycle.duration_ns), (10, 41));
        let pools = cycle.pools.unwrap();
        assert_eq!((pools[0].before, pools[0].after), (90, Some(20)));
        assert_eq!((pools[1].before, pools[1].after), (5, Some(6)));
    }

    #[test]
    fn pools_are_attached_only_to_the_next_stop() {
        let jvm = jvm();
        let mut assembler = Assembler::new(true);
        // The first two events belong to an earlier stop, which was lost.
        for (end, ts_ns, used) in [(0, 10, 99), (1, 20, 10), (0, 140, 90), (1, 150, 0)] {
            assert!(
                assembler.process_event(&pool("Copy", "Eden", end, ts_ns, used), &jvm).is_none()
            );
        }
        let pause = stop_event { gc_pairs: 1, gauged: 1, after: [1, 0, 0, 0], ..stop() };
        let pause = Event::Stop(Box::new(pause));
        for expected in [Some((90, Some(0))), None] {
            let record = assembler.process_event(&pause, &jvm);
            let Some(Record::Pause(stop)) = record else { panic!("{record:?}") };
            let pools = stop.pools.unwrap();
            assert_eq!(pools.first().map(|pool| (pool.before, pool.after)), expected);
        }
    }

    #[test]
    fn number_of_pools_without_end_is_limited() {
        let jvm = jvm();
        let mut assembler = Assembler::new(true);
        for i in 0..10_000 {
            let _ = assembler.process_event(&pool("Copy", &format!("p{i}"), 0, i, 1), &jvm);
            let _ = assembler.process_event(&pool(&format!("{i} Cycles"), "p", 0, i, 1), &jvm);
        }
        assert!(assembler.stop_pools.len() <= 2 * MAX_OPEN && assembler.cycles.len() <= MAX_OPEN);
    }
}

//! One traced JVM: what it is, what it has done so far.

use std::{
    cell::RefCell,
    collections::HashMap,
    time::{Duration, Instant},
};

use libjvmprobe::{
    Result,
    bpf::probes::Links,
    follow::Stops,
    hotspot::{Collector, HotSpot},
    own::remark,
    process::{Fate, Target},
};

use crate::{
    assemble::{self, Assembler},
    event::Event,
    record::{Lost, Record},
    summary::{JvmName, Totals},
};

/// A JVM under observation.
pub struct Jvm {
    /// The process.
    pub target: Target,
    identity: Identity,
    assembler: Assembler,
    totals: Totals,
    lost: u64,
    /// Stops that began earlier were not seen whole.
    since_ns: u64,
    /// Until when to ask again what HotSpot did not tell yet.
    ask_until: Instant,
    /// Whether it was stopped through all of the interval.
    pub stops: Stops,
    /// Attachments that are this JVM's alone.
    _links: Option<Links>,
}

/// A JVM has set itself up within a few seconds; one with a very large heap takes longer.
const SETTING_UP: Duration = Duration::from_secs(60);

/// HotSpot has about a hundred operations.
const MAX_OPERATIONS: usize = 512;

/// What the assembler asks for, apart from it so that both can be borrowed.
struct Identity {
    pid: u32,
    /// Unknown until the JVM has set itself up; or why it is.
    hotspot: Result<HotSpot>,
    /// Names of operations by number and by vtable, looked up once.
    numbered: RefCell<HashMap<u64, Option<String>>>,
    vtables: RefCell<HashMap<u64, Option<String>>>,
}

impl Jvm {
    /// Starts observing; `links` go with it.
    pub fn new(
        target: Target,
        hotspot: Result<HotSpot>,
        since_ns: u64,
        totals: Totals,
        keep_pools: bool,
        links: Option<Links>,
    ) -> Self {
        let identity = Identity {
            pid: target.pid().0,
            hotspot,
            numbered: RefCell::default(),
            vtables: RefCell::default(),
        };
        Self {
            stops: Stops::new(&target.process),
            target,
            identity,
            assembler: Assembler::new(keep_pools),
            totals,
            lost: 0,
            since_ns,
            ask_until: Instant::now() + SETTING_UP,
            _links: links,
        }
    }

    /// What HotSpot tells of itself, once it does.
    pub fn hotspot(&self) -> Option<&HotSpot> {
        self.identity.hotspot()
    }

    /// Asks a JVM that was still starting up what it tells by now; returns that
    /// if there is anything new.
    pub fn learn_more(&mut self) -> Option<&HotSpot> {
        if self.hotspot().is_some_and(|h| h.is_set_up) || Instant::now() > self.ask_until {
            return None;
        }
        match &mut self.identity.hotspot {
            Ok(hotspot) => hotspot.look_again(),
            Err(_) => {
                self.identity.hotspot = HotSpot::read(&self.target);
                if let Err(error) = &self.identity.hotspot {
                    let pid = self.identity.pid;
                    remark(|| format!("process {pid} does not tell what it is: {error}"));
                }
            }
        }
        self.hotspot()
    }

    /// Takes an event; returns the record that it completes, already counted.
    pub fn take(&mut self, event: &Event) -> Option<Record> {
        if matches!(event, Event::Stop(stop) if stop.begin_ns < self.since_ns) {
            return None;
        }
        let record = self.assembler.take(event, &self.identity)?;
        match &record {
            Record::Pause(stop) | Record::Safepoint(stop) => self.totals.stop(stop),
            Record::Cycle(cycle) => self.totals.cycle(cycle.duration_ns),
            Record::Summary(_) | Record::Lost(_) => {}
        }
        Some(record)
    }

    /// Compares the kernel's count of lost events with the last one.
    pub fn note_lost(&mut self, so_far: u64, now: String) -> Option<Record> {
        let events = so_far.saturating_sub(self.lost);
        self.lost = so_far;
        self.totals.lost(events);
        let lost = Lost { time: now, pid: self.identity.pid, events };
        (events > 0).then_some(Record::Lost(lost))
    }

    /// Takes what the kernel has counted as lost so far for what was lost before.
    pub fn forgive(&mut self, lost: u64) {
        self.lost = lost;
    }

    /// The totals up to now.
    pub fn summary(&self, now_ns: u64) -> Record {
        let hotspot = self.hotspot();
        let name = JvmName {
            pid: self.identity.pid,
            collector: assemble::Jvm::collector(&self.identity),
            version: hotspot.map(|h| h.version.clone()),
        };
        let frees_in_pauses = hotspot.is_some_and(|h| !h.collector.is_concurrent());
        Record::Summary(Box::new(self.totals.summary(now_ns, &name, frees_in_pauses)))
    }

    /// Begins the next interval.
    pub fn next_interval(&mut self, now_ns: u64) {
        self.totals = self.totals.next(now_ns);
    }

    /// What has become of the process.
    pub fn fate(&self) -> Fate {
        self.target.process.fate()
    }
}

impl Identity {
    fn hotspot(&self) -> Option<&HotSpot> {
        self.hotspot.as_ref().ok()
    }
}

impl assemble::Jvm for Identity {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn collector(&self) -> &'static str {
        self.hotspot().map_or(Collector::Unknown, |h| h.collector).name()
    }

    fn operation_named(&self, op_type: u64) -> Option<String> {
        once(&self.numbered, op_type, || self.hotspot()?.operation_named(op_type))
    }

    fn operation_of(&self, vtable: u64) -> Option<String> {
        once(&self.vtables, vtable, || self.hotspot()?.operation_of(vtable))
    }

    fn collections(
        &self,
        op: Option<&str>,
        before: &[u64; 4],
        after: &[u64; 4],
    ) -> Option<(u64, bool)> {
        self.hotspot()?.collections(op, before, after)
    }

    fn settles(&self, op: Option<&str>, collections: u64) -> bool {
        self.hotspot().is_some_and(|h| h.settles(op, collections))
    }
}

fn once(
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
    fn only_so_many_operations_are_looked_up() {
        let known = RefCell::default();
        let mut looked_up = 0;
        for key in 0..100_000 {
            let name = once(&known, key, || {
                looked_up += 1;
                Some(key.to_string())
            });
            assert_eq!(name.is_some(), key < MAX_OPERATIONS as u64);
        }
        assert_eq!((looked_up, known.borrow().len()), (MAX_OPERATIONS, MAX_OPERATIONS));
        assert_eq!(once(&known, 7, || None).as_deref(), Some("7"));
    }
}

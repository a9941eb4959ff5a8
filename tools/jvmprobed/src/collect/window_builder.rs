//! Builds 15-second windows out of the batches that the tracers deliver.

use std::{collections::BTreeMap, mem, sync::Arc};

use libjvmprobe::{stack::profile::Profile, trace::pauses::record::Record};

use crate::{
    clock::{Intervals, Now},
    collect::{batch::Batch, jvms::Jvms},
    metrics::{SharedTotals, figures::Figures},
    stops::AllStops,
    window::{Identity, Taken, Window},
};

/// Maximum memory for the records of stops in a window, in bytes: about 10,000 records. If a window has more
/// stops, the longest are kept one by one and the others as sums.
const MAX_STOPS: usize = 4 << 20;

/// Data received since the last window.
#[derive(Debug)]
pub struct WindowBuilder {
    book: SharedTotals,
    intervals: Intervals,
    taken: BTreeMap<u32, Taken>,
    stops: AllStops<u32>,
}

impl WindowBuilder {
    /// Starts the first window, without data.
    pub fn new(book: SharedTotals) -> Self {
        let stops = AllStops::new(MAX_STOPS);
        Self { book, intervals: Intervals::start(Now::read()), taken: BTreeMap::new(), stops }
    }

    /// Ends the current window, which lasts from the previous call to now, and enters it into the totals.
    /// `left_out` names the measures that were not collected in it, and `cpu_ns` is the CPU time that each
    /// JVM has used in it, in nanoseconds.
    pub fn cut(
        &mut self,
        left_out: impl Iterator<Item = &'static str>,
        cpu_ns: Vec<(Arc<Identity>, u64)>,
    ) -> Window {
        let (begin_ns, end_ns) = self.intervals.next(Now::read());
        for (who, ns) in cpu_ns {
            match self.taken.get_mut(&who.pid) {
                Some(taken) => taken.cpu_ns = (taken.who == who).then_some(ns),
                // No tracer delivered data of this JVM, for example because sampling is off.
                None if ns > 0 => {
                    let taken = Taken { cpu_ns: Some(ns), ..new(&who) };
                    self.taken.insert(who.pid, taken);
                }
                None => {}
            }
        }
        let mut jvms: Vec<_> = mem::take(&mut self.taken).into_values().collect();
        for taken in &mut jvms {
            if let Some(stops) = self.stops.take(&taken.who.pid) {
                taken.pauses = stops.into_records(taken.who.pid);
            }
            let figures = Figures::of(taken);
            self.book.lock().add(&taken.who, &figures);
        }
        let left_out = left_out.map(|what| (what.to_owned(), end_ns - begin_ns)).collect();
        Window { begin_ns, end_ns, jvms, left_out }
    }

    /// Adds a batch to the current window.
    pub fn take(&mut self, piece: Batch, jvms: &mut Jvms) {
        match piece {
            Batch::Samples { profiles, lost_stacks, lost_code } => {
                let mut book = self.book.lock();
                book.lose("stacks", lost_stacks);
                book.lose("code", lost_code);
                book.lose("samples", profiles.first().map_or(0, |profile| profile.lost));
                for profile in &profiles {
                    book.take(profile.measure.name(), profile.sampled());
                }
                drop(book);
                for (pid, profile) in profiles.into_iter().flat_map(Profile::by_process) {
                    self.keep(jvms, pid, |taken| taken.profiles.push(profile));
                }
            }
            Batch::Allocated { pid, profile } => {
                let profile = profile.filter(|profile| !profile.samples.is_empty());
                self.keep(jvms, pid, |taken| taken.profiles.extend(profile));
            }
            Batch::Pause(record) => self.stop(jvms, record),
            Batch::Cost { tracer, cost } => {
                self.book.lock().spend(tracer, &cost);
                // The cost to processes that are not traced counts in the sum only.
                if let Some(who) = jvms.known(cost.pid) {
                    let figures = Figures { cost: vec![(tracer, cost.ns)], ..Figures::default() };
                    self.book.lock().add(&who, &figures);
                }
            }
            Batch::Limited { reason, tenant, count } => {
                self.book.lock().limit(reason, &tenant, count);
            }
            Batch::Lost { what, events } => self.book.lock().lose(what, events),
            Batch::Begun | Batch::Ended { .. } => {}
        }
    }

    /// Adds a record of a stop.
    fn stop(&mut self, jvms: &mut Jvms, record: Box<Record>) {
        let (pid, mut tenant) = (record.pid(), None);
        // Creates the JVM's entry in the window, and finds its tenant.
        self.keep(jvms, pid, |taken| tenant = Some(taken.who.tenant()));
        let Some(tenant) = tenant else { return };
        if let Record::Limited(limited) = &*record {
            self.book.lock().limit("stops", &tenant, limited.count());
        }
        for (pid, records) in self.stops.add(&pid, &tenant, record) {
            let of = self.taken.get(&pid).map_or(Arc::clone(&tenant), |taken| taken.who.tenant());
            self.book.lock().limit("stops", &of, records);
        }
    }

    fn keep(&mut self, jvms: &mut Jvms, pid: u32, keep: impl FnOnce(&mut Taken)) {
        let Some(who) = jvms.who(pid) else { return };
        let taken = self.taken.entry(pid).or_insert_with(|| new(&who));
        // Another JVM may have this PID by now.
        if taken.who != who {
            *taken = new(&who);
            self.stops.take(&pid);
        }
        keep(taken);
    }
}

fn new(who: &Arc<Identity>) -> Taken {
    Taken { who: Arc::clone(who), ..Taken::default() }
}

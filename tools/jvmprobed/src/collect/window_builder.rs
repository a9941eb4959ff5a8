//! Builds 15-second windows out of the batches that the tracers deliver.

use std::{collections::BTreeMap, mem, sync::Arc};

use libjvmprobe::{stack::profile::Profile, trace::pauses::record::Record};

use crate::{
    clock::{Intervals, Now},
    collect::{batch::Batch, jvms::Jvms},
    metrics::{SharedTotals, figures::Figures},
    stops::AllStops,
    window::{Identity, JvmData, Window},
};

/// Maximum memory for the records of stops in a window, in bytes: about 10,000 records. If a window has more
/// stops, the longest are kept one by one and the others as sums.
const MAX_STOPS: usize = 4 << 20;

/// Data received since the last window.
#[derive(Debug)]
pub struct WindowBuilder {
    totals: SharedTotals,
    intervals: Intervals,
    jvm_data: BTreeMap<u32, JvmData>,
    stops: AllStops<u32>,
}

impl WindowBuilder {
    /// Starts the first window, without data.
    pub fn new(totals: SharedTotals) -> Self {
        let stops = AllStops::new(MAX_STOPS);
        Self { totals, intervals: Intervals::start(Now::read()), jvm_data: BTreeMap::new(), stops }
    }

    /// Ends the current window, which lasts from the previous call to now, and adds it to the totals.
    /// `left_out` names the measures that were not collected in it, and `cpu_ns` is the CPU time that each
    /// JVM has used in it, in nanoseconds.
    pub fn finish(
        &mut self,
        left_out: impl Iterator<Item = &'static str>,
        cpu_ns: Vec<(Arc<Identity>, u64)>,
    ) -> Window {
        let (begin_ns, end_ns) = self.intervals.next(Now::read());
        for (identity, ns) in cpu_ns {
            match self.jvm_data.get_mut(&identity.pid) {
                Some(jvm_data) => jvm_data.cpu_ns = (jvm_data.identity == identity).then_some(ns),
                // No tracer delivered data of this JVM, for example because sampling is off.
                None if ns > 0 => {
                    let jvm_data = JvmData { cpu_ns: Some(ns), ..new(&identity) };
                    self.jvm_data.insert(identity.pid, jvm_data);
                }
                None => {}
            }
        }
        let mut jvms: Vec<_> = mem::take(&mut self.jvm_data).into_values().collect();
        for jvm_data in &mut jvms {
            if let Some(stops) = self.stops.take(&jvm_data.identity.pid) {
                jvm_data.pauses = stops.into_records(jvm_data.identity.pid);
            }
            let figures = Figures::of(jvm_data);
            self.totals.lock().add(&jvm_data.identity, &figures);
        }
        let left_out = left_out.map(|what| (what.to_owned(), end_ns - begin_ns)).collect();
        Window { begin_ns, end_ns, jvms, left_out }
    }

    /// Adds a batch to the current window.
    pub fn add(&mut self, batch: Batch, jvms: &mut Jvms) {
        match batch {
            Batch::Samples { profiles, lost_stacks, lost_code } => {
                let mut totals = self.totals.lock();
                totals.add_lost("stacks", lost_stacks);
                totals.add_lost("code", lost_code);
                totals.add_lost("samples", profiles.first().map_or(0, |profile| profile.lost));
                for profile in &profiles {
                    totals.add_recorded(profile.measure.name(), profile.sampled());
                }
                drop(totals);
                for (pid, profile) in profiles.into_iter().flat_map(Profile::by_process) {
                    self.update(jvms, pid, |jvm_data| jvm_data.profiles.push(profile));
                }
            }
            Batch::Allocated { pid, profile } => {
                let profile = profile.filter(|profile| !profile.samples.is_empty());
                self.update(jvms, pid, |jvm_data| jvm_data.profiles.extend(profile));
            }
            Batch::Pause(record) => self.add_stop(jvms, record),
            Batch::Cost { tracer, cost } => {
                self.totals.lock().add_probe_cost(tracer, &cost);
                // The cost to processes that are not traced is included only in the sum over all processes.
                if let Some(identity) = jvms.known(cost.pid) {
                    let figures = Figures { cost: vec![(tracer, cost.ns)], ..Figures::default() };
                    self.totals.lock().add(&identity, &figures);
                }
            }
            Batch::Limited { reason, tenant, count } => {
                self.totals.lock().add_limited(reason, &tenant, count);
            }
            Batch::Lost { what, events } => self.totals.lock().add_lost(what, events),
            Batch::Started | Batch::Ended { .. } => {}
        }
    }

    /// Adds a record of a stop.
    fn add_stop(&mut self, jvms: &mut Jvms, record: Box<Record>) {
        let (pid, mut tenant) = (record.pid(), None);
        // Creates the JVM's entry in the window, and finds its tenant.
        self.update(jvms, pid, |jvm_data| tenant = Some(jvm_data.identity.tenant()));
        let Some(tenant) = tenant else { return };
        if let Record::Limited(limited) = &*record {
            self.totals.lock().add_limited("stops", &tenant, limited.count());
        }
        for (pid, records) in self.stops.add(&pid, &tenant, record) {
            let owner = self
                .jvm_data
                .get(&pid)
                .map_or(Arc::clone(&tenant), |jvm_data| jvm_data.identity.tenant());
            self.totals.lock().add_limited("stops", &owner, records);
        }
    }

    fn update(&mut self, jvms: &mut Jvms, pid: u32, update: impl FnOnce(&mut JvmData)) {
        let Some(identity) = jvms.identity(pid) else { return };
        let jvm_data = self.jvm_data.entry(pid).or_insert_with(|| new(&identity));
        // Another JVM may have this PID by now.
        if jvm_data.identity != identity {
            *jvm_data = new(&identity);
            self.stops.take(&pid);
        }
        update(jvm_data);
    }
}

fn new(identity: &Arc<Identity>) -> JvmData {
    JvmData { identity: Arc::clone(identity), ..JvmData::default() }
}

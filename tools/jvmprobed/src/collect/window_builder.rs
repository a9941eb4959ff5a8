//! Builds windows out of the batches that the tracers deliver.

use std::{collections::BTreeMap, mem, sync::Arc};

use libjvmprobe::{
    bpf::clock::monotonic_ns,
    process::{CpuTime, cgroup::tenant_of},
    stack::profile::{Measure, Profile},
    sys::limited,
    trace::pauses::record::Record,
};

use crate::{
    clock::{Intervals, Now},
    collect::{
        batch::{Batch, Delivery},
        jvms::Jvms,
        saving::Probes,
    },
    metrics::{
        SharedTotals,
        figures::{Figures, Waited},
    },
    stops::AllStops,
    thread_dump::ThreadDump,
    window::{HostTicks, Identity, JvmData, Window},
};

/// Maximum memory for the records of stops in a window, in bytes: about 10,000 records. If a window has more
/// stops, the longest are kept one by one and the others as sums.
const MAX_STOPS: usize = 4 << 20;

/// Maximum number of trace contexts of each profile of a JVM in a window: 24 kB in a file. Those with the largest counts
/// are kept.
const MAX_SPANS: usize = 1024;

/// Number of hits of a tracer's probes by processes that are not traced from which on the tenant of the last one is named:
/// some thousand per second in a window of 15 seconds. A JVM that starts, or that a rule excludes, causes fewer.
const MANY_UNTRACED_HITS: u64 = 100_000;

/// Builds windows. A window is open until [`close`](Self::close), and then waits for the data of its interval that the
/// tracers deliver later.
#[derive(Debug)]
pub struct WindowBuilder {
    totals: SharedTotals,
    intervals: Intervals,
    open: Data,
    closed: Option<Closed>,
    left_out: LeftOut,
    probes: Probes,
}

/// Data of a window.
#[derive(Debug)]
struct Data {
    /// Begin on `CLOCK_MONOTONIC`, in nanoseconds.
    begin_ns: u64,
    jvm_data: BTreeMap<u32, JvmData>,
    stops: AllStops<u32>,
    is_closed: bool,
}

impl Data {
    fn new(begin_ns: u64) -> Self {
        let (jvm_data, stops) = (BTreeMap::new(), AllStops::new(MAX_STOPS));
        Self { begin_ns, jvm_data, stops, is_closed: false }
    }
}

/// A window whose interval is over.
#[derive(Debug)]
struct Closed {
    data: Data,
    /// Begin and end, in nanoseconds since 1970.
    interval: (u64, u64),
    left_out: BTreeMap<String, u64>,
    cpu_times: Vec<(Arc<Identity>, CpuTime)>,
    host_ticks: Option<HostTicks>,
}

/// Time during which measures are not collected.
#[derive(Debug, Default)]
struct LeftOut {
    /// Measures that are not collected now. The value is an instant, as time since boot in nanoseconds. The
    /// time before this instant is already included in `times`.
    since_ns: BTreeMap<&'static str, u64>,
    /// For how long each measure was not collected in the open window, in nanoseconds. For a measure that is
    /// not collected now, the time after `since_ns` is still missing.
    times: BTreeMap<String, u64>,
}

impl LeftOut {
    /// Sets which measures are collected from now on.
    fn set(&mut self, now_ns: u64, collected: &[(&'static str, bool)]) {
        for (&what, since_ns) in &mut self.since_ns {
            *self.times.entry(what.into()).or_default() += now_ns.saturating_sub(*since_ns);
            *since_ns = now_ns;
        }
        let is_left_out = |what| collected.contains(&(what, false));
        self.since_ns.retain(|&what, _| is_left_out(what));
        for &(what, _) in collected.iter().filter(|(_, is_collected)| !is_collected) {
            self.since_ns.entry(what).or_insert(now_ns);
        }
    }

    /// Ends a window. Returns for how long each measure was not collected in it, in nanoseconds.
    fn close(&mut self, now_ns: u64) -> BTreeMap<String, u64> {
        let left_out: Vec<_> = self.since_ns.keys().map(|&what| (what, false)).collect();
        self.set(now_ns, &left_out);
        self.times.retain(|_, ns| *ns > 0);
        mem::take(&mut self.times)
    }
}

/// Returns the number of samples, waits or allocated objects in a profile.
fn events(profile: &Profile) -> u64 {
    match profile.measure {
        Measure::Allocation => profile.samples.iter().map(|sample| sample.occurrences).sum(),
        _ => profile.sampled(),
    }
}

impl WindowBuilder {
    /// Begins the first window, without data.
    pub fn new(totals: SharedTotals) -> Self {
        let (intervals, open) = (Intervals::start(Now::read()), Data::new(monotonic_ns()));
        let (left_out, probes) = (LeftOut::default(), Probes::default());
        Self { totals, intervals, open, closed: None, left_out, probes }
    }

    /// Returns the cost of the probes so far that the daemon is charged with.
    pub fn probes(&self) -> Probes {
        self.probes
    }

    /// Sets which configured measures are collected from now on.
    pub fn set_collected(&mut self, collected: &[(&'static str, bool)]) {
        self.left_out.set(Now::read().boot_ns, collected);
    }

    /// Replaces the identity of a JVM in all windows that are not finished, after more has become known about this JVM.
    pub fn replace_identity(&mut self, old: &Arc<Identity>, new: &Arc<Identity>) {
        let replace = |identity: &mut Arc<Identity>| {
            if *identity == *old {
                *identity = Arc::clone(new);
            }
        };
        let closed_data = self.closed.as_mut().map(|closed| &mut closed.data);
        for data in [Some(&mut self.open), closed_data].into_iter().flatten() {
            let jvm_data = data.jvm_data.get_mut(&old.pid);
            jvm_data.into_iter().for_each(|jvm_data| replace(&mut jvm_data.identity));
        }
        let closed = self.closed.iter_mut();
        let cpu_times = closed.flat_map(|closed| &mut closed.cpu_times);
        cpu_times.for_each(|(identity, _)| replace(identity));
    }

    /// Ends the interval of the open window at `end_ns` on `CLOCK_MONOTONIC`, which must not be in the future, and begins
    /// the next window there. `cpu_times` is the CPU time that each JVM has used in the interval, and `host_ticks` that of
    /// the host. The previous window must already be finished.
    pub fn close(
        &mut self,
        end_ns: u64,
        cpu_times: Vec<(Arc<Identity>, CpuTime)>,
        host_ticks: Option<HostTicks>,
    ) {
        let end_ns = end_ns.max(self.open.begin_ns);
        let data = mem::replace(&mut self.open, Data::new(end_ns));
        let data = Data { is_closed: true, ..data };
        let now = Now::read().before(monotonic_ns().saturating_sub(end_ns));
        let interval = self.intervals.next(now);
        let left_out = self.left_out.close(now.boot_ns);
        self.closed = Some(Closed { data, interval, left_out, cpu_times, host_ticks });
    }

    /// Returns whether a closed window waits for data.
    pub fn has_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Completes the closed window, and adds it to the totals.
    pub fn finish(&mut self) -> Option<Window> {
        let Closed { mut data, interval: (begin_ns, end_ns), left_out, cpu_times, host_ticks } =
            self.closed.take()?;
        for (identity, cpu_time) in cpu_times {
            let (ns, system_ns) = (cpu_time.total_ns(), cpu_time.system_ns);
            match data.jvm_data.get_mut(&identity.pid) {
                Some(jvm_data) => {
                    let is_same = jvm_data.identity == identity;
                    jvm_data.cpu_ns = is_same.then_some(ns);
                    jvm_data.system_cpu_ns = is_same.then_some(system_ns);
                }
                // No tracer delivered data of this JVM, for example because sampling is off.
                None if ns > 0 => {
                    let (cpu_ns, system_cpu_ns) = (Some(ns), Some(system_ns));
                    let jvm_data = JvmData { cpu_ns, system_cpu_ns, ..new(&identity) };
                    data.jvm_data.insert(identity.pid, jvm_data);
                }
                None => {}
            }
        }
        let mut jvms: Vec<_> = data.jvm_data.into_values().collect();
        for jvm_data in &mut jvms {
            if let Some(stops) = data.stops.take(&jvm_data.identity.pid) {
                jvm_data.pauses = stops.into_records(jvm_data.identity.pid);
            }
            let figures = Figures::of(jvm_data);
            self.totals.lock().add(&jvm_data.identity, &figures);
        }
        Some(Window { begin_ns, end_ns, jvms, left_out, host_ticks })
    }

    /// Returns the window to which data from the given time belongs. Data whose window is already finished, because its tracer
    /// was late, belongs to the earliest one that is not.
    fn window_at(&mut self, at_ns: u64) -> &mut Data {
        match &mut self.closed {
            Some(closed) if at_ns < self.open.begin_ns => &mut closed.data,
            _ => &mut self.open,
        }
    }

    /// Adds a batch to the window of its time.
    pub fn add(&mut self, delivery: Delivery, jvms: &mut Jvms) {
        let Delivery { at_ns, batch } = delivery;
        match batch {
            Batch::Samples { profiles, lost_stacks, lost_code } => {
                let mut totals = self.totals.lock();
                totals.add_lost("stacks", lost_stacks);
                totals.add_lost("code", lost_code);
                totals.add_lost("samples", profiles.first().map_or(0, |profile| profile.lost));
                for profile in &profiles {
                    if profile.without_span > 0 {
                        totals.add_lost("spans", profile.without_span);
                    }
                    totals.add_recorded(profile.measure.name(), profile.sampled());
                }
                drop(totals);
                for (pid, profile) in profiles.into_iter().flat_map(Profile::by_process) {
                    self.add_profile(at_ns, jvms, pid, profile, "samples");
                }
            }
            Batch::Allocated { pid, profile } => {
                self.add_profile(at_ns, jvms, pid, profile.unwrap_or_default(), "allocations");
            }
            Batch::Waits { pid, profile, kinds } => {
                self.add_waits(at_ns, jvms, pid, profile, kinds);
            }
            Batch::Threads(dump) => self.add_dump(at_ns, jvms, *dump),
            Batch::Pause(record) => self.add_stop(at_ns, jvms, record),
            Batch::Cost { tracer, cost } => {
                self.totals.lock().add_probe_cost(tracer, &cost);
                self.probes.add(tracer, &cost);
                if let Some(pid) = cost.last_pid.filter(|_| cost.hits >= MANY_UNTRACED_HITS) {
                    log::debug!(
                        "processes that are not traced hit the probes of the tracer {tracer} {} times; the \
                         last one was process {pid}",
                        cost.hits
                    );
                    limited::add("untraced-hits", &tenant_of(pid), cost.hits);
                }
                // The cost to processes that are not traced is included only in the sum over all processes.
                if let Some(identity) = jvms.known(cost.pid) {
                    let figures = Figures { cost: vec![(tracer, cost.ns)], ..Figures::default() };
                    self.totals.lock().add(&identity, &figures);
                }
            }
            Batch::Lost { kind, events } => self.totals.lock().add_lost(kind, events),
            Batch::Started | Batch::Reported { .. } | Batch::Ended { .. } => {}
        }
    }

    /// Adds a profile of a JVM to the window of `at_ns`. If the JVM ended too long ago to be known, counts the profile's events
    /// as lost events of kind `what`.
    fn add_profile(
        &mut self,
        at_ns: u64,
        jvms: &mut Jvms,
        pid: u32,
        mut profile: Profile,
        what: &'static str,
    ) {
        let Some(identity) = jvms.identity(pid) else {
            return self.add_unassigned(events(&profile), what);
        };
        let before = profile.without_span;
        profile.limit_spans(MAX_SPANS);
        if profile.without_span > before {
            let dropped = profile.without_span - before;
            limited::add("spans", &identity.tenant(), dropped);
        }
        // A JVM without samples is part of the window, too.
        let is_empty = profile.samples.is_empty();
        self.window_at(at_ns).of(&identity).profiles.extend((!is_empty).then_some(profile));
    }

    /// Counts events without a known JVM as lost.
    fn add_unassigned(&self, events: u64, what: &'static str) {
        if events > 0 {
            self.totals.lock().add_lost(what, events);
        }
    }

    /// Adds the waits of a JVM.
    fn add_waits(
        &mut self,
        at_ns: u64,
        jvms: &mut Jvms,
        pid: u32,
        profile: Profile,
        kinds: Vec<Waited>,
    ) {
        let times = kinds.iter().map(|waited| waited.times).sum();
        if let Some(identity) = jvms.identity(pid) {
            let mut totals = self.totals.lock();
            totals.add_recorded(profile.measure.name(), times);
            totals.add(&identity, &Figures { waits: kinds, ..Figures::default() });
        }
        self.add_profile(at_ns, jvms, pid, profile, "waits");
    }

    /// Adds a thread dump.
    fn add_dump(&mut self, at_ns: u64, jvms: &mut Jvms, dump: ThreadDump) {
        let Some(identity) = jvms.identity(dump.pid) else { return };
        log::warn!(
            "{} (PID {}): {}; see `jvmprobed show --thread-dumps --jvm {}`",
            identity.name,
            dump.pid,
            dump.describe(),
            dump.pid
        );
        self.totals.lock().add_thread_dump(dump.cause);
        self.window_at(at_ns).of(&identity).dumps.push(dump);
    }

    /// Adds a record of a stop.
    fn add_stop(&mut self, at_ns: u64, jvms: &mut Jvms, record: Box<Record>) {
        let pid = record.pid();
        let is_event =
            matches!(*record, Record::Pause(_) | Record::Safepoint(_) | Record::Cycle(_));
        let Some(identity) = jvms.identity(pid) else {
            let limited = if let Record::Limited(limited) = &*record { limited.count() } else { 0 };
            return self.add_unassigned(limited + u64::from(is_event), "pauses");
        };
        let tenant = identity.tenant();
        if let Record::Limited(limited) = &*record {
            limited::add("stops", &tenant, limited.count());
        }
        let data = self.window_at(at_ns);
        data.of(&identity);
        let dropped = data.stops.add(&pid, &tenant, record);
        let owner = |pid: u32| {
            let jvm_data = data.jvm_data.get(&pid);
            jvm_data.map_or_else(|| Arc::clone(&tenant), |jvm_data| jvm_data.identity.tenant())
        };
        for (pid, records) in dropped {
            limited::add("stops", &owner(pid), records);
        }
    }
}

impl Data {
    /// Returns the data of a JVM.
    fn of(&mut self, identity: &Arc<Identity>) -> &mut JvmData {
        let pid = identity.pid;
        // If another JVM had this PID earlier in the open window, its data is dropped. Data of a closed window belongs to
        // the JVM that had the PID then.
        let is_other = |jvm_data: &JvmData| jvm_data.identity != *identity;
        if !self.is_closed && self.jvm_data.get(&pid).is_some_and(is_other) {
            self.jvm_data.remove(&pid);
            self.stops.take(&pid);
        }
        self.jvm_data.entry(pid).or_insert_with(|| new(identity))
    }
}

fn new(identity: &Arc<Identity>) -> JvmData {
    JvmData { identity: Arc::clone(identity), ..JvmData::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: &str = "cpu";

    #[test]
    fn left_out_time_is_split_at_the_end_of_a_window() {
        let mut left_out = LeftOut::default();
        left_out.set(100, &[(CPU, true)]);
        left_out.set(130, &[(CPU, false), ("off-cpu", true)]);
        left_out.set(140, &[(CPU, false), ("off-cpu", false)]);
        assert_eq!(left_out.close(200), [(CPU.into(), 70), ("off-cpu".into(), 60)].into());
        left_out.set(210, &[(CPU, true), ("off-cpu", false)]);
        assert_eq!(left_out.close(300), [(CPU.into(), 10), ("off-cpu".into(), 100)].into());
        left_out.set(300, &[(CPU, true), ("off-cpu", true)]);
        assert!(left_out.close(400).is_empty());
    }

    #[test]
    fn data_before_a_change_of_the_identity_stays_in_its_window() {
        let mut builder = WindowBuilder::new(SharedTotals::default());
        let identity =
            |name: &str| Arc::new(Identity { pid: 7, name: name.into(), ..Identity::default() });
        let (old, new) = (identity("Main"), identity("shop"));
        let profile = |builder: &mut WindowBuilder, identity| {
            builder.open.of(identity).profiles.push(Profile::default());
        };
        profile(&mut builder, &old);
        let cpu_time = CpuTime { user_ns: 3, system_ns: 2 };
        builder.close(monotonic_ns(), vec![(Arc::clone(&old), cpu_time)], None);
        profile(&mut builder, &old);
        builder.replace_identity(&old, &new);
        profile(&mut builder, &new);
        for (profiles, cpu_ns) in [(1, Some(5)), (2, None)] {
            let window = builder.finish().unwrap();
            let [jvm_data] = &window.jvms[..] else { panic!("{window:?}") };
            assert_eq!((&jvm_data.identity, jvm_data.cpu_ns), (&new, cpu_ns));
            assert_eq!(jvm_data.profiles.len(), profiles);
            builder.close(monotonic_ns(), Vec::new(), None);
        }
    }

    #[test]
    fn data_belongs_to_the_window_of_its_time() {
        let mut builder = WindowBuilder::new(SharedTotals::default());
        let first = builder.open.begin_ns;
        assert_eq!(builder.window_at(first - 1).begin_ns, first);
        builder.close(monotonic_ns(), Vec::new(), None);
        let second = builder.open.begin_ns;
        // Data of the first window arrives after its end.
        for (at_ns, begin_ns) in [(first, first), (second - 1, first), (second, second)] {
            assert_eq!(builder.window_at(at_ns).begin_ns, begin_ns);
        }
        assert_eq!(builder.window_at(first - 1).begin_ns, first);
        assert!(builder.finish().is_some() && !builder.has_closed());
        // The first window is finished.
        assert_eq!(builder.window_at(second - 1).begin_ns, second);
        assert!(builder.finish().is_none());
    }
}

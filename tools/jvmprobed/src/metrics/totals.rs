//! Totals of all metrics. The totals of a JVM are removed some time after the JVM has ended.
//!
//! The size of the totals is bounded, because the numbers of JVMs, of pairs of operation and cause for each
//! JVM, and of reasons have limits. Values beyond a limit are added to an entry named "other", so that sums
//! stay right.
//!
//! Only a JVM that could be read has series of its own. Tenants share the series fairly ([`FairSlots`]), and each may cause
//! a limited number of new ones per hour ([`Hourly`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use libjvmprobe::{
    bpf::cost::Cost,
    hotspot::memory_pools::MemoryPool,
    sys::{
        fair_slots::{Admission, FairSlots},
        limited,
    },
};

use crate::{
    hourly::{self, Hourly},
    metrics::{
        Sets,
        figures::{DaemonMetrics, Figures, Gauges, Processor, Stop, Waited},
        histogram::Histogram,
        semconv::collections::{Collection, NameAndAction, Namer},
    },
    push::ledger::Ledger,
    store::Counts,
    thread_dump::Cause,
    window::Identity,
};

/// Name of the entry that collects everything beyond a limit.
pub const OTHER: &str = "other";

/// Maximum length of a name in bytes. Longer names are cut.
const MAX_NAME: usize = 128;

/// Age from which on a JVM may get any of the new series of its tenant. Younger JVMs get at most half of them, so that many
/// short-lived JVMs leave series for those that stay.
const MIN_AGE: Duration = Duration::from_secs(60);

/// Maximum number of memory pools of a JVM that have series, over its lifetime. Their names are read from its memory. HotSpot
/// has fewer than 12 pools.
const MAX_POOLS: usize = 16;

/// Time after which the counts of a tenant that is not limited any more make space for those of another tenant.
const KEEP_LIMITED: Duration = Duration::from_secs(3600);

/// Limits on the size of the totals.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of JVMs that have series of their own.
    pub jvms: usize,
    /// Maximum number of pairs of operation and cause for each JVM.
    pub operations: usize,
    /// Maximum number of kinds of recorded data, of reasons for losses, and of reasons for abandoning a JVM.
    pub reasons: usize,
    /// Maximum number of tenants that were limited.
    pub tenants: usize,
    /// Time for which series stay after their JVM has ended.
    pub keep: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            jvms: 500,
            operations: 16,
            reasons: 32,
            tenants: 100,
            keep: Duration::from_secs(300),
        }
    }
}

/// Labels of a JVM's series: its name and its PID. [`OTHER`] has PID 0.
pub type Key = (Arc<str>, u32);

/// An operation and its cause, which is empty if there is none.
pub type Operation = (Arc<str>, Arc<str>);

/// Totals of one operation.
#[derive(Clone, Debug, Default)]
pub struct OperationTotals {
    /// Durations for which the application was stopped.
    pub stopped: Histogram,
    /// Number of collections.
    pub collections: u64,
}

impl OperationTotals {
    /// Returns whether there was a stop. A cycle of a concurrent collector is not a stop.
    pub fn has_stops(&self) -> bool {
        self.stopped.count() > 0
    }
}

/// Totals of one JVM.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Identity of the JVM; `None` for the entry of all JVMs beyond the limit.
    pub identity: Option<Arc<Identity>>,
    /// Totals by operation and cause.
    pub operations: BTreeMap<Operation, OperationTotals>,
    /// Time to safepoint of all operations.
    pub ttsp: Histogram,
    /// Time for which stops waited for a CPU, in nanoseconds; `None` if it is unknown for all of them.
    pub cpu_wait_ns: Option<u64>,
    /// CPU time by kind of code.
    pub processor: Processor,
    /// Bytes allocated.
    pub allocated: u64,
    /// Waits of Java threads, by kind.
    pub waits: BTreeMap<&'static str, Waited>,
    /// CPU time that probes took from the JVM, in nanoseconds, by tracer.
    pub cost: BTreeMap<&'static str, u64>,
    /// Bytes of the heap in use before and after the last collection.
    pub heap: (Option<u64>, Option<u64>),
    /// Durations of collections by name, action and cause, as the JVM's management beans report them.
    pub collections: BTreeMap<(NameAndAction, Arc<str>), Histogram>,
    namer: Namer,
    /// Latest values of its gauges.
    pub gauges: Gauges,
    /// Memory pools that have series: their names, and whether they are part of the heap.
    pools: BTreeSet<(Arc<str>, bool)>,
    ended: Option<Instant>,
}

/// PID and start time of a JVM.
type Holder = (u32, u64);

/// Totals of all metrics.
#[derive(Debug)]
pub struct Totals {
    limits: Limits,
    jvms: BTreeMap<Key, Series>,
    /// JVMs that have series of their own.
    slots: FairSlots<Holder>,
    new_series: Hourly,
    /// The sets of metrics of JVMs that are exported.
    pub sets: Sets,
    /// Metrics of the daemon itself.
    pub own: DaemonMetrics,
    /// Samples and events recorded, by kind.
    pub recorded: BTreeMap<Arc<str>, u64>,
    /// Cost of probes to all processes, by tracer: hits, and CPU time in nanoseconds.
    pub probe_costs: BTreeMap<&'static str, (u64, u64)>,
    /// Samples and events lost, by reason.
    pub lost: BTreeMap<Arc<str>, u64>,
    /// Detail that tenants did not get because they exceeded their share, by reason and tenant.
    pub limited: BTreeMap<(&'static str, Arc<str>), u64>,
    /// Time of the last count of each tenant in `limited`.
    limited_at: BTreeMap<Arc<str>, Instant>,
    /// Thread dumps taken, by cause.
    pub thread_dumps: BTreeMap<Cause, u64>,
    /// JVMs that were not traced, by reason. A tracer that has ended counts as one, with its name as the
    /// reason.
    pub abandoned: BTreeMap<Arc<str>, u64>,
    /// JVMs seen so far.
    pub seen: u64,
    /// Windows passed on to the store and to push targets so far.
    pub windows: u64,
    /// Expositions written so far: at most one a second in each format.
    pub expositions: u64,
    /// Windows that were dropped because the disk was too slow.
    pub dropped_windows: u64,
    /// Counts of the store: windows kept on disk, and windows that could not be written.
    pub store_counts: Counts,
    /// Configured measures by name, each with whether it is collected now.
    pub collected: Vec<(&'static str, bool)>,
    /// Time of each tracer's last report, in nanoseconds since 1970.
    pub last_reports: Vec<(&'static str, u64)>,
    /// Delivery counts of each push target.
    pub targets: Vec<Arc<Ledger>>,
}

impl Totals {
    /// Returns empty totals with these limits.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            jvms: BTreeMap::new(),
            slots: FairSlots::new(limits.jvms),
            new_series: Hourly::default(),
            sets: Sets::default(),
            own: DaemonMetrics::default(),
            recorded: BTreeMap::new(),
            probe_costs: BTreeMap::new(),
            lost: BTreeMap::new(),
            limited: BTreeMap::new(),
            limited_at: BTreeMap::new(),
            thread_dumps: BTreeMap::new(),
            abandoned: BTreeMap::new(),
            seen: 0,
            windows: 0,
            expositions: 0,
            dropped_windows: 0,
            store_counts: Counts::default(),
            collected: Vec::new(),
            last_reports: Vec::new(),
            targets: Vec::new(),
        }
    }

    /// Gives a JVM that could be read series of its own, if it has none and its tenant's share allows it. They begin at
    /// zero. If not, its figures are added to the entry [`OTHER`].
    pub fn admit(&mut self, identity: &Arc<Identity>) {
        let holder = holder(identity);
        if self.slots.contains(&holder) {
            return;
        }
        let (tenant, now) = (identity.tenant(), Instant::now());
        let reserved = if is_young(identity) { hourly::BURST / 2.0 } else { 0.0 };
        if self.new_series.left(&tenant, now) < reserved + 1.0 {
            return limited::add("new-series", &tenant, 1);
        }
        self.make_space();
        match self.slots.admit(holder, &tenant) {
            Admission::Granted => {}
            Admission::Refused => return limited::add("series", &tenant, 1),
            Admission::Replaced(holder) => {
                if let Some(series) = self.remove(|series| series.holder() == Some(holder)) {
                    limited::add("series", &series.identity.map_or(tenant, |old| old.tenant()), 1);
                }
            }
        }
        self.new_series.take(&identity.tenant(), now);
        let series = Series { identity: Some(Arc::clone(identity)), ..Series::default() };
        // The kernel may give the PID of a process that has ended to a new process of the same name.
        let replaced = self.jvms.insert(key(identity), series);
        self.release(replaced);
    }

    /// Adds a JVM's figures.
    pub fn add(&mut self, identity: &Identity, figures: &Figures) {
        let operations = self.limits.operations;
        let own = self.jvms.get_mut(&key(identity));
        let series = match own.filter(|series| series.holder() == Some(holder(identity))) {
            Some(own) => own,
            None => self.jvms.entry((OTHER.into(), 0)).or_default(),
        };
        series.add(figures, operations);
    }

    /// Replaces the identity of a JVM about which more has become known. If the name has changed, the series continue under
    /// the new name.
    pub fn replace_identity(&mut self, old: &Identity, new: &Arc<Identity>) {
        let is_of = |series: &Series| series.holder() == Some(holder(old));
        if self.jvms.get(&key(old)).is_some_and(is_of)
            && let Some(mut series) = self.jvms.remove(&key(old))
        {
            series.identity = Some(Arc::clone(new));
            let replaced = self.jvms.insert(key(new), series);
            self.release(replaced);
        }
    }

    /// Marks a JVM as ended. Its series are removed after [`Limits::keep`].
    pub fn ended(&mut self, identity: &Identity) {
        if let Some(series) = self.jvms.get_mut(&key(identity)) {
            series.ended.get_or_insert_with(Instant::now);
            series.gauges.values = None;
        }
    }

    /// Removes the values of a JVM that could not be read in this window.
    pub fn clear_values(&mut self, identity: &Identity) {
        if let Some(series) = self.jvms.get_mut(&key(identity)) {
            series.gauges.values = None;
        }
    }

    /// Counts recorded samples or events. `what` is one of a small set of kinds.
    pub fn add_recorded(&mut self, what: &str, count: u64) {
        bounded_add(&mut self.recorded, self.limits.reasons, what, count);
    }

    /// Adds the cost of a tracer's probes to a process.
    pub fn add_probe_cost(&mut self, tracer: &'static str, cost: &Cost) {
        let (hits, ns) = self.probe_costs.entry(tracer).or_default();
        *hits = hits.saturating_add(cost.hits);
        *ns = ns.saturating_add(cost.ns);
    }

    /// Counts lost samples or events.
    pub fn add_lost(&mut self, reason: &str, count: u64) {
        bounded_add(&mut self.lost, self.limits.reasons, reason, count);
    }

    /// Counts detail that a tenant did not get because it exceeded its share of the resource that `reason` names.
    pub fn add_limited(&mut self, reason: &'static str, tenant: &Arc<str>, count: u64) {
        let (mut tenant, now) = (cut(tenant), Instant::now());
        if self.limited_at.len() >= self.limits.tenants && !self.limited_at.contains_key(&tenant) {
            let oldest = self.limited_at.iter().min_by_key(|(_, at)| **at);
            let expired = oldest.filter(|(_, at)| now - **at > KEEP_LIMITED);
            if let Some(expired) = expired.map(|(tenant, _)| Arc::clone(tenant)) {
                self.limited_at.remove(&expired);
                self.limited.retain(|(_, tenant), _| *tenant != expired);
            } else {
                tenant = OTHER.into();
            }
        }
        if &*tenant != OTHER {
            self.limited_at.insert(Arc::clone(&tenant), now);
        }
        let sum = self.limited.entry((reason, tenant)).or_default();
        *sum = sum.saturating_add(count);
    }

    /// Counts a thread dump.
    pub fn add_thread_dump(&mut self, cause: Cause) {
        *self.thread_dumps.entry(cause).or_default() += 1;
    }

    /// Counts an abandoned JVM, or a tracer that has ended.
    pub fn add_abandoned(&mut self, reason: &str) {
        bounded_add(&mut self.abandoned, self.limits.reasons, reason, 1);
    }

    /// Raises the number of JVMs abandoned for this reason to `count`, if it is lower.
    pub fn raise_abandoned(&mut self, reason: &str, count: u64) {
        let known = self.abandoned.get(reason).copied().unwrap_or(0);
        if count > known {
            bounded_add(&mut self.abandoned, self.limits.reasons, reason, count - known);
        }
    }

    /// Removes the series of JVMs that ended longer than [`Limits::keep`] ago.
    pub fn remove_expired(&mut self) {
        let keep = self.limits.keep;
        let Self { jvms, slots, .. } = self;
        jvms.retain(|_, series| {
            let is_kept = series.ended.is_none_or(|at| at.elapsed() < keep);
            if let Some(holder) = series.holder().filter(|_| !is_kept) {
                slots.release(&holder);
            }
            is_kept
        });
    }

    /// Returns all series.
    pub fn jvms(&self) -> &BTreeMap<Key, Series> {
        &self.jvms
    }

    /// Returns the number of running JVMs, without those that share the entry [`OTHER`].
    pub fn running(&self) -> usize {
        self.jvms.values().filter(|s| s.identity.is_some() && s.ended.is_none()).count()
    }

    /// If no series are free, removes those of JVMs that ended longer than [`Limits::keep`] ago. If there are none, removes
    /// those of the JVM that ended first.
    fn make_space(&mut self) {
        if self.slots.is_full() {
            self.remove_expired();
        }
        if self.slots.is_full() {
            let first = self.jvms.values().filter_map(|series| series.ended).min();
            self.remove(|series| first.is_some() && series.ended == first);
        }
    }

    /// Removes the first series that match, and frees their slot.
    fn remove(&mut self, matches: impl Fn(&Series) -> bool) -> Option<Series> {
        let key =
            self.jvms.iter().find(|(_, series)| matches(series)).map(|(key, _)| key.clone())?;
        let series = self.jvms.remove(&key)?;
        self.release(Some(Series { identity: series.identity.clone(), ..Series::default() }));
        Some(series)
    }

    /// Frees the slot of removed series.
    fn release(&mut self, removed: Option<Series>) {
        if let Some(holder) = removed.and_then(|series| series.holder()) {
            self.slots.release(&holder);
        }
    }
}

impl Default for Totals {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl Series {
    fn holder(&self) -> Option<Holder> {
        self.identity.as_deref().map(holder)
    }
}

impl Series {
    fn add(&mut self, figures: &Figures, operations: usize) {
        for stop in &figures.stops {
            self.stop(stop, operations);
        }
        self.processor.add(&figures.processor);
        self.allocated = self.allocated.saturating_add(figures.allocated_bytes);
        for waited in &figures.waits {
            let new = Waited { times: 0, ns: 0, ..*waited };
            let sum = self.waits.entry(waited.kind).or_insert(new);
            sum.times = sum.times.saturating_add(waited.times);
            sum.ns = sum.ns.saturating_add(waited.ns);
        }
        for &(tracer, ns) in &figures.cost {
            let sum = self.cost.entry(tracer).or_default();
            *sum = sum.saturating_add(ns);
        }
        // JVMs beyond the limit share an entry. Their gauges cannot be added, because each reading replaces the last one.
        if self.identity.is_some() {
            self.gauges.update(&figures.gauges);
            self.limit_pools();
        }
    }

    /// Drops the values of memory pools beyond [`MAX_POOLS`].
    fn limit_pools(&mut self) {
        let Some(values) = &mut self.gauges.values else { return };
        let mut may_have_series = |pool: &MemoryPool| {
            let pool = (Arc::clone(&pool.name), pool.is_heap);
            self.pools.contains(&pool) || self.pools.len() < MAX_POOLS && self.pools.insert(pool)
        };
        let dropped = values.pools.iter().filter(|&pool| !may_have_series(pool)).count();
        if dropped > 0 {
            Arc::make_mut(values).pools.retain(may_have_series);
            let tenant = self.identity.as_ref().map(|identity| identity.tenant());
            limited::add("series", &tenant.unwrap_or_else(|| OTHER.into()), dropped as u64);
        }
    }

    fn stop(&mut self, stop: &Stop, operations: usize) {
        let mut operation = (cut(&stop.op), stop.cause.as_deref().map_or("".into(), cut));
        if self.operations.len() >= operations && !self.operations.contains_key(&operation) {
            operation = (OTHER.into(), OTHER.into());
        }
        let stopped = self.operations.entry(operation).or_default();
        if stop.times > 0 {
            stopped.stopped.observe(stop.stopped_ns, stop.times);
        }
        stopped.collections += stop.collections;
        if let Some(ttsp) = stop.ttsp_ns {
            self.ttsp.observe(ttsp, stop.times);
        }
        if let Some(ns) = stop.cpu_wait_ns {
            self.cpu_wait_ns = Some(self.cpu_wait_ns.unwrap_or(0).saturating_add(ns));
        }
        if let Some(collection) = &stop.collection {
            self.collection(collection, stop, operations);
        }
        if stop.collections > 0 {
            self.heap = (stop.heap_before.or(self.heap.0), stop.heap_after.or(self.heap.1));
        }
    }
}

impl Series {
    fn collection(&mut self, collection: &Collection, stop: &Stop, limit: usize) {
        let version = self.identity.as_ref().and_then(|identity| {
            identity
                .attributes
                .get("process.runtime.version")?
                .split(['.', '+', '-'])
                .next()?
                .parse()
                .ok()
        });
        let cause: Arc<str> = stop.cause.as_deref().map_or("".into(), cut);
        for each in collection.each() {
            let Some(name) = self.namer.name(&each, (&stop.op, &cause), version) else { continue };
            let mut key = (name, cause.clone());
            if self.collections.len() >= 2 * limit && !self.collections.contains_key(&key) {
                key.1 = OTHER.into();
            }
            self.collections.entry(key).or_default().observe(each.duration_ns, each.count);
        }
    }
}

fn holder(identity: &Identity) -> Holder {
    (identity.pid, identity.started_ns)
}

/// Returns whether a JVM has run for less than [`MIN_AGE`].
fn is_young(identity: &Identity) -> bool {
    let started = SystemTime::UNIX_EPOCH + Duration::from_nanos(identity.started_ns);
    SystemTime::now().duration_since(started).is_ok_and(|age| age < MIN_AGE)
}

fn key(identity: &Identity) -> Key {
    (cut(&identity.name), identity.pid)
}

/// Cuts a name to `MAX_NAME` bytes, at a character boundary.
pub fn cut(name: &str) -> Arc<str> {
    let end = (0..=MAX_NAME.min(name.len())).rev().find(|&end| name.is_char_boundary(end));
    name[..end.unwrap_or(0)].into()
}

fn bounded_add(counts: &mut BTreeMap<Arc<str>, u64>, limit: usize, name: &str, count: u64) {
    let mut name = cut(name);
    if counts.len() >= limit && !counts.contains_key(&name) {
        name = OTHER.into();
    }
    let sum = counts.entry(name).or_default();
    *sum = sum.saturating_add(count);
}

/// Totals shared by the threads that write them and the threads that serve or push them.
#[derive(Clone, Debug, Default)]
pub struct SharedTotals(Arc<Mutex<Totals>>);

impl SharedTotals {
    /// Returns empty totals with these limits.
    pub fn new(limits: Limits) -> Self {
        Self(Arc::new(Mutex::new(Totals::new(limits))))
    }

    /// Locks the totals. Callers must hold the lock only briefly.
    pub fn lock(&self) -> MutexGuard<'_, Totals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::semconv::values::Values;

    fn jvm(name: &str, pid: u32) -> Arc<Identity> {
        Arc::new(Identity { pid, name: name.into(), started_ns: 1, ..Identity::default() })
    }

    fn stop(op: &str, ns: u64) -> Figures {
        let stop = Stop { op: op.into(), stopped_ns: ns, collections: 1, ..Stop::default() };
        Figures { stops: vec![stop], allocated_bytes: ns, ..Figures::default() }
    }

    /// Adds figures of a JVM that could be read.
    fn add(totals: &mut Totals, jvm: &Arc<Identity>, figures: &Figures) {
        totals.admit(jvm);
        totals.add(jvm, figures);
    }

    fn allocated(totals: &Totals) -> u64 {
        totals.jvms().values().map(|series| series.allocated).sum()
    }

    #[test]
    fn jvms_beyond_the_limit_share_one_series() {
        let mut totals = Totals::new(Limits { jvms: 3, ..Limits::default() });
        for pid in 1..=10 {
            add(&mut totals, &jvm("app", pid), &stop("G1", 5));
        }
        assert_eq!((totals.jvms().len(), allocated(&totals)), (4, 50));
        assert_eq!(totals.jvms()[&(OTHER.into(), 0)].allocated, 35);
        // A JVM that ends makes space for a new one.
        totals.ended(&jvm("app", 1));
        add(&mut totals, &jvm("late", 11), &stop("G1", 5));
        assert!(totals.jvms().contains_key(&("late".into(), 11)));
        assert!(!totals.jvms().contains_key(&("app".into(), 1)));
    }

    #[test]
    fn operations_beyond_the_limit_share_one_series() {
        let mut totals = Totals::new(Limits { operations: 4, ..Limits::default() });
        for op in 0..20 {
            add(&mut totals, &jvm("app", 1), &stop(&format!("Op{op}"), 1));
        }
        let series = &totals.jvms()[&("app".into(), 1)];
        let stops: u64 = series.operations.values().map(|o| o.stopped.count()).sum();
        assert_eq!((series.operations.len(), stops), (5, 20));
    }

    #[test]
    fn waits_for_a_cpu_are_unknown_until_a_stop_has_one() {
        let mut totals = Totals::default();
        let mut figures = stop("G1", 5);
        add(&mut totals, &jvm("app", 1), &figures);
        assert_eq!(totals.jvms()[&("app".into(), 1)].cpu_wait_ns, None);
        figures.stops[0].cpu_wait_ns = Some(3);
        add(&mut totals, &jvm("app", 1), &figures);
        add(&mut totals, &jvm("app", 1), &figures);
        assert_eq!(totals.jvms()[&("app".into(), 1)].cpu_wait_ns, Some(6));
    }

    #[test]
    fn series_end_with_the_jvm_and_restart_at_zero() {
        let mut totals = Totals::new(Limits { keep: Duration::ZERO, ..Limits::default() });
        add(&mut totals, &jvm("app", 1), &stop("G1", 5));
        totals.remove_expired();
        assert_eq!(allocated(&totals), 5);
        let mut again = Identity::clone(&jvm("app", 1));
        again.started_ns = 2;
        add(&mut totals, &Arc::new(again), &stop("G1", 2));
        assert_eq!(allocated(&totals), 2);
        totals.ended(&jvm("app", 1));
        assert_eq!(totals.running(), 0);
        totals.remove_expired();
        assert!(totals.jvms().is_empty());
    }

    #[test]
    fn series_continue_under_a_new_name() {
        let mut totals = Totals::default();
        add(&mut totals, &jvm("Main", 1), &stop("G1", 5));
        totals.replace_identity(&jvm("Main", 1), &jvm("shop", 1));
        add(&mut totals, &jvm("shop", 1), &stop("G1", 2));
        let [(key, series)] = &totals.jvms().iter().collect::<Vec<_>>()[..] else { panic!() };
        assert_eq!((&*key.0, series.allocated), ("shop", 7));
        assert_eq!(series.identity.as_ref().unwrap().name, "shop");
        // This JVM has no series of its own.
        totals.replace_identity(&jvm("Main", 2), &jvm("other", 2));
        assert_eq!(totals.jvms().len(), 1);
    }

    #[test]
    fn names_are_truncated_and_label_values_bounded() {
        let mut totals = Totals::new(Limits { reasons: 2, ..Limits::default() });
        for reason in ["a", "b", "c", "d"] {
            totals.add_lost(reason, 2);
        }
        assert_eq!(totals.lost[OTHER], 4);
        let mut totals = Totals::new(Limits { tenants: 2, ..Limits::default() });
        for tenant in ["a", "b", "c", "d", "a"] {
            totals.add_limited("stops", &tenant.into(), 3);
        }
        assert_eq!(totals.limited[&("stops", "a".into())], 6);
        assert_eq!((totals.limited[&("stops", OTHER.into())], totals.limited.len()), (6, 3));
        add(&mut totals, &jvm(&"ä".repeat(1000), 1), &Figures::default());
        assert!(totals.jvms().keys().all(|(name, _)| name.len() <= MAX_NAME));
    }

    #[test]
    fn memory_pools_of_a_jvm_have_a_limited_number_of_series() {
        let mut totals = Totals::default();
        let identity = jvm("app", 1);
        let pool = |name: &str| MemoryPool {
            name: name.into(),
            is_heap: true,
            used: 1,
            committed: 1,
            initial: None,
            limit: None,
            used_after_gc: None,
        };
        let mut names = BTreeSet::new();
        for window in 0..100 {
            let pools = vec![pool("Eden Space"), pool(&format!("forged {window}"))];
            let values = Some(Arc::new(Values { pools, ..Values::default() }));
            let gauges = Gauges { values, ..Gauges::default() };
            add(&mut totals, &identity, &Figures { gauges, ..Figures::default() });
            let values = totals.jvms().values().next().unwrap().gauges.values.clone().unwrap();
            assert!(values.pools.contains(&pool("Eden Space")));
            names.extend(values.pools.iter().map(|pool| pool.name.clone()));
        }
        assert_eq!(names.len(), MAX_POOLS);
    }

    fn of_tenant(tenant: &str, pid: u32) -> Arc<Identity> {
        let attributes = [("systemd.unit".to_owned(), tenant.to_owned())].into();
        Arc::new(Identity { attributes, ..Identity::clone(&jvm("app", pid)) })
    }

    #[test]
    fn series_are_shared_by_tenants() {
        let mut totals = Totals::new(Limits { jvms: 100, ..Limits::default() });
        for tenant in 0..20 {
            for number in 0..30 {
                let attacker = of_tenant(&format!("t{tenant}.service"), tenant * 100 + number + 1);
                add(&mut totals, &attacker, &stop("G1", 5));
            }
        }
        let victims: Vec<_> = (0..3).map(|n| of_tenant("shop.service", 9000 + n)).collect();
        for _ in 0..3 {
            victims.iter().for_each(|victim| add(&mut totals, victim, &stop("G1", 7)));
            add(&mut totals, &of_tenant("t0.service", 8000), &stop("G1", 5));
            assert_eq!((totals.jvms().len(), totals.running()), (101, 100));
        }
        for victim in victims {
            assert_eq!(totals.jvms()[&key(&victim)].allocated, 21);
        }
    }

    #[test]
    fn jvm_that_was_not_read_has_no_series_of_its_own() {
        let mut totals = Totals::default();
        totals.add(&jvm("fake", 1), &stop("G1", 5));
        let keys: Vec<_> = totals.jvms().keys().cloned().collect();
        assert_eq!((keys, totals.running()), (vec![(OTHER.into(), 0)], 0));
        // Its series begin when it was read.
        add(&mut totals, &jvm("fake", 1), &stop("G1", 7));
        assert_eq!(totals.jvms()[&("fake".into(), 1)].allocated, 7);
    }

    #[test]
    fn short_lived_jvms_of_a_tenant_share_series_after_a_while() {
        let mut totals = Totals::new(Limits { keep: Duration::ZERO, ..Limits::default() });
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let started_ns = u64::try_from(now.as_nanos()).unwrap();
        let mut own_series = 0;
        for pid in 1..=2000 {
            let young = Arc::new(Identity { started_ns, ..Identity::clone(&jvm("job", pid)) });
            add(&mut totals, &young, &stop("G1", 1));
            own_series += totals.running();
            totals.ended(&young);
            totals.remove_expired();
        }
        assert_eq!(own_series as f64, hourly::BURST / 2.0);
        assert_eq!(
            totals.jvms()[&(OTHER.into(), 0)].allocated as f64,
            2000.0 - hourly::BURST / 2.0
        );
        // A JVM that stays gets series, and so does another tenant.
        add(&mut totals, &jvm("service", 3000), &stop("G1", 1));
        let other =
            Arc::new(Identity { started_ns, ..Identity::clone(&of_tenant("b.service", 3001)) });
        add(&mut totals, &other, &stop("G1", 1));
        assert_eq!(totals.running(), 2);
    }

    #[test]
    fn counts_of_a_tenant_that_is_no_longer_limited_make_space() {
        let mut totals = Totals::new(Limits { tenants: 1, ..Limits::default() });
        totals.add_limited("stops", &"a".into(), 1);
        totals.add_limited("spans", &"a".into(), 1);
        totals.add_limited("stops", &"b".into(), 1);
        assert_eq!(totals.limited[&("stops", OTHER.into())], 1);
        if let Some(before) = Instant::now().checked_sub(2 * KEEP_LIMITED) {
            totals.limited_at.insert("a".into(), before);
            totals.add_limited("stops", &"b".into(), 1);
            assert_eq!(totals.limited[&("stops", "b".into())], 1);
            assert_eq!(totals.limited.len(), 2);
        }
    }
}

//! The running JVMs and their identities.

use std::{
    collections::BTreeMap,
    fs, mem,
    sync::Arc,
    time::{Duration, Instant},
};

use libjvmprobe::{
    Result,
    hotspot::HotSpot,
    jvms::{Arrival, Arrivals, JvmIdentity, Registry},
    process::{CpuTime, Target},
};

use crate::{
    collect::values::{ValuesReader, read_host},
    identity::{Identities, Rules},
    metrics::{
        Sets,
        figures::Gauges,
        semconv::values::{Host, Values},
    },
    window::{HostTicks, Identity},
};

/// Time, in addition to two windows, for which the identity of an ended JVM is kept: tracers deliver its last data after the
/// end of the window.
const KEEP_ENDED: Duration = Duration::from_secs(10);
/// Interval, in windows, at which loaded classes are counted in JVMs that do not count them themselves.
const CLASS_COUNT_INTERVAL: u64 = 8;
/// Maximum time, in each window, for reading the gauges of one JVM. The main loop does nothing else meanwhile.
const MAX_TIME_PER_JVM: Duration = Duration::from_millis(100);
/// Time for which gauges stay in use if they are not read again.
const MAX_AGE: Duration = Duration::from_secs(60);
/// Part of a window that the gauges of all JVMs may take.
const PART_FOR_ALL: u32 = 30;

/// All running JVMs, and those that ended within the last two windows. The registry publishes only JVMs that the rules
/// select.
#[derive(Debug)]
pub struct Jvms {
    arrivals: Arrivals,
    registry: Registry,
    /// Length of a window.
    window: Duration,
    identities: Identities,
    known: BTreeMap<u32, KnownJvm>,
    /// New JVMs, which [`take_new`](Self::take_new) has not returned yet.
    new: Vec<Arc<Identity>>,
    /// JVMs that were identified again. [`take_changed`](Self::take_changed) has not compared them yet.
    identified_again: Vec<(Arc<Target>, Arc<JvmIdentity>)>,
    /// JVMs whose PID now belongs to another program. [`take_ended`](Self::take_ended) has not returned them
    /// yet.
    replaced: Vec<Arc<Identity>>,
    /// JVMs that could be read for the first time. [`take_read`](Self::take_read) has not returned them yet.
    read: Vec<Arc<Identity>>,
    /// Attributes that were dropped because a JVM has too many. [`take_dropped_attributes`](Self::take_dropped_attributes)
    /// has not returned them yet.
    dropped_attributes: Vec<(Arc<Identity>, u64)>,
    /// Number of windows so far.
    windows: u64,
    /// Whether the semantic conventions' metrics are exported.
    reads_values: bool,
    /// Order in which gauges are read.
    turns: Turns,
    /// JVMs whose gauges of the last window are missing or incomplete because time ran out.
    left_out: Vec<(Arc<Identity>, bool)>,
}

#[derive(Debug)]
struct KnownJvm {
    target: Arc<Target>,
    /// Access to the JVM's own data; `None` if it cannot be read.
    hotspot: Option<Arc<HotSpot>>,
    identity: Arc<Identity>,
    ended: Option<Instant>,
    /// See [`JvmIdentity::dropped_attributes`].
    dropped_attributes: u64,
    /// CPU time of the JVM's process. It is read when the JVM is found and at the end of each window.
    cpu_time: Option<CpuTime>,
    values: ValuesReader,
    /// Time at which all gauges were read last.
    complete_at: Option<Instant>,
}

impl Jvms {
    /// Subscribes to the JVMs that run now and to those that start later.
    pub fn open(
        rules: Arc<Rules>,
        registry: Registry,
        window: Duration,
        sets: Sets,
    ) -> Result<Self> {
        Ok(Self {
            arrivals: registry.subscribe()?,
            registry,
            window,
            identities: Identities::new(rules),
            known: BTreeMap::new(),
            new: Vec::new(),
            identified_again: Vec::new(),
            replaced: Vec::new(),
            read: Vec::new(),
            dropped_attributes: Vec::new(),
            windows: 0,
            reads_values: sets != Sets::Jvmprobe,
            turns: Turns::default(),
            left_out: Vec::new(),
        })
    }

    /// Returns the new JVMs.
    pub fn take_new(&mut self) -> Vec<Arc<Identity>> {
        self.update();
        mem::take(&mut self.new)
    }

    /// Returns the old and the new identity of each JVM about which more has become known since the last call. Only this
    /// call changes the identity of a JVM, so that the caller can replace the old one everywhere.
    pub fn take_changed(&mut self) -> Vec<(Arc<Identity>, Arc<Identity>)> {
        let mut changed = Vec::new();
        for (target, detected) in mem::take(&mut self.identified_again) {
            let known = self.known.get_mut(&target.pid().0);
            let known = known.filter(|known| Arc::ptr_eq(&known.target, &target));
            let Some(known) = known else { continue };
            let more = detected.dropped_attributes.saturating_sub(known.dropped_attributes);
            known.dropped_attributes += more;
            self.dropped_attributes.push((Arc::clone(&known.identity), more));
            if let Some(new) = self.identities.update(&known.identity, &detected) {
                changed.push((mem::replace(&mut known.identity, Arc::clone(&new)), new));
            }
        }
        changed
    }

    /// Returns the JVMs that could be read for the first time since the last call.
    pub fn take_read(&mut self) -> Vec<Arc<Identity>> {
        let known = |identity: Arc<Identity>| self.known(identity.pid).unwrap_or(identity);
        // Some may have another identity meanwhile.
        let read = self.read.iter().cloned().map(known).collect();
        self.read.clear();
        read
    }

    /// Returns the number of attributes that were dropped since the last call, by JVM.
    pub fn take_dropped_attributes(&mut self) -> Vec<(Arc<Identity>, u64)> {
        mem::take(&mut self.dropped_attributes)
    }

    fn update(&mut self) {
        for arrival in self.arrivals.take() {
            let pid = arrival.target.pid().0;
            match self.known.get_mut(&pid) {
                Some(known) if Arc::ptr_eq(&known.target, &arrival.target) => {
                    // JVMs that have ended are never read.
                    let is_read = known.ended.is_none();
                    let was_readable = known.hotspot.is_some();
                    known.hotspot = arrival.hotspot.ok().filter(|_| is_read);
                    if known.hotspot.is_some() && !was_readable {
                        self.read.push(Arc::clone(&known.identity));
                    }
                    known.values.reset();
                    let detected = arrival.identity.filter(|_| is_read);
                    let again = detected.map(|detected| (arrival.target, detected));
                    self.identified_again.extend(again);
                }
                _ => self.add(arrival),
            }
        }
    }

    fn add(&mut self, arrival: Arrival) {
        let Arrival { target, hotspot, identity, .. } = arrival;
        let pid = target.pid().0;
        let identity = identity.map(Arc::unwrap_or_clone).unwrap_or_default();
        let dropped_attributes = identity.dropped_attributes;
        let identity = self.identities.identify(pid, identity);
        self.new.push(Arc::clone(&identity));
        self.read.extend(hotspot.is_ok().then(|| Arc::clone(&identity)));
        self.dropped_attributes.push((Arc::clone(&identity), dropped_attributes));
        // CPU time before this instant belongs to no window.
        let cpu_time = target.process.cpu_time();
        let known = KnownJvm {
            target,
            hotspot: hotspot.ok(),
            identity: Arc::clone(&identity),
            ended: None,
            dropped_attributes,
            cpu_time,
            values: ValuesReader::default(),
            complete_at: None,
        };
        let before = self.known.insert(pid, known);
        // The process of the previous entry runs another program now, or it has ended and its PID was reused.
        if let Some(KnownJvm { identity: old, ended: None, .. }) = before {
            self.identities.ended(&old);
            let key = |identity: &Identity| (identity.name.clone(), identity.started_ns);
            // A JVM with the same name and start time continues the metrics of the old one, so the old one is
            // not reported as ended.
            if key(&identity) != key(&old) {
                self.replaced.push(old);
            }
        }
    }

    /// Returns the identity of the JVM that a batch belongs to; `None` if it ended more than two windows ago.
    pub fn identity(&mut self, pid: u32) -> Option<Arc<Identity>> {
        if !self.known.contains_key(&pid) {
            // A tracer may deliver data of a JVM before the registry's message about this JVM is received.
            self.update();
        }
        self.known(pid)
    }

    /// Returns the identity of a process that is already known.
    pub fn known(&self, pid: u32) -> Option<Arc<Identity>> {
        self.known.get(&pid).map(|known| Arc::clone(&known.identity))
    }

    /// Returns the number of processes that exited before they were examined, because many were starting.
    pub fn exited_unexamined(&self) -> u64 {
        self.registry.exited_unexamined()
    }

    /// Returns the JVMs that have ended since the last call.
    pub fn take_ended(&mut self) -> Vec<Arc<Identity>> {
        let now = Instant::now();
        let mut ended = mem::take(&mut self.replaced);
        for known in self.known.values_mut() {
            if known.ended.is_none() && known.target.process.has_ended() {
                known.ended = Some(now);
                known.hotspot = None;
                self.identities.ended(&known.identity);
                ended.push(Arc::clone(&known.identity));
            }
        }
        let keep = 2 * self.window + KEEP_ENDED;
        self.known.retain(|_, known| known.ended.is_none_or(|at| now - at < keep));
        ended
    }

    /// Returns the gauges of running JVMs that can be read; called once per window. If reading takes too
    /// long, the remaining JVMs are [left out](Self::without_gauges), and come first among those of their tenant in the
    /// next window.
    /// `host_ticks` is the CPU time of the host's processors in the window.
    pub fn gauges(&mut self, host_ticks: Option<HostTicks>) -> Vec<(Arc<Identity>, Gauges)> {
        self.windows += 1;
        let until = Instant::now() + self.window / PART_FOR_ALL;
        self.left_out.clear();
        let host = self.reads_values.then(|| read_host(host_ticks));
        let mut read = Vec::new();
        let is_readable = |known: &KnownJvm| known.ended.is_none() && known.hotspot.is_some();
        let readable = self.known.iter().filter(|(_, known)| is_readable(known));
        let order = self.turns.order(readable.map(|(&pid, known)| (pid, known.identity.tenant())));
        for (pid, tenant) in order {
            let Some(known) = self.known.get_mut(&pid) else { continue };
            let now = Instant::now();
            let is_recent = known.complete_at.is_some_and(|at| now - at < MAX_AGE);
            let mut is_complete = now < until;
            if is_complete {
                self.turns.taken(pid, tenant);
                let (mut gauges, has_all) =
                    known.gauges(self.windows, host, until.min(now + MAX_TIME_PER_JVM));
                is_complete = has_all;
                match has_all {
                    true => known.complete_at = Some(now),
                    // The complete values of an earlier window stay in use.
                    false if is_recent => gauges.values = None,
                    false => {}
                }
                read.push((Arc::clone(&known.identity), gauges));
            }
            if !is_complete {
                self.left_out.push((Arc::clone(&known.identity), is_recent));
            }
        }
        read
    }

    /// Returns the CPU time that each JVM has used since the last call, or since the JVM was found if that
    /// was later.
    pub fn cpu_times(&mut self) -> Vec<(Arc<Identity>, CpuTime)> {
        let mut all = Vec::new();
        for known in self.known.values_mut() {
            let now = known.target.process.cpu_time();
            let used = now.zip(known.cpu_time).map(|(now, before)| now.since(before));
            all.extend(used.map(|used| (Arc::clone(&known.identity), used)));
            known.cpu_time = now;
        }
        all
    }

    /// Returns JVMs whose gauges of the last window are missing or incomplete because time ran out, each with whether those of
    /// an earlier window may still be used.
    pub fn without_gauges(&self) -> &[(Arc<Identity>, bool)] {
        &self.left_out
    }

    /// Returns the number of running JVMs.
    pub fn running(&self) -> usize {
        self.known.values().filter(|known| known.ended.is_none()).count()
    }
}

impl KnownJvm {
    /// Reads the gauges. Values that cannot be read, because the JVM is starting up or ending, are left out.
    /// The returned flag is false if time ran out.
    fn gauges(&mut self, windows: u64, host: Option<Host>, until: Instant) -> (Gauges, bool) {
        let pid = self.target.pid().0;
        let cpu_ns = self.cpu_time.map(CpuTime::total_ns);
        let mut gauges = Gauges { threads: threads(pid), cpu_ns, ..Gauges::default() };
        if let Some(host) = host {
            let jvm = (self.target.pid(), self.hotspot.as_deref());
            gauges.values = Some(self.values.read(jvm, cpu_ns, host, until).into());
        }
        let Some(hotspot) = &self.hotspot else { return (gauges, true) };
        (gauges.heap_committed, gauges.heap_max) = hotspot.heap_size();
        // The values contain what the JVM counts itself, so it is not read twice.
        let values = gauges.values.as_deref();
        let fill = values.and_then(Values::code_cache).or_else(|| hotspot.code_cache().ok());
        (gauges.code_cache_used, gauges.code_cache_size) =
            (fill.map(|fill| fill.used), fill.map(|fill| fill.size));
        let counted = values.and_then(Values::class_count);
        // If a JVM does not count its classes, they are counted once in `CLASS_COUNT_INTERVAL` windows. The
        // PID decides in which one, so that the classes of all JVMs are rarely counted in the same window.
        let is_due = hotspot.counts_classes()
            || windows % CLASS_COUNT_INTERVAL == u64::from(pid) % CLASS_COUNT_INTERVAL;
        let count = || hotspot.loaded_classes_until(Some(until)).ok();
        gauges.loaded_classes = counted.or_else(|| is_due.then(count).flatten());
        (gauges, Instant::now() < until)
    }
}

/// Order in which JVMs are read, if time may not suffice for all: each tenant's turn comes before the second turn of any
/// tenant.
#[derive(Debug, Default)]
struct Turns {
    /// PID of the JVM of each tenant that was read last.
    last: BTreeMap<Arc<str>, u32>,
    /// Tenant whose JVM was read last.
    last_tenant: Option<Arc<str>>,
}

impl Turns {
    /// Returns the JVMs, given in ascending order, in the order of their turns.
    fn order(&mut self, jvms: impl Iterator<Item = (u32, Arc<str>)>) -> Vec<(u32, Arc<str>)> {
        let mut tenants: BTreeMap<Arc<str>, Vec<u32>> = BTreeMap::new();
        jvms.for_each(|(pid, tenant)| tenants.entry(tenant).or_default().push(pid));
        self.last.retain(|tenant, _| tenants.contains_key(tenant));
        let mut turns = Vec::new();
        for (tenant, mut pids) in tenants {
            let last = self.last.get(&tenant).copied().unwrap_or(0);
            let first = pids.partition_point(|&pid| pid <= last);
            pids.rotate_left(first);
            let is_past = self.last_tenant.as_ref().is_some_and(|last| tenant <= *last);
            let all = pids.into_iter().enumerate();
            turns.extend(all.map(|(turn, pid)| (turn, is_past, Arc::clone(&tenant), pid)));
        }
        turns.sort_unstable();
        turns.into_iter().map(|(_, _, tenant, pid)| (pid, tenant)).collect()
    }

    /// Records that a JVM was read.
    fn taken(&mut self, pid: u32, tenant: Arc<str>) {
        self.last.insert(Arc::clone(&tenant), pid);
        self.last_tenant = Some(tenant);
    }
}

/// Returns the number of threads of a process.
fn threads(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Threads:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_resumes_after_the_last_pid_of_each_tenant() {
        let mut turns = Turns::default();
        let mut read = |count: usize| {
            let jvms = [(3, "a"), (5, "a"), (8, "b"), (9, "a"), (10, "c")];
            let order = turns.order(jvms.into_iter().map(|(pid, tenant)| (pid, tenant.into())));
            for (pid, tenant) in &order[..count] {
                turns.taken(*pid, Arc::clone(tenant));
            }
            order.into_iter().map(|(pid, _)| pid).collect::<Vec<_>>()
        };
        // Each tenant's first JVM comes before the second one of any tenant.
        assert_eq!(read(1), [3, 8, 10, 5, 9]);
        assert_eq!(read(2), [8, 10, 5, 9, 3]);
        assert_eq!(read(5), [5, 8, 10, 9, 3]);
        assert_eq!(read(0), [8, 10, 5, 9, 3]);
    }
}

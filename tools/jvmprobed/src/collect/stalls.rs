//! Searches JVMs for deadlocks and standstills, and delivers thread dumps of these JVMs.
//!
//! A check of a JVM reads only which threads wait for locks of others ([`Waits`]). If the result is
//! suspicious, the check takes a dump, too. This dump is delivered in two cases:
//! - Deadlock: there is a cycle of waiting threads, and the dump confirms that the cycle is a deadlock.
//! - Standstill: in all checks of the configured time, a thread has waited for a lock of the same class and
//!   the same owner. This owner may wait for a lock of another thread, and so on. Two successive dumps show
//!   that none of these threads uses CPU time. The CPU time of virtual threads is not known, so a virtual thread
//!   that is not mounted must have the same stack in both dumps.
//!
//! An idle JVM is not at a standstill, because its threads wait for work and not for locks. Threads that wait
//! for a lock are not at a standstill either, as long as the owner at the end of the chain uses CPU time.
//!
//! Checks have a budget of time, which tenants share by max-min fairness. If a tenant has many JVMs, or JVMs that take long
//! to check, each of them is checked more rarely.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    io::ErrorKind,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use libjvmprobe::{
    Addr, Error, Pid, Result,
    bpf::clock::{monotonic_ns, rfc3339},
    hotspot::HotSpot,
    jvms::{Arrival, Registry, registry::Stage},
    process::{Target, cgroup},
    sys::{fair_share, limited},
    trace::threads::{Dump, Dumper, Root, ThreadId, Wait, Waits},
};

use crate::thread_dump::{Cause, ThreadDump};

/// Minimum and maximum interval between two checks of a JVM. Between these limits, the interval is a third of
/// the configured time.
const MIN_INTERVAL: Duration = Duration::from_millis(500);
const MAX_INTERVAL: Duration = Duration::from_secs(15);
/// Time for which the thread sleeps if no check is due or if the budget is used up.
const POLL: Duration = Duration::from_millis(100);
/// Maximum number of stored dumps of one JVM within `HOUR`.
const MAX_DUMPS_PER_HOUR: usize = 4;
const HOUR: Duration = Duration::from_secs(3600);
/// A thread makes no progress if it uses at most this share of a processor. The share is not 0, because up to
/// JDK 23, a thread that waits for a monitor wakes up once per second and checks the monitor.
const MAX_CPU_SHARE: f64 = 0.01;
/// After a check, the JVM is not checked again for at least the duration of this check times this number.
const MIN_PAUSES: u32 = 20;
/// Maximum time by which a single check reduces the budget.
const MAX_CHARGE: Duration = Duration::from_secs(1);
/// The budget saves unused time, but at most the time that it grants for this span. A series of checks
/// without a pause can therefore use at most this time at once.
const BUDGET_SPAN: Duration = Duration::from_secs(600);
/// Interval at which the budget is shared.
const SHARE_INTERVAL: Duration = Duration::from_secs(1);
/// A check that takes longer than this counts as a loss of the tenant, because its JVMs are checked more rarely then. An
/// ordinary check takes a few milliseconds.
const SLOW: Duration = Duration::from_secs(1);
/// Maximum number of platform threads of a dump, which has those first that matter for locks. The stored text of a dump
/// has space for fewer threads.
const MAX_THREADS: usize = 2000;
/// Maximum number of virtual threads of a JVM that are read. It limits time and memory.
const MAX_VIRTUAL_THREADS: usize = 20_000;

/// Options of the search.
#[derive(Debug)]
pub struct Options {
    /// The registry, shared with the tracers.
    pub registry: Registry,
    /// Time without progress after which a standstill is reported, in seconds. The value may change at run time.
    pub after: Arc<AtomicU64>,
    /// Maximum time for checks and dumps, in millionths of elapsed time. The value may change at run time.
    pub ppm: Arc<AtomicU64>,
}

/// Searches all JVMs until `stop` is set, and passes dumps to `found`. Calls `started` when the search begins.
///
/// # Errors
/// The errors of [`Dumper::new`] and [`Registry::subscribe`].
pub fn search(
    options: &Options,
    stop: &AtomicBool,
    started: impl FnOnce(),
    mut found: impl FnMut(ThreadDump),
) -> Result<()> {
    let mut search = Search {
        dumper: Dumper::new(false, MAX_THREADS, MAX_VIRTUAL_THREADS)?,
        after: Duration::ZERO,
        interval: MIN_INTERVAL,
        jvms: BTreeMap::new(),
    };
    let mut arrivals = options.registry.subscribe()?;
    let mut budget = Budget::default();
    started();
    while !stop.load(Ordering::Relaxed) {
        arrivals.take().into_iter().for_each(|arrival| search.add(arrival));
        search.set_time(Duration::from_secs(options.after.load(Ordering::Relaxed)));
        let now = Instant::now();
        budget.share(now, options.ppm.load(Ordering::Relaxed), search.tenants());
        let Some((pid, tenant)) = search.due(now, |tenant| budget.allows(tenant)) else {
            thread::sleep(POLL);
            continue;
        };
        search.check(pid).into_iter().for_each(&mut found);
        let time = now.elapsed();
        search.delay(pid, time * MIN_PAUSES);
        if time > SLOW {
            limited::add("threads", &tenant, 1);
        }
        budget.spend(&tenant, time);
    }
    Ok(())
}

/// Time that checks may take.
#[derive(Debug, Default)]
struct Budget {
    /// Time that no tenant has got yet, in seconds.
    left: f64,
    /// Time of each tenant, in seconds. Negative after a check that took longer than the balance.
    balances: HashMap<Arc<str>, f64>,
    /// Time at which the budget was last shared.
    shared: Option<Instant>,
}

impl Budget {
    /// Shares what the budget grants for the time since the last call, and what it has saved, among these tenants. If it was
    /// shared a moment ago, does nothing. The first call grants the time of [`BUDGET_SPAN`].
    fn share<'a>(&mut self, now: Instant, ppm: u64, tenants: impl Iterator<Item = &'a Arc<str>>) {
        let since = match self.shared {
            None => BUDGET_SPAN,
            Some(shared) => now.saturating_duration_since(shared),
        };
        if since < SHARE_INTERVAL {
            return;
        }
        self.shared = Some(now);
        let max = seconds(ppm, BUDGET_SPAN);
        self.left = (self.left + seconds(ppm, since)).min(max);
        let before = std::mem::take(&mut self.balances);
        let balance = |tenant: &Arc<str>| before.get(tenant).copied().unwrap_or(0.0);
        self.balances = tenants.map(|tenant| (Arc::clone(tenant), balance(tenant))).collect();
        let max_each = max / self.balances.len().max(1) as f64;
        let lack = |balance: f64| (max_each - balance).max(0.0);
        let share = fair_share(self.balances.values().map(|&balance| lack(balance)), self.left);
        for balance in self.balances.values_mut() {
            let granted = lack(*balance).min(share);
            *balance += granted;
            self.left -= granted;
        }
    }

    /// Returns whether a check of a JVM of this tenant may begin.
    fn allows(&self, tenant: &str) -> bool {
        self.balances.get(tenant).is_some_and(|balance| *balance >= 0.0)
    }

    /// Charges a tenant for a check. The charge is limited, because a JVM whose memory cannot be read for a long time must not
    /// prevent checks of the tenant's other JVMs for hours.
    fn spend(&mut self, tenant: &str, time: Duration) {
        if let Some(balance) = self.balances.get_mut(tenant) {
            *balance -= time.min(MAX_CHARGE).as_secs_f64();
        }
    }
}

/// Returns this many millionths of a time, in seconds.
fn seconds(ppm: u64, of: Duration) -> f64 {
    ppm as f64 / 1e6 * of.as_secs_f64()
}

struct Search {
    dumper: Dumper,
    after: Duration,
    interval: Duration,
    jvms: BTreeMap<Pid, Jvm>,
}

struct Jvm {
    target: Arc<Target>,
    tenant: Arc<str>,
    hotspot: Arc<HotSpot>,
    /// Time of the next check.
    next: Instant,
    history: History,
    /// The last dump.
    baseline: Option<Baseline>,
    /// Times of the stored dumps of the last hour.
    stored: VecDeque<Instant>,
    has_failed: bool,
}

impl Search {
    /// Sets the time without progress after which a standstill is reported. If this time has changed, the
    /// ages of all waits count from zero again.
    fn set_time(&mut self, after: Duration) {
        if self.after == after {
            return;
        }
        self.after = after;
        self.interval = (after / 3).clamp(MIN_INTERVAL, MAX_INTERVAL);
        for jvm in self.jvms.values_mut() {
            (jvm.history.since, jvm.baseline) = (HashMap::new(), None);
            jvm.next = jvm.next.min(Instant::now() + self.interval);
        }
    }

    /// Adds a JVM that is new or was read again.
    fn add(&mut self, Arrival { target, hotspot, stage, .. }: Arrival) {
        let pid = target.pid();
        let Some(hotspot) = hotspot.ok().filter(|_| stage == Stage::Ready) else { return };
        match self.jvms.get_mut(&pid).filter(|jvm| Arc::ptr_eq(&jvm.target, &target)) {
            Some(jvm) => jvm.hotspot = hotspot,
            None => {
                let jvm = Jvm {
                    tenant: cgroup::tenant_of(pid),
                    target,
                    hotspot,
                    next: Instant::now() + self.interval,
                    history: History::default(),
                    baseline: None,
                    stored: VecDeque::new(),
                    has_failed: false,
                };
                self.jvms.insert(pid, jvm);
            }
        }
    }

    /// Makes sure that the next check of a JVM begins no earlier than this time from now.
    fn delay(&mut self, pid: Pid, time: Duration) {
        if let Some(jvm) = self.jvms.get_mut(&pid) {
            jvm.next = jvm.next.max(Instant::now() + time);
        }
    }

    /// Returns the tenant of each JVM.
    fn tenants(&self) -> impl Iterator<Item = &Arc<str>> {
        self.jvms.values().map(|jvm| &jvm.tenant)
    }

    /// Returns the JVM whose next check has been due for the longest time, of those whose tenant may use more time, and its
    /// tenant; `None` if no check is due.
    fn due(&self, now: Instant, may_use: impl Fn(&str) -> bool) -> Option<(Pid, Arc<str>)> {
        let due = self.jvms.iter().filter(|(_, jvm)| jvm.next <= now && may_use(&jvm.tenant));
        due.min_by_key(|(_, jvm)| jvm.next).map(|(&pid, jvm)| (pid, Arc::clone(&jvm.tenant)))
    }

    /// Checks a JVM. Returns a dump if it has to be stored.
    fn check(&mut self, pid: Pid) -> Option<ThreadDump> {
        let jvm = self.jvms.get_mut(&pid)?;
        jvm.next = Instant::now() + self.interval;
        let found = jvm.check(&mut self.dumper, self.after, self.interval);
        if jvm.target.process.has_ended() {
            self.jvms.remove(&pid);
        } else if let Err(error) = &found {
            if matches!(error, Error::Memory { source, .. } if source.kind() == ErrorKind::TimedOut)
            {
                limited::add("threads", &jvm.tenant, 1);
            }
            if !std::mem::replace(&mut jvm.has_failed, true) {
                log::warn!("process {pid}: cannot search for deadlocks: {error}; retrying");
            }
        }
        let jvms = &self.jvms;
        self.dumper.retain(|pid| jvms.get(&pid).is_some_and(|jvm| jvm.baseline.is_some()));
        found.ok().flatten()
    }
}

impl Jvm {
    fn check(
        &mut self,
        dumper: &mut Dumper,
        after: Duration,
        interval: Duration,
    ) -> Result<Option<ThreadDump>> {
        let waits = Waits::read(&self.hotspot, MAX_VIRTUAL_THREADS)?;
        let now = Instant::now();
        self.history.update(&waits, now, after);
        let is_cycle = roots(waits.cycles()).any(|root| !self.history.is_reported(root));
        let is_late = |wait: &&Wait| self.history.age(wait, now) + interval >= after;
        let is_late = self.history.unreported(&waits).iter().any(is_late);
        if !is_cycle && !is_late {
            self.baseline = None;
            return Ok(None);
        }
        self.stored.retain(|&at| now.saturating_duration_since(at) < HOUR);
        if self.stored.len() >= MAX_DUMPS_PER_HOUR {
            return Ok(None);
        }
        let time = rfc3339(monotonic_ns());
        let dump = dumper.dump(self.target.pid(), &self.hotspot)?;
        let before = self.baseline.replace(Baseline::of(&dump, now));
        let deadlocks: BTreeSet<_> =
            roots(&dump.deadlocks).filter(|&root| !self.history.is_reported(root)).collect();
        let is_old = |wait: &&Wait| self.history.age(wait, now) >= after;
        let old: Vec<_> = self.history.unreported(&waits).into_iter().filter(is_old).collect();
        let stuck = before
            .map(|before| stuck(&waits, &old, &before, self.baseline.as_ref()))
            .unwrap_or_default();
        let cause = match (deadlocks.is_empty(), stuck.is_empty()) {
            (false, _) => Cause::Deadlock,
            (true, false) => Cause::NoProgress,
            (true, true) => return Ok(None),
        };
        let roots: HashSet<_> = deadlocks.into_iter().chain(stuck).collect();
        let waiting = old.iter().filter(|wait| roots.contains(&waits.chain(wait).1)).count();
        let record = ThreadDump::new(time, (cause, waiting as u64), &dump)?;
        self.history.report(roots, now);
        self.stored.push_back(now);
        Ok(Some(record))
    }
}

/// Returns cycles of waiting threads in the form that identifies them in later checks.
fn roots(cycles: &[Vec<ThreadId>]) -> impl Iterator<Item = Root> {
    cycles.iter().filter_map(|cycle| cycle.iter().min().copied()).map(Root::Cycle)
}

/// Data by which two dumps show whether a thread has run in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    /// CPU time of the platform thread or, for a virtual thread that is mounted, of its carrier.
    cpu: Duration,
    /// Address of the carrier's JavaThread for a virtual thread that is mounted.
    carrier: Option<Addr>,
    /// Hash of the stack of a virtual thread that is not mounted.
    stack: u64,
}

/// The Java threads of a dump.
#[derive(Debug)]
struct Baseline {
    time: Instant,
    threads: HashMap<ThreadId, Progress>,
}

impl Baseline {
    fn of(dump: &Dump, time: Instant) -> Self {
        let platform = dump.threads.iter().filter_map(|thread| {
            let id = ThreadId::Platform(thread.java.as_ref()?.address);
            Some((id, Progress { cpu: thread.os.cpu(), ..Progress::default() }))
        });
        let found = dump.virtual_threads.iter().map(|thread| {
            let carrier = thread.carrier.and_then(|at| dump.threads.get(at));
            let progress = match carrier {
                Some(carrier) => Progress {
                    cpu: carrier.os.cpu(),
                    carrier: thread.java.carrier,
                    ..Progress::default()
                },
                None => {
                    let mut hasher = DefaultHasher::new();
                    thread.java.frames.hash(&mut hasher);
                    Progress { stack: hasher.finish(), ..Progress::default() }
                }
            };
            (ThreadId::Virtual(thread.java.number), progress)
        });
        Self { time, threads: platform.chain(found).collect() }
    }

    /// Returns whether a thread has made no progress since an earlier dump. A thread that is missing in one of the dumps
    /// may have run.
    fn is_still(&self, since: &Self, thread: ThreadId) -> bool {
        let max = self.time.saturating_duration_since(since.time).mul_f64(MAX_CPU_SHARE);
        match (since.threads.get(&thread), self.threads.get(&thread)) {
            (Some(before), Some(now)) => {
                (before.carrier, before.stack) == (now.carrier, now.stack)
                    && now.cpu.checked_sub(before.cpu).is_some_and(|used| used <= max)
            }
            _ => false,
        }
    }
}

/// Returns the standstills to which the waits `old` belong: for each wait the thread at the end of its chain,
/// if neither the waiting thread nor any owner in the chain makes progress. Chains that end in a cycle are
/// skipped.
fn stuck(
    waits: &Waits,
    old: &[&Wait],
    before: &Baseline,
    now: Option<&Baseline>,
) -> BTreeSet<Root> {
    let Some(now) = now else { return BTreeSet::new() };
    let is_still = |&thread: &ThreadId| now.is_still(before, thread);
    let root = |wait: &&Wait| {
        let (owners, root) = waits.chain(wait);
        let is_stuck = matches!(root, Root::Thread(_))
            && is_still(&wait.thread)
            && owners.iter().all(is_still);
        is_stuck.then_some(root)
    };
    old.iter().filter_map(root).collect()
}

/// Waits of a JVM's threads in successive checks.
#[derive(Debug, Default)]
struct History {
    /// For each wait of the last check: time since which all checks have found this wait.
    since: HashMap<Wait, Instant>,
    /// Deadlocks and standstills that were reported, each with the time of the last check that found it.
    reported: HashMap<Root, Instant>,
}

impl History {
    /// Adds a check. A deadlock or standstill that was reported is not reported again until no check has
    /// found it for longer than `after`. A single check that does not find it means nothing, because a check
    /// may miss threads.
    fn update(&mut self, waits: &Waits, now: Instant, after: Duration) {
        let since = |wait: &Wait| (wait.clone(), *self.since.get(wait).unwrap_or(&now));
        self.since = waits.iter().map(since).collect();
        for root in waits.iter().map(|wait| waits.chain(wait).1) {
            if let Some(last) = self.reported.get_mut(&root) {
                *last = now;
            }
        }
        self.reported.retain(|_, last| now.saturating_duration_since(*last) <= after);
    }

    /// Returns for how long a thread has waited.
    fn age(&self, wait: &Wait, now: Instant) -> Duration {
        self.since.get(wait).map_or(Duration::ZERO, |since| now.saturating_duration_since(*since))
    }

    fn is_reported(&self, root: Root) -> bool {
        self.reported.contains_key(&root)
    }

    /// Returns the waits that belong to no reported deadlock or standstill.
    fn unreported<'a>(&self, waits: &'a Waits) -> Vec<&'a Wait> {
        waits.iter().filter(|wait| !self.is_reported(waits.chain(wait).1)).collect()
    }

    fn report(&mut self, roots: impl IntoIterator<Item = Root>, now: Instant) {
        self.reported.extend(roots.into_iter().map(|root| (root, now)));
    }
}

#[cfg(test)]
mod tests {
    use libjvmprobe::hotspot::java_threads::BlockKind;

    use super::*;

    fn waits(all: &[(u64, u64)]) -> Waits {
        let wait = |&(thread, owner): &(u64, u64)| Wait {
            thread: id(thread),
            owner: id(owner),
            kind: BlockKind::Enter,
            class: "A".into(),
            carrier: None,
        };
        Waits::of(all.iter().map(wait))
    }

    /// Threads from 100 on are virtual.
    fn id(number: u64) -> ThreadId {
        if number < 100 { ThreadId::Platform(Addr(number)) } else { ThreadId::Virtual(number) }
    }

    const AFTER: Duration = Duration::from_secs(60);

    #[test]
    fn wait_with_another_owner_begins_anew() {
        let (mut history, begin) = (History::default(), Instant::now());
        let age = |history: &History, waits: &Waits, now| {
            waits.iter().map(|wait| history.age(wait, now).as_secs()).collect::<Vec<_>>()
        };
        let at = |seconds| begin + Duration::from_secs(seconds);
        let first = waits(&[(1, 9), (2, 9)]);
        history.update(&first, at(0), AFTER);
        history.update(&first, at(20), AFTER);
        let second = waits(&[(1, 9), (2, 8)]);
        history.update(&second, at(40), AFTER);
        assert_eq!(age(&history, &second, at(40)), [40, 0]);
        // One check does not find the wait of thread 1, so the age of this wait begins anew.
        history.update(&waits(&[(2, 8)]), at(50), AFTER);
        history.update(&second, at(60), AFTER);
        assert_eq!(age(&history, &second, at(60)), [0, 20]);
    }

    #[test]
    fn standstill_is_reported_once_although_further_threads_join_it() {
        let (mut history, begin) = (History::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let first = waits(&[(1, 9)]);
        history.update(&first, at(0), AFTER);
        assert_eq!(history.unreported(&first).len(), 1);
        history.report([Root::Thread(id(9))], at(0));
        let more = waits(&[(1, 9), (2, 1), (3, 9)]);
        for number in 1..100 {
            // Every third check finds no waits.
            let seen = if number % 3 == 0 { Waits::default() } else { more.clone() };
            history.update(&seen, at(20 * number), AFTER);
            assert!(history.unreported(&more).is_empty());
        }
        // Thread 9 now waits for thread 1, which turns the reported standstill into a deadlock. Thread 5
        // waits for thread 6, which is another standstill.
        let cycle = waits(&[(1, 9), (2, 1), (3, 9), (9, 1), (5, 6)]);
        history.update(&cycle, at(2000), AFTER);
        assert_eq!(history.unreported(&cycle).len(), 5);
        // No check finds the first standstill for longer than `AFTER`. Then it begins again.
        history.update(&Waits::default(), at(2020), AFTER);
        history.update(&Waits::default(), at(2100), AFTER);
        history.update(&more, at(2120), AFTER);
        assert_eq!(history.unreported(&more).len(), 3);
    }

    #[test]
    fn owner_that_runs_is_no_standstill() {
        let begin = Instant::now();
        let cpu = |ms| Progress { cpu: Duration::from_millis(ms), ..Progress::default() };
        let baseline = |after: u64, threads: &[(u64, Progress)]| Baseline {
            time: begin + Duration::from_secs(after),
            threads: threads.iter().map(|&(thread, progress)| (id(thread), progress)).collect(),
        };
        let all = waits(&[(1, 2), (2, 3), (4, 5)]);
        let old: Vec<_> = all.iter().collect();
        let before = baseline(0, &[1, 2, 3, 4, 5].map(|thread| (thread, cpu(5))));
        let now = [(1, cpu(6)), (2, cpu(5)), (3, cpu(5)), (4, cpu(5)), (5, cpu(500))];
        let now = baseline(10, &now);
        assert_eq!(stuck(&all, &old, &before, Some(&now)), [Root::Thread(id(3))].into());
        // Threads that are missing in one of the dumps may have run.
        let now = baseline(10, &[(1, cpu(6)), (2, cpu(5)), (4, cpu(5)), (5, cpu(5))]);
        assert_eq!(stuck(&all, &old, &before, Some(&now)), [Root::Thread(id(5))].into());
        let cycle = waits(&[(1, 2), (2, 1)]);
        let old: Vec<_> = cycle.iter().collect();
        assert!(stuck(&cycle, &old, &before, Some(&before)).is_empty());
    }

    #[test]
    fn virtual_thread_with_another_stack_or_carrier_is_no_standstill() {
        let all = waits(&[(101, 102)]);
        let old: Vec<_> = all.iter().collect();
        let waiting = Progress { stack: 1, ..Progress::default() };
        let baseline = |owner| Baseline {
            time: Instant::now(),
            threads: [(id(101), waiting), (id(102), owner)].into(),
        };
        let in_heap = |stack| Progress { stack, ..Progress::default() };
        let mounted = |carrier| Progress { carrier: Some(Addr(carrier)), ..Progress::default() };
        let is_stuck =
            |before, now| !stuck(&all, &old, &baseline(before), Some(&baseline(now))).is_empty();
        assert!(is_stuck(in_heap(7), in_heap(7)) && is_stuck(mounted(7), mounted(7)));
        assert!(!is_stuck(in_heap(7), in_heap(8)) && !is_stuck(mounted(7), mounted(8)));
        assert!(!is_stuck(in_heap(7), mounted(7)));
    }

    /// Lets tenants check JVMs as often as they may in 1,000 seconds, with one per cent of the time. Returns the number of checks
    /// of each, given the duration of one.
    fn checks(tenants: &[(&str, Duration)]) -> Vec<u32> {
        let (mut budget, begin) = (Budget::default(), Instant::now());
        let names: Vec<Arc<str>> = tenants.iter().map(|(name, _)| Arc::from(*name)).collect();
        let mut checks = vec![0; tenants.len()];
        for second in 0..1000 {
            budget.share(begin + Duration::from_secs(second), 10_000, names.iter());
            for ((tenant, time), checks) in tenants.iter().zip(&mut checks) {
                while budget.allows(tenant) && *checks < 100 * second as u32 {
                    budget.spend(tenant, *time);
                    *checks += 1;
                }
            }
        }
        checks
    }

    #[test]
    fn budget_limits_the_share_of_time() {
        // 100 checks for one per cent of 1,000 seconds, and 60 checks for the initial balance, which is one
        // per cent of 600 seconds.
        let [checks] = checks(&[("a", Duration::from_millis(100))])[..] else { unreachable!() };
        assert!((155..165).contains(&checks), "{checks}");
    }

    #[test]
    fn tenants_share_the_budget_fairly() {
        let (slow, quick) = (Duration::from_secs(1), Duration::from_micros(20));
        let all = checks(&[("slow", slow), ("quick", quick), ("slower", slow * 9)]);
        assert!(all[0].abs_diff(all[2]) <= 1 && (6..10).contains(&all[0]), "{all:?}");
        // Two milliseconds per second are less than a third of the budget.
        assert_eq!(all[1], 100 * 999, "{all:?}");
    }

    #[test]
    fn tenant_that_comes_later_may_begin_at_once() {
        let (mut budget, begin) = (Budget::default(), Instant::now());
        let [first, second] = ["first", "second"].map(Arc::from);
        budget.share(begin, 10_000, [&first].into_iter());
        (0..100).for_each(|_| budget.spend("first", MAX_CHARGE));
        budget.share(begin + Duration::from_secs(1), 10_000, [&first, &second].into_iter());
        assert!(!budget.allows("first") && budget.allows("second"));
        budget.share(begin + Duration::from_secs(2), 10_000, [&first].into_iter());
        assert!(!budget.allows("second"));
    }
}

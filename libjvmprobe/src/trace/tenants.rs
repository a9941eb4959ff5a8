//! Shares of the CPU time for walking and naming stacks, by tenant. A tenant (control group) whose JVMs make
//! this work expensive loses its own stacks first. The sampler and the tracer of waits have a budget each.
//!
//! The CPU time that walking a tenant's stacks takes from its JVMs, and that naming them takes from this thread, is
//! added up over an interval. At its end, the budget is shared by max-min fairness. If a tenant needs more than its
//! share, only a random part of its stacks is walked in the next interval; all its samples and waits are still counted.
//! Metadata may take half of a share. What exceeds that is left out: for the sampler, loads and unloads of compiled
//! code, so that code that is then unloaded before user space reads it from the JVM has no name; for the tracer of
//! waits, lists of threads, so that the locks for which new threads wait are unknown.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    Pid,
    process::cgroup::tenant_of,
    sys::{fair_share, thread_cpu_time},
};

/// Part of a tenant's share that metadata may take.
const MAX_METADATA_SHARE: f64 = 0.5;
/// If a tenant uses more than this multiple of its share within an interval, none of its stacks are walked
/// until the interval is over.
const MAX_BURST: f64 = 2.0;
/// Minimum share of samples whose stacks are walked. Without any walk, the cost of walking would be unknown.
const MIN_WALKED: f64 = 1.0 / 1024.0;
/// The share of samples whose stacks are walked grows at most by this factor per interval.
const MAX_GROWTH: f64 = 2.0;

/// Detail that a tenant did not get in an interval, because it exceeded its share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Limited {
    /// The tenant: see [`Container::tenant`](crate::process::cgroup::Container::tenant).
    pub(super) tenant: Arc<str>,
    /// Samples or waits whose stacks were not walked.
    pub(super) walks: u64,
    /// Items of metadata that were not recorded.
    pub(super) metadata: u64,
}

/// Limits of a process, for the kernel side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limit {
    /// Number of samples or waits in 2^32 whose stacks are not walked.
    pub(super) unwalked: u32,
    /// Whether metadata is left out.
    pub(super) leaves_out_metadata: bool,
}

/// Work that counts against a tenant's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Walking and naming stacks; for waits, all work for each of them.
    Stacks,
    /// Recording loads and unloads of compiled code, or reading lists of threads.
    Metadata,
}

/// Shares of all tenants.
#[derive(Debug)]
pub(super) struct Tenants {
    /// In millionths of a processor; `None` for no limit.
    budget: Option<Arc<AtomicU64>>,
    tenants: BTreeMap<Arc<str>, Tenant>,
    members: HashMap<u32, Member>,
    /// Usual length of an interval.
    usual: Duration,
    /// Start of the interval, and length of the one before.
    begin: Instant,
    length: Duration,
    /// This thread's CPU clock at the last charge. The work before it has been charged.
    charged: Duration,
}

#[derive(Debug)]
struct Member {
    tenant: Arc<str>,
    /// The limit that the kernel side applies now.
    applied: Limit,
    /// Number of loads and unloads left out so far.
    left_out: u64,
}

#[derive(Debug)]
struct Tenant {
    /// Share of its samples whose stacks are walked.
    walked: f64,
    /// CPU time that it may use in this interval, in nanoseconds.
    allowed_ns: f64,
    stacks: WorkTime,
    metadata: WorkTime,
    /// Detail that the tenant lost in this interval.
    walks_left_out: u64,
    metadata_left_out: u64,
}

/// CPU time spent on one kind of work in this interval.
#[derive(Clone, Copy, Debug, Default)]
struct WorkTime {
    ns: f64,
    /// Time from the start of the interval until the work was stopped because it had used too much CPU time.
    ended: Option<Duration>,
}

impl WorkTime {
    /// Returns the CPU time that would have been spent if the work had gone on for the whole interval.
    fn needed_ns(&self, elapsed: Duration) -> f64 {
        let part = self.ended.map_or(1.0, |ended| ended.as_secs_f64() / elapsed.as_secs_f64());
        self.ns / part.clamp(0.01, 1.0)
    }
}

impl Tenants {
    /// Creates the shares, without tenants and without a budget. An interval takes about `length`.
    pub(super) fn new(length: Duration) -> Self {
        Self {
            budget: None,
            tenants: BTreeMap::new(),
            members: HashMap::new(),
            usual: length,
            begin: Instant::now(),
            length,
            charged: Duration::ZERO,
        }
    }

    /// Sets the CPU time that walking and naming may take, for all tenants together, in millionths of a processor.
    pub(super) fn set_budget(&mut self, ppm: Arc<AtomicU64>) {
        self.budget = Some(ppm);
    }

    /// Adds a process that is sampled from now on.
    pub(super) fn add(&mut self, pid: u32) {
        self.add_to(pid, tenant_of(Pid(pid)));
    }

    fn add_to(&mut self, pid: u32, tenant: Arc<str>) {
        let (applied, left_out) = (Limit::default(), 0);
        self.members.insert(pid, Member { tenant, applied, left_out });
    }

    /// Begins a section of work that `charge` assigns to processes.
    pub(super) fn begin_work(&mut self) {
        if self.budget.is_some() {
            self.charged = thread_cpu_time();
        }
    }

    /// Charges the CPU time of this thread since the last call, or since work began, to a process.
    pub(super) fn charge(&mut self, pid: u32, work: Work) {
        if self.budget.is_none() {
            return;
        }
        let now = thread_cpu_time();
        let spent = now.saturating_sub(std::mem::replace(&mut self.charged, now));
        self.spend(pid, work, spent.as_nanos() as f64, self.begin.elapsed());
    }

    /// Charges CPU time that walking took from a process.
    pub(super) fn charge_walks(&mut self, pid: u32, ns: u64) {
        // The callers charge walks at the end of an interval, and when a process is no longer sampled. In both cases,
        // nothing has to be stopped even if the tenant has exceeded its budget.
        let allowed_ns = self.budget_ns(self.length);
        if let Some(tenant) = tenant_of_member(&self.members, &mut self.tenants, pid, allowed_ns) {
            tenant.stacks.ns += ns as f64;
        }
    }

    fn spend(&mut self, pid: u32, work: Work, ns: f64, since_begin: Duration) {
        let budget_ns = self.budget_ns(self.length);
        // If this thread is delayed, for example by the kernel while it attaches, intervals have very different lengths.
        let length = since_begin.max(self.usual).as_secs_f64();
        let of_last = length / self.length.as_secs_f64().max(1e-3);
        let Some(tenant) = tenant_of_member(&self.members, &mut self.tenants, pid, budget_ns)
        else {
            return;
        };
        let allowed_ns = of_last * tenant.allowed_ns;
        let (spent, allowed) = match work {
            Work::Stacks => (&mut tenant.stacks, MAX_BURST * allowed_ns),
            Work::Metadata => (&mut tenant.metadata, MAX_METADATA_SHARE * allowed_ns),
        };
        spent.ns += ns;
        if spent.ns > allowed {
            spent.ended.get_or_insert(since_begin);
        }
    }

    /// Counts samples of a process whose stacks were not walked, because its tenant exceeds its share.
    pub(super) fn leave_out_walks(&mut self, pid: u32, samples: u64) {
        let budget_ns = self.budget_ns(self.length);
        if let Some(tenant) = tenant_of_member(&self.members, &mut self.tenants, pid, budget_ns) {
            tenant.walks_left_out += samples;
        }
    }

    /// Adds the loads and unloads left out since the last call. `total` is the process's total.
    pub(super) fn leave_out_metadata(&mut self, pid: u32, total: u64) {
        let Some(member) = self.members.get_mut(&pid) else { return };
        let new = total.saturating_sub(std::mem::replace(&mut member.left_out, total));
        if let Some(tenant) = self.tenants.get_mut(&member.tenant) {
            tenant.metadata_left_out += new;
        }
    }

    /// Returns whether a process's metadata is left out.
    pub(super) fn leaves_out_metadata(&self, pid: u32) -> bool {
        self.members.get(&pid).is_some_and(|member| member.applied.leaves_out_metadata)
    }

    /// Returns the limits that have changed since the last call, by process.
    pub(super) fn take_changes(&mut self) -> Vec<(u32, Limit)> {
        let limits: BTreeMap<_, _> =
            self.tenants.iter().map(|(name, tenant)| (Arc::clone(name), tenant.limit())).collect();
        let change = |(&pid, member): (&u32, &mut Member)| {
            let limit = limits.get(&member.tenant).copied().unwrap_or_default();
            (std::mem::replace(&mut member.applied, limit) != limit).then_some((pid, limit))
        };
        self.members.iter_mut().filter_map(change).collect()
    }

    /// Ends an interval and shares the budget anew. Returns the detail that tenants lost in it. Forgets processes
    /// that are no longer sampled.
    pub(super) fn next_interval(&mut self, is_sampled: impl Fn(u32) -> bool) -> Vec<Limited> {
        let elapsed = self.begin.elapsed();
        self.begin = Instant::now();
        self.share(elapsed, is_sampled)
    }

    fn share(&mut self, elapsed: Duration, is_sampled: impl Fn(u32) -> bool) -> Vec<Limited> {
        self.length = elapsed;
        let budget_ns = self.budget_ns(elapsed);
        let needs = self.tenants.values().map(|tenant| tenant.needs_ns(elapsed));
        let share_ns = fair_share(needs, budget_ns);
        let mut limited = Vec::new();
        for (name, tenant) in &mut self.tenants {
            let (walks, metadata) = (tenant.walks_left_out, tenant.metadata_left_out);
            if walks > 0 || metadata > 0 {
                limited.push(Limited { tenant: Arc::clone(name), walks, metadata });
            }
            tenant.next_interval(elapsed, share_ns, budget_ns);
        }
        self.members.retain(|pid, _| is_sampled(*pid));
        let members = &self.members;
        self.tenants.retain(|name, _| members.values().any(|member| member.tenant == *name));
        limited
    }

    /// Returns the budget for a period of this length, in nanoseconds.
    fn budget_ns(&self, time: Duration) -> f64 {
        let budget = self.budget.as_ref().map(|ppm| ppm.load(Ordering::Relaxed) as f64 / 1e6);
        budget.map_or(f64::INFINITY, |budget| budget * time.as_nanos() as f64)
    }
}

/// Returns the tenant of a process. A new tenant may use `allowed_ns`.
fn tenant_of_member<'a>(
    members: &HashMap<u32, Member>,
    tenants: &'a mut BTreeMap<Arc<str>, Tenant>,
    pid: u32,
    allowed_ns: f64,
) -> Option<&'a mut Tenant> {
    let name = &members.get(&pid)?.tenant;
    Some(tenants.entry(Arc::clone(name)).or_insert_with(|| Tenant::new(allowed_ns)))
}

impl Tenant {
    fn new(allowed_ns: f64) -> Self {
        let spent = WorkTime::default();
        Self {
            walked: 1.0,
            allowed_ns,
            stacks: spent,
            metadata: spent,
            walks_left_out: 0,
            metadata_left_out: 0,
        }
    }

    /// Returns the CPU time that the tenant would have used without limits.
    fn needs_ns(&self, elapsed: Duration) -> f64 {
        self.stacks.needed_ns(elapsed) / self.walked + self.metadata.needed_ns(elapsed)
    }

    fn next_interval(&mut self, elapsed: Duration, share_ns: f64, budget_ns: f64) {
        let all_walks_ns = self.stacks.needed_ns(elapsed) / self.walked;
        let most = (MAX_GROWTH * self.walked).min(1.0);
        self.walked = if self.needs_ns(elapsed) <= share_ns {
            most
        } else {
            let metadata_ns = self.metadata.needed_ns(elapsed).min(MAX_METADATA_SHARE * share_ns);
            let wanted = (share_ns - metadata_ns) / all_walks_ns.max(1.0);
            wanted.min(most).max(MIN_WALKED)
        };
        self.allowed_ns = share_ns.min(budget_ns);
        (self.stacks, self.metadata) = (WorkTime::default(), WorkTime::default());
        (self.walks_left_out, self.metadata_left_out) = (0, 0);
    }

    fn limit(&self) -> Limit {
        const ALL: f64 = (1_u64 << 32) as f64;
        let unwalked = match self.stacks.ended {
            // The conversion saturates.
            None => (ALL * (1.0 - self.walked)) as u32,
            Some(_) => u32::MAX,
        };
        Limit { unwalked, leaves_out_metadata: self.metadata.ended.is_some() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MS: f64 = 1e6;

    /// Two tenants with a budget of 10 ms per second: a noisy one with processes 1 and 2, a quiet one with 3.
    fn tenants() -> Tenants {
        let mut tenants = Tenants::new(SECOND);
        tenants.set_budget(Arc::new(AtomicU64::new(10_000)));
        for (pid, tenant) in [(1, "noisy"), (2, "noisy"), (3, "quiet")] {
            tenants.add_to(pid, tenant.into());
        }
        tenants
    }

    /// Spends CPU time on stacks at the start of an interval.
    fn stacks(tenants: &mut Tenants, pid: u32, ms: f64) {
        tenants.spend(pid, Work::Stacks, ms * MS, Duration::ZERO);
    }

    fn end(tenants: &mut Tenants) -> Vec<Limited> {
        tenants.share(SECOND, |_| true)
    }

    fn walked(tenants: &Tenants, tenant: &str) -> f64 {
        tenants.tenants[tenant].walked
    }

    #[test]
    fn a_tenant_above_its_share_loses_walks_and_others_lose_nothing() {
        let mut tenants = tenants();
        for pid in [1, 2] {
            stacks(&mut tenants, pid, 8.0);
        }
        stacks(&mut tenants, 3, 2.0);
        assert!(tenants.take_changes().is_empty());
        assert!(end(&mut tenants).is_empty());
        // The quiet tenant leaves 8 ms to one that needs 16.
        assert_eq!((walked(&tenants, "noisy"), walked(&tenants, "quiet")), (0.5, 1.0));
        let mut changes = tenants.take_changes();
        changes.sort_unstable_by_key(|(pid, _)| *pid);
        let half = Limit { unwalked: 1 << 31, leaves_out_metadata: false };
        assert_eq!(changes, [(1, half), (2, half)]);
        assert!(tenants.take_changes().is_empty());
        // Half of the walks takes half of the time: the share stays.
        tenants.leave_out_walks(1, 5);
        tenants.leave_out_walks(2, 2);
        stacks(&mut tenants, 1, 8.0);
        stacks(&mut tenants, 3, 2.0);
        let expected = Limited { tenant: "noisy".into(), walks: 7, metadata: 0 };
        assert_eq!(end(&mut tenants), [expected]);
        assert_eq!((walked(&tenants, "noisy"), walked(&tenants, "quiet")), (0.5, 1.0));
        // A new process gets the limits of its tenant.
        tenants.add_to(4, "noisy".into());
        assert_eq!(tenants.take_changes(), [(4, half)]);
    }

    #[test]
    fn all_stacks_are_walked_again_when_the_load_drops() {
        let mut tenants = tenants();
        for _ in 0..3 {
            stacks(&mut tenants, 1, 19.0);
            end(&mut tenants);
        }
        let low = walked(&tenants, "noisy");
        assert!(low < 0.3, "{low}");
        stacks(&mut tenants, 1, 0.01);
        end(&mut tenants);
        assert_eq!(walked(&tenants, "noisy"), 2.0 * low);
        (0..4).for_each(|_| drop(end(&mut tenants)));
        assert_eq!(walked(&tenants, "noisy"), 1.0);
        let changes = tenants.take_changes();
        assert!(changes.is_empty(), "{changes:?}");
    }

    #[test]
    fn burst_stops_stack_walks_within_the_interval() {
        let mut tenants = tenants();
        let quarter = SECOND / 4;
        tenants.spend(1, Work::Stacks, 25.0 * MS, quarter);
        let changes: HashMap<_, _> = tenants.take_changes().into_iter().collect();
        assert_eq!(changes[&1].unwalked, u32::MAX);
        assert!(changes.contains_key(&2) && !changes.contains_key(&3));
        end(&mut tenants);
        // Over the whole interval, the walks would have taken 100 ms.
        assert_eq!(walked(&tenants, "noisy"), 0.1);
        let limits = tenants.take_changes();
        assert!(limits.iter().all(|(_, limit)| limit.unwalked < u32::MAX), "{limits:?}");
    }

    #[test]
    fn longer_interval_allows_more() {
        let mut tenants = tenants();
        let late = SECOND * 20;
        // Ten times the budget of a usual interval, after twenty of them.
        tenants.spend(3, Work::Stacks, 100.0 * MS, late);
        assert_eq!(tenants.take_changes(), []);
        tenants.share(late, |_| true);
        // The next interval has the usual length. Its first half second does not allow what the last interval did.
        tenants.spend(3, Work::Stacks, 19.0 * MS, SECOND / 2);
        assert_eq!(tenants.take_changes(), []);
        tenants.spend(3, Work::Stacks, 2.0 * MS, SECOND / 2);
        assert_eq!(
            tenants.take_changes(),
            [(3, Limit { unwalked: u32::MAX, leaves_out_metadata: false })]
        );
    }

    #[test]
    fn metadata_beyond_half_the_share_is_left_out() {
        let mut tenants = tenants();
        tenants.spend(3, Work::Metadata, 1.0 * MS, Duration::ZERO);
        tenants.spend(1, Work::Metadata, 4.0 * MS, Duration::ZERO);
        assert!(tenants.take_changes().is_empty());
        tenants.spend(1, Work::Metadata, 2.0 * MS, SECOND);
        stacks(&mut tenants, 1, 8.0);
        assert_eq!(tenants.take_changes().len(), 2);
        assert!(tenants.leaves_out_metadata(1) && !tenants.leaves_out_metadata(3));
        tenants.leave_out_metadata(1, 100);
        tenants.leave_out_metadata(2, 1);
        tenants.leave_out_metadata(1, 130);
        let expected = Limited { tenant: "noisy".into(), walks: 0, metadata: 131 };
        assert_eq!(end(&mut tenants), [expected]);
        // The quiet tenant leaves 9 ms. Metadata may use half of that, so 4.5 ms are left for the stacks.
        let walked = walked(&tenants, "noisy");
        assert!((walked - 4.5 / 8.0).abs() < 1e-9, "{walked}");
        // The next interval begins without a limit on metadata.
        tenants.take_changes();
        assert!(!tenants.leaves_out_metadata(1));
        assert!(end(&mut tenants).is_empty());
    }

    #[test]
    fn without_a_budget_nothing_is_limited() {
        let mut tenants = Tenants::new(SECOND);
        tenants.add_to(1, "noisy".into());
        tenants.spend(1, Work::Stacks, 1e12, Duration::ZERO);
        tenants.spend(1, Work::Metadata, 1e12, Duration::ZERO);
        end(&mut tenants);
        assert!(tenants.take_changes().is_empty());
    }

    #[test]
    fn tenants_without_processes_are_forgotten() {
        let mut tenants = tenants();
        stacks(&mut tenants, 1, 100.0);
        stacks(&mut tenants, 3, 1.0);
        tenants.share(SECOND, |pid| pid == 3);
        assert_eq!((tenants.members.len(), tenants.tenants.len()), (1, 1));
        // Work for a process that is no longer sampled is not charged.
        stacks(&mut tenants, 1, 100.0);
        assert_eq!(tenants.tenants.len(), 1);
    }
}

//! Duty cycles of the allocation probes in a daemon, which limit what hits cost the JVMs.
//!
//! A hit costs the allocating thread a few microseconds: a trap, which no code in the kernel can avoid, and
//! the run of a BPF program. A probe that is hit too often is therefore [detached](cycle) for a part of the
//! time. A separate thread detaches it, because the kernel blocks the detaching thread for a while.
//!
//! All tenants share one budget by max-min fairness, and the JVMs of a tenant share its part in the same way. If the
//! JVMs together exceed the budget, even with few hits each, the tenant that costs most is limited first. A probe is attached to a file, so the JVMs that run the same
//! file have their on periods together.

mod cycle;

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use self::cycle::{Action, Cycle};
use crate::{
    Pid, Result,
    bpf::{
        self, clock,
        cost::Runs,
        inodes::attached_file,
        probes::Site,
        records::bytes,
        trap_cost::trap_costs,
        uprobe::{self, Uprobe},
    },
    process::{FileId, Target, cgroup},
    sys::{Idle, fair_share, privileges, start_thread},
    trace::allocations::{
        counters::{self, Session},
        event::{ONE, duty_cycles, sampling_state},
        probes,
    },
};

/// Budget of all JVMs until another one is set, in shares of a processor.
const BUDGET: f64 = 0.005;
/// Assumed run time of the BPF programs until some runs are measured, in nanoseconds.
const FIRST_RUN_NS: f64 = 2000.0;
/// Weight of new measurements in the moving average of the run time.
const AVERAGE_WEIGHT: f64 = 0.25;

/// Duty cycles of all files, and the thread that runs them. When this value is dropped, the thread detaches
/// all probes and ends.
#[derive(Debug)]
pub(super) struct DutyCycles(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Notified when another thread has changed the state.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    maps: Maps,
    files: HashMap<FileId, File>,
    idle: Idle<FileId>,
    /// Limit of the cost of all probes, in shares of a processor.
    budget: f64,
    /// Average run time of the BPF programs, in nanoseconds.
    run_ns: f64,
    /// Estimated hits, by JVM, for which no program ran: threads still hit the trap while the probe is being
    /// detached.
    missed_hits: HashMap<u64, f64>,
    is_stopped: bool,
}

/// Work with probes, during which the state is not locked: on an overloaded host, it takes seconds.
#[derive(Debug)]
enum Task {
    /// Begins an on period of the probe, or attaches it for JVMs that were added and detaches it from those that have ended.
    Attach { of: ProbeId, uprobe: Uprobe, jvms: Vec<Pid> },
    /// Ends an on period.
    Detach { of: ProbeId, uprobe: Uprobe },
    /// Detaches the probes of files that no JVM has run for a while.
    Release(Vec<File>),
}

/// A file, and the index of one of its probes.
type ProbeId = (FileId, usize);

/// Result of a task for one probe.
#[derive(Debug)]
struct Done {
    of: ProbeId,
    uprobe: Uprobe,
    /// Result of attaching; `None` if the probe was detached.
    attached: Option<Result<()>>,
    elapsed: Duration,
}

#[derive(Debug)]
struct Maps {
    sampling_states: MapHandle,
    duties: MapHandle,
    costs: MapHandle,
}

/// A libjvm.so whose probes are attached.
#[derive(Debug)]
struct File {
    /// The probe for objects outside of TLABs, and the probe for objects that begin a TLAB.
    probes: [Probe; 2],
    /// The JVMs that run the file.
    jvms: HashMap<u64, Jvm>,
    /// For each probe, whether JVMs were added or removed since it was attached.
    is_changed: [bool; 2],
    /// Whether one of the probes was ever detached for an off period.
    has_been_off: bool,
}

/// A JVM: its process and tenant, and the runs of BPF programs measured so far.
#[derive(Debug)]
struct Jvm {
    pid: Pid,
    tenant: Arc<str>,
    runs: Runs,
}

#[derive(Debug)]
struct Probe {
    /// `None` while a [`Task`] has it.
    uprobe: Option<Uprobe>,
    cycle: Cycle,
    /// Returns the number of counted hits from a JVM's `sampling_state`.
    hits_of: fn(&sampling_state) -> u64,
    hits: HashMap<u64, Hits>,
    attach_time: Duration,
    /// Whether the last attempt to attach has failed.
    has_failed: bool,
}

/// Hits of a probe in a JVM.
#[derive(Clone, Copy, Debug, Default)]
struct Hits {
    counted: u64,
    /// Hits per second while the probe is attached.
    rate: f64,
}

impl DutyCycles {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io), [`Error::Bpf`](crate::Error::Bpf).
    pub(super) fn start(session: &Session) -> Result<Self> {
        let maps = &session.skel.maps;
        let map = |map| MapHandle::try_from(map).map_err(bpf::load_error);
        let state = State {
            maps: Maps {
                sampling_states: map(&maps.sampling_states)?,
                duties: map(&maps.duties)?,
                costs: map(&maps.costs)?,
            },
            files: HashMap::new(),
            idle: Idle::default(),
            budget: BUDGET,
            run_ns: FIRST_RUN_NS,
            missed_hits: HashMap::new(),
            is_stopped: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        let needed = privileges::MAPS | privileges::ATTACH;
        start_thread("duty-cycles", needed, move || of_thread.run())?;
        Ok(Self(shared))
    }

    /// Adds a JVM, and attaches the probes to its libjvm.so unless the file has them.
    ///
    /// # Errors
    /// The reason why probes cannot be attached to its libjvm.so.
    pub(super) fn add(&self, key: u64, target: &Target, session: &mut Session) -> Result<()> {
        let id = attached_file(&target.libjvm)?;
        let mut state = self.0.lock();
        state.forget(key);
        let State { files, maps, .. } = &mut *state;
        let pid = target.pid();
        let file = match files.entry(id) {
            Entry::Occupied(file) => file.into_mut(),
            Entry::Vacant(new) => {
                let file = File::attach(target, session)?;
                target.libjvm.check_is_same()?;
                new.insert(file)
            }
        };
        file.is_changed = [true; 2];
        let tenant = cgroup::tenant_of(pid);
        file.jvms.insert(key, Jvm { pid, tenant, runs: Runs::default() });
        file.publish(maps);
        drop(state);
        self.0.changed.notify_one();
        Ok(())
    }

    /// Forgets a JVM that has ended.
    pub(super) fn forget(&self, key: u64) {
        self.0.lock().forget(key);
    }

    /// Sets the maximum cost of the probes to all JVMs together, in shares of a processor.
    pub(super) fn set_budget(&self, budget: f64) {
        self.0.lock().budget = budget;
    }

    /// Removes and returns, by JVM, the hits for which no program ran since the previous call.
    pub(super) fn take_missed_hits(&self) -> HashMap<u64, f64> {
        std::mem::take(&mut self.0.lock().missed_hits)
    }
}

impl Drop for DutyCycles {
    fn drop(&mut self) {
        self.0.lock().is_stopped = true;
        self.0.changed.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.lock();
        while !state.is_stopped {
            if let Some(task) = state.next_task() {
                drop(state);
                let done = task.run();
                state = self.lock();
                done.into_iter().for_each(|done| state.record(done));
                continue;
            }
            let next = state.next().map_or(u64::MAX, |(due, _)| due);
            let wait = Duration::from_nanos(next.saturating_sub(clock::monotonic_ns()));
            if !wait.is_zero() {
                let waited = self.changed.wait_timeout(state, wait);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        detach(state.files.values_mut());
    }
}

impl Task {
    fn run(self) -> Option<Done> {
        let begin = Instant::now();
        let (of, uprobe, attached) = match self {
            Self::Attach { of, mut uprobe, jvms } => {
                let attached = uprobe.attach(&jvms);
                (of, uprobe, Some(attached))
            }
            Self::Detach { of, mut uprobe } => {
                uprobe::detach([&mut uprobe]);
                (of, uprobe, None)
            }
            Self::Release(mut files) => {
                detach(files.iter_mut());
                return None;
            }
        };
        Some(Done { of, uprobe, attached, elapsed: begin.elapsed() })
    }
}

impl State {
    fn forget(&mut self, key: u64) {
        for file in self.files.values_mut() {
            if file.jvms.remove(&key).is_some() {
                file.is_changed = [true; 2];
                for probe in &mut file.probes {
                    probe.hits.remove(&key);
                }
                // The result does not matter: the JVM has ended, so no hit will look the entry up.
                let _ = self.maps.duties.delete(&key.to_ne_bytes());
            }
        }
    }

    /// Returns the time at which the next probe is due, and that probe. On periods do not overlap, because
    /// detaching one probe takes a while and would prolong the on period of another.
    fn next(&self) -> Option<(u64, (FileId, usize))> {
        let probes = || {
            self.files.iter().flat_map(|(id, file)| {
                file.probes.iter().enumerate().map(move |(index, probe)| (*id, index, probe))
            })
        };
        let is_on = probes().any(|(.., probe)| probe.cycle.is_on());
        let ready = probes().filter(|(.., probe)| !(is_on && probe.cycle.is_off()));
        let due = ready.map(|(id, index, probe)| (probe.cycle.due_at(), (id, index)));
        due.min_by_key(|(due, _)| *due)
    }

    /// Counts the hits of the probe that is due, if there is one. Returns what has to be done with a probe.
    fn next_task(&mut self) -> Option<Task> {
        let unused = self.unused();
        if !unused.is_empty() {
            return Some(Task::Release(unused));
        }
        let mut used = self.files.iter_mut().filter(|(_, file)| !file.jvms.is_empty());
        let changed = used.find_map(|(&id, file)| {
            let index = (0..file.probes.len())
                .find(|&index| file.is_changed[index] && !file.probes[index].cycle.is_off())?;
            file.task(id, index)
        });
        if changed.is_some() {
            return changed;
        }
        let now = clock::monotonic_ns();
        let (due, (id, index)) = self.next()?;
        let Self { files, maps, run_ns, .. } = self;
        let file = files.get_mut(&id).filter(|_| now >= due)?;
        if file.probes[index].cycle.is_off() {
            return file.task(id, index);
        }
        let new = file.count(index, maps, now);
        if let Some(average) = new.average_ns() {
            *run_ns += AVERAGE_WEIGHT * (average - *run_ns);
        }
        let hit_cost = (trap_costs().probe_ns + *run_ns) / 1e9;
        let all = files.values().flat_map(|file| file.costs(hit_cost));
        let mut by_tenant: HashMap<_, Vec<_>> = HashMap::new();
        all.for_each(|(tenant, cost)| by_tenant.entry(tenant).or_default().push(cost));
        let shares = shares(&by_tenant, self.budget);
        let file = files.get_mut(&id)?;
        let (mut cost, mut allowed) = (0.0, 0.0);
        for (tenant, one) in file.costs_of(index, hit_cost) {
            cost += one;
            allowed += one.min(shares.get(tenant).copied().unwrap_or(0.0));
        }
        let probe = &mut file.probes[index];
        file.is_changed[index] |= probe.has_failed;
        match probe.cycle.adapt(now, cost, allowed) {
            Action::Nothing => None,
            Action::CountAll => {
                file.publish(maps);
                None
            }
            Action::Detach => {
                file.has_been_off = true;
                file.publish(maps);
                let uprobe = file.probes[index].uprobe.take()?;
                Some(Task::Detach { of: (id, index), uprobe })
            }
        }
    }

    /// Takes back a probe after a task.
    fn record(&mut self, done: Done) {
        let Done { of: (id, index), uprobe, attached, elapsed } = done;
        // Only this thread removes files, and not while it runs a task. Dropping the probe would detach it.
        let Some(file) = self.files.get_mut(&id) else { return };
        let probe = &mut file.probes[index];
        probe.uprobe = Some(uprobe);
        match attached {
            Some(attached) => probe.attached(attached, elapsed),
            None => probe.detached(elapsed, &mut self.missed_hits),
        }
        file.publish(&self.maps);
    }

    /// Removes and returns the files that no JVM has run for a while.
    fn unused(&mut self) -> Vec<File> {
        let used = self.files.iter().filter(|(_, file)| !file.jvms.is_empty()).map(|(&id, _)| id);
        let used: Vec<_> = used.collect();
        self.idle.release(&mut self.files, used, Instant::now())
    }
}

impl File {
    fn attach(target: &Target, session: &mut Session) -> Result<Self> {
        let libjvm = &target.libjvm;
        let file = Arc::new(libjvm.file()?);
        let plans = probes::sampling_plans(libjvm)?;
        let mut attach = |program: &str, hits_of: fn(&sampling_state) -> u64| {
            let plan = plans.iter().find(|plan| plan.program == program);
            let Some(Site::Function { offset, .. }) = plan.map(|plan| &plan.site) else {
                return Err(bpf::defect("find an allocation probe"));
            };
            let mut uprobe = Uprobe::new(Arc::clone(&file), *offset, session.program(program)?)?;
            uprobe.attach(&[target.pid()])?;
            Ok(Probe {
                uprobe: Some(uprobe),
                cycle: Cycle::new(clock::monotonic_ns()),
                hits_of,
                hits: HashMap::new(),
                attach_time: Duration::ZERO,
                has_failed: false,
            })
        };
        Ok(Self {
            // The probe for objects outside of TLABs is attached first: while only the other probe was
            // attached, the bytes of these objects would be counted as bytes in TLABs.
            probes: [
                attach(probes::OUTSIDE, |state| state.outside_hits)?,
                attach(probes::NEW_TLAB, |state| state.tlab_hits)?,
            ],
            jvms: HashMap::new(),
            is_changed: [false; 2],
            has_been_off: false,
        })
    }

    /// Takes a probe to attach it for the current JVMs.
    fn task(&mut self, id: FileId, index: usize) -> Option<Task> {
        let uprobe = self.probes[index].uprobe.take()?;
        self.is_changed[index] = false;
        let jvms = self.jvms.values().map(|jvm| jvm.pid).collect();
        Some(Task::Attach { of: (id, index), uprobe, jvms })
    }

    /// Returns what each probe would cost in each JVM if it were always attached, in shares of a processor, with the
    /// JVM's tenant.
    fn costs(&self, hit_cost: f64) -> impl Iterator<Item = (&Arc<str>, f64)> {
        (0..self.probes.len()).flat_map(move |index| self.costs_of(index, hit_cost))
    }

    fn costs_of(&self, index: usize, hit_cost: f64) -> impl Iterator<Item = (&Arc<str>, f64)> {
        let cost = move |(key, hits): (&u64, &Hits)| {
            Some((&self.jvms.get(key)?.tenant, hits.rate * hit_cost))
        };
        self.probes[index].hits.iter().filter_map(cost)
    }

    /// Updates the hit rate of a probe in each JVM. Returns the runs of BPF programs since the previous call.
    fn count(&mut self, index: usize, maps: &Maps, now: u64) -> Runs {
        let mut all = Runs::default();
        let Self { probes, jvms, .. } = self;
        let probe = &mut probes[index];
        let seconds = probe.cycle.counted_ns(now).max(1) as f64 / 1e9;
        for (key, Jvm { runs: before, .. }) in jvms {
            if let Some(runs) = Runs::of(&maps.costs, *key) {
                let new = runs.since(before);
                all.timed += new.timed;
                all.timed_ns += new.timed_ns;
                *before = runs;
            }
            let counted = counters::sampling_state(&maps.sampling_states, *key)
                .map_or(0, |state| (probe.hits_of)(&state));
            let hits = probe.hits.entry(*key).or_default();
            hits.rate = counted.saturating_sub(hits.counted) as f64 / seconds;
            hits.counted = counted;
        }
        all
    }

    /// Passes the duty cycles to the kernel side, once the file has had an off period.
    fn publish(&self, maps: &Maps) {
        if !self.has_been_off {
            return;
        }
        let [outside, tlab] = self.probes.each_ref().map(|probe| probe.cycle.published());
        for key in self.jvms.keys() {
            let [outside_hits, tlab_hits] = self
                .probes
                .each_ref()
                .map(|probe| probe.hits.get(key).map_or(0.0, |hits| hits.rate));
            let outside_per_tlab = (outside_hits / tlab_hits.max(1.0) * ONE as f64) as u64;
            let cycles = duty_cycles { outside, tlab, outside_per_tlab };
            // The map has as many entries as there can be JVMs.
            let _ = maps.duties.update(&key.to_ne_bytes(), bytes(&cycles), MapFlags::ANY);
        }
    }
}

impl Probe {
    /// Begins an on period if the probe was off, and it could be attached.
    fn attached(&mut self, attached: Result<()>, elapsed: Duration) {
        let has_failed = std::mem::replace(&mut self.has_failed, attached.is_err());
        if let Err(error) = &attached
            && !has_failed
        {
            log::warn!(
                "cannot attach an allocation probe: {error}; retrying; allocations are not recorded \
                 until this succeeds"
            );
        }
        if !self.cycle.is_off() {
            return;
        }
        match attached {
            Ok(()) => {
                self.attach_time = elapsed;
                self.cycle.attached(clock::monotonic_ns());
            }
            Err(_) => self.cycle.failed(clock::monotonic_ns()),
        }
    }

    /// Adds to `missed_hits` an estimate of the hits that occurred while the probe was being detached.
    fn detached(&mut self, elapsed: Duration, missed_hits: &mut HashMap<u64, f64>) {
        self.cycle.set_overhead(self.attach_time + elapsed);
        for (key, hits) in &self.hits {
            *missed_hits.entry(*key).or_default() += hits.rate * elapsed.as_secs_f64();
        }
    }
}

/// Returns the maximum cost of one probe in one JVM of each tenant, given these costs of each tenant. Infinity stands for
/// no limit.
fn shares<'a>(costs: &HashMap<&'a Arc<str>, Vec<f64>>, budget: f64) -> HashMap<Arc<str>, f64> {
    let of_tenant = fair_share(costs.values().map(|costs| costs.iter().sum()), budget);
    let share = |(tenant, costs): (&&'a Arc<str>, &Vec<f64>)| {
        (Arc::clone(tenant), fair_share(costs.iter().copied(), of_tenant))
    };
    costs.iter().map(share).collect()
}

/// Detaches all probes of these files.
fn detach<'a>(files: impl Iterator<Item = &'a mut File>) {
    uprobe::detach(
        files.flat_map(|file| &mut file.probes).filter_map(|probe| probe.uprobe.as_mut()),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_with_many_jvms_gets_no_more_than_another_one() {
        let (many, one, quiet) = ("many".into(), "one".into(), "quiet".into());
        let costs =
            HashMap::from([(&many, vec![1.0; 50]), (&one, vec![4.0, 1.0]), (&quiet, vec![0.5])]);
        let shares = shares(&costs, 5.5);
        assert_eq!((shares["many"], shares["one"]), (0.05, 1.5));
        assert!(shares["quiet"] >= 0.5);
    }
}

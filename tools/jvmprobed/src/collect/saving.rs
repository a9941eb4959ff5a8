//! Keeps the daemon's CPU time and memory within limits by reducing what is collected.
//!
//! CPU time comprises the CPU time of the daemon and the CPU time that its probes take from the JVMs. It is
//! judged by an account: each window deposits the CPU time that the limit allows for it and withdraws the CPU
//! time that was spent. The account holds at most the allowance of ten minutes and is full at the start. So
//! one expensive window, for example one in which tracers attach to JVMs, causes no step down, but a lasting
//! excess does. New JVMs add an allowance for the cost of attaching to them. The memory limit counts as
//! exceeded if the resident memory is above it at the end of two windows in a row.
//!
//! The probes of allocation have a budget of their own: half of the limit, at most 0.5 % of one processor.
//! When less than half of the account is left, the budget is only a quarter of that. The JVM whose
//! allocation probes cost most is limited first, so it loses detail before a step down takes detail from all
//! JVMs.
//!
//! Walking and naming stacks of samples has a budget, too: a sixteenth of the limit, plus an eighth of the
//! account's balance in each window. Recording waits has the same budget. A tenant that exceeds its share of one of them
//! loses stacks of that kind, so that the account is not used up. A short burst keeps all of its stacks. Under a lasting
//! load, stacks get about the part of the limit that everything else does not use.
//!
//! Some work is done at each step: the search for JVMs, pauses, storing and pushing. A tenant can make it expensive, but
//! no step makes it cheaper. Therefore the account is charged with at most half of the limit for all such work, within
//! it with at most a quarter for the probes of stops and of compiled code, and with at most half of the limit for all
//! probes together, within it with at most an eighth for those of waits, which run at each context switch. Hits of
//! processes that are not traced are not charged at all ([`Probes`]). A tenant that causes a
//! storm of stops, of allocation, of context switches or of new processes slows only itself down: it causes no step down
//! that would affect other tenants.
//!
//! New JVMs cost most, because all tracers attach to them. When less than three quarters of the account are left, JVMs are
//! followed only from a [minimum age](Saving::min_age) on, which grows up to half a minute as the account shrinks. So JVMs
//! that live for seconds are left out before others lose anything.
//!
//! When a limit is exceeded, collection goes one step down, and what is dropped must have cost a noticeable part of the
//! excess: see [`Ladder`]. After at least eight windows in a row below half of the CPU limit and below 90 % of the memory
//! limit, it goes one step up; also if the account is full again after that time. If that was too early, the next step
//! up waits twice as long.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use libjvmprobe::bpf::cost::Cost;

use crate::collect::{
    costs::{Costs, ResourceUse, ThreadCosts},
    ladder::{Ladder, Measures},
    tracers::{self, DEFAULT_WINDOW},
};

/// The account holds at most the CPU time that the limit allows in this time.
const ACCOUNT_SPAN: Duration = Duration::from_secs(600);
/// Minimum balance after a step down: the CPU time that the limit allows in this time. It gives the step time
/// to take effect before the next one.
const MIN_BALANCE: Duration = Duration::from_secs(60);
/// Approximate CPU time to attach all tracers to one JVM. The first JVM with a given libjvm.so costs more,
/// others less.
const ATTACH_COST: Duration = Duration::from_millis(250);
/// Time whose highest number of JVMs is the baseline: only JVMs beyond it count as new. With a shorter time, JVMs that
/// constantly start and exit would add an unlimited allowance.
const BASELINE: Duration = Duration::from_secs(600);
/// Share of the unused attach allowance that is kept for [`DEFAULT_WINDOW`].
const ALLOWANCE_DECAY: f64 = 0.9;
/// Part of the limit that the probes of allocation may cost all JVMs together, but at most `MAX_ALLOCATION_PERCENT`
/// percent of one processor.
const ALLOCATION_SHARE: f64 = 0.5;
const MAX_ALLOCATION_PERCENT: f64 = 0.5;
/// Part of that budget that may be used while less than half of the account is left.
const REDUCED_ALLOCATION_SHARE: f64 = 0.25;
/// Budget of walking and naming stacks: a part of the limit, plus in each [`DEFAULT_WINDOW`] a part of the account's balance.
const STACK_SHARE: f64 = 1.0 / 16.0;
const STACK_SHARE_OF_BALANCE: f64 = 0.125;
/// Part of the limit that the search for deadlocks may use, as elapsed time.
const THREAD_SHARE: f64 = 0.25;
/// Maximum part of the limit that the account is charged with for probes of stops and of compiled code.
const STOP_SHARE: f64 = 0.25;
/// Maximum part of the limit that the account is charged with for what the probes of waits take from the JVMs.
const SWITCH_SHARE: f64 = 0.125;
/// Maximum part of the limit that the account is charged with for work that no step reduces.
const FIXED_SHARE: f64 = 0.5;
/// Part of the excess that a measure must have cost in the last windows to be dropped, and the number of these windows.
const WORTHWHILE: f64 = 0.05;
const RECENT_WINDOWS: usize = 4;
/// Part of the account below which new JVMs are followed only from a minimum age on, part at which this age reaches its
/// maximum, and its range.
const PATIENT_BELOW: f64 = 0.75;
const MOST_PATIENT_AT: f64 = 0.25;
const MIN_AGE: Duration = Duration::from_secs(2);
const MAX_AGE: Duration = Duration::from_secs(30);
/// Number of windows in a row with too much memory that cause a step down.
const MAX_WINDOWS_OVER_MEMORY: u32 = 2;
/// Quiet time that a step up requires, rounded up to windows. It doubles after each step up that came too early, up to the
/// maximum.
const MIN_QUIET: Duration = Duration::from_secs(120);
const MAX_QUIET: Duration = Duration::from_secs(3600);

/// Limits on the resources that the daemon may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// CPU time, in percent of one processor.
    pub cpu_percent: f64,
    /// Resident memory, in bytes.
    pub memory_bytes: u64,
}

/// A change of the step, with its reasons.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The set of measures that is collected from now on.
    pub to: Measures,
    step: usize,
    steps: usize,
    is_down: bool,
    /// CPU use in the last window in percent of one processor, and resident memory in bytes.
    share: f64,
    memory: u64,
    processor_limit: f64,
    memory_limit: u64,
}

impl Change {
    /// Returns a sentence for the log.
    pub fn describe(&self) -> String {
        let Self { to, share, memory, processor_limit, memory_limit, .. } = *self;
        let which = if self.is_down { "less" } else { "more" };
        let mut collected = vec!["pauses".to_owned()];
        if to.hertz > 0 {
            collected.push(format!("{} CPU samples per second", to.hertz));
        }
        collected.extend(to.off_cpu.then(|| "off-CPU time".into()));
        collected.extend(to.waits.then(|| "waits".into()));
        collected.extend(to.allocation.then(|| "allocation".into()));
        format!(
            "collecting {which} from now on: {}. The last window used {share:.1} % of one CPU \
             (limit: {processor_limit:.1} % on average over ten minutes) and {} MB (limit: {} MB)",
            collected.join(", "),
            memory >> 20,
            memory_limit >> 20,
        )
    }

    /// Returns the change as JSON, for logs that programs read.
    pub fn values(&self) -> Value {
        let Self { to, step, steps, share, memory, processor_limit, memory_limit, .. } = *self;
        let cents = |number: f64| (number * 100.0).round() / 100.0;
        json!({
            "step": step,
            "steps": steps,
            "hertz": to.hertz,
            "off-cpu": to.off_cpu,
            "waits": to.waits,
            "allocation": to.allocation,
            "processor-percent": cents(share),
            "processor-limit": cents(processor_limit),
            "memory-bytes": memory,
            "memory-limit": memory_limit,
        })
    }
}

/// Decides which measures are collected.
#[derive(Debug)]
pub struct Saving {
    limits: Limits,
    /// Length of a window.
    window: Duration,
    ladder: Ladder,
    threads: ThreadCosts,
    /// Charged costs of the last windows, and by how much they exceeded the limit, in seconds.
    recent: VecDeque<(Costs, f64)>,
    /// CPU time that may still be spent before a step down, in seconds.
    account: f64,
    /// Additional CPU time for attaching to new JVMs, in seconds.
    attach_allowance: f64,
    /// Number of JVMs in each of the last windows, for [`BASELINE`].
    jvms: VecDeque<usize>,
    /// Number of windows in a row with too much memory, and number of quiet windows in a row. A quiet window
    /// is below half of the CPU limit and below 90 % of the memory limit.
    windows_over_memory: u32,
    quiet_windows: u32,
    /// Number of quiet windows in a row that a step up requires.
    required_quiet: u32,
    /// Number of windows since the last step up or down.
    since_change: u32,
    /// Number of windows since the last step up; `None` if there was none, or if a step down followed it.
    since_up: Option<u32>,
    last: (Instant, ResourceUse, Probes),
}

/// CPU time that probes took since the start from all processes that are traced, in nanoseconds. That of processes that are
/// not traced is left out: they pay for their hits themselves, and no step would change what they do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probes {
    /// Cost of the probes of stops, and of the sampler's probes, which record stops and compiled code.
    pub stops_ns: u64,
    /// Cost of the probes of allocation.
    pub allocation_ns: u64,
    /// Cost of samples.
    pub samples_ns: u64,
    /// Cost of the probes of waits.
    pub waits_ns: u64,
}

impl Probes {
    /// Adds the cost of a tracer's probes to a process.
    pub fn add(&mut self, tracer: &str, cost: &Cost) {
        let others_ns = cost.ns.saturating_sub(cost.probes_ns);
        let probes_ns = if cost.pid == 0 { 0 } else { cost.probes_ns };
        let sum = match tracer {
            tracers::STOPS => &mut self.stops_ns,
            tracers::ALLOCATION => &mut self.allocation_ns,
            tracers::WAITS => &mut self.waits_ns,
            tracers::SAMPLES => {
                self.stops_ns = self.stops_ns.saturating_add(probes_ns);
                self.samples_ns = self.samples_ns.saturating_add(others_ns);
                return;
            }
            _ => return,
        };
        *sum = sum.saturating_add(probes_ns).saturating_add(others_ns);
    }

    fn since(self, before: Self) -> Self {
        Self {
            stops_ns: self.stops_ns.saturating_sub(before.stops_ns),
            allocation_ns: self.allocation_ns.saturating_sub(before.allocation_ns),
            samples_ns: self.samples_ns.saturating_sub(before.samples_ns),
            waits_ns: self.waits_ns.saturating_sub(before.waits_ns),
        }
    }
}

impl Saving {
    /// Starts with all configured measures and a full account.
    pub fn new(limits: Limits, configured: Measures, window: Duration) -> Self {
        let last = (Instant::now(), ResourceUse::now(), Probes::default());
        Self {
            limits,
            window,
            ladder: Ladder::new(configured),
            threads: ThreadCosts::default(),
            recent: VecDeque::new(),
            account: limits.of(ACCOUNT_SPAN),
            attach_allowance: 0.0,
            jvms: VecDeque::new(),
            windows_over_memory: 0,
            quiet_windows: 0,
            required_quiet: windows_in(MIN_QUIET, window),
            since_change: 0,
            since_up: None,
            last,
        }
    }

    /// Applies new limits from now on. With a higher CPU limit, the account is full, as at the start.
    pub fn set_limits(&mut self, limits: Limits) {
        let full = limits.of(ACCOUNT_SPAN);
        let is_higher = limits.cpu_percent > self.limits.cpu_percent;
        self.account = if is_higher { full } else { self.account.min(full) };
        self.limits = limits;
    }

    /// Returns the number of steps down from the configured set.
    pub fn step(&self) -> u64 {
        self.ladder.step() as u64
    }

    /// Returns the set of measures that is collected now.
    pub fn current(&self) -> Measures {
        self.ladder.current()
    }

    /// Returns the configured measures by name, each with whether it is collected now.
    pub fn collected(&self) -> Vec<(&'static str, bool)> {
        let both = self.ladder.configured().kinds().into_iter().zip(self.current().kinds());
        both.filter(|(configured, _)| configured.1).map(|(_, current)| current).collect()
    }

    /// Returns the part of the account that is left.
    fn left(&self) -> f64 {
        self.account / self.limits.of(ACCOUNT_SPAN)
    }

    /// Returns the age below which new JVMs are not followed. It grows exponentially as the account shrinks.
    pub fn min_age(&self) -> Duration {
        let left = self.left();
        if left >= PATIENT_BELOW {
            return Duration::ZERO;
        }
        let lack = ((PATIENT_BELOW - left) / (PATIENT_BELOW - MOST_PATIENT_AT)).min(1.0);
        MIN_AGE.mul_f64(MAX_AGE.div_duration_f64(MIN_AGE).powf(lack))
    }

    /// Returns the maximum cost of the probes of allocation to all JVMs together, in millionths of a
    /// processor.
    pub fn allocation_ppm(&self) -> u64 {
        let percent = (ALLOCATION_SHARE * self.limits.cpu_percent).min(MAX_ALLOCATION_PERCENT);
        let is_low = self.left() < 0.5;
        let percent = if is_low { REDUCED_ALLOCATION_SHARE * percent } else { percent };
        (percent * 1e4) as u64
    }

    /// Returns the maximum CPU time for walking and naming stacks of samples of all tenants together, in
    /// millionths of a processor.
    pub fn stack_ppm(&self) -> u64 {
        let from_balance =
            STACK_SHARE_OF_BALANCE * self.account.max(0.0) / DEFAULT_WINDOW.as_secs_f64();
        ((STACK_SHARE * self.limits.cpu_percent / 100.0 + from_balance) * 1e6) as u64
    }

    /// Returns the maximum time for the search for deadlocks, in millionths of elapsed time.
    pub fn thread_ppm(&self) -> u64 {
        (THREAD_SHARE * self.limits.cpu_percent * 1e4) as u64
    }

    /// Judges the window that ends now, with this number of JVMs. Returns the change of the step, if there is one.
    pub fn evaluate(&mut self, jvms: usize, probes: Probes) -> Option<Change> {
        let (then, before, probes_before) = self.last;
        let now = (Instant::now(), ResourceUse::now(), probes);
        self.last = now;
        let own_ns = now.1.processor_ns.saturating_sub(before.processor_ns);
        let mut costs = self.threads.take();
        let of_tracers = Costs { fixed_ns: 0, ..costs };
        costs.fixed_ns = own_ns.saturating_sub(of_tracers.total_ns());
        let charged = self.charged(now.0 - then, costs, probes.since(probes_before));
        log::debug!("CPU time of the daemon: {costs:?}; charged: {charged:?}");
        self.evaluate_window(now.0 - then, charged, now.1.memory, jvms)
    }

    /// Returns the part of a window's costs that is charged to the account: `own` is the CPU time of the daemon.
    fn charged(&self, window: Duration, own: Costs, probes: Probes) -> Costs {
        let max_ns = |part: f64| (part * self.limits.of(window) * 1e9) as u64;
        let allocation_ns = probes.allocation_ns.min(max_ns(ALLOCATION_SHARE));
        let left_ns = max_ns(ALLOCATION_SHARE) - allocation_ns;
        let waits_ns = probes.waits_ns.min(max_ns(SWITCH_SHARE)).min(left_ns);
        let stops_ns = probes.stops_ns.min(max_ns(STOP_SHARE)).min(left_ns - waits_ns);
        let samples_ns = probes.samples_ns;
        let all = own.and(Costs { samples_ns, waits_ns, allocation_ns, fixed_ns: stops_ns });
        Costs { fixed_ns: all.fixed_ns.min(max_ns(FIXED_SHARE)), ..all }
    }

    fn evaluate_window(
        &mut self,
        window: Duration,
        charged: Costs,
        memory: u64,
        jvms: usize,
    ) -> Option<Change> {
        let Limits { cpu_percent, memory_bytes } = self.limits;
        let (spent, allowed) = (charged.total_ns() as f64 / 1e9, self.limits.of(window));
        let share = 100.0 * spent / window.as_secs_f64().max(1e-9);
        self.charge(spent, allowed, jvms);
        self.recent.push_back((charged, spent - allowed));
        if self.recent.len() > RECENT_WINDOWS {
            self.recent.pop_front();
        }
        self.windows_over_memory =
            if memory > memory_bytes { self.windows_over_memory + 1 } else { 0 };
        let is_quiet = share < cpu_percent / 2.0 && memory < memory_bytes / 10 * 9;
        self.quiet_windows = if is_quiet { self.quiet_windows + 1 } else { 0 };
        self.since_change = self.since_change.saturating_add(1);
        self.since_up = self.since_up.map(|windows| windows.saturating_add(1));

        let before = self.step();
        let is_over_memory = self.windows_over_memory >= MAX_WINDOWS_OVER_MEMORY;
        let is_recovered = self.quiet_windows >= self.required_quiet
            || (self.left() >= 1.0 && self.since_change >= self.required_quiet);
        if self.account < 0.0 || is_over_memory {
            self.account = self.account.max(self.limits.of(MIN_BALANCE));
            (self.windows_over_memory, self.quiet_windows) = (0, 0);
            self.step_down(is_over_memory);
        } else if is_recovered && memory < memory_bytes / 10 * 9 && before > 0 {
            self.quiet_windows = 0;
            self.ladder.step_up();
            self.since_up = Some(0);
        }
        if self.step() != before {
            self.since_change = 0;
            self.recent.clear();
        }
        (self.step() != before).then(|| Change {
            to: self.current(),
            step: self.ladder.step(),
            steps: self.ladder.steps(),
            is_down: self.step() > before,
            share,
            memory,
            processor_limit: cpu_percent,
            memory_limit: memory_bytes,
        })
    }

    /// Drops the next measure that has cost a noticeable part of the excess in the last windows. Too much memory is a
    /// reason to drop any measure.
    fn step_down(&mut self, is_over_memory: bool) {
        let all = Costs::default();
        let costs = self.recent.iter().fold(all, |sum, (costs, _)| sum.and(*costs));
        let excess = self.recent.iter().map(|(_, excess)| excess).sum::<f64>().max(0.0);
        let min_ns = if is_over_memory { 0 } else { (WORTHWHILE * excess * 1e9) as u64 + 1 };
        if !self.ladder.step_down(costs, min_ns) {
            log::debug!("the CPU limit is exceeded, but no measure costs much: {costs:?}");
            return;
        }
        // If the last step up was too early, the next one waits longer.
        let is_early =
            self.since_up.take().is_some_and(|windows| windows <= 2 * self.required_quiet);
        self.required_quiet = if is_early {
            (2 * self.required_quiet).min(windows_in(MAX_QUIET, self.window))
        } else {
            windows_in(MIN_QUIET, self.window)
        };
    }

    /// Charges a window to the account. An excess over the limit is first charged to the allowance for new
    /// JVMs.
    fn charge(&mut self, spent: f64, allowed: f64, jvms: usize) {
        let known = self.jvms.iter().max().copied().unwrap_or(0);
        self.attach_allowance += jvms.saturating_sub(known) as f64 * ATTACH_COST.as_secs_f64();
        self.jvms.push_back(jvms);
        if self.jvms.len() > windows_in(BASELINE, self.window) as usize {
            self.jvms.pop_front();
        }
        let decay = ALLOWANCE_DECAY.powf(self.window.div_duration_f64(DEFAULT_WINDOW));
        let attach_cost = (spent - allowed).max(0.0).min(self.attach_allowance);
        self.attach_allowance = (self.attach_allowance - attach_cost) * decay;
        self.account =
            (self.account + allowed - (spent - attach_cost)).min(self.limits.of(ACCOUNT_SPAN));
    }
}

/// Returns the number of windows that a time covers, rounded up.
fn windows_in(time: Duration, window: Duration) -> u32 {
    time.div_duration_f64(window).ceil() as u32
}

impl Limits {
    /// Returns the CPU time that may be spent in this time, in seconds.
    fn of(self, time: Duration) -> f64 {
        self.cpu_percent / 100.0 * time.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIGURED: Measures =
        Measures { hertz: 19, off_cpu: false, waits: false, allocation: true };
    const LOW_USE: u64 = 50 << 20;

    fn min_quiet() -> u32 {
        windows_in(MIN_QUIET, DEFAULT_WINDOW)
    }

    fn max_quiet() -> u32 {
        windows_in(MAX_QUIET, DEFAULT_WINDOW)
    }

    #[test]
    fn times_are_rounded_up_to_windows() {
        assert_eq!((min_quiet(), max_quiet()), (8, 240));
        assert_eq!(windows_in(MIN_QUIET, Duration::from_secs(50)), 3);
    }

    fn saving() -> Saving {
        Saving::new(
            Limits { cpu_percent: 1.0, memory_bytes: 100 << 20 },
            CONFIGURED,
            DEFAULT_WINDOW,
        )
    }

    /// Returns costs of this sum, half of them for samples and half for allocation.
    fn costs(ns: u64) -> Costs {
        Costs { samples_ns: ns / 2, allocation_ns: ns - ns / 2, ..Costs::default() }
    }

    /// Judges windows with this share of a processor until the step changes.
    fn judge_windows_until_change(
        saving: &mut Saving,
        share: f64,
        memory: u64,
    ) -> Option<(u32, Change)> {
        let costs = costs((share / 100.0 * DEFAULT_WINDOW.as_nanos() as f64) as u64);
        let mut judged =
            (1..=400).map(|n| (n, saving.evaluate_window(DEFAULT_WINDOW, costs, memory, 10)));
        judged.find_map(|(n, change)| Some((n, change?)))
    }

    #[test]
    fn sustained_overuse_steps_down_and_low_use_steps_up() {
        let mut saving = saving();
        assert_eq!(judge_windows_until_change(&mut saving, 0.99, LOW_USE), None);
        // CPU use at twice the limit uses up the full account (ten minutes' allowance) in ten minutes, and
        // the balance after a step down (one minute's allowance) in one minute.
        let (windows, change) = judge_windows_until_change(&mut saving, 2.0, LOW_USE).unwrap();
        assert_eq!((windows, change.to.hertz, saving.step()), (41, 9, 1));
        let (windows, change) = judge_windows_until_change(&mut saving, 2.0, LOW_USE).unwrap();
        assert_eq!((windows, change.to.hertz), (4, 4));
        let (_, change) = judge_windows_until_change(&mut saving, 2.0, LOW_USE).unwrap();
        assert_eq!((change.to.hertz, change.to.allocation), (4, false));
        // CPU use of 0.6 %, more than half of the limit, causes a step up only when the account is full.
        let (windows, change) = judge_windows_until_change(&mut saving, 0.6, LOW_USE).unwrap();
        assert_eq!((windows, change.to.allocation, change.is_down), (90, true, false));
        assert!(judge_windows_until_change(&mut saving, 20.0, LOW_USE).unwrap().1.is_down);
        let (windows, change) = judge_windows_until_change(&mut saving, 0.4, LOW_USE).unwrap();
        assert_eq!((windows, change.to.allocation, change.is_down), (2 * min_quiet(), true, false));
    }

    #[test]
    fn wait_before_step_up_doubles_after_each_relapse() {
        let mut saving = saving();
        judge_windows_until_change(&mut saving, 20.0, LOW_USE).unwrap();
        for round in 0..8 {
            let (windows, _) = judge_windows_until_change(&mut saving, 0.1, LOW_USE).unwrap();
            assert_eq!(windows, (min_quiet() << round).min(max_quiet()));
            assert!(judge_windows_until_change(&mut saving, 80.0, LOW_USE).unwrap().1.is_down);
        }
        // After a long time without a step down, the wait is short again.
        judge_windows_until_change(&mut saving, 0.1, LOW_USE).unwrap();
        (0..3)
            .for_each(|_| assert_eq!(judge_windows_until_change(&mut saving, 0.7, LOW_USE), None));
        judge_windows_until_change(&mut saving, 20.0, LOW_USE).unwrap();
        assert_eq!(judge_windows_until_change(&mut saving, 0.1, LOW_USE).unwrap().0, min_quiet());
    }

    #[test]
    fn allocation_probe_budget_shrinks_before_a_step_down() {
        let mut saving = saving();
        assert_eq!(saving.allocation_ppm(), 5000);
        // CPU use at twice the limit uses up half of the account, after the allowance for attaching is spent.
        for _ in 0..34 {
            let costs = costs(300_000_000);
            assert_eq!(saving.evaluate_window(DEFAULT_WINDOW, costs, LOW_USE, 10), None);
        }
        assert_eq!((saving.allocation_ppm(), saving.step()), (1250, 0));
        let large = Limits { cpu_percent: 16.0, memory_bytes: 100 << 20 };
        assert_eq!(Saving::new(large, CONFIGURED, DEFAULT_WINDOW).allocation_ppm(), 5000);
    }

    #[test]
    fn higher_cpu_limit_fills_the_account() {
        let mut saving = saving();
        let limits = |cpu_percent| Limits { cpu_percent, memory_bytes: 100 << 20 };
        saving.account = 0.5;
        saving.set_limits(limits(0.5));
        assert_eq!(saving.account, 0.5);
        saving.set_limits(limits(2.0));
        assert_eq!((saving.account, saving.min_age()), (12.0, Duration::ZERO));
    }

    #[test]
    fn stack_budget_shrinks_before_a_step_down() {
        let mut saving = saving();
        // The first term is a sixteenth of the limit. The second is an eighth of the account's six seconds,
        // spread over one window of 15 seconds.
        assert_eq!(saving.stack_ppm(), 625 + 50_000);
        let mut ppm = saving.stack_ppm();
        // Walking and naming stacks uses its complete budget in every window, and everything else uses half
        // of the limit.
        for _ in 0..400 {
            let stacks = u64::try_from(DEFAULT_WINDOW.as_nanos()).unwrap() * ppm / 1_000_000;
            let rest = 75_000_000;
            assert_eq!(
                saving.evaluate_window(DEFAULT_WINDOW, costs(stacks + rest), LOW_USE, 10),
                None,
                "{ppm}"
            );
            ppm = saving.stack_ppm();
        }
        // Everything else leaves half of the limit for stacks.
        assert!((4_900..5_100).contains(&ppm), "{ppm}");
        assert_eq!(saving.step(), 0);
    }

    #[test]
    fn probe_cost_in_jvms_counts_as_daemon_cost() {
        let mut saving = saving();
        let second = 1_000_000_000;
        // These windows last microseconds, so a second of cost in each exceeds the limit.
        let probes = |n: u64| Probes { samples_ns: n * second, ..Probes::default() };
        let steps = (1..=50).filter_map(|n| saving.evaluate(10, probes(n)));
        assert!(steps.count() > 0);
    }

    #[test]
    fn cost_of_storms_of_stops_allocation_and_context_switches_causes_no_step_down() {
        let mut saving = saving();
        let second = 1_000_000_000;
        // Stops cost a fifth of a processor, and so do allocation, context switches and the search for JVMs.
        let storm = Probes {
            stops_ns: 3 * second,
            allocation_ns: 3 * second,
            waits_ns: 3 * second,
            samples_ns: 0,
        };
        let search = Costs { fixed_ns: 3 * second, ..Costs::default() };
        for _ in 0..400 {
            let charged = saving.charged(DEFAULT_WINDOW, search, storm);
            assert_eq!(saving.evaluate_window(DEFAULT_WINDOW, charged, LOW_USE, 10), None);
        }
        let all = Probes { samples_ns: second, ..storm };
        let charged = |own, probes| saving.charged(DEFAULT_WINDOW, own, probes);
        let expected =
            Costs { samples_ns: second, waits_ns: 0, allocation_ns: 75_000_000, fixed_ns: 0 };
        assert_eq!(charged(Costs::default(), all), expected);
        let stops = charged(Costs::default(), Probes { allocation_ns: 0, waits_ns: 0, ..all });
        assert_eq!(stops.fixed_ns, 37_500_000);
        assert_eq!(charged(search, all), Costs { fixed_ns: 75_000_000, ..expected });
        let switches = charged(Costs::default(), Probes { allocation_ns: 0, ..storm });
        assert_eq!((switches.waits_ns, switches.allocation_ns), (18_750_000, 0));
        let few =
            Probes { stops_ns: 1000, allocation_ns: 2000, waits_ns: 4000, ..Probes::default() };
        assert_eq!(charged(Costs::default(), few).total_ns(), 7000);
    }

    #[test]
    fn probe_hits_of_a_process_that_is_not_traced_cause_no_step_down() {
        let mut saving = saving();
        let second = 1_000_000_000;
        let hits = |pid, ns| Cost { pid, ns, probes_ns: ns, ..Cost::default() };
        let all = [tracers::STOPS, tracers::ALLOCATION, tracers::WAITS, tracers::SAMPLES];
        let mut probes = Probes::default();
        all.iter().for_each(|tracer| probes.add(tracer, &hits(0, second)));
        assert_eq!(probes, Probes::default());
        // A traced JVM that executes all probes all the time is charged as much as a storm of stops, so samples of
        // others go on.
        all.iter().for_each(|tracer| probes.add(tracer, &hits(7, second)));
        let interrupts = Cost { ns: 1_000_000, ..Cost::default() };
        probes.add(tracers::SAMPLES, &interrupts);
        assert_eq!((probes.stops_ns, probes.samples_ns), (2 * second, 1_000_000));
        let own = Costs { fixed_ns: 30_000_000, samples_ns: 10_000_000, ..Costs::default() };
        for _ in 0..400 {
            let charged = saving.charged(DEFAULT_WINDOW, own, probes);
            assert_eq!(saving.evaluate_window(DEFAULT_WINDOW, charged, LOW_USE, 10), None);
        }
    }

    #[test]
    fn minimum_age_grows_with_the_shortage_and_short_lived_jvms_cause_no_step_down() {
        let mut saving = saving();
        assert_eq!(saving.min_age(), Duration::ZERO);
        let account = |part: f64| Saving {
            account: part * Limits { cpu_percent: 1.0, memory_bytes: 0 }.of(ACCOUNT_SPAN),
            ..self::saving()
        };
        let ages = [0.74, 0.5, 0.25, 0.0].map(|part| account(part).min_age().as_secs());
        assert_eq!(ages, [2, 7, 30, 30]);
        // JVMs that live for four seconds start all the time. While they are followed, they cost 2 %.
        for _ in 0..400 {
            let is_followed = saving.min_age() < Duration::from_secs(4);
            let costs = costs(if is_followed { 300_000_000 } else { 75_000_000 });
            assert_eq!(saving.evaluate_window(DEFAULT_WINDOW, costs, LOW_USE, 10), None);
        }
        assert!(saving.left() > 0.5);
    }

    #[test]
    fn attach_cost_is_exempt_but_jvm_churn_is_charged() {
        let mut saving = saving();
        let second = |n: u64| n * 1_000_000_000;
        // 500 JVMs at the start, then 200 more; after each start, some windows use a whole processor.
        for (jvms, windows) in [(500, 6), (700, 3)] {
            for _ in 0..windows {
                assert_eq!(
                    saving.evaluate_window(DEFAULT_WINDOW, costs(second(15)), LOW_USE, jvms),
                    None,
                    "{jvms}"
                );
            }
            for _ in 0..40 {
                let nothing = saving.evaluate_window(DEFAULT_WINDOW, costs(0), LOW_USE, jvms);
                assert_eq!(nothing, None);
            }
        }
        // The number of JVMs is no higher than before, but they are other JVMs each time.
        let windows: Vec<_> = (0..100)
            .filter_map(|n| {
                let costs = costs(second(15));
                saving.evaluate_window(DEFAULT_WINDOW, costs, LOW_USE, 600 + n % 2 * 100)
            })
            .collect();
        assert!(windows.len() == saving.ladder.steps(), "{windows:?}");
    }

    #[test]
    fn lasting_memory_excess_steps_down() {
        let mut saving = saving();
        for memory in [101, 99, 101, 99] {
            assert_eq!(saving.evaluate_window(DEFAULT_WINDOW, costs(0), memory << 20, 1), None);
        }
        let (windows, change) = judge_windows_until_change(&mut saving, 0.1, 101 << 20).unwrap();
        assert_eq!((windows, change.to.hertz), (MAX_WINDOWS_OVER_MEMORY, 9));
        // Steps down end at the last step, and steps up end at the configured set.
        for _ in 0..20 {
            saving.evaluate_window(DEFAULT_WINDOW, costs(0), 200 << 20, 1);
        }
        assert_eq!(saving.current(), Measures { hertz: 0, allocation: false, ..CONFIGURED });
        for _ in 0..100 * min_quiet() {
            saving.evaluate_window(DEFAULT_WINDOW, costs(0), 0, 1);
        }
        assert_eq!((saving.current(), saving.step()), (CONFIGURED, 0));
    }

    #[test]
    fn step_is_reported_as_one_line_and_as_json() {
        let mut saving = saving();
        let (_, change) = judge_windows_until_change(&mut saving, 50.0, 101 << 20).unwrap();
        let message = change.describe();
        assert!(message.starts_with("collecting less from now on: pauses, 9 CPU samples"));
        assert_eq!(message.lines().count(), 1);
        let values = change.values();
        let expected = [("step", json!(1)), ("steps", json!(6)), ("hertz", json!(9))];
        assert!(expected.iter().all(|(name, value)| values[name] == *value), "{values}");
        assert_eq!((&values["off-cpu"], &values["allocation"]), (&json!(false), &json!(true)));
        assert_eq!(values["processor-percent"], json!(50.0));
    }
}

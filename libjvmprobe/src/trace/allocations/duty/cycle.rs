//! Duty cycle of one probe: decides when the probe is attached, so that the cost of its hits stays within a
//! limit.
//!
//! A probe whose cost is within its limit is always attached. Any other probe is attached for on periods of 20
//! ms to two seconds. The off periods between them are long enough to keep the average cost within the limit.
//! The hits in an on period represent all hits since the end of the previous on period.
//!
//! Attaching and detaching take time, too. Hits during that time cost CPU time, but are not counted.

use std::time::Duration;

use crate::trace::allocations::event::{ALWAYS_ON, ONE, duty_cycle};

/// A probe that is always attached may exceed its limit by this factor. Otherwise, a probe whose cost is near
/// its limit would often change between always attached and a duty cycle.
const HYSTERESIS: f64 = 1.25;
/// Interval at which the hits of a probe that is always attached are counted.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// Minimum sum of the lengths of an on period and of the off period after it. The off period is then varied
/// by up to a quarter. Attaching and detaching costs the daemon about 1.5 ms of CPU time, so a shorter cycle would cost
/// too much, and a longer one would leave too few on periods in a window of 15 s.
const MIN_CYCLE: Duration = Duration::from_secs(1);
/// Minimum length of an on period.
const MIN_ON: Duration = Duration::from_millis(20);
/// Assumed time to attach and detach a probe until it is measured. Since Linux 6.13 the kernel waits for RCU
/// readers of the programs before it removes the breakpoints.
const FIRST_OVERHEAD: Duration = Duration::from_millis(70);
/// Maximum length of an off period, before it is varied by up to a quarter. Off periods become longer than a
/// window of 15 s only if hundreds of JVMs allocate all the time.
const MAX_OFF: Duration = Duration::from_secs(60);
/// Time between a failure to attach and the next attempt.
const RETRY: Duration = Duration::from_secs(10);
/// Lower bound of [`Cycle::share`]. At this bound, the actual share is larger, because [`MAX_OFF`] limits the
/// off periods.
const MIN_SHARE: f64 = 1e-4;

/// Duty cycle of a probe. Times are in nanoseconds on `CLOCK_MONOTONIC`.
#[derive(Debug)]
pub(super) struct Cycle {
    phase: Phase,
    /// Share of the time in which the probe is attached, 0 to 1.
    share: f64,
    /// Time to attach and detach the probe.
    overhead: Duration,
    /// Time up to which the counted hits represent all hits.
    represented_until: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The probe is always attached and all hits count. `counted` is the time of the last count.
    Always { counted: u64 },
    /// The probe is detached.
    Off { until: u64 },
    /// The probe is attached, and hits count until `until`.
    On { since: u64, until: u64 },
}

/// Action that the caller has to take for a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    /// Publish [`Cycle::published`], then detach the probe.
    Detach,
    /// Publish [`Cycle::published`]: all hits count from now on.
    CountAll,
}

impl Cycle {
    /// Creates the cycle of a probe that is attached.
    pub(super) fn new(now: u64) -> Self {
        let phase = Phase::Always { counted: now };
        Self { phase, share: 1.0, overhead: FIRST_OVERHEAD, represented_until: now }
    }

    /// Returns the time of the caller's next action. In an off period, the caller then attaches the probe and
    /// calls [`Cycle::attached`]; otherwise it calls [`Cycle::adapt`].
    pub(super) fn due_at(&self) -> u64 {
        match self.phase {
            Phase::Always { counted } => counted + ns(COUNT_EVERY),
            Phase::Off { until } | Phase::On { until, .. } => until,
        }
    }

    /// Whether this is an on period.
    pub(super) fn is_on(&self) -> bool {
        matches!(self.phase, Phase::On { .. })
    }

    /// Whether this is an off period.
    pub(super) fn is_off(&self) -> bool {
        matches!(self.phase, Phase::Off { .. })
    }

    /// Returns for how many nanoseconds hits have been counted since the last count.
    pub(super) fn counted_ns(&self, now: u64) -> u64 {
        match self.phase {
            Phase::Always { counted } => now.saturating_sub(counted),
            Phase::Off { .. } => 0,
            Phase::On { since, until } => until.saturating_sub(since),
        }
    }

    /// Returns the state that the kernel side needs.
    pub(super) fn published(&self) -> duty_cycle {
        match self.phase {
            Phase::Always { .. } => duty_cycle { on_until_ns: ALWAYS_ON, weight: ONE },
            Phase::Off { .. } => duty_cycle { on_until_ns: 0, weight: 0 },
            Phase::On { since, until } => {
                let represented = until.saturating_sub(self.represented_until) as f64;
                let weight = represented / until.saturating_sub(since).max(1) as f64;
                duty_cycle { on_until_ns: until, weight: (weight * ONE as f64).round() as u64 }
            }
        }
    }

    /// Starts an on period, after the probe was attached.
    pub(super) fn attached(&mut self, now: u64) {
        self.phase = Phase::On { since: now, until: now + ns(self.on()) };
    }

    /// Starts another off period, after the probe could not be attached.
    pub(super) fn failed(&mut self, now: u64) {
        self.phase = Phase::Off { until: now + ns(RETRY) };
    }

    /// Adapts the cycle of an attached probe, if that is due. `cost` is what its hits would cost if the probe
    /// were always attached, and `allowed` is the limit; both are shares of a processor.
    pub(super) fn adapt(&mut self, now: u64, cost: f64, allowed: f64) -> Action {
        if now < self.due_at() {
            return Action::Nothing;
        }
        let share = allowed / cost.max(f64::MIN_POSITIVE);
        match self.phase {
            Phase::Off { .. } => return Action::Nothing,
            Phase::Always { .. } => {
                self.represented_until = now;
                if cost <= HYSTERESIS * allowed {
                    self.phase = Phase::Always { counted: now };
                    return Action::Nothing;
                }
                self.share = share.clamp(MIN_SHARE, 1.0);
            }
            Phase::On { until, .. } => {
                self.represented_until = until;
                // The share at most doubles, because the next on period need not be as quiet as this one.
                self.share = share.min(2.0 * self.share).max(MIN_SHARE);
                if self.share >= 1.0 {
                    self.phase = Phase::Always { counted: now };
                    return Action::CountAll;
                }
            }
        }
        self.phase = Phase::Off { until: now + ns(self.off(now)) };
        Action::Detach
    }

    /// Sets the time that attaching and detaching took together.
    pub(super) fn set_overhead(&mut self, overhead: Duration) {
        self.overhead = overhead;
    }

    fn on(&self) -> Duration {
        MIN_CYCLE.mul_f64(self.share).max(MIN_ON)
    }

    fn off(&self, now: u64) -> Duration {
        let attached = self.on() + self.overhead;
        let off = attached.mul_f64(1.0 / self.share - 1.0).min(MAX_OFF);
        // Varies the length by up to a quarter either way, so that the off periods do not coincide with a
        // rhythm of the program.
        let chance = now.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        off.mul_f64(0.75 + 0.5 * chance as f64 / 2_f64.powi(32))
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    /// Allowed hits per second, and the cost of one hit in processor seconds.
    const HITS: f64 = 1500.0;
    const HIT: f64 = 3e-6;

    /// Runs a cycle from `now` on for some seconds, with this number of hits per second. Returns the share of
    /// the time in which the probe is attached, the share that its hits represent, and the number of on
    /// periods.
    fn run(cycle: &mut Cycle, now: &mut u64, seconds: u64, rate: f64) -> (f64, f64, u32) {
        let (begin, mut attached, mut represented, mut times) = (*now, 0, 0.0, 0);
        while *now < begin + seconds * SECOND {
            let (from, weight) = (*now, cycle.published().weight);
            *now = cycle.due_at();
            if cycle.is_off() {
                *now += ns(FIRST_OVERHEAD) / 10;
                cycle.attached(*now);
                times += 1;
                continue;
            }
            let counted = *now - from;
            attached += counted + if cycle.is_on() { ns(FIRST_OVERHEAD) } else { 0 };
            represented += counted as f64 * weight as f64 / ONE as f64;
            cycle.adapt(*now, rate * HIT, HITS * HIT);
        }
        let all = (*now - begin) as f64;
        (attached as f64 / all, represented / all, times)
    }

    #[test]
    fn a_probe_below_its_limit_is_always_attached() {
        let (mut cycle, mut now) = (Cycle::new(7), 7);
        assert_eq!(run(&mut cycle, &mut now, 60, 1800.0), (1.0, 1.0, 0));
        assert_eq!(cycle.published().on_until_ns, ALWAYS_ON);
    }

    #[test]
    fn probe_above_its_limit_is_throttled_and_weighted() {
        for rate in [2000.0, 5000.0, 20_000.0, 100_000.0] {
            let (mut cycle, mut now) = (Cycle::new(0), 0);
            run(&mut cycle, &mut now, 5, rate);
            let (attached, represented, times) = run(&mut cycle, &mut now, 300, rate);
            assert!((0.8..1.15).contains(&(attached * rate / HITS)), "{rate}: {attached}");
            assert!((0.97..1.03).contains(&represented), "{rate}: {represented}");
            assert!(times <= 330, "{rate}: {times}");
        }
    }

    #[test]
    fn probe_is_always_attached_again_when_hits_drop() {
        let (mut cycle, mut now) = (Cycle::new(0), 0);
        run(&mut cycle, &mut now, 30, 100_000.0);
        assert_ne!(cycle.published().on_until_ns, ALWAYS_ON);
        run(&mut cycle, &mut now, 60, 100.0);
        assert_eq!(cycle.published().on_until_ns, ALWAYS_ON);
    }

    #[test]
    fn failed_attachment_is_retried() {
        let mut cycle = Cycle::new(0);
        assert_eq!(cycle.adapt(ns(COUNT_EVERY), 3.0, HITS * HIT), Action::Detach);
        assert!(cycle.is_off());
        assert_eq!(cycle.published().weight, 0);
        let due = cycle.due_at();
        cycle.failed(due);
        assert!(cycle.is_off());
        assert_eq!(cycle.due_at(), due + ns(RETRY));
    }
}

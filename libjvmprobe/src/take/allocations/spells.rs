//! When probes are listened to that are hit too often.
//!
//! Each hit costs the thread that allocates a trap and the run of a program, some microseconds together:
//! a thousand hits per second cost 0.2 to 0.5 % of a processor. All JVMs together have a budget
//! (`listening.rs`). A file whose JVMs exceed their part of it has its probes attached only for on periods
//! of at least 20 ms, so far apart that the cost stays within that part. Each on period represents the time
//! since the one before.
//!
//! Not all of these are heard: from the first attachment until the spell begins, and after its end
//! until the kernel has let go, they are in vain.

use std::time::Duration;

use crate::take::allocations::event::{ONE, spell};

/// Probes that are attached all the time may cost this much more than they are allowed to, so that it is
/// not back and forth.
const TOO_MUCH: f64 = 1.25;
/// How often hits are counted while all are heard.
const LOOK: Duration = Duration::from_secs(1);
/// A spell and the silence before it are not shorter together,
const PERIOD: Duration = Duration::from_secs(1);
/// nor is a spell than this.
const SHORTEST: Duration = Duration::from_millis(20);
/// How long hits are in vain, for each spell, until that is measured: since Linux 6.13 the kernel
/// waits for readers of programs before it lets processes go on without stopping.
const IN_VAIN: Duration = Duration::from_millis(70);
/// Windows are longer, so that each has an on period, unless hundreds of JVMs allocate all the time.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);
/// After a failure to attach, the next attempt is made after this time.
const RETRY: Duration = Duration::from_secs(10);

/// A share of time below this has no meaning: see [`LONGEST_SILENCE`].
const LEAST_SHARE: f64 = 1e-4;

/// How a probe is listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spell {
    /// What comes later is not heard.
    until_ns: u64,
    /// For so many, in 256ths, stands one that is heard.
    weight: u64,
}

impl Spell {
    /// Nothing is heard.
    const NONE: Self = Self { until_ns: 0, weight: 0 };
    /// All is.
    pub(crate) const ALWAYS: Self = Self { until_ns: u64::MAX, weight: ONE };
}

impl From<Spell> for spell {
    fn from(Spell { until_ns, weight }: Spell) -> Self {
        Self { until_ns, weight }
    }
}

/// The spells in which one file's probes are listened to. Times are the kernel's, in nanoseconds.
#[derive(Debug)]
pub(crate) struct Spells {
    /// Of the time that it is attached.
    share: f64,
    state: State,
    /// How long hits may be in vain for each spell.
    in_vain: Duration,
    /// Up to here a hit that was heard stands for all.
    told_until: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// All are heard. Hits were counted then.
    Always { since: u64 },
    /// None is.
    Silent { until: u64 },
    /// Those of a spell are.
    Spell { since: u64, until: u64 },
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing.
    Stay,
    /// To let go of what is hit too often, after the JVMs were told.
    LetGo,
    /// To tell the JVMs that all is heard from now on.
    HearAll,
}

impl Spells {
    /// All is heard.
    pub(crate) fn new(now: u64) -> Self {
        let state = State::Always { since: now };
        Self { share: 1.0, state, in_vain: IN_VAIN, told_until: now }
    }

    /// When it is [`Spells::due`].
    pub(crate) fn next(&self) -> u64 {
        match self.state {
            State::Always { since } => since + ns(LOOK),
            State::Silent { until } | State::Spell { until, .. } => until,
        }
    }

    /// Whether one goes on.
    pub(crate) fn is_in_spell(&self) -> bool {
        matches!(self.state, State::Spell { .. })
    }

    /// For how long hits were heard that are counted now.
    pub(crate) fn heard_for(&self, now: u64) -> u64 {
        match self.state {
            State::Always { since } => now.saturating_sub(since),
            State::Silent { .. } => 0,
            State::Spell { since, until } => until.saturating_sub(since),
        }
    }

    /// Whether it waits for one.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self.state, State::Silent { .. })
    }

    /// Whether it is time to attach: a spell begins when that is done.
    pub(crate) fn due_to_attach(&self, now: u64) -> bool {
        self.is_silent() && now >= self.next()
    }

    /// What the JVMs are to be told.
    pub(crate) fn told(&self) -> Spell {
        match self.state {
            State::Always { .. } => Spell::ALWAYS,
            State::Silent { .. } => Spell::NONE,
            State::Spell { since, until } => {
                let stands_for = until.saturating_sub(self.told_until) as f64;
                let weight = stands_for / until.saturating_sub(since).max(1) as f64;
                Spell { until_ns: until, weight: (weight * ONE as f64).round() as u64 }
            }
        }
    }

    /// Returns what is to be done now. `cost` is what the hits would cost if the probes were always
    /// attached, as the on period (or the time since the last call) shows, and `allowed` what they may
    /// cost: both in shares of a processor.
    pub(crate) fn due(&mut self, now: u64, cost: f64, allowed: f64) -> Turn {
        if now < self.next() {
            return Turn::Stay;
        }
        let share = allowed / cost.max(f64::MIN_POSITIVE);
        match self.state {
            State::Always { .. } => {
                self.state = State::Always { since: now };
                self.told_until = now;
                if cost <= TOO_MUCH * allowed {
                    return Turn::Stay;
                }
                self.share = share.clamp(LEAST_SHARE, 1.0);
                self.silence(now);
                Turn::LetGo
            }
            State::Silent { .. } => Turn::Stay,
            State::Spell { until, .. } => {
                self.told_until = until;
                // Where few are hit of what is many at other times, it is soon found out.
                self.share = share.min(2.0 * self.share).max(LEAST_SHARE);
                if self.share >= 1.0 {
                    self.state = State::Always { since: now };
                    return Turn::HearAll;
                }
                self.silence(now);
                Turn::LetGo
            }
        }
    }

    /// It is attached: a spell begins.
    pub(crate) fn attached(&mut self, now: u64) {
        self.state = State::Spell { since: now, until: now + ns(self.length()) };
    }

    /// So long it takes to attach, and to let go.
    pub(crate) fn takes(&mut self, to_attach: Duration, to_let_go: Duration) {
        self.in_vain = to_attach + to_let_go;
    }

    /// It could not be attached: after a while it is tried again.
    pub(crate) fn failed(&mut self, now: u64) {
        self.state = State::Silent { until: now + ns(RETRY) };
    }

    /// Of a spell.
    fn length(&self) -> Duration {
        PERIOD.mul_f64(self.share).max(SHORTEST)
    }

    fn silence(&mut self, now: u64) {
        let attached = self.length() + self.in_vain;
        let silence = attached.mul_f64(1.0 / self.share - 1.0).min(LONGEST_SILENCE);
        // Longer or shorter by up to a quarter: a program may have a rhythm of its own.
        let chance = now.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let silence = silence.mul_f64(0.75 + 0.5 * chance as f64 / 2_f64.powi(32));
        self.state = State::Silent { until: now + ns(silence) };
    }
}

/// A time in nanoseconds.
pub(super) fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Hits a second.
pub(crate) fn rate(hits: u64, ns: u64) -> f64 {
    hits as f64 * 1e9 / ns.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    /// Hits per second that are allowed, and what one costs.
    const HITS: f64 = 1500.0;
    const HIT: f64 = 3e-6;

    /// Runs it from a time on for so long, with so many hits a second; returns for which part of the
    /// time it was attached, which part was told of, and how often it was attached.
    fn run(spells: &mut Spells, now: &mut u64, seconds: u64, rate: f64) -> (f64, f64, u32) {
        let (begin, mut attached, mut told, mut times) = (*now, 0, 0.0, 0);
        let (mut from, mut on) = (begin, !spells.is_silent());
        while *now < begin + seconds * SECOND {
            let next = spells.next();
            let before = spells.told();
            *now = next;
            let heard = if on { *now - from } else { 0 };
            if spells.due_to_attach(*now) {
                *now += ns(IN_VAIN) / 10;
                spells.attached(*now);
                (on, times) = (true, times + 1);
            } else if spells.due(*now, rate * HIT, HITS * HIT) == Turn::LetGo {
                on = false;
            }
            attached += heard + if spells.is_in_spell() && heard == 0 { ns(IN_VAIN) } else { 0 };
            told += heard as f64 * before.weight as f64 / ONE as f64;
            from = *now;
        }
        let all = (*now - begin) as f64;
        (attached as f64 / all, told / all, times)
    }

    #[test]
    fn few_hits_are_all_heard() {
        let mut now = 7;
        let mut spells = Spells::new(now);
        assert_eq!(run(&mut spells, &mut now, 60, 1800.0), (1.0, 1.0, 0));
        assert_eq!(spells.told().until_ns, u64::MAX);
    }

    #[test]
    fn of_many_hits_so_many_are_heard_and_stand_for_all() {
        for rate in [2000.0, 5000.0, 20_000.0, 100_000.0] {
            let (mut spells, mut now) = (Spells::new(0), 0);
            run(&mut spells, &mut now, 5, rate);
            let (attached, told, times) = run(&mut spells, &mut now, 300, rate);
            assert!((0.8..1.15).contains(&(attached * rate / HITS)), "{rate}: {attached}");
            assert!((0.97..1.03).contains(&told), "{rate}: {told}");
            assert!(times <= 330, "{rate}: {times}");
        }
    }

    #[test]
    fn when_there_are_few_again_all_are_heard() {
        let (mut spells, mut now) = (Spells::new(0), 0);
        run(&mut spells, &mut now, 30, 100_000.0);
        run(&mut spells, &mut now, 60, 100.0);
        assert_eq!(spells.told(), Spell::ALWAYS);
    }

    #[test]
    fn what_cannot_be_attached_is_tried_again() {
        let mut spells = Spells::new(0);
        spells.due(ns(LOOK), 3.0, HITS * HIT);
        assert_eq!(spells.told(), Spell::NONE);
        let next = spells.next();
        assert!(spells.due_to_attach(next));
        spells.failed(next);
        assert!(!spells.due_to_attach(next + 1));
        assert!(spells.due_to_attach(spells.next()));
    }
}

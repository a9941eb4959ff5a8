//! What was asked for, out of what is kept.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use anyhow::{Result, bail};
use jiff::Timestamp;
use libjvmprobe::stack::{
    joined::join,
    profile::{Measure, Profile},
};
use regex::Regex;
use serde_json::Value;

use crate::{
    show::when::span,
    store::{Stored, merge::put_together, shelf::Shelf},
    window::{Identity, Taken, Window},
};

/// What was taken of some JVMs in a time.
#[derive(Debug)]
pub struct Chosen {
    /// When that begins, in nanoseconds since 1970.
    pub from_ns: u64,
    /// When it ends.
    pub until_ns: u64,
    /// For how long something was taken in it.
    pub covered_ns: u64,
    /// For how long of that something was left out, by the name of its measure, in nanoseconds.
    pub left_out: BTreeMap<String, u64>,
    /// The lowest and the highest rate at which processor samples were taken, a second.
    pub rates: Option<(u64, u64)>,
    /// The JVMs, each once.
    pub jvms: Vec<Taken>,
}

impl Chosen {
    /// Reads it.
    ///
    /// # Errors
    /// A line that says what there is instead, where there is nothing.
    pub fn read(shelf: &Shelf, from_ns: u64, until_ns: u64, jvm: Option<&Regex>) -> Result<Self> {
        if from_ns >= until_ns {
            bail!("--since is to be before --until, which is now where it is not given");
        }
        let windows = shelf.read(from_ns, until_ns)?;
        let (first, last) = (
            windows.iter().map(|stored| stored.window.begin_ns).min(),
            windows.iter().map(|stored| stored.window.end_ns).max(),
        );
        let (Some(first), Some(last)) = (first, last) else {
            let spans = shelf.kept()?;
            // The newest ones are the most likely ones.
            let told: Vec<_> =
                spans.iter().rev().take(5).map(|&(from, until)| span(from, until)).collect();
            let asked = span(from_ns, until_ns);
            match told.is_empty() {
                true => bail!("nothing is kept yet: not from {asked}, nor of any other time"),
                false => bail!("nothing is kept from {asked}; kept are {}", told.join(", ")),
            }
        };
        let from_ns = from_ns.max(first);
        let until_ns = until_ns.min(last).max(from_ns);
        let covered_ns = windows
            .iter()
            .map(|stored| share(stored.covered_ns, &stored.window, from_ns, until_ns))
            .sum();
        let mut left_out = BTreeMap::new();
        for window in windows.iter().map(|stored| &stored.window) {
            for (what, &ns) in &window.left_out {
                *left_out.entry(what.clone()).or_insert(0) += share(ns, window, from_ns, until_ns);
            }
        }
        let rates = rates(&windows);
        let cut = windows.into_iter().map(|mut stored| {
            cut_out(&mut stored, from_ns, until_ns);
            stored.window
        });
        let all = put_together(cut);
        let names = names_of(all.iter().map(|taken| &taken.who));
        let mut jvms: Vec<_> = all
            .into_iter()
            .filter(|taken| jvm.is_none_or(|jvm| matches(&taken.who, jvm)))
            .collect();
        if let (Some(jvm), true) = (jvm, jvms.is_empty()) {
            bail!("no JVM from {} matches `{jvm}`; there were {names}", span(from_ns, until_ns));
        }
        jvms.sort_by_key(|taken| (taken.who.name.clone(), taken.who.pid, taken.who.started_ns));
        Ok(Self { from_ns, until_ns, covered_ns, left_out, rates, jvms })
    }

    /// One profile of all of them.
    pub fn profile(&mut self, measure: &Measure) -> Profile {
        let mut all = Vec::new();
        for taken in &mut self.jvms {
            let (wanted, others) = std::mem::take(&mut taken.profiles)
                .into_iter()
                .partition(|profile| profile.measure == *measure);
            taken.profiles = others;
            all.extend::<Vec<_>>(wanted);
        }
        let mut profile = match all.is_empty() {
            true => Profile::of(measure.clone()),
            false => join(all, LEAST_SLOT),
        };
        profile.duration_ns = self.covered_ns.saturating_sub(self.left_out_ns(measure));
        if profile.samples.is_empty() {
            profile.begin_unix_ns = self.from_ns;
        }
        profile
    }

    /// For how long a measure was left out, in nanoseconds.
    pub fn left_out_ns(&self, measure: &Measure) -> u64 {
        self.left_out.get(measure.name()).map_or(0, |&ns| ns.min(self.covered_ns))
    }

    /// What was taken, by its names.
    pub fn measures(&self) -> Vec<Measure> {
        let mut measures: Vec<Measure> = Vec::new();
        for profile in self.jvms.iter().flat_map(|taken| &taken.profiles) {
            if !measures.contains(&profile.measure) {
                measures.push(profile.measure.clone());
            }
        }
        measures
    }

    /// One line about whose it is, and of when.
    pub fn title(&self) -> String {
        let span = span(self.from_ns, self.until_ns);
        let names = names_of(self.jvms.iter().map(|taken| &taken.who));
        match self.jvms.len() {
            0 => format!("No JVM, {span}"),
            1 => format!("JVM {names}, {span}"),
            many => format!("{many} JVMs ({names}), {span}"),
        }
    }

    /// The lines of their pauses, in the order of time, as they are kept and as they are read.
    pub fn pauses(&self) -> Vec<(&Arc<Identity>, &str, Value)> {
        let mut all = Vec::new();
        for taken in &self.jvms {
            for line in &taken.pauses {
                if let Ok(value) = serde_json::from_str::<Value>(line) {
                    all.push((&taken.who, line.as_str(), value));
                }
            }
        }
        all.sort_by_cached_key(|(_, _, value)| time_of(value));
        all
    }
}

/// Slots of time are no shorter where it is not known when samples were taken: see
/// [`join`].
const LEAST_SLOT: u64 = 0;

/// When a pause began, in nanoseconds since 1970.
pub fn time_of(pause: &Value) -> Option<u64> {
    let time: Timestamp = pause.get("time")?.as_str()?.parse().ok()?;
    u64::try_from(time.as_nanosecond()).ok()
}

/// The lowest and the highest rate of windows.
fn rates(windows: &[Stored]) -> Option<(u64, u64)> {
    let all = windows.iter().flat_map(|stored| &stored.window.jvms);
    let profiles = all.flat_map(|taken| &taken.profiles);
    let rates =
        profiles.filter(|profile| profile.measure == Measure::Time).map(|p| (p.hertz, p.hertz));
    rates.reduce(|(low, high), (hertz, _)| (low.min(hertz), high.max(hertz)))
}

/// What of a time that is some of a window's is in a part of it: the same share as of all of it.
fn share(of_ns: u64, window: &Window, from_ns: u64, until_ns: u64) -> u64 {
    let (begin, end) = (window.begin_ns, window.end_ns);
    let all = end.saturating_sub(begin).max(1);
    let inside = end.min(until_ns).saturating_sub(begin.max(from_ns));
    let share = u128::from(of_ns) * u128::from(inside) / u128::from(all);
    u64::try_from(share).unwrap_or(of_ns)
}

/// Leaves out what is not of the time, as far as that is known.
fn cut_out(stored: &mut Stored, from_ns: u64, until_ns: u64) {
    if stored.window.begin_ns >= from_ns && stored.window.end_ns <= until_ns {
        return;
    }
    for taken in &mut stored.window.jvms {
        taken.profiles.iter_mut().for_each(|profile| profile.cut_out(from_ns, until_ns));
        taken.pauses.retain(|line| {
            let time = serde_json::from_str(line).ok().and_then(|value| time_of(&value));
            time.is_none_or(|time| (from_ns..until_ns).contains(&time))
        });
    }
}

/// Whether a JVM is meant by what it is called, what it runs, or where.
fn matches(who: &Identity, jvm: &Regex) -> bool {
    const WHERE: [&str; 4] = ["jvm.main", "container.id", "k8s.pod.uid", "systemd.unit"];
    let attributes = WHERE.iter().filter_map(|key| who.attributes.get(*key));
    jvm.is_match(&who.name) || attributes.into_iter().any(|value| jvm.is_match(value))
}

/// Some names, the most frequent ones first: `shop 1234, 77; batch 5, and 3 more`.
fn names_of<'a>(all: impl Iterator<Item = &'a Arc<Identity>>) -> String {
    const NAMED: usize = 6;
    let mut names: Vec<(&str, Vec<u32>)> = Vec::new();
    for who in all {
        match names.iter_mut().find(|(name, _)| *name == who.name) {
            Some((_, pids)) => pids.push(who.pid),
            None => names.push((&who.name, vec![who.pid])),
        }
    }
    names.sort_by_key(|(name, pids)| (Reverse(pids.len()), *name));
    let one = |(name, pids): &(&str, Vec<u32>)| match &pids[..] {
        [pid] => format!("{name} {pid}"),
        pids => format!("{name} x{}", pids.len()),
    };
    let told: Vec<_> = names.iter().take(NAMED).map(one).collect();
    match names.len().saturating_sub(NAMED) {
        0 if told.is_empty() => "none".into(),
        0 => told.join(", "),
        more => format!("{}, and {more} more", told.join(", ")),
    }
}

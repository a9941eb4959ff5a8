//! Data that the command line selects from the store.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use anyhow::{Result, bail};
use jiff::Timestamp;
use libjvmprobe::{
    stack::{
        merging::join,
        profile::{Measure, Profile},
    },
    trace::pauses::record::Record,
};

use crate::{
    show::{jvm_filter::JvmFilter, time_arg::span},
    store::{
        Stored,
        merge::combine_by_jvm,
        reader::{Span, StoreReader},
    },
    thread_dump::ThreadDump,
    window::{Identity, JvmData, Window},
};

/// Data of some JVMs in a period.
#[derive(Debug)]
pub struct Selection {
    /// Begin of the period, in nanoseconds since 1970.
    pub from_ns: u64,
    /// End of the period, in nanoseconds since 1970.
    pub until_ns: u64,
    /// Windows that overlap the period.
    parts: Vec<Part>,
    /// Lowest and highest number of CPU samples per second.
    pub rates: Option<(u64, u64)>,
    /// The JVMs, each once. Their CPU time is known if each of their windows is completely within the period.
    pub jvms: Vec<JvmData>,
}

/// A window that overlaps the period.
#[derive(Debug)]
pub(super) struct Part {
    begin_ns: u64,
    end_ns: u64,
    /// Time during which the daemon recorded data in it, in nanoseconds.
    covered_ns: u64,
    /// Time during which a measure was left out to save resources, by the name of the measure, in nanoseconds.
    left_out: BTreeMap<String, u64>,
    /// Periods that are shown instead of the selected one, by the name of the measure. They are longer,
    /// because the times of the samples are not known exactly enough to cut the window.
    widened: BTreeMap<String, Span>,
}

impl Part {
    /// Returns how much of the duration `of_ns` lies in the period that is shown, in nanoseconds. `of_ns` is
    /// a part of the window's length. The function assumes that this part is distributed evenly over the
    /// window.
    fn share(&self, of_ns: u64, measure: Option<&Measure>, period: Span) -> u64 {
        let widened = measure.and_then(|measure| self.widened.get(measure.name()));
        let (from_ns, until_ns) = *widened.unwrap_or(&period);
        let all = self.end_ns.saturating_sub(self.begin_ns).max(1);
        let inside = self.end_ns.min(until_ns).saturating_sub(self.begin_ns.max(from_ns));
        let share = u128::from(of_ns) * u128::from(inside) / u128::from(all);
        u64::try_from(share).unwrap_or(of_ns)
    }
}

impl Selection {
    /// Reads the data from the store.
    ///
    /// # Errors
    /// A line for the user. It says that the store has no window of this period or no such JVM, and what the
    /// store contains instead.
    pub fn read(
        store_reader: &StoreReader,
        from_ns: u64,
        until_ns: u64,
        jvm: Option<&JvmFilter>,
    ) -> Result<Self> {
        if from_ns >= until_ns {
            bail!("--since must be before --until, whose default is now");
        }
        let windows = store_reader.read(from_ns, until_ns)?;
        let (first, last) = (
            windows.iter().map(|stored| stored.window.begin_ns).min(),
            windows.iter().map(|stored| stored.window.end_ns).max(),
        );
        let (Some(first), Some(last)) = (first, last) else {
            let spans = store_reader.covered_spans()?;
            // The newest periods are most likely the ones of interest.
            let listed: Vec<_> =
                spans.iter().rev().take(5).map(|&(from, until)| span(from, until)).collect();
            let period = span(from_ns, until_ns);
            match listed.is_empty() {
                true => bail!("nothing is stored yet, neither for {period} nor for any other time"),
                false => {
                    bail!("nothing is stored for {period}; stored times: {}", listed.join(", "))
                }
            }
        };
        let from_ns = from_ns.max(first);
        let until_ns = until_ns.min(last).max(from_ns);
        let rates = rates(&windows);
        let mut parts = Vec::new();
        let cut = windows.into_iter().map(|mut stored| {
            parts.push(cut_out(&mut stored, (from_ns, until_ns)));
            stored.window
        });
        let all = combine_by_jvm(cut);
        let names = names_of(all.iter().map(|jvm_data| &jvm_data.identity));
        let mut jvms: Vec<_> = all
            .into_iter()
            .filter(|jvm_data| jvm.is_none_or(|jvm| jvm.includes(&jvm_data.identity)))
            .collect();
        if let (Some(jvm), true) = (jvm, jvms.is_empty()) {
            bail!(
                "no JVM in {} matches `{jvm}`; JVMs in this time: {names}",
                span(from_ns, until_ns)
            );
        }
        jvms.sort_by_key(|jvm_data| {
            (jvm_data.identity.name.clone(), jvm_data.identity.pid, jvm_data.identity.started_ns)
        });
        Ok(Self { from_ns, until_ns, parts, rates, jvms })
    }

    /// Takes the profiles of a measure out of all JVMs, and joins them into one.
    pub fn profile(&mut self, measure: &Measure) -> Profile {
        let mut all = Vec::new();
        for jvm_data in &mut self.jvms {
            let (wanted, others) = std::mem::take(&mut jvm_data.profiles)
                .into_iter()
                .partition(|profile| profile.measure == *measure);
            jvm_data.profiles = others;
            all.extend::<Vec<_>>(wanted);
        }
        let mut profile = match all.is_empty() {
            true => Profile::of(measure.clone()),
            false => join(all, MIN_SLOT_NS),
        };
        let covered_ns = self.covered_ns(Some(measure));
        profile.duration_ns = covered_ns.saturating_sub(self.left_out_ns(measure));
        if profile.samples.is_empty() {
            profile.begin_unix_ns = self.from_ns;
        } else if profile.duration_ns == 0 {
            profile.duration_ns = covered_ns;
        }
        profile
    }

    /// Returns for how long the daemon recorded data in the period that is shown for a measure, in
    /// nanoseconds. Time during which the measure was left out is included. With `None`, the period is the
    /// selected one; this is for records with timestamps, such as pauses.
    pub fn covered_ns(&self, measure: Option<&Measure>) -> u64 {
        let period = (self.from_ns, self.until_ns);
        self.parts.iter().map(|part| part.share(part.covered_ns, measure, period)).sum()
    }

    /// Returns the time during which a measure was left out, in nanoseconds.
    pub fn left_out_ns(&self, measure: &Measure) -> u64 {
        let period = (self.from_ns, self.until_ns);
        let left_out = self.parts.iter().filter_map(|part| {
            let ns = *part.left_out.get(measure.name())?;
            Some(part.share(ns, Some(measure), period))
        });
        left_out.sum::<u64>().min(self.covered_ns(Some(measure)))
    }

    /// Returns the period for which a measure is shown. It is longer than the selected one if the times of
    /// samples within a window are not known exactly enough.
    pub fn span(&self, measure: &Measure) -> Span {
        let widened = self.parts.iter().filter_map(|part| part.widened.get(measure.name()));
        widened.fold((self.from_ns, self.until_ns), |(from, until), widened| {
            (from.min(widened.0), until.max(widened.1))
        })
    }

    /// Returns the sum of the CPU times of all JVMs as counted by the kernel, in nanoseconds; `None` if that
    /// of one JVM is unknown.
    pub fn cpu_ns(&self) -> Option<u64> {
        self.jvms.iter().map(|jvm_data| jvm_data.cpu_ns).sum()
    }

    /// Returns the measures for which there are profiles.
    pub fn measures(&self) -> Vec<Measure> {
        let mut measures: Vec<Measure> = Vec::new();
        for profile in self.jvms.iter().flat_map(|jvm_data| &jvm_data.profiles) {
            if !measures.contains(&profile.measure) {
                measures.push(profile.measure.clone());
            }
        }
        measures
    }

    /// Returns a title with the JVMs and the period that is shown for a measure. With `None`, the period is
    /// the selected one; this is for records with timestamps, such as pauses.
    pub fn title(&self, measure: Option<&Measure>) -> String {
        let (from, until) =
            measure.map_or((self.from_ns, self.until_ns), |measure| self.span(measure));
        let span = span(from, until);
        let names = names_of(self.jvms.iter().map(|jvm_data| &jvm_data.identity));
        match self.jvms.len() {
            0 => format!("No JVM, {span}"),
            1 => format!("JVM {names}, {span}"),
            many => format!("{many} JVMs ({names}), {span}"),
        }
    }

    /// Returns all thread dumps, sorted by time.
    pub fn dumps(&self) -> Vec<(&Arc<Identity>, &ThreadDump)> {
        let jvms = self.jvms.iter();
        let mut all: Vec<_> = jvms
            .flat_map(|jvm_data| jvm_data.dumps.iter().map(move |dump| (&jvm_data.identity, dump)))
            .collect();
        all.sort_by_cached_key(|(_, dump)| parse_time(&dump.time));
        all
    }

    /// Returns the records of all pauses, sorted by time.
    pub fn pauses(&self) -> Vec<(&Arc<Identity>, &Record)> {
        let jvms = self.jvms.iter();
        let mut all: Vec<_> = jvms
            .flat_map(|jvm_data| {
                jvm_data.pauses.iter().map(move |record| (&jvm_data.identity, record))
            })
            .collect();
        all.sort_by_cached_key(|(_, record)| time_of(record));
        all
    }
}

/// Minimum length of time slots in a joined profile, in nanoseconds: see [`join`]. With 0, there is no
/// minimum.
const MIN_SLOT_NS: u64 = 0;

/// Returns the time of a record, in nanoseconds since 1970; `None` for sums of stops.
pub fn time_of(record: &Record) -> Option<u64> {
    parse_time(record.time()?)
}

/// Parses a stored time. Returns nanoseconds since 1970.
pub fn parse_time(time: &str) -> Option<u64> {
    let time: Timestamp = time.parse().ok()?;
    u64::try_from(time.as_nanosecond()).ok()
}

/// Returns the lowest and the highest sampling rate of some windows.
fn rates(windows: &[Stored]) -> Option<(u64, u64)> {
    let all = windows.iter().flat_map(|stored| &stored.window.jvms);
    let profiles = all.flat_map(|jvm_data| &jvm_data.profiles);
    let rates =
        profiles.filter(|profile| profile.measure == Measure::Time).map(|p| (p.hertz, p.hertz));
    rates.reduce(|(low, high), (hertz, _)| (low.min(hertz), high.max(hertz)))
}

/// Removes data outside of the selected period from a window, as exactly as the times of the data are known.
pub(super) fn cut_out(stored: &mut Stored, period: Span) -> Part {
    /// If a profile's time slots are at most as long as the selected period divided by this number, the
    /// profile is cut to the selected period, with an error of at most half a slot at each end. Otherwise,
    /// the period is widened.
    const SLOTS: u64 = 20;
    let Window { begin_ns, end_ns, .. } = stored.window;
    let left_out = std::mem::take(&mut stored.window.left_out);
    let covered_ns = stored.covered_ns;
    let mut part = Part { begin_ns, end_ns, covered_ns, left_out, widened: BTreeMap::new() };
    let (from_ns, until_ns) = period;
    if begin_ns >= from_ns && end_ns <= until_ns {
        return part;
    }
    for jvm_data in &mut stored.window.jvms {
        (jvm_data.cpu_ns, jvm_data.system_cpu_ns) = (None, None);
    }
    // The name of a window has its begin and end in milliseconds, so a window may be selected that begins up to one
    // millisecond after the period.
    let from = from_ns.max(begin_ns) - begin_ns;
    let until = until_ns.min(end_ns).saturating_sub(begin_ns);
    // Round to complete time slots, or to the complete window if there are none.
    for profile in stored.window.jvms.iter().flat_map(|jvm_data| &jvm_data.profiles) {
        let slot_ns = profile.slot_ns;
        if (1..=(until_ns - from_ns) / SLOTS).contains(&slot_ns) {
            continue;
        }
        let wide = match slot_ns {
            0 => (begin_ns, end_ns),
            _ => {
                let until = until.checked_next_multiple_of(slot_ns).unwrap_or(until);
                (begin_ns + from / slot_ns * slot_ns, end_ns.min(begin_ns.saturating_add(until)))
            }
        };
        let widened = part.widened.entry(profile.measure.name().to_owned()).or_insert(wide);
        *widened = (widened.0.min(wide.0), widened.1.max(wide.1));
    }
    for jvm_data in &mut stored.window.jvms {
        for profile in &mut jvm_data.profiles {
            let (from, until) = *part.widened.get(profile.measure.name()).unwrap_or(&period);
            profile.restrict_to(from, until);
        }
        jvm_data.pauses.retain(|record| {
            time_of(record).is_none_or(|time| (from_ns..until_ns).contains(&time))
        });
        jvm_data.dumps.retain(|dump| {
            parse_time(&dump.time).is_none_or(|time| (from_ns..until_ns).contains(&time))
        });
    }
    part
}

/// Returns a list of names, the most frequent first: `shop x2, batch 5, and 3 more`, where 5 is the PID of
/// the only JVM with this name.
fn names_of<'a>(all: impl Iterator<Item = &'a Arc<Identity>>) -> String {
    const MAX_NAMES: usize = 6;
    let mut names: Vec<(&str, Vec<u32>)> = Vec::new();
    for identity in all {
        match names.iter_mut().find(|(name, _)| *name == identity.name) {
            Some((_, pids)) => pids.push(identity.pid),
            None => names.push((&identity.name, vec![identity.pid])),
        }
    }
    names.sort_by_key(|(name, pids)| (Reverse(pids.len()), *name));
    let one = |(name, pids): &(&str, Vec<u32>)| match &pids[..] {
        [pid] => format!("{name} {pid}"),
        pids => format!("{name} x{}", pids.len()),
    };
    let listed: Vec<_> = names.iter().take(MAX_NAMES).map(one).collect();
    match names.len().saturating_sub(MAX_NAMES) {
        0 if listed.is_empty() => "none".into(),
        0 => listed.join(", "),
        more => format!("{}, and {more} more", listed.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_that_begins_after_the_period_is_empty() {
        let mut profile = Profile::default();
        profile.slot_ns = 10;
        let jvms = vec![JvmData { profiles: vec![profile], ..JvmData::default() }];
        let window = Window { begin_ns: 1_000, end_ns: 2_000, jvms, ..Window::default() };
        let part = cut_out(&mut Stored { window, covered_ns: 1_000, of: Vec::new() }, (900, 999));
        assert_eq!(part.widened.into_values().collect::<Vec<_>>(), [(1_000, 1_000)]);
    }
}

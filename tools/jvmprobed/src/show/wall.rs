//! Wall-clock time of threads: CPU samples and waits in one profile, and as a table by code or by thread.
//!
//! A thread is on a CPU or waits, so the sum of both is its wall-clock time, except for what the daemon does not record:
//! waits shorter than its minimum, waits of threads that have no work, and waits that have not ended.

use std::{collections::HashMap, hash::Hash, time::Duration};

use anyhow::{Result, bail};
use libjvmprobe::{
    render::{
        columns::wrap,
        summary::hottest_stacks,
        table::{RuledTable, more},
        units::{percent, span},
    },
    stack::{
        Frame, Kind,
        merging::join,
        profile::{Measure, Profile, Sample},
    },
    trace::waits::application_frame,
};

use crate::{collect::waits::WAIT, show::selection::Selection};

/// Name of the measure.
pub const WALL: &str = "wall";
/// Label of CPU samples. Waits have labels with their kinds.
const ON_CPU: &str = "on CPU";
/// Maximum number of rows of a table, unless more stacks are shown.
const MAX_ROWS: usize = 20;
/// Maximum number of kinds in the line with the total.
const MAX_KINDS: usize = 5;

/// Returns the measures that wall-clock time consists of.
///
/// # Errors
/// A line for the user if no waits were recorded. It says how to record them.
pub fn measures(selection: &Selection) -> Result<Vec<Measure>> {
    let waits = Measure::Elapsed(WAIT.into());
    if selection.measures().contains(&waits) {
        return Ok(vec![Measure::Time, waits]);
    }
    if selection.left_out_ns(&waits) > 0 {
        bail!(
            "waits were not collected in this time, to save resources; raise --max-cpu or --waits"
        );
    }
    bail!(
        "no waits were recorded in this time; --wall needs them: run the daemon with --waits 1ms, or \
         set `waits = \"1ms\"` in the section [take] of its configuration file"
    );
}

/// Combines CPU samples and waits. Each stack ends in a label: on CPU, or the kind of the wait.
pub fn combine(mut cpu: Profile, mut waits: Profile) -> Profile {
    let measure = Measure::Elapsed(WALL.into());
    let label = cpu.intern(Frame::new(Kind::Class, format!("[{ON_CPU}]")));
    let hertz = u128::from(cpu.hertz.max(1));
    let to_ns = |samples: u64| {
        u64::try_from(u128::from(samples) * 1_000_000_000 / hertz).unwrap_or(u64::MAX)
    };
    for sample in &mut cpu.samples {
        sample.stack.push(label);
        sample.cpu = None;
        sample.occurrences = sample.count;
        sample.count = to_ns(sample.count);
        sample.times.iter_mut().for_each(|(_, count)| *count = to_ns(*count));
    }
    let duration_ns = cpu.duration_ns.max(waits.duration_ns);
    (cpu.measure, waits.measure) = (measure.clone(), measure.clone());
    // An empty profile has no time slots.
    let parts = [cpu, waits].into_iter().filter(|profile| !profile.samples.is_empty());
    let parts: Vec<_> = parts.collect();
    let mut combined = if parts.is_empty() { Profile::of(measure) } else { join(parts, 0) };
    combined.duration_ns = duration_ns;
    combined
}

/// Times on CPU and in waits of a row.
#[derive(Debug, Default)]
struct Row<'a> {
    total_ns: u64,
    on_cpu_ns: u64,
    /// Time by kind, including [`ON_CPU`].
    kinds: HashMap<&'a str, u64>,
}

impl<'a> Row<'a> {
    fn add(&mut self, kind: &'a str, ns: u64) {
        self.total_ns = self.total_ns.saturating_add(ns);
        if kind == ON_CPU {
            self.on_cpu_ns = self.on_cpu_ns.saturating_add(ns);
        }
        let sum = self.kinds.entry(kind).or_default();
        *sum = sum.saturating_add(ns);
    }

    /// Returns the kinds, longest first.
    fn by_length(&self) -> Vec<(&'a str, u64)> {
        let mut kinds: Vec<_> = self.kinds.iter().map(|(kind, ns)| (*kind, *ns)).collect();
        kinds.sort_by(|a, b| (b.1, a.0).cmp(&(a.1, b.0)));
        kinds
    }

    /// Returns the cells of the columns of [`HEAD`].
    fn cells(&self, total_ns: u64) -> Vec<String> {
        let mostly = self.by_length().first().map(|(kind, _)| (*kind).to_owned());
        vec![
            span(self.total_ns),
            percent(self.total_ns as f64, total_ns as f64),
            span(self.on_cpu_ns),
            span(self.total_ns.saturating_sub(self.on_cpu_ns)),
            mostly.unwrap_or_default(),
        ]
    }
}

/// Columns that all tables have.
const HEAD: [&str; 5] = ["TOTAL", "SHARE", "ON CPU", "WAITING", "MOSTLY"];

/// Returns the kind of a sample: [`ON_CPU`], or the kind of the wait.
fn kind<'a>(profile: &'a Profile, sample: &Sample) -> &'a str {
    // The innermost frame is the label, or it replaces stacks that were dropped to save memory.
    let label = sample.stack.last().map_or("unknown", |&id| &*profile.frame(id).name);
    label.trim_matches(['[', ']'])
}

/// Adds up the samples by a key.
fn rows<'a, K: Hash + Ord>(
    profile: &'a Profile,
    key: impl Fn(&'a Sample) -> K,
) -> Vec<(K, Row<'a>)> {
    let mut rows: HashMap<K, Row<'_>> = HashMap::new();
    for sample in &profile.samples {
        rows.entry(key(sample)).or_default().add(kind(profile, sample), sample.count);
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by(|(a, a_row), (b, b_row)| (b_row.total_ns, a).cmp(&(a_row.total_ns, b)));
    rows
}

/// Returns a table of at most `max` rows; `names` returns the cells of further columns, whose headings are `columns`.
fn table<K>(
    rows: &[(K, Row<'_>)],
    max: usize,
    columns: &[&str],
    names: impl Fn(&K) -> Vec<String>,
) -> String {
    let total_ns = rows.iter().map(|(_, row)| row.total_ns).sum();
    let mut table = RuledTable::new(&[&HEAD[..], columns].concat(), 0..4);
    for (key, row) in rows.iter().take(max) {
        table.row([row.cells(total_ns), names(key)].concat());
    }
    let mut text = table.text() + "\n";
    let hidden = rows.iter().skip(max).map(|(_, row)| row.total_ns);
    text += &more("row", hidden, span).map(|line| line + "\n").unwrap_or_default();
    text
}

/// Returns a line with the total time and the share of each kind.
pub fn total_line(profile: &Profile) -> String {
    let mut all = Row::default();
    profile.samples.iter().for_each(|sample| all.add(kind(profile, sample), sample.count));
    let [total, covered] =
        [all.total_ns, profile.duration_ns].map(|ns| Duration::from_nanos(ns).as_secs_f64());
    let mut line = format!("{total:.2} s of wall-clock time of threads in {covered:.2} s");
    let share = |ns: u64| percent(ns as f64, all.total_ns as f64);
    let kinds = all.by_length();
    let shown = kinds.iter().take(MAX_KINDS).map(|(kind, ns)| format!("{kind} {}", share(*ns)));
    let mut shown: Vec<_> = shown.collect();
    let others: u64 = kinds.iter().skip(MAX_KINDS).map(|(_, ns)| ns).sum();
    shown.extend((others > 0).then(|| format!("others {}", share(others))));
    if !shown.is_empty() {
        line += &format!(": {}", shown.join(", "));
    }
    line
}

/// Returns the table by code, with `threads` also that by thread, and the call tree; with `stacks`, all rows and more of
/// the tree.
pub fn text(profile: &Profile, threads: bool, stacks: bool) -> String {
    let mut text = wrap(&total_line(profile)) + "\n";
    if profile.samples.is_empty() {
        return text;
    }
    text += &wrap(
        "Not included: waits shorter than the daemon's --waits, waits of threads without work, and waits in \
         progress",
    );
    text += "\n";
    let max = if stacks { usize::MAX } else { MAX_ROWS };
    let code = |sample: &Sample| {
        let frames: Vec<Frame> = sample.stack.iter().map(|&id| profile.frame(id).clone()).collect();
        let code = frames.split_last().and_then(|(_, code)| application_frame(code));
        code.map_or_else(|| "-".to_owned(), |frame| frame.name.to_string())
    };
    text += "\n";
    text += &table(&rows(profile, code), max, &["AT"], |at| vec![at.clone()]);
    if threads {
        let thread = |sample: &Sample| (sample.pid, sample.tid, sample.thread.to_string());
        text += "\n";
        text +=
            &table(&rows(profile, thread), max, &["PID", "TID", "THREAD"], |(pid, tid, name)| {
                vec![pid.to_string(), tid.to_string(), name.clone()]
            });
    }
    text + "\n" + &hottest_stacks(profile, stacks)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn profile(measure: Measure, samples: &[(&str, u32, &[&str], u64)]) -> Profile {
        let mut profile = Profile::of(measure);
        (profile.hertz, profile.duration_ns, profile.slot_ns) = (20, 10 * SECOND, SECOND);
        for &(thread, tid, names, count) in samples {
            let frame = |name: &&str| {
                let kind = if name.starts_with('[') { Kind::Class } else { Kind::Java };
                Frame::new(kind, (*name).to_owned())
            };
            let frames: Vec<_> = names.iter().map(frame).collect();
            let stack = frames.into_iter().map(|frame| profile.intern(frame)).collect();
            profile.samples.push(Sample {
                count,
                occurrences: 1,
                times: vec![(3, count)],
                ..Sample::of(7, thread.into(), tid, stack)
            });
        }
        profile
    }

    fn wall() -> Profile {
        let cpu = profile(
            Measure::Time,
            &[
                ("worker", 8, &["app.Main.run", "app.Main.work"], 20),
                ("main", 7, &["app.Main.main", "app.Main.work"], 20),
            ],
        );
        let waits = profile(
            Measure::Elapsed(WAIT.into()),
            &[
                ("worker", 8, &["app.Main.run", "java.lang.Thread.sleep", "[sleep]"], 5 * SECOND),
                ("worker", 8, &["app.Main.run", "app.Main.work", "[monitor]"], 3 * SECOND),
            ],
        );
        combine(cpu, waits)
    }

    #[test]
    fn wall_clock_time_is_cpu_time_plus_waits() {
        let wall = wall();
        assert_eq!((wall.total(), wall.duration_ns), (10 * SECOND, 10 * SECOND));
        assert_eq!(wall.measure.name(), WALL);
        assert!(wall.samples.iter().all(|sample| sample.times == [(3, sample.count)]));
        let none = || Profile::of(Measure::Time);
        assert_eq!(combine(none(), none()).total(), 0);
        let only_waits = profile(Measure::Elapsed(WAIT.into()), &[("a", 1, &["[sleep]"], 5)]);
        assert_eq!(combine(none(), only_waits).total(), 5);
    }

    #[test]
    fn tables_show_time_on_cpu_and_in_waits_by_code_and_thread() {
        let text = text(&wall(), true, false);
        let total =
            "10.00 s of wall-clock time of threads in 10.00 s: sleep 50.00 %, monitor 30.00 %";
        assert!(text.starts_with(total) && text.contains("on CPU 20.00 %"), "{text}");
        let row = |end: &str| {
            let found = text.lines().find(|line| line.ends_with(end) && line.contains(" s "));
            let found = found.unwrap_or_else(|| panic!("no {end}: {text}"));
            found.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(row(" app.Main.work"), "5.00 s 50.00 % 2.00 s 3.00 s monitor app.Main.work");
        assert!(row(" app.Main.run").ends_with("sleep app.Main.run"), "{text}");
        assert!(row(" worker").ends_with("1.00 s 8.00 s sleep 7 8 worker"), "{text}");
        assert!(row(" main").ends_with("1.00 s 0 ns on CPU 7 7 main"), "{text}");
        assert!(text.contains("Hottest stacks\n"), "{text}");
    }

    #[test]
    fn rows_beyond_the_maximum_are_added_up() {
        let names: Vec<String> = (0..25).map(|i| format!("app.Main.m{i:02}")).collect();
        let frames: Vec<[&str; 2]> = names.iter().map(|name| [&**name, "[sleep]"]).collect();
        let samples: Vec<_> =
            frames.iter().map(|frames| ("main", 7, &frames[..], 2 * SECOND)).collect();
        let waits = profile(Measure::Elapsed(WAIT.into()), &samples);
        let wall = combine(Profile::of(Measure::Time), waits);
        assert!(text(&wall, false, false).contains("5 more rows with 10.00 s"));
        assert!(!text(&wall, false, true).contains("more rows"));
    }
}

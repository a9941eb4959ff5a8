//! Data of a page as JSON: names, stacks, and for each event the counts per thread and stack, with their times if
//! known. `model.js` decodes this JSON.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::{
    names::{Names, PageFrame, Stacks, page_frame},
    packed::Packed,
};
use crate::{
    names::clean,
    render::formats::{FormatOptions, TitledProfile, folded},
    stack::{
        Kind,
        profile::{Measure, Profile, Sample},
        timeline::{Band, BandKind, slots_per_written_slot},
    },
};

/// Data of a page.
#[derive(Serialize)]
pub(super) struct Data {
    title: String,
    names: Names,
    /// Whether threads are initially shown separately.
    threads: bool,
    events: Vec<Event>,
}

/// A profile.
#[derive(Serialize)]
struct Event {
    name: String,
    /// Totals, in one line.
    subtitle: String,
    /// `samples`, `bytes`, `count` or `ns`.
    unit: &'static str,
    hertz: u64,
    duration_ns: u64,
    /// Process ID, thread ID, command name and thread name.
    threads: Vec<(u32, u32, String, String)>,
    stacks: Packed,
    /// Rows of: stack number minus that of the previous row, thread, count.
    samples: Packed,
    /// For a difference, rows of: stack number minus that of the previous row, count.
    #[serde(skip_serializing_if = "Option::is_none")]
    base: Option<Packed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<Times>,
}

/// Times of samples.
#[derive(Serialize)]
struct Times {
    /// Milliseconds since 1970, as in JavaScript.
    begin_ms: u64,
    slot_ns: u64,
    /// Rows of: slot minus that of the previous row, stack, thread, count.
    counts: Packed,
    /// Begin and end in microseconds, `gc` or `safepoint`, and a name.
    bands: Vec<(u64, u64, &'static str, String)>,
}

impl Data {
    /// Makes the data of profiles. Each one is a difference if `options` has a base to compare with.
    pub(super) fn of(profiles: &[TitledProfile<'_>], options: &FormatOptions<'_>) -> Self {
        let all: Vec<_> = profiles.iter().map(|titled| Rows::of(titled, options)).collect();
        let mut uses: HashMap<PageFrame, u64> = HashMap::new();
        for rows in &all {
            let stacks = rows.samples.iter().map(|row| &row.stack);
            for &frame in stacks.chain(rows.base.iter().flatten().map(|row| &row.0)).flatten() {
                *uses.entry(rows.frames[frame as usize].clone()).or_default() += 1;
            }
        }
        let names = Names::of(uses);
        let title = profiles.first().map(|titled| clean::line(&titled.title.title).into_owned());
        let events = profiles.iter().zip(all).map(|(titled, rows)| rows.event(titled, &names));
        Self {
            title: title.unwrap_or_default(),
            threads: options.threads,
            events: events.collect(),
            names,
        }
    }
}

/// A stack, as indices into the frames of one profile's [`Rows`].
type Stack = Vec<u32>;

/// Rows of one profile, before its frames and stacks get the numbers that they have in the page.
struct Rows<'a> {
    frames: Vec<PageFrame>,
    threads: Vec<(u32, u32, String, String)>,
    samples: Vec<Row<'a>>,
    base: Option<Vec<(Stack, u64)>>,
}

/// A sample.
struct Row<'a> {
    stack: Stack,
    /// Index into the threads.
    thread: u32,
    count: u64,
    times: &'a [(u32, u64)],
}

impl<'a> Rows<'a> {
    fn of(titled: &TitledProfile<'a>, options: &FormatOptions<'_>) -> Self {
        match options.base {
            Some(base) => Self::of_difference(titled.profile, base, options.threads),
            None => Self::of_profile(titled.profile),
        }
    }

    fn of_profile(profile: &'a Profile) -> Self {
        let mut threads = BTreeMap::new();
        let key = |s: &Sample| {
            let text = |text: &str| clean::name(text).into_owned();
            (s.pid, s.tid, text(&s.command), text(&s.thread))
        };
        for sample in &profile.samples {
            threads.insert(key(sample), 0_u32);
        }
        threads.values_mut().zip(0..).for_each(|(number, rank)| *number = rank);
        let row = |sample: &'a Sample| Row {
            stack: sample.stack.clone(),
            thread: threads.get(&key(sample)).copied().unwrap_or(0),
            count: sample.count,
            times: &sample.times,
        };
        Self {
            frames: profile.frames().iter().map(page_frame).collect(),
            samples: profile.samples.iter().map(row).collect(),
            threads: threads.into_keys().collect(),
            base: None,
        }
    }

    /// Makes rows of the profile and of the base. The base consists of folded stacks, so the stacks of the
    /// profile get the same form: commands and, with `threads`, threads are frames. The kind of a frame of
    /// the base is the most frequent kind among the profile's frames of that name.
    fn of_difference(profile: &'a Profile, base: &str, threads: bool) -> Self {
        let options = folded::Options { threads, ..Default::default() };
        let mut frames = Frames { all: Vec::new(), numbers: HashMap::new() };
        let own: Vec<_> =
            profile.frames().iter().map(|frame| frames.number(page_frame(frame))).collect();
        let mut samples = Vec::new();
        let mut counts = vec![0_u64; own.len()];
        for sample in &profile.samples {
            let head = folded::head(sample, options);
            let mut stack: Stack = head.split(';').map(|name| frames.head(name)).collect();
            stack.extend(sample.stack.iter().map(|&id| own[id as usize]));
            sample.stack.iter().for_each(|&id| counts[id as usize] += sample.count);
            samples.push(Row { stack, thread: 0, count: sample.count, times: &[] });
        }
        let mut known: HashMap<String, (u64, u32)> = HashMap::new();
        for ((frame, count), number) in profile.frames().iter().zip(counts).zip(own) {
            let most = known.entry(frame.folded()).or_default();
            *most = (*most).max((count, number));
        }
        let heads = if threads { 2 } else { 1 };
        let mut read = |line: &str| -> Option<(Stack, u64)> {
            let (path, count) = line.rsplit_once(' ')?;
            let frame = |(at, name): (usize, &str)| match known.get(name) {
                _ if at < heads => frames.head(name),
                Some((_, number)) => *number,
                None => frames.number(base_only_frame(name)),
            };
            let count = count.trim().parse().ok()?;
            Some((path.split(';').enumerate().map(frame).collect(), count))
        };
        let base = base.lines().filter_map(&mut read).collect();
        Self {
            frames: frames.all,
            threads: vec![(0, 0, String::new(), String::new())],
            samples,
            base: Some(base),
        }
    }

    fn event(self, titled: &TitledProfile<'_>, names: &Names) -> Event {
        let profile = titled.profile;
        let numbers: Vec<_> = self.frames.iter().map(|named| names.number(named)).collect();
        let renumbered =
            |stack: &Stack| stack.iter().map(|&f| numbers[f as usize]).collect::<Stack>();
        let samples: Vec<_> =
            self.samples.iter().map(|row| (renumbered(&row.stack), row)).collect();
        let base: Option<Vec<_>> = self
            .base
            .map(|base| base.iter().map(|(stack, count)| (renumbered(stack), *count)).collect());
        let of_base = base.iter().flatten().map(|row| &row.0[..]);
        let stacks = Stacks::of(samples.iter().map(|row| &row.0[..]).chain(of_base));
        let number = |stack: &Stack| stacks.number(stack).unwrap_or(0);
        let samples: Vec<_> = samples.iter().map(|(stack, row)| (number(stack), *row)).collect();
        // The base has no times, so a time axis would compare a part of the profile with the complete base.
        let is_timed = profile.slot_ns > 0 && base.is_none();
        let times = is_timed.then(|| times(profile, &samples, &titled.bands));
        let samples = samples.iter().map(|(stack, row)| ((*stack, row.thread), row.count));
        let base = base.as_ref().map(|base| {
            let rows = merged(base.iter().map(|(stack, count)| (number(stack), *count)));
            packed(rows.into_iter().map(|(stack, count)| (stack, [count])))
        });
        Event {
            name: clean::line(profile.measure.name()).into_owned(),
            subtitle: clean::line(titled.title.subtitle.as_deref().unwrap_or_default())
                .into_owned(),
            unit: unit(&profile.measure),
            hertz: profile.hertz,
            duration_ns: profile.duration_ns,
            threads: self.threads,
            stacks: stacks.pack(),
            samples: packed(merged(samples).into_iter().map(|((s, t), n)| (s, [t.into(), n]))),
            base,
            times,
        }
    }
}

/// Frames of a difference, numbered in the order in which they occur.
struct Frames {
    all: Vec<PageFrame>,
    numbers: HashMap<PageFrame, u32>,
}

impl Frames {
    fn number(&mut self, named: PageFrame) -> u32 {
        let next = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        *self.numbers.entry(named).or_insert_with_key(|named| {
            self.all.push(named.clone());
            next
        })
    }

    /// Returns the number of a frame that represents a command or a thread.
    fn head(&mut self, name: &str) -> u32 {
        self.number((clean::line(name).into_owned(), None))
    }
}

/// Adds up the counts of rows that have equal keys.
fn merged<K: Ord>(rows: impl Iterator<Item = (K, u64)>) -> BTreeMap<K, u64> {
    let mut sums = BTreeMap::new();
    for (key, count) in rows {
        let sum = sums.entry(key).or_insert(0_u64);
        *sum = sum.saturating_add(count);
    }
    sums
}

/// Packs rows that are sorted by their first column: its difference to that of the previous row, and the other columns.
fn packed<const N: usize>(rows: impl Iterator<Item = (u32, [u64; N])>) -> Packed {
    let (mut packed, mut before) = (Packed::default(), 0);
    for (first, rest) in rows {
        packed.push((first - before).into());
        packed.extend(rest);
        before = first;
    }
    packed
}

/// Packs the times of samples, given as stack number and row, and the stops of the application.
fn times(profile: &Profile, samples: &[(u32, &Row<'_>)], bands: &[Band]) -> Times {
    let factor = slots_per_written_slot(profile);
    let rows = samples.iter().flat_map(|&(stack, row)| {
        row.times.iter().map(move |&(slot, count)| ((slot / factor, stack, row.thread), count))
    });
    let rows = merged(rows).into_iter();
    let counts = packed(rows.map(|((slot, s, t), n)| (slot, [s.into(), t.into(), n])));
    let bands = bands.iter().map(|band| {
        let kind = match band.kind {
            BandKind::Collection => "gc",
            BandKind::Safepoint => "safepoint",
        };
        let label = clean::line(&band.label).into_owned();
        (band.begin_ns / 1000, band.end_ns.div_ceil(1000), kind, label)
    });
    Times {
        begin_ms: profile.begin_unix_ns / 1_000_000,
        slot_ns: profile.slot_ns.saturating_mul(factor.into()),
        counts,
        bands: bands.collect(),
    }
}

/// Makes a frame that only the base has. Only the names of kernel frames show the kind; all other frames get
/// the unknown kind.
fn base_only_frame(name: &str) -> PageFrame {
    match name.strip_suffix("_[k]") {
        Some(name) => (clean::line(name).into_owned(), Some(Kind::Kernel)),
        None => (clean::line(name).into_owned(), Some(Kind::Unknown)),
    }
}

fn unit(measure: &Measure) -> &'static str {
    match measure {
        Measure::Time => "samples",
        Measure::Allocation => "bytes",
        Measure::Events(_) => "count",
        Measure::Elapsed(_) => "ns",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_frames_of_the_base_are_recognized_by_their_mark() {
        assert_eq!(base_only_frame("gone_[k]"), ("gone".to_owned(), Some(Kind::Kernel)));
        assert_eq!(base_only_frame("a.Gone.run"), ("a.Gone.run".to_owned(), Some(Kind::Unknown)));
    }
}

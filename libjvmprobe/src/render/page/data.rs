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
        profile::{FrameId, Measure, Profile, Sample},
        timeline::{BandKind, ThreadStack, Timeline},
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
            let stacks = rows.samples.iter().map(|row| &row.0);
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
struct Rows {
    frames: Vec<PageFrame>,
    threads: Vec<(u32, u32, String, String)>,
    /// Rows of: stack, thread, count.
    samples: Vec<(Stack, u32, u64)>,
    base: Option<Vec<(Stack, u64)>>,
    /// For each thread and stack of the profile, the stack and the thread number in these rows.
    stack_and_thread: HashMap<ThreadStack, (Stack, u32)>,
}

impl Rows {
    fn of(titled: &TitledProfile<'_>, options: &FormatOptions<'_>) -> Self {
        match options.base {
            Some(base) => Self::of_difference(titled.profile, base, options.threads),
            None => Self::of_profile(titled.profile, titled.timeline.is_some()),
        }
    }

    fn of_profile(profile: &Profile, is_timed: bool) -> Self {
        let mut threads = BTreeMap::new();
        let key = |s: &Sample| {
            let text = |text: &str| clean::name(text).into_owned();
            (s.pid, s.tid, text(&s.command), text(&s.thread))
        };
        for sample in &profile.samples {
            threads.insert(key(sample), 0_u32);
        }
        threads.values_mut().zip(0..).for_each(|(number, rank)| *number = rank);
        let mut samples: HashMap<(&[FrameId], u32), u64> = HashMap::new();
        let mut stack_and_thread = HashMap::new();
        for sample in &profile.samples {
            let thread = threads.get(&key(sample)).copied().unwrap_or(0);
            let sum = samples.entry((&sample.stack, thread)).or_default();
            *sum = sum.saturating_add(sample.count);
            if is_timed {
                stack_and_thread.insert(ThreadStack::of(sample), (sample.stack.clone(), thread));
            }
        }
        Self {
            frames: profile.frames().iter().map(page_frame).collect(),
            samples: samples.into_iter().map(|((s, t), count)| (s.to_vec(), t, count)).collect(),
            threads: threads.into_keys().collect(),
            base: None,
            stack_and_thread,
        }
    }

    /// Makes rows of the profile and of the base. The base consists of folded stacks, so the stacks of the
    /// profile get the same form: commands and, with `threads`, threads are frames. The kind of a frame of
    /// the base is the most frequent kind among the profile's frames of that name.
    fn of_difference(profile: &Profile, base: &str, threads: bool) -> Self {
        let options = folded::Options { threads, ..Default::default() };
        let mut frames = Frames { all: Vec::new(), numbers: HashMap::new() };
        let own: Vec<_> =
            profile.frames().iter().map(|frame| frames.number(page_frame(frame))).collect();
        let mut samples: HashMap<Stack, u64> = HashMap::new();
        let mut counts = vec![0_u64; own.len()];
        for sample in &profile.samples {
            let head = folded::head(sample, options);
            let mut stack: Stack = head.split(';').map(|name| frames.head(name)).collect();
            stack.extend(sample.stack.iter().map(|&id| own[id as usize]));
            sample.stack.iter().for_each(|&id| counts[id as usize] += sample.count);
            let sum = samples.entry(stack).or_default();
            *sum = sum.saturating_add(sample.count);
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
            samples: samples.into_iter().map(|(stack, count)| (stack, 0, count)).collect(),
            base: Some(base),
            stack_and_thread: HashMap::new(),
        }
    }

    fn event(self, titled: &TitledProfile<'_>, names: &Names) -> Event {
        let profile = titled.profile;
        let numbers: Vec<_> = self.frames.iter().map(|named| names.number(named)).collect();
        let renumbered =
            |stack: &Stack| stack.iter().map(|&f| numbers[f as usize]).collect::<Stack>();
        let samples: Vec<_> =
            self.samples.iter().map(|(s, t, n)| (renumbered(s), *t, *n)).collect();
        let base = self.base.map(|base| {
            base.iter().map(|(stack, count)| (renumbered(stack), *count)).collect::<Vec<_>>()
        });
        let of_base = base.iter().flatten().map(|row| &row.0[..]);
        let stacks = Stacks::of(samples.iter().map(|row| &row.0[..]).chain(of_base));
        let number = |stack: &Stack| stacks.number(stack).unwrap_or(0);
        let times = titled.timeline.map(|timeline| {
            let renumbered_row = |at: &ThreadStack| {
                self.stack_and_thread
                    .get(at)
                    .map(|(stack, thread)| (number(&renumbered(stack)), *thread))
            };
            times(timeline, &timeline.stacks().iter().map(renumbered_row).collect::<Vec<_>>())
        });
        let samples = samples.iter().map(|(stack, thread, count)| (number(stack), *thread, *count));
        let base = base.as_ref().map(|base| {
            let rows = base.iter().map(|(stack, count)| (number(stack), 0, *count));
            rows_of(rows, |_, count| [count].into_iter().collect())
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
            samples: rows_of(samples, |thread, count| vec![thread.into(), count]),
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

/// Packs rows in the order of their stacks: stack number minus that of the previous row, then `rest`.
fn rows_of(
    rows: impl Iterator<Item = (u32, u32, u64)>,
    rest: impl Fn(u32, u64) -> Vec<u64>,
) -> Packed {
    let mut rows: Vec<_> = rows.collect();
    rows.sort_unstable();
    let (mut packed, mut before) = (Packed::default(), 0);
    for (stack, thread, count) in rows {
        packed.push((stack - before).into());
        packed.extend(rest(thread, count));
        before = stack;
    }
    packed
}

/// Packs the times of samples. Stacks that the profile does not contain, because they were filtered out, are skipped.
fn times(timeline: &Timeline, rows: &[Option<(u32, u32)>]) -> Times {
    let (mut counts, mut before) = (Packed::default(), 0);
    for (slot, stack, count) in timeline.counts() {
        let Some((stack, thread)) = rows.get(stack as usize).copied().flatten() else { continue };
        counts.extend([(slot - before).into(), stack.into(), thread.into(), count]);
        before = slot;
    }
    let bands = timeline.bands.iter().map(|band| {
        let kind = match band.kind {
            BandKind::Collection => "gc",
            BandKind::Safepoint => "safepoint",
        };
        let label = clean::line(&band.label).into_owned();
        (band.begin_ns / 1000, band.end_ns.div_ceil(1000), kind, label)
    });
    Times {
        begin_ms: timeline.begin_unix_ns / 1_000_000,
        slot_ns: timeline.slot_ns.max(1),
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

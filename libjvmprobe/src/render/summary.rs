//! Summary of a profile: the share of each kind of work, the top methods and stacks, and the quality of the profile.

use std::{collections::HashMap, fmt::Write, time::Duration};

use comfy_table::{CellAlignment, Table, TableStyle};

use crate::{
    render::{
        columns::wrap,
        spans,
        units::{count, percent},
    },
    stack::{
        Kind,
        profile::{Measure, Profile, Sample},
        waiting::{ASLEEP, BLOCKED, IDLE, RUNNABLE, SHORT},
    },
};

/// Maximum number of methods shown. A method is shown only if its self count is at least half a percent.
const TOP: usize = 15;
/// Part of the call tree that is shown: minimum share of a node, and maximum number of lines.
struct TreeLimits {
    share: f64,
    lines: usize,
}
const BRIEF: TreeLimits = TreeLimits { share: 0.03, lines: 40 };
/// Used with `--stacks`.
const MORE: TreeLimits = TreeLimits { share: 0.002, lines: 1000 };

/// Kind of work of a sampled thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// Compiled or interpreted Java code, and stubs called by it.
    Java,
    /// Code of libjvm.so, except in collector and compiler threads.
    Jvm,
    /// Garbage collector threads.
    Gc,
    /// JIT compiler threads.
    Jit,
    /// Other native code.
    Native,
    /// The kernel, except in collector and compiler threads.
    Kernel,
    /// Off CPU: the thread waits until it is woken up.
    Blocked,
    /// Off CPU: the thread is runnable, but no CPU is free.
    Runnable,
    /// Off CPU: the thread waits because there is no work.
    Idle,
    /// Off CPU: sum of short waits.
    Short,
    /// Off CPU since before the trace, so the stack is unknown.
    Asleep,
}

const WORKS: [(Work, &str); 11] = [
    (Work::Asleep, "asleep, stack unknown"),
    (Work::Blocked, "blocked"),
    (Work::Runnable, "waiting for a CPU"),
    (Work::Idle, "idle"),
    (Work::Short, "in short waits"),
    (Work::Java, "Java"),
    (Work::Jvm, "JVM"),
    (Work::Gc, "GC"),
    (Work::Jit, "JIT"),
    (Work::Native, "native"),
    (Work::Kernel, "kernel"),
];

/// Prefixes of the names of HotSpot's collector and compiler threads. The kernel stores 15 bytes of a name:
/// its beginning or, since JDK 27, its beginning and its end with two dots between them.
const GC_THREADS: [&str; 11] = [
    "GC Thread#",
    "GC task thread",
    "Concurrent Mark",
    "G1 ",
    "ParGC",
    "ZWorker",
    "ZDriver",
    "XWorker",
    "XDriver",
    "Shenand",
    "Gang worker",
];
const JIT_THREADS: [&str; 4] = ["C1 Comp", "C2 Comp", "JVMCI", "Sweeper thread"];

/// Thread that runs VM operations. With Serial, it also does the work of the collections.
const VM_THREAD: &str = "VM Thread";
/// Prefixes of the names of VM operations that are collections (hotspot/share/runtime/vmOperation.hpp).
const COLLECTIONS: [&str; 11] = [
    "VM_GC",
    "VM_Gen",
    "VM_G1",
    "VM_CollectFor",
    "VM_Serial",
    "VM_Parallel",
    "VM_PS",
    "VM_CMS",
    "VM_Z",
    "VM_X",
    "VM_Shenandoah",
];

/// Returns the kind of work of a sample.
pub fn work(profile: &Profile, sample: &Sample) -> Work {
    let innermost = sample.stack.last().map(|&id| &*profile.frame(id).name);
    let waits = [
        (BLOCKED, Work::Blocked),
        (RUNNABLE, Work::Runnable),
        (SHORT, Work::Short),
        (IDLE, Work::Idle),
        (ASLEEP, Work::Asleep),
    ];
    if let Some((_, work)) = waits.into_iter().find(|(name, _)| innermost == Some(name)) {
        return work;
    }
    let is_one_of = |names: &[&str]| names.iter().any(|name| sample.thread.starts_with(name));
    if is_one_of(&GC_THREADS) || is_one_of(&[VM_THREAD]) && collects(profile, sample) {
        return Work::Gc;
    }
    if is_one_of(&JIT_THREADS) {
        return Work::Jit;
    }
    // Class frames are labels, not code.
    let mut kinds = sample.stack.iter().rev().map(|&id| profile.frame(id).kind);
    match kinds.find(|kind| *kind != Kind::Class) {
        Some(Kind::Java | Kind::Inlined | Kind::Interpreted | Kind::Stub) => Work::Java,
        Some(Kind::Jvm) => Work::Jvm,
        Some(Kind::Kernel) => Work::Kernel,
        Some(Kind::Native | Kind::Class | Kind::Unknown) | None => Work::Native,
    }
}

/// Returns whether the VM thread runs an operation that is a collection.
fn collects(profile: &Profile, sample: &Sample) -> bool {
    let is_one = |name: &str| COLLECTIONS.iter().any(|begin| name.starts_with(begin));
    sample.stack.iter().any(|&id| is_one(&profile.frame(id).name))
}

/// Returns the share of each kind of [`Work`] among all samples, largest first. Waits that end in a label are no work.
pub fn shares(profile: &Profile) -> Vec<(&'static str, f64)> {
    let mut counts: HashMap<Work, u64> = HashMap::new();
    let is_label = |id: &u32| profile.frame(*id).kind == Kind::Class;
    let is_elapsed = matches!(profile.measure, Measure::Elapsed(_));
    let is_work = |sample: &&Sample| !(is_elapsed && sample.stack.last().is_some_and(is_label));
    for sample in profile.samples.iter().filter(is_work) {
        *counts.entry(work(profile, sample)).or_default() += sample.count;
    }
    let total = profile.total().max(1) as f64;
    let share = |(work, name): &(Work, &'static str)| {
        counts.get(work).map(|&count| (*name, count as f64 / total))
    };
    let mut shares: Vec<_> = WORKS.iter().filter_map(share).collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    shares
}

/// Returns the method to which the self time of a wait is attributed: the innermost Java method, or else the innermost
/// function outside of the kernel. `None` unless the thread is blocked or waits for a CPU.
pub(super) fn waiting_method<'a>(profile: &'a Profile, sample: &Sample) -> Option<&'a str> {
    if !matches!(work(profile, sample), Work::Blocked | Work::Runnable) {
        return None;
    }
    let innermost = |wanted: fn(Kind) -> bool| {
        let mut frames = sample.stack.iter().rev().map(|&id| profile.frame(id));
        frames.find(|frame| wanted(frame.kind)).map(|frame| &*frame.name)
    };
    innermost(|kind| matches!(kind, Kind::Java | Kind::Inlined | Kind::Interpreted))
        .or_else(|| innermost(|kind| !matches!(kind, Kind::Kernel | Kind::Unknown)))
        // If there is neither, the frame around the placeholder of the wait is used. It is the innermost
        // kernel function, or a placeholder for a stack that was not walked.
        .or_else(|| sample.stack.iter().rev().nth(1).map(|&id| &*profile.frame(id).name))
}

/// Returns (name, self count, total count) for each method, sorted by self count. The self count of a wait
/// belongs to the method that waits, not to the placeholder frame.
pub fn methods(profile: &Profile) -> Vec<(&str, u64, u64)> {
    let mut counts: HashMap<&str, (u64, u64)> = HashMap::new();
    for sample in &profile.samples {
        let mut names: Vec<_> = sample.stack.iter().map(|&id| &*profile.frame(id).name).collect();
        if let Some(leaf) = waiting_method(profile, sample).or(names.last().copied()) {
            counts.entry(leaf).or_default().0 += sample.count;
        }
        // A recursive method counts once per sample.
        names.sort_unstable();
        names.dedup();
        for name in names {
            counts.entry(name).or_default().1 += sample.count;
        }
    }
    let mut all: Vec<_> = counts.into_iter().map(|(name, (own, all))| (name, own, all)).collect();
    all.sort_by(|a, b| (b.1, b.2, a.0).cmp(&(a.1, a.2, b.0)));
    all
}

/// Parts of a summary.
#[derive(Clone, Copy, Debug, Default)]
pub struct SummaryOptions {
    /// Begin with the event's name.
    pub is_named: bool,
    /// Show more stacks.
    pub stacks: bool,
    /// Show a table of spans.
    pub spans: bool,
}

/// Returns the summary as text.
pub fn text(profile: &Profile, options: SummaryOptions) -> String {
    let SummaryOptions { is_named, stacks, spans } = options;
    let total = profile.total();
    let mut out = String::new();
    // Writing to a String does not fail, neither here nor below.
    if is_named {
        let _ = writeln!(out, "\n{}", profile.measure.name());
    }
    let _ = writeln!(out, "{}", wrap(&total_line(profile)));
    if total == 0 {
        out.push_str(match profile.measure {
            Measure::Time => "No samples: no traced thread was running.\n",
            _ => "No samples: the event did not occur.\n",
        });
        return out;
    }
    out.push('\n');
    if spans {
        out.push_str(&spans::table(profile, stacks));
        out.push('\n');
    }
    out.push_str(&top_methods(profile, total));
    out.push('\n');
    out.push_str(&hottest_stacks(profile, stacks));
    out.push('\n');
    out.push_str(&quality(profile));
    out
}

/// Returns the call tree with its title; with `more`, also its smaller branches.
pub fn hottest_stacks(profile: &Profile, more: bool) -> String {
    let limits = if more { &MORE } else { &BRIEF };
    format!("Hottest stacks\n{}", tree(profile, profile.total(), limits))
}

/// Returns a line with the total and the shares of each kind of work.
pub fn total_line(profile: &Profile) -> String {
    let seconds = Duration::from_nanos(profile.duration_ns).as_secs_f64();
    let total = profile.total();
    let a_second = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
    let amount = match &profile.measure {
        Measure::Time => {
            let busy = total as f64 / profile.hertz.max(1) as f64;
            let cores = a_second(busy);
            format!("{busy:.2} s of CPU time in {seconds:.2} s ({cores:.2} cores)")
        }
        Measure::Elapsed(name) => {
            let spent = Duration::from_nanos(total).as_secs_f64();
            let times = profile.sampled();
            format!("{spent:.2} s of {name} in {seconds:.2} s, {times} times")
        }
        measure => {
            let rate = a_second(total as f64);
            let unit = measure.unit();
            format!("{total} {unit} in {seconds:.2} s ({rate:.1} per second)")
        }
    };
    let shares: Vec<_> = shares(profile)
        .iter()
        .map(|(name, share)| format!("{name} {}", percent(*share, 1.0)))
        .collect();
    match shares.is_empty() {
        true => amount,
        false => format!("{amount}: {}", shares.join(", ")),
    }
}

fn top_methods(profile: &Profile, total: u64) -> String {
    let share = |count: u64| percent(count as f64, total as f64);
    let mut table = Table::new();
    table.load_style(TableStyle::new());
    let counted = match profile.measure {
        Measure::Time => "SAMPLES",
        Measure::Allocation => "BYTES",
        Measure::Events(_) => "COUNT",
        Measure::Elapsed(_) => "MS",
    };
    table.set_header(["SELF", "TOTAL", counted, "METHOD"]);
    let min_count = (total / 200).max(1);
    for (name, own, all) in methods(profile).into_iter().take(TOP).filter(|m| m.1 >= min_count) {
        let number = match profile.measure {
            Measure::Elapsed(_) => format!("{:.3}", Duration::from_nanos(own).as_secs_f64() * 1e3),
            _ => own.to_string(),
        };
        table.add_row([share(own), share(all), number, name.to_owned()]);
    }
    for column in 0..3 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string() + "\n"
}

#[derive(Default)]
struct Node<'a> {
    count: u64,
    children: HashMap<&'a str, Self>,
}

fn tree(profile: &Profile, total: u64, limits: &TreeLimits) -> String {
    let mut root = Node::default();
    for sample in &profile.samples {
        let mut node = &mut root;
        node.count += sample.count;
        for &id in &sample.stack {
            node = node.children.entry(&profile.frame(id).name).or_default();
            node.count += sample.count;
        }
    }
    let mut lines = Vec::new();
    let min_count = ((total as f64 * limits.share) as u64).max(1);
    add_lines(&root, 0, total, min_count, &mut lines);
    if lines.len() > limits.lines {
        lines.truncate(limits.lines);
        lines.push("...".into());
    }
    lines.join("\n") + "\n"
}

/// Adds the lines of a node's children. A chain of calls without branches takes one line.
fn add_lines(node: &Node<'_>, depth: usize, total: u64, min_count: u64, lines: &mut Vec<String>) {
    let mut children: Vec<_> = node.children.iter().filter(|(_, n)| n.count >= min_count).collect();
    children.sort_by(|a, b| (b.1.count, a.0).cmp(&(a.1.count, b.0)));
    for (name, child) in children {
        let mut end = child;
        let (mut last, mut skipped) = (*name, 0);
        while let Some((name, only)) = only_child(end) {
            end = only;
            last = name;
            skipped += 1;
        }
        let share = percent(child.count as f64, total as f64);
        let between = match skipped {
            0 => String::new(),
            1 => format!("{name} > "),
            n => format!("{name} > {} more > ", n - 1),
        };
        lines.push(format!("{share:>8} {:indent$}{between}{last}", "", indent = depth * 2));
        add_lines(end, depth + 1, total, min_count, lines);
    }
}

/// Returns the only child of a node, if it has all samples of the node.
fn only_child<'a, 'n>(node: &'n Node<'a>) -> Option<(&'a str, &'n Node<'a>)> {
    let (name, child) = node.children.iter().next()?;
    (node.children.len() == 1 && child.count == node.count).then_some((*name, child))
}

/// Quality measures of a profile.
#[derive(Clone, Copy, Debug)]
pub struct Quality {
    /// Share of samples whose stacks are complete to the thread's entry.
    pub complete: f64,
    /// Share of samples whose stacks are incomplete because a step of the walk was a guess.
    pub guessed: f64,
    /// Share of samples in which inlined methods may be missing.
    pub unsure: f64,
    /// Share of frames without a name.
    pub unnamed_frames: f64,
}

impl Quality {
    /// Computes the quality of a profile.
    pub fn of(profile: &Profile) -> Self {
        let total = profile.total().max(1) as f64;
        let share = |filter: fn(&&Sample) -> bool| {
            let samples = profile.samples.iter().filter(filter).map(|sample| sample.count);
            samples.sum::<u64>() as f64 / total
        };
        let frames: u64 = profile.samples.iter().map(|s| s.count * s.stack.len() as u64).sum();
        Self {
            complete: share(|sample| sample.complete),
            guessed: share(|sample| sample.guessed),
            unsure: share(|sample| sample.unsure),
            unnamed_frames: profile.unnamed_frames() as f64 / frames.max(1) as f64,
        }
    }
}

/// Returns a line about the quality of a profile.
fn quality(profile: &Profile) -> String {
    let Quality { complete, guessed, unsure, unnamed_frames } = Quality::of(profile);
    let [complete, guessed, unsure, unnamed] =
        [complete, guessed, unsure, unnamed_frames].map(|share| percent(share, 1.0));
    let text = format!(
        "{}; {complete} of the stacks are complete to the thread's entry, {guessed} are partly \
         guessed; {unsure} may lack the innermost inlined methods; {unnamed} of the frames have no \
         name; {} lost",
        count(profile.sampled(), "sample"),
        count(profile.lost, "sample")
    );
    wrap(&text) + "\n"
}

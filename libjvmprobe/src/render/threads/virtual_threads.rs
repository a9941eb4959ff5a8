//! Virtual threads as text. Those with equal states and stacks are printed once.

use std::collections::{BTreeSet, HashMap};

use crate::{
    Addr, Result,
    hotspot::java_threads::{BlockKind, BlockedOn, ThreadStatus},
    render::{
        output::Output,
        threads::report::{DumpOptions, element_text, frame_text, lock_line, print_frames},
        units::count,
    },
    stack::Frame,
    trace::threads::{Activity, Dump, Thread, VirtualThread},
};

/// Maximum number of ranges of thread numbers in the header of a group.
const MAX_RANGES: usize = 8;
/// Beginnings of the names of methods that Java's own stack traces of virtual threads do not contain. The JDK
/// marks such methods with `jdk.internal.vm.annotation.Hidden`.
const HIDDEN: [&str; 6] = [
    "jdk.internal.vm.Continuation.",
    "java.lang.VirtualThread.yieldContinuation",
    "java.lang.VirtualThread$VThreadContinuation",
    "java.lang.Thread.runWith",
    "java.lang.invoke.LambdaForm$",
    "java.lang.VirtualThread.runContinuation",
];

/// Returns those of a virtual thread's frames that are shown, each with its position in `frames`.
pub fn shown<'a>(
    args: &DumpOptions,
    frames: &'a [Frame],
) -> impl Iterator<Item = (usize, &'a Frame)> {
    let is_mixed = args.mixed;
    frames.iter().enumerate().filter(move |(_, frame)| is_mixed || !is_hidden(frame))
}

fn is_hidden(frame: &Frame) -> bool {
    !frame.is_java()
        || HIDDEN.iter().any(|hidden| frame.name.starts_with(hidden))
        // A method of the class that the JDK generates for a lambda expression.
        || frame.name.contains("$$Lambda")
}

/// Returns the text of the frames that are shown, in the form of Java's stack traces.
pub fn texts(args: &DumpOptions, frames: &[Frame]) -> Vec<String> {
    shown(args, frames).map(|(_, frame)| element_text(frame)).collect()
}

/// Describes which method a virtual thread that waits for no lock is in. The text is the end of a sentence;
/// it is empty if the method is not known.
pub fn innermost(thread: &VirtualThread) -> String {
    let innermost = thread.frames.iter().find(|frame| !is_hidden(frame));
    innermost.map_or_else(String::new, |frame| format!(", which is in {}", frame_text(frame)))
}

/// Returns the name and the number of a virtual thread.
pub fn title(thread: &VirtualThread) -> String {
    format!("\"{}\" #{} virtual", thread.java.name, thread.java.number)
}

/// Prints the frames of a virtual thread. Below the innermost Java frame, prints the object that the thread
/// waits for, and below each frame the monitors that the frame has entered and the thread still holds.
///
/// # Errors
/// The errors of [`Output::line`].
pub fn stack(args: &DumpOptions, thread: &VirtualThread, out: &mut Output) -> Result<()> {
    let lock = thread.java.blocked_on.as_ref().map(lock_line);
    print_frames(shown(args, &thread.frames), &thread.held, lock, out)
}

/// Properties that the threads of a group share. Each mounted thread is the only one in its group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key<'a> {
    /// Number of the thread if it is mounted, so that no other thread has the same key; otherwise `None`.
    mounted: Option<u64>,
    /// Number that `print` has assigned to the text of the stack.
    stack: usize,
    status: ThreadStatus,
    is_moving: bool,
    blocked_on: Option<(BlockKind, &'a str)>,
}

/// Prints the virtual threads. Threads with equal states and stacks are printed once, as a group.
///
/// # Errors
/// The errors of [`Output::line`].
pub fn print(args: &DumpOptions, dump: &Dump, out: &mut Output) -> Result<()> {
    // Two stacks may have the same text although their frames differ, for example because one thread entered
    // a method before the JVM compiled this method, and the other thread afterwards.
    let mut numbers: HashMap<Vec<String>, usize> = HashMap::new();
    let mut stacks: HashMap<*const Frame, usize> = HashMap::new();
    let mut stack_of = |thread: &VirtualThread| {
        *stacks.entry(thread.frames.as_ptr()).or_insert_with(|| {
            let text = texts(args, &thread.frames);
            let next = numbers.len();
            *numbers.entry(text).or_insert(next)
        })
    };
    let mut groups: Vec<Vec<&VirtualThread>> = Vec::new();
    let mut indexes: HashMap<Key<'_>, usize> = HashMap::new();
    let mut all: Vec<_> = dump.virtual_threads.iter().collect();
    all.sort_by_key(|thread| thread.java.number);
    for thread in all {
        let key = Key {
            mounted: thread.carrier.map(|_| thread.java.number),
            stack: stack_of(thread),
            status: thread.status,
            is_moving: thread.activity == Activity::Moving,
            blocked_on: thread.java.blocked_on.as_ref().map(|on| (on.kind, &*on.class)),
        };
        let index = *indexes.entry(key).or_insert(groups.len());
        if index == groups.len() {
            groups.push(Vec::new());
        }
        groups[index].push(thread);
    }
    for group in &groups {
        print_group(args, &dump.threads, group, out)?;
    }
    Ok(())
}

fn print_group(
    args: &DumpOptions,
    threads: &[Thread],
    group: &[&VirtualThread],
    out: &mut Output,
) -> Result<()> {
    let [first, ..] = group else { return Ok(()) };
    let mut header = match group {
        [one] => title(one),
        _ => group_title(group),
    };
    if let Some(carrier) = first.carrier.and_then(|at| threads.get(at)) {
        header +=
            &format!(", mounted on \"{}\" nid={:#x}", carrier.name(), carrier.os.namespace_tid);
    }
    if first.activity == Activity::Moving {
        header += ", moving";
    }
    out.line(&header)?;
    out.line(&format!("   java.lang.Thread.State: {}", first.status.text()))?;
    print_frames(shown(args, &first.frames), &first.held, group_lock(group), out)?;
    out.line("")
}

/// Returns the header of a group: how many threads it has, their thread numbers, and the first and last name.
fn group_title(group: &[&VirtualThread]) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for thread in group {
        let number = thread.java.number;
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let range = |&(first, last): &(u64, u64)| match last - first {
        0 => format!("#{first}"),
        1 => format!("#{first}, #{last}"),
        _ => format!("#{first} to #{last}"),
    };
    let mut numbers: Vec<_> = ranges.iter().take(MAX_RANGES).map(range).collect();
    if ranges.len() > MAX_RANGES {
        numbers.push(format!("... #{}", ranges[ranges.len() - 1].1));
    }
    let names = match (group.first(), group.last()) {
        (Some(first), Some(last)) if first.java.name != last.java.name => {
            format!(", \"{}\" to \"{}\"", first.java.name, last.java.name)
        }
        (Some(first), _) if !first.java.name.is_empty() => format!(", \"{}\"", first.java.name),
        _ => String::new(),
    };
    let many = count(group.len() as u64, "virtual thread");
    format!("{many} with equal stacks: {}{names}", numbers.join(", "))
}

/// Returns the line about the objects that the threads of a group wait for.
fn group_lock(group: &[&VirtualThread]) -> Option<String> {
    let on = |thread: &&VirtualThread| thread.java.blocked_on.clone();
    let first: BlockedOn = group.first().and_then(on)?;
    let objects: BTreeSet<Addr> = group.iter().filter_map(on).map(|on| on.object).collect();
    if objects.len() == 1 {
        return Some(lock_line(&first));
    }
    let what = match first.kind {
        BlockKind::Enter => "waiting to lock",
        BlockKind::Wait => "waiting on",
        BlockKind::Park => "parking to wait for ",
    };
    Some(format!("\t- {what} <{} objects> (a {})", objects.len(), first.class))
}

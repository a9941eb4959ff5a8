//! Prints dumps in jstack's format.
//!
//! Source: `JavaThread::print_on` and `VM_PrintThreads` (hotspot/share/runtime), `ThreadStackTrace` and
//! `DeadlockCycle::print_on_with` (hotspot/share/services/threadService.cpp).

use std::cmp::Reverse;

use jiff::Zoned;

use crate::{
    Addr, Result,
    hotspot::java_threads::{BlockKind, BlockedOn, HeldMonitor, JavaThread, ThreadStatus},
    names::code::JavaModule,
    render::{
        output::Output,
        threads::{
            blocked::{self, Holder, Owners, Synchronizers},
            virtual_threads,
        },
        units::count,
    },
    stack::Frame,
    trace::threads::{Activity, Change, Dump, LeftOut, Thread},
};

/// Options of the text of a dump.
#[derive(Clone, Copy, Debug, Default)]
pub struct DumpOptions {
    /// Print only the locks for which threads wait, and the deadlocks.
    pub quiet: bool,
    /// Print the UTC offset with the time of the dump.
    pub timestamps: bool,
    /// Do not print the present time, because the dump shows an earlier time: that of a core file.
    pub no_time: bool,
    /// Show native and kernel frames, and the stacks of the JVM's own threads. The header lines of these
    /// threads are shown in any case.
    pub mixed: bool,
    /// Print only this number of threads: those that have used the most CPU time.
    pub top: Option<usize>,
}

/// Prints a dump.
///
/// # Errors
/// The errors of [`Output::line`].
pub fn print(args: &DumpOptions, dump: &Dump, out: &mut Output) -> Result<()> {
    if !args.quiet {
        if !args.no_time {
            let format = if args.timestamps { "%Y-%m-%d %H:%M:%S%:z" } else { "%Y-%m-%d %H:%M:%S" };
            out.line(&Zoned::now().strftime(format).to_string())?;
        }
        out.lines(&format!("Full thread dump {}:\n", dump.version))?;
        let synchronizers = Synchronizers::of(dump);
        if let Some(why) = synchronizers.as_ref().and_then(|all| all.incomplete) {
            let what = "Ownable synchronizers for which no thread waits may be missing";
            out.lines(&format!("{what}: {why}\n"))?;
        }
        for thread in shown(args, &dump.threads) {
            out.lines(&header(thread))?;
            if let Some(change) = thread.change {
                out.line(&since_last(change))?;
            }
            if thread.java.is_some() || args.mixed {
                stack(args, thread, out)?;
            }
            let java = thread.java.as_ref().zip(synchronizers.as_ref());
            if let Some(held) = java.and_then(|(java, all)| all.of_thread(java.address)) {
                let held: Vec<_> =
                    held.map(|(at, class)| format!("\t- {}", object(at, class))).collect();
                out.lines("\n   Locked ownable synchronizers:")?;
                if held.is_empty() {
                    out.line("\t- None")?;
                }
                held.iter().try_for_each(|line| out.line(line))?;
            }
            out.line("")?;
        }
        // Virtual threads cannot be sorted by CPU time, because their CPU time is not known.
        if args.top.is_none() {
            virtual_threads::print(args, dump, out)?;
        }
    }
    if let Some(left_out) = left_out(dump) {
        out.line(&left_out)?;
        out.line("")?;
    }
    let owners = Owners::of(dump);
    let blocked = blocked::lines(dump, &owners);
    for line in &blocked {
        out.line(line)?;
    }
    if !blocked.is_empty() {
        out.line("")?;
    }
    print_deadlocks(args, dump, &owners, out)
}

/// Returns a text about platform threads that are not in the dump; `None` if it has all of them.
pub fn left_out(dump: &Dump) -> Option<String> {
    left_out_text(dump.left_out, dump.threads.len())
}

/// Describes threads that are not in a dump of `shown` threads.
fn left_out_text(left_out: LeftOut, shown: usize) -> Option<String> {
    let many = Some(left_out.all()).filter(|&all| all > 0)?;
    let max = format!("it has at most {} threads", shown as u64 + left_out.memory);
    let memory = "it would take too much memory";
    let why = match left_out {
        LeftOut { above_max: 0, .. } => memory.into(),
        LeftOut { memory: 0, .. } => max,
        LeftOut { .. } => format!("{max}, and {memory}"),
    };
    Some(format!("{} left out of the dump, because {why}", count(many, "thread")))
}

/// Returns the platform threads to show. If only some are shown, these are the ones that have used the most CPU time since
/// the last dump, in descending order of this time. For a thread that was not in that dump, the CPU time since the
/// thread's start counts.
pub fn shown<'a>(args: &DumpOptions, threads: &'a [Thread]) -> Vec<&'a Thread> {
    let mut threads: Vec<_> = threads.iter().collect();
    if let Some(top) = args.top {
        let used = |thread: &&Thread| thread.change.map_or_else(|| thread.os.cpu(), |it| it.cpu);
        threads.sort_by_key(|thread| Reverse(used(thread)));
        threads.truncate(top);
    }
    threads
}

/// Returns a line with what a thread did since the last dump.
fn since_last(change: Change) -> String {
    let cpu = change.cpu.as_secs_f64() * 1e3;
    let moved = if change.is_still { "has not moved" } else { "has moved" };
    format!("   Since the last dump: cpu={cpu:.2}ms, {moved}")
}

/// Returns the header of a thread: its first line, its state, and the virtual thread that it carries.
fn header(thread: &Thread) -> String {
    let os = &thread.os;
    let times = os.scheduling.map_or_else(String::new, |scheduling| {
        format!(
            " os_prio={} cpu={:.2}ms elapsed={:.2}s",
            scheduling.nice,
            scheduling.cpu.as_secs_f64() * 1e3,
            scheduling.elapsed.as_secs_f64()
        )
    });
    let nid = os.namespace_tid;
    let Some(java) = &thread.java else {
        return format!("\"{}\"{times} nid={nid:#x}", thread.name());
    };
    let mut line = format!("\"{}\"", thread.name());
    if let Some(number) = java.number {
        line += &format!(" #{number}");
    }
    if java.is_daemon == Some(true) {
        line += " daemon";
    }
    if let Some(priority) = java.priority {
        line += &format!(" prio={priority}");
    }
    let activity = activity(thread, java);
    line += &format!("{times} tid={:#018x} nid={nid:#x} {activity}", java.address.0);
    if let Some(status) = java.status {
        line += &format!("\n   java.lang.Thread.State: {}", status.text());
    }
    if let Some(number) = thread.carried() {
        line += &format!("\n   Carrying virtual thread #{number}");
    }
    line
}

/// Returns what a thread does, as HotSpot's `OSThread::print_on` names it. Only the name `moving` is
/// javastack's own.
fn activity(thread: &Thread, java: &JavaThread) -> &'static str {
    match (thread.activity, java.status) {
        (Activity::Moving, _) => "moving",
        (_, Some(ThreadStatus::Blocked)) => "waiting for monitor entry",
        (_, Some(ThreadStatus::Waiting | ThreadStatus::TimedWaiting)) => "in Object.wait()",
        (_, Some(ThreadStatus::Sleeping | ThreadStatus::Parked | ThreadStatus::ParkedTimed)) => {
            "waiting on condition"
        }
        _ => "runnable",
    }
}

/// Prints the frames of a thread. Below the innermost Java frame, prints the object that the thread waits
/// for, and below each frame the monitors that the frame has entered and the thread still holds.
fn stack(args: &DumpOptions, thread: &Thread, out: &mut Output) -> Result<()> {
    print_frames(frames(args, thread), &thread.held, thread.blocked_on().map(lock_line), out)
}

/// Prints frames, each given with its position among all frames of its thread. Prints `lock` below the innermost Java
/// frame, and below each frame those of the monitors `held` that the frame has entered.
pub(super) fn print_frames<'a>(
    frames: impl Iterator<Item = (usize, &'a Frame)>,
    held: &[HeldMonitor],
    mut lock: Option<String>,
    out: &mut Output,
) -> Result<()> {
    for (at, frame) in frames {
        out.line(&format!("\tat {}", frame_text(frame)))?;
        if frame.is_java()
            && let Some(line) = lock.take()
        {
            out.line(&line)?;
        }
        for monitor in held.iter().filter(|monitor| monitor.frame == at) {
            out.line(&format!("\t- locked {}", object(monitor.object, &monitor.class)))?;
        }
    }
    lock.map_or(Ok(()), |line| out.line(&line))
}

/// Returns the frames to show, each with its position among all frames of the thread.
pub fn frames<'a>(
    args: &DumpOptions,
    thread: &'a Thread,
) -> impl Iterator<Item = (usize, &'a Frame)> {
    let is_mixed = args.mixed;
    thread.frames.iter().enumerate().filter(move |(_, frame)| is_mixed || frame.is_java())
}

/// Returns the text of a frame: of a Java frame as jstack prints it, of other frames only the name.
pub fn frame_text(frame: &Frame) -> String {
    let name = &frame.name;
    if !frame.is_java() {
        return name.to_string();
    }
    format!("{name}({}{})", module(frame, |_| true), location(frame))
}

/// Returns the text of a frame: of a Java frame as `StackTraceElement.toString` returns it, of other frames only the
/// name. Modules of the JDK have no version there.
pub fn element_text(frame: &Frame) -> String {
    let name = &frame.name;
    if !frame.is_java() {
        return name.to_string();
    }
    format!("{}{name}({})", module(frame, |module| !module.is_of_jdk), location(frame))
}

/// Returns the module in a Java frame's text, with a slash; empty for unnamed modules. `has_version` decides whether the
/// version of a module is shown.
fn module(frame: &Frame, has_version: impl Fn(&JavaModule) -> bool) -> String {
    let module = frame.origin.as_ref().and_then(|origin| origin.module.as_ref());
    let Some(module) = module else { return String::new() };
    let name = &module.name;
    match module.version.as_ref().filter(|_| has_version(module)) {
        Some(version) => format!("{name}@{version}/"),
        None => format!("{name}/"),
    }
}

/// Returns the location in a Java frame's text.
fn location(frame: &Frame) -> String {
    match (&frame.file, frame.line) {
        _ if frame.origin.as_ref().is_some_and(|origin| origin.is_native) => "Native Method".into(),
        (Some(file), line @ 1..) => format!("{file}:{line}"),
        (Some(file), 0) => file.to_string(),
        (None, _) => "Unknown Source".into(),
    }
}

/// Returns the line about the object that a thread waits for.
pub fn lock_line(on: &BlockedOn) -> String {
    let object = object(on.object, &on.class);
    match on.kind {
        BlockKind::Enter => format!("\t- waiting to lock {object}"),
        BlockKind::Wait => format!("\t- waiting on {object}"),
        BlockKind::Park => format!("\t- parking to wait for  {object}"),
    }
}

/// Returns an object as jstack shows it.
pub fn object(object: Addr, class: &str) -> String {
    format!("<{:#018x}> (a {class})", object.0)
}

/// Prints deadlocks as jstack does.
fn print_deadlocks(
    args: &DumpOptions,
    dump: &Dump,
    owners: &Owners<'_>,
    out: &mut Output,
) -> Result<()> {
    let title = |member: Holder<'_>| match member {
        Holder::Platform(thread) => format!("\"{}\":", thread.name()),
        Holder::Virtual(thread) => format!("{}:", virtual_threads::title(thread)),
    };
    for cycle in &dump.deadlocks {
        let members: Vec<_> = cycle.iter().filter_map(|&member| owners.get(member)).collect();
        out.line("Found one Java-level deadlock:")?;
        out.line("=============================")?;
        for &member in &members {
            let Some(on) = member.blocked_on() else { continue };
            out.line(&title(member))?;
            let what = match on.kind {
                BlockKind::Park => "waiting for ownable synchronizer",
                BlockKind::Enter | BlockKind::Wait => "waiting to lock monitor of",
            };
            out.line(&format!("  {what} {:#018x}, (a {}),", on.object.0, on.class))?;
            out.lines(&format!("  which is held by {}\n", owners.text(&on.owner)))?;
        }
        out.line("Java stack information for the threads listed above:")?;
        out.line("===================================================")?;
        for member in members {
            out.line(&title(member))?;
            match member {
                Holder::Platform(thread) => stack(args, thread, out)?,
                Holder::Virtual(thread) => virtual_threads::stack(args, thread, out)?,
            }
        }
        out.line("")?;
    }
    if !dump.deadlocks.is_empty() {
        out.line(&format!("Found {}.", count(dump.deadlocks.len() as u64, "deadlock")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{names::code::MethodOrigin, stack::Kind};

    fn frame(is_native: bool, module: Option<(&str, Option<&str>, bool)>) -> Frame {
        let module = module.map(|(name, version, is_of_jdk)| {
            let (name, version) = (name.into(), version.map(Into::into));
            Arc::new(JavaModule { name, version, is_of_jdk })
        });
        let origin = Some(Arc::new(MethodOrigin { is_native, module }));
        Frame { origin, ..Frame::new(Kind::Java, "a.B.c").at(Some("B.java".into()), 7) }
    }

    #[test]
    fn threads_left_out_are_described_with_their_reasons() {
        let text = |above_max, memory| left_out_text(LeftOut { above_max, memory }, 20);
        assert_eq!(text(0, 0), None);
        let left_out = "threads left out of the dump, because it";
        assert_eq!(text(0, 2).unwrap(), format!("2 {left_out} would take too much memory"));
        assert_eq!(text(3, 0).unwrap(), format!("3 {left_out} has at most 20 threads"));
        let both =
            format!("5 {left_out} has at most 22 threads, and it would take too much memory");
        assert_eq!(text(3, 2).unwrap(), both);
    }

    #[test]
    fn frames_have_the_forms_of_jstack_and_of_java() {
        for (frame, text, element) in [
            (frame(false, None), "a.B.c(B.java:7)", "a.B.c(B.java:7)"),
            (frame(true, None), "a.B.c(Native Method)", "a.B.c(Native Method)"),
            (
                frame(true, Some(("java.base", Some("17.0.1"), true))),
                "a.B.c(java.base@17.0.1/Native Method)",
                "java.base/a.B.c(Native Method)",
            ),
            (
                frame(false, Some(("app", Some("1.0"), false))),
                "a.B.c(app@1.0/B.java:7)",
                "app@1.0/a.B.c(B.java:7)",
            ),
            (
                frame(false, Some(("app", None, false))),
                "a.B.c(app/B.java:7)",
                "app/a.B.c(B.java:7)",
            ),
            (Frame::new(Kind::Java, "a.B.c"), "a.B.c(Unknown Source)", "a.B.c(Unknown Source)"),
            (Frame::new(Kind::Native, "poll"), "poll", "poll"),
        ] {
            assert_eq!((&*frame_text(&frame), &*element_text(&frame)), (text, element));
        }
    }
}

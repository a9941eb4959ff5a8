//! Prints dumps in jstack's format.
//!
//! Source: `JavaThread::print_on` and `VM_PrintThreads` (hotspot/share/runtime), `ThreadStackTrace` and
//! `DeadlockCycle::print_on_with` (hotspot/share/services/threadService.cpp).

use std::collections::BTreeMap;

use anyhow::Result;
use jiff::Zoned;
use libjvmprobe::{
    Addr,
    hotspot::{
        HotSpot,
        java_threads::{BlockKind, BlockedOn, JavaThread, Owner, ThreadStatus},
    },
    render::{output::Output, units::count},
    stack::Frame,
    trace::threads::{Activity, Dump, Thread},
};

use crate::args::Args;

/// Prints a dump.
pub fn print(args: &Args, hotspot: &HotSpot, dump: &Dump, out: &mut Output) -> Result<()> {
    let threads = &dump.threads;
    if !args.common.quiet {
        let format =
            if args.common.timestamps { "%Y-%m-%d %H:%M:%S%:z" } else { "%Y-%m-%d %H:%M:%S" };
        out.line(&Zoned::now().strftime(format).to_string())?;
        out.lines(&format!("Full thread dump {}:\n", hotspot.version))?;
        for thread in threads {
            out.lines(&header(thread))?;
            if thread.java.is_some() || args.mixed {
                stack(args, thread, out)?;
            }
            out.line("")?;
        }
    }
    blocked(threads, out)?;
    print_deadlocks(args, dump, out)
}

/// Returns the first line of a thread.
fn header(thread: &Thread) -> String {
    let os = &thread.os;
    let times = format!(
        "os_prio={} cpu={:.2}ms elapsed={:.2}s",
        os.nice,
        os.cpu.as_secs_f64() * 1e3,
        os.elapsed.as_secs_f64()
    );
    let nid = os.namespace_tid;
    let Some(java) = &thread.java else {
        return format!("\"{}\" {times} nid={nid:#x}", thread.name());
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
    line += &format!(" {times} tid={:#018x} nid={nid:#x} {activity}", java.address.0);
    if let Some(status) = java.status {
        line += &format!("\n   java.lang.Thread.State: {}", status.text());
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

/// Prints the frames of a thread: below the innermost Java frame the object that the thread waits for, and below each
/// frame the monitors that it has entered and holds.
fn stack(args: &Args, thread: &Thread, out: &mut Output) -> Result<()> {
    let blocked_on = thread.java.as_ref().and_then(|java| java.blocked_on.as_ref());
    let mut lock = blocked_on.map(lock_line);
    for (at, frame) in frames(args, thread) {
        out.line(&format!("\tat {}", frame_text(frame)))?;
        if frame.is_java()
            && let Some(line) = lock.take()
        {
            out.line(&line)?;
        }
        for monitor in thread.held.iter().filter(|monitor| monitor.frame == at) {
            out.line(&format!("\t- locked {}", object(monitor.object, &monitor.class)))?;
        }
    }
    lock.map_or(Ok(()), |line| Ok(out.line(&line)?))
}

/// Returns the frames to show, with their positions.
pub fn frames<'a>(args: &Args, thread: &'a Thread) -> impl Iterator<Item = (usize, &'a Frame)> {
    let is_mixed = args.mixed;
    thread.frames.iter().enumerate().filter(move |(_, frame)| is_mixed || frame.is_java())
}

/// Returns a frame as in Java's stack traces.
pub fn frame_text(frame: &Frame) -> String {
    let name = &frame.name;
    match (&frame.file, frame.line) {
        _ if !frame.is_java() => name.to_string(),
        (Some(file), line @ 1..) => format!("{name}({file}:{line})"),
        (Some(file), 0) => format!("{name}({file})"),
        (None, _) => format!("{name}(Unknown Source)"),
    }
}

fn lock_line(on: &BlockedOn) -> String {
    let object = object(on.object, &on.class);
    match on.kind {
        BlockKind::Enter => format!("\t- waiting to lock {object}"),
        BlockKind::Wait => format!("\t- waiting on {object}"),
        BlockKind::Park => format!("\t- parking to wait for  {object}"),
    }
}

fn object(object: Addr, class: &str) -> String {
    format!("<{:#018x}> (a {class})", object.0)
}

/// Prints each lock that is held while other threads wait for it, with their number and the lock's owner.
fn blocked(threads: &[Thread], out: &mut Output) -> Result<()> {
    let mut locks: BTreeMap<Addr, (&BlockedOn, Vec<&Thread>)> = BTreeMap::new();
    for thread in threads {
        let on = thread.java.as_ref().and_then(|java| java.blocked_on.as_ref());
        if let Some(on) = on.filter(|on| on.kind != BlockKind::Wait && on.owner != Owner::None) {
            locks.entry(on.object).or_insert((on, Vec::new())).1.push(thread);
        }
    }
    let mut locks: Vec<_> = locks.into_values().collect();
    locks.sort_by_key(|(_, waiting)| std::cmp::Reverse(waiting.len()));
    for (on, waiting) in &locks {
        let verb = if waiting.len() == 1 { "waits" } else { "wait" };
        let waiting = count(waiting.len() as u64, "thread");
        let owner = owner_text(&on.owner, threads);
        out.line(&format!(
            "{waiting} {verb} for {}, held by {owner}",
            object(on.object, &on.class)
        ))?;
    }
    if !locks.is_empty() {
        out.line("")?;
    }
    Ok(())
}

/// Describes the owner of a lock.
pub fn owner_text(owner: &Owner, threads: &[Thread]) -> String {
    match owner {
        Owner::None => "none".into(),
        Owner::Unknown => "an unknown thread".into(),
        Owner::VirtualThread { number, name: Some(name) } => {
            format!("virtual thread #{number} \"{name}\"")
        }
        Owner::VirtualThread { number, name: None } => format!("virtual thread #{number}"),
        Owner::Thread(address) => {
            let is_owner = |thread: &&Thread| {
                thread.java.as_ref().is_some_and(|java| java.address == *address)
            };
            threads.iter().find(is_owner).map_or_else(
                || "an exited thread".into(),
                |thread| format!("\"{}\"", thread.name()),
            )
        }
    }
}

/// Prints deadlocks as jstack does.
fn print_deadlocks(
    args: &Args,
    Dump { threads, deadlocks }: &Dump,
    out: &mut Output,
) -> Result<()> {
    let members = |cycle: &[usize]| -> Vec<(&Thread, &BlockedOn)> {
        let member = |&at: &usize| {
            let thread = threads.get(at)?;
            Some((thread, thread.java.as_ref()?.blocked_on.as_ref()?))
        };
        cycle.iter().filter_map(member).collect()
    };
    for cycle in deadlocks {
        out.line("Found one Java-level deadlock:")?;
        out.line("=============================")?;
        let members = members(cycle);
        for (thread, on) in &members {
            out.line(&format!("\"{}\":", thread.name()))?;
            let what = match on.kind {
                BlockKind::Park => "waiting for ownable synchronizer",
                BlockKind::Enter | BlockKind::Wait => "waiting to lock monitor of",
            };
            out.line(&format!("  {what} {:#018x}, (a {}),", on.object.0, on.class))?;
            out.lines(&format!("  which is held by {}\n", owner_text(&on.owner, threads)))?;
        }
        out.line("Java stack information for the threads listed above:")?;
        out.line("===================================================")?;
        for (thread, _) in &members {
            out.line(&format!("\"{}\":", thread.name()))?;
            stack(args, thread, out)?;
        }
        out.line("")?;
    }
    if !deadlocks.is_empty() {
        out.line(&format!("Found {}.", count(deadlocks.len() as u64, "deadlock")))?;
    }
    Ok(())
}

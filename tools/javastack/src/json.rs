//! Dumps as JSON, in the schema of `jcmd PID Thread.dump_to_file -format=json` with further fields.
//!
//! Source: jdk/internal/vm/ThreadDumper.java.

use std::time::Duration;

use jiff::Timestamp;
use libjvmprobe::{
    Pid,
    hotspot::{HotSpot, java_threads::BlockKind},
    stack::Frame,
    trace::threads::{Activity, Dump, Thread},
};
use serde_json::{Value, json};

use crate::{
    args::Args,
    blocked::Owners,
    changes::Change,
    report::{frame_text, frames, shown},
};

/// Returns a dump.
pub fn dump(
    args: &Args,
    pid: Pid,
    hotspot: &HotSpot,
    dump: &Dump,
    changes: &[Option<Change>],
) -> Value {
    let threads = &dump.threads;
    let owners = Owners::of(threads);
    let shown = shown(args, threads, changes).into_iter();
    let java = shown.filter(|(thread, _)| thread.java.is_some());
    let java = java.map(|(thread, change)| thread_json(args, thread, change, &owners));
    let java: Vec<_> = java.collect();
    let count = java.len().to_string();
    let names = |cycle: &Vec<usize>| -> Vec<&str> {
        cycle.iter().filter_map(|&at| Some(threads.get(at)?.name())).collect()
    };
    let deadlocks: Vec<_> = dump.deadlocks.iter().map(names).collect();
    json!({ "threadDump": {
        "processId": pid.0.to_string(),
        "time": args.core.is_none().then(|| Timestamp::now().to_string()),
        "runtimeVersion": hotspot.version,
        "threadContainers": [{
            "container": "<root>",
            "parent": null,
            "owner": null,
            "threads": java,
            "threadCount": count,
        }],
        "deadlocks": deadlocks,
    }})
}

fn thread_json(args: &Args, thread: &Thread, change: Option<Change>, owners: &Owners<'_>) -> Value {
    let java = thread.java.as_ref();
    let frames: Vec<_> = frames(args, thread).collect();
    let stack: Vec<_> = frames.iter().map(|(_, frame)| frame_text(frame)).collect();
    let locks_at = |(depth, (at, _)): (usize, &(usize, &Frame))| {
        let held = thread.held.iter().filter(|monitor| monitor.frame == *at);
        let locks: Vec<_> =
            held.map(|held| format!("{}@{:#x}", held.class, held.object.0)).collect();
        (!locks.is_empty()).then(|| json!({ "depth": depth, "locks": locks }))
    };
    let monitors_owned: Vec<_> = frames.iter().enumerate().filter_map(locks_at).collect();
    let blocked_on = java.and_then(|java| java.blocked_on.as_ref()).map(|on| {
        json!({
            "kind": match on.kind {
                BlockKind::Enter => "enter",
                BlockKind::Wait => "wait",
                BlockKind::Park => "park",
            },
            "object": format!("{:#x}", on.object.0),
            "class": on.class,
            "owner": owners.text(&on.owner),
        })
    });
    json!({
        "tid": java.and_then(|java| java.number).map(|number| number.to_string()),
        "name": thread.name(),
        "state": java.and_then(|java| java.status).map(|status| status.text()),
        "stack": stack,
        "monitorsOwned": monitors_owned,
        "daemon": java.and_then(|java| java.is_daemon),
        "nid": thread.os.namespace_tid,
        "cpu_ns": thread.os.scheduling.map(|scheduling| nanoseconds(scheduling.cpu)),
        "cpu_since_last_ns": change.map(|change| nanoseconds(change.cpu)),
        "has_moved": change.map(|change| !change.is_still),
        "blocked_on": blocked_on,
        "blocking_call": thread.call.as_ref().map(ToString::to_string),
        "activity": match thread.activity {
            Activity::Still => "still",
            Activity::Running => "running",
            Activity::Moving => "moving",
        },
    })
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

//! Dumps as JSON, in the schema of `jcmd PID Thread.dump_to_file -format=json` with further fields.
//!
//! Source: jdk/internal/vm/ThreadDumper.java.

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
    report::{frame_text, frames, owner_text},
};

/// Returns a dump.
pub fn dump(args: &Args, pid: Pid, hotspot: &HotSpot, dump: &Dump) -> Value {
    let threads = &dump.threads;
    let java: Vec<_> = threads.iter().filter(|thread| thread.java.is_some()).collect();
    let count = java.len().to_string();
    let java: Vec<_> = java.into_iter().map(|thread| thread_json(args, thread, threads)).collect();
    let names = |cycle: &Vec<usize>| -> Vec<&str> {
        cycle.iter().filter_map(|&at| Some(threads.get(at)?.name())).collect()
    };
    let deadlocks: Vec<_> = dump.deadlocks.iter().map(names).collect();
    json!({ "threadDump": {
        "processId": pid.0.to_string(),
        "time": Timestamp::now().to_string(),
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

fn thread_json(args: &Args, thread: &Thread, threads: &[Thread]) -> Value {
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
            "owner": owner_text(&on.owner, threads),
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
        "cpu_ns": u64::try_from(thread.os.cpu.as_nanos()).unwrap_or(u64::MAX),
        "blocked_on": blocked_on,
        "activity": match thread.activity {
            Activity::Still => "still",
            Activity::Running => "running",
            Activity::Moving => "moving",
        },
    })
}

//! Dumps as JSON, in the schema of `jcmd PID Thread.dump_to_file -format=json` with further fields.
//!
//! Source: jdk/internal/vm/ThreadDumper.java.

use jiff::Timestamp;
use libjvmprobe::{
    Pid,
    hotspot::{HotSpot, java_threads::BlockKind},
    trace::threads::{Activity, Thread},
};
use serde_json::{Value, json};

use crate::{
    args::Args,
    report::{frame_text, owner_text},
};

/// Returns a dump.
pub fn dump(
    args: &Args,
    pid: Pid,
    hotspot: &HotSpot,
    threads: &[Thread],
    deadlocks: &[Vec<usize>],
) -> Value {
    let java: Vec<_> = threads.iter().filter(|thread| thread.java.is_some()).collect();
    let count = java.len().to_string();
    let java: Vec<_> = java.into_iter().map(|thread| thread_json(args, thread, threads)).collect();
    let names = |cycle: &Vec<usize>| -> Vec<&str> {
        cycle.iter().filter_map(|&at| Some(threads.get(at)?.name())).collect()
    };
    let deadlocks: Vec<_> = deadlocks.iter().map(names).collect();
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
    let frames = thread.frames.iter().filter(|frame| args.mixed || frame.is_java());
    let stack: Vec<_> = frames.map(frame_text).collect();
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

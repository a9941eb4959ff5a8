//! Dumps as JSON, in the schema of `jcmd PID Thread.dump_to_file -format=json` with further fields.
//!
//! Source: jdk/internal/vm/ThreadDumper.java. The containers and the virtual threads are in `containers`.

use std::time::Duration;

use jiff::Timestamp;
use libjvmprobe::{
    hotspot::java_threads::{BlockKind, BlockedOn},
    render::threads::{
        blocked::{Owners, Synchronizers},
        report::{DumpOptions, element_text, frames},
    },
    stack::Frame,
    trace::threads::{Activity, Dump, Thread, ThreadId},
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::containers::Containers;

/// The printed object, whose only member is the dump.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Record<'a> {
    thread_dump: ThreadDump<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ThreadDump<'a> {
    process_id: String,
    /// `None` for a core file, which does not contain the time.
    time: Option<String>,
    runtime_version: &'a str,
    thread_containers: Containers<'a>,
    deadlocks: Vec<Vec<&'a str>>,
    /// Number of platform threads that are not in the dump, because of the maximum number or their memory.
    threads_left_out: u64,
    /// Why ownable synchronizers may be missing; `None` if none is, or if they are not listed.
    synchronizers_incomplete: Option<&'a str>,
}

/// Returns the JSON of a dump.
pub fn dump<'a>(args: &'a DumpOptions, dump: &'a Dump) -> impl Serialize + 'a {
    let owners = Owners::of(dump);
    let synchronizers = Synchronizers::of(dump);
    let names = |cycle: &Vec<ThreadId>| {
        cycle.iter().filter_map(|&member| Some(owners.get(member)?.name())).collect()
    };
    Record {
        thread_dump: ThreadDump {
            process_id: dump.pid.to_string(),
            time: (!args.no_time).then(|| Timestamp::now().to_string()),
            runtime_version: &dump.version,
            deadlocks: dump.deadlocks.iter().map(names).collect(),
            threads_left_out: dump.left_out.all(),
            synchronizers_incomplete: synchronizers.as_ref().and_then(|all| all.incomplete),
            thread_containers: Containers { args, dump, owners, synchronizers },
        },
    }
}

/// Returns the JSON of a platform thread.
pub fn thread_json(
    args: &DumpOptions,
    thread: &Thread,
    owners: &Owners<'_>,
    synchronizers: Option<&Synchronizers<'_>>,
) -> Value {
    let java = thread.java.as_ref();
    let frames: Vec<_> = frames(args, thread).collect();
    let stack: Vec<_> = frames.iter().map(|(_, frame)| element_text(frame)).collect();
    let locks_at = |(depth, (at, _)): (usize, &(usize, &Frame))| {
        let held = thread.held.iter().filter(|monitor| monitor.frame == *at);
        let locks: Vec<_> =
            held.map(|held| format!("{}@{:#x}", held.class, held.object.0)).collect();
        (!locks.is_empty()).then(|| json!({ "depth": depth, "locks": locks }))
    };
    let monitors_owned: Vec<_> = frames.iter().enumerate().filter_map(locks_at).collect();
    let synchronizers = java.zip(synchronizers).and_then(|(java, all)| all.of_thread(java.address));
    let synchronizers: Option<Vec<_>> = synchronizers
        .map(|held| held.map(|(object, class)| format!("{class}@{:#x}", object.0)).collect());
    json!({
        "tid": java.and_then(|java| java.number).map(|number| number.to_string()),
        "name": thread.name(),
        "state": java.and_then(|java| java.status).map(|status| status.text()),
        "stack": stack,
        "monitorsOwned": monitors_owned,
        "synchronizers": synchronizers,
        "daemon": java.and_then(|java| java.is_daemon),
        "nid": thread.os.namespace_tid,
        "cpu_ns": thread.os.scheduling.map(|scheduling| nanoseconds(scheduling.cpu)),
        "cpu_since_last_ns": thread.change.map(|change| nanoseconds(change.cpu)),
        "has_moved": thread.change.map(|change| !change.is_still),
        "blocked_on": thread.blocked_on().map(|on| blocked_on_json(on, owners)),
        "blocking_call": thread.call.as_ref().map(ToString::to_string),
        "activity": activity_text(thread.activity),
        "carrying": thread.carried().map(|number| number.to_string()),
    })
}

/// Returns the JSON of an object that a thread waits for.
pub fn blocked_on_json(on: &BlockedOn, owners: &Owners<'_>) -> Value {
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
}

/// Returns the text of an activity.
pub fn activity_text(activity: Activity) -> &'static str {
    match activity {
        Activity::Still => "still",
        Activity::Running => "running",
        Activity::Moving => "moving",
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

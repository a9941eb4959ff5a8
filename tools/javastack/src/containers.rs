//! Threads in their containers, as JSON.

use std::{collections::HashMap, sync::Arc};

use libjvmprobe::{
    render::threads::{
        blocked::{Owners, Synchronizers},
        report::{DumpOptions, shown},
        virtual_threads::texts,
    },
    stack::Frame,
    trace::threads::{Dump, Thread, VirtualThread},
};
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::json::{activity_text, blocked_on_json, thread_json};

/// The thread containers with their threads, in the schema of `jcmd Thread.dump_to_file -format=json`. The
/// threads are converted to JSON one after the other, because a container may have a million threads.
pub struct Containers<'a> {
    /// The options of the dump.
    pub args: &'a DumpOptions,
    /// The dump.
    pub dump: &'a Dump,
    /// The owners of locks.
    pub owners: Owners<'a>,
    /// The ownable synchronizers that threads hold; `None` if they are not listed.
    pub synchronizers: Option<Synchronizers<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Container<'a> {
    container: &'a str,
    parent: Option<&'a str>,
    owner: Option<String>,
    threads: Threads<'a>,
    thread_count: String,
}

/// The threads of a container.
struct Threads<'a> {
    all: &'a Containers<'a>,
    platform: Vec<&'a Thread>,
    found: &'a [VirtualThread],
    stacks: &'a HashMap<*const Frame, Vec<String>>,
}

#[derive(Serialize)]
struct VirtualJson<'a> {
    tid: String,
    name: &'a str,
    #[serde(rename = "virtual")]
    is_virtual: bool,
    state: &'static str,
    stack: &'a [String],
    carrier: Option<String>,
    blocked_on: Option<Value>,
    activity: &'static str,
}

impl Serialize for Containers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Dump { threads, virtual_threads, containers, .. } = self.dump;
        let mut stacks = HashMap::new();
        for thread in virtual_threads {
            let text = || texts(self.args, &thread.frames);
            stacks.entry(Arc::as_ptr(&thread.frames).cast()).or_insert_with(text);
        }
        let mut platform = vec![Vec::new(); containers.len()];
        for thread in shown(self.args, threads).into_iter().filter(|thread| thread.java.is_some()) {
            if let Some(threads) = platform.get_mut(thread.container) {
                threads.push(thread);
            }
        }
        // The virtual threads are sorted by container.
        let of = |index: usize| {
            // Virtual threads cannot be sorted by CPU time, because their CPU time is not known.
            let all = if self.args.top.is_none() { &virtual_threads[..] } else { &[] };
            let begin = all.partition_point(|thread| thread.java.container < index);
            let end = all.partition_point(|thread| thread.java.container <= index);
            all.get(begin..end).unwrap_or_default()
        };
        let all = containers.iter().zip(platform).enumerate();
        serializer.collect_seq(all.map(|(index, (container, platform))| {
            let found = of(index);
            let parent = container.parent.and_then(|parent| containers.get(parent));
            Container {
                container: &container.name,
                parent: parent.map(|parent| &*parent.name),
                owner: container.owner.map(|owner| owner.to_string()),
                thread_count: (platform.len() + found.len()).to_string(),
                threads: Threads { all: self, platform, found, stacks: &stacks },
            }
        }))
    }
}

/// A thread of either kind.
#[derive(Serialize)]
#[serde(untagged)]
enum ThreadJson<'a> {
    Platform(Value),
    Virtual(VirtualJson<'a>),
}

impl Serialize for Threads<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Containers { args, dump, owners, synchronizers } = self.all;
        let json = |thread: &&Thread| thread_json(args, thread, owners, synchronizers.as_ref());
        let platform = self.platform.iter().map(json);
        let found = self.found.iter().map(|thread| {
            let carrier = thread.carrier.and_then(|at| dump.threads.get(at)?.java.as_ref()?.number);
            let on = thread.java.blocked_on.as_ref();
            VirtualJson {
                tid: thread.java.number.to_string(),
                name: &thread.java.name,
                is_virtual: true,
                state: thread.status.text(),
                stack: self.stacks.get(&thread.frames.as_ptr()).map_or(&[], Vec::as_slice),
                carrier: carrier.map(|number| number.to_string()),
                blocked_on: on.map(|on| blocked_on_json(on, owners)),
                activity: activity_text(thread.activity),
            }
        });
        let all = platform.map(ThreadJson::Platform).chain(found.map(ThreadJson::Virtual));
        serializer.collect_seq(all)
    }
}

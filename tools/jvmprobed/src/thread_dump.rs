//! Thread dumps of JVMs that have a deadlock or make no progress.

use libjvmprobe::{
    Result,
    render::{
        output::Output,
        threads::{
            blocked::Owners,
            report::{self, DumpOptions},
        },
        units::count,
    },
    trace::threads::{Dump, ThreadId},
};
use serde::{Deserialize, Serialize};

use crate::{
    stops::{Lost, shrink_fairly},
    window::JvmData,
};

/// Maximum length of the text about the threads in a dump, in bytes. As JSON, this text is at most twice as
/// long, because only line breaks, tabs, quotation marks and backslashes are escaped. A dump must fit into a
/// line of the store.
const MAX_THREADS: usize = 256 << 10;
/// Maximum length of the text about locks and deadlocks in a dump, in bytes.
const MAX_LOCKS: usize = 64 << 10;
/// Maximum number of lines of a paragraph: see [`shortened`].
const MAX_LINES: usize = 300;

/// Maximum number of deadlocks whose threads are listed, and maximum number of threads listed for each of them.
const MAX_DEADLOCKS: usize = 5;
const MAX_MEMBERS: usize = 50;
/// Maximum number of characters of a listed thread's name.
const MAX_NAME: usize = 256;
/// Maximum number of threads that a log message names for each deadlock.
const MAX_NAMES: usize = 8;

/// Reason for a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Threads wait for locks of each other.
    Deadlock,
    /// At least one thread has waited for one and the same lock for the configured time, and the owner of
    /// that lock has made no progress.
    NoProgress,
}

impl Cause {
    /// All reasons.
    pub const ALL: [Self; 2] = [Self::Deadlock, Self::NoProgress];

    /// Returns the name in JSON and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deadlock => "deadlock",
            Self::NoProgress => "no-progress",
        }
    }
}

/// A stored dump. As JSON, it is a line of type "threads".
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "type", rename = "threads")]
pub struct ThreadDump {
    /// Time, in RFC 3339 format and UTC.
    pub time: String,
    /// PID of the JVM.
    pub pid: u32,
    /// Reason.
    pub cause: Cause,
    /// Names of the threads of each deadlock. Each thread waits for a lock of the next one, and the last one
    /// for a lock of the first. Limited to 5 deadlocks with 50 threads each.
    pub deadlocks: Vec<Vec<String>>,
    /// Number of threads that have each waited for one lock for the configured time, and that are part of the
    /// reported deadlocks or standstills or wait for them.
    pub waiting: u64,
    /// All threads, in jstack's format.
    pub threads: String,
    /// The locks for which threads wait, and the deadlocks. In the output of `javastack`, this text follows `threads`.
    pub locks: String,
}

impl ThreadDump {
    /// Makes the stored form of a dump, with its text.
    ///
    /// # Errors
    /// The errors of rendering to memory, which do not occur.
    pub fn new(time: String, (cause, waiting): (Cause, u64), dump: &Dump) -> Result<Self> {
        let print = |quiet| {
            let options = DumpOptions { quiet, ..DumpOptions::default() };
            Output::collect(|out| report::print(&options, dump, out))
        };
        let (all, locks) = (print(false)?, print(true)?);
        let threads = all.strip_suffix(&locks).unwrap_or(&all);
        let mut threads = shortened(threads, MAX_THREADS);
        if let Some(missing) = &dump.missing {
            threads += &format!("... {missing}\n\n");
        }
        let owners = Owners::of(dump);
        let name = |&id: &_| Some(owners.get(id)?.name().chars().take(MAX_NAME).collect());
        let names =
            |cycle: &Vec<ThreadId>| cycle.iter().filter_map(name).take(MAX_MEMBERS).collect();
        let deadlocks = dump.deadlocks.iter().take(MAX_DEADLOCKS).map(names);
        Ok(Self {
            time,
            pid: dump.pid.0,
            cause,
            deadlocks: deadlocks.collect(),
            waiting,
            threads,
            locks: shortened(&locks, MAX_LOCKS),
        })
    }

    /// Returns the memory of the dump, in bytes.
    pub fn size(&self) -> usize {
        size_of::<Self>() + self.threads.len() + self.locks.len()
    }

    /// Describes what was found, in one line.
    pub fn describe(&self) -> String {
        match self.cause {
            Cause::Deadlock => {
                let names = |cycle: &Vec<String>| {
                    let names = cycle.iter().take(MAX_NAMES).map(|name| format!("\"{name}\""));
                    let names = names.collect::<Vec<_>>().join(", ");
                    if cycle.len() > MAX_NAMES { names + ", and others" } else { names }
                };
                let cycles: Vec<_> = self.deadlocks.iter().map(names).collect();
                let word = if cycles.len() == 1 { "deadlock" } else { "deadlocks" };
                format!("{word} of {}", cycles.join("; "))
            }
            Cause::NoProgress => {
                let (have, locks) =
                    if self.waiting == 1 { ("has", "a lock") } else { ("have", "locks") };
                let first = self.locks.lines().next().unwrap_or_default();
                let waiting = count(self.waiting, "thread");
                format!("{waiting} {have} waited for {locks} without progress: {first}")
            }
        }
    }
}

/// Shortens a text that consists of paragraphs separated by empty lines. In a dump, each platform thread is one
/// paragraph, and virtual threads with equal stacks are one. Of a long paragraph, only the first `MAX_LINES` lines
/// remain. If a paragraph would make the text longer than `max` bytes, this paragraph and all later ones are left out.
/// Added lines say how many lines or paragraphs are missing.
fn shortened(text: &str, max: usize) -> String {
    let mut short = String::new();
    let mut blocks = text.split_inclusive("\n\n");
    for block in blocks.by_ref() {
        let before = short.len();
        let lines = block.trim_end().lines().count();
        if lines > MAX_LINES {
            for line in block.lines().take(MAX_LINES) {
                short = short + line + "\n";
            }
            short += &format!("\t... {} more lines\n\n", lines - MAX_LINES);
        } else {
            short += block;
        }
        if short.len() > max {
            short.truncate(before);
            let left_out = count(blocks.count() as u64 + 1, "more paragraph");
            short += &format!("... {left_out}: the dump is too long to be stored completely\n\n");
            break;
        }
    }
    short
}

/// Returns the memory of the dumps of some JVMs, in bytes.
pub fn size(jvms: &[JvmData]) -> usize {
    jvms.iter().map(size_of_dumps).sum()
}

fn size_of_dumps(jvm_data: &JvmData) -> usize {
    jvm_data.dumps.iter().map(ThreadDump::size).sum()
}

/// Drops dumps until the remaining ones take at most `max` bytes. Space is divided among tenants, then among
/// the JVMs of each tenant. Of a JVM with too many dumps, the earliest ones remain. Returns the number of
/// dropped dumps by tenant.
pub fn bound(jvms: &mut [JvmData], max: usize) -> Lost {
    let all = jvms.iter_mut().map(|jvm_data| (jvm_data.identity.tenant(), jvm_data));
    shrink_fairly(
        all,
        max,
        |jvm_data| size_of_dumps(jvm_data),
        |jvm_data, share| {
            let (mut left, before) = (share, jvm_data.dumps.len());
            jvm_data.dumps.retain(|dump| {
                let rest = left.checked_sub(dump.size());
                left = rest.unwrap_or(0);
                rest.is_some()
            });
            (before - jvm_data.dumps.len()) as u64
        },
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::window::Identity;

    #[test]
    fn long_dumps_lose_frames_and_threads_and_say_so() {
        let thread = |number: u32, frames: usize| {
            format!("\"{number}\"\n{}\n", "\tat A.b(A.java:1)\n".repeat(frames))
        };
        let all: String = (0..10).map(|number| thread(number, 20)).collect();
        assert_eq!(shortened(&all, 1 << 20), all);
        let short = shortened(&all, all.len() / 2);
        assert!(short.len() <= all.len() / 2 + 100);
        assert!(short.starts_with(&(thread(0, 20) + &thread(1, 20))), "{short}");
        assert!(short.ends_with(
            "\n... 5 more paragraphs: the dump is too long to be stored completely\n\n"
        ));
        let short = shortened(&(thread(1, 1000) + &thread(2, 1)), 1 << 20);
        assert!(short.ends_with(&("\t... 701 more lines\n\n".to_owned() + &thread(2, 1))));
        assert_eq!(short.lines().count(), MAX_LINES + 5);
    }

    #[test]
    fn tenant_with_excessive_dumps_loses_only_its_own() {
        let dump = |bytes: usize| ThreadDump {
            time: String::new(),
            pid: 1,
            cause: Cause::Deadlock,
            deadlocks: Vec::new(),
            waiting: 0,
            threads: "x".repeat(bytes),
            locks: String::new(),
        };
        let jvm = |container: &str, dumps| {
            let attributes = BTreeMap::from([("container.id".to_owned(), container.to_owned())]);
            let identity = Identity { attributes, ..Identity::default() };
            JvmData { identity: identity.into(), dumps, ..JvmData::default() }
        };
        let mut jvms =
            [jvm("quiet", vec![dump(1000)]), jvm("noisy", (0..50).map(|_| dump(1000)).collect())];
        let dropped = bound(&mut jvms, 10_000);
        assert!(size(&jvms) <= 10_000 && jvms[0].dumps.len() == 1);
        let left = jvms[1].dumps.len();
        assert!((1..50).contains(&left));
        assert_eq!(dropped, Lost::from([("container/noisy".into(), 50 - left as u64)]));
    }
}

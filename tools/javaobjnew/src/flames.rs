//! What was allocated as a profile for files: bytes by stack, the class innermost, as
//! async-profiler and JFR have it.

use std::{sync::Arc, time::UNIX_EPOCH};

use libjvmprobe::{
    render::units::{bytes, span},
    stack::{
        Frame, Kind,
        profile::{Measure, Profile, Sample},
    },
};

use crate::{books::Table, stacks::Stacks};

/// The profile of all JVMs, and how many bytes it may take.
pub struct Flames(Profile, usize);

impl Flames {
    /// Begins now, and keeps about so many bytes.
    pub fn new(max_memory: usize) -> Self {
        let mut profile = Profile::default();
        profile.measure = Measure::Allocation;
        let begin = std::time::SystemTime::now().duration_since(UNIX_EPOCH);
        profile.begin_unix_ns =
            begin.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0));
        Self(profile, max_memory)
    }

    /// Adds what a JVM has allocated in the whole trace.
    pub fn add(&mut self, command: &str, table: &Table, stacks: &Stacks) {
        let profile = &mut self.0;
        let command: Arc<str> = command.into();
        profile.duration_ns = profile.duration_ns.max(table.summary.duration_ns);
        profile.lost += table.summary.lost;
        for row in &table.rows {
            let class = profile.intern(Frame::new(Kind::Class, row.class.class.as_str()));
            let thread: Arc<str> = row.class.thread.as_deref().unwrap_or_default().into();
            for part in &row.parts {
                let frames = stacks.frames(part.stack).iter().rev();
                let mut stack: Vec<_> = frames.map(|f| profile.intern(f.clone())).collect();
                stack.push(class);
                profile.samples.push(Sample {
                    pid: table.summary.pid,
                    command: Arc::clone(&command),
                    thread: Arc::clone(&thread),
                    tid: row.class.tid.unwrap_or(0),
                    cpu: None,
                    stack,
                    complete: true,
                    guessed: false,
                    unsure: false,
                    count: part.bytes,
                    things: part.objects,
                    times: Vec::new(),
                });
            }
        }
        // With room for more, or it would be done with each JVM.
        if self.0.size() > self.1 {
            self.0.fold(self.1 / 2);
        }
    }

    /// The profile.
    pub fn profile(&self) -> &Profile {
        &self.0
    }

    /// One line about all of it.
    pub fn describe(&self) -> String {
        format!("{} in {}", bytes(self.0.total()), span(self.0.duration_ns))
    }
}

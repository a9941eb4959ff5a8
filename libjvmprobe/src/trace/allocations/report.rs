//! Report of a JVM, and its conversion to a profile: bytes by stack, with the class as the innermost frame, as
//! in async-profiler and JFR.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::{
    bpf::clock,
    stack::{
        Frame, Kind,
        profile::{Measure, Profile, Sample},
    },
    trace::allocations::{
        jvm_totals::{Scope, Table},
        stacks::Stacks,
        tally::Key,
        time_slots::TimeSlots,
    },
};

/// Time at which counting began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Begin {
    /// On `CLOCK_MONOTONIC`, in nanoseconds.
    pub ns: u64,
    /// In nanoseconds since 1970.
    pub unix_ns: u64,
}

impl Begin {
    pub(super) fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let unix_ns = since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0));
        Self { ns: clock::monotonic_ns(), unix_ns }
    }
}

/// Allocations of a JVM in a period.
pub struct AllocationReport<'a> {
    /// Allocations by class.
    pub table: &'a Table,
    /// The period.
    pub scope: Scope,
    /// Command name of the process.
    pub command: &'a str,
    /// Frames of the stacks in the table, if stacks are walked.
    pub stacks: Option<&'a Stacks>,
    pub(super) time_slots: Option<&'a TimeSlots>,
    /// Time at which counting of the first JVM of the trace began.
    pub begin: Begin,
}

impl AllocationReport<'_> {
    /// Returns the allocations as a profile; `None` if stacks are not walked.
    pub fn profile(&self) -> Option<Profile> {
        let Self { table, scope, stacks: Some(stacks), time_slots, begin, .. } = *self else {
            return None;
        };
        let summary = &table.summary;
        let mut profile = Profile::of(Measure::Allocation);
        profile.slot_ns = time_slots.map_or(0, TimeSlots::slot_ns);
        profile.duration_ns = summary.duration_ns;
        profile.lost = summary.lost;
        let elapsed = summary.ts_ns.saturating_sub(begin.ns);
        profile.begin_unix_ns = match scope {
            Scope::Trace => begin.unix_ns,
            Scope::Interval => begin.unix_ns + elapsed.saturating_sub(summary.duration_ns),
        };
        let last = time_slots.and_then(|m| u32::try_from(m.slot_at(elapsed)).ok());
        let last = last.unwrap_or(u32::MAX);
        let command: Arc<str> = self.command.into();
        for row in &table.rows {
            let name = row.class.class.as_str();
            let class = profile.intern(Frame::new(Kind::Class, name));
            let thread: Arc<str> = row.class.thread.as_deref().unwrap_or_default().into();
            let key = Key { class: name.into(), tid: row.class.tid.unwrap_or(0) };
            for part in &row.parts {
                let frames = stacks.frames(part.stack).iter().rev();
                let mut stack: Vec<_> = frames.map(|f| profile.intern(f.clone())).collect();
                stack.push(class);
                profile.samples.push(Sample {
                    command: Arc::clone(&command),
                    count: part.bytes,
                    occurrences: part.objects,
                    span: stacks.span(part.stack),
                    times: time_slots.map(|m| m.share(&key, part, last)).unwrap_or_default(),
                    ..Sample::of(summary.pid, Arc::clone(&thread), key.tid, stack)
                });
            }
        }
        Some(profile)
    }
}

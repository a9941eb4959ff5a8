//! The stacks of all dumps as a profile, for the output files: each thread of each dump counts once.

use std::collections::HashMap;

use libjvmprobe::{
    process::Process,
    render::threads::{
        report::{DumpOptions, frames},
        virtual_threads,
    },
    stack::{
        Frame,
        profile::{Measure, Profile, Sample},
    },
    trace::threads::{Activity, Dump, VirtualThread},
};

/// Makes an empty profile.
pub fn new() -> Profile {
    Profile::of(Measure::Events("threads".into()))
}

/// Adds the threads of a dump with the frames that the text shows. Virtual threads with equal stacks are one sample, and
/// the frames of a mounted virtual thread do not count for its carrier.
pub fn add(profile: &mut Profile, process: &Process, dump: &Dump, args: &DumpOptions) {
    for thread in dump.threads.iter().filter(|thread| thread.java.is_some() || args.mixed) {
        let sample = sample(profile, process, frames(args, thread));
        let complete = thread.activity != Activity::Moving;
        let (name, tid) = (thread.name().into(), thread.os.tid);
        push(profile, Sample { thread: name, tid, complete, ..sample });
    }
    // Virtual threads with equal stacks share the frames.
    let mut groups: Vec<(&VirtualThread, u64)> = Vec::new();
    let mut group_of = HashMap::new();
    for thread in &dump.virtual_threads {
        let key = (thread.frames.as_ptr(), thread.activity == Activity::Moving);
        let group = *group_of.entry(key).or_insert(groups.len());
        match groups.get_mut(group) {
            Some((_, count)) => *count += 1,
            None => groups.push((thread, 1)),
        }
    }
    for (thread, count) in groups {
        let is_moving = thread.activity == Activity::Moving;
        let sample = sample(profile, process, virtual_threads::shown(args, &thread.frames));
        let (occurrences, complete) = (count, !is_moving);
        push(profile, Sample { count, occurrences, complete, ..sample });
    }
}

/// Makes a sample of a virtual thread from frames, innermost first.
fn sample<'a>(
    profile: &mut Profile,
    process: &Process,
    frames: impl Iterator<Item = (usize, &'a Frame)>,
) -> Sample {
    // Modules do not distinguish frames of a profile.
    let named = |frame: &Frame| Frame { origin: None, ..frame.clone() };
    let mut stack: Vec<_> = frames.map(|(_, frame)| profile.intern(named(frame))).collect();
    stack.reverse();
    Sample {
        command: process.comm.as_str().into(),
        count: 1,
        occurrences: 1,
        ..Sample::of(process.pid.0, "virtual threads".into(), 0, stack)
    }
}

fn push(profile: &mut Profile, sample: Sample) {
    if !sample.stack.is_empty() {
        profile.samples.push(sample);
    }
}

//! The stacks of all dumps as a profile, for the output files: each thread of each dump counts once.

use libjvmprobe::{
    process::Process,
    stack::{
        Frame,
        profile::{Measure, Profile, Sample},
    },
    trace::threads::{Activity, Thread},
};

/// Makes an empty profile.
pub fn new() -> Profile {
    Profile::of(Measure::Events("threads".into()))
}

/// Adds the threads of a dump: Java threads with their Java frames or, if `is_mixed`, all threads with all frames.
pub fn add(profile: &mut Profile, process: &Process, threads: &[Thread], is_mixed: bool) {
    for thread in threads.iter().filter(|thread| thread.java.is_some() || is_mixed) {
        let frames = thread.frames.iter().filter(|frame| is_mixed || frame.is_java());
        // Modules do not distinguish frames of a profile.
        let named = |frame: &Frame| Frame { origin: None, ..frame.clone() };
        let stack: Vec<_> = frames.rev().map(|frame| profile.intern(named(frame))).collect();
        if stack.is_empty() {
            continue;
        }
        profile.samples.push(Sample {
            pid: process.pid.0,
            command: process.comm.as_str().into(),
            thread: thread.name().into(),
            tid: thread.os.tid,
            cpu: None,
            stack,
            complete: thread.activity != Activity::Moving,
            guessed: false,
            unsure: false,
            count: 1,
            occurrences: 1,
            times: Vec::new(),
        });
    }
}

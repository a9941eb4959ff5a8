//! From addresses to names: what was sampled becomes a profile.

use std::{collections::HashMap, sync::Arc, time::UNIX_EPOCH};

use libjvmprobe::{
    Addr,
    hotspot::places::Places,
    stack::{
        Frame, Kind, Place, Stack, WalkEnd,
        entry::cut_behind_entry,
        name::{JavaNames, KernelNames, Name, NativeNames, Sources},
        native::Symbols,
        profile::{FrameId, Profile, Sample},
    },
};

use crate::profiler::Raw;

/// Names every sample.
pub fn profile(mut raw: Raw, signatures: bool) -> Profile {
    let mut profile = Profile::default();
    profile.hertz = raw.hertz;
    profile.duration_ns = u64::try_from(raw.duration.as_nanos()).unwrap_or(u64::MAX);
    profile.begin_unix_ns = raw
        .begin
        .and_then(|begin| begin.duration_since(UNIX_EPOCH).ok())
        .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0));
    profile.lost = raw.lost;
    let mut kernel = KernelNames::new(Symbols::of_kernel());
    let mut processes: HashMap<(u32, u32), Namer> = HashMap::new();
    for (incarnation, mut traced) in std::mem::take(&mut raw.processes) {
        let pid = traced.pid();
        let places = traced.take_places();
        let native = NativeNames::new(traced.maps.clone(), Symbols::of_process(pid));
        let java = JavaNames::new(traced.code.into_index(), signatures);
        let sources: Vec<Box<dyn Name>> = vec![Box::new(java), Box::new(native)];
        processes.insert(
            (pid.0, incarnation),
            Namer::new(Arc::clone(&traced.command), Sources::new(sources), places),
        );
    }
    let nothing = Stack::default();
    for (key, count) in raw.samples {
        let namer = processes
            .entry((key.pid, key.incarnation))
            .or_insert_with(|| Namer::without_sources(key.comm.as_str().into()));
        let user = raw.stacks.get(&key.user).unwrap_or(&nothing);
        let named = namer.user(&mut profile, key.user, key.epoch, user);
        // A kernel thread, or not wanted.
        let end = WalkEnd::from_code(key.user_end);
        let has_user_part = end != WalkEnd::Nothing;
        let complete = named.complete || end == WalkEnd::Entry || !has_user_part;
        let mut stack = named.frames.clone();
        if let Some(kernel_stack) = raw.stacks.get(&key.kernel) {
            let mut frames = Vec::new();
            for addr in kernel_stack.addresses() {
                kernel.name(addr, 0, &mut frames);
            }
            stack.extend(frames.into_iter().rev().map(|frame| profile.intern(frame)));
        }
        // Without a user part, the sample counts for the command alone.
        if stack.is_empty() && has_user_part {
            stack.push(profile.intern(Frame::new(Kind::Unknown, "[unknown]")));
        }
        profile.samples.push(Sample {
            pid: key.pid,
            command: Arc::clone(&namer.command),
            thread: key.comm.into(),
            tid: key.tid,
            cpu: key.cpu,
            stack,
            complete,
            count,
            objects: 0,
        });
    }
    profile
}

/// A user stack, named.
struct Named {
    /// Outermost first.
    frames: Vec<FrameId>,
    complete: bool,
}

/// Names the stacks of one process.
struct Namer {
    command: Arc<str>,
    sources: Sources,
    /// What was named already.
    places: Option<Places>,
    known: HashMap<(u64, u64), Named>,
}

impl Namer {
    fn new(command: Arc<str>, sources: Sources, places: Option<Places>) -> Self {
        Self { command, sources, places, known: HashMap::new() }
    }

    /// For a process of which nothing is known.
    fn without_sources(command: Arc<str>) -> Self {
        Self::new(command, Sources::new(Vec::new()), None)
    }

    fn user(&mut self, profile: &mut Profile, id: u64, epoch: u64, stack: &Stack) -> &Named {
        let (sources, places) = (&mut self.sources, &self.places);
        self.known.entry((id, epoch)).or_insert_with(|| {
            let mut frames = Vec::new();
            for place in stack.lookups() {
                match place {
                    Place::Code(addr) => name(sources, addr, epoch, &mut frames),
                    Place::Named(id) => {
                        let named = places.as_ref().map_or(&[][..], |places| places.frames(id));
                        frames.extend_from_slice(named);
                    }
                }
            }
            let complete = cut_behind_entry(&mut frames);
            let frames = frames.into_iter().rev().map(|frame| profile.intern(frame)).collect();
            Named { frames, complete }
        })
    }
}

fn name(sources: &mut Sources, addr: Addr, epoch: u64, frames: &mut Vec<Frame>) {
    if !sources.name(addr, epoch, frames) {
        frames.push(Frame::new(Kind::Unknown, "[unknown]"));
    }
}

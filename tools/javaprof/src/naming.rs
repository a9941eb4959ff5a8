//! From addresses to names: what was sampled becomes a profile.

use std::{collections::HashMap, sync::Arc, time::UNIX_EPOCH};

use libjvmprobe::{
    Addr,
    stack::{
        Frame, Kind, Place, Stack, WalkEnd,
        code::SourceFrame,
        name::{JavaNames, KernelNames, Name, NativeNames, Sources, shown},
        native::Symbols,
        profile::{FrameId, Profile, Sample},
    },
};

use crate::profiler::Raw;

/// Where threads begin, in HotSpot and in the C libraries, as far as they name it.
const ENTRIES: [&str; 12] = [
    "thread_native_entry",
    "java_start",
    "start_thread",
    "__clone",
    "clone",
    "__clone3",
    "clone3",
    "_start",
    "__libc_start_main",
    "__libc_start_call_main",
    "start",
    "JavaMain",
];

/// How many frames from the outer end an entry is looked for: beyond it, a walk by
/// frame pointers finds what C libraries left in that register.
const ENTRY_DEPTH: usize = 6;

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
        let interpreted = traced.take_interpreted();
        let interpreted = interpreted.iter().map(|f| source_frame(f, signatures)).collect();
        let native = NativeNames::new(traced.maps.clone(), Symbols::of_process(pid));
        let java = JavaNames::new(traced.code.into_index(), signatures);
        let sources: Vec<Box<dyn Name>> = vec![Box::new(java), Box::new(native)];
        processes.insert(
            (pid.0, incarnation),
            Namer::new(Arc::clone(&traced.command), Sources::new(sources), interpreted),
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
    /// By their numbers.
    interpreted: Vec<Frame>,
    known: HashMap<(u64, u64), Named>,
}

impl Namer {
    fn new(command: Arc<str>, sources: Sources, interpreted: Vec<Frame>) -> Self {
        Self { command, sources, interpreted, known: HashMap::new() }
    }

    /// For a process of which nothing is known.
    fn without_sources(command: Arc<str>) -> Self {
        Self::new(command, Sources::new(Vec::new()), Vec::new())
    }

    fn user(&mut self, profile: &mut Profile, id: u64, epoch: u64, stack: &Stack) -> &Named {
        let (sources, interpreted) = (&mut self.sources, &self.interpreted);
        self.known.entry((id, epoch)).or_insert_with(|| {
            let mut frames = Vec::new();
            for place in stack.lookups() {
                match place {
                    Place::Code(addr) => name(sources, addr, epoch, &mut frames),
                    Place::Interpreted(id) => frames.extend(interpreted.get(id as usize).cloned()),
                }
            }
            let complete = cut_behind_entry(&mut frames);
            let frames = frames.into_iter().rev().map(|frame| profile.intern(frame)).collect();
            Named { frames, complete }
        })
    }
}

fn source_frame(frame: &SourceFrame, signatures: bool) -> Frame {
    Frame {
        name: shown(&frame.name, frame.signature.as_deref(), signatures),
        file: frame.file.clone(),
        line: frame.line,
        ..Frame::new(Kind::Interpreted, "")
    }
}

fn name(sources: &mut Sources, addr: Addr, epoch: u64, frames: &mut Vec<Frame>) {
    if !sources.name(addr, epoch, frames) {
        frames.push(Frame::new(Kind::Unknown, "[unknown]"));
    }
}

/// Removes what lies behind the frame that a thread begins with; whether there is one.
fn cut_behind_entry(frames: &mut Vec<Frame>) -> bool {
    let is_entry = |frame: &Frame| ENTRIES.contains(&&*frame.name);
    let outer = frames.len().saturating_sub(ENTRY_DEPTH);
    match frames[outer..].iter().rposition(is_entry) {
        Some(at) => {
            frames.truncate(outer + at + 1);
            true
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_behind_the_entry_is_cut() {
        let frame = |name: &str| Frame::new(Kind::Native, name);
        let mut frames: Vec<_> =
            ["leaf", "thread_native_entry", "[unknown libc.so.6+0x1]"].map(frame).into();
        assert!(cut_behind_entry(&mut frames));
        assert_eq!(frames.len(), 2);
        let mut broken: Vec<_> = ["leaf", "[unknown]"].map(frame).into();
        assert!(!cut_behind_entry(&mut broken));
        assert_eq!(broken.len(), 2);
        assert!(!cut_behind_entry(&mut Vec::new()));
    }
}

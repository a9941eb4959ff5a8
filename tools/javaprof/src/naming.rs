//! From addresses to names: what was sampled becomes a profile.

use std::{collections::HashMap, sync::Arc};

use libjvmprobe::stack::{
    Frame, Kind, Stack, WalkEnd,
    java_frames::Places,
    name::{JavaNames, KernelNames, Name, NativeNames, Sources},
    namer::{NamedStack, name_stack},
    profile::{FrameId, Profile, Sample},
};

use crate::{
    profiler::{Raw, Samples, Stacks},
    traced::Named,
};

/// A profile that grows by one process after the other.
pub struct Naming {
    profile: Profile,
    kernel: KernelNames,
    signatures: bool,
    /// About how many bytes the profile takes.
    size: usize,
    lost_stacks: u64,
}

impl Naming {
    /// Names methods with their parameters if wanted.
    pub fn new(signatures: bool) -> Self {
        let kernel = KernelNames::default();
        Self { profile: Profile::default(), kernel, signatures, size: 0, lost_stacks: 0 }
    }

    /// Names all samples of a process. Of one that nothing is known of, the command alone
    /// is.
    pub fn add(&mut self, named: Option<Named>, samples: &Samples, stacks: &Stacks) {
        // Most programs that come and go are never sampled.
        let Some(first) = samples.keys().next() else { return };
        let mut namer = match named {
            Some(named) => Namer::of(named, self.signatures),
            None => Namer::without_sources(first.comm.as_str().into()),
        };
        let nothing = Stack::default();
        for (key, count) in samples {
            let is_lost = |id: u64| id != 0 && !stacks.contains_key(&id);
            if is_lost(key.user) || is_lost(key.kernel) {
                self.lost_stacks += count;
            }
            let user = stacks.get(&key.user).unwrap_or(&nothing);
            let (end, known) = WalkEnd::from_code(key.user_end);
            let named = namer.user(&mut self.profile, key.user, key.epoch, user, known);
            // A kernel thread, or not wanted.
            let has_user_part = end != WalkEnd::Nothing;
            let is_at_entry = end == WalkEnd::Entry && known.is_none();
            let complete = named.complete || is_at_entry || !has_user_part;
            let unsure = named.unsure;
            let mut stack = named.frames.clone();
            if let Some(kernel_stack) = stacks.get(&key.kernel) {
                let mut frames = Vec::new();
                for addr in kernel_stack.addresses() {
                    self.kernel.name(addr, 0, &mut frames);
                }
                stack.extend(frames.into_iter().rev().map(|frame| self.profile.intern(frame)));
            }
            // Without a user part, the sample counts for the command alone.
            if stack.is_empty() && has_user_part {
                stack.push(self.profile.intern(Frame::new(Kind::Unknown, "[unknown]")));
            }
            self.size += size_of::<Sample>() + size_of_val(&*stack);
            self.profile.samples.push(Sample {
                pid: key.pid,
                command: Arc::clone(&namer.command),
                thread: key.comm.as_str().into(),
                tid: key.tid,
                cpu: Some(key.cpu),
                stack,
                complete,
                guessed: known.is_some() && !complete,
                unsure,
                count: *count,
                objects: 0,
            });
        }
    }

    /// About how many bytes the profile takes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Makes the profile smaller than so many bytes.
    pub fn shrink(&mut self, max: usize) {
        self.profile.shrink(max);
        self.size = self.profile.size();
    }

    /// Samples, so far, of which a stack found no room on its way here.
    pub fn lost_stacks(&self) -> u64 {
        self.lost_stacks
    }

    /// The profile so far, with what is said of it as a whole; begins a new one.
    pub fn take(&mut self, raw: &Raw) -> Profile {
        self.size = 0;
        let mut profile = std::mem::take(&mut self.profile);
        raw.describe(&mut profile);
        profile
    }
}

/// A user stack, named.
struct UserStack {
    /// Outermost first.
    frames: Vec<FrameId>,
    complete: bool,
    unsure: bool,
}

/// Names the stacks of one process.
struct Namer {
    command: Arc<str>,
    sources: Sources,
    /// What was named already.
    places: Option<Places>,
    known: HashMap<(u64, u64), UserStack>,
}

impl Namer {
    fn of(named: Named, signatures: bool) -> Self {
        let native = NativeNames::new(named.maps, named.symbols);
        let java = JavaNames::new(named.code, signatures);
        let sources: Vec<Box<dyn Name>> = vec![Box::new(java), Box::new(native)];
        Self::new(named.command, Sources::new(sources), named.places)
    }

    fn new(command: Arc<str>, sources: Sources, places: Option<Places>) -> Self {
        Self { command, sources, places, known: HashMap::new() }
    }

    /// For a process of which nothing is known.
    fn without_sources(command: Arc<str>) -> Self {
        Self::new(command, Sources::new(Vec::new()), None)
    }

    /// Names a stack, of which the steps from `known` frames on were guesses.
    fn user(
        &mut self,
        profile: &mut Profile,
        id: u64,
        epoch: u64,
        stack: &Stack,
        known: Option<usize>,
    ) -> &UserStack {
        let (sources, places) = (&mut self.sources, self.places.as_ref());
        self.known.entry((id, epoch)).or_insert_with(|| {
            let NamedStack { frames, complete, unsure } =
                name_stack(stack, known, places, |addr, frames| sources.name(addr, epoch, frames));
            let frames = frames.into_iter().map(|frame| profile.intern(frame)).collect();
            UserStack { frames, complete, unsure }
        })
    }
}

#[cfg(test)]
mod tests {
    use libjvmprobe::{
        Addr,
        stack::{
            java_frames,
            raw::{RawFrame, RawStack},
        },
    };

    use super::*;
    use crate::session::SampleKey;

    #[test]
    fn stacks_that_did_not_come_are_counted() {
        let frames = vec![RawFrame::Code { addr: Addr(0x10), compile_id: 0 }];
        let known = java_frames::plain(&RawStack { target: 7, unloads: 0, frames });
        let stacks = Stacks::from([(3, known)]);
        let key = |user, kernel| SampleKey {
            pid: 7,
            tid: 7,
            comm: "java".into(),
            cpu: 0,
            epoch: 0,
            user,
            user_end: 0,
            kernel,
        };
        // Known, none at all, and one or the other lost.
        let samples =
            Samples::from([(key(3, 0), 1), (key(0, 0), 2), (key(5, 0), 4), (key(3, 9), 8)]);
        let mut naming = Naming::new(false);
        naming.add(None, &samples, &stacks);
        assert_eq!(naming.lost_stacks(), 12);
    }
}

//! Samples with named stacks: what is rendered.

use std::{collections::HashMap, sync::Arc};

use super::{Frame, Kind};

/// An index into [`Profile::frames`].
pub type FrameId = u32;

/// What a profile is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measure {
    /// Processor time: a sample stands for the time between two of them.
    #[default]
    Time,
    /// Allocations: what is counted are bytes.
    Allocation,
}

impl Measure {
    /// What is counted.
    pub fn counted(self) -> &'static str {
        match self {
            Self::Time => "samples",
            Self::Allocation => "bytes",
        }
    }
}

/// Samples that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The process.
    pub pid: u32,
    /// Its command's name.
    pub command: Arc<str>,
    /// The thread's name, 15 bytes at most (`comm`).
    pub thread: Arc<str>,
    /// The thread.
    pub tid: u32,
    /// The processor.
    pub cpu: u32,
    /// Outermost frame first, user code and then the kernel.
    pub stack: Vec<FrameId>,
    /// Whether the stack goes back to where its thread began, and each step was known.
    pub complete: bool,
    /// Whether it is not complete for a step that was a guess.
    pub guessed: bool,
    /// Whether methods that were inlined may be missing where it was.
    pub unsure: bool,
    /// How many, in what the profile counts.
    pub count: u64,
    /// Objects allocated, in a profile of allocations.
    pub objects: u64,
}

/// A profile. Frames are stored once.
#[derive(Debug, Default)]
pub struct Profile {
    frames: Vec<Frame>,
    ids: HashMap<Frame, FrameId>,
    /// The samples, in no particular order.
    pub samples: Vec<Sample>,
    /// What it is of.
    pub measure: Measure,
    /// Samples a second.
    pub hertz: u64,
    /// How long was sampled, in nanoseconds.
    pub duration_ns: u64,
    /// When it began, in nanoseconds since 1970.
    pub begin_unix_ns: u64,
    /// Samples that were taken and could not be kept.
    pub lost: u64,
}

impl Profile {
    /// The number of a frame, entered if it is new.
    pub fn intern(&mut self, frame: Frame) -> FrameId {
        if let Some(&id) = self.ids.get(&frame) {
            return id;
        }
        // Frames come from addresses that were sampled: far fewer than 2^32.
        let id = FrameId::try_from(self.frames.len()).unwrap_or(FrameId::MAX);
        self.frames.push(frame.clone());
        self.ids.insert(frame, id);
        id
    }

    /// A frame by its number.
    ///
    /// # Panics
    /// For a number that is none of this profile's.
    pub fn frame(&self, id: FrameId) -> &Frame {
        &self.frames[id as usize]
    }

    /// All frames; a [`FrameId`] is an index into them.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// All samples counted.
    pub fn total(&self) -> u64 {
        self.samples.iter().map(|sample| sample.count).sum()
    }

    /// Keeps the samples of which a frame, as it is shown, passes the filter.
    pub fn retain(&mut self, wanted: impl Fn(&Frame) -> bool, keep: bool) {
        let passes: Vec<_> = self.frames.iter().map(wanted).collect();
        self.samples.retain(|s| s.stack.iter().any(|&id| passes[id as usize]) == keep);
    }

    /// Shares of frames by kind, over all samples.
    pub fn frames_of_kind(&self, kind: Kind) -> u64 {
        let count = |s: &Sample| {
            s.count * s.stack.iter().filter(|&&id| self.frame(id).kind == kind).count() as u64
        };
        self.samples.iter().map(count).sum()
    }
}

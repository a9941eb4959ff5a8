//! The stacks of one JVM: named when they come, each kept once.
//!
//! The kernel side numbers stacks by their addresses. Many of these read the same: the same
//! methods at the same lines, interpreted, compiled and compiled again, and different ways
//! through the JVM behind them. Here such are one.

use std::{collections::HashMap, sync::Arc};

use libjvmprobe::{
    Pid, Result,
    bpf::walker::Walker,
    hotspot::HotSpot,
    own::budget::Kept,
    stack::{Frame, Kind, namer::StackNamer, native::Files, raw::RawStack},
};

use crate::event::STACK_OTHER;

/// A stack's number among those of its JVM.
pub type StackId = u32;

/// It could not be walked or sent.
pub const UNKNOWN: StackId = 0;
/// There were too many to keep them apart.
pub const OTHER: StackId = 1;
/// No stack was seen of what this stands for.
pub const UNSAMPLED: StackId = 2;
/// What these are called, by their numbers.
const SPECIAL: [&str; 3] = ["[unknown]", "[other]", "[unsampled]"];

/// All stacks of a JVM.
#[derive(Debug)]
pub struct Stacks {
    /// `None` where nothing can be named: then all are [`UNKNOWN`].
    names: Option<StackNamer>,
    /// By the kernel side's numbers.
    by_number: HashMap<u64, StackId>,
    ids: HashMap<Arc<[Frame]>, StackId>,
    stacks: Vec<Arc<[Frame]>>,
    kept: Kept,
}

impl Default for Stacks {
    fn default() -> Self {
        let special = SPECIAL.map(|name| Arc::from([Frame::new(Kind::Unknown, name)]));
        Self {
            names: None,
            by_number: HashMap::from([(STACK_OTHER, OTHER)]),
            ids: HashMap::new(),
            stacks: special.into(),
            kept: Kept::default(),
        }
    }
}

impl Stacks {
    /// Gets ready to name the stacks of a JVM, and the walker to walk them.
    ///
    /// # Errors
    /// Where they can be walked by frame pointers only.
    pub fn new(
        key: u64,
        pid: Pid,
        hotspot: &HotSpot,
        files: &mut Files,
        walker: &mut Walker,
    ) -> Result<Self> {
        let names = StackNamer::new(key, pid, hotspot, files, false, walker)?;
        Ok(Self { names: Some(names), ..Self::default() })
    }

    /// Whether stacks can be walked and named.
    pub fn are_known(&self) -> bool {
        self.names.is_some()
    }

    /// Takes a stack that is new. The walker learns of files that were mapped since.
    ///
    /// # Errors
    /// [`libjvmprobe::Error::Bpf`].
    pub fn take(
        &mut self,
        number: u64,
        raw: &RawStack,
        hotspot: &HotSpot,
        files: &mut Files,
        walker: &mut Walker,
    ) -> Result<()> {
        let Some(names) = &mut self.names else { return Ok(()) };
        let frames = names.name(hotspot, files, walker, raw)?;
        let id = self.keep(shown(frames));
        self.by_number.insert(number, id);
        Ok(())
    }

    fn keep(&mut self, frames: Vec<Frame>) -> StackId {
        let frames: Arc<[Frame]> = frames.into();
        if let Some(&id) = self.ids.get(&frames) {
            return id;
        }
        let size = 2 * size_of::<Arc<[Frame]>>() + size_of_val(&*frames);
        if !self.kept.take(size) {
            return OTHER;
        }
        // The kernel side keeps 65,536 apart.
        let id = StackId::try_from(self.stacks.len()).unwrap_or(OTHER);
        self.stacks.push(Arc::clone(&frames));
        self.ids.insert(frames, id);
        id
    }

    /// Which stack the kernel side's number means.
    pub fn id_of(&self, number: u64) -> StackId {
        self.by_number.get(&number).copied().unwrap_or(UNKNOWN)
    }

    /// A stack's frames, innermost first.
    pub fn frames(&self, id: StackId) -> &[Frame] {
        self.stacks.get(id as usize).map_or(&[], |frames| &**frames)
    }
}

/// What is shown of a stack (outermost frame first): from the Java method on that allocates,
/// innermost first. What the JVM does for it is left out, and how methods run: it makes no
/// difference to what they allocate. A stack without Java code is shown whole.
fn shown(frames: Vec<Frame>) -> Vec<Frame> {
    let java = frames.iter().rposition(Frame::is_java).map_or(frames.len(), |last| last + 1);
    let alike = |frame: Frame| match frame.is_java() {
        true => Frame { kind: Kind::Java, ..frame },
        false => frame,
    };
    frames.into_iter().take(java).rev().map(alike).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_java_method_comes_first() {
        let frames = |inner: Kind| {
            vec![
                Frame::new(Kind::Native, "start_thread"),
                Frame::new(Kind::Interpreted, "a.A.run"),
                Frame::new(inner, "a.A.make"),
                Frame::new(Kind::Stub, "_new_array_Java"),
                Frame::new(Kind::Jvm, "AllocTracer::send_allocation_in_new_tlab"),
            ]
        };
        let names: Vec<_> = shown(frames(Kind::Java)).iter().map(|f| f.name.to_string()).collect();
        assert_eq!(names, ["a.A.make", "a.A.run", "start_thread"]);
        let mut stacks = Stacks::default();
        let id = stacks.keep(shown(frames(Kind::Java)));
        assert_eq!(stacks.keep(shown(frames(Kind::Inlined))), id);
        assert_eq!(stacks.frames(id).len(), 3);
    }

    #[test]
    fn a_stack_without_java_is_whole() {
        let frames = ["start_thread", "JVM_InternString"].map(|n| Frame::new(Kind::Jvm, n));
        let shown = shown(frames.to_vec());
        assert_eq!(&*shown[0].name, "JVM_InternString");
        assert_eq!(shown.len(), 2);
    }

    #[test]
    fn what_has_no_stack_has_a_name() {
        let stacks = Stacks::default();
        assert_eq!(stacks.id_of(STACK_OTHER), OTHER);
        assert_eq!(stacks.id_of(77), UNKNOWN);
        assert_eq!(&*stacks.frames(UNSAMPLED)[0].name, "[unsampled]");
    }
}

//! The stacks of one JVM: named when they come, each kept once.
//!
//! The kernel side numbers stacks by their addresses. Many of these read the same: the same
//! methods at the same lines, interpreted, compiled and compiled again, and different ways
//! through the JVM behind them. Here such are one.

use std::{collections::HashMap, sync::Arc};

use crate::{
    Pid, Result,
    bpf::walker::Walker,
    hotspot::HotSpot,
    own::budget::{Budget, Kept},
    stack::{Frame, Kind, namer::StackNamer, native::Files, raw::RawStack},
    take::allocations::event::STACK_OTHER,
};

/// A stack's number among those of its JVM.
pub type StackId = u32;

/// It could not be walked or sent.
pub(crate) const UNKNOWN: StackId = 0;
/// There were too many to keep them apart.
pub(crate) const OTHER: StackId = 1;
/// No stack was seen of what this stands for.
pub(crate) const UNSAMPLED: StackId = 2;
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
    /// Whether there was no room for one.
    is_full: bool,
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
            is_full: false,
        }
    }
}

impl Stacks {
    /// Gets ready to name the stacks of a JVM, and the walker to walk them.
    ///
    /// # Errors
    /// Where they can be walked by frame pointers only.
    pub(crate) fn new(
        key: u64,
        pid: Pid,
        hotspot: &HotSpot,
        files: &mut Files,
        walker: &mut Walker,
        budget: &Budget,
    ) -> Result<Self> {
        let names = StackNamer::new(key, pid, hotspot, files, false, walker)?;
        Ok(Self { names: Some(names), kept: Kept::within(budget), ..Self::default() })
    }

    /// Whether stacks can be walked and named.
    pub fn are_known(&self) -> bool {
        self.names.is_some()
    }

    /// Takes a stack that is new. The walker learns of files that were mapped since.
    ///
    /// # Errors
    /// [`crate::Error::Bpf`].
    pub(crate) fn take(
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
            self.is_full = true;
            return OTHER;
        }
        // The kernel side keeps 65,536 apart.
        let id = StackId::try_from(self.stacks.len()).unwrap_or(OTHER);
        self.stacks.push(Arc::clone(&frames));
        self.ids.insert(frames, id);
        id
    }

    /// How many of the kernel side's numbers are known.
    pub(crate) fn count(&self) -> usize {
        self.by_number.len()
    }

    /// Whether there was no room for one.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Forgets all stacks: those that come again are sent again, by the same numbers.
    pub(crate) fn clear(&mut self) {
        self.by_number.retain(|number, _| *number == STACK_OTHER);
        self.ids.clear();
        self.stacks.truncate(SPECIAL.len());
        self.kept.give_back();
        self.is_full = false;
    }

    /// Which stack the kernel side's number means.
    pub(crate) fn id_of(&self, number: u64) -> StackId {
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
        // Its number may be another one's afterwards.
        stacks.clear();
        assert_eq!((stacks.frames(id).len(), stacks.id_of(STACK_OTHER)), (0, OTHER));
        assert_eq!(stacks.keep(shown(frames(Kind::Java)).split_off(1)), id);
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

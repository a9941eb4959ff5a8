//! Stacks of one JVM: each is named when it arrives, and kept once.
//!
//! The kernel side gives different numbers to stacks that differ in any address. Many of these stacks have
//! the same methods at the same lines: a method may be interpreted in one stack and compiled in another, a
//! method may have been recompiled in between, or the innermost Java method may have called different
//! functions of the JVM. Such stacks share one [`StackId`].

use std::{collections::HashMap, sync::Arc};

use crate::{
    Pid, Result,
    bpf::walker::Walker,
    hotspot::HotSpot,
    stack::{Frame, Kind, namer::StackNamer, native::Files, raw::RawStack},
    sys::budget::{Budget, Reservation},
    trace::allocations::event::STACK_OTHER,
};

/// Number of a stack within its JVM.
pub type StackId = u32;

/// The stack could not be walked or sent.
pub(crate) const UNKNOWN: StackId = 0;
/// Sum of the stacks that were not kept separately because there were too many.
pub(crate) const OTHER: StackId = 1;
/// Bytes for which no stack was sampled.
pub(crate) const UNSAMPLED: StackId = 2;
/// Names of these three, indexed by their numbers.
const SPECIAL: [&str; 3] = ["[unknown]", "[other]", "[unsampled]"];

/// All stacks of a JVM.
#[derive(Debug)]
pub struct Stacks {
    /// Names the stacks; `None` if nothing can be named, so that all stacks are [`UNKNOWN`].
    names: Option<StackNamer>,
    /// Stacks by the kernel side's numbers.
    by_number: HashMap<u64, StackId>,
    ids: HashMap<Arc<[Frame]>, StackId>,
    stacks: Vec<Arc<[Frame]>>,
    reserved: Reservation,
    /// Whether a stack did not fit into the memory budget.
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
            reserved: Reservation::default(),
            is_full: false,
        }
    }
}

impl Stacks {
    /// Prepares the naming of a JVM's stacks, and the walker for its code.
    ///
    /// # Errors
    /// If the stacks can be walked by frame pointers only.
    pub(crate) fn new(
        key: u64,
        pid: Pid,
        hotspot: &HotSpot,
        files: &mut Files,
        walker: &mut Walker,
        budget: &Budget,
    ) -> Result<Self> {
        let names = StackNamer::new(key, pid, hotspot, files, false, walker)?;
        Ok(Self { names: Some(names), reserved: Reservation::within(budget), ..Self::default() })
    }

    /// Whether stacks can be walked and named.
    pub fn can_be_named(&self) -> bool {
        self.names.is_some()
    }

    /// Names and keeps a new stack. Also passes the process's mappings to the walker if they have changed
    /// since the last call.
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
        let id = self.intern(visible_frames(frames));
        self.by_number.insert(number, id);
        Ok(())
    }

    fn intern(&mut self, frames: Vec<Frame>) -> StackId {
        let frames: Arc<[Frame]> = frames.into();
        if let Some(&id) = self.ids.get(&frames) {
            return id;
        }
        let size = 2 * size_of::<Arc<[Frame]>>() + size_of_val(&*frames);
        if !self.reserved.reserve(size) {
            self.is_full = true;
            return OTHER;
        }
        // The kernel side numbers at most 65,536 stacks, so the conversion does not fail.
        let id = StackId::try_from(self.stacks.len()).unwrap_or(OTHER);
        self.stacks.push(Arc::clone(&frames));
        self.ids.insert(frames, id);
        id
    }

    /// Returns how many of the kernel side's stack numbers are known.
    pub(crate) fn count(&self) -> usize {
        self.by_number.len()
    }

    /// Whether a stack did not fit into the memory budget.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Forgets all stacks. If a stack occurs again, the kernel side sends it again with its previous number,
    /// but its [`StackId`] may be different.
    pub(crate) fn clear(&mut self) {
        self.by_number.retain(|number, _| *number == STACK_OTHER);
        self.ids.clear();
        self.stacks.truncate(SPECIAL.len());
        self.reserved.release();
        self.is_full = false;
    }

    /// Returns the stack that one of the kernel side's numbers refers to.
    pub(crate) fn id_of(&self, number: u64) -> StackId {
        self.by_number.get(&number).copied().unwrap_or(UNKNOWN)
    }

    /// Returns the frames of a stack, innermost first.
    pub fn frames(&self, id: StackId) -> &[Frame] {
        self.stacks.get(id as usize).map_or(&[], |frames| &**frames)
    }
}

/// Converts a stack (outermost frame first) to the frames that are shown, innermost first, beginning with the
/// Java method that allocates. Omits the frames of the JVM that this method has called, and whether a method
/// was interpreted, compiled or inlined. These details are not needed to see which Java code allocates. A
/// stack without Java code is shown completely.
fn visible_frames(frames: Vec<Frame>) -> Vec<Frame> {
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
        let names: Vec<_> =
            visible_frames(frames(Kind::Java)).iter().map(|f| f.name.to_string()).collect();
        assert_eq!(names, ["a.A.make", "a.A.run", "start_thread"]);
        let mut stacks = Stacks::default();
        let id = stacks.intern(visible_frames(frames(Kind::Java)));
        assert_eq!(stacks.intern(visible_frames(frames(Kind::Inlined))), id);
        assert_eq!(stacks.frames(id).len(), 3);
        // After this, another stack may get the `StackId` that this stack had.
        stacks.clear();
        assert_eq!((stacks.frames(id).len(), stacks.id_of(STACK_OTHER)), (0, OTHER));
        assert_eq!(stacks.intern(visible_frames(frames(Kind::Java)).split_off(1)), id);
    }

    #[test]
    fn stack_without_java_frames_stays_complete() {
        let frames = ["start_thread", "JVM_InternString"].map(|n| Frame::new(Kind::Jvm, n));
        let visible_frames = visible_frames(frames.to_vec());
        assert_eq!(&*visible_frames[0].name, "JVM_InternString");
        assert_eq!(visible_frames.len(), 2);
    }

    #[test]
    fn missing_stacks_have_placeholder_frames() {
        let stacks = Stacks::default();
        assert_eq!(stacks.id_of(STACK_OTHER), OTHER);
        assert_eq!(stacks.id_of(77), UNKNOWN);
        assert_eq!(&*stacks.frames(UNSAMPLED)[0].name, "[unsampled]");
    }
}

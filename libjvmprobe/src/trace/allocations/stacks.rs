//! Stacks of one JVM: each is named when it arrives, and kept once.
//!
//! The kernel side gives different numbers to stacks that differ in any address. Many of these stacks have
//! the same methods at the same lines: a method may be interpreted in one stack and compiled in another, a
//! method may have been recompiled in between, or the innermost Java method may have called different
//! functions of the JVM. Such stacks share one [`StackId`]. A stack in a trace context has a number and a [`StackId`] of
//! its own.

use std::{collections::HashMap, sync::Arc};

use crate::{
    Pid, Result,
    bpf::{
        spans::{SpanSearch, SpanSources},
        walker::Walker,
    },
    hotspot::HotSpot,
    process::code::CodeMaps,
    stack::{Frame, Kind, namer::Namers, raw::RawStack, span::SpanContext},
    sys::budget::{self, Reservation},
    trace::allocations::{event::STACK_OTHER, split::StackShare},
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
    /// Whether stacks can be walked and named. If not, all stacks are [`UNKNOWN`].
    can_be_named: bool,
    /// Stacks by the kernel side's numbers.
    by_number: HashMap<u64, StackId>,
    /// For each number of a stack in a trace context: the number of the stack, and the context.
    in_spans: HashMap<u64, (u64, SpanContext)>,
    ids: HashMap<(Arc<[Frame]>, Option<SpanContext>), StackId>,
    stacks: Vec<KeptStack>,
    span_search: SpanSearch,
    reserved: Reservation,
    /// Whether a stack did not fit into the memory budget.
    is_full: bool,
}

#[derive(Clone, Debug)]
struct KeptStack {
    frames: Arc<[Frame]>,
    span: Option<SpanContext>,
    /// The same stack without a context.
    base: StackId,
}

impl Default for Stacks {
    fn default() -> Self {
        let special = (0..).zip(SPECIAL).map(|(base, name)| KeptStack {
            frames: Arc::from([Frame::new(Kind::Unknown, name)]),
            span: None,
            base,
        });
        Self {
            can_be_named: false,
            by_number: HashMap::from([(STACK_OTHER, OTHER)]),
            in_spans: HashMap::new(),
            ids: HashMap::new(),
            stacks: special.collect(),
            span_search: SpanSearch::default(),
            reserved: Reservation::default(),
            is_full: false,
        }
    }
}

impl Stacks {
    /// Makes an empty set, whose memory is part of `share`.
    pub(crate) fn within(share: &budget::Share, can_be_named: bool) -> Self {
        Self { can_be_named, reserved: Reservation::within(share), ..Self::default() }
    }

    /// Whether stacks can be walked and named.
    pub fn can_be_named(&self) -> bool {
        self.can_be_named
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
        namers: &mut Namers,
        walker: &mut Walker,
    ) -> Result<()> {
        let Some(frames) = namers.name(hotspot, walker, raw)? else { return Ok(()) };
        let id = self.intern(visible_frames(frames));
        self.by_number.insert(number, id);
        Ok(())
    }

    /// Keeps the number of a stack in a trace context.
    pub(crate) fn take_in_span(&mut self, number: u64, stack: u64, span: SpanContext) {
        // The kernel side numbers a limited number of them.
        self.in_spans.insert(number, (stack, span));
    }

    /// Passes the location of the JVM's trace contexts to the kernel side, if the JVM publishes any and the location has
    /// changed.
    pub(crate) fn update_span_source(
        &mut self,
        sources: &mut SpanSources,
        key: u64,
        pid: Pid,
        mappings: &CodeMaps,
    ) {
        sources.update(&mut self.span_search, key, pid, mappings);
    }

    fn intern(&mut self, frames: Vec<Frame>) -> StackId {
        self.keep(frames.into(), None)
    }

    /// Keeps a stack of which `base` is the stack without a context, if there is one.
    fn keep(&mut self, frames: Arc<[Frame]>, in_span: Option<(StackId, SpanContext)>) -> StackId {
        let span = in_span.map(|(_, span)| span);
        if let Some(&id) = self.ids.get(&(Arc::clone(&frames), span)) {
            return id;
        }
        let own = if span.is_none() { Frame::sum_of_sizes(&frames) } else { 0 };
        let size = size_of::<KeptStack>() + size_of::<(Arc<[Frame]>, Option<SpanContext>)>() + own;
        if !self.reserved.reserve(size) {
            self.is_full = true;
            return in_span.map_or(OTHER, |(base, _)| base);
        }
        // The kernel side numbers at most 65,536 stacks, so the conversion does not fail.
        let id = StackId::try_from(self.stacks.len()).unwrap_or(OTHER);
        let base = in_span.map_or(id, |(base, _)| base);
        self.stacks.push(KeptStack { frames: Arc::clone(&frames), span, base });
        self.ids.insert((frames, span), id);
        id
    }

    /// Returns how many of the kernel side's stack numbers are known.
    pub(crate) fn count(&self) -> usize {
        self.by_number.len()
    }

    /// Returns how many numbers of stacks in trace contexts are known.
    pub(crate) fn in_spans(&self) -> usize {
        self.in_spans.len()
    }

    /// Whether a stack did not fit into the memory budget.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Forgets all stacks. If a stack occurs again, the kernel side sends it again with its previous number,
    /// but its [`StackId`] may be different.
    pub(crate) fn clear(&mut self) {
        self.by_number.retain(|number, _| *number == STACK_OTHER);
        self.in_spans.clear();
        self.ids.clear();
        self.stacks.truncate(SPECIAL.len());
        self.reserved.release();
        self.is_full = false;
    }

    /// Returns the stack that one of the kernel side's numbers refers to.
    pub(crate) fn id_of(&mut self, number: u64) -> StackId {
        if let Some(&id) = self.by_number.get(&number) {
            return id;
        }
        let Some(&(stack, span)) = self.in_spans.get(&number) else { return UNKNOWN };
        let base = self.by_number.get(&stack).copied().unwrap_or(UNKNOWN);
        let Some(kept) = self.stacks.get(base as usize) else { return UNKNOWN };
        self.keep(Arc::clone(&kept.frames), Some((base, span)))
    }

    /// Returns the frames of a stack, innermost first.
    pub fn frames(&self, id: StackId) -> &[Frame] {
        self.stacks.get(id as usize).map_or(&[], |kept| &*kept.frames)
    }

    /// Returns the trace context of a stack.
    pub fn span(&self, id: StackId) -> Option<SpanContext> {
        self.stacks.get(id as usize)?.span
    }

    /// Returns the same stack without its trace context.
    pub(crate) fn base(&self, id: StackId) -> StackId {
        self.stacks.get(id as usize).map_or(id, |kept| kept.base)
    }

    /// Returns the parts of a class with the trace contexts left out, largest first.
    pub fn without_spans(&self, parts: &[StackShare]) -> Vec<StackShare> {
        let mut merged: Vec<StackShare> = Vec::new();
        let mut positions = HashMap::new();
        for part in parts {
            let stack = self.base(part.stack);
            let at = *positions.entry(stack).or_insert_with(|| {
                merged.push(StackShare { stack, bytes: 0, objects: 0 });
                merged.len() - 1
            });
            merged[at].bytes += part.bytes;
            merged[at].objects += part.objects;
        }
        merged.sort_by_key(|part| (std::cmp::Reverse(part.bytes), part.stack));
        merged
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
    fn names_of_stacks_count_for_the_memory_budget() {
        let share = budget::Budget::of(10_000).share(&"a".into());
        let mut stacks = Stacks::within(&share, true);
        let stack = |name: &str| vec![Frame::new(Kind::Java, name)];
        assert!(stacks.intern(stack("short")) > OTHER && !stacks.is_full());
        assert_eq!(stacks.intern(stack(&"n".repeat(5_000))), OTHER);
        assert!(stacks.is_full());
    }

    #[test]
    fn stack_without_java_frames_stays_complete() {
        let frames = ["start_thread", "JVM_InternString"].map(|n| Frame::new(Kind::Jvm, n));
        let visible_frames = visible_frames(frames.to_vec());
        assert_eq!(&*visible_frames[0].name, "JVM_InternString");
        assert_eq!(visible_frames.len(), 2);
    }

    #[test]
    fn stack_in_a_span_has_an_id_of_its_own() {
        let mut stacks = Stacks::default();
        let frames = || visible_frames(vec![Frame::new(Kind::Java, "a.A.run")]);
        let id = stacks.intern(frames());
        stacks.by_number.insert(5, id);
        let span = SpanContext::new([1; 16], [2; 8]).unwrap();
        stacks.take_in_span(7, 5, span);
        // The stack of this one has not arrived yet.
        stacks.take_in_span(9, 11, span);
        let inside = stacks.id_of(7);
        assert_eq!((stacks.span(inside), stacks.span(id)), (Some(span), None));
        assert_eq!(stacks.frames(inside), stacks.frames(id));
        assert_eq!((stacks.id_of(7), stacks.in_spans()), (inside, 2));
        let unknown = stacks.id_of(9);
        assert_eq!((stacks.base(unknown), stacks.span(unknown)), (UNKNOWN, Some(span)));
        stacks.by_number.insert(11, id);
        assert_eq!(stacks.id_of(9), inside);
        let share = |stack, bytes| StackShare { stack, bytes, objects: 1 };
        let parts = [share(inside, 5), share(unknown, 4), share(id, 3)];
        let merged = [StackShare { objects: 2, ..share(id, 8) }, share(UNKNOWN, 4)];
        assert_eq!(stacks.without_spans(&parts), merged);
        stacks.clear();
        assert_eq!((stacks.id_of(7), stacks.in_spans()), (UNKNOWN, 0));
    }

    #[test]
    fn missing_stacks_have_placeholder_frames() {
        let mut stacks = Stacks::default();
        assert_eq!(stacks.id_of(STACK_OTHER), OTHER);
        assert_eq!(stacks.id_of(77), UNKNOWN);
        assert_eq!(&*stacks.frames(UNSAMPLED)[0].name, "[unsampled]");
    }
}

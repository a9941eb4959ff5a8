//! Methods that C1 may have inlined into code that does not count their calls.
//!
//! C1 inlines methods into the methods that it compiles, and further methods into the inlined ones
//! (`GraphBuilder::try_inline_full`, c1/c1_GraphBuilder.cpp). The search starts at the methods that
//! may have been compiled, whether they still are or not, and follows the calls in their bytecodes
//! to methods that are short enough for their level of inlining. Methods that have only been interpreted
//! are not followed, because the interpreter counts each method that they call.

use std::ops::Range;

use crate::{
    Error, Result,
    hotspot::{
        loaded::{
            AT_ONCE, Reader, State,
            class::ClassReader,
            family::Families,
            method::MethodReader,
            refs::{Callee, HandledClass, Handles, Named, RefReader, Refs},
            usage::Counting,
            walk::{Entry, Listed},
        },
        resolved::Layout,
    },
};

/// Maximum number of calls kept in [`PendingMethods`], about 64 MiB. A method counts as four calls.
const MAX_WAITING: usize = 1 << 22;

/// The JVM's layout, and the readers that the search uses.
pub(super) struct Reach<'a> {
    pub(super) layout: &'a Layout,
    pub(super) classes: &'a ClassReader,
    pub(super) methods: &'a MethodReader,
    pub(super) counting: &'a Counting,
    pub(super) listed: &'a Listed,
}

/// Small methods that were not compiled themselves. The calls of such a method matter only if a compiled
/// method may have inlined the small method.
#[derive(Default)]
struct PendingMethods {
    /// Each method with its size in bytes and the range of its own calls in `calls`.
    methods: Vec<(Callee, u64, Range<u32>)>,
    calls: Vec<Named>,
}

impl PendingMethods {
    fn push(&mut self, callee: Callee, size: u64, calls: Vec<Named>) {
        let begin = self.calls.len() as u32;
        self.calls.extend(calls);
        self.methods.push((callee, size, begin..self.calls.len() as u32));
    }

    /// Whether it exceeds the maximum.
    fn is_full(&self) -> bool {
        self.calls.len() + 4 * self.methods.len() > MAX_WAITING
    }

    /// Returns a method's calls.
    fn calls(&self, own: Range<u32>) -> &[Named] {
        self.calls.get(own.start as usize..own.end as usize).unwrap_or_default()
    }
}

impl Reach<'_> {
    /// Returns the methods that compiled code may call, and those that may be called through method handles.
    pub(super) fn read(&self, reader: &mut Reader<'_>) -> Refs {
        let Ok(constants) = RefReader::new(self.layout) else { return Refs::unknown() };
        let families = Families::read(reader, self.layout, self.classes, self.listed)
            .inspect_err(|e| {
                log::debug!("cannot read superclasses, so any two classes count as related: {e}")
            })
            .ok();
        let mut refs = Refs::new(families);
        let (mut handles, mut waiting) = (Handles::default(), PendingMethods::default());
        for entries in self.listed.classes.chunks(AT_ONCE) {
            reader.prefetch(entries, &[]);
            for entry in entries {
                let class =
                    self.class(reader, &constants, entry, &mut refs, &mut handles, &mut waiting);
                // If the references of one class are not complete, any method may be called.
                if class.is_err() || refs.is_full() || waiting.is_full() {
                    return Refs::unknown();
                }
            }
        }
        handles.name(&mut refs);
        follow(&mut refs, waiting, self.counting);
        if self.listed.is_complete { refs } else { Refs::unknown() }
    }

    /// Adds the calls of a class's compiled methods to `refs`, and its small uncompiled methods to
    /// `waiting`.
    fn class(
        &self,
        reader: &mut Reader<'_>,
        constants: &RefReader,
        &Entry { klass, is_alone, .. }: &Entry,
        refs: &mut Refs,
        handles: &mut Handles,
        waiting: &mut PendingMethods,
    ) -> Result<()> {
        let Some(state) = self.classes.state(reader, klass)? else { return Ok(()) };
        if state < State::Initializing {
            return Ok(());
        }
        // The code that a redefinition has replaced may have called any method, and the counters of the
        // replaced methods are gone.
        if self.counting.has_redefined() != Some(false)
            && self.classes.is_redefined(reader, klass) != Some(false)
        {
            return Err(Error::layout("the class was redefined"));
        }
        let class = self.classes.symbol(reader, klass)?;
        let constants = constants.read(reader, klass, is_alone.then_some(class))?;
        constants.handles(refs, handles)?;
        let has_method_handles = self.classes.has_method_handles(reader, klass)?;
        let mut methods = Vec::new();
        for method in self.classes.methods(reader, klass)? {
            let facts = self.methods.read(reader, method)?;
            methods.push((facts.signature, facts.binding));
            let is_compiled = self.counting.may_have_been_compiled(&facts);
            let is_inlined = self.counting.may_be_inlined_by_c1(&facts, 0);
            if facts.is_native || facts.is_abstract || !is_compiled && !is_inlined {
                continue;
            }
            let code = reader.pages.bytes(facts.code, facts.code_size.into())?;
            let calls = constants.calls(refs, &code)?;
            if is_compiled {
                refs.insert(calls, 0);
            } else if !calls.is_empty() {
                let (signature, binding) = (facts.signature, facts.binding);
                let callee = Callee { class, signature, binding };
                waiting.push(callee, facts.inlined_size(), calls);
            }
        }
        if has_method_handles != Some(false) {
            handles.push(HandledClass { class, is_known: has_method_handles.is_some(), methods });
        }
        Ok(())
    }
}

/// Adds calls level by level. Each step finds the waiting methods that a call of the current level may reach;
/// the calls of these methods belong to the next level. A method is followed from its lowest level only,
/// because higher levels have lower size limits.
fn follow(refs: &mut Refs, mut waiting: PendingMethods, counting: &Counting) {
    let mut methods = std::mem::take(&mut waiting.methods);
    let mut fresh = None;
    // Long before the last of these levels, the size limit has reached its minimum. C1 may inline a method of
    // that size anywhere, so its usage is unknown anyway, and higher levels need no search.
    for level in 0..u8::MAX {
        let mut called = Vec::new();
        methods.retain(|(callee, size, calls)| {
            let is_called = *size <= counting.inlined_by_c1(level)
                && fresh.as_ref().is_none_or(|fresh| refs.is_fresh(fresh, *callee))
                && refs.level(*callee).is_some();
            if is_called {
                called.push(calls.clone());
            }
            !is_called
        });
        if called.is_empty() {
            return;
        }
        let calls = called.into_iter().flat_map(|calls| waiting.calls(calls));
        fresh = Some(refs.insert(calls.copied(), level + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Addr,
        hotspot::loaded::refs::{Binding, Signature},
    };

    fn callee(i: u64) -> Callee {
        let signature = Signature { name: Addr(10 + i), descriptor: Addr(1) };
        Callee { class: Addr(2), signature, binding: Binding::Virtual }
    }

    fn named(refs: &Refs, i: u64) -> Named {
        refs.name(callee(i).class, callee(i).signature)
    }

    /// Methods of one size. Method i calls method i + 1. They are added in reverse order.
    fn chain(length: u64, size: u64, refs: &Refs) -> PendingMethods {
        let mut waiting = PendingMethods::default();
        (0..length).rev().for_each(|i| waiting.push(callee(i), size, vec![named(refs, i + 1)]));
        waiting
    }

    #[test]
    fn calls_are_followed_within_each_levels_size_limit() {
        for (size, levels) in [(36, 0), (35, 1), (32, 1), (31, 2), (24, 4), (7, 13), (1, 30)] {
            let mut families = Families::default();
            families.insert(Addr(2), vec![]);
            let mut refs = Refs::new(Some(families));
            let methods = chain(30, size, &refs);
            follow(&mut refs, methods, &Counting::USUAL);
            assert_eq!(refs.level(callee(1)), None, "{size}");
            let methods = chain(30, size, &refs);
            refs.insert([named(&refs, 0)], 0);
            follow(&mut refs, methods, &Counting::USUAL);
            for i in 0..=30 {
                let level = (i <= levels).then_some(i as u8);
                assert_eq!(refs.level(callee(i)), level, "{size} {i}");
            }
        }
    }
}

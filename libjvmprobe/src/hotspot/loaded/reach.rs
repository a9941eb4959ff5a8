//! Which methods compiled code may have inlined without counting them.
//!
//! C1 inlines into what it compiles, and into what it has inlined there
//! (`GraphBuilder::try_inline`, c1/c1_GraphBuilder.cpp). So this begins with the methods that may
//! have been compiled, whether they still are or not: what they call may be inlined if it is short
//! enough; so may what that calls, whether that was compiled itself or not; and so on. A method
//! that has run in the interpreter alone hides nothing: whom it calls is counted.

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
    own::remark,
};

/// So often it is looked for more; then all that is left may be called.
const MAX_ROUNDS: usize = 100;
/// So many calls are kept, in some 64 MiB, of methods that may be inlined if something calls them.
const MAX_WAITING: usize = 1 << 22;

/// What all is read with.
pub(super) struct Reach<'a> {
    pub(super) layout: &'a Layout,
    pub(super) classes: &'a ClassReader,
    pub(super) methods: &'a MethodReader,
    pub(super) counting: &'a Counting,
    pub(super) listed: &'a Listed,
}

/// Methods that may be inlined if something calls them.
#[derive(Default)]
struct Waiting {
    /// Each with where its own calls are among all of them.
    methods: Vec<(Callee, Range<u32>)>,
    calls: Vec<Named>,
}

impl Waiting {
    fn push(&mut self, callee: Callee, calls: Vec<Named>) {
        let begin = self.calls.len() as u32;
        self.calls.extend(calls);
        self.methods.push((callee, begin..self.calls.len() as u32));
    }

    /// Whether it has more than is kept.
    fn is_full(&self) -> bool {
        self.calls.len() + 4 * self.methods.len() > MAX_WAITING
    }

    /// Some of their calls.
    fn calls(&self, own: Range<u32>) -> &[Named] {
        self.calls.get(own.start as usize..own.end as usize).unwrap_or_default()
    }
}

impl Reach<'_> {
    /// The methods that may be called.
    pub(super) fn read(&self, reader: &mut Reader<'_>) -> Refs {
        let Ok(constants) = RefReader::new(self.layout) else { return Refs::unknown() };
        let families = Families::read(reader, self.layout, self.classes, self.listed)
            .inspect_err(|e| remark(|| format!("any class may be another one's: {e}")))
            .ok();
        let mut refs = Refs::new(families);
        let (mut handles, mut waiting) = (Handles::default(), Waiting::default());
        for entries in self.listed.classes.chunks(AT_ONCE) {
            reader.prefetch(entries, &[]);
            for entry in entries {
                let class =
                    self.class(reader, &constants, entry, &mut refs, &mut handles, &mut waiting);
                // Without all references of a class, any method may be called.
                if class.is_err() || refs.is_full() || waiting.is_full() {
                    return Refs::unknown();
                }
            }
        }
        handles.name(&mut refs);
        follow(&mut refs, waiting);
        if self.listed.is_complete { refs } else { Refs::unknown() }
    }

    /// Adds what a class calls, and those of its methods that wait for a call.
    fn class(
        &self,
        reader: &mut Reader<'_>,
        constants: &RefReader,
        &Entry { klass, is_alone, .. }: &Entry,
        refs: &mut Refs,
        handles: &mut Handles,
        waiting: &mut Waiting,
    ) -> Result<()> {
        let Some(state) = self.classes.state(reader, klass)? else { return Ok(()) };
        if state < State::Initializing {
            return Ok(());
        }
        // The code that was replaced may have called anything, and its counters are gone.
        if self.counting.has_redefined() != Some(false)
            && self.classes.is_redefined(reader, klass) != Some(false)
        {
            return Err(Error::layout("classes were replaced"));
        }
        let class = self.classes.symbol(reader, klass)?;
        let constants = constants.read(reader, klass, is_alone.then_some(class))?;
        constants.handles(refs, handles)?;
        let is_handled = self.classes.is_handled(reader, klass)?;
        let mut methods = Vec::new();
        for method in self.classes.methods(reader, klass)? {
            let facts = self.methods.read(reader, method)?;
            methods.push((facts.signature, facts.binding));
            let is_compiled = self.counting.may_have_been_compiled(&facts);
            let is_inlined = self.counting.may_be_inlined_by_c1(&facts);
            if facts.is_native || facts.is_abstract || !is_compiled && !is_inlined {
                continue;
            }
            let code = reader.pages.bytes(facts.code, facts.code_size.into())?;
            let calls = constants.calls(refs, &code)?;
            if is_compiled {
                refs.insert(calls);
            } else if !calls.is_empty() {
                let (signature, binding) = (facts.signature, facts.binding);
                waiting.push(Callee { class, signature, binding }, calls);
            }
        }
        if is_handled != Some(false) {
            handles.push(HandledClass { class, is_known: is_handled.is_some(), methods });
        }
        Ok(())
    }
}

/// Adds what those call that are called.
fn follow(refs: &mut Refs, mut waiting: Waiting) {
    let mut methods = std::mem::take(&mut waiting.methods);
    let mut fresh = None;
    for _ in 0..MAX_ROUNDS {
        let mut called = Vec::new();
        methods.retain(|(callee, calls)| {
            let is_called = fresh.as_ref().is_none_or(|fresh| refs.is_fresh(fresh, *callee))
                && refs.may_name(*callee);
            if is_called {
                called.push(calls.clone());
            }
            !is_called
        });
        if called.is_empty() {
            return;
        }
        let calls = called.into_iter().flat_map(|calls| waiting.calls(calls));
        fresh = Some(refs.insert(calls.copied()));
    }
    let calls = methods.into_iter().flat_map(|(_, calls)| waiting.calls(calls));
    refs.insert(calls.copied());
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

    /// Methods of which each calls the next one, from the last one on.
    fn chain(length: u64, refs: &Refs) -> Waiting {
        let mut waiting = Waiting::default();
        (0..length).rev().for_each(|i| waiting.push(callee(i), vec![named(refs, i + 1)]));
        waiting
    }

    #[test]
    fn who_is_called_by_one_that_is_called_may_be_called() {
        for length in [1, 2, 50, 1000] {
            let mut families = Families::default();
            families.insert(Addr(2), vec![]);
            let mut refs = Refs::new(Some(families));
            let methods = chain(length, &refs);
            follow(&mut refs, methods);
            assert!(!refs.may_name(callee(1)), "{length}");
            let methods = chain(length, &refs);
            refs.insert([named(&refs, 0)]);
            follow(&mut refs, methods);
            assert!((0..=length).all(|i| refs.may_name(callee(i))), "{length}");
            assert!(!refs.may_name(callee(length + 1)), "{length}");
        }
    }
}

//! All code of a JVM, and code by its addresses while it is there.

use crate::{
    Addr, Result,
    hotspot::{
        HotSpot,
        code::{
            Inlining,
            cache::{self, Reader},
        },
    },
    names::code::Code,
};

/// A piece of code that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its first address, and the first behind it.
    pub(crate) start: Addr,
    /// The first address behind it.
    pub(crate) end: Addr,
    /// A compiled method's compile id, else 0.
    pub(crate) compile_id: u32,
    /// What it is, with what was inlined at the addresses asked for.
    pub(crate) code: Code,
}

impl HotSpot {
    /// All compiled code that it has now: methods, the interpreter, stubs; with what was
    /// inlined where that is wanted. Read from its memory; it is not asked and not
    /// stopped.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming what is missing, [`crate::Error::Memory`] when it is gone.
    pub fn code(&self, inlining: Inlining<'_>) -> Result<Vec<(Addr, u64, Code)>> {
        let mut code = cache::read(&self.memory, &self.layout, inlining)?;
        self.name_stubs(&mut code);
        Ok(code)
    }

    /// The addresses of the methods that compiled code has inlined, in order. What is inlined
    /// and can neither stop nor call may be missing.
    ///
    /// # Errors
    /// As [`Self::code`].
    pub(in crate::hotspot) fn inlined_methods(&self) -> Result<Vec<Addr>> {
        cache::inlined(&self.memory, &self.layout)
    }

    /// The code at these addresses, which are sorted; what lies outside the code cache, or
    /// is being made or discarded just now, is left out.
    ///
    /// # Errors
    /// [`crate::Error::Layout`], [`crate::Error::Memory`] when the JVM is gone.
    pub(crate) fn look(&self, addrs: &[Addr]) -> Result<Vec<Found>> {
        let mut reader = Reader::new(&self.memory, &self.layout, Inlining::At(addrs))?;
        let mut found = Vec::new();
        let mut rest = addrs;
        while let [addr, others @ ..] = rest {
            rest = others;
            let Ok(Some(blob)) = reader.find(*addr) else { continue };
            rest = &others[others.partition_point(|&addr| addr < blob.end)..];
            if let Some(code) = reader.code(blob)
                && reader.is_still(&self.memory, blob)
            {
                let (start, end, compile_id) = (blob.begin, blob.end, blob.compile_id);
                match self.stubs_of(start, end, &code) {
                    Some(stubs) => found.extend(stubs),
                    None => found.push(Found { start, end, compile_id, code }),
                }
            }
        }
        Ok(found)
    }

    /// The stubs of a blob that has many.
    fn stubs_of(&self, start: Addr, end: Addr, code: &Code) -> Option<Vec<Found>> {
        let mut divided = vec![(start, end.0 - start.0, code.clone())];
        self.name_stubs(&mut divided);
        let found = |(start, size, code): (Addr, u64, Code)| Found {
            start,
            end: Addr(start.0.saturating_add(size)),
            compile_id: 0,
            code,
        };
        (divided.len() > 1).then(|| divided.into_iter().map(found).collect())
    }
}

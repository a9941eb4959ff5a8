//! Compiled code: contents of a JVM's code cache, with names.
//!
//! | module | contents |
//! |---|---|
//! | `heap` | code heaps and their blocks |
//! | `cache` | contents of a block: a method, a stub, the interpreter |
//! | `monitors` | monitors that compiled frames have entered |
//! | `scopes` | methods inlined into a compiled method, with lines |
//! | `instructions` | instructions of calls and polls |
//! | `stubs` | names of stubs |
//! | `lookup` | reading of all code; look-up of code and methods by their addresses |
//! | `fill` | fill level of the code cache |
//!
//! The JVM runs on during reads. A block that changes meanwhile is omitted if it is inconsistent,
//! and it may end the walk of its heap early.

pub(super) mod cache;
pub(super) mod fill;
pub(super) mod heap;
mod lookup;
pub(super) mod monitors;
mod scopes;
pub(super) mod stubs;

pub use fill::Fill;
pub(crate) use lookup::{Lookup, LookupResult};

use crate::{Addr, Error, Result, hotspot::pages::Pages};

/// The code for which inlining is decoded. Decoding the inlining of all code takes long.
#[derive(Clone, Copy, Debug)]
pub enum Inlining<'a> {
    /// No code.
    Nowhere,
    /// Code at these addresses, which are sorted.
    At(&'a [Addr]),
    /// All code.
    Everywhere,
}

impl Inlining<'_> {
    /// Whether inlining is requested at an address in a range.
    fn is_wanted(self, from: Addr, to: Addr) -> bool {
        match self {
            Self::Nowhere => false,
            Self::At(addrs) => {
                let first = addrs.partition_point(|&addr| addr < from);
                addrs.get(first).is_some_and(|&addr| addr < to)
            }
            Self::Everywhere => true,
        }
    }
}

/// A field of a blob that refers to a part of the blob, given by the field's offset.
#[derive(Clone, Copy, Debug)]
pub(super) enum PartField {
    /// The field holds an address: from JDK 9 until 22.
    Address(u64),
    /// The field holds a 32-bit offset from the blob: in JDK 8, and since JDK 23.
    Offset(u64),
}

impl PartField {
    /// Returns the address to which the field of a blob refers.
    pub(super) fn read(self, pages: &mut Pages<'_>, blob: Addr) -> Result<Addr> {
        match self {
            Self::Address(field) => pages.pointer(at(blob, field)?),
            Self::Offset(field) => at(blob, pages.u32(at(blob, field)?)?.into()),
        }
    }
}

/// Returns the address of a field at an offset; fails for a null object.
fn at(object: Addr, offset: u64) -> Result<Addr> {
    object
        .checked_add(offset)
        .filter(|_| object.0 != 0)
        .ok_or_else(|| Error::layout("a pointer in the code cache is null"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inlining_is_read_only_at_requested_addresses() {
        let at = Inlining::At(&[Addr(10), Addr(20)]);
        assert!(at.is_wanted(Addr(10), Addr(11)) && at.is_wanted(Addr(0), Addr(99)));
        assert!(!at.is_wanted(Addr(11), Addr(20)) && !at.is_wanted(Addr(21), Addr(99)));
    }
}

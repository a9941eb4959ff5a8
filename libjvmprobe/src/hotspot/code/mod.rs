//! Compiled code: what lies where in a JVM's code cache, and what it is called.
//!
//! | module | what it knows |
//! |---|---|
//! | `heap` | code heaps and their blocks |
//! | `cache` | what is in a block: a method, a stub, the interpreter |
//! | `scopes` | what was inlined into a compiled method, with lines |
//! | `stubs` | names of stubs |
//! | `lookup` | all code, and code and methods by their addresses |
//! | `fill` | how full the code cache is |
//!
//! The JVM goes on while we read: a block that changes under our eyes makes no sense or ends the
//! walk of its heap; it is left out.

pub(super) mod cache;
pub(super) mod fill;
pub(super) mod heap;
mod lookup;
mod scopes;
pub(super) mod stubs;

pub use fill::Fill;
pub(crate) use lookup::{Lookup, Seen};

use crate::{Addr, Error, Result};

/// For which code to find out what was inlined. All of it is a lot.
#[derive(Clone, Copy, Debug)]
pub enum Inlining<'a> {
    /// For none.
    Nowhere,
    /// At these addresses, which are sorted.
    At(&'a [Addr]),
    /// For all.
    Everywhere,
}

impl Inlining<'_> {
    /// Whether it is wanted somewhere in a range.
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

/// The address of a field.
fn at(object: Addr, offset: u64) -> Result<Addr> {
    object
        .checked_add(offset)
        .filter(|_| object.0 != 0)
        .ok_or_else(|| Error::layout("a null pointer in the code cache"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inlining_is_wanted_where_it_was_asked_for() {
        let at = Inlining::At(&[Addr(10), Addr(20)]);
        assert!(at.is_wanted(Addr(10), Addr(11)) && at.is_wanted(Addr(0), Addr(99)));
        assert!(!at.is_wanted(Addr(11), Addr(20)) && !at.is_wanted(Addr(21), Addr(99)));
    }
}

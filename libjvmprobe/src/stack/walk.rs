//! Stacks as a walker sees them: addresses, and how far it came.

use crate::Addr;

/// Why a walk ended. `enum walk_end` of bpf/javaprof.h.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WalkEnd {
    /// There was nothing to walk.
    #[default]
    Nothing,
    /// At a frame without a caller.
    Outermost,
    /// At memory that is not there.
    Unreadable,
    /// At a frame pointer that does not lead up the stack.
    Implausible,
    /// At the walker's limit.
    TooDeep,
}

impl WalkEnd {
    /// From the number that the kernel side sends; an unknown one is implausible.
    pub fn from_code(code: u32) -> Self {
        match code {
            0 => Self::Nothing,
            1 => Self::Outermost,
            2 => Self::Unreadable,
            4 => Self::TooDeep,
            _ => Self::Implausible,
        }
    }
}

/// A stack as addresses, innermost frame first. All but the first are return
/// addresses: they point behind a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// The addresses.
    pub addrs: Vec<Addr>,
}

impl Stack {
    /// Addresses that lie inside the instruction that each frame is at: return
    /// addresses may lie behind the last instruction of their function.
    pub fn lookups(&self) -> impl DoubleEndedIterator<Item = Addr> + '_ {
        let inside = |(i, addr): (usize, &Addr)| Addr(addr.0.saturating_sub(u64::from(i > 0)));
        self.addrs.iter().enumerate().map(inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_looked_up_inside_their_calls() {
        let stack = Stack { addrs: vec![Addr(16), Addr(32), Addr(0)] };
        assert_eq!(stack.lookups().collect::<Vec<_>>(), [Addr(16), Addr(31), Addr(0)]);
    }
}

//! Stacks as a walker sees them: addresses, interpreted methods, and how far it came.

use crate::Addr;

/// Why a walk ended. `enum walk_end` of bpf/walk/walk.h.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum WalkEnd {
    /// There was nothing to walk.
    #[default]
    Nothing,
    /// At a frame without a caller.
    Outermost,
    /// At memory that is not there.
    Unreadable,
    /// At a caller that does not lie up the stack.
    Implausible,
    /// At the walker's limit.
    TooDeep,
    /// Where the thread begins, as the unwind table of its code says.
    Entry,
}

impl WalkEnd {
    /// From the number that the kernel side sends; an unknown one is implausible. With it
    /// comes how many frames lie before the first step that was a guess, if any was.
    pub(crate) fn from_code(code: u32) -> (Self, Option<usize>) {
        let end = match code & ((1 << KNOWN_SHIFT) - 1) {
            0 => Self::Nothing,
            1 => Self::Outermost,
            2 => Self::Unreadable,
            4 => Self::TooDeep,
            5 => Self::Entry,
            _ => Self::Implausible,
        };
        let known = (code >> KNOWN_SHIFT) as usize;
        (end, (known > 0).then_some(known))
    }
}

/// Of `end` in `struct walked` of bpf/walk/walk.h.
const KNOWN_SHIFT: u32 = 8;

/// Of a frame's 64 bits: it is an interpreted method. This and what follows as in bpf/walk/walk.h.
const INTERPRETED: u64 = 1 << 63;
const ADDR_BITS: u32 = 47;
const NO_BCI: u16 = 0xffff;
/// More than the walker sends.
const MAX_FRAMES: usize = 1024;
/// `struct walked` of bpf/walk/walk.h without its frames.
const HEAD_WORDS: usize = 4;

/// A frame as the kernel side sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawFrame {
    /// Code at an address.
    Code {
        /// The address; for all frames but the first it lies behind the call.
        addr: Addr,
        /// The low bits of the compile id, if it is a compiled method's; else 0.
        compile_id: u16,
    },
    /// An interpreted method.
    Interpreted {
        /// Where its `Method` is.
        method: Addr,
        /// Its bytecode index, where it is known.
        bci: Option<u16>,
    },
}

impl RawFrame {
    fn from_word(word: u64) -> Self {
        let addr = Addr(word & ((1 << ADDR_BITS) - 1));
        let above = (word >> ADDR_BITS) as u16;
        if word & INTERPRETED == 0 {
            return Self::Code { addr, compile_id: above };
        }
        Self::Interpreted { method: addr, bci: (above != NO_BCI).then_some(above) }
    }
}

/// A stack as the kernel side sends it: `struct walked` of bpf/walk/walk.h.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawStack {
    /// The key of its process, 0 for the kernel's part.
    pub target: u64,
    /// How many classes the JVM had unloaded then; 0 where nobody counts.
    pub unloads: u64,
    /// The frames, innermost first.
    pub frames: Vec<RawFrame>,
}

impl RawStack {
    /// Decodes it; `None` where there are not as many bytes as it claims to have.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        let words = || words.iter().copied().map(u64::from_ne_bytes);
        let mut head = words();
        let (target, unloads, _end, count) =
            (head.next()?, head.next()?, head.next()?, usize::try_from(head.next()?).ok()?);
        let stack = Self::of(target, unloads, words().skip(HEAD_WORDS).take(count.min(MAX_FRAMES)));
        (stack.frames.len() == count).then_some(stack)
    }

    /// From the frames as the walker has them.
    pub fn of(target: u64, unloads: u64, frames: impl Iterator<Item = u64>) -> Self {
        let frame = |word| match target {
            // The kernel's own addresses have all high bits set.
            0 => RawFrame::Code { addr: Addr(word), compile_id: 0 },
            _ => RawFrame::from_word(word),
        };
        Self { target, unloads, frames: frames.map(frame).collect() }
    }

    /// About how many bytes it takes in a table.
    pub fn size(&self) -> usize {
        2 * size_of::<Self>() + size_of_val(&*self.frames)
    }

    /// Decodes a `struct stack_event` of bpf/walk/walk.h: a stack that is new, and the number
    /// that it is known by from here on.
    pub fn decode_event(record: &[u8]) -> Option<(u64, Self)> {
        let (words, _) = record.as_chunks::<8>();
        let [_kind, id, ..] = words else { return None };
        Some((u64::from_ne_bytes(*id), Self::decode(&record[16..])?))
    }
}

/// The number of what is known of a frame, see [`crate::stack::java_frames`].
pub(crate) type PlaceId = u32;

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// Code at an address.
    Code(Addr),
    /// Java code that is named already: it may be gone later.
    Named(PlaceId),
}

/// A stack, innermost frame first. All addresses but the first are return addresses:
/// they point behind a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// The frames.
    pub places: Vec<Place>,
}

impl Stack {
    /// Frames with addresses that lie inside the instruction that each is at: return
    /// addresses may lie behind the last instruction of their function.
    pub(crate) fn lookups(&self) -> impl DoubleEndedIterator<Item = Place> + '_ {
        let inside = |(i, place): (usize, &Place)| match *place {
            Place::Code(addr) if i > 0 => Place::Code(Addr(addr.0.saturating_sub(1))),
            other => other,
        };
        self.places.iter().enumerate().map(inside)
    }

    /// The addresses among them.
    pub fn addresses(&self) -> impl Iterator<Item = Addr> + '_ {
        self.lookups().filter_map(|place| match place {
            Place::Code(addr) => Some(addr),
            Place::Named(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn callers_are_looked_up_inside_their_calls() {
        let places = [Place::Code(Addr(16)), Place::Code(Addr(32)), Place::Named(7)];
        let stack = Stack { places: places.to_vec() };
        let expected = [Place::Code(Addr(16)), Place::Code(Addr(31)), Place::Named(7)];
        assert_eq!(stack.lookups().collect::<Vec<_>>(), expected);
        assert_eq!(stack.addresses().collect::<Vec<_>>(), [Addr(16), Addr(31)]);
    }

    #[test]
    fn a_stack_is_as_long_as_it_says() {
        let interpreted = INTERPRETED | 9 << ADDR_BITS | 0x7f00_1234_5678;
        let unknown = INTERPRETED | u64::from(NO_BCI) << ADDR_BITS | 0x7f00_1234_5678;
        let compiled = 0x1_0005 << ADDR_BITS & !INTERPRETED | 0x7f00_0000_0010;
        let words = [42, 3, 1, 4, 0x10, interpreted, unknown, compiled];
        let bytes = words.map(u64::to_ne_bytes).concat();
        let method = Addr(0x7f00_1234_5678);
        let frames = [
            RawFrame::Code { addr: Addr(0x10), compile_id: 0 },
            RawFrame::Interpreted { method, bci: Some(9) },
            RawFrame::Interpreted { method, bci: None },
            RawFrame::Code { addr: Addr(0x7f00_0000_0010), compile_id: 5 },
        ];
        let stack = RawStack { target: 42, unloads: 3, frames: frames.to_vec() };
        assert_eq!(RawStack::decode(&bytes), Some(stack));
        assert_eq!(RawStack::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(RawStack::decode(&bytes[..24]), None);
    }

    #[test]
    fn the_kernels_addresses_are_no_methods() {
        let bytes = [0, 0, 1, 1, 0xffff_ffff_8123_4567].map(u64::to_ne_bytes).concat();
        let stack = RawStack::decode(&bytes).unwrap();
        assert_eq!(
            stack.frames,
            [RawFrame::Code { addr: Addr(0xffff_ffff_8123_4567), compile_id: 0 }]
        );
    }

    proptest! {
        #[test]
        fn hostile_records_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = RawStack::decode(&bytes);
        }
    }
}

//! Stacks as the walker sends them: addresses, interpreted methods, and the reason why the walk ended.

use crate::Addr;

/// Reason why a walk ended: `enum walk_end` of bpf/walk/walk.h.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum WalkEnd {
    /// There was no stack to walk.
    #[default]
    Nothing,
    /// A frame without a caller.
    Outermost,
    /// Unreadable memory.
    Unreadable,
    /// A caller's frame that is not further up the stack.
    Implausible,
    /// The maximum number of frames.
    TooDeep,
    /// The entry function of the thread, according to the unwind table of its code.
    Entry,
}

impl WalkEnd {
    /// Decodes the kernel side's number; an unknown one counts as implausible. Also returns the number of
    /// frames before the first step that was a guess; `None` if no step was a guess.
    pub(crate) fn from_code(code: u32) -> (Self, Option<usize>) {
        let end = match code & ((1 << GUESS_SHIFT) - 1) {
            0 => Self::Nothing,
            1 => Self::Outermost,
            2 => Self::Unreadable,
            4 => Self::TooDeep,
            5 => Self::Entry,
            _ => Self::Implausible,
        };
        let known = (code >> GUESS_SHIFT) as usize;
        (end, (known > 0).then_some(known))
    }
}

/// Bit position of the number of frames before the first guess, in `end` of `struct walked`
/// (bpf/walk/walk.h).
const GUESS_SHIFT: u32 = 8;

/// Bit of a frame's 64 bits that marks an interpreted method. This and the following constants are from
/// bpf/walk/walk.h.
const INTERPRETED: u64 = 1 << 63;
const ADDR_BITS: u32 = 48;
const METHOD_SHIFT: u32 = 3;
const METHOD_BITS: u32 = ADDR_BITS - METHOD_SHIFT;
const COMPILE_ID_MASK: u16 = 0x7fff;
const NO_BCI: u16 = 0xffff;
/// Maximum number of frames that the walker sends.
const MAX_FRAMES: usize = 1024;
/// Size of `struct walked` of bpf/walk/walk.h without its frames, in 64-bit words.
const HEAD_WORDS: usize = 4;

/// Returns the bits of a compile id that a frame contains.
pub(crate) fn short_compile_id(id: u32) -> u16 {
    id as u16 & COMPILE_ID_MASK
}

/// A frame as the kernel side sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RawFrame {
    /// Code at an address.
    Code {
        /// Address; for all frames but the first one, the return address.
        addr: Addr,
        /// Low 15 bits of the compile id of a compiled method; 0 for other code.
        compile_id: u16,
    },
    /// An interpreted method.
    Interpreted {
        /// Address of its `Method`.
        method: Addr,
        /// Bytecode index, if known.
        bci: Option<u16>,
    },
}

impl RawFrame {
    /// Decodes a frame.
    pub fn from_word(word: u64) -> Self {
        if word & INTERPRETED == 0 {
            let addr = Addr(word & ((1 << ADDR_BITS) - 1));
            return Self::Code { addr, compile_id: (word >> ADDR_BITS) as u16 };
        }
        let method = Addr((word & ((1 << METHOD_BITS) - 1)) << METHOD_SHIFT);
        let bci = (word >> METHOD_BITS) as u16;
        Self::Interpreted { method, bci: (bci != NO_BCI).then_some(bci) }
    }

    /// Returns the 64 bits of a frame, as the kernel side sends it.
    pub fn to_word(self) -> u64 {
        match self {
            Self::Code { addr, compile_id } => {
                addr.0 & ((1 << ADDR_BITS) - 1) | u64::from(compile_id) << ADDR_BITS
            }
            Self::Interpreted { method, bci } => {
                let method = method.0 >> METHOD_SHIFT & ((1 << METHOD_BITS) - 1);
                INTERPRETED | u64::from(bci.unwrap_or(NO_BCI)) << METHOD_BITS | method
            }
        }
    }
}

/// A stack as the kernel side sends it: `struct walked` of bpf/walk/walk.h.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RawStack {
    /// Key of its process, or 0 for the kernel's part of a stack.
    pub target: u64,
    /// Number of classes that the JVM had unloaded when the stack was walked; 0 if the JVM does not count.
    pub unloads: u64,
    /// Frames, innermost first.
    pub frames: Vec<RawFrame>,
}

impl RawStack {
    /// Decodes a stack; `None` if there are fewer bytes than its length requires.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        let words = || words.iter().copied().map(u64::from_ne_bytes);
        let mut head = words();
        let (target, unloads, _end, count) =
            (head.next()?, head.next()?, head.next()?, usize::try_from(head.next()?).ok()?);
        let stack = Self::of(target, unloads, words().skip(HEAD_WORDS).take(count.min(MAX_FRAMES)));
        (stack.frames.len() == count).then_some(stack)
    }

    /// Makes a stack from the walker's 64-bit frames.
    pub fn of(target: u64, unloads: u64, frames: impl Iterator<Item = u64>) -> Self {
        let frame = |word| match target {
            // Addresses of the kernel use all 64 bits, so there are no bits for other data.
            0 => RawFrame::Code { addr: Addr(word), compile_id: 0 },
            _ => RawFrame::from_word(word),
        };
        Self { target, unloads, frames: frames.map(frame).collect() }
    }

    /// Returns the addresses of its code, each within the instruction that the frame executes.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Addr> + '_ {
        self.frames.iter().enumerate().filter_map(|(index, frame)| match *frame {
            RawFrame::Code { addr, .. } => Some(Addr(addr.0.saturating_sub(u64::from(index > 0)))),
            RawFrame::Interpreted { .. } => None,
        })
    }

    /// Returns the approximate size in bytes of its entry in a table.
    pub fn size(&self) -> usize {
        2 * size_of::<Self>() + size_of_val(&*self.frames)
    }

    /// Decodes a `struct stack_event` of bpf/walk/walk.h: a new stack, and the number by which later events refer to
    /// it.
    pub fn decode_event(record: &[u8]) -> Option<(u64, Self)> {
        let (words, _) = record.as_chunks::<8>();
        let [_kind, id, ..] = words else { return None };
        Some((u64::from_ne_bytes(*id), Self::decode(&record[16..])?))
    }
}

/// Number of a named code location, see [`crate::stack::java_frames`].
pub(crate) type LocationId = u32;

/// Code location of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CodeLocation {
    /// Code at an address.
    Code(Addr),
    /// Java code that is named already, because it may be freed later.
    Named(LocationId),
}

/// A stack, innermost frame first. All addresses but the first one are return addresses, which point after a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// Frames.
    pub frames: Vec<CodeLocation>,
}

impl Stack {
    /// Returns the frames with addresses within the instruction that each one executes. A return address itself may lie
    /// after the last instruction of its function.
    pub(crate) fn lookups(&self) -> impl DoubleEndedIterator<Item = CodeLocation> + '_ {
        let inside = |(i, frame): (usize, &CodeLocation)| match *frame {
            CodeLocation::Code(addr) if i > 0 => CodeLocation::Code(Addr(addr.0.saturating_sub(1))),
            other => other,
        };
        self.frames.iter().enumerate().map(inside)
    }

    /// Returns the addresses of frames that are not named yet, each within the instruction that the frame executes.
    pub fn addresses(&self) -> impl Iterator<Item = Addr> + '_ {
        self.lookups().filter_map(|frame| match frame {
            CodeLocation::Code(addr) => Some(addr),
            CodeLocation::Named(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn return_addresses_are_looked_up_inside_their_call() {
        let frames =
            [CodeLocation::Code(Addr(16)), CodeLocation::Code(Addr(32)), CodeLocation::Named(7)];
        let stack = Stack { frames: frames.to_vec() };
        let expected =
            [CodeLocation::Code(Addr(16)), CodeLocation::Code(Addr(31)), CodeLocation::Named(7)];
        assert_eq!(stack.lookups().collect::<Vec<_>>(), expected);
        assert_eq!(stack.addresses().collect::<Vec<_>>(), [Addr(16), Addr(31)]);
    }

    #[test]
    fn stack_record_decodes_and_truncated_record_is_rejected() {
        let interpreted = INTERPRETED | 9 << 45 | 0xff00_1234_5678 >> 3;
        let unknown = INTERPRETED | 0xffff << 45 | 0xff00_1234_5678 >> 3;
        let compiled = 5 << 48 | 0xff00_0000_0010;
        let words: [u64; 8] = [42, 3, 1, 4, 0x10, interpreted, unknown, compiled];
        let bytes = words.map(u64::to_ne_bytes).concat();
        let method = Addr(0xff00_1234_5678);
        let frames = [
            RawFrame::Code { addr: Addr(0x10), compile_id: 0 },
            RawFrame::Interpreted { method, bci: Some(9) },
            RawFrame::Interpreted { method, bci: None },
            RawFrame::Code { addr: Addr(0xff00_0000_0010), compile_id: 5 },
        ];
        assert_eq!(frames.map(RawFrame::to_word), words[4..]);
        assert_eq!(short_compile_id(0x1_8005), 5);
        let stack = RawStack { target: 42, unloads: 3, frames: frames.to_vec() };
        assert_eq!(RawStack::decode(&bytes), Some(stack));
        assert_eq!(RawStack::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(RawStack::decode(&bytes[..24]), None);
    }

    #[test]
    fn kernel_addresses_decode_as_code_frames() {
        let bytes = [0, 0, 1, 1, 0xffff_ffff_8123_4567].map(u64::to_ne_bytes).concat();
        let stack = RawStack::decode(&bytes).unwrap();
        assert_eq!(
            stack.frames,
            [RawFrame::Code { addr: Addr(0xffff_ffff_8123_4567), compile_id: 0 }]
        );
    }

    proptest! {
        #[test]
        fn hostile_records_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = RawStack::decode(&bytes);
        }
    }
}

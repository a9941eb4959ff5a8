//! Compiled code, interpreted frames and references on x86-64.
//!
//! Sources: cpu/x86/{frame_x86,vmreg_x86}.hpp; gc/z/zAddress.hpp.

use super::REMAPPED_SHIFT;

/// Length in bytes of a call of a method or stub: `call rel32`.
pub(in crate::hotspot) const CALL_BYTES: u64 = 5;
/// Number of rbp among the registers, each of which has two numbers (`RegisterImpl::max_slots_per_register`,
/// vmreg_x86.hpp). In compiled code, rbp is the only register that keeps its value during a call.
pub(in crate::hotspot) const FRAME_POINTER: u32 = 5 * 2;

/// Whether bytes end with a call: `call rel32`, or an indirect call by register or memory.
pub(in crate::hotspot) fn is_call(bytes: &[u8]) -> bool {
    let from_end = |n: usize| bytes.len().checked_sub(n).and_then(|at| bytes.get(at)).copied();
    from_end(5) == Some(0xe8) || (2..=7).any(|n| from_end(n) == Some(0xff))
}

/// Whether bytes begin with a poll: `test eax, [r10]` or `[rip + X]`, and
/// `cmp rsp, [r15 + X]` before a return.
pub(in crate::hotspot) fn is_poll(bytes: &[u8]) -> bool {
    matches!(bytes, [0x41, 0x85, 0x02, ..] | [0x85, 0x05, ..] | [0x49, 0x3b, 0xa7 | 0x67, ..])
}

/// Words of an interpreted frame, relative to its frame pointer: its local variables, and the bytecode that it runs
/// (`interpreter_frame_locals_offset` and `interpreter_frame_bcp_offset`), JDK 9 and later.
pub(in crate::hotspot) const LOCALS: i64 = -7;
pub(in crate::hotspot) const BYTECODE: i64 = -8;

/// Returns which of the remapped bits a reference has, 0 to 3; 4 if it has none (`ZPointer::remap_bits`).
pub(in crate::hotspot) fn remapped(word: u64) -> u32 {
    (word >> REMAPPED_SHIFT & 0xf | 0x10).trailing_zeros()
}

/// Returns the address in a reference of generational ZGC, which begins at the bit above the remapped bit
/// (`ZPointerLoadShiftTable`).
pub(in crate::hotspot) fn uncolored(word: u64) -> u64 {
    word >> (REMAPPED_SHIFT + 1 + remapped(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_polls_are_recognized_by_their_instructions() {
        assert!(is_call(&[0x90, 0x90, 0x90, 0xe8, 1, 2, 3, 4]));
        assert!(is_call(&[0x90, 0x90, 0x90, 0x90, 0x90, 0x41, 0xff, 0xd2]));
        assert!(!is_call(&[0x90; 8]) && !is_call(&[0xe8]) && !is_call(&[]));
        assert!(is_poll(&[0x41, 0x85, 0x02, 0xc3]) && is_poll(&[0x85, 0x05, 1, 2]));
        assert!(is_poll(&[0x49, 0x3b, 0xa7, 1]) && !is_poll(&[0x90; 4]) && !is_poll(&[]));
    }

    #[test]
    fn uncolored_drops_bits_up_to_the_remapped_bit() {
        for bit in 0..4 {
            let address = 0x4000_1234_5678_u64;
            let word = address << (REMAPPED_SHIFT + 1 + bit) | 1 << (REMAPPED_SHIFT + bit);
            // The bits for marking and storing (0x5f0) are below the remapped bits.
            assert_eq!(uncolored(word | 0x5f0), address);
        }
        assert_eq!(uncolored(0), 0);
    }
}

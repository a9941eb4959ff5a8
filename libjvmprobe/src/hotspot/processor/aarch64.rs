//! Compiled code, interpreted frames and references on aarch64.
//!
//! Sources: cpu/aarch64/{frame_aarch64,vmreg_aarch64}.hpp; cpu/aarch64/gc/z/zAddress_aarch64.hpp.

use super::REMAPPED_SHIFT;

/// Length in bytes of a call of a method or stub: `bl`.
pub(in crate::hotspot) const CALL_BYTES: u64 = 4;
/// Number of x29 among the registers, each of which has two numbers (`Register::max_slots_per_register`,
/// vmreg_aarch64.hpp). In compiled code, x29 is the only register that keeps its value during a call.
pub(in crate::hotspot) const FRAME_POINTER: u32 = 29 * 2;

/// Whether bytes end with a call: `bl` or `blr`.
pub(in crate::hotspot) fn is_call(bytes: &[u8]) -> bool {
    let last = bytes.last_chunk().copied().map(u32::from_le_bytes);
    last.is_some_and(|insn| insn & 0xfc00_0000 == 0x9400_0000 || insn & 0xffff_fc1f == 0xd63f_0000)
}

/// Whether bytes begin with a poll: `ldr wzr, [xN]` and, before a return, `ldr x8, [x28, X]`.
pub(in crate::hotspot) fn is_poll(bytes: &[u8]) -> bool {
    let first = bytes.first_chunk().copied().map(u32::from_le_bytes);
    first.is_some_and(|insn| insn & 0xffff_fc1f == 0xb940_001f || insn & 0xffc0_03ff == 0xf940_0388)
}

/// Words of an interpreted frame, relative to its frame pointer: its local variables, and the bytecode that it runs
/// (`interpreter_frame_locals_offset` and `interpreter_frame_bcp_offset`), JDK 9 and later.
pub(in crate::hotspot) const LOCALS: i64 = -8;
pub(in crate::hotspot) const BYTECODE: i64 = -9;
/// Position of the address in a reference of generational ZGC (`ZPointerLoadShift`).
const ADDRESS_SHIFT: u32 = 16;

/// Returns which of the remapped bits a reference lacks, 0 to 3; 4 if it has all of them (`ZPointer::remap_bits`).
pub(in crate::hotspot) fn remapped(word: u64) -> u32 {
    (!word >> REMAPPED_SHIFT & 0xf | 0x10).trailing_zeros()
}

/// Returns the address in a reference of generational ZGC.
pub(in crate::hotspot) fn uncolored(word: u64) -> u64 {
    word >> ADDRESS_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_polls_are_recognised() {
        assert!(is_call(&[0, 0, 0, 0, 1, 0, 0, 0x94]) && is_call(&0xd63f_0100_u32.to_le_bytes()));
        assert!(!is_call(&0xd61f_0100_u32.to_le_bytes()) && !is_call(&[0x94]));
        assert!(is_poll(&0xb940_011f_u32.to_le_bytes()) && !is_poll(&[]));
    }

    #[test]
    fn uncolored_drops_the_metadata() {
        assert_eq!(uncolored(0x4000_1234_5678 << 16 | 0xd5f0), 0x4000_1234_5678);
    }
}

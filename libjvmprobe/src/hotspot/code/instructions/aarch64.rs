//! Instructions of compiled code on aarch64.

/// Length in bytes of a call of a method or stub: `bl`.
pub(in crate::hotspot::code) const CALL_BYTES: u64 = 4;
/// Number of x29 among the registers, each of which has two numbers (`Register::max_slots_per_register`,
/// cpu/aarch64/vmreg_aarch64.hpp). In compiled code, x29 is the only register that keeps its value during a call.
pub(in crate::hotspot::code) const FRAME_POINTER: u32 = 29 * 2;

/// Whether bytes end with a call: `bl` or `blr`.
pub(in crate::hotspot::code) fn is_call(bytes: &[u8]) -> bool {
    let last = bytes.last_chunk().copied().map(u32::from_le_bytes);
    last.is_some_and(|insn| insn & 0xfc00_0000 == 0x9400_0000 || insn & 0xffff_fc1f == 0xd63f_0000)
}

/// Whether bytes begin with a poll: `ldr wzr, [xN]` and, before a return, `ldr x8, [x28, X]`.
pub(in crate::hotspot::code) fn is_poll(bytes: &[u8]) -> bool {
    let first = bytes.first_chunk().copied().map(u32::from_le_bytes);
    first.is_some_and(|insn| insn & 0xffff_fc1f == 0xb940_001f || insn & 0xffc0_03ff == 0xf940_0388)
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
}

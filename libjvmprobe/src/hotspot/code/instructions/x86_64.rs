//! Instructions of compiled code on x86-64.

/// Length in bytes of a call of a method or stub: `call rel32`.
pub(in crate::hotspot::code) const CALL_BYTES: u64 = 5;
/// Number of rbp among the registers, each of which has two numbers (`RegisterImpl::max_slots_per_register`,
/// cpu/x86/vmreg_x86.hpp). In compiled code, rbp is the only register that keeps its value during a call.
pub(in crate::hotspot::code) const FRAME_POINTER: u32 = 5 * 2;

/// Whether bytes end with a call: `call rel32`, or an indirect call by register or memory.
pub(in crate::hotspot::code) fn is_call(bytes: &[u8]) -> bool {
    let from_end = |n: usize| bytes.len().checked_sub(n).and_then(|at| bytes.get(at)).copied();
    from_end(5) == Some(0xe8) || (2..=7).any(|n| from_end(n) == Some(0xff))
}

/// Whether bytes begin with a poll: `test eax, [r10]` or `[rip + X]`, and
/// `cmp rsp, [r15 + X]` before a return.
pub(in crate::hotspot::code) fn is_poll(bytes: &[u8]) -> bool {
    matches!(bytes, [0x41, 0x85, 0x02, ..] | [0x85, 0x05, ..] | [0x49, 0x3b, 0xa7 | 0x67, ..])
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
}

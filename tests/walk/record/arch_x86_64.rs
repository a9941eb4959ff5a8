//! Registers, breakpoints and instructions of x86-64.

use std::{io, ptr};

use libc::{pid_t, user_regs_struct};
use walk_harness::harness::Registers;

use crate::{live::Live, shadow::Insn, tracee::ptrace};

/// Registers of a stopped thread.
pub struct Regs(user_regs_struct);

impl Regs {
    /// Reads the registers of a stopped thread.
    pub fn of(tid: pid_t) -> io::Result<Self> {
        // SAFETY: a structure of integers.
        let mut regs: user_regs_struct = unsafe { std::mem::zeroed() };
        ptrace(libc::PTRACE_GETREGS, tid, 0, ptr::from_mut(&mut regs) as usize)?;
        Ok(Self(regs))
    }

    /// Returns the registers from which the walker starts.
    pub fn start(&self) -> Registers {
        let regs = &self.0;
        let others = [regs.rax, regs.rbx, regs.r13, regs.rdx, 0, 0];
        Registers::new([regs.rip, regs.rsp, regs.rbp], others)
    }

    /// Returns the word that a call or push changes last: the one on top of the stack.
    pub fn top(&self, live: &Live) -> u64 {
        live.word(self.0.rsp)
    }

    /// Returns the sp that the thread has when it has returned from the function that was just called.
    pub fn sp_after_return(&self) -> u64 {
        self.0.rsp + 8
    }

    /// Whether a system call instruction would be `rt_sigreturn`.
    pub fn is_sigreturn(&self) -> bool {
        self.0.rax == 15
    }
}

/// Sets a hardware breakpoint for a stopped thread, or removes it.
pub fn set_breakpoint(tid: pid_t, addr: Option<u64>) -> io::Result<()> {
    let registers = std::mem::offset_of!(libc::user, u_debugreg);
    let control = registers + 7 * size_of::<u64>();
    if let Some(addr) = addr {
        ptrace(libc::PTRACE_POKEUSER, tid, registers, addr as usize)?;
    }
    // DR7: enables hardware breakpoint 0 for this thread, on instruction execution.
    ptrace(libc::PTRACE_POKEUSER, tid, control, usize::from(addr.is_some()))
}

/// Whether a thread that continues at its breakpoint executes the instruction there.
pub const CONTINUES_AT_BREAKPOINT: bool = true;

/// Decodes an instruction.
pub fn decode(code: &[u8]) -> Insn {
    let is_prefix = |b: &&u8| matches!(**b, 0x66 | 0x2e | 0x3e | 0x64 | 0x65 | 0xf2 | 0xf3);
    let mut rest = &code[code.iter().take_while(is_prefix).count()..];
    if rest.first().is_some_and(|b| (0x40..0x50).contains(b)) {
        rest = &rest[1..];
    }
    match rest {
        [0xe8, ..] => Insn::Call,
        [0xc3 | 0xc2, ..] => Insn::Return,
        [0x50..0x58, ..] => Insn::Push,
        [0x58..0x60, ..] => Insn::Pop,
        [0xff, modrm, ..] => match modrm >> 3 & 7 {
            2 => Insn::Call,
            4 => Insn::Jump,
            6 => Insn::Push,
            _ => Insn::Other,
        },
        [0x0f, 0x05, ..] => Insn::Syscall,
        _ => Insn::Other,
    }
}

/// Whether an instruction of the interpreter ends a bytecode: jmp [r10 + 8 * rbx] (dispatch_base(),
/// interp_masm_x86.cpp).
pub fn is_dispatch(code: &[u8]) -> bool {
    code.starts_with(&[0x41, 0xff, 0x24])
}

/// Whether an instruction removes a frame that has a frame pointer: leave.
pub fn is_leave(code: &[u8]) -> bool {
    code.starts_with(&[0xc9])
}

/// Whether an instruction occurs at the end of compiled methods.
pub fn is_last(code: &[u8]) -> bool {
    matches!(code, [0xc3 | 0x5d, ..])
        || matches!(code, [0x49, 0x3b, 0xa7 | 0x67, ..])
        || matches!(code, [0x0f, 0x87, _, _, _, _, 0xc3, ..])
        || matches!(code, [0x85, 0x05, _, _, _, _, 0xc3, ..])
        || matches!(code, [0x4d, 0x8b, 0x97, ..] | [0x41, 0x85, 0x02, 0xc3, ..])
        || matches!(code, [0x48, 0x83 | 0x81, 0xc4, ..])
}

/// Whether an instruction occurs at the end of wrappers of native methods, after the frame was removed.
pub fn is_native_exit(code: &[u8]) -> bool {
    matches!(
        code,
        [0x49, 0x83, 0x7f, _, _, 0x0f, 0x85, _, _, _, _, 0xc3, ..]
            | [0x49, 0x81, 0x7f, _, _, _, _, _, 0x0f, 0x85, _, _, _, _, 0xc3, ..]
    )
}

/// Returns the name of an instruction in names of recordings.
pub fn name(code: &[u8]) -> String {
    code[..3].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Runtimes and flags that are recorded by default.
pub const RUNS: &[(&str, &str)] = &[
    ("temurin-11", ""),
    ("temurin-17", ""),
    ("temurin-21", ""),
    ("temurin-25", ""),
    ("temurin-11", "-XX:TieredStopAtLevel=1"),
    ("temurin-21", "-XX:+UseZGC -XX:+ZGenerational"),
    ("temurin-25", "-XX:+UseZGC"),
    ("temurin-17", "-Xint"),
    ("temurin-21", "-XX:-TieredCompilation"),
    ("musl-17", ""),
];

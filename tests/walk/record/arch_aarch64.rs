//! Registers, breakpoints and instructions of aarch64.

use std::{io, ptr};

use libc::{c_void, iovec, pid_t};
use walk_harness::harness::Registers;

use crate::{live::Live, shadow::Insn, tracee::ptrace};

/// `struct user_pt_regs` (arch/arm64/include/uapi/asm/ptrace.h).
#[repr(C)]
#[derive(Default)]
pub struct Regs {
    regs: [u64; 31],
    sp: u64,
    pc: u64,
    pstate: u64,
}

/// `struct user_hwdebug_state` with one of its registers.
#[repr(C)]
struct HardwareBreakpoint {
    info: u32,
    pad: u32,
    addr: u64,
    control: u32,
    pad_1: u32,
}

const NT_PRSTATUS: usize = 1;
const NT_ARM_HW_BREAK: usize = 0x402;

fn regset(
    request: libc::c_uint,
    tid: pid_t,
    kind: usize,
    data: *mut c_void,
    size: usize,
) -> io::Result<()> {
    let mut buffer = iovec { iov_base: data, iov_len: size };
    ptrace(request, tid, kind, ptr::from_mut(&mut buffer) as usize)
}

impl Regs {
    /// Reads the registers of a stopped thread.
    pub fn of(tid: pid_t) -> io::Result<Self> {
        let mut regs = Self::default();
        let size = size_of::<Self>();
        regset(libc::PTRACE_GETREGSET, tid, NT_PRSTATUS, ptr::from_mut(&mut regs).cast(), size)?;
        Ok(regs)
    }

    /// Returns the registers from which the walker starts.
    pub fn start(&self) -> Registers {
        let r = &self.regs;
        let link = r[30] & ((1 << 48) - 1);
        Registers::new([self.pc, self.sp, r[29]], [link, r[12], r[22], r[19], r[13], r[20]])
    }

    /// Returns the word that a call changes: the link register.
    pub fn top(&self, _live: &Live) -> u64 {
        self.regs[30] & ((1 << 48) - 1)
    }

    /// Returns the sp that the thread has when it has returned from the function that was just called.
    pub fn sp_after_return(&self) -> u64 {
        self.sp
    }

    /// Whether a system call instruction would be `rt_sigreturn`.
    pub fn is_sigreturn(&self) -> bool {
        self.regs[8] == 139
    }
}

/// Sets a hardware breakpoint for a stopped thread, or removes it.
pub fn set_breakpoint(tid: pid_t, addr: Option<u64>) -> io::Result<()> {
    // Enabled, for user mode, on execution of an instruction of four bytes (DBGBCR<n>_EL1).
    let control = if addr.is_some() { 0xf << 5 | 2 << 1 | 1 } else { 0 };
    let addr = addr.unwrap_or_default();
    let mut one = HardwareBreakpoint { info: 0, pad: 0, addr, control, pad_1: 0 };
    let size = size_of::<HardwareBreakpoint>();
    regset(libc::PTRACE_SETREGSET, tid, NT_ARM_HW_BREAK, ptr::from_mut(&mut one).cast(), size)
}

/// Whether a thread that continues at its breakpoint executes the instruction there.
pub const CONTINUES_AT_BREAKPOINT: bool = false;

fn insn(code: &[u8]) -> u32 {
    code.first_chunk().copied().map_or(0, u32::from_le_bytes)
}

/// Decodes an instruction. A `Push` is one that sets the link register to an address, except a call, and except ldp, which
/// restores it.
pub fn decode(code: &[u8]) -> Insn {
    let insn = insn(code);
    let is_link = insn & 0x1f == 30;
    match insn {
        0xd400_0001 => Insn::Syscall,
        _ if insn & 0xfc00_0000 == 0x9400_0000 || insn & 0xfeff_f000 == 0xd63f_0000 => Insn::Call,
        // ret, retaa, retab
        _ if insn & 0xffff_fc1f == 0xd65f_0000 || insn & 0xffff_fbff == 0xd65f_0bff => Insn::Return,
        _ if insn & 0xfeff_f000 == 0xd61f_0000 => Insn::Jump,
        // ldr (register and immediate offset), adr, adrp, mov, add, all of x30
        _ if is_link
            && (insn & 0xffe0_0c00 == 0xf860_0800
                || insn & 0xffc0_0000 == 0xf940_0000
                || insn & 0x1f00_0000 == 0x1000_0000
                || insn & 0xffe0_ffe0 == 0xaa00_03e0
                || insn & 0xff80_0000 == 0x9100_0000) =>
        {
            Insn::Push
        }
        _ => Insn::Other,
    }
}

/// Whether an instruction of the interpreter ends a bytecode: br x9 (dispatch_base(), interp_masm_aarch64.cpp).
pub fn is_dispatch(code: &[u8]) -> bool {
    insn(code) == 0xd61f_0120
}

/// Whether an instruction removes a frame that has a frame pointer: ldp x29, x30, [sp], 16.
pub fn is_leave(code: &[u8]) -> bool {
    insn(code) == 0xa8c1_7bfd
}

/// Whether an instruction occurs at the end of compiled methods: ret; ldp x29, x30; add sp, sp, X; cmp sp, x8.
pub fn is_last(code: &[u8]) -> bool {
    let insn = insn(code);
    insn == 0xd65f_03c0
        || insn & 0xffc0_7fff == 0xa940_7bfd
        || insn == 0xa8c1_7bfd
        || insn & 0xff80_03ff == 0x9100_03ff
        || insn == 0xeb28_63ff
}

/// Whether an instruction occurs at the end of wrappers of native methods, after the frame was removed: cbnz x8, and ret.
pub fn is_native_exit(code: &[u8]) -> bool {
    insn(code) & 0xff00_001f == 0xb500_0008 && insn(&code[4..]) == 0xd65f_03c0
}

/// Returns the name of an instruction in names of recordings.
pub fn name(code: &[u8]) -> String {
    format!("{:08x}", insn(code))
}

/// Runtimes and flags that are recorded by default.
pub const RUNS: &[(&str, &str)] = &[
    ("temurin-17", ""),
    ("temurin-21", ""),
    ("temurin-25", ""),
    ("temurin-21", "-XX:TieredStopAtLevel=1"),
    ("temurin-17", "-Xint"),
    ("temurin-25", "-XX:+UseZGC"),
];

/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Registers of aarch64 that the walker uses besides ip (pc), sp and fp (x29), named after what they contain in
 * HotSpot's code.
 *
 * Only files called arch_* mention registers by name.
 */
#ifndef JVMPROBE_WALK_ARCH_ARM64_H
#define JVMPROBE_WALK_ARCH_ARM64_H

#include <stdbool.h>
#include <linux/bpf_perf_event.h>
#include <linux/types.h>

#define USER_ADDR_BITS 48
#define MAX_INSTRUCTION_BYTES 4

/* Registers of an innermost frame; those of its callers are saved on the stack or lost. */
struct registers {
	__u64 link;         /* x30: the return address, until the function has saved it or called another one */
	__u64 method;       /* x12: the Method that is entered */
	__u64 bcp;          /* x22: address of the bytecode that is interpreted */
	__u64 sender_sp;    /* x19: the caller's sp while the interpreter is entered; JDK 20 and later */
	__u64 sender_sp_17; /* x13: the same up to JDK 19 */
	__u64 left_sp;      /* x20: the caller's sp after the interpreter's frame was removed; else the expression stack */
};

/* Returns a return address without its signature. Code that is compiled with pointer authentication signs return
   addresses in the bits above the address (Arm Architecture Reference Manual, "Pointer authentication"). */
static __always_inline __u64 without_signature(__u64 addr)
{
	return addr & ((1ULL << USER_ADDR_BITS) - 1);
}

/* Returns whether these are registers of user mode. */
static __always_inline bool in_user_mode(const bpf_user_pt_regs_t *regs)
{
	return !(regs->pstate & 0xf);
}

/* The number of futex(2), and where the registers contain the number of the system call with which a thread entered the
   kernel (-1 if it was an exception or an interrupt) and the call's arguments. In struct pt_regs, orig_x0 and the number, of
   32 bits, follow the registers (arch/arm64/include/asm/ptrace.h). */
#define CALL_FUTEX 98
#define CALL_NUMBER(regs) ((const char *)((regs) + 1) + sizeof(__u64))
#define CALL_ARGUMENTS(regs) &(regs)->regs[0], &(regs)->regs[1], &(regs)->regs[2], &(regs)->regs[3]

/* Returns where a thread has the address of its table of blocks of thread-local variables (DTV), as an offset from the thread
   pointer: glibc has it in the first word there, musl in the last word of its `struct pthread`, which ends there. */
static __always_inline int thread_table(bool is_musl)
{
	return is_musl ? -(int)sizeof(__u64) : 0;
}

/* Returns the address in a reference of generational ZGC (ZPointerLoadShift, zAddress_aarch64.hpp). */
static __always_inline __u64 uncolored(__u64 word)
{
	return word >> 16;
}

static __always_inline void copy_registers(struct registers *to, const bpf_user_pt_regs_t *regs)
{
	to->link = without_signature(regs->regs[30]);
	to->method = regs->regs[12];
	to->bcp = regs->regs[22];
	to->sender_sp = regs->regs[19];
	to->sender_sp_17 = regs->regs[13];
	to->left_sp = regs->regs[20];
}

#endif

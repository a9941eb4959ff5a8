/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * aarch64 part of the walker: only ip, sp and fp are used, because stacks are walked by frame pointers there. To
 * support HotSpot's frames, define KNOWS_FRAMES and add the equivalent of arch_x86.bpf.h.
 */
#ifndef JVMPROBE_WALK_ARCH_ARM64_H
#define JVMPROBE_WALK_ARCH_ARM64_H

#include <stdbool.h>
#include <linux/bpf_perf_event.h>
#include <linux/types.h>

#define USER_ADDR_BITS 48
#define MAX_INSTRUCTION_BYTES 4

struct registers {
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

/* Where the registers contain the number of the system call with which a thread entered the kernel, and the call's
   arguments. */
#define CALL_NUMBER(regs) (&(regs)->regs[8])
#define CALL_ARGUMENTS(regs) &(regs)->regs[0], &(regs)->regs[1], &(regs)->regs[2], &(regs)->regs[3]

static __always_inline void copy_registers(struct registers *to, const bpf_user_pt_regs_t *regs)
{
}

#endif

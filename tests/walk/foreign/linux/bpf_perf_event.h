/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Replaces the kernel's header of this name where the walker is compiled for another processor than this machine's: the
 * registers of a thread in user mode (struct pt_regs of arch/x86/include/uapi/asm/ptrace.h, struct user_pt_regs of
 * arch/arm64/include/uapi/asm/ptrace.h).
 */
#ifndef WALK_FOREIGN_BPF_PERF_EVENT_H
#define WALK_FOREIGN_BPF_PERF_EVENT_H

#include <linux/types.h>

#if defined(__TARGET_ARCH_x86)
typedef struct {
	__u64 r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi, orig_rax;
	__u64 rip, cs, eflags, rsp, ss;
} bpf_user_pt_regs_t;
#else
typedef struct {
	__u64 regs[31];
	__u64 sp;
	__u64 pc;
	__u64 pstate;
} bpf_user_pt_regs_t;
#endif

#endif

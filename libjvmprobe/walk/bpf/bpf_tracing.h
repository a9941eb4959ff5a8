/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The parts of libbpf's header of this name that bpf/walk/ uses, for user space. */
#ifndef WALK_HARNESS_BPF_TRACING_H
#define WALK_HARNESS_BPF_TRACING_H

#if defined(__TARGET_ARCH_x86)
#define PT_REGS_IP(regs) ((regs)->rip)
#define PT_REGS_SP(regs) ((regs)->rsp)
#define PT_REGS_FP(regs) ((regs)->rbp)
#else
#define PT_REGS_IP(regs) ((regs)->pc)
#define PT_REGS_SP(regs) ((regs)->sp)
#define PT_REGS_FP(regs) ((regs)->regs[29])
#endif

#endif

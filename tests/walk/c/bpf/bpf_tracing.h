/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What bpf/walk/ wants of libbpf's header of this name, for user space on x86-64. */
#ifndef WALK_HARNESS_BPF_TRACING_H
#define WALK_HARNESS_BPF_TRACING_H

#define PT_REGS_IP(regs) ((regs)->rip)
#define PT_REGS_SP(regs) ((regs)->rsp)
#define PT_REGS_FP(regs) ((regs)->rbp)

#endif

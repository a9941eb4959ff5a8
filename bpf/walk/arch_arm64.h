/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What the walker wants of aarch64: ip, sp and fp only, for there it walks by frame pointers. Who
 * teaches it more says so by KNOWS_FRAMES and adds what arch_x86.bpf.h has.
 */
#ifndef JVMPROBE_WALK_ARCH_ARM64_H
#define JVMPROBE_WALK_ARCH_ARM64_H

#include <stdbool.h>
#include <linux/bpf_perf_event.h>

struct registers {
};

/* Whether these are registers of user mode. */
static __always_inline bool in_user_mode(const bpf_user_pt_regs_t *regs)
{
	return !(regs->pstate & 0xf);
}

static __always_inline void take_registers(struct registers *to, const bpf_user_pt_regs_t *regs)
{
}

#endif

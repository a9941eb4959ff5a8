/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The registers of x86-64 that the walker wants beside ip, sp and fp, by what HotSpot has in them.
 *
 * Only files called arch_* know a register by its name.
 */
#ifndef JVMPROBE_WALK_ARCH_X86_H
#define JVMPROBE_WALK_ARCH_X86_H

#include <stdbool.h>
#include <linux/bpf_perf_event.h>
#include <linux/types.h>

/* Java frames are known by HotSpot's code cache, native ones by unwind tables. */
#define KNOWS_FRAMES

/* Of an innermost frame: callers have saved theirs, or have lost them. */
struct registers {
	/* rax: the return address, while a stub or an adapter moves it. */
	__u64 return_address;
	union {
		/* rbx: the Method that is entered, ... */
		__u64 method;
		/* ... or where the caller's stack ends, once the interpreter's frame is left. */
		__u64 left_sp;
	};
	union {
		/* r13: the bytecode that is interpreted, ... */
		__u64 bcp;
		/* ... or, on the way into and out of the interpreter, the caller's sp. */
		__u64 sender_sp;
	};
	/* rdx: where an exception was thrown, while it is passed on. */
	__u64 exception_pc;
};

/* Whether these are registers of user mode. */
static __always_inline bool in_user_mode(const bpf_user_pt_regs_t *regs)
{
	return regs->cs & 3;
}

/* Whether they were saved by an exception or an interrupt, not by a system call, which has its number
   there. */
static __always_inline bool saved_by_exception(const bpf_user_pt_regs_t *regs)
{
	return regs->orig_rax == (__u64)-1;
}

static __always_inline void take_registers(struct registers *to, const bpf_user_pt_regs_t *regs)
{
	to->return_address = regs->rax;
	to->method = regs->rbx;
	to->bcp = regs->r13;
	to->exception_pc = regs->rdx;
}

#endif

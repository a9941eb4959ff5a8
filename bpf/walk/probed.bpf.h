/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Where a thread is in its program while it executes a probed instruction: Linux has put a breakpoint
 * in that one's place, and lets each thread execute a copy that lies elsewhere ("out of line",
 * kernel/events/uprobes.c). There the thread has the registers and the stack of the original.
 */
#ifndef JVMPROBE_WALK_PROBED_BPF_H
#define JVMPROBE_WALK_PROBED_BPF_H

#include "state.bpf.h"

/* A copy has at most 15 bytes; right after it, the thread is still there. */
#define COPY_BYTES 16

/* Where the kernel's structures have these fields: user space asks its BTF. 0 where that has none. */
const volatile __u32 task_utask = 0;
const volatile __u32 utask_vaddr = 0;
const volatile __u32 utask_xol_vaddr = 0;

/* The address in the program of what the current thread executes at an address. A function of its own, whose
   variables take no room on the BPF stack (512 bytes) while frames are walked. */
__noinline __u64 probed_address(__u64 ip)
{
	__u64 utask = 0, original = 0, copy = 0;

	/* Only threads that have hit a probe have a uprobe_task. */
	if (!task_utask ||
	    bpf_probe_read_kernel(&utask, sizeof(utask),
				  (void *)(bpf_get_current_task() + task_utask)) ||
	    !utask ||
	    bpf_probe_read_kernel(&copy, sizeof(copy), (void *)(utask + utask_xol_vaddr)) ||
	    !copy || ip - copy >= COPY_BYTES ||
	    bpf_probe_read_kernel(&original, sizeof(original), (void *)(utask + utask_vaddr)))
		return ip;
	return original + (ip - copy);
}

#endif

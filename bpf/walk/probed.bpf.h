/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A uprobe replaces an instruction by a breakpoint. The kernel makes the thread execute a copy of the
 * instruction at another address ("out of line", kernel/events/uprobes.c), with unchanged registers and
 * stack. This file maps an address in the copy back to the address of the original instruction.
 */
#ifndef JVMPROBE_WALK_PROBED_BPF_H
#define JVMPROBE_WALK_PROBED_BPF_H

#include "state.bpf.h"

/* Offsets of fields of kernel structures, from the kernel's BTF; 0 without BTF. */
const volatile __u32 task_utask = 0;
const volatile __u32 utask_vaddr = 0;
const volatile __u32 utask_xol_vaddr = 0;

/*
 * Returns the current thread's uprobe_task, which exists once the thread has hit a probe; else 0. This function
 * and the next one are not inlined, so that their variables take no space on the BPF stack (512 bytes) while
 * frames are walked.
 */
__noinline __u64 uprobe_task(void)
{
	__u64 utask = 0;

	if (task_utask)
		bpf_probe_read_kernel(&utask, sizeof(utask),
				      (void *)(bpf_get_current_task() + task_utask));
	return utask;
}

/* Returns the original address of `ip` if it is in the current thread's copy of an instruction; else `ip`. */
__noinline __u64 probed_address(__u64 ip)
{
	__u64 utask = uprobe_task(), original = 0, copy = 0;

	if (!utask ||
	    bpf_probe_read_kernel(&copy, sizeof(copy), (void *)(utask + utask_xol_vaddr)) ||
	    !copy || ip - copy > MAX_INSTRUCTION_BYTES ||
	    bpf_probe_read_kernel(&original, sizeof(original), (void *)(utask + utask_vaddr)))
		return ip;
	return original + (ip - copy);
}

#endif

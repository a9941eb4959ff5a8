/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Slots of time, in which what happens is counted apart: the kernel side of a time axis. */
#ifndef JVMPROBE_SLOTS_BPF_H
#define JVMPROBE_SLOTS_BPF_H

/* How long one is; 0: none are wanted. */
const volatile __u64 slot_ns = 0;
/* When the first begins: user space writes it before anything is counted. */
__u64 times_from = 0;

/* The slot that it is now. */
static __always_inline __u32 slot_now(void)
{
	__u64 now;

	if (!slot_ns)
		return 0;
	now = bpf_ktime_get_ns();
	return now > times_from ? (now - times_from) / slot_ns : 0;
}

#endif

/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Time slots: the kernel side of a time axis. The events of each slot are counted separately. */
#ifndef JVMPROBE_SLOTS_BPF_H
#define JVMPROBE_SLOTS_BPF_H

/* Length of a slot in nanoseconds; 0: no slots are used. */
const volatile __u64 slot_ns = 0;
/* Start of slot 0 on CLOCK_MONOTONIC; user space writes it before anything is counted. */
__u64 slots_begin_ns = 0;

/* Returns the index of the current slot; 0 if no slots are used. */
static __always_inline __u32 slot_now(void)
{
	__u64 now;

	if (!slot_ns)
		return 0;
	now = bpf_ktime_get_ns();
	return now > slots_begin_ns ? (now - slots_begin_ns) / slot_ns : 0;
}

#endif

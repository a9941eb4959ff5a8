/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Mutual exclusion on per-CPU memory.
 *
 * Data too large for the BPF stack lies in per-CPU arrays: the walker, and the stack that it writes. From
 * Linux 6.0 on, the program of a uprobe may be preempted, and then the next thread on this processor may run
 * the same program on the same memory. Runs of any number of threads may overlap in this way. Comparing
 * owners or counting entries would detect such an overlap too late, when one of the runs ends. So a program
 * locks the memory before it uses it. A program that finds the memory locked skips its work. This is rare,
 * because the lock is held for a few microseconds only.
 *
 * A sampling program (perf_event) never interrupts itself and needs no lock.
 *
 * The atomic compare-and-exchange needs Linux 5.12, as walking stacks does. So programs that must also load
 * on older kernels do not use this.
 */
#ifndef JVMPROBE_LOCK_BPF_H
#define JVMPROBE_LOCK_BPF_H

#include "jvm.bpf.h"

/* Locks the memory. Returns false if it is locked already. */
static __always_inline bool try_lock(__u64 *locked)
{
	return !__sync_val_compare_and_swap(locked, 0, 1);
}

/* Releases the memory. Every path out of the program must call this, or the memory stays locked. */
static __always_inline void unlock(__u64 *locked)
{
	barrier();
	*(volatile __u64 *)locked = 0;
}

#endif

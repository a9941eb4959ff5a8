/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * One at a time at memory that belongs to a processor.
 *
 * What is too large for the BPF stack lies in per-CPU arrays: the walker, and the stack that it
 * writes. From Linux 6.0 on, the program of a uprobe may be preempted, and then the next thread
 * on this processor runs the same program in the same memory, as often as the scheduler likes.
 * To compare owners or to count who came would find that only where one of them has ended.
 * So the memory is taken, and who finds it taken goes without: a few microseconds are rarely
 * interrupted.
 *
 * A program that samples (perf_event) is never interrupted by itself and takes no turns.
 *
 * For programs that walk stacks only: the instruction wants Linux 5.12.
 */
#ifndef JVMPROBE_TURN_BPF_H
#define JVMPROBE_TURN_BPF_H

#include "jvm.bpf.h"

static __always_inline bool take_turn(__u64 *taken)
{
	return !__sync_val_compare_and_swap(taken, 0, 1);
}

/* Every way out of the program comes by here, or nobody gets a turn again. */
static __always_inline void end_turn(__u64 *taken)
{
	barrier();
	*(volatile __u64 *)taken = 0;
}

#endif

/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Stacks of threads that have been asleep since before the trace began. Included by javaprof.bpf.c.
 *
 * No BPF program has run in these threads, and none will before they wake up. In a hung JVM, all threads may
 * be in this state. User space runs an iterator over all tasks (kernel/bpf/task_iter.c), which returns the
 * registers of those that have not been scheduled since their process became a target. User space walks their
 * user stacks itself, with the same walker (libjvmprobe/walk), because a BPF program can read only the memory
 * of the task that it runs in.
 */
#ifndef JVMPROBE_ASLEEP_BPF_H
#define JVMPROBE_ASLEEP_BPF_H

#include "tasks.bpf.h"

struct sleeper unused_sleeper;

SEC("iter/task")
int asleep(struct iterated_task *ctx)
{
	struct seq_file *seq = ctx->meta->seq;
	struct task_struct *task = ctx->task;
	struct sleeper sleeper = {};
	bpf_user_pt_regs_t regs;
	struct target *target;
	__u64 tgid;

	if (!task)
		return 0;
	tgid = sleeper.tgid = task_u32((__u64)task, task_tgid);
	sleeper.tid = task_u32((__u64)task, task_pid);
	target = bpf_map_lookup_elem(&targets, &tgid);
	/* State 0 means running or runnable. A task in `threads` was scheduled during the trace. */
	if (!target || !task_u32((__u64)task, task_state) ||
	    bpf_map_lookup_elem(&threads, &sleeper.tid))
		return 0;
	if (!user_registers(task, &regs))
		return 0;
	sleeper.epoch = target->epoch;
	sleeper.ip = PT_REGS_IP(&regs);
	sleeper.sp = PT_REGS_SP(&regs);
	sleeper.fp = PT_REGS_FP(&regs);
	copy_registers((struct registers *)sleeper.others, &regs);
	if (want_kernel)
		sleeper.kernel = kernel_part_of(task);
	bpf_seq_write(seq, &sleeper, sizeof(sleeper));
	return 0;
}

#endif

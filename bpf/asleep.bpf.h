/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Stacks of threads whose wait has not ended. Included after offcpu.bpf.h.
 *
 * No BPF program will run in these threads before they wake up. In a hung JVM, all threads may be in this state. User
 * space runs an iterator over all tasks (kernel/bpf/task_iter.c), which returns their registers. User space walks their
 * user stacks itself, with the same walker (libjvmprobe/walk), because a BPF program can read only the memory of the
 * task that it runs in.
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
	struct thread *thread;
	__u64 since;

	if (!task)
		return 0;
	sleeper.tgid = task_u32((__u64)task, task_tgid);
	sleeper.tid = task_u32((__u64)task, task_pid);
	/* State 0 means running or runnable. */
	if (!task_u32((__u64)task, task_state) || !is_traced(sleeper.tgid, &since))
		return 0;
	thread = bpf_map_lookup_elem(&threads, &sleeper.tid);
	if (thread && !thread->is_off_cpu)
		return 0;
	if (thread)
		sleeper.since = thread->since;
	if (!user_registers(task, &regs))
		return 0;
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

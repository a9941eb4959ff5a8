// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * javastack: the stacks of all threads of a JVM, without stopping it.
 *
 * An iterator over all tasks returns the registers of the threads that are not running. User space walks the user
 * stacks of these threads itself, with the same walker (libjvmprobe/walk), because a BPF program can read only the
 * memory of the task that it runs in. The stack of a running thread changes all the time, so it is walked by a program
 * that interrupts the thread on its processor.
 */
/*
 * A walk needs memory of its own (a level, see walk/intern.bpf.h), because the perf event may interrupt the iterator. The
 * iterator uses level 0, under a lock.
 */
#define WALK_LEVELS 2
#define LEVEL_EVENT 1
#define WALKS_PROBED

#include "javastack.h"
#include "walk/intern.bpf.h"
#include "tasks.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile bool want_kernel = false;
/* Offsets of fields of task_struct. */
const volatile __u32 task_on_cpu = 0;
const volatile __u32 task_voluntary_switches = 0;
const volatile __u32 task_involuntary_switches = 0;

struct stack_event unused_stack;
struct running_thread unused_running;
struct waiting_thread unused_waiting;

/* Processes whose threads are reported, by tgid. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, __u8);
} targets SEC(".maps");

SEC("iter/task")
int waiting(struct iterated_task *ctx)
{
	struct seq_file *seq = ctx->meta->seq;
	struct task_struct *task = ctx->task;
	struct waiting_thread thread = {};
	bpf_user_pt_regs_t regs;
	__u64 tgid;

	if (!task)
		return 0;
	tgid = thread.tgid = task_u32((__u64)task, task_tgid);
	if (!bpf_map_lookup_elem(&targets, &tgid) || task_u32((__u64)task, task_on_cpu))
		return 0;
	thread.tid = task_u32((__u64)task, task_pid);
	thread.switches = task_u64((__u64)task, task_voluntary_switches) +
			  task_u64((__u64)task, task_involuntary_switches);
	if (!user_registers(task, &regs))
		return 0;
	thread.ip = PT_REGS_IP(&regs);
	thread.sp = PT_REGS_SP(&regs);
	thread.fp = PT_REGS_FP(&regs);
	copy_registers((struct registers *)thread.others, &regs);
	if (want_kernel)
		thread.kernel = kernel_part_of(task);
	bpf_seq_write(seq, &thread, sizeof(thread));
	return 0;
}

SEC("perf_event")
int running(struct bpf_perf_event_data *ctx)
{
	struct running_thread thread = { .kind = EVENT_RUNNING };
	struct own_stack *own = own_stack(LEVEL_EVENT);
	__u64 both = bpf_get_current_pid_tgid(), tgid = both >> 32, hash;
	bool in_kernel = !in_user_mode(&ctx->regs);

	if (!own || !bpf_map_lookup_elem(&targets, &tgid))
		return 0;
	thread.tgid = tgid;
	thread.tid = (__u32)both;
	if (want_kernel && in_kernel) {
		hash = walk_by_kernel(ctx, 0, 0, &own->event.stack);
		thread.kernel = intern(&own->event, hash, true);
	}
	hash = in_kernel ? walk_task(ctx, tgid, &own->event.stack, LEVEL_EVENT) :
			   walk(&ctx->regs, tgid, &own->event.stack, LEVEL_EVENT);
	thread.user = intern(&own->event, hash, true);
	bpf_ringbuf_output(&events, &thread, sizeof(thread), wake());
	return 0;
}

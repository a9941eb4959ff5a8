/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Waits of threads: when each thread of the traced processes leaves the processor, why, when it is woken, and when it
 * is on a processor again. Shared by javaprof.bpf.c and javawait.bpf.c.
 *
 * From the switch to its wake-up, a thread is blocked. From the wake-up on it is runnable and waits for a processor. A
 * thread that was never woken was preempted.
 *
 * A program may switch a hundred thousand times per second, and walking a stack costs more than everything else. So
 * waits below a minimum are only added up for each thread. A longer wait is handed to wait_ended() when the thread has
 * been switched in again. This is the first moment at which the wait's length is known and the thread's memory can be
 * read, and the thread's stack is still that of the wait. Stacks of waits that have not ended are walked by user space:
 * see asleep.bpf.h.
 *
 * Every thread of the targets has an entry, also while it runs, because user space reads the totals from it.
 */
#ifndef JVMPROBE_OFFCPU_BPF_H
#define JVMPROBE_OFFCPU_BPF_H

#include "offcpu.h"
#include "tasks.bpf.h"


/* Waits shorter than this, in nanoseconds, are only added up. */
const volatile __u64 min_wait = 0;
/* When the trace began, in nanoseconds. User space sets it; while it is 0, nothing is counted. */
__u64 trace_began_ns = 0;

/* State of a thread that is switched out for the last time: TASK_DEAD of include/linux/sched.h. */
#define DEAD 0x80

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	/* User space sets it: MAX_THREADS in libjvmprobe/src/bpf/offcpu.rs. */
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thread);
} threads SEC(".maps");

struct thread unused_thread;

/*
 * The following functions are those of the tracer that includes this file.
 */

/* Returns whether the threads of a process are traced. If so, sets the time at which that began; 0 if it began with the
   trace. */
static __always_inline bool is_traced(__u32 tgid, __u64 *since);
/* Called when a thread has waited from thread->began to thread->since. `is_current`: in the context of this thread. This is
   the case unless the thread is new and has waited for its first processor. */
static __always_inline void wait_ended(void *ctx, struct thread *thread, bool is_current);
/* Called when a thread that is off the CPU is woken. `now` is the time. */
static __always_inline void thread_woken(void *ctx, __u64 task, struct thread *thread, __u64 now);
/* Returns whether wait_ended() is called for the thread's wait, although it was shorter than the minimum. */
static __always_inline bool wants_short(const struct thread *thread);
/* Called for each thread that gets an entry. */
static __always_inline void thread_began(struct thread *thread);
/* Called when a thread is switched out. */
static __always_inline void thread_leaves(struct thread *thread, __u64 task);
/* Called when a thread is switched out for the last time. Its entry is deleted then. */
static __always_inline void thread_ended(struct thread *thread);

static __always_inline __u64 start_time_of(__u64 task)
{
	return task_u64(task, task_start_time);
}

/* Adds an entry for a thread that has none. Assumes that the thread has been running (or, if `is_off_cpu`,
   off the CPU) since the later of two times: the start of its process's trace, and the thread's creation. */
static __always_inline struct thread *new_thread(__u32 id, __u32 tgid, __u32 tid, __u64 traced_since,
						 __u64 start_time, bool is_off_cpu)
{
	__u64 since = traced_since > trace_began_ns ? traced_since : trace_began_ns;
	struct thread thread = {
		.since = start_time > since ? start_time : since,
		.tgid = tgid,
		.tid = tid,
		.is_off_cpu = is_off_cpu,
		/* Only a thread that already existed at `since` can have been switched out before that. */
		.is_unseen = is_off_cpu && start_time <= since,
		/* A thread that was created later is runnable and waits for its first processor. */
		.woken = start_time > since ? start_time : 0,
	};

	if (bpf_map_update_elem(&threads, &id, &thread, BPF_NOEXIST)) {
		count_lost(LOST_SAMPLES);
		return NULL;
	}
	thread_began(&thread);
	return bpf_map_lookup_elem(&threads, &id);
}

static __always_inline void switch_out(bool is_preempted, __u64 now)
{
	__u32 id = bpf_get_current_pid_tgid(), tgid = 0, tid = 0;
	struct thread *thread = bpf_map_lookup_elem(&threads, &id);
	__u64 task = bpf_get_current_task(), traced_since = 0;
	__u32 state;

	if (!thread) {
		/* Threads of a process that user space has not classified yet get no entry, because the process
		   may turn out not to be a JVM. */
		if (!id || !current_ids(&tgid, &tid) || !is_traced(tgid, &traced_since))
			return;
		thread = new_thread(id, tgid, tid, traced_since, start_time_of(task), false);
		if (!thread)
			return;
		/* In a PID namespace, a thread without an entry is not observed when it is switched in. So
		   the time at which this thread began to run is unknown. */
		if (pidns_ino)
			thread->since = now;
		bpf_get_current_comm(thread->comm, sizeof(thread->comm));
	}
	state = task_u32(task, task_state);
	if (now > thread->since)
		thread->on_ns += now - thread->since;
	if (thread->is_ending && state & DEAD) {
		thread_ended(thread);
		bpf_map_delete_elem(&threads, &id);
		return;
	}
	thread->since = now;
	thread->woken = 0;
	thread->state = is_preempted ? 0 : state;
	thread->is_off_cpu = true;
	thread_leaves(thread, task);
}

/* Ends the wait of a thread that is on a processor again. */
static __always_inline void switch_in(void *ctx, struct thread *thread, __u64 now, bool is_current)
{
	__u64 waits = now > thread->since ? now - thread->since : 0;

	thread->is_off_cpu = false;
	thread->began = thread->since;
	thread->since = now;
	if (waits < min_wait && !thread->is_unseen && !wants_short(thread)) {
		thread->short_ns += waits;
		thread->shorts++;
		return;
	}
	/* The thread may have a new name. */
	if (is_current)
		bpf_get_current_comm(thread->comm, sizeof(thread->comm));
	wait_ended(ctx, thread, is_current);
	thread->is_unseen = false;
}

/* Adds an entry for a thread that is switched in and has none. */
static __always_inline void add_next(void *ctx, __u64 task, __u64 now)
{
	__u32 id = task_u32(task, task_pid), tgid;
	struct thread *thread;
	__u64 traced_since = 0;

	/* Id 0 is the idle task. In another PID namespace, a thread gets its entry when it is switched out. */
	if (!id || pidns_ino || bpf_map_lookup_elem(&threads, &id))
		return;
	tgid = task_u32(task, task_tgid);
	if (!is_traced(tgid, &traced_since))
		return;
	thread = new_thread(id, tgid, id, traced_since, start_time_of(task), true);
	if (!thread)
		return;
	/* Usually the name is set when the thread is switched out, but it had no entry then. */
	bpf_probe_read_kernel(thread->comm, sizeof(thread->comm), (void *)(task + task_comm));
	/* A thread that runs for the first time does not return from __schedule(). */
	if (!thread->is_unseen)
		switch_in(ctx, thread, now, false);
}

/* Adds the cost of one run of an off-CPU program to the current process. */
static __always_inline void charge_run(__u64 begin)
{
	__u64 end = begin ? bpf_ktime_get_ns() : 0;
	__u32 tgid = 0, tid;

	if (!begin)
		return;
	current_ids(&tgid, &tid);
	count_untrapped(tgid, end - begin);
}

/* sched_switch(bool preempt, struct task_struct *prev, struct task_struct *next, ...) */
SEC("raw_tp/sched_switch")
int on_switch(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 now = bpf_ktime_get_ns(), begin = begin_untrapped();

	if (!trace_began_ns)
		return 0;
	switch_out(ctx->args[0] & 1, now);
	add_next(ctx, ctx->args[2], now);
	charge_run(begin);
	return 0;
}

/* Called when the current thread has been switched in. */
static __always_inline int end_wait(void *ctx)
{
	__u32 id = bpf_get_current_pid_tgid();
	struct thread *thread = bpf_map_lookup_elem(&threads, &id);
	__u64 begin;

	if (!thread || !thread->is_off_cpu)
		return 0;
	begin = begin_untrapped();
	switch_in(ctx, thread, bpf_ktime_get_ns(), true);
	charge_run(begin);
	return 0;
}

/* sched_exit_tp(bool is_switch), at the end of __schedule(): Linux 6.15. */
SEC("raw_tp/sched_exit_tp")
int switched_in(struct bpf_raw_tracepoint_args *ctx)
{
	return end_wait(ctx);
}

/* finish_task_switch(struct task_struct *prev), which __schedule() calls: earlier kernels. */
SEC("kprobe")
int switched_in_before_6_15(struct pt_regs *ctx)
{
	return end_wait(ctx);
}

/* sched_waking(struct task_struct *), in the context of the thread or interrupt that wakes the task */
SEC("raw_tp/sched_waking")
int on_waking(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 begin = begin_untrapped();
	__u32 id = task_u32(ctx->args[0], task_pid);
	struct thread *thread = bpf_map_lookup_elem(&threads, &id);

	if (thread && thread->is_off_cpu && !thread->woken) {
		thread->woken = bpf_ktime_get_ns();
		thread_woken(ctx, ctx->args[0], thread, thread->woken);
	}
	charge_run(begin);
	return 0;
}

/* sched_process_exit(struct task_struct *): the current task, which runs on until it is switched out for the
   last time. */
SEC("raw_tp/sched_process_exit")
int on_exit(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 id = bpf_get_current_pid_tgid();
	struct thread *thread = bpf_map_lookup_elem(&threads, &id);

	if (thread)
		thread->is_ending = true;
	return 0;
}

#endif

/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Off-CPU analysis: stacks of threads that are not running, and how long they wait. Included by
 * javaprof.bpf.c.
 *
 * A thread is walked when it is switched out, because its memory is readable then, and its wait is counted
 * when it is switched in. From the switch to its wake-up it was blocked; from the wake-up on it was runnable,
 * waiting for a processor. A thread that was never woken was preempted.
 *
 * A program may switch a hundred thousand times per second. So waits below a minimum are only added up for
 * each thread, and a thread whose recent waits were all short is rarely walked, because walking costs more than
 * everything else. If such a thread then waits for long, that time is counted without a stack.
 *
 * Every thread of the targets has an entry, also while it runs, because user space reads the totals from it.
 */
#ifndef JVMPROBE_OFFCPU_BPF_H
#define JVMPROBE_OFFCPU_BPF_H

#include "tasks.bpf.h"

const volatile __u32 task_start_time = 0;
const volatile __u32 task_comm = 0;

static __always_inline __u64 start_time_of(__u64 task)
{
	return task_u64(task, task_start_time);
}

/* Index of the event under which waits are counted. */
const volatile __u32 switch_event = 0;
/* Waits shorter than this, in nanoseconds, are only added up. */
const volatile __u64 min_wait = 0;
/* When the trace began, in nanoseconds. User space sets it; while it is 0, nothing is counted. */
__u64 trace_began_ns = 0;

/* State of a thread that is switched out for the last time: TASK_DEAD of include/linux/sched.h. */
#define DEAD 0x80

/* After this many consecutive short waits, a thread's next waits are expected to be short, too. */
#define SHORT_STREAK 8
/* Then the thread's stack is walked at only one switch in this many; a power of two. */
#define WALK_ONE_IN 64

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	/* User space sets it: see load() in libjvmprobe/src/trace/samples/session.rs. */
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thread);
} threads SEC(".maps");

struct thread unused_thread;

/* Adds an entry for a thread that has none. Assumes that the thread has been running (or, if `is_off_cpu`,
   off the CPU) since the later of two times: the start of its process's trace, and the thread's creation. */
static __always_inline struct thread *new_thread(__u32 id, const struct sample_key *key,
						 const struct target *target, __u64 start_time,
						 bool is_off_cpu)
{
	__u64 since = target && target->since > trace_began_ns ? target->since : trace_began_ns;
	struct thread thread = {
		.since = start_time > since ? start_time : since,
		.tgid = key->tgid,
		.tid = key->tid,
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
	return bpf_map_lookup_elem(&threads, &id);
}

/* Walks the thread that is being switched out. */
static __always_inline void walk_thread(void *ctx, struct thread *thread, struct sample_key *key)
{
	struct own_stack *own = own_stack(LEVEL_SWITCH);

	key->user = key->kernel = 0;
	key->user_end = 0;
	if (own)
		walk_both(ctx, NULL, key, own, LEVEL_SWITCH);
	thread->user = key->user;
	thread->kernel = key->kernel;
	thread->user_end = key->user_end;
	thread->epoch = key->epoch;
	thread->is_walked = true;
}

/* Counts the totals of a thread that exits, because its entry is deleted and user space cannot read them later. */
static __always_inline void end_thread(struct thread *thread)
{
	struct sample_key key = {
		.event = switch_event,
		.tgid = thread->tgid,
		.tid = thread->tid,
		.slot = slot_now(),
		.label = LABEL_ON_CPU,
	};

	bpf_get_current_comm(key.comm, sizeof(key.comm));
	count(&key, thread->on_ns);
	key.label = LABEL_SHORT;
	if (thread->short_ns)
		count(&key, thread->short_ns);
}

static __always_inline void switch_out(void *ctx, __u64 now)
{
	struct sample_key key = { .event = switch_event };
	__u32 id = bpf_get_current_pid_tgid();
	struct thread *thread = bpf_map_lookup_elem(&threads, &id);
	struct target *target;

	if (thread && thread->is_ending &&
	    task_u32(bpf_get_current_task(), task_state) & DEAD) {
		if (now > thread->since)
			thread->on_ns += now - thread->since;
		end_thread(thread);
		bpf_map_delete_elem(&threads, &id);
		return;
	}
	target = current_target(&key);
	/* Threads of a process that user space has not classified yet get no entry, because the process may
	   turn out not to be a JVM. */
	if (!key.tgid || (!target && !every_process))
		return;
	describe(&key, target);
	if (!thread) {
		thread = new_thread(id, &key, target, start_time_of(bpf_get_current_task()), false);
		if (!thread)
			return;
		/* In a PID namespace, a thread without an entry is not observed when it is switched in. So
		   the time at which this thread began to run is unknown. */
		if (pidns_ino)
			thread->since = now;
	}
	if (now > thread->since)
		thread->on_ns += now - thread->since;
	__builtin_memcpy(thread->comm, key.comm, sizeof(thread->comm));
	thread->since = now;
	thread->woken = 0;
	thread->is_off_cpu = true;
	thread->is_walked = false;
	if (thread->short_streak < SHORT_STREAK || !(bpf_get_prandom_u32() & (WALK_ONE_IN - 1)))
		walk_thread(ctx, thread, &key);
}

static __always_inline void count_wait(const struct thread *thread, struct sample_key *key,
				       __u64 label, __u64 ns)
{
	if (!ns)
		return;
	key->label = label;
	count(key, ns);
}

/* Counts the wait of a thread that is switched in. */
static __always_inline void end_wait(struct thread *thread, __u64 now)
{
	struct sample_key key = {
		.event = switch_event,
		.tgid = thread->tgid,
		.tid = thread->tid,
		.cpu = bpf_get_smp_processor_id(),
		.slot = slot_now(),
	};
	__u64 since = thread->since, woken = thread->woken;
	__u64 all = now > since ? now - since : 0;

	/* A thread that was never woken, or was woken before it was switched out, was runnable all the
	   time. */
	if (woken < since)
		woken = since;
	thread->since = now;
	thread->is_off_cpu = false;
	if (all < min_wait && !thread->is_unseen) {
		thread->short_ns += all;
		thread->shorts++;
		if (thread->short_streak < SHORT_STREAK)
			thread->short_streak++;
		return;
	}
	thread->short_streak = 0;
	__builtin_memcpy(key.comm, thread->comm, sizeof(key.comm));
	if (thread->is_walked) {
		key.user = thread->user;
		key.kernel = thread->kernel;
		key.user_end = thread->user_end;
		key.epoch = thread->epoch;
	} else {
		key.user = thread->is_unseen ? STACK_UNSEEN : STACK_NOT_WALKED;
	}
	if (thread->is_unseen && !thread->woken) {
		/* Not only the thread's stack but also the time of its wake-up is unknown, so all of the wait
		   counts as blocked. */
		count_wait(thread, &key, LABEL_BLOCKED, all);
	} else {
		count_wait(thread, &key, LABEL_BLOCKED, thread->woken ? woken - since : 0);
		count_wait(thread, &key, LABEL_RUNNABLE, thread->woken ? now - woken : all);
	}
	thread->is_unseen = false;
}

static __always_inline void switch_in(__u64 task, __u64 now)
{
	__u32 id = task_u32(task, task_pid);
	struct thread *thread;
	struct sample_key key = {};
	struct target *target;
	__u64 tgid;

	/* The idle task. */
	if (!id)
		return;
	thread = bpf_map_lookup_elem(&threads, &id);
	if (!thread) {
		/* In another PID namespace, a thread gets its entry when it is switched out. */
		if (pidns_ino)
			return;
		tgid = task_u32(task, task_tgid);
		target = bpf_map_lookup_elem(&targets, &tgid);
		if (!target && !every_process)
			return;
		key.tgid = tgid;
		key.tid = id;
		thread = new_thread(id, &key, target, start_time_of(task), true);
		if (!thread)
			return;
		/* Usually the name is set when the thread is switched out, but it had no entry then. */
		bpf_probe_read_kernel(thread->comm, sizeof(thread->comm), (void *)(task + task_comm));
	}
	if (thread->is_off_cpu)
		end_wait(thread, now);
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
	switch_out(ctx, now);
	switch_in(ctx->args[2], now);
	charge_run(begin);
	return 0;
}

/* sched_wakeup(struct task_struct *) */
SEC("raw_tp/sched_wakeup")
int on_wakeup(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 begin = begin_untrapped();
	__u32 id = task_u32(ctx->args[0], task_pid);
	struct thread *thread = bpf_map_lookup_elem(&threads, &id);

	if (thread && thread->is_off_cpu && !thread->woken)
		thread->woken = bpf_ktime_get_ns();
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

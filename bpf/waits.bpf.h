/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Counts the waits of threads by their stacks. Included by javaprof.bpf.c after offcpu.bpf.h. */
#ifndef JVMPROBE_WAITS_BPF_H
#define JVMPROBE_WAITS_BPF_H

static __always_inline bool is_traced(__u32 tgid, __u64 *since)
{
	__u64 key = tgid;
	struct target *target = bpf_map_lookup_elem(&targets, &key);

	if (target)
		*since = target->since;
	return target || every_process;
}

static __always_inline struct sample_key key_of_thread(const struct thread *thread)
{
	struct sample_key key = {
		.event = switch_event,
		.tgid = thread->tgid,
		.tid = thread->tid,
		.slot = slot_now(),
	};

	__builtin_memcpy(key.comm, thread->comm, sizeof(key.comm));
	return key;
}

static __always_inline void count_part(struct sample_key *key, __u64 label, __u64 ns)
{
	if (!ns)
		return;
	key->label = label;
	count(key, ns);
}

/* Counts the totals of a thread that exits, because its entry is deleted and user space cannot read them later. */
static __always_inline void thread_ended(struct thread *thread)
{
	struct sample_key key = key_of_thread(thread);

	count_part(&key, LABEL_ON_CPU, thread->on_ns);
	count_part(&key, LABEL_SHORT, thread->short_ns);
}

static __always_inline void wait_ended(void *ctx, struct thread *thread, bool is_current)
{
	struct sample_key key = key_of_thread(thread);
	__u64 since = thread->began, woken = thread->woken, now = thread->since, id = thread->tgid;
	struct own_stack *own = is_current ? own_stack(LEVEL_SWITCH) : NULL;
	struct target *target = bpf_map_lookup_elem(&targets, &id);

	if (now < since)
		return;
	key.epoch = target ? target->epoch : 0;
	key.cpu = bpf_get_smp_processor_id();
	if (own)
		walk_both(ctx, NULL, &key, own, LEVEL_SWITCH);
	else
		key.user = STACK_NOT_WALKED;
	/* If the time of the wake-up is unknown, all of the wait counts as blocked. */
	if (!woken && (thread->is_unseen || thread->state))
		woken = now;
	/* A thread that was preempted, or woken before it was switched out, was runnable all the time. */
	if (woken < since || !(thread->state || thread->is_unseen))
		woken = since;
	count_part(&key, LABEL_BLOCKED, woken - since);
	count_part(&key, LABEL_RUNNABLE, now - woken);
}

static __always_inline bool wants_short(const struct thread *thread)
{
	return false;
}

static __always_inline void thread_began(struct thread *thread)
{
}

static __always_inline void thread_leaves(struct thread *thread, __u64 task)
{
}

static __always_inline void thread_woken(void *ctx, __u64 task, struct thread *thread, __u64 now)
{
}

#endif

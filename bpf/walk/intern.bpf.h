/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Interns stacks: each is sent to user space once and represented by an id from then on. So a stack of a
 * thousand frames costs its eight kilobytes once, and each further event with it costs one map look-up.
 *
 * The id is a hash of the frames and of the process, because two processes may have different code at the same
 * addresses.
 *
 * A walked stack is too large for the BPF stack, so its frames are written to per-CPU memory. A program that
 * may be preempted locks that memory (lock_stack), see lock.bpf.h.
 *
 * The tool must include its own header before this file, because its enum event_kind defines EVENT_STACK.
 */
#ifndef JVMPROBE_WALK_INTERN_BPF_H
#define JVMPROBE_WALK_INTERN_BPF_H

#include "../jvm.bpf.h"
#include "../lock.bpf.h"
#include "walk.bpf.h"

/*
 * Ids of the stacks that were sent to user space, with the keys of their processes. User space sets the size
 * of this map. It is not an LRU map: hardware samples arrive as NMIs, in which the locks of such a map may
 * deadlock.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__type(key, __u64);
	__type(value, __u64);
} known_stacks SEC(".maps");

/* Memory for a stack, and whether a program is using it. */
struct own_stack {
	__u64 locked;
	struct stack_event event;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WALK_LEVELS);
	__type(key, __u32);
	__type(value, struct own_stack);
} stacks SEC(".maps");

/* Level of programs that lock the memory. */
#define LEVEL_LOCKED 0

/* Returns this processor's memory for a level. Only for programs that no program of the same level
   interrupts. */
static __always_inline struct own_stack *own_stack(__u32 level)
{
	return bpf_map_lookup_elem(&stacks, &level);
}

/* Locks and returns this processor's memory for LEVEL_LOCKED; NULL if it is in use. The caller must release it
   with unlock_stack(). */
static __always_inline struct own_stack *lock_stack(void)
{
	struct own_stack *own = own_stack(LEVEL_LOCKED);

	return own && try_lock(&own->locked) ? own : NULL;
}

static __always_inline void unlock_stack(struct own_stack *own)
{
	unlock(&own->locked);
}

/*
 * Sends a stack with this hash unless it was sent before. Returns its id, or STACK_NONE if it has no frames.
 * If known_stacks is full and user space empties it regularly (`is_emptied`), the stack is sent each time. If
 * it is full and user space does not empty it, the result is STACK_OTHER.
 */
static __always_inline __u64 intern(struct stack_event *event, __u64 hash, const bool is_emptied)
{
	__u64 target = event->stack.target, size = event->stack.count * sizeof(__u64), id;
	long error;

	if (!size)
		return STACK_NONE;
	/* Prevents the compiler from merging the two comparisons: verifiers up to Linux 6.1 derive no bound
	   from the merged one. */
	barrier_var(size);
	if (size > sizeof(event->stack.frames))
		return STACK_NONE;
	barrier_var(size);
	id = stack_id(hash, target);
	if (bpf_map_lookup_elem(&known_stacks, &id))
		return id;
	error = bpf_map_update_elem(&known_stacks, &id, &target, BPF_NOEXIST);
	if (error == -EEXIST)
		return id;
	if (error && !is_emptied)
		return STACK_OTHER;
	event->kind = EVENT_STACK;
	event->id = id;
	/* If the ring buffer is full, removes the id, so that the next event with this stack sends the
	   stack. */
	if (bpf_ringbuf_output(&events, event, offsetof(struct stack_event, stack.frames) + size,
			       wake()) &&
	    !error)
		bpf_map_delete_elem(&known_stacks, &id);
	return id;
}

/* Walks and sends the stack of a thread in user mode. `ctx` is the context of a uprobe, which begins with the thread's
   registers. Returns the id of the stack, or STACK_NONE if it has no frames or if this processor's memory is in
   use. */
static __always_inline __u64 intern_stack(const void *ctx, __u64 key)
{
	const bpf_user_pt_regs_t *regs = ctx;
	struct own_stack *own = lock_stack();
	__u64 id;

	if (!own)
		return STACK_NONE;
	id = intern(&own->event, walk(regs, key, &own->event.stack, LEVEL_LOCKED), false);
	unlock_stack(own);
	return id;
}

#endif

/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A stack is sent to user space once, and is a number from then on. So a stack of a thousand frames
 * costs its eight kilobytes once, and what happens on it again costs a look into a map.
 *
 * The number is a hash of the frames and of the process: two processes may have the same addresses,
 * and other code there.
 *
 * A stack is too large for the BPF stack: it is walked in memory that belongs to the processor. A
 * program that may be preempted takes that by turns (take_stack), see turn.bpf.h.
 *
 * The tool's own header comes before this file: its enum event_kind says which EVENT_STACK is.
 */
#ifndef JVMPROBE_WALK_INTERN_BPF_H
#define JVMPROBE_WALK_INTERN_BPF_H

#include "../jvm.bpf.h"
#include "../turn.bpf.h"
#include "walk.bpf.h"

/*
 * Stacks that user space was told of, and the keys of their processes. User space sizes it.
 * Not an LRU map: hardware samples come as NMIs, in which its locks may deadlock.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__type(key, __u64);
	__type(value, __u64);
} known_stacks SEC(".maps");

/* A stack, and whether somebody is at it. */
struct own_stack {
	__u64 taken;
	struct stack_event event;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WALK_LEVELS);
	__type(key, __u32);
	__type(value, struct own_stack);
} stacks SEC(".maps");

/* The level of programs that take turns. */
#define LEVEL_TURNS 0

/* This processor's, for programs that nothing of their level interrupts. */
static __always_inline struct own_stack *own_stack(__u32 level)
{
	return bpf_map_lookup_elem(&stacks, &level);
}

/* The same for all others; NULL where somebody is at it. Who gets it gives it back. */
static __always_inline struct own_stack *take_stack(void)
{
	struct own_stack *own = own_stack(LEVEL_TURNS);

	return own && take_turn(&own->taken) ? own : NULL;
}

static __always_inline void give_back_stack(struct own_stack *own)
{
	end_turn(&own->taken);
}

/*
 * Sends a stack of this hash unless user space knows it. Returns its number; STACK_NONE where there
 * is none. When known_stacks is full, that is STACK_OTHER, or, where user space empties the map
 * soon, the stack is sent each time.
 */
static __always_inline __u64 intern(struct stack_event *event, __u64 hash, const bool is_emptied)
{
	__u64 target = event->stack.target, size = event->stack.count * sizeof(__u64), id;
	long error;

	if (!size)
		return STACK_NONE;
	/* Made one comparison of two, this would tell verifiers up to Linux 6.1 no bound. */
	barrier_var(size);
	if (size > sizeof(event->stack.frames))
		return STACK_NONE;
	barrier_var(size);
	id = stack_number(hash, target);
	if (bpf_map_lookup_elem(&known_stacks, &id))
		return id;
	error = bpf_map_update_elem(&known_stacks, &id, &target, BPF_NOEXIST);
	if (error == -EEXIST)
		return id;
	if (error && !is_emptied)
		return STACK_OTHER;
	event->kind = EVENT_STACK;
	event->id = id;
	/* When there is no room, the next one of its kind tries again. */
	if (bpf_ringbuf_output(&events, event, offsetof(struct stack_event, stack.frames) + size,
			       wake()) &&
	    !error)
		bpf_map_delete_elem(&known_stacks, &id);
	return id;
}

/* Walks the stack of a thread that is in user mode, with these registers, and sends it where it is
   new. Returns its number; STACK_NONE also where somebody is at this processor's memory. */
static __always_inline __u64 intern_stack(const bpf_user_pt_regs_t *regs, __u64 key)
{
	struct own_stack *own = take_stack();
	__u64 id;

	if (!own)
		return STACK_NONE;
	id = intern(&own->event, walk(regs, key, &own->event.stack, LEVEL_TURNS), false);
	give_back_stack(own);
	return id;
}

#endif

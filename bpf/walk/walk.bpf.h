/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Walks user stacks of a JVM that was started without any special option: native frames by unwind tables
 * (native.bpf.h), Java frames by HotSpot's own data in its code cache (hotspot.bpf.h).
 *
 * walk() starts from the registers of an event, walk_task() from those of a task that is in the kernel. Both
 * loop over step(), which finds one frame's caller. step() and the functions that it calls are global
 * functions, so the verifier checks each of them once, whatever the number of frames, and the walker does not
 * need the BPF loops of newer kernels. These functions take pointers to memory as arguments, which the
 * verifier accepts from Linux 5.12 on.
 *
 * This file only walks and does not depend on the tool. intern.bpf.h sends the stacks.
 */
#ifndef JVMPROBE_WALK_WALK_BPF_H
#define JVMPROBE_WALK_WALK_BPF_H

#include "state.bpf.h"
#ifdef WALKS_PROBED
#include "probed.bpf.h"
#endif
#include "hotspot.bpf.h"
#include "native.bpf.h"

/* Whether JVMs and unwind tables are looked up; if not, stacks are walked by frame pointers. */
const volatile bool uses_walk_data = false;
/* Whether bpf_task_pt_regs() is available: Linux 5.15, with BTF. */
const volatile bool has_user_registers = true;

/* These variables make the compiler emit complete BTF for their types. */
struct unwind_row unused_row;
struct mapping unused_mapping;
struct jvm unused_jvm;

/* Looks up the data of the process that is walked. */
static __always_inline void prepare(struct walker *w)
{
	struct mapping *first;
	struct jvm *jvm;
	__u64 key = w->key;
	__u32 i, zero = 0;
	void *inner;

	w->mapping.start = w->mapping.end = 0;
	w->mappings_stamp = 0;
	w->blob.kind = BLOB_NONE;
	if (!uses_walk_data)
		return;
	inner = bpf_map_lookup_elem(&mappings, &key);
	first = inner ? bpf_map_lookup_elem(inner, &zero) : NULL;
	if (first) {
		w->by_tables = true;
		w->mappings_stamp = first->bias;
	}
	jvm = bpf_map_lookup_elem(&jvms, &key);
	if (!jvm)
		return;
	w->by_tables = true;
	bpf_probe_read_kernel(&w->jvm, sizeof(w->jvm), jvm);
	w->code_low = -1;
	w->code_high = 0;
	for (i = 0; i < MAX_CODE_HEAPS; i++) {
		struct code_heap *heap = &w->jvm.heaps[i];

		if (i >= w->jvm.heap_count)
			break;
		if (heap->low < w->code_low)
			w->code_low = heap->low;
		if (heap->high > w->code_high)
			w->code_high = heap->high;
	}
	w->is_jvm = w->code_low < w->code_high;
}

/* Moves from a frame to its caller. Returns 0, or an enum walk_end if there is none. */
__noinline int step(struct walker *w)
{
	if (!w)
		return END_IMPLAUSIBLE;
	/* All frames except the first are return addresses, so user space looks them up at address - 1. The address
	   at which a signal has interrupted a frame is not a return address, so one is added to it here. */
	w->frame = (w->ip & ADDR_MASK) + (w->is_innermost && !w->is_first);
	w->is_first = false;
	w->depth++;
	if (w->is_jvm && in_code_cache(w, w->ip))
		return caller_in_code_cache(w);
	if (w->by_tables)
		return caller_of_native(w);
	/* Without uses_walk_data, the user has chosen frame pointers, so such steps are no guesses. */
	if (uses_walk_data)
		guess(w);
	return caller_by_fp(w);
}

static __always_inline __u64 mix(__u64 hash, __u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 29;
}

/* Returns the id of the stack with this hash. An id is always odd. Target 0 is for kernel stacks, which all
   processes share. */
static __always_inline __u64 stack_id(__u64 hash, __u64 target)
{
	return (target ? mix(hash, target) : hash) | 1;
}

/* Walks from the innermost frame as far as there are callers. Returns a hash of the frames. */
__noinline __u64 walk_frames(struct walker *w, struct walked *walked)
{
	bool has_interpreted = false;
	__u32 i;
	__u64 hash = 0;
	int why = 0;

	if (!w || !walked)
		return 0;
	prepare(w);
#ifdef FINDS_BREAKPOINTS
	if (w->by_exception)
		find_breakpoint(w);
#endif
#ifdef WALKS_PROBED
	w->ip = probed_address(w->ip);
#endif
	walked->target = w->key;
	walked->unloads = 0;
	for (i = 0; i < MAX_FRAMES && !why; i++) {
		why = step(w);
		has_interpreted |= (__s64)w->frame < 0;
		walked->frames[i & (MAX_FRAMES - 1)] = w->frame;
		hash = mix(hash, w->frame);
	}
	walked->count = i;
	walked->end = (why ? why : END_TOO_DEEP) | w->frames_before_guess << GUESS_SHIFT;
	if (w->is_jvm && w->jvm.unloads_at)
		read_user(&walked->unloads, sizeof(walked->unloads), w->jvm.unloads_at);
	/* A Method's address is valid in this JVM only, and may be that of another Method after classes were
	   unloaded. So the hash includes the key of the process and the number of unloaded classes. */
	if (has_interpreted)
		hash = mix(mix(hash, w->key), walked->unloads);
	return mix(hash, walked->end);
}

/* Returns this processor's walker for a level (see WALK_LEVELS), reset for a new stack. */
static __always_inline struct walker *begin_walk(__u64 key, struct walked *walked, __u32 level)
{
	struct walker *w = bpf_map_lookup_elem(&walkers, &level);

	walked->count = 0;
	walked->end = END_NONE;
	if (!w)
		return NULL;
	w->key = key;
	w->level = level;
	w->is_innermost = true;
	w->is_first = true;
	w->is_jvm = false;
	w->by_tables = false;
	w->is_deoptimizing = false;
#ifdef FINDS_BREAKPOINTS
	w->by_exception = false;
	w->is_at_breakpoint = false;
#endif
	w->depth = 0;
	w->frames_before_guess = 0;
	w->window_bytes = 0;
	return w;
}

/* Walks from the frame that has these registers. */
static __always_inline __u64 walk_from(struct walker *w, const bpf_user_pt_regs_t *regs,
				       struct walked *walked)
{
	w->ip = PT_REGS_IP(regs);
	w->sp = PT_REGS_SP(regs);
	w->fp = PT_REGS_FP(regs);
	copy_registers(&w->regs, regs);
	return walk_frames(w, walked);
}

/* Walks the stack of a thread in user mode that has these registers. Returns a hash of the stack. */
static __always_inline __u64 walk(const bpf_user_pt_regs_t *regs, __u64 key, struct walked *walked,
				  __u32 level)
{
	struct walker *w = begin_walk(key, walked, level);

	return w ? walk_from(w, regs, walked) : 0;
}

/* Completes a stack whose frames the kernel has written. `bytes` is the size of the frames, or negative after
   an error. Returns their hash. */
static __always_inline __u64 finish_kernel_walk(struct walked *walked, __u64 target, long bytes)
{
	__u64 hash = 0;
	__u32 i;

	walked->target = target;
	walked->unloads = 0;
	walked->end = END_OUTERMOST;
	walked->count = bytes <= 0 ? 0 : bytes / sizeof(__u64);
	for (i = 0; i < MAX_KERNEL_FRAMES; i++) {
		if (i >= walked->count)
			break;
		hash = mix(hash, walked->frames[i]);
	}
	return hash;
}

/*
 * Makes the kernel walk a stack of the current thread. With BPF_F_USER_STACK in `flags`, this is the user
 * stack, walked by frame pointers. Without it, this is the kernel stack; `target` is then 0, because all
 * processes share the ids of kernel stacks.
 */
static __always_inline __u64 walk_by_kernel(void *ctx, __u64 target, __u64 flags,
					    struct walked *walked)
{
	return finish_kernel_walk(walked, target,
				  bpf_get_stack(ctx, walked->frames,
						MAX_KERNEL_FRAMES * sizeof(__u64), flags));
}

/*
 * Walks the user stack of the current task, which is in the kernel, from the registers with which it entered.
 * They lie at the top of its kernel stack. If no helper can read them, the kernel walks by frame pointers.
 * For a kernel thread, the result is END_NONE.
 */
static __always_inline __u64 walk_task(void *ctx, __u64 key, struct walked *walked, __u32 level)
{
	bpf_user_pt_regs_t *regs;
	struct walker *w;

	if (!has_user_registers)
		return walk_by_kernel(ctx, key, BPF_F_USER_STACK, walked);
	w = begin_walk(key, walked, level);
	if (!w)
		return 0;
	/* The registers are stored in the buffer for code, because the BPF stack has no space for them. */
	regs = (void *)w->bytes;
	_Static_assert(sizeof(*regs) <= sizeof(w->bytes), "registers fit into the buffer");
	bpf_probe_read_kernel(regs, sizeof(*regs),
			      (void *)bpf_task_pt_regs(bpf_get_current_task_btf()));
	if (!PT_REGS_IP(regs) || !in_user_mode(regs))
		return 0;
#ifdef FINDS_BREAKPOINTS
	w->by_exception = saved_by_exception(regs) && uprobe_task();
#endif
	return walk_from(w, regs, walked);
}

#endif

/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Compiles the kernel side's stack walker for user space, from the sources that run in the kernel. Only the
 * helpers and maps differ: they get the walker's data from callbacks, which read a recording or a live
 * process.
 *
 * Data that are per CPU in BPF are per thread here, because each thread does one walk at a time.
 */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <linux/bpf.h>
#include <linux/bpf_perf_event.h>
#include <bpf/bpf_helpers.h>
#include "walk/walk.h"

#define WALKS_PROBED
/* BPF's settings are `const volatile`, and user space writes them before loading. Here they are variables. */
#define const
#include "walk/walk.bpf.h"
#undef const

/* Callbacks that provide the walker's data. They return 0, or another value if the requested data do not
   exist. */
struct source {
	void *context;
	int (*read)(void *context, void *to, __u32 size, __u64 addr);
	/* The first mapping holds the number of mappings after it. */
	int (*mapping)(void *context, __u32 index, struct mapping *to);
	int (*row)(void *context, __u32 table, __u32 index, struct unwind_row *to);
	struct jvm *jvm;
};

/* Registers from which a walk starts. */
struct start {
	__u64 ip;
	__u64 sp;
	__u64 fp;
	/* the content of struct registers, which may be smaller */
	__u64 others[OTHER_REGISTERS];
};

static __thread const struct source *source;
static __thread struct walker own_walker;
static __thread struct cached_address cached_addresses[WALK_LEVELS * CACHE_SLOTS];
/* Results of map look-ups, to which the walker holds pointers; never more than four at a time. */
static __thread struct mapping mapping_slots[4];
static __thread struct unwind_row row_slots[4];
static __thread unsigned next_slot;
static __thread __u32 current_table;
/* The addresses of these two variables represent the inner maps. */
static char inner_mappings, inner_rows;

static void *bpf_map_lookup_elem(void *map, const void *key)
{
	unsigned slot = next_slot++ % 4;
	__u32 index = 0;

	if (map == &walkers)
		return &own_walker;
	if (map == &jvms)
		return source->jvm;
	if (map == &mappings)
		return &inner_mappings;
	memcpy(&index, key, sizeof(index));
	if (map == &address_cache)
		return &cached_addresses[index];
	if (map == &tables) {
		current_table = index;
		return &inner_rows;
	}
	if (map == &inner_mappings)
		return source->mapping(source->context, index, &mapping_slots[slot]) ?
			       NULL :
			       &mapping_slots[slot];
	if (map == &inner_rows)
		return source->row(source->context, current_table, index, &row_slots[slot]) ?
			       NULL :
			       &row_slots[slot];
	return NULL;
}

static long bpf_probe_read_user(void *to, __u32 size, const void *addr)
{
	if (!source->read(source->context, to, size, (__u64)addr))
		return 0;
	/* The kernel's helper clears the buffer on failure, too. */
	memset(to, 0, size);
	return -EFAULT;
}

static long bpf_probe_read_kernel(void *to, __u32 size, const void *addr)
{
	memcpy(to, addr, size);
	return 0;
}

/* The following helpers are never called here: walk_task() is not used, and task_utask is 0. */
static long bpf_get_stack(void *context, void *to, __u32 size, __u64 flags)
{
	return -EINVAL;
}

static __u64 bpf_get_current_task(void)
{
	return 0;
}

static void *bpf_get_current_task_btf(void)
{
	return NULL;
}

static long bpf_task_pt_regs(void *task)
{
	return 0;
}

static struct walker *begin(const struct source *from, __u64 key, const struct start *start,
			    struct walked *walked)
{
	struct walker *w = begin_walk(key, walked, 0);

	_Static_assert(sizeof(w->regs) <= sizeof(start->others), "registers fit into the buffer");
	source = from;
	uses_walk_data = true;
	w->ip = start->ip;
	w->sp = start->sp;
	w->fp = start->fp;
	memcpy(&w->regs, start->others, sizeof(w->regs));
	return w;
}

/* Walks a stack of the process as a BPF program does. Returns the stack's id. */
__u64 harness_walk(const struct source *from, __u64 key, const struct start *start,
		   struct walked *walked)
{
	__u64 hash = walk_frames(begin(from, key, start, walked), walked);

	return stack_id(hash, key);
}

/* Registers of a frame. */
struct frame_registers {
	__u64 ip;                   /* the address at which the frame continues */
	__u64 sp;
	__u64 fp;
};

/*
 * Walks a stack and stores the registers of each of at most MAX_FRAMES frames. Returns the number of frames,
 * which is that of harness_walk().
 */
__u32 harness_trail(const struct source *from, const struct start *start,
		    struct frame_registers *trail)
{
	static __thread struct walked walked;
	struct walker *w = begin(from, 1, start, &walked);
	__u32 count = 0;

	prepare(w);
	while (count < MAX_FRAMES) {
		trail[count].ip = w->ip;
		trail[count].sp = w->sp;
		trail[count++].fp = w->fp;
		if (step(w))
			break;
	}
	return count;
}

/* Finds the blob of the code cache at an address. Stores its begin, end and kind, the address of its name, a
   method's verified entry, OSR entry and deoptimization handler, and the address of the blob's identity. */
void harness_blob(const struct source *from, __u64 addr, __u64 found[8])
{
	static __thread struct walked walked;
	const struct start nowhere = {};
	struct walker *w = begin(from, 1, &nowhere, &walked);

	prepare(w);
	find_blob(w, addr);
	found[0] = w->blob.begin;
	found[1] = w->blob.end;
	found[2] = w->blob.kind;
	found[3] = w->blob.kind == BLOB_NONE ? 0 : field64(w, w->jvm.name);
	found[4] = w->blob.verified_entry;
	found[5] = w->blob.osr_entry;
	found[6] = w->blob.deopt_handler;
	found[7] = w->blob.identity_at;
}

/* Returns the sizes of the structures that Rust mirrors. */
void harness_sizes(__u64 sizes[5])
{
	sizes[0] = sizeof(struct source);
	sizes[1] = sizeof(struct start);
	sizes[2] = sizeof(struct walked);
	sizes[3] = sizeof(struct mapping);
	sizes[4] = sizeof(struct jvm);
}

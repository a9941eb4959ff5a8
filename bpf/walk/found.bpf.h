/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What was found of return addresses before: in which piece of the code cache one lies, or which row
 * of an unwind table holds there. Most frames of a stack were on the last one as well, and to find
 * that out again is half of what a walk takes.
 *
 * Each has its place in a table, that of others as well: the last one keeps it. It is kept with a
 * stamp that user space gives to each JVM and each list of mappings, and never again; so what a
 * process has mapped anew is found anew. In the code cache other code may come to be at the same
 * address: whoever finds a blob here looks into the JVM whether it is the same still.
 */
#ifndef JVMPROBE_WALK_FOUND_BPF_H
#define JVMPROBE_WALK_FOUND_BPF_H

#include "state.bpf.h"

#define FOUND_SLOT_BITS 9
#define FOUND_SLOTS (1 << FOUND_SLOT_BITS)

struct found {
	__u64 stamp;
	__u64 ip;
	/* The one or the other, by what the stamp is of. */
	union {
		struct blob blob;
		__u64 row;
	};
};

/* Each level has its own: what is half written is seen by nobody. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WALK_LEVELS * FOUND_SLOTS);
	__type(key, __u32);
	__type(value, struct found);
} found_code SEC(".maps");

/* The place of a frame's address; NULL for the innermost one, which is hardly seen twice. */
static __always_inline struct found *found_place(struct walker *w, __u64 stamp)
{
	__u32 place = (w->ip * 0x9e3779b97f4a7c15ULL) >> (64 - FOUND_SLOT_BITS);

	if (w->is_innermost || !stamp)
		return NULL;
	place += w->level * FOUND_SLOTS;
	return bpf_map_lookup_elem(&found_code, &place);
}

static __always_inline bool is_found(const struct found *place, const struct walker *w, __u64 stamp)
{
	return place->stamp == stamp && place->ip == w->ip;
}

static __always_inline void keep_found(struct found *place, const struct walker *w, __u64 stamp)
{
	place->ip = w->ip;
	place->stamp = stamp;
}

#endif

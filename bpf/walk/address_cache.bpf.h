/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Cache that maps a return address to its blob in the code cache or, in native code, to its row of an unwind
 * table. Most frames of a stack were also on the stack that was walked before, and resolving them again would
 * take half the time of a walk.
 *
 * The cache is direct-mapped: a new entry replaces the old one in its slot. Each entry has a stamp, which user
 * space assigns to one JVM or one list of mappings and never reuses, so entries of a process whose mappings
 * have changed are no longer valid. HotSpot may later place other code at an address in the code cache. So
 * find_own_blob() checks in the JVM's memory that the blob there is still the cached one.
 */
#ifndef JVMPROBE_WALK_ADDRESS_CACHE_BPF_H
#define JVMPROBE_WALK_ADDRESS_CACHE_BPF_H

#include "state.bpf.h"

#define CACHE_SLOT_BITS 9
#define CACHE_SLOTS (1 << CACHE_SLOT_BITS)

struct cached_address {
	__u64 stamp;
	__u64 ip;
	/* `blob` if the stamp is that of a JVM, `row` if it is that of a list of mappings. */
	union {
		struct blob blob;
		__u64 row;
	};
};

/* Each level (see WALK_LEVELS) has slots of its own, so that no program reads an entry while a program that
   it interrupted is writing it. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WALK_LEVELS * CACHE_SLOTS);
	__type(key, __u32);
	__type(value, struct cached_address);
} address_cache SEC(".maps");

/* Returns the slot of the current frame's address; NULL if the stamp is 0, and for the innermost frame, whose
   address rarely recurs. */
static __always_inline struct cached_address *cache_slot(struct walker *w, __u64 stamp)
{
	__u32 slot = (w->ip * 0x9e3779b97f4a7c15ULL) >> (64 - CACHE_SLOT_BITS);

	if (w->is_innermost || !stamp)
		return NULL;
	slot += w->level * CACHE_SLOTS;
	return bpf_map_lookup_elem(&address_cache, &slot);
}

static __always_inline bool is_cached(const struct cached_address *slot, const struct walker *w,
				      __u64 stamp)
{
	return slot->stamp == stamp && slot->ip == w->ip;
}

static __always_inline void store_cached(struct cached_address *slot, const struct walker *w,
					 __u64 stamp)
{
	slot->ip = w->ip;
	slot->stamp = stamp;
}

#endif

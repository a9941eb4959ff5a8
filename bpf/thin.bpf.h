/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Sampling of events that occur up to a hundred thousand times per second, too often to walk a stack for each.
 *
 * If a time window had more than PER_WINDOW events, only one in n is kept in the next window, with n chosen
 * so that about PER_WINDOW remain. The choice is random, not every n-th event, because programs have periodic
 * behaviour. A kept event represents itself and all that were left out since the last kept one, so the sum
 * is always exact, and the shares of the stacks are those of a random sample. Events with a label have a sum
 * for each label, which is exact, too.
 */
#ifndef JVMPROBE_THIN_BPF_H
#define JVMPROBE_THIN_BPF_H

#include "javaprof.h"
#include "jvm.bpf.h"

/* Length of a window: 2^26 ns, 67 ms. */
#define WINDOW_SHIFT 26
/* Target number of events per window, about 950 per second. */
#define PER_WINDOW 64

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 14);
	__type(key, struct thin_key);
	__type(value, struct thin);
} thinned SEC(".maps");

static const struct thin not_thinned = { .one_in = 1 };

static __always_inline struct thin *thin_of(const struct thin_key *key)
{
	struct thin *thin = bpf_map_lookup_elem(&thinned, key);

	if (thin)
		return thin;
	bpf_map_update_elem(&thinned, key, &not_thinned, BPF_NOEXIST);
	return bpf_map_lookup_elem(&thinned, key);
}

/* Several processors may run this at the same time; a window is then a little longer or shorter. */
static __always_inline void count_hit(struct thin *rate)
{
	__u64 window = bpf_ktime_get_ns() >> WINDOW_SHIFT;

	if (rate->window != window) {
		rate->one_in = rate->hits / PER_WINDOW;
		rate->hits = 0;
		rate->window = window;
	}
	__sync_fetch_and_add(&rate->hits, 1);
	/* A burst raises one_in at once, not only in the next window, so that fewer events are kept. */
	if (rate->hits > 4 * PER_WINDOW && rate->one_in < rate->hits / PER_WINDOW)
		rate->one_in = rate->hits / PER_WINDOW;
}

/* Returns the value that an event of `value` represents, including events left out before it; 0 if it is left out. */
static __always_inline __u64 thin(__u64 target, __u32 event, __u64 label, __u64 value)
{
	struct thin_key key = { .target = target, .event = event };
	struct thin *rate = thin_of(&key), *own = rate;
	__u64 one_in;

	if (!rate)
		return value;
	if (label) {
		key.label = label;
		own = thin_of(&key);
		/* If the map is full, the label shares the sum of the event. */
		if (!own)
			own = rate;
	}
	count_hit(rate);
	one_in = rate->one_in;
	if (one_in > 1 && bpf_get_prandom_u32() % (__u32)one_in) {
		__sync_fetch_and_add(&own->pending, value);
		return 0;
	}
	if (!own->pending)
		return value;
	return value + __sync_lock_test_and_set(&own->pending, 0);
}

#endif

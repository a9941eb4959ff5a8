/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Reads HotSpot's own counters at the time of an event. */
#ifndef JVMPROBE_GAUGE_BPF_H
#define JVMPROBE_GAUGE_BPF_H

#include "gauge.h"
#include "jvm.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct gauge);
} gauges SEC(".maps");

/*
 * Returns the number of free words in the free lists of CMS's old generation, one list per block size. Not
 * static, so that the verifier checks the loop once instead of at every call.
 */
__noinline __u64 words_in_lists(__u64 first, __u64 stride)
{
	__u64 sum = 0, i;

	for (i = 0; i < FREE_LISTS; i++)
		sum += i * read_u64(first + i * stride);
	return sum;
}

/*
 * Returns the bytes of heap in use now: the sum of the target's own counters as described by user space.
 * UNKNOWN if there is no description yet.
 */
static __always_inline __u64 heap_used(const struct gauge *gauge)
{
	__u64 sum = 0;
	int i;

	if (!gauge || !gauge->terms_used)
		return UNKNOWN;
	for (i = 0; i < GAUGE_TERMS; i++) {
		const struct gauge_term *term = &gauge->terms[i];
		__u64 base;

		if (i >= gauge->terms_used)
			break;
		if (term->kind == TERM_FREE_LISTS) {
			sum -= 8 * words_in_lists(term->addr, term->plus);
			continue;
		}
		base = read_u64(term->addr);
		if (term->kind == TERM_DIRECT) {
			sum += base;
			continue;
		}
		if (term->kind == TERM_FREE) {
			sum -= 8 * base;
			continue;
		}
		/* A space that does not exist yet has no used bytes. */
		if (!base || base == term->none)
			continue;
		sum += read_u64(base + term->plus);
		if (term->kind == TERM_SPAN)
			sum -= read_u64(base + term->minus);
	}
	return sum;
}

/* Returns the used bytes that the collector recorded at the end of its last collection; UNKNOWN if it records none. */
static __always_inline __u64 heap_at_gc_end(const struct gauge *gauge)
{
	__u64 sum = 0;
	int i;

	if (!gauge->used_at_gc_end[0])
		return UNKNOWN;
	for (i = 0; i < GAUGE_SPACES && gauge->used_at_gc_end[i]; i++)
		sum += read_u64(gauge->used_at_gc_end[i]);
	return sum;
}

#endif

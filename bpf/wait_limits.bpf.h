/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Limits on the waits of each JVM that are recorded one by one. Included by javawait.bpf.c after offcpu.bpf.h.
 *
 * A JVM may have a hundred thousand waits per second, and each costs some microseconds for walking its stack, sending it
 * and reporting it. If the JVM's control group exceeds its share of CPU time, user space sets a limit, and a random part of
 * the waits is left out. If the ring buffer is half full, JVMs with many waits leave out the rest of them, so that the
 * buffer has space for those of other JVMs.
 *
 * A recorded wait also carries the number and the total length of those of similar length that were left out before it,
 * so all sums stay true. Waits of similar length are added up separately, because otherwise the length of few long waits
 * would count as that of many short ones.
 */
#ifndef JVMPROBE_WAIT_LIMITS_BPF_H
#define JVMPROBE_WAIT_LIMITS_BPF_H

/* Whether the JVMs have limits; set by a daemon. */
const volatile bool has_limits = false;

/*
 * From this length on, 2^28 ns, waits are recorded unless nearly all are left out: they are few. Up to JDK 23, a thread that
 * waits for a monitor wakes up once per second and goes on waiting. User space joins these parts, and counts the wait when it
 * ends; the sums would count the parts of a wait that has not ended.
 */
#define LONG_SHIFT 28
/* Number of waits in 2^32 that are left out if nearly all are. */
#define NEARLY_ALL 0xfc000000

/* Length of a window: 2^26 ns, 67 ms. */
#define WINDOW_SHIFT 26
/* A JVM with at most this many waits per window, about 240 per second, may use the second half of the ring buffer. */
#define FEW_PER_WINDOW 16

/* The limits, by JVM. User space adds and changes the entries. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct wait_limits);
} limits_of SEC(".maps");

/* Waits that were left out, by JVM. User space adds the entries and sets the size of the map. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct left_out);
} left_out_of SEC(".maps");

struct wait_limits unused_limits;
struct left_out unused_left_out;

static __always_inline struct left_out *left_out_for(__u64 key)
{
	return has_limits ? bpf_map_lookup_elem(&left_out_of, &key) : NULL;
}

/* Returns the sum that a wait of this length belongs to; each one spans a factor of four, from 65 us on. */
static __always_inline struct wait_sum *sum_for(struct left_out *left_out, __u64 ns)
{
	__u32 class = 0;

	ns >>= 16;
	for (int i = 0; i < WAIT_LENGTHS - 1; i++) {
		if (ns) {
			ns >>= 2;
			class++;
		}
	}
	barrier_var(class);
	return &left_out->sums[class & (WAIT_LENGTHS - 1)];
}

static __always_inline void add_to_sum(struct left_out *left_out, __u64 ns)
{
	struct wait_sum *sum;

	/* A shorter wait is recorded only because it may belong to the last one. */
	if (ns < min_wait)
		return;
	sum = sum_for(left_out, ns);
	__sync_fetch_and_add(&sum->waits, 1);
	__sync_fetch_and_add(&sum->ns, ns);
}

/* Counts a wait. Returns whether the JVM has many of them. Several processors may run this at the same time; a window then
   has a few more waits. */
static __always_inline bool has_many(struct left_out *left_out, __u64 now)
{
	__u64 window = now >> WINDOW_SHIFT;

	if (left_out->window != window) {
		left_out->hits = 0;
		left_out->window = window;
	}
	__sync_fetch_and_add(&left_out->hits, 1);
	return left_out->hits > FEW_PER_WINDOW;
}

static __always_inline bool is_half_full(void)
{
	return bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) >
	       bpf_ringbuf_query(&events, BPF_RB_RING_SIZE) / 2;
}

/* Decides whether a wait that ends now is left out. If so, adds it to the sums. */
static __always_inline bool leaves_out(__u64 key, struct left_out *left_out, __u64 now, __u64 ns)
{
	struct wait_limits *limits = bpf_map_lookup_elem(&limits_of, &key);
	__u32 unrecorded = limits ? limits->unrecorded : 0;
	bool is_kept = ns >> LONG_SHIFT && unrecorded < NEARLY_ALL;
	bool over = unrecorded && !is_kept && bpf_get_prandom_u32() < unrecorded;

	if (!(has_many(left_out, now) && is_half_full()) && !over)
		return false;
	__sync_fetch_and_add(&left_out->waits, 1);
	add_to_sum(left_out, ns);
	return true;
}

/* Moves the sums of waits of similar length to a recorded wait. */
static __always_inline void take_sum(struct left_out *left_out, __u64 ns, struct wait_sum *to)
{
	struct wait_sum *sum;

	if (ns < min_wait)
		return;
	sum = sum_for(left_out, ns);
	if (!sum->waits)
		return;
	to->waits = __sync_lock_test_and_set(&sum->waits, 0);
	to->ns = __sync_lock_test_and_set(&sum->ns, 0);
}

#endif

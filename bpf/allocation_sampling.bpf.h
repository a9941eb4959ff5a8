/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Sampling of allocations that come too fast for every stack to be walked and named. The sampled allocations
 * also represent those that are left out.
 *
 * All bytes that a JVM allocates form a line, one allocation after the other. The line is divided into pieces
 * of 2^shift bytes, and one random byte of each piece is chosen. An allocation that contains chosen bytes is
 * sampled and represents the pieces of these bytes. So large allocations are sampled more often, and the
 * bytes of each class and stack are correct within the sampling error. With pieces of one byte, every
 * allocation is sampled and represents itself. With larger pieces, the sum of the bytes that the samples
 * represent may be above or below the number of bytes allocated. User space reads both numbers for each
 * thread (`represented_bytes` and `counted` of struct thread_state).
 *
 * Each hit of a probe costs time, even if its allocation is not sampled. If the hits cost too much, user
 * space attaches the probe only during on periods. A hit in an on period has a weight, because it also
 * represents hits of the preceding off period. The length of its allocation on the line is the number of
 * bytes multiplied by this weight.
 */
#ifndef JVMPROBE_ALLOCATION_SAMPLING_BPF_H
#define JVMPROBE_ALLOCATION_SAMPLING_BPF_H

/* Target number of samples of each JVM per window of 2^29 ns (0.54 s); 0: no limit. User space adapts it. */
__u32 stacks_wanted = 0;
#define WINDOW_SHIFT 29
/* Maximum size of a piece: 2^40 bytes, 1 TiB. */
#define MAX_PIECE_SHIFT 40

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct sampling_state);
} sampling_states SEC(".maps");

/* Duty cycles of probes that are, or were, attached for a part of the time only. Written by user space only. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct duty_cycles);
} duties SEC(".maps");

static const struct sampling_state no_sampling_state;
/* The weight of a hit that represents itself. */
#define ONE 256

/* How one hit counts. */
struct hit_weight {
	__u64 weight;           /* number of hits that it represents, in 256ths; 0: it is ignored */
	bool may_skip;          /* earlier hits of the thread may have been missed in off periods */
	bool is_cycled;         /* at least one of the JVM's probes has a duty cycle at present */
	__u64 outside_per_tlab; /* see struct duty_cycles; for a JVM with a duty cycle only */
};
static const struct hit_weight represents_itself = { .weight = ONE };

static __always_inline struct sampling_state *sampling_state_of(__u64 target)
{
	struct sampling_state *state = bpf_map_lookup_elem(&sampling_states, &target);

	if (state)
		return state;
	bpf_map_update_elem(&sampling_states, &target, &no_sampling_state, BPF_NOEXIST);
	return bpf_map_lookup_elem(&sampling_states, &target);
}

/* Returns how a hit counts. If `outside`, the probe for objects outside of TLABs was hit, else the probe for
   new TLABs. If samples are limited and the hit is not ignored, adds it to the number of hits. */
static __always_inline struct hit_weight weigh_hit(__u64 target, bool outside)
{
	struct hit_weight hit = represents_itself;
	struct duty_cycles *cycles;
	struct duty_cycle *own;
	struct sampling_state *state;

	if (!stacks_wanted)
		return hit;
	cycles = bpf_map_lookup_elem(&duties, &target);
	if (cycles) {
		own = outside ? &cycles->outside : &cycles->tlab;
		hit.may_skip = true;
		hit.is_cycled = cycles->outside.on_until_ns != ALWAYS_ON ||
				cycles->tlab.on_until_ns != ALWAYS_ON;
		hit.outside_per_tlab = cycles->outside_per_tlab;
		hit.weight = own->weight;
		if (own->on_until_ns != ALWAYS_ON && bpf_ktime_get_ns() >= own->on_until_ns)
			hit.weight = 0;
	}
	state = hit.weight ? sampling_state_of(target) : NULL;
	if (state && outside)
		__sync_fetch_and_add(&state->outside_hits, 1);
	else if (state)
		__sync_fetch_and_add(&state->tlab_hits, 1);
	return hit;
}

static __always_inline __u64 weighted(__u64 bytes, const struct hit_weight *hit)
{
	return (bytes * hit->weight) / ONE;
}

/* Returns the log2 of a piece size with which `bytes` hold at most `wanted` pieces. */
static __always_inline __u32 piece_shift(__u64 bytes, __u64 wanted)
{
	__u64 each = bytes / wanted;
	__u32 shift = 0, bits;

	for (bits = 32; bits; bits >>= 1) {
		if (each >> bits) {
			each >>= bits;
			shift += bits;
		}
	}
	return shift + 1 < MAX_PIECE_SHIFT ? shift + 1 : MAX_PIECE_SHIFT;
}

/* Adapts the piece size once per window. Several processors may update it at once; a window is then a little
   longer or shorter. */
static __always_inline void adapt_piece(struct sampling_state *state, __u64 end, __u64 wanted)
{
	__u64 window = bpf_ktime_get_ns() >> WINDOW_SHIFT, bytes = end - state->before;
	__u32 shift;

	if (state->window != window) {
		shift = state->hits > wanted ? piece_shift(bytes, wanted) : 0;
		/* Shrinking by one step is ignored, to avoid oscillation. */
		if (!shift || shift > state->shift || shift + 1 < state->shift)
			state->shift = shift;
		state->before = end;
		state->hits = 0;
		state->window = window;
	}
	__sync_fetch_and_add(&state->hits, 1);
	/* A burst changes the size at once, not with the next window. */
	if (state->hits > 4 * wanted) {
		shift = piece_shift(bytes, wanted);
		if (state->shift < shift)
			state->shift = shift;
	}
}

/* Returns the number of chosen bytes before the offset `at` of the line. */
static __always_inline __u64 chosen_before(__u64 at, __u32 shift)
{
	__u64 piece = at >> shift, within = at - (piece << shift);
	__u64 chosen = mix(piece, shift) & ((1ULL << shift) - 1);

	return piece + (within > chosen);
}

/* Returns the number of bytes that an allocation of `length` bytes of the line represents; 0 if it is not sampled. */
static __always_inline __u64 bytes_represented(__u64 target, __u64 length)
{
	__u64 wanted = stacks_wanted, begin, all;
	struct sampling_state *state;
	__u32 shift;

	if (!wanted)
		return length;
	state = sampling_state_of(target);
	if (!state)
		return length;
	begin = __sync_fetch_and_add(&state->line, length);
	adapt_piece(state, begin + length, wanted);
	shift = state->shift;
	if (shift > MAX_PIECE_SHIFT)
		return length;
	all = chosen_before(begin + length, shift) - chosen_before(begin, shift);
	return all << shift;
}

#endif

/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Allocations that come too fast for each one's stack to be walked and named: some are taken, and
 * stand for all.
 *
 * All bytes that a JVM allocates lie on a line, one allocation behind the other. In each piece of
 * 2^shift bytes one byte is chosen by chance. An allocation that has chosen bytes is taken, and
 * stands for their pieces: so large ones are taken more often, and each class and stack has the
 * bytes that are its own, within a sample's error. With pieces of one byte each allocation is taken
 * and stands for itself. What was taken is more or less than what there was: of each thread user space
 * is told of both.
 *
 * Where even the hits cost too much, user space attaches a probe for a part of the time only. One
 * that is heard in such a spell has a weight: it stands for those that came before the spell, too,
 * and is that much longer on the line.
 */
#ifndef JVMPROBE_FLOOD_BPF_H
#define JVMPROBE_FLOOD_BPF_H

/* Of a JVM so many are taken within 2^29 ns, half a second; 0: all. User space adapts it. */
__u32 stacks_wanted = 0;
#define WINDOW_SHIFT 29
/* Pieces are not larger: 1 TiB. */
#define MAX_PIECE_SHIFT 40

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct flood);
} floods SEC(".maps");

/* Of those that are not listened to all the time. User space alone writes it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct spells);
} spells_of SEC(".maps");

static const struct flood no_flood;
/* The weight of what stands for itself. */
#define ONE 256

/* How a hit is heard. */
struct heard {
	__u64 weight;           /* for so many, in 256ths, it stands; 0: it is not heard */
	__u64 silences;         /* so many there were before */
	bool in_spell;          /* whether others are not heard, of this probe or the other */
};
static const struct heard as_always = { .weight = ONE };

static __always_inline struct flood *flood_of(__u64 target)
{
	struct flood *flood = bpf_map_lookup_elem(&floods, &target);

	if (flood)
		return flood;
	bpf_map_update_elem(&floods, &target, &no_flood, BPF_NOEXIST);
	return bpf_map_lookup_elem(&floods, &target);
}

/* How a hit of one of the probes is heard. */
static __always_inline struct heard hear(__u64 target, bool outside)
{
	struct heard heard = as_always;
	struct spell *spell;
	struct spells *spells;
	struct flood *flood;

	if (!stacks_wanted)
		return heard;
	spells = bpf_map_lookup_elem(&spells_of, &target);
	if (spells) {
		spell = outside ? &spells->outside : &spells->tlab;
		heard.silences = spells->silences;
		heard.in_spell = spells->outside.until_ns != ~0ULL || spells->tlab.until_ns != ~0ULL;
		heard.weight = spell->weight;
		if (spell->until_ns != ~0ULL && bpf_ktime_get_ns() >= spell->until_ns)
			heard.weight = 0;
	}
	flood = heard.weight ? flood_of(target) : NULL;
	if (flood && outside)
		__sync_fetch_and_add(&flood->outside_hits, 1);
	else if (flood)
		__sync_fetch_and_add(&flood->tlab_hits, 1);
	return heard;
}

static __always_inline __u64 weighted(__u64 bytes, const struct heard *heard)
{
	return (bytes * heard->weight) / ONE;
}

/* Pieces of so many bytes that there are not more than are wanted. */
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

/* Several processors may be here at once: then a window is a little longer or shorter. */
static __always_inline void adapt_piece(struct flood *flood, __u64 end, __u64 wanted)
{
	__u64 window = bpf_ktime_get_ns() >> WINDOW_SHIFT, bytes = end - flood->before;
	__u32 shift;

	if (flood->window != window) {
		shift = flood->hits > wanted ? piece_shift(bytes, wanted) : 0;
		/* Back and forth is of no use. */
		if (!shift || shift > flood->shift || shift + 1 < flood->shift)
			flood->shift = shift;
		flood->before = end;
		flood->hits = 0;
		flood->window = window;
	}
	__sync_fetch_and_add(&flood->hits, 1);
	/* It begins at once, not with the next window. */
	if (flood->hits > 4 * wanted) {
		shift = piece_shift(bytes, wanted);
		if (flood->shift < shift)
			flood->shift = shift;
	}
}

/* How many chosen bytes there are before a place. */
static __always_inline __u64 chosen_before(__u64 at, __u32 shift)
{
	__u64 piece = at >> shift, within = at - (piece << shift);
	__u64 chosen = mix(piece, shift) & ((1ULL << shift) - 1);

	return piece + (within > chosen);
}

/* For how many bytes an allocation stands that is so long on the line; 0 if it is left out. */
static __always_inline __u64 stands_for(__u64 target, __u64 length)
{
	__u64 wanted = stacks_wanted, begin, all;
	struct flood *flood;
	__u32 shift;

	if (!wanted)
		return length;
	flood = flood_of(target);
	if (!flood)
		return length;
	begin = __sync_fetch_and_add(&flood->line, length);
	adapt_piece(flood, begin + length, wanted);
	shift = flood->shift;
	if (shift > MAX_PIECE_SHIFT)
		return length;
	all = chosen_before(begin + length, shift) - chosen_before(begin, shift);
	return all << shift;
}

#endif

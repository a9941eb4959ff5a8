/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Finds the caller of a native frame, by the unwind table (rows of .eh_frame, prepared by user space) of the file that
 * is mapped at its address. If there is no table, or no row for the address, the stack is searched for a word that
 * looks like a return address; such a step is marked as a guess.
 */
#ifndef JVMPROBE_WALK_NATIVE_BPF_H
#define JVMPROBE_WALK_NATIVE_BPF_H

#include "arch.bpf.h"
#include "blob.bpf.h"

#define SCAN_WORDS 32           /* number of words searched; a power of two */
#define MAX_MAPPING_STEPS 14
#define MAX_ROW_STEPS 23

/*
 * The templates of inner maps specify sizes instead of types, so that they have no BTF, like the maps that
 * user space creates. Linux 5.15 to 6.1 distinguish a map without BTF from one whose BTF type has no timer,
 * and reject an inner map that differs from its template in this respect (kernel/bpf/map_in_map.c,
 * bpf_map_meta_equal).
 */
struct mapping_array {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct mapping));
};

/* Mappings of each process, sorted by address; indexed by target_key(). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, MAX_PROCESSES);
	__type(key, __u64);
	__array(values, struct mapping_array);
} mappings SEC(".maps");

struct row_array {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct unwind_row));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_TABLES);
	__type(key, __u32);
	__array(values, struct row_array);
} tables SEC(".maps");

/* Sets w->mapping to the mapping that contains an address. Returns whether there is one. */
__noinline int find_mapping(struct walker *w, __u64 addr)
{
	struct mapping *m;
	__u32 low = 1, high, zero = 0, i;
	void *inner;
	__u64 key;

	if (!w)
		return 0;
	if (addr - w->mapping.start < w->mapping.end - w->mapping.start)
		return 1;
	key = w->key;
	inner = bpf_map_lookup_elem(&mappings, &key);
	if (!inner)
		return 0;
	m = bpf_map_lookup_elem(inner, &zero);
	if (!m)
		return 0;
	/* The last mapping that begins at or before the address is in [low - 1, high). */
	high = m->start + 1;
	for (i = 0; i < MAX_MAPPING_STEPS && low < high; i++) {
		__u32 middle = (low + high) / 2;

		m = bpf_map_lookup_elem(inner, &middle);
		if (m && m->start <= addr)
			low = middle + 1;
		else
			high = middle;
	}
	low--;
	m = low ? bpf_map_lookup_elem(inner, &low) : NULL;
	if (!m || addr >= m->end || addr < m->start)
		return 0;
	w->mapping = *m;
	return 1;
}

/* Returns the row that applies to an address of w->mapping, as a 64-bit number; 0 if there is none. */
__noinline __u64 find_row(struct walker *w, __u64 addr)
{
	__u32 low = 0, high, table, i;
	struct unwind_row *row;
	void *inner;

	if (!w || addr - w->mapping.bias > 0xffffffff)
		return 0;
	addr -= w->mapping.bias;
	table = w->mapping.table;
	high = w->mapping.rows;
	inner = bpf_map_lookup_elem(&tables, &table);
	if (!inner)
		return 0;
	for (i = 0; i < MAX_ROW_STEPS && low < high; i++) {
		__u32 middle = (low + high) / 2;

		row = bpf_map_lookup_elem(inner, &middle);
		if (row && row->pc <= addr)
			low = middle + 1;
		else
			high = middle;
	}
	if (!low)
		return 0;
	low--;
	row = bpf_map_lookup_elem(inner, &low);
	return row ? *(__u64 *)row : 0;
}

#ifdef FINDS_BREAKPOINTS

/* Returns whether code is mapped at an address. */
static __always_inline bool is_code(struct walker *w, __u64 addr)
{
	return (w->is_jvm && in_code_cache(w, addr)) || find_mapping(w, addr);
}

/*
 * Detects a thread that has just hit a probe's breakpoint. If ip is still after the breakpoint, decreases it
 * by one, as the kernel will do. But ip is also after the breakpoint if the kernel has already emulated the
 * probed instruction, and this instruction is a push that is one byte long. In that case, the top of the
 * stack is the pushed value and not a return address, and ip is not changed.
 */
__noinline int find_breakpoint(struct walker *w)
{
	__u8 code[2];
	__u64 top = 0;

	if (!w || read_user(code, sizeof(code), w->ip - 1))
		return 0;
	w->is_at_breakpoint = code[1] == BREAKPOINT;
	if (code[0] == BREAKPOINT && !w->is_at_breakpoint &&
	    !read_user(&top, sizeof(top), w->sp) && is_code(w, top)) {
		w->ip--;
		w->is_at_breakpoint = true;
	}
	return 0;
}

/*
 * Returns 1 if the kernel has emulated the push at ip and not yet moved ip, else 0. Valid only if, according
 * to the unwind row, the frame contains nothing but the return address.
 */
__noinline int emulated_words(struct walker *w)
{
	__u64 top[2];

	return w && w->is_at_breakpoint && w->is_innermost &&
	       !read_user(top, sizeof(top), w->sp) && !is_code(w, top[0]) && is_code(w, top[1]);
}

#endif

/* Searches the stack for a word that looks like a return address to known code. Returns its position in words above
   sp, or SCAN_WORDS if there is none. Leaves the stack's words in w->bytes. */
__noinline int scan(struct walker *w)
{
	__u64 *words;
	__u32 i;

	if (!w)
		return SCAN_WORDS;
	words = (__u64 *)w->bytes;
	if (read_user(words, SCAN_WORDS * WORD, w->sp))
		return SCAN_WORDS;
	for (i = 0; i < SCAN_WORDS; i++) {
		__u64 addr = without_signature(words[i]);

		if (addr < 0x10000 || addr & INTERPRETED || !follows_call(addr))
			continue;
		w->found_ip = addr;
		if (w->is_jvm && in_code_cache(w, addr))
			break;
		if (find_mapping(w, addr) && (find_row(w, addr - 1) >> 48 & ROW_KIND_MASK) != ROW_UNKNOWN)
			break;
	}
	return i;
}

/* Returns whether an address may be the frame pointer of a frame above `end`: the word above it must be a
   return address. */
static __always_inline bool is_frame(__u64 fp, __u64 end)
{
	__u64 ip = 0;

	return fp - end < MAX_FRAME_BYTES && !(fp & (WORD - 1)) &&
	       !read_user(&ip, WORD, fp + WORD) && follows_call(ip);
}

/* Returns the caller's frame pointer, given that the return address is `found` words above sp. The frame pointer is
   either still in rbp or saved on the stack below the return address. */
__noinline __u64 saved_fp(struct walker *w, __u32 found)
{
	__u64 fp, end;
	__u32 i;

	if (!w)
		return 0;
	end = w->sp + found * WORD;
	if (is_frame(w->fp, end))
		return w->fp;
	for (i = 0; i < SCAN_WORDS && i < found; i++) {
		fp = ((__u64 *)w->bytes)[i];
		if (is_frame(fp, end))
			return fp;
	}
	return w->fp;
}

/* Finds the caller of native code without unwind information: hand-written, or built without tables, as musl
   is. The frames of such code are small. */
static __always_inline int caller_of_unknown(struct walker *w)
{
	__u64 fp, link = return_in_register(w);
	__u32 found;

	if (is_signal_trampoline(w))
		return interrupted_by_signal(w);
	guess(w);
	if (link && follows_call(link) && find_mapping(w, link))
		return caller_by_link(w, w->sp);
	found = scan(w);
	/* If fp points below the return address that scan() has found, fp is better evidence than this
	   address. */
	if (found >= SCAN_WORDS || (!w->is_innermost && w->fp - w->sp < found * WORD))
		return caller_by_fp(w);
	fp = saved_fp(w, found);
	return go_to(w, w->found_ip, w->sp + (found + 1) * WORD, fp);
}

__noinline int caller_of_native(struct walker *w)
{
	struct cached_address *slot;
	__u64 addr, end;
	union {
		__u64 word;
		struct unwind_row row;
	} known;
	struct unwind_row *row = &known.row;
	__u8 kind;

	if (!w)
		return END_IMPLAUSIBLE;
	slot = cache_slot(w, w->mappings_stamp);
	if (slot && is_cached(slot, w, w->mappings_stamp)) {
		known.word = slot->row;
	} else {
		addr = w->ip - !w->is_innermost;
		if (!find_mapping(w, addr)) {
			if (is_signal_trampoline(w))
				return interrupted_by_signal(w);
			guess(w);
			return caller_without_table(w);
		}
		known.word = find_row(w, addr);
		if (slot) {
			slot->row = known.word;
			store_cached(slot, w, w->mappings_stamp);
		}
	}
	kind = row->kind & ROW_KIND_MASK;
	switch (kind) {
	case ROW_SP:
		end = w->sp + row->cfa * WORD;
#ifdef FINDS_BREAKPOINTS
		if (row->cfa == 1)
			end += emulated_words(w) * WORD;
#endif
		break;
	case ROW_FP:
		end = w->fp + row->cfa * WORD;
		break;
	case ROW_PLT:
		end = w->sp + WORD + ((w->ip & 15) >= row->cfa) * WORD;
		break;
	case ROW_DEREF_FP:
	case ROW_DEREF_FP_PLUS_8:
		if (read_user(&end, WORD, w->fp + (__s16)row->cfa * WORD))
			return END_UNREADABLE;
		end += kind == ROW_DEREF_FP_PLUS_8 ? WORD : 0;
		break;
	case ROW_DEREF_SP:
	case ROW_DEREF_SP_PLUS_8:
		if (read_user(&end, WORD, w->sp + (__s16)row->cfa * WORD))
			return END_UNREADABLE;
		end += kind == ROW_DEREF_SP_PLUS_8 ? WORD : 0;
		break;
	case ROW_SIGNAL:
		return interrupted_by_signal(w);
	case ROW_END:
		return END_ENTRY;
	default:
		return caller_of_unknown(w);
	}
	return caller_by_row(w, row, end);
}

#endif

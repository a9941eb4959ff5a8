/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Finds the CodeBlob of HotSpot's code cache that contains an address, and reads from it where its code begins,
 * how large its frames are, and what kind of code it is.
 *
 * The code cache's segment map leads from an address to its blob, as in hotspot/share/memory/heap.cpp
 * (CodeHeap::find_block_for). It is read from the JVM at the time of the sample, so that code compiled a
 * microsecond ago needs no special case.
 */
#ifndef JVMPROBE_WALK_BLOB_BPF_H
#define JVMPROBE_WALK_BLOB_BPF_H

#include "address_cache.bpf.h"
#include "state.bpf.h"

/* Maximum number of steps in the segment map, enough for a method of 8 MB. */
#define MAX_SEGMENT_HOPS 64

/* Indexed by target_key(). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PROCESSES);
	__type(key, __u64);
	__type(value, struct jvm);
} jvms SEC(".maps");

/* Return a field of the blob in w->bytes. */
static __always_inline __u64 field64(struct walker *w, __u32 offset)
{
	return *(__u64 *)(w->bytes + (offset & (MAX_BLOB_BYTES - WORD)));
}

static __always_inline __u32 field32(struct walker *w, __u32 offset)
{
	return *(__u32 *)(w->bytes + (offset & (MAX_BLOB_BYTES - 4)));
}

static __always_inline __u16 field16(struct walker *w, __u32 offset)
{
	return *(__u16 *)(w->bytes + (offset & (MAX_BLOB_BYTES - 2)));
}

static __always_inline __u32 kind_of_name(struct walker *w, __u64 name)
{
	char text[8] = {};

	if (name == w->jvm.nmethod_name)
		return BLOB_METHOD;
	if (read_user(text, sizeof(text), name))
		return BLOB_NONE;
	if (!__builtin_memcmp(text, "nmethod", 8) || !__builtin_memcmp(text, "native n", 8))
		return BLOB_METHOD;
	if (!__builtin_memcmp(text, "vtable c", 8) || !__builtin_memcmp(text, "InlineCa", 8))
		return BLOB_DISPATCH;
	if (!__builtin_memcmp(text, "I2C/C2I ", 8) || !__builtin_memcmp(text, "MethodHa", 8))
		return BLOB_ADAPTER;
	if (!__builtin_memcmp(text, "Deoptimi", 8) || !__builtin_memcmp(text, "Uncommon", 8))
		return BLOB_DEOPT;
	return BLOB_STUB;
}

/* Returns the start of the block of a code heap that contains an address; 0 if there is none. */
static __always_inline __u64 find_block(const struct code_heap *heap, __u64 addr)
{
	__u64 segment = (addr - heap->low) >> (heap->segment_log & 31);
	__u8 back = 0;
	int i;

	for (i = 0; i < MAX_SEGMENT_HOPS; i++) {
		if (read_user(&back, 1, heap->segmap + segment) || back == 0xff)
			return 0;
		if (!back)
			return heap->low + (segment << (heap->segment_log & 31));
		if (back > segment)
			return 0;
		segment -= back;
	}
	return 0;
}

/* Decodes the blob in w->bytes: the addresses of its code, verified entry and handlers, and the code offset
   from which on its frame is complete. */
static __always_inline void read_blob_fields(struct walker *w, __u64 blob)
{
	struct blob *b = &w->blob;

	if (w->jvm.blob_form == FORM_ADDRESSES) {
		b->begin = field64(w, w->jvm.code_begin);
		b->deopt_handler = field64(w, w->jvm.deopt_handler);
		b->deopt_mh_handler = field64(w, w->jvm.deopt_mh_handler);
	} else {
		b->begin = blob + field32(w, w->jvm.code_begin);
		b->deopt_handler = blob + field32(w, w->jvm.deopt_handler);
		b->deopt_mh_handler = blob + field32(w, w->jvm.deopt_mh_handler);
	}
	if (w->jvm.blob_form == FORM_OFFSETS) {
		b->frame_complete = field16(w, w->jvm.frame_complete);
		b->verified_entry = b->begin + field16(w, w->jvm.verified_entry);
	} else {
		b->frame_complete = field32(w, w->jvm.frame_complete);
		b->verified_entry = field64(w, w->jvm.verified_entry);
	}
}

/* Sets w->blob to the blob that contains an address. If there is none, sets the kind of w->blob to
   BLOB_NONE. */
__noinline int find_blob(struct walker *w, __u64 addr)
{
	struct blob *b;
	__u64 block = 0, blob;
	__u32 i, size;

	if (!w)
		return 0;
	b = &w->blob;
	b->kind = BLOB_NONE;
	for (i = 0; i < MAX_CODE_HEAPS; i++) {
		struct code_heap *heap = &w->jvm.heaps[i];

		if (i < w->jvm.heap_count && addr - heap->low < heap->high - heap->low) {
			block = find_block(heap, addr);
			break;
		}
	}
	if (!block)
		return 0;
	blob = block + w->jvm.block_header;
	size = w->jvm.blob_bytes;
	if (size > MAX_BLOB_BYTES || read_user(w->bytes, size, blob))
		return 0;
	read_blob_fields(w, blob);
	b->end = blob + field32(w, w->jvm.data_offset);
	b->osr_entry = field64(w, w->jvm.osr_entry);
	b->orig_pc_offset = field32(w, w->jvm.orig_pc_offset);
	b->compile_id = field32(w, w->jvm.compile_id);
	b->frame_bytes = (__u64)field32(w, w->jvm.frame_size) * WORD;
	if (b->frame_bytes > MAX_FRAME_BYTES)
		b->frame_bytes = 0;
	if (addr - b->begin < b->end - b->begin)
		b->kind = kind_of_name(w, field64(w, w->jvm.name));
	if (b->kind == BLOB_METHOD) {
		b->identity = b->compile_id;
		b->identity_at = blob + w->jvm.compile_id;
	} else {
		b->identity = field64(w, w->jvm.name);
		b->identity_at = blob + w->jvm.name;
	}
	return 0;
}

/* Sets w->blob to the blob of the current frame. Often no search is needed: w->blob, which is still the
   callee's blob, may also contain this frame's address, or the cache may have the frame's blob. */
__noinline int find_own_blob(struct walker *w)
{
	struct cached_address *slot;
	__u32 identity = 0;
	struct blob *b;
	__u64 addr;

	if (!w)
		return 0;
	b = &w->blob;
	/* A return address may lie after the end of the code that made the call. */
	addr = w->ip - !w->is_innermost;
	if (b->kind != BLOB_NONE && addr - b->begin < b->end - b->begin)
		return 0;
	slot = cache_slot(w, w->jvm.stamp);
	if (!slot)
		return find_blob(w, addr);
	if (is_cached(slot, w, w->jvm.stamp) &&
	    !read_user(&identity, sizeof(identity), slot->blob.identity_at) &&
	    identity == slot->blob.identity) {
		*b = slot->blob;
		return 0;
	}
	find_blob(w, addr);
	if (b->kind != BLOB_NONE) {
		slot->blob = *b;
		store_cached(slot, w, w->jvm.stamp);
	}
	return 0;
}

#endif

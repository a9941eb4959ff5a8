/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Trace contexts that the threads of a process publish for profilers.
 *
 * A library of the process exports a thread-local pointer to a record with the identifiers of the trace and the span
 * that the thread works for. User space finds the variable (libjvmprobe/src/bpf/spans.rs), and the programs read it in
 * the thread itself, which therefore does not change the record meanwhile. A process may point anywhere and write
 * anything there, which affects its own samples only.
 */
#ifndef JVMPROBE_SPANS_BPF_H
#define JVMPROBE_SPANS_BPF_H

#include "jvm.bpf.h"
#include "spans.h"

/* Whether contexts are read. */
const volatile bool reads_spans = false;
/* Offset in task_struct of the thread pointer of a thread that is in the kernel; from the kernel's BTF. */
const volatile __u32 task_thread_pointer = 0;

/* By the key of the process. Processes that publish nothing have no entry. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	/* 1 if contexts are not read: set_capacity() in libjvmprobe/src/bpf/spans.rs. */
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct span_source);
} span_sources SEC(".maps");

struct span_source unused_span_source;

/* Returns the address of a module's block in the current thread; 0 if the thread has none. */
static __always_inline __u64 thread_block(__u64 thread_pointer, const struct span_source *source)
{
	__u64 table = read_u64(thread_pointer + thread_table(source->is_musl)), count, block;

	/* glibc has the number of blocks before the table, in an element of two words; musl has it in the first word. */
	count = read_u64(source->is_musl ? table : table - 16);
	if (source->module > count)
		return 0;
	block = read_u64(table + source->module * (source->is_musl ? 8 : 16));
	/* -1 in glibc: not allocated yet (TLS_DTV_UNALLOCATED). */
	return block == ~0ULL ? 0 : block;
}

/* Reads the context of the current thread. `ids` stays unchanged if there is none. Not inlined, because the BPF stack of
   its callers has no space for its variables. */
static __noinline int read_span_from(const struct span_source *source, struct span_ids *ids)
{
	__u64 thread_pointer = 0, block, record;
	struct span_ids found = {};
	__u16 valid = 0;

	if (bpf_probe_read_kernel(&thread_pointer, sizeof(thread_pointer),
				  (void *)(bpf_get_current_task() + task_thread_pointer)))
		return 0;
	block = source->module ? thread_block(thread_pointer, source) : thread_pointer;
	if (!block)
		return 0;
	record = read_u64(block + source->offset);
	if (!record || bpf_probe_read_user(&valid, sizeof(valid), (void *)(record + source->valid_at)))
		return 0;
	if (!(valid & 0xff) || (valid & source->valid_mask) != source->valid)
		return 0;
	if (bpf_probe_read_user(&found, sizeof(found), (void *)(record + source->ids_at)))
		return 0;
	if (found.span && (found.trace[0] | found.trace[1]))
		*ids = found;
	return 0;
}

/* Reads the context of the current thread, whose process has this key. `ids` stays unchanged if there is none. */
static __always_inline void read_span(__u64 key, struct span_ids *ids)
{
	struct span_source *source = reads_spans ? bpf_map_lookup_elem(&span_sources, &key) : NULL;

	if (source)
		read_span_from(source, ids);
}

#endif
